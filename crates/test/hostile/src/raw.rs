//! Messages that no front end would send: regions of any file, rings anywhere.

use std::os::fd::BorrowedFd;

use testkit::frontend::{FrontEnd, FrontError, VringAddr, request};
use testkit::guest_ram::RegionSpec;

/// Entries of the small rings here.
pub(super) const ENTRIES: u32 = 8;

fn region(spec: &RegionSpec) -> Vec<u8> {
    let fields = [spec.gpa, spec.size, spec.uva, spec.file_offset];
    fields.map(u64::to_le_bytes).concat()
}

/// SET_MEM_TABLE.
pub(super) fn table(
    front: &mut FrontEnd,
    specs: &[RegionSpec],
    files: &[BorrowedFd<'_>],
) -> Result<(), FrontError> {
    let mut body = u64::from(specs.len() as u32).to_le_bytes().to_vec();
    specs.iter().for_each(|spec| body.extend(region(spec)));
    front.tell(request::SET_MEM_TABLE, &body, files)
}

/// ADD_MEM_REG.
pub(super) fn add(
    front: &mut FrontEnd,
    spec: &RegionSpec,
    file: BorrowedFd<'_>,
) -> Result<(), FrontError> {
    let body = [vec![0; 8], region(spec)].concat();
    front.tell(request::ADD_MEM_REG, &body, &[file])
}

/// SET_LOG_BASE.
pub(super) fn log(
    front: &mut FrontEnd,
    size: u64,
    offset: u64,
    file: BorrowedFd<'_>,
) -> Result<(), FrontError> {
    let body = [size, offset].map(u64::to_le_bytes).concat();
    front.ask(request::SET_LOG_BASE, &body, &[file]).map(|_| ())
}

/// Starts and enables a small queue whose rings begin at user address `at`.
pub(super) fn start(
    front: &mut FrontEnd,
    index: u32,
    at: u64,
    kick: BorrowedFd<'_>,
    call: Option<BorrowedFd<'_>>,
) -> Result<(), FrontError> {
    front.set_vring_num(index, ENTRIES)?;
    front.set_vring_base(index, 0)?;
    let addr = VringAddr {
        desc: at,
        avail: at + 16 * u64::from(ENTRIES),
        used: at + 16 * u64::from(ENTRIES) + 64,
        log: None,
    };
    front.set_vring_addr(index, &addr)?;
    if call.is_some() {
        front.set_vring_call(index, call)?;
    }
    front.set_vring_kick(index, Some(kick))?;
    front.set_vring_enable(index, true)
}

/// Returns whether a session can continue after this: refused messages are replies.
pub(super) fn can_continue(result: &Result<(), FrontError>) -> bool {
    matches!(result, Ok(()) | Err(FrontError::Refused { .. }))
}
