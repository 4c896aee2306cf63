//! A guest's port: virtio queues behind the [`Port`] trait.
//!
//! Queue 2n takes frames to the guest, queue 2n + 1 from it (virtio 1.3, 5.1.2). Both kinds start with a
//! 12-byte header (5.1.6); see [`header`] for what a sender may say in it.

pub mod header;
mod kicks;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use memory::copy::{Cursor, prefetch, prefetch_for_write};
use memory::{GuestMemory, Segment};
use port::{Accepts, BATCH, Batch, DropReason, MAX_FRAME, Outgoing, Port};
use virtio::features::Features;
use virtio::net::{self, NetHeader};
use virtio::queue::{Chain, Queue, QueueFault};

use self::kicks::Kicks;
use crate::watchdog::{self, Blocked};

/// Receive buffers that are taken before they are needed.
const AHEAD: usize = 16;
/// Receive buffers that are merged for one frame at most: 64 KiB in buffers of 512 bytes.
const MAX_MERGED: usize = 128;
/// Bytes after which a batch is long enough: copying a batch of large frames takes time from others.
const BATCH_BYTES: u64 = 256 << 10;

const HEADER: u32 = net::LEN as u32;
/// Ethernet header: a frame that is shorter is none.
const MIN_FRAME: u32 = 14;

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

    /// Buffers for `need` bytes: so many of the chains from `spent` on.
    fn reserve(&mut self, need: u32, merge: bool) -> Result<usize, DropReason> {
        let (mut room, mut count) = (0, 0);
        while room < need {
            if self.spent + count == self.chains.len() {
                self.take_ahead()?;
            }
            let chain = self.chains[self.spent + count];
            if chain.bytes < HEADER {
                return Err(self.stop(GuestFault::NoRoomForHeader));
            }
            room += chain.bytes;
            count += 1;
            if !merge || count == MAX_MERGED {
                break;
            }
        }
        if room < need {
            return Err(DropReason::BufferTooSmall);
        }
        Ok(count)
    }

    /// Takes the next buffers before they are needed, so that their first lines are on the way here when
    /// they are written: the guest's core has them.
    fn take_ahead(&mut self) -> Result<(), DropReason> {
        if self.spent == self.chains.len() {
            self.spent = 0;
            self.chains.clear();
            self.segments.clear();
        }
        let before = self.chains.len();
        for _ in 0..AHEAD {
            match self.queue.take_writable(&mut self.segments) {
                Ok(Some(chain)) => {
                    self.chains.push(chain);
                    if let Some(first) = chain.segs.of(&self.segments).first() {
                        prefetch_for_write(first);
                    }
                }
                Ok(None) => break,
                Err(fault) => return Err(self.stop(fault.into())),
            }
        }
        if self.chains.len() == before {
            return Err(DropReason::ReceiverFull);
        }
        self.used = true;
        Ok(())
    }

    /// Gives back what was taken ahead and not needed.
    fn give_back(&mut self) {
        self.queue.untake(&self.chains[self.spent..]);
        self.chains.clear();
        self.segments.clear();
        self.spent = 0;
    }

    fn stop(&mut self, fault: GuestFault) -> DropReason {
        self.fault = Some(fault);
        DropReason::ReceiverDown
    }

    /// The memory of the next `count` chains, which were taken one after the other.
    fn memory_of(&self, count: usize) -> &[Segment] {
        let chains = &self.chains[self.spent..self.spent + count];
        let start = chains.first().map_or(0, |c| c.segs.start);
        let end = chains.last().map_or(0, |c| c.segs.start + c.segs.len);
        &self.segments[start as usize..end as usize]
    }

    /// Stages the next `count` chains as used for `written` bytes in all.
    fn commit(&mut self, count: usize, written: u32) {
        let mut left = written;
        for at in self.spent..self.spent + count {
            let chain = self.chains[at];
            let part = left.min(chain.bytes);
            self.queue.mark_written(chain.segs.of(&self.segments), part);
            self.queue.put(chain, part);
            left -= part;
        }
        self.spent += count;
    }
}

/// See the module.
#[derive(Debug)]
pub struct GuestPort {
    /// By vhost-user index.
    queues: Vec<Option<GuestQueue>>,
    features: Features,
    accepts: Accepts,
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
        let Some(Some(queue)) = self.queues.get_mut(from_guest(pair)) else {
            return;
        };
        if queue.fault.is_some() {
            return;
        }
        // First all chains, so that their heads are on the way here from the guest's core together.
        let mut bytes = 0;
        while queue.chains.len() < BATCH && bytes < BATCH_BYTES {
            match queue.queue.take_readable(batch.segments_mut()) {
                Ok(Some(chain)) => {
                    bytes += u64::from(chain.bytes);
                    if let Some(first) = chain.segs.of(batch.segments_mut()).first() {
                        prefetch(first);
                    }
                    queue.chains.push(chain);
                }
                Ok(None) => break,
                Err(fault) => {
                    queue.fault = Some(fault.into());
                    break;
                }
            }
        }
        queue.used |= !queue.chains.is_empty();
        for at in 0..queue.chains.len() {
            if let Err(fault) = lease(&queue.chains[at], features, queue.enabled, batch) {
                queue.fault = Some(fault);
                // This one and those behind it were not looked at: they stay the guest's.
                queue.queue.untake(&queue.chains[at..]);
                queue.chains.truncate(at);
                return;
            }
        }
    }

    fn release(&mut self, pair: u16) {
        let Some(Some(queue)) = self.queues.get_mut(from_guest(pair)) else {
            return;
        };
        for chain in queue.chains.drain(..) {
            queue.queue.put(chain, 0);
        }
        queue.publish_and_notify();
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let merge = self.features.contains(Features::NET_MRG_RXBUF);
        let Some(Some(queue)) = self.queues.get_mut(to_guest(pair)) else {
            return Err(DropReason::ReceiverDown);
        };
        if !queue.usable() {
            return Err(DropReason::ReceiverDown);
        }
        let need = HEADER + frame.len();
        let count = queue.reserve(need, merge)?;
        // SAFETY: the queue holds the GuestMemory that its segments came from, and is borrowed until they
        // are used no more.
        let mut target = unsafe { Cursor::new(queue.memory_of(count)) };
        let (low, high) = header::encode(&frame.offload, count as u16);
        target.write_words(low, high);
        target.write(frame.headers);
        target.copy_from(&mut frame.payload.cursor(), frame.payload.len());
        queue.commit(count, need);
        Ok(())
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

/// Makes a frame of a chain that was just taken, or a named drop.
fn lease(
    chain: &Chain,
    features: Features,
    enabled: bool,
    batch: &mut Batch,
) -> Result<(), GuestFault> {
    let range = chain.segs.start..chain.segs.start + chain.segs.len;
    let mut bytes = [0; net::LEN];
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released.
    if unsafe { batch.peek(&range, &mut bytes) } < net::LEN {
        return Err(GuestFault::NoRoomForHeader);
    }
    let len = chain.bytes - HEADER;
    let offload = header::decode(&NetHeader::decode(&bytes), features);
    let refused = match (&offload, len) {
        _ if !enabled => Some(DropReason::QueueDisabled),
        (_, ..MIN_FRAME) => Some(DropReason::Runt),
        (_, len) if len > MAX_FRAME => Some(DropReason::Oversize),
        (Err(reason), _) => Some(*reason),
        (Ok(_), _) => None,
    };
    match (refused, offload) {
        (None, Ok(offload)) => {
            // SAFETY: as above; the chain holds HEADER + len bytes.
            unsafe { batch.push(range, HEADER, len, offload) };
        }
        (reason, _) => batch.drop_taken(reason.unwrap_or(DropReason::BadHeader), len),
    }
    Ok(())
}
