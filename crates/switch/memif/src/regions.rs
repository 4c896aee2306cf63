//! Regions: the memory files of a client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::{Amount, Quota};
use memory::{GuestMemory, REGION_PAGE, Region, RegionPlan};
use virtio::vhost_user::Backend;

use crate::message::{self, AddRegion};
use crate::session::Session;
use crate::table::{Answer, Outcome, Refusal, Request};

/// Most regions of one client.
pub const MAX_REGIONS: u16 = 16;
/// Most bytes of one region. Descriptors name 4 GiB of each; the last page is left out, so that no
/// buffer continues in the next region.
pub const MAX_REGION: u64 = (1 << 32) - REGION_PAGE;

/// Hint for clients with files that are shorter than their regions.
const FILE_HINT: &str = "(DPDK with zero-copy=yes: needs --single-file-segments)";

/// A region of the client's memory, and its file.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) region: Arc<Region>,
    /// The descriptor's number.
    pub(crate) file: u64,
}

/// Returns the guest-physical address of a byte in a region.
pub(crate) fn address(region: u16, offset: u32) -> u64 {
    u64::from(region) << 32 | u64::from(offset)
}

/// The regions of a client, and the quota of everything that is mapped for it.
#[derive(Debug)]
pub(crate) struct Regions {
    quota: Arc<Quota>,
    pub(crate) all: Vec<MappedRegion>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self {
            quota: Quota::new(),
            all: Vec::new(),
        }
    }

    /// Maps the region `index`, of the file with this number.
    pub(crate) fn map(
        &self,
        index: usize,
        fd: &OwnedFd,
        size: u64,
        file: u64,
    ) -> Result<MappedRegion, Refusal> {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        if index >= MAX_REGIONS {
            return Err(format!("more than {MAX_REGIONS} regions").into());
        }
        if size > MAX_REGION {
            return Err(format!("{size} bytes, at most {MAX_REGION} are served").into());
        }
        let plan = RegionPlan::check_bytes(fd, address(index, 0), size);
        let plan = plan.map_err(|e| match e {
            memory::MemoryError::Mapping(mapping::MappingError::FileTooShort { .. }) => {
                format!("{e} {FILE_HINT}")
            }
            _ => e.to_string(),
        })?;
        let admitted = self.quota.admit(plan.amount(), Amount::default());
        admitted.map_err(|e| e.to_string())?;
        let region = plan.map(fd, Some(&self.quota));
        Ok(MappedRegion {
            region: Arc::new(region.map_err(|e| e.to_string())?),
            file,
        })
    }

    /// Returns the memory of all regions.
    pub(crate) fn snapshot(&self) -> Result<Arc<GuestMemory>, Refusal> {
        let all = self.all.iter().map(|m| Arc::clone(&m.region)).collect();
        let memory = GuestMemory::new(all, None).map_err(|e| e.to_string())?;
        Ok(Arc::new(memory))
    }
}

/// `ADD_REGION`: regions come in the order of their indices.
pub(crate) fn add_region(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let add = AddRegion::parse(&request.payload).ok_or("payload too short")?;
    let fd = request.fd.ok_or("no file descriptor")?;
    let (index, next) = (usize::from(add.index), session.regions.all.len());
    let last = session.regions.all.last();
    let is_last = session.again
        && index + 1 == next
        && last.is_some_and(|last| last.region.size() == add.size);
    if index != next && !is_last {
        return Err(format!("region {index}, the next one is {next}").into());
    }
    let region = session
        .regions
        .map(index, &fd, add.size, session.next_number)
        .map_err(|Refusal(reason)| format!("region {index}: {reason}"))?;
    session.keep(&fd, backend);
    session.regions.all.truncate(index);
    session.regions.all.push(region);
    Ok(Answer::Reply(message::ack()))
}
