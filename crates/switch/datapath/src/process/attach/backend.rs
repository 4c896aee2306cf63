//! The back end of a session: its calls change queues of the workers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ipc::keeping::{IOTLB, JOURNAL};
use memory::GuestMemory;
use port::PortId;
use sys::foreign::ForeignFd;
use virtio::queue::{Journal, JournalRegion, Queue, QueueMemory};
use virtio::vhost_user::{Backend, QueueSetup, Resume};
use wire::virtio::features::Features;

use super::open::Context;
use crate::ports::calls::CallFd;
use crate::ports::guest::{GuestPort, GuestQueue};
use crate::ports::watchdog::Doorbells;
use crate::worker::workers::Workers;

/// The data of the port's queues that a successor needs, beside the rings.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// The journal of packed queues' positions; allocated when the first one starts.
    pub(super) journal: Option<Arc<JournalRegion>>,
    /// The number of starts of each queue, by index.
    pub(super) starts: Vec<u32>,
    /// The file of translations that a former process has left, until the session takes it.
    pub(super) iotlb: Option<ForeignFd>,
}

impl Positions {
    pub(super) fn new(queues: u16) -> Self {
        Self {
            journal: None,
            starts: vec![0; 2 * usize::from(queues)],
            iotlb: None,
        }
    }

    /// Returns the number of this start of the queue. A resumed queue may have been started once
    /// more by a message that is not in the saved session; so may a queue with `Resume::Perhaps`.
    fn count_start(&mut self, index: u16, resume: Resume) -> u32 {
        let found = self.journal.as_ref().map(|j| j.last_start(index));
        let Some(starts) = self.starts.get_mut(usize::from(index)) else {
            return 1;
        };
        let next = starts.wrapping_add(1).max(1);
        if resume != Resume::Yes || found == Some(next) {
            *starts = next;
        }
        *starts
    }
}

/// The back end of one port's session.
pub(super) struct WorkerBackend<'a> {
    pub(super) workers: &'a Workers,
    pub(super) context: &'a mut Context,
    pub(super) positions: &'a mut Positions,
    pub(super) doorbells: &'a Doorbells,
}

impl WorkerBackend<'_> {
    fn port(&self) -> PortId {
        self.context.config.id
    }

    fn on_port(&self, job: impl FnOnce(&mut GuestPort) + Send + 'static) {
        self.workers.on_port(self.port(), job);
    }

    fn call(&self, event: ForeignFd) -> CallFd {
        CallFd::new(event, self.doorbells.clone())
    }

    fn make_queue(&mut self, index: u16, setup: &mut QueueSetup) -> Result<Queue, String> {
        let mem = QueueMemory {
            memory: Arc::clone(&setup.mem),
            iotlb: setup.iotlb.take(),
        };
        let layout = setup.layout;
        let (features, position, resume) = (setup.features, setup.position, setup.resume);
        if let Some(inflight) = setup.inflight.take() {
            let queue = Queue::with_inflight(mem, layout, features, position, inflight);
            return queue.map_err(|fault| fault.to_string());
        }
        let packed = features.contains(Features::RING_PACKED);
        if packed && resume == Resume::Yes && self.positions.journal.is_none() {
            return Err("the position of the queue was not saved".into());
        }
        let region = if packed { self.journal() } else { None };
        let start = self.positions.count_start(index, resume);
        let journal = region.and_then(|region| Journal::new(region, index, start));
        let queue = match resume {
            Resume::No => Queue::new(mem, layout, features, position).map(|mut queue| {
                queue.set_journal(journal);
                queue
            }),
            Resume::Yes | Resume::Perhaps => {
                Queue::resume(mem, layout, features, position, journal)
            }
        };
        queue.map_err(|fault| fault.to_string())
    }

    /// Returns the journal; without it the port works, but its packed queues do not outlive this
    /// process.
    fn journal(&mut self) -> Option<Arc<JournalRegion>> {
        if self.positions.journal.is_none() {
            match self.make_journal() {
                Ok(region) => self.positions.journal = Some(Arc::new(region)),
                Err(error) => {
                    if let Some(suppressed) = self.context.event_limits.log_line() {
                        let port = &self.context.config.name;
                        tracing::warn!(port, suppressed, "no journal for queue positions: {error}");
                    }
                }
            }
        }
        self.positions.journal.clone()
    }

    fn make_journal(&mut self) -> Result<JournalRegion, String> {
        let queues = 2 * self.context.config.queues;
        let fd = sys::file::fixed("lasthop-journal", JournalRegion::size(queues));
        let fd = fd.map_err(|e| e.to_string())?;
        let region = JournalRegion::map(&fd, queues).map_err(|e| e.to_string())?;
        self.context.store.store_descriptor(JOURNAL, fd.as_fd());
        Ok(region)
    }
}

impl Backend for WorkerBackend<'_> {
    fn set_memory(&mut self, memory: Option<Arc<GuestMemory>>) {
        if let Some(memory) = memory {
            self.on_port(move |guest| guest.set_memory(&memory));
        }
    }

    fn start_queue(&mut self, index: u16, mut setup: QueueSetup) -> Result<(), String> {
        let queue = self.make_queue(index, &mut setup)?;
        // Without a header no frame can leave anything to the other side.
        let features = match queue.header() {
            Some(0) => setup.features.without_offloads(),
            _ => setup.features,
        };
        let call = setup.call.map(|call| self.call(call));
        let queue = GuestQueue::new(queue, features, setup.kick, call, setup.enabled);
        self.workers
            .start_queue(self.port(), index, queue, features)
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.workers.stop_queue(self.port(), index)
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.on_port(move |guest| guest.enable(index, on));
    }

    fn set_call(&mut self, index: u16, call: Option<ForeignFd>) {
        let call = call.map(|call| self.call(call));
        self.on_port(move |guest| guest.set_call(index, call));
    }

    fn signal(&mut self, event: &OwnedFd) {
        // A worker rings it, because it has a watchdog. The doorbells record that a write blocked.
        if let Ok(event) = event.try_clone() {
            let doorbells = self.doorbells.clone();
            self.workers.first(move |_| {
                let _ = doorbells.ring(&event);
            });
        }
    }

    fn end_access(&mut self) {
        self.workers.pass(self.port());
    }

    fn retry(&mut self) {
        self.workers.retry(self.port());
    }

    fn queue_refused(&mut self, index: u16, reason: &str) {
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let port = &self.context.config.name;
            tracing::warn!(
                port,
                queue = index,
                suppressed,
                "queue not started: {reason}"
            );
        }
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        let mtu = self.context.config.mtu.map_or(mtu, |most| most.min(mtu));
        self.on_port(move |guest| guest.set_mtu(Some(mtu)));
        Ok(())
    }

    fn send_rarp(&mut self, mac: [u8; 6]) {
        if self.context.event_limits.announcement() {
            let port = self.port();
            self.workers.first(move |w| w.announce(port, mac));
        }
    }

    fn keep(&mut self, number: u64, fd: BorrowedFd<'_>) {
        self.context.store.store_descriptor(number, fd);
    }

    fn keep_iotlb(&mut self, fd: BorrowedFd<'_>) {
        self.context.store.store_descriptor(IOTLB, fd);
    }

    fn kept_iotlb(&mut self) -> Option<ForeignFd> {
        self.positions.iotlb.take()
    }

    fn access_ended(&mut self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.context.invalidate_waits.note(ns);
    }
}
