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

/// A region of the session's memory, and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Mapped {
    pub(super) region: Arc<Region>,
    /// Where the region starts in its file, bytes.
    pub(super) offset: u64,
    /// The descriptor's number.
    pub(super) file: u64,
    pub(super) id: FileId,
}

/// A file, whoever has it open: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl FileId {
    /// Of a file that is mapped: any other may be on a file system that answers when it likes.
    fn of(fd: &OwnedFd) -> Result<Self, Refusal> {
        let stat = rustix::fs::fstat(fd).map_err(|e| e.to_string())?;
        Ok(FileId(stat.st_dev, stat.st_ino))
    }
}

/// Where the dirty log lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFile {
    pub(super) size: u64,
    pub(super) offset: u64,
    /// The descriptor's number.
    pub(super) file: u64,
}

impl Session {
    /// Whether the VMM took a part of the memory away that it shares; see [`memory::survive_truncation`].
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lost())
    }

    /// The dirty log, if it is there and logging is on.
    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.logging())
    }

    /// Goes over to the memory in `regions`: queues whose areas are not at the same place any more are
    /// stopped, the others go on, and those that can run again are started.
    pub(super) fn install_regions(
        &mut self,
        regions: Vec<Mapped>,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        let snapshot = if regions.is_empty() {
            None
        } else {
            let all = regions.iter().map(|m| Arc::clone(&m.region)).collect();
            let snapshot = GuestMemory::new(all, self.active_log()).map_err(|e| e.to_string())?;
            check_budget(snapshot.size())?;
            check_covered(&snapshot, snapshot.log().map(|log| &**log))?;
            Some(Arc::new(snapshot))
        };
        self.stop_moved_queues(snapshot.as_deref(), backend);
        // The former memory is unmapped here, not by the data path: it is held until nobody else has it.
        let former = std::mem::replace(&mut self.memory, snapshot.clone());
        backend.set_memory(snapshot);
        drop(former);
        self.regions = regions;
        self.start_all(backend);
        Ok(())
    }

    /// Whether all that is written from now on can be logged; only for a session that is to log.
    pub(super) fn check_log(&self) -> Result<(), Refusal> {
        match (&self.log, &self.memory) {
            (None, _) if self.any_running() => {
                Err("logging is switched on, and there is no dirty log".into())
            }
            (Some(log), Some(memory)) => check_covered(memory, Some(log)),
            _ => Ok(()),
        }
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

    /// Maps the dirty log, the file with this number.
    pub(super) fn map_log(
        &mut self,
        fd: OwnedFd,
        desc: &LogDesc,
        file: u64,
    ) -> Result<(), Refusal> {
        let log =
            DirtyLog::map(fd, desc.size, desc.offset).map_err(|e| format!("dirty log: {e}"))?;
        self.log = Some(Arc::new(log));
        self.log_file = Some(LogFile {
            size: desc.size,
            offset: desc.offset,
            file,
        });
        Ok(())
    }

    /// Maps a region of a file, which is kept.
    fn map(
        &mut self,
        fd: &OwnedFd,
        desc: &RegionDesc,
        backend: &mut dyn Backend,
    ) -> Result<Mapped, Refusal> {
        let mapped = map(fd, desc, self.next_number)?;
        self.keep(fd, backend);
        Ok(mapped)
    }
}

fn check_budget(size: u64) -> Result<(), Refusal> {
    if size > MAX_MEMORY {
        let tib = MAX_MEMORY >> 40;
        return Err(format!("more than {tib} TiB of guest memory on one port").into());
    }
    Ok(())
}

/// A page without a bit would be missing at the other end of a migration.
fn check_covered(memory: &GuestMemory, log: Option<&DirtyLog>) -> Result<(), Refusal> {
    let end = memory.regions().last().map_or(0, |region| region.gpa_end());
    match log {
        Some(log) if log.covers() < end => {
            let covers = log.covers();
            Err(format!(
                "the dirty log covers addresses below {covers:#x}, guest memory ends at {end:#x}"
            )
            .into())
        }
        _ => Ok(()),
    }
}

/// Maps a region of the file with this number.
pub(super) fn map(fd: &OwnedFd, desc: &RegionDesc, file: u64) -> Result<Mapped, Refusal> {
    let copy = fd.try_clone().map_err(|e| e.to_string())?;
    let region = Region::map(copy, desc.gpa, desc.size, desc.uva, desc.offset);
    Ok(Mapped {
        region: Arc::new(region.map_err(|e| e.to_string())?),
        offset: desc.offset,
        file,
        id: FileId::of(fd)?,
    })
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
        regions.push(session.map(&fd, &desc, backend)?);
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
fn place(regions: &[Mapped], desc: &RegionDesc) -> Option<usize> {
    let mut regions = regions.iter().map(|m| &m.region);
    regions.position(|r| r.gpa() == desc.gpa && r.uva() == desc.uva && r.size() == desc.size)
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
    let mut regions = session.regions.clone();
    let before = place(&regions, &desc);
    if before.is_none() && regions.len() >= MAX_REGIONS {
        return Err(format!("{MAX_REGIONS} memory regions are there already").into());
    }
    let region = session.map(&fd, &desc, backend)?;
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
    let mut regions = session.regions.clone();
    if let Some(at) = place(&regions, &desc) {
        regions.remove(at);
        session.install_regions(regions, backend)?;
    }
    Ok(Answer::Done)
}

/// `SET_LOG_BASE` with a file; queues that were to be logged have waited for it. Answered with its own payload: QEMU reads an answer of any size, others want
/// the log description back.
pub(super) fn set_log_base(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc: LogDesc = request.parse()?;
    let fd = request.fds.pop().ok_or("no file descriptor")?;
    let keep = fd.try_clone().map_err(|e| e.to_string())?;
    session.map_log(fd, &desc, session.next_number)?;
    if session.logging() {
        session.check_log()?;
    }
    session.keep(&keep, backend);
    session.update_log(backend);
    session.start_all(backend);
    Ok(Answer::payload(request.payload))
}

/// `SET_LOG_FD`: closed and never written; the front end looks at the log by itself.
pub(super) fn set_log_fd(
    _: &mut Session,
    _: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    Ok(Answer::Done)
}
