//! Guest port: virtio queues behind the [`Port`] trait.
//!
//! Queue 2n takes frames to the guest, queue 2n + 1 from it (virtio 1.3, 5.1.2). Their frames start
//! with a header of 12 bytes, or 10 (5.1.6; [`net::len`]); see [`header`] for its valid contents.

mod congestion;
mod counts;
mod fault;
pub mod header;
mod kicks;
mod notify;
mod receive;
mod send;
mod vcpus;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use channel::figures::QueueCounts;
use memory::{GuestMemory, Segment};
use port::counters::Traffic;
use port::{Accepts, BATCH, Batch, DropReason, Outgoing, Pieces, Port};
use virtio::features::Features;
use virtio::net;
use virtio::queue::{Chain, Queue};

use self::congestion::Congestion;
use self::counts::Drops;
pub use self::fault::GuestFault;
use self::kicks::Kicks;
use self::vcpus::activity;
use crate::ports::coalescing::{Nanos, Rules, TrialRecord, Vcpus};
use crate::ports::queue_lock::QueueLock;
use crate::ports::watchdog::Doorbells;

/// Capacity of a segment list at first.
const SEGMENTS: usize = 256;

/// Running queue.
#[derive(Debug)]
pub struct GuestQueue {
    queue: Queue,
    /// Bytes of the header in front of every frame: 12, or 10.
    header: u32,
    /// Eventfd that is readable when the guest has made buffers available.
    kick: OwnedFd,
    /// Eventfd that notifies the guest; without it the guest polls.
    call: Option<OwnedFd>,
    doorbells: Doorbells,
    enabled: bool,
    segments: Vec<Segment>,
    /// From the guest: leased chains. To the guest: chains taken ahead; the first `spent` are used.
    chains: Vec<Chain>,
    spent: usize,
    fault: Option<GuestFault>,
    reported: bool,
    kicks: Kicks,
    /// Whether a buffer was ever taken.
    used: bool,
    /// To the guest: time of the last notification of frames.
    notified: Option<Nanos>,
    /// To the guest: whether a notification is deferred.
    deferred: bool,
    /// Benefit of recent deferrals.
    deferral: TrialRecord,
    congestion: Congestion,
    counts: QueueCounts,
    /// Whether written memory is marked in a dirty log.
    logged: bool,
}

impl GuestQueue {
    /// Returns a queue of a driver that negotiated `features`, with its eventfds.
    #[must_use]
    pub fn new(
        queue: Queue,
        features: Features,
        kick: OwnedFd,
        call: Option<OwnedFd>,
        enabled: bool,
    ) -> Self {
        let logged = queue.memory().log().is_some();
        Self {
            queue,
            header: net::len(features) as u32,
            kick,
            call,
            doorbells: Doorbells::default(),
            enabled,
            segments: Vec::with_capacity(SEGMENTS),
            chains: Vec::with_capacity(BATCH),
            spent: 0,
            fault: None,
            reported: false,
            kicks: Kicks::since(Instant::now()),
            used: false,
            notified: None,
            deferred: false,
            deferral: TrialRecord::default(),
            congestion: Congestion::default(),
            counts: QueueCounts::default(),
            logged,
        }
    }

    /// Starts service; `to_guest`: the queue takes frames to the guest.
    pub fn begin(&mut self, to_guest: bool) {
        if to_guest {
            // No worker waits for receive buffers: a frame without one is dropped. Suppressed kicks
            // spare the guest the exits.
            self.queue.set_kicks(false);
        }
        self.kicks = Kicks::since(Instant::now());
        // A former switch process may have ended between the last used buffer and its notification.
        self.notify();
    }

    /// Ends service. Returns the queue's position, at which the next back end continues.
    pub fn end(&mut self) -> u32 {
        self.give_back();
        if std::mem::take(&mut self.deferred) && self.queue.needs_notify() {
            self.notify();
        }
        self.queue.position()
    }

    fn usable(&self) -> bool {
        self.enabled && self.fault.is_none()
    }

    /// Returns whether a buffer is available or was ever taken.
    fn shows_buffers(&mut self) -> bool {
        self.used || self.fault.is_some() || self.queue.has_available()
    }

    /// Returns whether the queue is masked, see [`Port::is_masked`].
    fn is_masked(&mut self) -> bool {
        let queue = &self.queue;
        self.congestion.masks(|| queue.has_available())
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        if let Err(fault) = self.queue.set_memory(Arc::clone(memory)) {
            self.fault = Some(fault.into());
        }
        self.logged = memory.log().is_some();
    }

    fn stop(&mut self, fault: GuestFault) -> DropReason {
        self.fault = Some(fault);
        DropReason::ReceiverDown
    }
}

/// Port of a guest; see the module.
#[derive(Debug)]
pub struct GuestPort {
    /// Queues by vhost-user index.
    queues: Vec<Option<QueueLock<GuestQueue>>>,
    features: Features,
    accepts: Accepts,
    /// Whether a frame may use several receive buffers.
    merge: bool,
    mtu: u32,
    /// Queue pairs with a usable to-guest queue, counted from the first.
    usable_pairs: u16,
    rules: Rules,
    /// Source of vCPU states, if there is one.
    vcpus: Option<Arc<dyn Vcpus>>,
    /// Drops of this worker, by queue.
    drops: Drops,
}

impl GuestPort {
    /// Returns a port without queues. `mtu` bounds the IP packets that go to the guest, in bytes.
    #[must_use]
    pub fn new(mtu: Option<u16>) -> Self {
        Self {
            queues: Vec::new(),
            features: Features::empty(),
            accepts: Accepts::default(),
            merge: false,
            mtu: u32::from(mtu.unwrap_or(u16::MAX)),
            usable_pairs: 0,
            rules: Rules::OFF,
            vcpus: None,
            drops: Drops::default(),
        }
    }

    /// Sets the MTU.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = u32::from(mtu.unwrap_or(u16::MAX));
    }

    /// Starts a queue, on each worker with a lock handle of its own; `features` are the negotiated
    /// ones.
    pub fn start(&mut self, index: u16, queue: QueueLock<GuestQueue>, features: Features) {
        let index = usize::from(index);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        self.drops.begin(index);
        self.features = features;
        self.accepts = header::accepts(features);
        self.merge = features.contains(Features::NET_MRG_RXBUF);
        self.queues[index] = Some(queue);
        self.count_pairs();
    }

    /// Removes a queue from this worker. The last handle owns the queue.
    pub fn stop(&mut self, index: u16) -> Option<QueueLock<GuestQueue>> {
        let queue = self.queues.get_mut(usize::from(index))?.take();
        self.count_pairs();
        queue
    }

    /// Enables or disables a running queue. Other workers have to call [`GuestPort::count_pairs`]
    /// then.
    pub fn enable(&mut self, index: u16, on: bool) {
        self.with_queue(index, |queue| queue.enabled = on);
        self.count_pairs();
    }

    /// Sets the eventfd that notifies the guest.
    pub fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.with_queue(index, |queue| {
            queue.call = call;
            // The front end may have missed a write to the former descriptor.
            queue.notify();
        });
    }

    /// Sets a new snapshot of guest memory for all running queues. Other workers have to call
    /// [`GuestPort::count_pairs`] then.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        for queue in self.queues.iter_mut().flatten() {
            queue.with(|queue| queue.set_memory(memory));
        }
        self.count_pairs();
    }

    /// Ends all leases and leaves the buffers available: they will be taken again. The batch must
    /// not be used any more.
    pub(crate) fn untake_leased(&mut self, pair: u16) {
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair)) {
            if let Some(queue) = lock.get() {
                queue.untake_leases();
            }
            lock.unlock();
        }
    }

    /// Calls `job` with the kick descriptor of a running queue.
    pub fn with_kick<R>(&mut self, index: u16, job: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        self.with_queue(index, |queue| job(queue.kick.as_fd()))
    }

    /// Notes a kick of `pair`. A guest that kicks without ever having made a buffer available, to
    /// send or to receive, writes to other memory than the mapped one: its memory is not shared.
    pub fn note_kick(&mut self, pair: u16) {
        let [to, from] = [2 * pair, 2 * pair + 1];
        let silent = |queue: &mut GuestQueue| !queue.shows_buffers();
        let by_guest = |queue: &mut GuestQueue| {
            queue.counts.notifications += 1;
            !queue.used && queue.kicks.note(Instant::now()) && silent(queue)
        };
        if self.with_queue(from, by_guest) == Some(true)
            && self.with_queue(to, silent).unwrap_or(true)
        {
            self.with_queue(from, |queue| queue.fault = Some(GuestFault::NotShared));
        }
    }

    /// Returns whether the VMM removed guest memory from a queue. All queues of a port have the
    /// same memory: `None` if other workers have locked all of them.
    pub fn lost_memory(&mut self) -> Option<bool> {
        let mut queues = self.queues.iter_mut().flatten().peekable();
        if queues.peek().is_none() {
            return Some(false);
        }
        queues.find_map(|queue| queue.try_with(|queue| queue.queue.memory().is_lost()))
    }

    /// Returns the next queue with a new fault. Each fault is returned once. Queues that another
    /// worker has locked are skipped.
    pub fn take_fault(&mut self) -> Option<(u16, GuestFault)> {
        let mut queues = self.queues.iter_mut().enumerate();
        let found = queues.find_map(|(at, queue)| {
            let fault = queue.as_mut()?.try_with(|queue| {
                let new = !std::mem::replace(&mut queue.reported, queue.fault.is_some());
                queue.fault.filter(|_| new)
            })??;
            Some((at as u16, fault))
        });
        if found.is_some() {
            self.count_pairs();
        }
        found
    }

    /// Returns the usable to-guest queue of a locked pair.
    #[inline(always)]
    fn receiver(&mut self, pair: u16) -> Option<&mut GuestQueue> {
        receiver(self.queues.get_mut(to_guest(pair))?.as_mut()?)
    }

    fn with_queue<R>(&mut self, index: u16, job: impl FnOnce(&mut GuestQueue) -> R) -> Option<R> {
        let queue = self.queues.get_mut(usize::from(index))?.as_mut()?;
        Some(queue.with(job))
    }

    /// Counts the pairs that can receive frames; to be called on every worker when a queue changed.
    pub fn count_pairs(&mut self) {
        let queues = self.queues.iter_mut().step_by(2);
        let usable = |queue: &mut Option<QueueLock<GuestQueue>>| {
            queue
                .as_mut()
                .is_some_and(|queue| queue.with(|queue| queue.usable()))
        };
        self.usable_pairs = queues.map(usable).take_while(|usable| *usable).count() as u16;
    }
}

/// Returns the queue if it is locked and usable.
#[inline(always)]
fn receiver(lock: &mut QueueLock<GuestQueue>) -> Option<&mut GuestQueue> {
    lock.get().filter(|queue| queue.usable())
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
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair)) {
            lock.lock();
            if let Some(queue) = lock.get() {
                queue.lease(features, batch);
                queue.count_leased(batch);
            }
        }
    }

    fn release(&mut self, pair: u16) {
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair)) {
            if let Some(queue) = lock.get() {
                queue.end_leases();
            }
            lock.unlock();
        }
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        match self.queues.get_mut(to_guest(pair)) {
            Some(Some(lock)) if wait => {
                lock.lock();
                true
            }
            Some(Some(lock)) => lock.try_lock(),
            _ => true,
        }
    }

    fn expect(&mut self, pair: u16, frames: usize) {
        if let Some(queue) = self.receiver(pair) {
            queue.expect(frames);
        }
    }

    fn is_masked(&mut self, pair: u16) -> bool {
        self.receiver(pair).is_some_and(GuestQueue::is_masked)
    }

    fn note_dropped(&mut self, pair: u16, reason: DropReason, frames: u64) {
        self.drops.add(to_guest(pair), reason, frames);
    }

    fn note_refused(&mut self, pair: u16, reason: DropReason, frames: u64) {
        self.drops.add(from_guest(pair), reason, frames);
    }

    #[inline(always)]
    fn deliver_pieces(&mut self, pair: u16, frames: Pieces<'_>) -> Traffic {
        match self.receiver(pair) {
            Some(queue) if !queue.logged => {
                queue.fill_each(frames.map(|frame| (header::PLAIN, frame)))
            }
            _ => Traffic::default(),
        }
    }

    #[inline(always)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let merge = self.merge;
        let lock = self.queues.get_mut(to_guest(pair)).and_then(Option::as_mut);
        match lock.and_then(receiver) {
            Some(queue) => queue.fill(frame, merge),
            None => Err(DropReason::ReceiverDown),
        }
    }

    fn flush(&mut self, pair: u16, now: Nanos) -> Option<Nanos> {
        let lock = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let mut due = None;
        if let Some(queue) = lock.get() {
            queue.give_back();
            queue.congestion.end_batch(now);
            let activity = || activity(self.vcpus.as_deref(), pair, self.usable_pairs);
            due = queue.publish_and_notify_by(self.rules, now, activity);
        }
        lock.unlock();
        due
    }

    fn notify(&mut self, pair: u16, now: Nanos) -> Option<Nanos> {
        let lock = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let activity = || activity(self.vcpus.as_deref(), pair, self.usable_pairs);
        let notify = |queue: &mut GuestQueue| {
            if queue.deferred {
                queue.notify_by(self.rules, now, activity)
            } else {
                None
            }
        };
        // The worker that has locked the queue will flush it, and then sends the notification if it
        // is due.
        lock.try_with(notify).unwrap_or(Some(now))
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        let arm = |queue: &mut GuestQueue| queue.fault.is_none() && queue.queue.set_kicks(on);
        self.with_queue(from_guest(pair) as u16, arm) == Some(true)
    }
}
