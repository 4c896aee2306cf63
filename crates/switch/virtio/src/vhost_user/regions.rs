//! Guest memory and its dirty log: the messages that change the snapshot that all queues use.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::Amount;
use memory::{DirtyLog, GuestMemory, LOG_PAGE, MAX_REGIONS, Region, RegionPlan};
use sys::foreign::ForeignFd;

use super::backend::Backend;
use super::fault::{Fault, Refusal};
use super::message::{LogDesc, Payload, Reader, RegionDesc};
use super::session::{Answer, Request, Session};

/// The longest dirty log: of guest addresses below 16 TiB. A guest with all the memory that a port
/// may have has holes in it as well, and a front end enlarges its log before it adds memory, so the
/// present memory is no bound.
const MAX_LOG: u64 = (16 << 40) / LOG_PAGE / 8;

/// Hint for a front end with private memory.
const SHARE_HINT: &str = "no file descriptor: guest memory must be shared \
     (QEMU: -object memory-backend-memfd,share=on and -numa node,memdev=…, \
    or -machine memory-backend=…)";

/// A region of the session's memory, and its file.
#[derive(Debug, Clone)]
pub(super) struct MappedRegion {
    pub(super) region: Arc<Region>,
    /// Offset of the region in its file, in bytes.
    pub(super) offset: u64,
    /// The descriptor's number.
    pub(super) file: u64,
    pub(super) id: FileId,
}

/// A file by device and inode, independent of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl FileId {
    /// Returns the identity of a file that is mapped: any other may be on a file system that
    /// blocks.
    fn of(fd: &OwnedFd) -> Result<Self, Refusal> {
        let stat = rustix::fs::fstat(fd).map_err(|e| e.to_string())?;
        Ok(FileId(stat.st_dev, stat.st_ino))
    }
}

/// Place of the dirty log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFile {
    pub(super) size: u64,
    pub(super) offset: u64,
    /// The descriptor's number.
    pub(super) file: u64,
}

impl Session {
    /// Returns whether the VMM truncated a part of the memory that it shares; see
    /// [`mapping::survive_truncation`].
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lost())
    }

    /// Checks that the former memory is unmapped. Otherwise the connection ends: each message could
    /// leave more behind.
    pub(super) fn check_unmapped(&self, message: &str) -> Result<(), Fault> {
        if !self.quota.is_stuck() {
            return Ok(());
        }
        Err(Fault::Refused {
            name: message.into(),
            reason: "the system does not unmap memory that was shared before".into(),
        })
    }

    /// Returns the dirty log, if there is one and logging is on.
    fn active_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.logging())
    }

    /// Switches to the memory in `regions`: queues are stopped if their areas are no longer at the
    /// same place, the others continue, and those that can run again are started.
    pub(super) fn install_regions(
        &mut self,
        regions: Vec<MappedRegion>,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        let snapshot = if regions.is_empty() {
            None
        } else {
            let all = regions.iter().map(|m| Arc::clone(&m.region)).collect();
            let snapshot = GuestMemory::new(all, self.active_log()).map_err(|e| e.to_string())?;
            check_covered(&snapshot, snapshot.log().map(|log| &**log))?;
            Some(Arc::new(snapshot))
        };
        self.stop_moved_queues(snapshot.as_deref(), backend);
        // The former memory is unmapped here, not by the data path: it is held until it has no
        // other user.
        let former = std::mem::replace(&mut self.memory, snapshot.clone());
        backend.set_memory(snapshot);
        drop(former);
        self.regions = regions;
        if self.is_translated() {
            // They were not stopped, and look for their rings themselves.
            backend.retry();
        }
        self.start_all(backend);
        Ok(())
    }

    /// Checks that all writes can be logged; only for a session with logging.
    pub(super) fn check_log(&self) -> Result<(), Refusal> {
        match (&self.log, &self.memory) {
            (None, _) if self.any_running() => {
                Err("logging is switched on, and there is no dirty log".into())
            }
            (Some(log), Some(memory)) => check_covered(memory, Some(log)),
            _ => Ok(()),
        }
    }

    /// Updates the snapshot to the log and the features, when they changed.
    pub(super) fn update_log(&mut self, backend: &mut dyn Backend) {
        let desired = self.active_log();
        let Some(memory) = &self.memory else { return };
        let same = match (memory.log(), &desired) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        if !same {
            let snapshot = Arc::new(memory.with_log(desired));
            self.memory = Some(Arc::clone(&snapshot));
            backend.set_memory(Some(snapshot));
        }
    }

    /// Switches to a dirty log in the file with this number, if it covers the guest's memory.
    pub(super) fn map_log(
        &mut self,
        fd: &OwnedFd,
        desc: &LogDesc,
        file: u64,
    ) -> Result<(), Refusal> {
        let log = self.mapped_log(fd, desc);
        let log = log.map_err(|e| format!("dirty log: {e}"))?;
        if let Some(memory) = self.memory.as_ref().filter(|_| self.logging()) {
            check_covered(memory, Some(&log))?;
        }
        self.log = Some(Arc::new(log));
        self.log_file = Some(LogFile {
            size: desc.size,
            offset: desc.offset,
            file,
        });
        Ok(())
    }

    fn mapped_log(&self, fd: &OwnedFd, desc: &LogDesc) -> Result<DirtyLog, String> {
        if desc.size > MAX_LOG {
            let size = desc.size;
            return Err(format!("{size} bytes, at most {MAX_LOG} are needed"));
        }
        let before = self.log.as_ref().map(|log| log.amount());
        let before = before.unwrap_or_default();
        let mapped = self.quota.map(fd, desc.size, desc.offset, before);
        mapped.map(DirtyLog::over).map_err(|e| e.to_string())
    }

    /// Maps regions of files with these numbers, in place of regions that take up `before`: all are
    /// checked, and the quota, before the first is mapped.
    pub(super) fn map_regions(
        &self,
        desired: &[(ForeignFd, RegionDesc, u64)],
        before: Amount,
    ) -> Result<Vec<MappedRegion>, Refusal> {
        let plans = desired.iter().map(|(fd, desc, _)| {
            RegionPlan::check(fd, desc.gpa, desc.size, desc.uva, desc.offset)
                .map_err(|e| e.to_string())
        });
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let all = plans.iter().map(RegionPlan::amount).sum();
        self.quota.admit(all, before).map_err(|e| e.to_string())?;
        let mapped = desired.iter().zip(&plans).map(|((fd, desc, file), plan)| {
            let region = plan.map(fd, Some(&self.quota));
            Ok(MappedRegion {
                region: Arc::new(region.map_err(|e| e.to_string())?),
                offset: desc.offset,
                file: *file,
                id: FileId::of(fd)?,
            })
        });
        mapped.collect()
    }

    /// Maps regions of a message, and stores their files.
    fn map_new(
        &mut self,
        desired: Vec<(ForeignFd, RegionDesc)>,
        before: Amount,
        backend: &mut dyn Backend,
    ) -> Result<Vec<MappedRegion>, Refusal> {
        let numbers = self.next_number..;
        let desired = desired.into_iter().zip(numbers);
        let desired: Vec<_> = desired.map(|((fd, desc), n)| (fd, desc, n)).collect();
        let mapped = self.map_regions(&desired, before)?;
        for (fd, ..) in &desired {
            self.keep(fd, backend);
        }
        Ok(mapped)
    }
}

/// Returns the amount that these regions take up.
fn amount(regions: &[MappedRegion]) -> Amount {
    regions.iter().map(|m| m.region.amount()).sum()
}

/// Checks that each page has a bit in the log; otherwise it would be missing after a migration.
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
    let mut desired = Vec::with_capacity(count);
    for fd in request.fds {
        let desc = RegionDesc::parse(&mut reader).ok_or("payload too short")?;
        desired.push((fd, desc));
    }
    let regions = session.map_new(desired, amount(&session.regions), backend)?;
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

/// Parses a region behind eight bytes of padding.
fn single_region(request: &Request) -> Result<RegionDesc, Refusal> {
    let mut reader = Reader::new(&request.payload);
    reader.u64();
    RegionDesc::parse(&mut reader).ok_or_else(|| "payload too short".into())
}

/// Returns the place of the region with these addresses and this size; its offset does not count.
fn place(regions: &[MappedRegion], desc: &RegionDesc) -> Option<usize> {
    let mut regions = regions.iter().map(|m| &m.region);
    regions.position(|r| r.gpa() == desc.gpa && r.uva() == desc.uva && r.size() == desc.size)
}

/// `ADD_MEM_REG`. A present region is mapped anew: QEMU up to 7.2 adds each region once for every
/// queue pair.
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
    let replaced = before.map_or(&[][..], |at| &regions[at..=at]);
    let new = session.map_new(vec![(fd, desc)], amount(replaced), backend)?;
    match before {
        Some(at) => drop(regions.splice(at..=at, new)),
        None => regions.extend(new),
    }
    session.install_regions(regions, backend)?;
    Ok(Answer::Done)
}

/// `REM_MEM_REG`: the region with the same addresses and size. A descriptor that old front ends
/// attach is closed. A missing region is not an error: QEMU up to 7.2 removes each once for every
/// queue pair.
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

/// `SET_LOG_BASE` with a file; queues with logging have waited for it. The reply is its own
/// payload: QEMU reads a reply of any size, others expect the log description.
pub(super) fn set_log_base(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc: LogDesc = request.parse()?;
    let fd = request.fds.pop().ok_or("no file descriptor")?;
    session.map_log(&fd, &desc, session.next_number)?;
    session.keep(&fd, backend);
    session.update_log(backend);
    session.start_all(backend);
    Ok(Answer::payload(request.payload))
}

/// `SET_LOG_FD`: closed and never written; the front end polls the log.
pub(super) fn set_log_fd(
    _: &mut Session,
    _: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    Ok(Answer::Done)
}
