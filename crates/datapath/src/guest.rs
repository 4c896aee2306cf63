//! A guest's port: virtio queues behind the [`Port`] trait.
//!
//! Queue 2n takes frames to the guest, queue 2n + 1 from it (virtio 1.3, 5.1.2). Both kinds start with a
//! 12-byte header (5.1.6); see [`header`] for what a sender may say in it.

pub mod header;
mod kicks;
mod receive;
mod send;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use memory::{GuestMemory, Segment};
use port::{Accepts, BATCH, Batch, DropReason, Outgoing, Port};
use virtio::features::Features;
use virtio::net;
use virtio::queue::{Chain, Queue, QueueFault};

use self::kicks::Kicks;
use crate::watchdog::{self, Blocked};

const HEADER: u32 = net::LEN as u32;

/// Why a queue was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuestFault {
    /// The ring or a descriptor broke a rule.
    #[error(transparent)]
    Queue(#[from] QueueFault),
    /// The front end does not let itself be notified (see `watchdog`).
    #[error("the call descriptor does not take notifications")]
    CallBlocked,
    /// Kicks, and never a buffer: what the guest writes is not what we see.
    #[error("the guest kicks, and its memory shows no buffer: is it shared (QEMU: share=on)?")]
    NotShared,
    /// A chain has no room for the virtio header (CVE-2022-2132, CVE-2026-86566).
    #[error("a chain is too short for the virtio header")]
    NoRoomForHeader,
}

/// A queue that runs.
#[derive(Debug)]
pub struct GuestQueue {
    queue: Queue,
    /// Readable when the guest has made buffers available.
    kick: OwnedFd,
    /// Written to notify the guest; without it the guest polls.
    call: Option<OwnedFd>,
    enabled: bool,
    segments: Vec<Segment>,
    /// From the guest: leased. To the guest: taken ahead; the first `spent` are used already.
    chains: Vec<Chain>,
    spent: usize,
    fault: Option<GuestFault>,
    reported: bool,
    kicks: Kicks,
    /// A buffer was ever taken.
    used: bool,
}

impl GuestQueue {
    /// A queue with its descriptors for notifications.
    #[must_use]
    pub fn new(queue: Queue, kick: OwnedFd, call: Option<OwnedFd>, enabled: bool) -> Self {
        Self {
            queue,
            kick,
            call,
            enabled,
            segments: Vec::with_capacity(256),
            chains: Vec::with_capacity(BATCH),
            spent: 0,
            fault: None,
            reported: false,
            kicks: Kicks::since(Instant::now()),
            used: false,
        }
    }

    fn usable(&self) -> bool {
        self.enabled && self.fault.is_none()
    }

    /// Whether a buffer waits or was ever there.
    fn shows_buffers(&mut self) -> bool {
        self.used || self.fault.is_some() || self.queue.has_available()
    }

    fn publish_and_notify(&mut self) {
        self.queue.publish();
        if self.queue.needs_notify() {
            self.notify();
        }
    }

    fn notify(&mut self) {
        if let Some(call) = &self.call
            && watchdog::ring(call) == Err(Blocked)
        {
            self.fault = Some(GuestFault::CallBlocked);
        }
    }

    fn stop(&mut self, fault: GuestFault) -> DropReason {
        self.fault = Some(fault);
        DropReason::ReceiverDown
    }
}

/// See the module.
#[derive(Debug)]
pub struct GuestPort {
    /// By vhost-user index.
    queues: Vec<Option<GuestQueue>>,
    features: Features,
    accepts: Accepts,
    /// A frame may be spread over several receive buffers.
    merge: bool,
    mtu: u32,
    /// Queue pairs whose to-guest queue is usable, counted from the first.
    usable_pairs: u16,
}

impl GuestPort {
    /// A port without queues. `mtu` bounds the IP packets that go to the guest, in bytes.
    #[must_use]
    pub fn new(mtu: Option<u16>) -> Self {
        Self {
            queues: Vec::new(),
            features: Features::empty(),
            accepts: Accepts::default(),
            merge: false,
            mtu: u32::from(mtu.unwrap_or(u16::MAX)),
            usable_pairs: 0,
        }
    }

    /// Another MTU from now on.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = u32::from(mtu.unwrap_or(u16::MAX));
    }

    /// Puts a queue into service; `features` are the negotiated ones.
    pub fn start(&mut self, index: u16, mut queue: GuestQueue, features: Features) {
        if index.is_multiple_of(2) {
            // Nobody waits for receive buffers: a frame without one is dropped. Spares the guest the exits.
            queue.queue.set_kicks(false);
        }
        let index = usize::from(index);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        queue.kicks = Kicks::since(Instant::now());
        // Whoever served this queue before may have ended between its last buffers and the notification.
        queue.notify();
        self.features = features;
        self.accepts = header::accepts(features);
        self.merge = features.contains(Features::NET_MRG_RXBUF);
        self.queues[index] = Some(queue);
        self.count_pairs();
    }

    /// Takes a queue out of service. Its position, with which the guest's next back end goes on.
    pub fn stop(&mut self, index: u16) -> Option<u32> {
        let mut queue = self.queues.get_mut(usize::from(index))?.take()?;
        queue.give_back();
        self.count_pairs();
        Some(queue.queue.position())
    }

    /// Enables or disables a running queue.
    pub fn enable(&mut self, index: u16, on: bool) {
        if let Some(queue) = self.queue_mut(index) {
            queue.enabled = on;
        }
        self.count_pairs();
    }

    /// Changes how the guest is notified.
    pub fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        if let Some(queue) = self.queue_mut(index) {
            queue.call = call;
            // What was written to the former descriptor may have come too late for the front end to see.
            queue.notify();
        }
    }

    /// A new snapshot of guest memory for all running queues.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        for queue in self.queues.iter_mut().flatten() {
            if let Err(fault) = queue.queue.set_memory(Arc::clone(memory)) {
                queue.fault = Some(fault.into());
            }
        }
        self.count_pairs();
    }

    /// The descriptor to wait on for a running queue.
    #[must_use]
    pub fn kick(&self, index: u16) -> Option<BorrowedFd<'_>> {
        let queue = self.queues.get(usize::from(index))?.as_ref()?;
        Some(queue.kick.as_fd())
    }

    /// The guest has kicked `pair`. One that does so without ever having shown a buffer, to send or to
    /// receive, writes to memory that is not ours: it is not shared.
    pub fn note_kick(&mut self, pair: u16) {
        let shown =
            |queue: &mut Option<GuestQueue>| queue.as_mut().is_some_and(GuestQueue::shows_buffers);
        let pair = self.queues.get_mut(to_guest(pair)..=from_guest(pair));
        let Some([to, from]) = pair else {
            return;
        };
        let by_guest = from
            .as_mut()
            .is_some_and(|q| !q.used && q.kicks.note(Instant::now()));
        if by_guest
            && !shown(from)
            && !shown(to)
            && let Some(from) = from
        {
            from.fault = Some(GuestFault::NotShared);
        }
    }

    /// Whether the VMM took guest memory away under a queue.
    #[must_use]
    pub fn lost_memory(&self) -> bool {
        let lost = |q: &GuestQueue| q.queue.memory().is_lost();
        self.queues.iter().flatten().any(lost)
    }

    /// The next queue whose guest broke a rule, and how; once for each.
    pub fn take_fault(&mut self) -> Option<(u16, GuestFault)> {
        let at = self
            .queues
            .iter()
            .position(|q| q.as_ref().is_some_and(|q| q.fault.is_some() && !q.reported))?;
        let queue = self.queues[at].as_mut()?;
        queue.reported = true;
        let fault = queue.fault?;
        self.count_pairs();
        Some((at as u16, fault))
    }

    fn queue_mut(&mut self, index: u16) -> Option<&mut GuestQueue> {
        self.queues.get_mut(usize::from(index))?.as_mut()
    }

    fn count_pairs(&mut self) {
        let usable = |q: &&Option<GuestQueue>| q.as_ref().is_some_and(GuestQueue::usable);
        let pairs = self.queues.iter().step_by(2).take_while(usable).count();
        self.usable_pairs = pairs as u16;
    }
}

fn from_guest(pair: u16) -> usize {
    2 * usize::from(pair) + 1
}

fn to_guest(pair: u16) -> usize {
    2 * usize::from(pair)
}

impl Port for GuestPort {
    fn pairs(&self) -> u16 {
        self.usable_pairs
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        let features = self.features;
        if let Some(Some(queue)) = self.queues.get_mut(from_guest(pair)) {
            queue.lease(features, batch);
        }
    }

    fn release(&mut self, pair: u16) {
        if let Some(Some(queue)) = self.queues.get_mut(from_guest(pair)) {
            queue.end_leases();
        }
    }

    fn expect(&mut self, pair: u16, frames: usize) {
        if let Some(Some(queue)) = self.queues.get_mut(to_guest(pair))
            && queue.usable()
        {
            queue.expect(frames);
        }
    }

    #[inline(always)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let merge = self.merge;
        match self.queues.get_mut(to_guest(pair)) {
            Some(Some(queue)) if queue.usable() => queue.fill(frame, merge),
            _ => Err(DropReason::ReceiverDown),
        }
    }

    fn flush(&mut self, pair: u16) {
        if let Some(Some(queue)) = self.queues.get_mut(to_guest(pair)) {
            queue.give_back();
            queue.publish_and_notify();
        }
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        match self.queues.get_mut(from_guest(pair)) {
            Some(Some(queue)) if queue.fault.is_none() => queue.queue.set_kicks(on),
            _ => false,
        }
    }
}
