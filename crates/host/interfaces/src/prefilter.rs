//! The prefilter's table and the program that reads it, for one interface: see the crate `offload`.
//!
//! All that needs bpf(2) is done when they are made, which needs `CAP_BPF` and `CAP_PERFMON`. A
//! program is attached to packet sockets later, with no further right.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bpf::object::{self, ObjectError};
use bpf::{Attribute, Command, LICENSE};
use mapping::SharedWords;
use offload::layout::SIZE;

// `linux/bpf.h`.
const MAP_TYPE_ARRAY: u32 = 2;
const MAPPABLE: u32 = 1 << 10;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_XDP: u32 = 6;
/// Places of fields in `union bpf_attr` for a program, counted in 32 bits, and that of the log's
/// address, counted in 64 bits.
const LOG_LEVEL: usize = 6;
const LOG_SIZE: usize = 7;
const LOG: usize = 4;
/// Bytes of the verifier's log of a refused program.
const LOG_BYTES: usize = 1 << 20;

/// Reason why there is no prefilter.
#[derive(Debug, thiserror::Error)]
pub enum PrefilterError {
    /// This process lacks the rights.
    #[error(
        "loading BPF programs needs CAP_BPF and CAP_PERFMON ({0}); lasthop.service has them, and root"
    )]
    Rights(io::Error),
    /// The kernel refuses the program.
    #[error("the kernel refuses the BPF program ({error}): {why}")]
    Refused {
        /// The error of the system call.
        error: io::Error,
        /// The last line of the verifier's log.
        why: String,
    },
    /// A mistake in the object.
    #[error("the program: {0}")]
    Object(#[from] ObjectError),
    /// Any other error of a system call.
    #[error("BPF: {0}")]
    System(#[from] io::Error),
}

/// A table in the memory of a BPF map.
#[derive(Debug)]
pub struct TableMap(OwnedFd);

impl TableMap {
    /// Makes an empty table.
    ///
    /// # Errors
    /// The rights are missing, or the system refuses.
    pub fn new() -> Result<Self, PrefilterError> {
        // Kind, bytes of a key, bytes of a value, entries, flags.
        let mut attribute = Attribute::new(&[MAP_TYPE_ARRAY, 4, SIZE as u32, 1, MAPPABLE]);
        let map = attribute.make(Command::MapCreate).map_err(rights)?;
        offload::create(&SharedWords::<SIZE>::map(map.as_fd(), true)?);
        Ok(Self(map))
    }

    /// Loads the program for packet sockets, which reads this table.
    ///
    /// # Errors
    /// The rights are missing, or the kernel refuses the program.
    pub fn socket_program(&self) -> Result<OwnedFd, PrefilterError> {
        self.load(PROG_TYPE_SOCKET_FILTER, "prefilter_socket", &[])
    }

    /// Loads the program for an interface with `AF_XDP` sockets, which reads this table. It
    /// redirects frames without an entry to `sockets`, by receive queue.
    ///
    /// # Errors
    /// As for sockets.
    pub fn xdp_program(&self, sockets: BorrowedFd<'_>) -> Result<OwnedFd, PrefilterError> {
        self.load(PROG_TYPE_XDP, "prefilter_xdp", &[("sockets", sockets)])
    }

    fn load(
        &self,
        kind: u32,
        name: &str,
        others: &[(&str, BorrowedFd<'_>)],
    ) -> Result<OwnedFd, PrefilterError> {
        let mut maps = vec![(".bss.table", self.0.as_fd())];
        maps.extend_from_slice(others);
        let code = object::program(offload::PROGRAMS, name, &maps)?;
        let attribute = || {
            // Kind, instructions, pointers to them and to the license.
            Attribute::new(&[kind, code.len() as u32])
                .point(1, &code[..])
                .point(2, &LICENSE)
        };
        let refused = |error: io::Error| {
            let mut log = vec![0; LOG_BYTES];
            let mut with_log = attribute()
                .number(LOG_LEVEL, 1)
                .number(LOG_SIZE, LOG_BYTES as u32)
                .point_mut(LOG, &mut log);
            // Refused as before.
            let _ = with_log.make(Command::ProgramLoad);
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let counts = |line: &&str| line.starts_with("processed ");
            match text.lines().rev().find(|line| !counts(line)) {
                None => rights(error),
                Some(why) => PrefilterError::Refused {
                    error,
                    why: why.to_owned(),
                },
            }
        };
        attribute().make(Command::ProgramLoad).map_err(refused)
    }
}

impl AsFd for TableMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn rights(error: io::Error) -> PrefilterError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => PrefilterError::Rights(error),
        _ => PrefilterError::System(error),
    }
}

/// Runs a program on a frame and returns its verdict: for tests.
///
/// # Errors
/// The rights are missing.
#[cfg(any(test, feature = "test-utils"))]
pub fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    // The program, its result; the bytes of the frame and of a copy, pointers to them.
    let mut attribute = Attribute::new(&[bpf::number(&program), 0, frame.len() as u32, 0]);
    attribute = attribute.point(2, frame);
    attribute.run(Command::ProgramTestRun)?;
    Ok(attribute.result(1))
}

#[cfg(test)]
mod tests;
