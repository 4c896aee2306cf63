//! Port of an interface of the host: a TAP device or a packet socket for each queue pair, read and
//! written on the workers' threads by the crate `netio`.
//!
//! A frame is read once, into private memory of its queue, decided, and copied once to the guest
//! that gets it; another interface is written from where it was read. Frames to an interface are
//! collected until the end of the batch ([`Port::settle`]) and written from their senders' memory,
//! which is leased until then: one copy, made by the system. What is written before the payload is
//! the private, checked copy of the headers.
//!
//! Nothing is read that is not there: after the system has said that there is no more, a queue
//! rests until its descriptor reports an edge ([`InterfacePort::note_edge`]).
//!
//! A worker that reads or writes is charged to the interface if it crashes in the call, see
//! [`crash_record`].

mod backlog;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::driving::{BackEnd, DriverCounters, InterfaceStart};
use ipc::figures::QueueCounts;
use netio::Kind;
use port::counters::Traffic;
use port::{DropReason, PortId};
use wire::virtio::features::Features;

use self::receive::ReceiveQueue;
use self::send::SendQueue;
use crate::ports::batch::Batch;
use crate::ports::calls::PendingCalls;
use crate::ports::coalescing::Nanos;
use crate::ports::crash_record;
use crate::ports::faults::note_fault;
use crate::ports::guest::counts::Drops;
use crate::ports::guest::header;
use crate::ports::payload::Outgoing;
use crate::ports::port::{Accepts, Buffers, Port, Settlement};
use crate::ports::queue_lock::QueueLock;

/// Why an interface can be used no longer, by the error that the system returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InterfaceFault {
    /// Only a new descriptor helps.
    #[error("the interface is lost: {}", in_words(*.0))]
    Lost(i32),
    /// An unexpected error.
    #[error("the interface: {}", in_words(*.0))]
    Failed(i32),
}

fn in_words(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl InterfaceFault {
    fn of(error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        if netio::is_lost(error) {
            Self::Lost(number)
        } else {
            Self::Failed(number)
        }
    }

    /// Returns whether only a new descriptor of the interface helps.
    #[must_use]
    pub fn is_device_lost(self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// The queues of a pair, which all workers share.
#[derive(Debug)]
struct Pair {
    receive: QueueLock<ReceiveQueue>,
    send: QueueLock<SendQueue>,
}

/// The queues of an interface: each worker gets a port of its own.
#[derive(Debug)]
pub struct InterfaceQueues {
    id: PortId,
    features: Features,
    pairs: Vec<Pair>,
}

impl InterfaceQueues {
    /// Returns the queues of the interface of port `id`, one pair for each descriptor; `None` for a
    /// back end that has no such descriptors.
    #[must_use]
    pub fn new(id: PortId, start: InterfaceStart, fds: Vec<OwnedFd>) -> Option<Self> {
        let kind = match start.back_end {
            BackEnd::Tap => Kind::Tap,
            BackEnd::Packet => Kind::Packet,
            BackEnd::Xdp { .. } | BackEnd::VhostNet | BackEnd::User => return None,
        };
        let features = Features::VERSION_1 | netio::features(start.uso);
        let pair = |fd: OwnedFd| {
            let fd = Arc::new(fd);
            Pair {
                receive: QueueLock::new(ReceiveQueue::new(kind, Arc::clone(&fd), features)),
                send: QueueLock::new(SendQueue::new(kind, fd, start.uso)),
            }
        };
        let pairs = fds.into_iter().map(pair).collect();
        Some(Self {
            id,
            features,
            pairs,
        })
    }

    /// Returns the number of queue pairs.
    #[must_use]
    pub fn pairs(&self) -> u16 {
        self.pairs.len() as u16
    }

    /// Returns the features, in terms of virtio.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the port of one worker. `mtu` bounds the IP packets that go to the interface, in
    /// bytes.
    #[must_use]
    pub fn port(&self, mtu: Option<u16>) -> InterfacePort {
        let share = |pair: &Pair| Pair {
            receive: pair.receive.share(),
            send: pair.send.share(),
        };
        let mut drops = Drops::default();
        (0..2 * self.pairs.len()).for_each(|queue| drops.begin(queue));
        InterfacePort {
            id: self.id,
            accepts: header::accepts(self.features),
            mtu: u32::from(mtu.unwrap_or(u16::MAX)),
            pairs: self.pairs.iter().map(share).collect(),
            outgoing: 0,
            drops,
            settled: None,
        }
    }
}

/// Port of an interface, as one worker sees it; see the module.
#[derive(Debug)]
pub struct InterfacePort {
    id: PortId,
    accepts: Accepts,
    mtu: u32,
    pairs: Vec<Pair>,
    /// Pairs with frames that this worker has collected, one bit each.
    outgoing: u64,
    /// Drops of this worker, by queue.
    drops: Drops,
    /// Result of the last [`Port::notify`] or [`Port::end_deferral`].
    settled: Option<Settlement>,
}

impl InterfacePort {
    /// Sets the MTU.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = u32::from(mtu.unwrap_or(u16::MAX));
    }

    /// Calls `job` with the descriptor of a pair.
    pub fn with_descriptor<R>(&mut self, pair: u16, job: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        let pair = self.pairs.get_mut(usize::from(pair))?;
        Some(pair.receive.with(|queue| job(queue.descriptor())))
    }

    /// Notes that the descriptor of a pair has reported an edge, or may have: it reads
    /// frames next.
    pub fn note_edge(&mut self, pair: u16) {
        if let Some(pair) = self.pairs.get_mut(usize::from(pair)) {
            pair.receive.with(ReceiveQueue::note_edge);
        }
    }

    /// Reads no more frames of a pair until its descriptor reports an edge. Returns whether some
    /// were read and not forwarded.
    pub fn stop_reading(&mut self, pair: u16) -> bool {
        let pair = self.pairs.get_mut(usize::from(pair));
        pair.is_some_and(|pair| pair.receive.with(ReceiveQueue::stop_reading))
    }

    /// Returns whether a pair has frames, or may have.
    pub fn has_frames(&mut self, pair: u16) -> bool {
        let pair = self.pairs.get_mut(usize::from(pair));
        pair.is_some_and(|pair| pair.receive.with(|queue| queue.may_have_frames()))
    }

    /// Returns whether a pair without frames gathers some for the time of [`netio::PAUSE`]: many
    /// small ones came lately.
    pub fn end_burst(&mut self, pair: u16) -> bool {
        let pair = self.pairs.get_mut(usize::from(pair));
        pair.is_some_and(|pair| pair.receive.with(ReceiveQueue::end_burst))
    }

    /// Returns the next queue with a new fault. Each fault is returned once. Queues that another
    /// worker has locked are skipped: then `all` is set to false.
    pub fn take_fault(&mut self, all: &mut bool) -> Option<(u16, InterfaceFault)> {
        for (at, pair) in (0..).zip(&mut self.pairs) {
            let looked = [
                pair.receive.try_with(|queue| queue.fault.take_new()),
                pair.send.try_with(|queue| queue.fault.take_new()),
            ];
            *all &= looked.iter().all(Option::is_some);
            if let Some(fault) = looked.into_iter().flatten().flatten().next() {
                return Some((2 * at, fault));
            }
        }
        None
    }

    /// Returns the counters of the interface, of all queues.
    pub fn interface_counters(&mut self) -> DriverCounters {
        let mut all = DriverCounters::default();
        for pair in &mut self.pairs {
            all = all.plus(&pair.receive.with(ReceiveQueue::interface_counters));
            all = all.plus(&pair.send.with(|queue| queue.interface));
        }
        all
    }

    /// Returns the counters of every queue by index, without drops, which are per worker.
    pub fn counts(&mut self) -> Vec<(u16, QueueCounts)> {
        let mut all = Vec::new();
        for (at, pair) in (0..).zip(&mut self.pairs) {
            all.push((2 * at, pair.send.with(|queue| queue.counts.clone())));
            all.push((2 * at + 1, pair.receive.with(|queue| queue.counts.clone())));
        }
        all
    }

    /// Returns the drops of this worker: queue, reason, frames.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (u16, DropReason, u64)> + '_ {
        self.drops.all()
    }

    /// Writes what waits for the interface once more, and drops the rest: the queues end. Returns
    /// what became of it.
    pub fn end(&mut self) -> Settlement {
        let mut all = Settlement::default();
        for pair in 0..self.pairs.len() as u16 {
            self.end_deferral(pair, &mut PendingCalls::default());
            self.settle_deferred(pair)
                .into_iter()
                .for_each(|settled| all.add(settled));
        }
        all
    }

    /// Settles the frames of a locked queue; see [`Port::settle`].
    #[inline(never)]
    fn settle_pair(&mut self, pair: u16, now: Nanos) -> Option<Settlement> {
        self.outgoing &= !(1 << pair);
        let queue = self.pairs.get_mut(usize::from(pair))?.send.get()?;
        let _served = crash_record::serve(Some(self.id));
        let settled = queue.transmit(now);
        self.note(pair, settled)
    }

    /// Counts the drops of a queue among what became of frames.
    fn note(&mut self, pair: u16, settled: Option<Settlement>) -> Option<Settlement> {
        for (reason, frames) in settled.iter().flat_map(|settled| &settled.dropped) {
            self.drops.add(2 * usize::from(pair), *reason, *frames);
        }
        settled
    }
}

/// Not inlined: the code of guests' ports, which the same callers inline, has all registers then.
impl Port for InterfacePort {
    fn pairs(&self) -> u16 {
        self.pairs.len() as u16
    }

    fn accepts(&self) -> Accepts {
        self.accepts
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    #[inline(never)]
    fn take(&mut self, pair: u16, batch: &mut Batch) {
        if let Some(pair) = self.pairs.get_mut(usize::from(pair)) {
            pair.receive.lock_directly();
            if let Some(queue) = pair.receive.get() {
                queue.lease(batch);
            }
        }
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        let pair = self.pairs.get_mut(usize::from(pair));
        if let Some(queue) = pair.and_then(|pair| pair.receive.get()) {
            queue.leave_from(kept);
        }
    }

    #[inline(never)]
    fn release(&mut self, pair: u16, _calls: &mut PendingCalls) {
        if let Some(pair) = self.pairs.get_mut(usize::from(pair)) {
            if let Some(queue) = pair.receive.get() {
                queue.end_leases();
            }
            pair.receive.unlock();
        }
    }

    #[inline(never)]
    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        match self.pairs.get_mut(usize::from(pair)) {
            Some(pair) if wait => {
                pair.send.lock();
                true
            }
            Some(pair) => pair.send.try_lock(),
            None => true,
        }
    }

    fn buffers(&mut self) -> Option<Buffers> {
        let mut all = Buffers {
            free: usize::MAX,
            used: 0,
        };
        for pair in &mut self.pairs {
            let Buffers { free, used } = pair.send.try_with(|queue| queue.buffers())?;
            all.free = all.free.min(free);
            all.used += used;
        }
        Some(all)
    }

    fn note_dropped(&mut self, pair: u16, reason: DropReason, frames: u64) {
        self.drops.add(2 * usize::from(pair), reason, frames);
    }

    fn note_refused(&mut self, pair: u16, reason: DropReason, frames: u64) {
        self.drops.add(2 * usize::from(pair) + 1, reason, frames);
    }

    #[inline(never)]
    fn deliver_range(
        &mut self,
        pair: u16,
        batch: &Batch,
        frames: Range<usize>,
        longest: u32,
    ) -> Option<Traffic> {
        let queue = self.pairs.get_mut(usize::from(pair))?.send.get()?;
        self.outgoing |= 1 << pair;
        Some(queue.add_pieces(batch.pieces(frames, longest)))
    }

    #[inline(never)]
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let queue = self.pairs.get_mut(usize::from(pair));
        let Some(queue) = queue.and_then(|pair| pair.send.get()) else {
            return Err(DropReason::ReceiverDown);
        };
        self.outgoing |= 1 << pair;
        let _served = queue.is_full().then(|| crash_record::serve(Some(self.id)));
        queue.add(frame)
    }

    #[inline]
    fn settle(&mut self, pair: u16, now: Nanos) -> Option<Settlement> {
        if self.outgoing & 1 << pair == 0 {
            return None;
        }
        self.settle_pair(pair, now)
    }

    #[inline(never)]
    fn flush(&mut self, pair: u16, _now: Nanos, _calls: &mut PendingCalls) -> Option<Nanos> {
        let lock = &mut self.pairs.get_mut(usize::from(pair))?.send;
        let due = lock.get().and_then(SendQueue::take_deferral);
        lock.unlock();
        due
    }

    fn notify(&mut self, pair: u16, now: Nanos, _calls: &mut PendingCalls) -> Option<Nanos> {
        let lock = &mut self.pairs.get_mut(usize::from(pair))?.send;
        let _served = crash_record::serve(Some(self.id));
        let tried = lock.try_with(|queue| (queue.retry(now), queue.take_settlement()));
        // Another worker has locked the queue: it is tried again at once.
        let Some((next, settled)) = tried else {
            return Some(now);
        };
        self.settled = settled;
        next
    }

    fn settle_deferred(&mut self, pair: u16) -> Option<Settlement> {
        let settled = self.settled.take();
        self.note(pair, settled)
    }

    fn end_deferral(&mut self, pair: u16, _calls: &mut PendingCalls) {
        let _served = crash_record::serve(Some(self.id));
        if let Some(pair) = self.pairs.get_mut(usize::from(pair)) {
            self.settled = pair.send.with(SendQueue::end);
        }
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        on && self.has_frames(pair)
    }
}

/// A fault of a queue, which is reported once.
#[derive(Debug, Default)]
struct Fault {
    found: Option<InterfaceFault>,
    reported: bool,
}

impl Fault {
    /// Notes an error of the system.
    fn note(&mut self, error: &io::Error) {
        if self.found.is_none() {
            self.found = Some(InterfaceFault::of(error));
            note_fault();
        }
    }

    fn is_some(&self) -> bool {
        self.found.is_some()
    }

    fn take_new(&mut self) -> Option<InterfaceFault> {
        let new = !std::mem::replace(&mut self.reported, self.found.is_some());
        self.found.filter(|_| new)
    }
}
