//! Life cycle of the queues: missing settings, start and stop.

pub(super) mod messages;

use std::sync::Arc;

use memory::GuestMemory;
use memory::iotlb::{Access, Iotlb, Miss, Need};
use sys::foreign::ForeignFd;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use super::backend::{Backend, QueueSetup, Resume};
use super::message::VringAddr;
use super::record::StoredDescriptor;
use super::session::{Answer, Session};
use crate::queue::{Layout, SlotFormat, netmap};

/// Largest queue that is served, in entries.
pub const MAX_QUEUE_SIZE: u16 = crate::queue::MAX_SIZE;

/// `SET_VRING_ADDR`: writes to the used ring are logged.
const F_LOG: u32 = 1;
/// Start of a packed queue: both wrap counters set, both indices 0.
pub(super) const PACKED_START: u32 = 0x8000_8000;

/// Settings of one queue by the front end, and their result.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub(super) size: Option<u16>,
    pub(super) addr: Option<VringAddr>,
    pub(super) base: Option<u32>,
    /// The position at the last reset, for a `GET_VRING_BASE` that comes too late; never used for a
    /// start.
    pub(super) last_position: Option<u32>,
    pub(super) kick: Option<StoredDescriptor>,
    pub(super) call: Option<StoredDescriptor>,
    pub(super) err: Option<StoredDescriptor>,
    pub(super) enabled: Option<bool>,
    /// The layout at the start, while the queue runs.
    pub(super) running: Option<Layout>,
    /// The in-flight area at the start: its descriptor's number.
    pub(super) area: Option<u64>,
    /// A process that died has served the queue, and its position is in its rings.
    pub(super) resume: bool,
    /// The queue ran in this session: the front end has its position from this back end.
    pub(super) served: bool,
    /// Reason why the queue does not run although it is complete.
    pub(super) problem: Option<String>,
    /// Nothing is missing but the translation of its rings.
    pub(super) untranslated: bool,
}

impl Vring {
    /// Resets the queue to its first state. Call and error descriptors stay: QEMU sets them once
    /// and starts again without. The position can still be requested: QEMU 7.2 stops with
    /// `SET_STATUS` 0 first and `GET_VRING_BASE` after, and would continue a paused or migrated
    /// guest at position 0.
    pub(super) fn reset(&mut self) {
        *self = Vring {
            last_position: self.base.or(self.last_position),
            call: self.call.take(),
            err: self.err.take(),
            served: self.served,
            ..Vring::default()
        };
    }
}

/// Status of one queue, as text.
#[derive(Debug, Clone)]
pub struct QueueInfo {
    /// Queue index.
    pub index: u16,
    /// Entries, 0 when not set yet.
    pub size: u16,
    /// Whether the data path serves it.
    pub running: bool,
    /// Whether frames may pass.
    pub enabled: bool,
    /// "running", "disabled", the missing setting, or the reason why it cannot start.
    pub state: String,
    /// Reason why it was stopped or cannot start.
    pub fault: Option<String>,
}

/// States that the queues of a session are in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueSummary {
    /// The data path serves one.
    pub any_running: bool,
    /// Frames may pass in one that runs.
    pub any_up: bool,
    /// One was stopped for a fault, or cannot start.
    pub any_fault: bool,
}

impl QueueSummary {
    /// Adds a queue.
    pub fn add(&mut self, running: bool, enabled: bool, fault: bool) {
        self.any_running |= running;
        self.any_up |= running && enabled;
        self.any_fault |= fault;
    }
}

/// Reason why a queue is not started.
enum StartError {
    /// A setting is missing.
    Incomplete(&'static str),
    /// These translations of its rings are missing.
    Untranslated(Vec<Miss>),
    /// The settings are invalid.
    Refused(String),
}

impl From<String> for StartError {
    fn from(reason: String) -> Self {
        StartError::Refused(reason)
    }
}

/// Format of the queues of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Split,
    Packed,
    /// Slot queues of a netmap client.
    Slots,
}

impl Format {
    /// Returns length in bytes and alignment of the three areas of a queue, in the order of its
    /// layout (virtio 1.3, 2.7 and 2.8; `queue::slots::netmap`).
    fn areas(self, size: u16) -> [(u32, u64); 3] {
        let entries = u32::from(size);
        match self {
            Self::Split => [
                (16 * entries, 16),
                (6 + 2 * entries, 2),
                (6 + 8 * entries, 4),
            ],
            Self::Packed => [(16 * entries, 16), (4, 4), (4, 4)],
            Self::Slots => {
                let line = netmap::LINE;
                let (driver, device) = (netmap::DRIVER_LEN, netmap::DEVICE_LEN);
                [(16 * entries, line), (driver, line), (device, line)]
            }
        }
    }
}

/// Translates the queue's addresses: all three areas aligned, and each mapped in one piece.
fn resolve(
    memory: &GuestMemory,
    size: u16,
    addr: &VringAddr,
    format: Format,
) -> Result<Layout, String> {
    let users = [addr.desc, addr.avail, addr.used];
    let mut guest = [0; 3];
    for (i, (len, align)) in format.areas(size).into_iter().enumerate() {
        let (name, user) = (AREAS[i], users[i]);
        let gpa = memory
            .user_to_guest(user)
            .filter(|gpa| memory.translate(*gpa, len).is_some())
            .ok_or_else(|| {
                format!("its {name} area ({user:#x}, {len} bytes) is not in one memory region")
            })?;
        if gpa % align != 0 {
            return Err(format!(
                "its {name} area at {gpa:#x} is not aligned to {align}"
            ));
        }
        guest[i] = gpa;
    }
    Ok(Layout {
        size,
        desc: guest[0],
        driver: guest[1],
        device: guest[2],
        slots: (format == Format::Slots).then_some(SlotFormat::Netmap),
    })
}

/// Names of a queue's areas.
const AREAS: [&str; 3] = ["descriptor", "driver", "device"];
/// Status of a queue without the translation of its rings.
const UNTRANSLATED: &str = "the translation of its rings";
/// Bytes of an IOMMU's smallest page.
const PAGE: u64 = 4096;

/// Checks the queue's addresses, which are I/O virtual ones: aligned, and translated with the
/// access that each area needs. They may lead anywhere page by page.
fn resolve_translated(
    iotlb: &Iotlb,
    size: u16,
    addr: &VringAddr,
    features: Features,
) -> Result<Layout, StartError> {
    let packed = features.contains(Features::RING_PACKED);
    let format = if packed {
        Format::Packed
    } else {
        Format::Split
    };
    let first = if packed {
        Access::READ_WRITE
    } else {
        Access::READ
    };
    let access = [first, Access::READ, Access::READ_WRITE];
    let iovas = [addr.desc, addr.avail, addr.used];
    // The event fields come last in a split queue, and are not there without the feature.
    let event_idx = packed || features.contains(Features::RING_EVENT_IDX);
    let events = if event_idx { [0; 3] } else { [0, 2, 2] };
    let mut missing = Vec::new();
    for (i, (len, align)) in format.areas(size).into_iter().enumerate() {
        let (name, iova) = (AREAS[i], iovas[i]);
        if iova % align != 0 {
            let reason = format!("its {name} area at {iova:#x} is not aligned to {align}");
            return Err(StartError::Refused(reason));
        }
        let last = iova.checked_add(u64::from(len - events[i]) - 1);
        let last = last.ok_or_else(|| format!("its {name} area at {iova:#x} wraps around"))?;
        let pages = (iova / PAGE..=last / PAGE).map(|page| page * PAGE);
        let misses = pages.filter(|page| iotlb.look_up(*page, access[i]).is_none());
        missing.extend(misses.map(|page| Miss::new(page, access[i])));
    }
    if !missing.is_empty() {
        return Err(StartError::Untranslated(missing));
    }
    Ok(Layout {
        size,
        desc: addr.desc,
        driver: addr.avail,
        device: addr.used,
        slots: None,
    })
}

/// Returns the position in `Queue`'s encoding, which is that of the message. `Queue` itself accepts
/// front ends that know only the lower half of a packed queue's.
fn position(base: Option<u32>, packed: bool) -> Result<u32, String> {
    match base {
        None if packed => Ok(PACKED_START),
        None => Ok(0),
        Some(base) if !packed && base > 0xffff => Err(format!(
            "position {base:#x} of a split queue has more than 16 bits"
        )),
        Some(base) => Ok(base),
    }
}

fn duplicate(stored: &StoredDescriptor) -> Result<ForeignFd, String> {
    stored
        .fd
        .try_clone()
        .map_err(|e| format!("cannot keep its event descriptor: {e}"))
}

impl Session {
    /// Collects the parameters for a start, or the reason why the queue cannot start yet.
    fn prepare(&self, index: usize) -> Result<QueueSetup, StartError> {
        let vring = &self.queues[index];
        let kick = vring
            .kick
            .as_ref()
            .ok_or(StartError::Incomplete("a kick descriptor"))?;
        let size = vring.size.ok_or(StartError::Incomplete("its size"))?;
        let addr = vring
            .addr
            .as_ref()
            .ok_or(StartError::Incomplete("its addresses"))?;
        let mem = self
            .memory
            .as_ref()
            .ok_or(StartError::Incomplete("guest memory"))?;
        self.check_start(size)?;
        let (format, packed) = (self.format(), self.packed());
        let iotlb = self.iotlb();
        let layout = match iotlb {
            Some(iotlb) => resolve_translated(iotlb, size, addr, self.features())?,
            None => resolve(mem, size, addr, format)?,
        };
        let resume = if vring.resume {
            Resume::Yes
        } else if self.again {
            Resume::Perhaps
        } else {
            Resume::No
        };
        let position = match self.known_position(index, &layout) {
            Some(position) if packed && resume == Resume::No => position,
            _ => position(vring.base, packed)?,
        };
        let index = index as u16;
        let inflight = match &self.inflight {
            // An area that came while the queue ran does not track its chains.
            Some(_) if vring.resume && vring.area.is_none() => None,
            Some(area) => Some(area.part(index, size, packed)?),
            None => None,
        };
        if vring.resume && vring.area.is_some_and(|area| self.area() != Some(area)) {
            let reason = "the inflight area that it used was not kept";
            return Err(StartError::Refused(reason.into()));
        }
        Ok(QueueSetup {
            index,
            layout,
            features: self.features(),
            position,
            resume,
            kick: duplicate(kick)?,
            call: vring.call.as_ref().map(duplicate).transpose()?,
            enabled: self.enabled(vring),
            inflight,
            mem: Arc::clone(mem),
            iotlb: iotlb.cloned(),
        })
    }

    /// Checks what a queue of this size needs of the session before it can start.
    fn check_start(&self, size: u16) -> Result<(), StartError> {
        if !self.negotiated() {
            return Err(StartError::Incomplete("features"));
        }
        if self.serves_slots() && self.protocol.is_none() {
            return Err(StartError::Refused(
                "the port is for netmap clients, whose rings are slot queues".into(),
            ));
        }
        if let Some(reason) = self.features_refused() {
            return Err(StartError::Refused(reason));
        }
        if self.logging() && self.log.is_none() {
            // QEMU starts queues in the middle of a migration before it sends the log.
            return Err(StartError::Incomplete("the dirty log"));
        }
        if !self.packed() && !size.is_power_of_two() {
            let kind = match self.format() {
                Format::Slots => "slot",
                _ => "split",
            };
            return Err(StartError::Refused(format!(
                "size {size} of a {kind} queue is no power of two"
            )));
        }
        Ok(())
    }

    /// Returns the reason why no queue starts with the negotiated features (virtio 1.3, 3.1.1 and
    /// 6); `None` before they are negotiated.
    pub(super) fn features_refused(&self) -> Option<String> {
        let features = self.features();
        if !self.negotiated() {
            return None;
        }
        let beyond = features.beyond_legacy();
        if !beyond.is_empty() {
            let bits = beyond.bits();
            return Some(format!(
                "features {bits:#x} without VERSION_1, which they need"
            ));
        }
        let misses_iommu = !features.contains(Features::ACCESS_PLATFORM);
        let who = if features.are_legacy() {
            "the guest has a legacy driver, which cannot take"
        } else {
            "the guest did not take"
        };
        (self.offer.iommu_required && misses_iommu)
            .then(|| format!("{who} ACCESS_PLATFORM, and the port has iommu = \"required\""))
    }

    /// Returns what the front end must bring, as text, before it can be asked for translations:
    /// without a channel for questions it does not learn which pages are needed (vhost-user
    /// specification, "IOMMU support"), unless it grants them unasked. `None` where nothing is
    /// missing, or addresses are not translated.
    pub(super) fn lacks_channel(&self) -> Option<&'static str> {
        if !self.features().contains(Features::ACCESS_PLATFORM) {
            None
        } else if !self.has(ProtocolFeatures::BACKEND_REQ) {
            Some("protocol feature BACKEND_REQ, which ACCESS_PLATFORM needs")
        } else if self.channel.is_none() {
            Some("a back-end channel (SET_BACKEND_REQ_FD), which ACCESS_PLATFORM needs")
        } else {
            None
        }
    }

    /// Returns the reason why no queue of the session starts, whatever is set up: refused features,
    /// or a channel that is missing.
    pub(super) fn no_start(&self) -> Option<String> {
        let waits = || {
            let what = self.lacks_channel().filter(|_| !self.any_running())?;
            Some(format!("the queues wait for {what}"))
        };
        self.features_refused().or_else(waits)
    }

    fn format(&self) -> Format {
        match (self.serves_slots(), self.packed()) {
            (true, _) => Format::Slots,
            (false, true) => Format::Packed,
            (false, false) => Format::Split,
        }
    }

    /// Returns the layout of a split queue with addresses that are known and not translated.
    pub(super) fn split_layout(&self, index: usize) -> Option<Layout> {
        let vring = &self.queues[index];
        let memory = self.memory.as_ref().filter(|_| !self.is_translated())?;
        let is_split = self.format() == Format::Split;
        let (size, addr) = (vring.size.filter(|_| is_split)?, vring.addr.as_ref()?);
        resolve(memory, size, addr, Format::Split).ok()
    }

    /// Returns the number of the in-flight area's descriptor.
    fn area(&self) -> Option<u64> {
        self.inflight.as_ref().map(|area| area.file)
    }

    fn enabled(&self, vring: &Vring) -> bool {
        vring.enabled.unwrap_or(!self.rings_start_disabled())
    }

    /// Starts a queue when it is complete. Returns the answer to the message that triggered it.
    fn try_start(&mut self, index: usize, backend: &mut dyn Backend) -> Answer {
        if self.queues[index].running.is_some() {
            return Answer::Done;
        }
        let prepared = self.prepare(index);
        self.queues[index].untranslated = matches!(prepared, Err(StartError::Untranslated(_)));
        let started = match prepared {
            Err(StartError::Incomplete(_)) => return Answer::Done,
            Err(StartError::Untranslated(misses)) => {
                self.ask_for_rings(&misses);
                return Answer::Done;
            }
            Err(StartError::Refused(reason)) => Err(reason),
            Ok(setup) => {
                let layout = setup.layout;
                let area = setup.inflight.as_ref().and(self.area());
                (self.queues[index].base, self.queues[index].area) = (Some(setup.position), area);
                backend.start_queue(index as u16, setup).map(|()| layout)
            }
        };
        if let Some(iotlb) = &mut self.iotlb {
            iotlb.changed();
        }
        let vring = &mut self.queues[index];
        match started {
            Ok(layout) => {
                vring.running = Some(layout);
                vring.served = true;
                vring.resume = false;
                vring.problem = None;
                self.snapshots.retain(|s| usize::from(s.index) != index);
                Answer::Done
            }
            Err(reason) => {
                if vring.problem.as_ref() != Some(&reason) {
                    backend.queue_refused(index as u16, &reason);
                    vring.problem = Some(reason.clone());
                }
                Answer::Failed(format!("queue {index}: {reason}"))
            }
        }
    }

    pub(super) fn start_all(&mut self, backend: &mut dyn Backend) {
        for index in 0..self.queues.len() {
            self.try_start(index, backend);
        }
    }

    /// Asks for the translation of rings. A denial does not count any more: it was for an earlier
    /// question.
    fn ask_for_rings(&self, misses: &[Miss]) {
        let Some(iotlb) = self.iotlb().filter(|_| self.channel.is_some()) else {
            return;
        };
        for miss in misses {
            let _ = iotlb.take_denial(*miss);
            iotlb.ask(*miss, Need::Now);
        }
    }

    /// Starts the queues that have waited for the translation of their rings, if it is there.
    pub(super) fn start_untranslated(&mut self, backend: &mut dyn Backend) {
        for index in 0..self.queues.len() {
            if self.queues[index].untranslated {
                self.try_start(index, backend);
            }
        }
    }

    /// Stops a running queue; its position becomes its base.
    fn stop(&mut self, index: usize, backend: &mut dyn Backend) {
        let vring = &mut self.queues[index];
        // One that waits for the translation of its rings has its position there.
        vring.resume &= vring.untranslated;
        if vring.running.take().is_some()
            && let Some(position) = backend.stop_queue(index as u16)
        {
            vring.base = Some(position);
        }
    }

    pub(super) fn stop_all(&mut self, backend: &mut dyn Backend) {
        for index in 0..self.queues.len() {
            self.stop(index, backend);
        }
    }

    pub(super) fn any_running(&self) -> bool {
        self.queues.iter().any(|v| v.running.is_some())
    }

    /// Stops the queues that do not lie at the same place in `memory`.
    pub(super) fn stop_moved_queues(
        &mut self,
        memory: Option<&GuestMemory>,
        backend: &mut dyn Backend,
    ) {
        let (format, is_translated) = (self.format(), self.is_translated());
        for index in 0..self.queues.len() {
            let vring = &self.queues[index];
            let (Some(layout), Some(addr)) = (&vring.running, &vring.addr) else {
                continue;
            };
            // Where rings with translations lie, the queue finds out itself.
            let is_there = |memory| {
                let now = resolve(memory, layout.size, addr, format);
                now.is_ok_and(|now| {
                    (now.desc, now.driver, now.device)
                        == (layout.desc, layout.driver, layout.device)
                })
            };
            let stays = memory.is_some_and(|memory| is_translated || is_there(memory));
            if !stays {
                self.stop(index, backend);
                if memory.is_none() {
                    self.queues[index].problem = Some("its memory was taken away".into());
                }
            }
        }
    }

    /// Stops a queue with a fault. Returns whether the queue exists.
    pub(super) fn fail_queue(
        &mut self,
        index: u16,
        reason: &str,
        backend: &mut dyn Backend,
    ) -> bool {
        let at = usize::from(index);
        if at >= self.queues.len() {
            return false;
        }
        self.stop(at, backend);
        let vring = &mut self.queues[at];
        vring.kick = None;
        vring.problem = Some(reason.into());
        if let Some(err) = &vring.err {
            backend.signal(&err.fd);
        }
        true
    }

    /// Returns which states the queues are in, as [`Session::info`] has them.
    #[must_use]
    pub fn queue_summary(&self) -> QueueSummary {
        let mut summary = QueueSummary::default();
        for (index, vring) in self.queues.iter().enumerate() {
            let refused = || matches!(self.prepare(index), Err(StartError::Refused(_)));
            let fault = vring.running.is_none() && (vring.problem.is_some() || refused());
            summary.add(vring.running.is_some(), self.enabled(vring), fault);
        }
        summary
    }

    pub(super) fn queue_infos(&self) -> Vec<QueueInfo> {
        (0..self.queues.len()).map(|i| self.queue_info(i)).collect()
    }

    fn queue_info(&self, index: usize) -> QueueInfo {
        let vring = &self.queues[index];
        let enabled = self.enabled(vring);
        let stopped = |reason: &str| (format!("stopped: {reason}"), Some(reason.to_owned()));
        let (state, fault) = match (&vring.running, &vring.problem) {
            (Some(_), _) if enabled => ("running".into(), None),
            (Some(_), _) => ("disabled".into(), None),
            (None, Some(problem)) => stopped(problem),
            (None, None) => match self.prepare(index) {
                Err(StartError::Incomplete(what)) => (format!("waits for {what}"), None),
                Err(StartError::Untranslated(_)) => {
                    let what = self.lacks_channel().unwrap_or(UNTRANSLATED);
                    (format!("waits for {what}"), None)
                }
                Err(StartError::Refused(reason)) => stopped(&reason),
                Ok(_) => ("stopped".into(), None),
            },
        };
        QueueInfo {
            index: index as u16,
            size: vring.size.unwrap_or(0),
            running: vring.running.is_some(),
            enabled,
            state,
            fault,
        }
    }

    /// Changes a setting of a queue: a running one is stopped before and started again after.
    fn change(
        &mut self,
        at: usize,
        backend: &mut dyn Backend,
        apply: impl FnOnce(&mut Vring),
    ) -> Answer {
        self.stop(at, backend);
        apply(&mut self.queues[at]);
        self.try_start(at, backend)
    }
}
