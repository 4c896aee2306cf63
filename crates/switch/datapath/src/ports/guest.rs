//! Guest port: virtio queues behind the [`Port`] trait.
//!
//! Queue 2n takes frames to the guest, queue 2n + 1 from it (virtio 1.3, 5.1.2). Their frames start
//! with a header of 12 bytes, or 10 (5.1.6; [`wire::virtio::net::len`]); see [`header`] for its
//! valid contents.

mod backlog;
mod congestion;
pub(super) mod counts;
pub mod header;
mod kick_rate;
mod kicks;
mod notifier;
mod queue;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use memory::GuestMemory;
use port::DropReason;
use port::counters::Traffic;
use wire::virtio::features::Features;

use self::counts::Drops;
use self::queue::PLAIN;
pub use self::queue::{GuestFault, GuestQueue};
use crate::ports::batch::{Batch, Pieces};
use crate::ports::calls::{CallFd, PendingCalls};
use crate::ports::coalescing::{Activity, Nanos, Processor, Rules, Servers, Vcpus};
use crate::ports::payload::Outgoing;
use crate::ports::port::{Accepts, Buffers, Port, Settlement};
use crate::ports::queue_lock::QueueLock;

/// The kicks that a guest was asked for before its worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KickRequest {
    /// Frames are available already: none.
    FramesAvailable,
    /// One for each frame.
    EachFrame,
    /// One for several frames.
    Coalesced,
    /// None: the guest has no event index. The queue is to be looked at by this time.
    Timer(Nanos),
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
    /// Queue pairs with frames of this batch that wait for the translation of buffers, one bit
    /// each.
    backlogged: u64,
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
            backlogged: 0,
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
    pub fn set_call(&mut self, index: u16, call: Option<CallFd>) {
        let mut calls = PendingCalls::default();
        self.with_queue(index, |queue| {
            queue.notifier.call = call.map(Arc::new);
            // The front end may have missed a write to the former descriptor.
            queue.notify(&mut calls);
        });
        calls.send();
    }

    /// Sets a new snapshot of guest memory for all running queues. Other workers have to call
    /// [`GuestPort::count_pairs`] then.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        for queue in self.queues.iter_mut().flatten() {
            queue.with(|queue| queue.set_memory(memory));
        }
        self.count_pairs();
    }

    /// Calls `job` with the kick descriptor of a running queue.
    pub fn with_kick<R>(&mut self, index: u16, job: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        self.with_queue(index, |queue| job(queue.kick.as_fd()))
    }

    /// Returns whether the guest has an IOMMU.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        self.features.contains(Features::ACCESS_PLATFORM)
    }

    /// Notes a kick of `pair`, for frames or for receive buffers that were awaited. A guest that
    /// kicks without ever having made a buffer available, to send or to receive, writes to other
    /// memory than the mapped one: its memory is not shared.
    pub fn note_kick(&mut self, pair: u16) {
        let [to, from] = [2 * pair, 2 * pair + 1];
        if self.is_translated() {
            self.with_queue(to, |queue| {
                if queue.kicks.awaits_buffers {
                    queue.look_for_buffers();
                }
            });
        }
        let silent = |queue: &mut GuestQueue| !queue.shows_buffers();
        let by_guest = |queue: &mut GuestQueue| {
            queue.counts.notifications += 1;
            !queue.used && queue.kicks.note(Instant::now()) && silent(queue)
        };
        if self.with_queue(from, by_guest) == Some(true)
            && self.with_queue(to, silent).unwrap_or(true)
        {
            self.with_queue(from, |queue| queue.fail(GuestFault::NotShared));
        }
    }

    /// Counts that the kicks of `pair` were suppressed.
    pub fn note_suppressed_kicks(&mut self, pair: u16) {
        self.with_queue(2 * pair + 1, |queue| queue.counts.deferred += 1);
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
    /// worker has locked are skipped: then `all` is set to false.
    pub fn take_fault(&mut self, all: &mut bool) -> Option<(u16, GuestFault)> {
        let mut queues = self.queues.iter_mut().enumerate();
        let found = queues.find_map(|(at, queue)| {
            let looked = queue.as_mut()?.try_with(GuestQueue::take_fault);
            *all &= looked.is_some();
            Some((at as u16, looked??))
        });
        if found.is_some() {
            self.count_pairs();
        }
        found
    }

    /// Sets the rules by which the guest is notified.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Returns the rules by which the guest is notified.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns whether the vCPUs that use `pair` are known to run.
    #[must_use]
    pub fn runs(&self, pair: u16) -> bool {
        servers(&self.vcpus, pair, self.usable_pairs).activity() == Activity::Running
    }

    /// Subscribes to the block event of the vCPUs that use `pair`. Returns `false` without a source
    /// of such events.
    #[must_use]
    pub fn listen(&self, pair: u16) -> bool {
        let pairs = self.usable_pairs;
        let vcpus = self.vcpus.as_deref();
        vcpus.is_some_and(|vcpus| vcpus.listen(pair, pairs))
    }

    /// Returns the vCPU that uses `pair`; `None` if there are several or none is known.
    #[must_use]
    pub fn processor(&self, pair: u16) -> Option<Processor> {
        let vcpus = self.vcpus.as_deref()?;
        vcpus.processor(pair, self.usable_pairs)
    }

    /// Looks at the queues to the guest again after an answer of its front end: asks for the
    /// translations of receive buffers that are missing (see
    /// [`virtio::queue::Queue::ask_for_buffers`]), and notifies the guest of frames if its ring was
    /// not translated when they were published. Delivers the frames that waited for translations
    /// until `now`, and returns what became of them.
    #[must_use]
    pub fn retry(&mut self, now: Nanos) -> Settlement {
        let mut calls = PendingCalls::default();
        let (merge, mut all) = (self.merge, Settlement::default());
        for (at, lock) in self.queues.iter_mut().enumerate().step_by(2) {
            let Some(lock) = lock else {
                continue;
            };
            let settled = lock.with(|queue| {
                let settled = queue.settle(merge, now);
                // Also buffers that were not granted: they are back, whether a frame is delivered
                // or not. The next user looks for revocations only when nothing is staged.
                queue.queue.publish();
                if queue.kicks.awaits_buffers {
                    queue.look_for_buffers();
                } else {
                    queue.ask_for_buffers();
                }
                queue.notify_again(&mut calls);
                settled
            });
            note(&mut self.drops, at, &settled);
            all.add(settled);
        }
        calls.send();
        all
    }

    /// Returns whether `pair` has frames that were not taken yet.
    pub fn has_frames(&mut self, pair: u16) -> bool {
        let has = |queue: &mut GuestQueue| queue.fault.is_none() && queue.queue.has_available();
        self.with_queue(from_guest(pair) as u16, has) == Some(true)
    }

    /// Returns whether a requested kick of `pair` may be missing; see [`virtio::queue::Queue`].
    pub fn may_miss_kicks(&mut self, pair: u16) -> bool {
        let may = |queue: &mut GuestQueue| queue.queue.may_miss_kicks();
        self.with_queue(from_guest(pair) as u16, may) == Some(true)
    }

    /// Measures the rate of frames from `pair`. Returns for how many frames its guest would kick
    /// once, and the average time between two of them; `None` without a queue.
    pub fn kick_threshold(&mut self, pair: u16, now: Nanos) -> Option<(u16, Nanos)> {
        let window = self.rules.kick_window();
        self.with_queue(from_guest(pair) as u16, |queue| {
            let threshold = queue.measure_kicks(now, window);
            (threshold, queue.kicks.rate.gap())
        })
    }

    /// Requests kicks of `pair` before its worker sleeps, for several frames where its guest sends
    /// steadily.
    pub fn request_kicks(&mut self, pair: u16, now: Nanos) -> KickRequest {
        let window = self.rules.kick_window();
        let request = |queue: &mut GuestQueue| {
            if queue.fault.is_some() {
                return KickRequest::EachFrame;
            }
            let threshold = queue.measure_kicks(now, window);
            queue.request_kick(threshold, window, now)
        };
        let requested = self.with_queue(from_guest(pair) as u16, request);
        requested.unwrap_or(KickRequest::EachFrame)
    }

    /// Suppresses kicks of `pair`, except one for as many frames as are notified at once. Returns
    /// whether frames are available already.
    pub fn suppress_kicks(&mut self, pair: u16) -> bool {
        let threshold = self.rules.threshold();
        let suppress = |queue: &mut GuestQueue| {
            let most = (queue.queue.size() / 4).max(1);
            let threshold = u16::try_from(threshold).map_or(most, |t| t.min(most));
            let available = queue.queue.set_kick_threshold(threshold);
            available.unwrap_or_else(|| queue.queue.set_kicks(false))
        };
        self.with_queue(from_guest(pair) as u16, suppress) == Some(true)
    }

    /// Sets or removes the source of vCPU states.
    pub fn set_vcpus(&mut self, vcpus: Option<Arc<dyn Vcpus>>) {
        self.vcpus = vcpus;
    }

    /// Settles the frames of a locked queue; see [`Port::settle`].
    #[cold]
    fn settle_pair(&mut self, pair: u16, now: Nanos) -> Option<Settlement> {
        let bit = 1 << pair;
        if self.backlogged & bit == 0 {
            return None;
        }
        self.backlogged &= !bit;
        let lock = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let settled = lock.get()?.settle(self.merge, now);
        note(&mut self.drops, to_guest(pair), &settled);
        Some(settled)
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

/// Returns the vCPUs that use `pair`, of those of a port.
fn servers(vcpus: &Option<Arc<dyn Vcpus>>, pair: u16, pairs: u16) -> Servers<'_> {
    Servers {
        vcpus: vcpus.as_deref(),
        pair,
        pairs,
    }
}

/// Returns the queue if it is locked and usable.
#[inline(always)]
fn receiver(lock: &mut QueueLock<GuestQueue>) -> Option<&mut GuestQueue> {
    lock.get().filter(|queue| queue.usable())
}

/// Counts the drops among what became of frames that waited.
fn note(drops: &mut Drops, queue: usize, settled: &Settlement) {
    for (reason, frames) in &settled.dropped {
        drops.add(queue, *reason, *frames);
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
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair)) {
            lock.lock_directly();
            if let Some(queue) = lock.get() {
                queue.lease(features, batch);
                queue.count_leased(batch);
            }
        }
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair))
            && let Some(queue) = lock.get()
        {
            queue.leave_from(kept);
        }
    }

    fn release(&mut self, pair: u16, calls: &mut PendingCalls) {
        if let Some(Some(lock)) = self.queues.get_mut(from_guest(pair)) {
            if let Some(queue) = lock.get() {
                queue.end_leases(calls);
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

    fn buffers(&mut self) -> Option<Buffers> {
        let mut all: Option<Buffers> = None;
        for pair in 0..self.usable_pairs {
            let queue = self.queues.get_mut(to_guest(pair))?.as_mut()?;
            let (free, size) =
                queue.try_with(|queue| (queue.queue.available(), queue.queue.size()))?;
            let all = all.get_or_insert(Buffers {
                free: usize::MAX,
                used: 0,
            });
            all.free = all.free.min(free.into());
            all.used += usize::from(size - free.min(size));
        }
        // One that is not connected takes none.
        Some(all.unwrap_or_default())
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
            Some(queue) if !queue.logged => queue.fill_each(frames.map(|frame| (PLAIN, frame))),
            _ => Traffic::default(),
        }
    }

    #[inline(always)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let merge = self.merge;
        let lock = self.queues.get_mut(to_guest(pair)).and_then(Option::as_mut);
        match lock.and_then(receiver) {
            Some(queue) => match queue.fill(frame, merge) {
                Err(DropReason::ReceiverUntranslated) if queue.keep(frame) => {
                    self.backlogged |= 1 << pair;
                    Ok(())
                }
                result => result,
            },
            None => Err(DropReason::ReceiverDown),
        }
    }

    #[inline]
    fn settle(&mut self, pair: u16, now: Nanos) -> Option<Settlement> {
        if self.backlogged == 0 {
            return None;
        }
        self.settle_pair(pair, now)
    }

    fn flush(&mut self, pair: u16, now: Nanos, calls: &mut PendingCalls) -> Option<Nanos> {
        let lock = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let mut due = None;
        if let Some(queue) = lock.get() {
            queue.give_back();
            queue.ask_for_buffers();
            queue.congestion.end_batch(now);
            let servers = servers(&self.vcpus, pair, self.usable_pairs);
            due = queue.publish_and_notify_by((self.rules, servers), now, calls);
        }
        lock.unlock();
        due
    }

    fn notify(&mut self, pair: u16, now: Nanos, calls: &mut PendingCalls) -> Option<Nanos> {
        let lock = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let servers = servers(&self.vcpus, pair, self.usable_pairs);
        let notify =
            |queue: &mut GuestQueue| queue.notify_deferred((self.rules, servers), now, calls);
        // The worker that has locked the queue will flush it, and then sends the notification if it
        // is due.
        lock.try_with(notify).unwrap_or(Some(now))
    }

    fn end_deferral(&mut self, pair: u16, calls: &mut PendingCalls) {
        self.with_queue(2 * pair, |queue| queue.end_deferral(calls));
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        let arm = |queue: &mut GuestQueue| queue.fault.is_none() && queue.queue.set_kicks(on);
        self.with_queue(from_guest(pair) as u16, arm) == Some(true)
    }
}
