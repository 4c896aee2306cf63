//! The in-flight area: memory shared with the front end in which the descriptors in use survive a
//! restart of the back end (vhost-user specification, "Inflight I/O tracking").

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::backend::Backend;
use super::fault::Refusal;
use super::message::{InflightDesc, Payload};
use super::queues::MAX_QUEUE_SIZE;
use super::session::{Answer, Request, Session};
use crate::queue::{Inflight, InflightRegion};

/// State set by `SET_INFLIGHT_FD`.
#[derive(Debug)]
pub(super) struct InflightArea {
    region: Arc<InflightRegion>,
    pub(super) desc: InflightDesc,
    /// The descriptor's number.
    pub(super) file: u64,
}

impl InflightArea {
    /// Returns the part of queue `index` with `size` entries. Everything is checked again here, at
    /// each start, because size and format may have changed since the area was set
    /// (CVE-2026-86565).
    pub(super) fn part(&self, index: u16, size: u16, packed: bool) -> Result<Inflight, String> {
        if index >= self.desc.queues {
            return Err("the inflight area has no room for this queue".into());
        }
        if size > self.desc.queue_size {
            return Err("the queue is larger than its inflight table".into());
        }
        let offset = u64::from(index) * Inflight::region_size(self.desc.queue_size, packed);
        Inflight::new(Arc::clone(&self.region), offset, size, packed)
            .map_err(|fault| format!("inflight area: {fault}"))
    }
}

/// Checks number and size of queues against the limits of the session (CVE-2021-3839).
fn check(session: &Session, desc: &InflightDesc) -> Result<(), Refusal> {
    let most = session.queues.len();
    if desc.queues == 0 || usize::from(desc.queues) > most {
        return Err(format!(
            "an inflight area for {} queues, 1 to {most} exist",
            desc.queues
        )
        .into());
    }
    if desc.queue_size == 0 || desc.queue_size > MAX_QUEUE_SIZE {
        return Err(format!(
            "an inflight area for queues of {} entries, 1 to {MAX_QUEUE_SIZE} are served",
            desc.queue_size
        )
        .into());
    }
    Ok(())
}

/// `GET_INFLIGHT_FD`: creates an area. The only descriptor goes to the front end, which returns it
/// with `SET_INFLIGHT_FD`; a repeated request leaks nothing (CVE-2020-10726).
pub(super) fn get_inflight(
    session: &mut Session,
    request: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc: InflightDesc = request.parse()?;
    check(session, &desc)?;
    let size = Inflight::region_size(desc.queue_size, session.packed()) * u64::from(desc.queues);
    let fd = sys::file::fixed("lasthop-inflight", size);
    let fd = fd.map_err(|e| format!("cannot create an inflight area: {e}"))?;
    let answer = InflightDesc {
        size,
        offset: 0,
        ..desc
    };
    // Some front ends send 20 bytes, and some pad to 24.
    let mut bytes = answer.to_bytes();
    bytes.resize(request.payload.len(), 0);
    Ok(Answer::Payload(bytes, Some(fd)))
}

/// `SET_INFLIGHT_FD`: sets an earlier area, or the one just created. Running queues keep theirs.
pub(super) fn set_inflight(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let desc: InflightDesc = request.parse()?;
    let fd = request.fds.pop().ok_or("no file descriptor")?;
    let file = session.next_number;
    map(session, desc, &fd, file)?;
    session.keep(&fd, backend);
    Ok(Answer::Done)
}

/// Maps the area in the file of this number.
pub(super) fn map(
    session: &mut Session,
    desc: InflightDesc,
    fd: &OwnedFd,
    file: u64,
) -> Result<(), Refusal> {
    check(session, &desc)?;
    let needed = Inflight::region_size(desc.queue_size, session.packed()) * u64::from(desc.queues);
    if desc.size < needed {
        return Err(format!(
            "an inflight area of {} bytes, {needed} are needed",
            desc.size
        )
        .into());
    }
    // Bytes behind the last queue are unused; the size that the front end gives is not mapped
    // blindly.
    let before = session.inflight.as_ref().map(|area| area.region.amount());
    let quota = &session.quota;
    let mapping = quota.map(fd, needed, desc.offset, before.unwrap_or_default());
    let region = InflightRegion::over(mapping.map_err(|e| e.to_string())?);
    session.inflight = Some(InflightArea {
        region: Arc::new(region),
        desc,
        file,
    });
    Ok(())
}
