//! A guest's port: virtio queues behind the [`Port`] trait.
//!
//! Queue 2n takes frames to the guest, queue 2n + 1 from it (virtio 1.3, 5.1.2). Their frames start with a header of 12
//! bytes, or 10 (5.1.6; [`net::len`]); see [`header`] for what a sender may say in it.

mod congestion;
mod counts;
mod fault;
pub mod header;
mod kicks;
mod notify;
mod receive;
mod send;
mod vcpus;
mod waiting;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use channel::figures::QueueCounts;
use memory::engine::{Copier, Engines};
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
use self::waiting::Waiting;
use crate::batching::{Nanos, Record, Rules, Vcpus};
use crate::lane::Lane;
use crate::watchdog::Doorbells;

/// Pieces of memory for whose list there is room at first.
const PIECES: usize = 256;

/// A queue that runs.
#[derive(Debug)]
pub struct GuestQueue {
    queue: Queue,
    /// Bytes of the header in front of every frame: 12, or 10.
    header: u32,
    /// Readable when the guest has made buffers available.
    kick: OwnedFd,
    /// Written to notify the guest; without it the guest polls.
    call: Option<OwnedFd>,
    doorbells: Doorbells,
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
    /// To the guest: when it was notified of frames last.
    notified: Option<Nanos>,
    /// To the guest: it is to be notified of frames later.
    late: bool,
    /// Whether that pays.
    puts_off: Record,
    congestion: Congestion,
    counts: QueueCounts,
    /// The engines that copy to or from it, if any do.
    engines: Option<Arc<Engines>>,
    waiting: Waiting,
    /// A frame to the guest is there when the processor has copied it, and nothing more is to be done: no engine, no
    /// dirty log.
    at_once: bool,
}

impl GuestQueue {
    /// A queue of a driver that took `features`, with its descriptors for notifications.
    #[must_use]
    pub fn new(
        queue: Queue,
        features: Features,
        kick: OwnedFd,
        call: Option<OwnedFd>,
        enabled: bool,
    ) -> Self {
        let at_once = queue.memory().log().is_none();
        Self {
            queue,
            header: net::len(features) as u32,
            kick,
            call,
            doorbells: Doorbells::default(),
            enabled,
            segments: Vec::with_capacity(PIECES),
            chains: Vec::with_capacity(BATCH),
            spent: 0,
            fault: None,
            reported: false,
            kicks: Kicks::since(Instant::now()),
            used: false,
            notified: None,
            late: false,
            puts_off: Record::default(),
            congestion: Congestion::default(),
            counts: QueueCounts::default(),
            engines: None,
            waiting: Waiting::default(),
            at_once,
        }
    }

    /// Gets ready to be served; `to_guest`: it takes frames to the guest.
    pub fn begin(&mut self, to_guest: bool) {
        if to_guest {
            // Nobody waits for receive buffers: a frame without one is dropped. Spares the guest the exits.
            self.queue.set_kicks(false);
        }
        self.kicks = Kicks::since(Instant::now());
        // Whoever served this queue before may have ended between its last buffers and the notification.
        self.notify();
    }

    /// Ends its service. Its position, with which the guest's next back end goes on.
    pub fn end(&mut self) -> u32 {
        self.give_back();
        if !self.waiting.is_empty() {
            self.drain();
            self.publish_and_notify();
        }
        if std::mem::take(&mut self.late) && self.queue.needs_notify() {
            self.notify();
        }
        self.queue.position()
    }

    fn usable(&self) -> bool {
        self.enabled && self.fault.is_none()
    }

    /// Whether a buffer waits or was ever there.
    fn shows_buffers(&mut self) -> bool {
        self.used || self.fault.is_some() || self.queue.has_available()
    }

    /// See [`Port::is_masked`].
    fn is_masked(&mut self) -> bool {
        let queue = &self.queue;
        self.congestion.masks(|| queue.has_available())
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
    queues: Vec<Option<Lane<GuestQueue>>>,
    features: Features,
    accepts: Accepts,
    /// A frame may be spread over several receive buffers.
    merge: bool,
    mtu: u32,
    /// Queue pairs whose to-guest queue is usable, counted from the first.
    usable_pairs: u16,
    rules: Rules,
    /// Sees what the guest does, where that can be seen.
    vcpus: Option<Arc<dyn Vcpus>>,
    /// This worker's way to have frames copied, where it has one.
    copier: Option<Copier>,
    /// Queues with something that waited for copies when this worker last used them.
    unsettled: Vec<usize>,
    /// What this worker has dropped of each queue.
    drops: Drops,
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
            rules: Rules::OFF,
            vcpus: None,
            copier: None,
            unsettled: Vec::new(),
            drops: Drops::default(),
        }
    }

    /// Another MTU from now on.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = u32::from(mtu.unwrap_or(u16::MAX));
    }

    /// Puts a queue into service, for every worker that gets a lane to it; `features` are the negotiated ones.
    pub fn start(&mut self, index: u16, mut queue: Lane<GuestQueue>, features: Features) {
        if let Some(copier) = &self.copier {
            queue.with(|queue| queue.set_engines(copier.engines()));
        }
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

    /// Takes a queue out of service here. What the last worker that had it gets is the queue's own.
    pub fn stop(&mut self, index: u16) -> Option<Lane<GuestQueue>> {
        let queue = self.queues.get_mut(usize::from(index))?.take();
        self.count_pairs();
        queue
    }

    /// Enables or disables a running queue. Other workers have to [`GuestPort::count_pairs`] then.
    pub fn enable(&mut self, index: u16, on: bool) {
        self.with_queue(index, |queue| queue.enabled = on);
        self.count_pairs();
    }

    /// Changes how the guest is notified.
    pub fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.with_queue(index, |queue| {
            queue.call = call;
            // What was written to the former descriptor may have come too late for the front end to see.
            queue.notify();
        });
    }

    /// A new snapshot of guest memory for all running queues. Other workers have to
    /// [`GuestPort::count_pairs`] then.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        for queue in self.queues.iter_mut().flatten() {
            queue.with(|queue| queue.set_memory(memory));
        }
        self.count_pairs();
    }

    /// Ends all leases as if there had been none: what was taken will be taken again. Nobody looks at the batch any more.
    pub(crate) fn put_back(&mut self, pair: u16) {
        if let Some(Some(lane)) = self.queues.get_mut(from_guest(pair)) {
            if let Some(queue) = lane.held() {
                queue.untake_leases();
            }
            lane.let_go();
        }
    }

    /// Does something with the descriptor that a running queue's kicks come by.
    pub fn with_kick<R>(&mut self, index: u16, job: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        self.with_queue(index, |queue| job(queue.kick.as_fd()))
    }

    /// The guest has kicked `pair`. One that does so without ever having shown a buffer, to send or to
    /// receive, writes to memory that is not ours: it is not shared.
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

    /// Whether the VMM took guest memory away under a queue. All queues of a port have the same memory: `None` if
    /// other workers are busy with all of them.
    pub fn lost_memory(&mut self) -> Option<bool> {
        let mut queues = self.queues.iter_mut().flatten().peekable();
        if queues.peek().is_none() {
            return Some(false);
        }
        queues.find_map(|queue| queue.try_with(|queue| queue.queue.memory().is_lost()))
    }

    /// The next queue whose guest broke a rule, and how; once for each. Queues that another worker is busy with
    /// are left out.
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

    /// The queue to the guest of a pair that is held, if it can be used.
    #[inline(always)]
    fn receiver(&mut self, pair: u16) -> Option<&mut GuestQueue> {
        receiver(self.queues.get_mut(to_guest(pair))?.as_mut()?)
    }

    fn with_queue<R>(&mut self, index: u16, job: impl FnOnce(&mut GuestQueue) -> R) -> Option<R> {
        let queue = self.queues.get_mut(usize::from(index))?.as_mut()?;
        Some(queue.with(job))
    }

    /// Looks which pairs frames can go to; to be called on every worker when a queue changed.
    pub fn count_pairs(&mut self) {
        let queues = self.queues.iter_mut().step_by(2);
        let usable = |queue: &mut Option<Lane<GuestQueue>>| {
            queue
                .as_mut()
                .is_some_and(|queue| queue.with(|queue| queue.usable()))
        };
        self.usable_pairs = queues.map(usable).take_while(|usable| *usable).count() as u16;
    }
}

/// The queue, if it is held and can be used.
#[inline(always)]
fn receiver(lane: &mut Lane<GuestQueue>) -> Option<&mut GuestQueue> {
    lane.held().filter(|queue| queue.usable())
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
        if let Some(copier) = &self.copier {
            copier.begin_lease();
        }
        if let Some(Some(lane)) = self.queues.get_mut(from_guest(pair)) {
            lane.hold();
            if let Some(queue) = lane.held() {
                queue.lease(features, batch);
                queue.count_leased(batch);
            }
        }
    }

    fn release(&mut self, pair: u16) {
        let copies = self.copier.as_ref().map(Copier::end_lease);
        let index = from_guest(pair);
        if let Some(Some(lane)) = self.queues.get_mut(index) {
            match (lane.held(), copies) {
                (Some(queue), None) => queue.end_leases(),
                (Some(queue), Some(copies)) => {
                    queue.end_leases_after(copies);
                    waiting::note(&mut self.unsettled, index, queue);
                }
                (None, _) => {}
            }
            lane.let_go();
        }
    }

    #[inline]
    fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    fn settle(&mut self, now: Nanos, late: &mut dyn FnMut(u16, Nanos)) -> bool {
        self.settle_queues(now, late);
        self.is_settled()
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        match self.queues.get_mut(to_guest(pair)) {
            Some(Some(lane)) if wait => {
                lane.hold();
                true
            }
            Some(Some(lane)) => lane.try_hold(),
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
            Some(queue) if queue.at_once => {
                queue.fill_each(frames.map(|frame| (header::PLAIN, frame)))
            }
            // A copy, so that only this path has it in memory.
            Some(queue) => queue.fill_small(frames.clone()),
            None => Traffic::default(),
        }
    }

    #[inline(always)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let merge = self.merge;
        let lane = self.queues.get_mut(to_guest(pair)).and_then(Option::as_mut);
        match lane.and_then(receiver) {
            Some(queue) => queue.fill(frame, merge, self.copier.as_ref()),
            None => Err(DropReason::ReceiverDown),
        }
    }

    fn flush(&mut self, pair: u16, now: Nanos) -> Option<Nanos> {
        let lane = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let mut due = None;
        if let Some(queue) = lane.held() {
            queue.give_back();
            queue.congestion.end_batch(now);
            let activity = || activity(self.vcpus.as_deref(), pair, self.usable_pairs);
            due = queue.publish_and_notify_by(self.rules, now, activity);
            if self.copier.is_some() {
                waiting::note(&mut self.unsettled, to_guest(pair), queue);
            }
        }
        lane.let_go();
        due
    }

    fn notify(&mut self, pair: u16, now: Nanos) -> Option<Nanos> {
        let lane = self.queues.get_mut(to_guest(pair))?.as_mut()?;
        let activity = || activity(self.vcpus.as_deref(), pair, self.usable_pairs);
        let notify = |queue: &mut GuestQueue| match queue.late {
            true => queue.notify_by(self.rules, now, activity),
            false => None,
        };
        // Who has the queue now will flush it, and then finds that it is due.
        lane.try_with(notify).unwrap_or(Some(now))
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        let arm = |queue: &mut GuestQueue| queue.fault.is_none() && queue.queue.set_kicks(on);
        self.with_queue(from_guest(pair) as u16, arm) == Some(true)
    }
}
