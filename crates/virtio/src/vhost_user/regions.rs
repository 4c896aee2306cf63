//! Guest memory and its dirty log: the messages that change the snapshot every queue runs on.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{DirtyLog, GuestMemory, MAX_REGIONS, Region};

use super::backend::Backend;
use super::fault::Refusal;
use super::message::{LogDesc, Payload, Reader, RegionDesc};
use super::session::{Answer, Request, Session};

/// Most guest memory of one port. A front end can name terabytes that it does not have (sparse files, the same
/// file again and again); what it may not do is use up our address space of 128 TiB.
const MAX_MEMORY: u64 = 4 << 40;

/// What a front end gets to hear whose memory is its own.
const SHARE_HINT: &str = "no file descriptor: guest memory must be shared \
     (QEMU: -object memory-backend-memfd,share=on and -numa node,memdev=…, or -machine memory-backend=…)";

impl Session {
    /// The dirty log, if it is there and logging is on.
    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.logging())
    }

    /// Goes over to the memory in `regions`: queues whose areas are not at the same place any more are
    /// stopped, the others go on, and those that can run again are started.
    fn install_regions(
        &mut self,
        regions: Vec<Arc<Region>>,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        let snapshot = if regions.is_empty() {
            None
        } else {
            let snapshot =
                GuestMemory::new(regions, self.active_log()).map_err(|e| e.to_string())?;
            check_budget(snapshot.size())?;
            Some(Arc::new(snapshot))
        };
        self.stop_moved_queues(snapshot.as_deref(), backend);
        // The former memory is unmapped here, not by the data path: it is held until nobody else has it.
        let former = std::mem::replace(&mut self.memory, snapshot.clone());
        backend.set_memory(snapshot);
        drop(former);
        self.start_all(backend);
        Ok(())
    }

    /// Brings the snapshot in line with the log and the features, when they changed.
    pub(super) fn update_log(&mut self, backend: &mut dyn Backend) {
        let wanted = self.active_log();
        let Some(memory) = &self.memory else { return };
        let same = match (memory.log(), &wanted) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        if !same {
            let snapshot = Arc::new(memory.with_log(wanted));
            self.memory = Some(Arc::clone(&snapshot));
            backend.set_memory(Some(snapshot));
        }
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        match &self.memory {
            Some(memory) => memory.regions().to_vec(),
            None => Vec::new(),
        }
    }
}

fn check_budget(size: u64) -> Result<(), Refusal> {
    if size > MAX_MEMORY {
        let tib = MAX_MEMORY >> 40;
        return Err(format!("more than {tib} TiB of guest memory on one port").into());
    }
    Ok(())
}

fn map(fd: OwnedFd, desc: &RegionDesc) -> Result<Arc<Region>, Refusal> {
    let region = Region::map(fd, desc.gpa, desc.size, desc.uva, desc.offset);
    Ok(Arc::new(region.map_err(|e| e.to_string())?))
}

/// `SET_MEM_TABLE`: all regions at once, at most 8.
pub(super) fn set_table(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let mut reader = Reader::new(&request.payload);
    let count = reader.u32().ok_or("payload too short")? as usize;
    reader.u32();
    if request.payload.len() != 8 + 32 * count {
        return Err(format!("{count} regions do not fit the payload").into());
    }
    if count == 0 || request.fds.len() < count {
        return Err(SHARE_HINT.into());
    }
    if request.fds.len() > count {
        return Err("more file descriptors than regions".into());
    }
    let mut regions = Vec::with_capacity(count);
    for fd in request.fds {
        let desc = RegionDesc::parse(&mut reader).ok_or("payload too short")?;
        regions.push(map(fd, &desc)?);
    }
    session.install_regions(regions, backend)?;
    Ok(Answer::Done)
}

/// `GET_MAX_MEM_SLOTS`.
pub(super) fn get_max_slots(
    _: &mut Session,
    _: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    Ok(Answer::u64(MAX_REGIONS as u64))
}

/// Eight bytes of padding, then the region.
fn single_region(request: &Request) -> Result<RegionDesc, Refusal> {
    let mut reader = Reader::new(&request.payload);
    reader.u64();
    RegionDesc::parse(&mut reader).ok_or_else(|| "payload too short".into())
}

/// Where the region with these addresses and this size is; its offset does not count.
fn place(regions: &[Arc<Region>], desc: &RegionDesc) -> Option<usize> {
    regions
        .iter()
        .position(|r| r.gpa() == desc.gpa && r.uva() == desc.uva && r.size() == desc.size)
}

/// `ADD_MEM_REG`. A region that is there already is mapped anew: QEMU up to 7.2 adds each region once for
/// every queue pair.
pub(super) fn add_region(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc = single_region(&request)?;
    let fd = request.fds.pop().ok_or(SHARE_HINT)?;
    let mut regions = session.regions();
    let before = place(&regions, &desc);
    if before.is_none() && regions.len() >= MAX_REGIONS {
        return Err(format!("{MAX_REGIONS} memory regions are there already").into());
    }
    let region = map(fd, &desc)?;
    match before {
        Some(at) => regions[at] = region,
        None => regions.push(region),
    }
    session.install_regions(regions, backend)?;
    Ok(Answer::Done)
}

/// `REM_MEM_REG`: the region with the same addresses and size. A descriptor that old front ends send along
/// is closed. A region that is not there is gone already: QEMU up to 7.2 removes each once for every queue
/// pair.
pub(super) fn remove_region(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc = single_region(&request)?;
    let mut regions = session.regions();
    if let Some(at) = place(&regions, &desc) {
        regions.remove(at);
        session.install_regions(regions, backend)?;
    }
    Ok(Answer::Done)
}

/// `SET_LOG_BASE` with a file. Answered with its own payload: QEMU reads an answer of any size, others want
/// the log description back.
pub(super) fn set_log_base(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc: LogDesc = request.parse()?;
    let fd = request.fds.pop().ok_or("no file descriptor")?;
    let log = DirtyLog::map(fd, desc.size, desc.offset).map_err(|e| format!("dirty log: {e}"))?;
    session.log = Some(Arc::new(log));
    session.update_log(backend);
    Ok(Answer::payload(request.payload))
}

/// `SET_LOG_FD`: kept and not written; the front end looks at the log by itself.
pub(super) fn set_log_fd(
    session: &mut Session,
    mut request: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    session.log_fd = request.fds.pop();
    Ok(Answer::Done)
}
