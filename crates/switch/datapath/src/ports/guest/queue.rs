//! A running queue: frames that a guest sends are leased, frames to it fill its buffers.

use std::sync::Arc;
use std::time::Instant;

use ipc::figures::QueueCounts;
use memory::copy::{
    Cursor, PrivateMemory, SharedMemory, copy_bytes, is_misaligned, load_words, prefetch,
    prefetch_buffer, prefetches_buffers, store_words,
};
use memory::{GuestMemory, Segment};
use port::counters::Traffic;
use port::{DropReason, MAX_FRAME, Offload};
use sys::foreign::ForeignFd;
use virtio::queue::{Chain, ChainBatch, Fill, Limit, Queue, QueueFault};
use wire::virtio::features::Features;
use wire::virtio::net;

use super::congestion::Congestion;
use super::header::{self, Words};
use super::kicks::Kicks;
use super::notifier::Notifier;
use crate::ports::batch::{BATCH, Batch, FramePlace, Piece};
use crate::ports::calls::{CallFd, PendingCalls};
use crate::ports::coalescing::{Nanos, Rules, Servers};
use crate::ports::faults::note_fault;
use crate::ports::payload::Outgoing;

/// Length of an Ethernet header, the minimum of a frame.
const MIN_FRAME: u32 = 14;
/// Receive buffers that are taken ahead when the number of frames is unknown.
const AHEAD: usize = 16;
/// Segments for which capacity is kept: all buffers of a batch in several regions each.
const MAX_SEGMENTS: usize = 4096;
/// Receive buffers that are merged for one frame at most: 64 KiB in buffers of 512 bytes.
const MAX_MERGED: usize = 128;
/// Receive buffers whose translations are asked for in a row, before frames come.
const ASKED_AHEAD: u16 = 256;
/// Capacity of a segment list at first.
const SEGMENTS: usize = 256;
/// Header of a frame without offloads, in one buffer.
pub(super) const PLAIN: Words = (0, 1 << 16);

/// Reason for which a queue was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuestFault {
    /// The ring or a descriptor violated the specification.
    #[error(transparent)]
    Queue(#[from] QueueFault),
    /// The call descriptor blocks (see `watchdog`).
    #[error("the call descriptor blocks")]
    CallBlocked,
    /// The guest kicks but never makes a buffer available: its memory is not shared.
    #[error("the guest kicks but offers no buffers: is its memory shared (QEMU: share=on)?")]
    NotShared,
    /// A chain has no room for the virtio header (CVE-2022-2132, CVE-2026-86566).
    #[error("a chain is too short for the virtio header")]
    NoRoomForHeader,
}

/// Running queue.
#[derive(Debug)]
pub struct GuestQueue {
    pub(super) queue: Queue,
    /// Bytes of the header in front of every frame: 12, 10, or none.
    pub(super) header: u32,
    /// Eventfd that is readable when the guest has made buffers available.
    pub(super) kick: ForeignFd,
    pub(super) notifier: Notifier,
    pub(super) enabled: bool,
    pub(super) segments: Vec<Segment>,
    /// From the guest: leased chains. To the guest: chains taken ahead; the first `spent` are used.
    pub(super) chains: Vec<Chain>,
    pub(super) spent: usize,
    pub(super) fault: Option<GuestFault>,
    pub(super) reported: bool,
    pub(super) kicks: Kicks,
    /// Whether a buffer was ever taken.
    pub(super) used: bool,
    pub(super) congestion: Congestion,
    pub(super) counts: QueueCounts,
    /// Whether written memory is marked in a dirty log.
    pub(super) logged: bool,
}

impl GuestQueue {
    /// Returns a queue of a driver that negotiated `features`, with its eventfds.
    #[must_use]
    pub fn new(
        queue: Queue,
        features: Features,
        kick: impl Into<ForeignFd>,
        call: Option<CallFd>,
        enabled: bool,
    ) -> Self {
        let logged = queue.memory().log().is_some();
        let header = queue.header().unwrap_or(net::len(features) as u32);
        Self {
            queue,
            header,
            kick: kick.into(),
            notifier: Notifier::new(call),
            enabled,
            // The first batches grow them: a full host has idle guests above all.
            segments: Vec::new(),
            chains: Vec::new(),
            spent: 0,
            fault: None,
            reported: false,
            kicks: Kicks::since(Instant::now()),
            used: false,
            congestion: Congestion::default(),
            counts: QueueCounts::default(),
            logged,
        }
    }

    /// Starts service; `to_guest`: the queue takes frames to the guest.
    pub fn begin(&mut self, to_guest: bool, calls: &mut PendingCalls) {
        self.kicks = Kicks::since(Instant::now());
        if to_guest {
            self.look_for_buffers();
        }
        // A former switch process may have ended between the last used buffer and its notification.
        self.notify(calls);
    }

    /// Ends service. Returns the queue's position, at which the next back end continues, and the
    /// number of frames to the guest that waited for the translation of its buffers.
    pub fn end(&mut self, calls: &mut PendingCalls) -> (u32, u64) {
        self.give_back();
        self.end_deferral(calls);
        let waiting = self.congestion.backlog.take().len();
        (self.queue.position(), waiting as u64)
    }

    pub(super) fn usable(&self) -> bool {
        self.enabled && self.fault.is_none()
    }

    /// Returns whether a buffer is available or was ever taken, or may be where it is not
    /// translated yet.
    pub(super) fn shows_buffers(&mut self) -> bool {
        let shows = self.used || self.fault.is_some();
        shows || self.queue.is_translated() || self.queue.available() > 0
    }

    /// Returns whether the queue is masked, see `Port::is_masked`.
    pub(super) fn is_masked(&mut self) -> bool {
        let queue = &mut self.queue;
        self.congestion.masks(|| queue.has_available())
    }

    pub(super) fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        if let Err(fault) = self.queue.set_memory(Arc::clone(memory)) {
            self.fail(fault.into());
        }
        self.logged = memory.log().is_some();
    }

    /// Stops the queue for a fault.
    pub(super) fn fail(&mut self, fault: GuestFault) {
        self.fault = Some(fault);
        note_fault();
    }

    fn stop(&mut self, fault: GuestFault) -> DropReason {
        self.fail(fault);
        DropReason::ReceiverDown
    }

    /// Returns the fault of the queue, if it is new.
    pub(super) fn take_fault(&mut self) -> Option<GuestFault> {
        // It was written behind the lock.
        let call = self.notifier.call.as_ref();
        if call.is_some_and(|call| call.has_blocked()) {
            self.fault.get_or_insert(GuestFault::CallBlocked);
        }
        let new = !std::mem::replace(&mut self.reported, self.fault.is_some());
        self.fault.filter(|_| new)
    }

    /// Notifies the guest at once if that was deferred.
    pub(super) fn end_deferral(&mut self, calls: &mut PendingCalls) {
        let (queue, counts) = (&mut self.queue, &mut self.counts);
        self.notifier.end_deferral(queue, counts, calls);
    }

    /// Publishes used buffers, and notifies the guest or defers that. Returns the due time of a new
    /// deferral.
    pub(super) fn publish_and_notify_by(
        &mut self,
        by: (Rules, Servers<'_>),
        now: Nanos,
        calls: &mut PendingCalls,
    ) -> Option<Nanos> {
        self.queue.publish();
        let was_deferred = self.notifier.defers();
        let of = (&mut self.queue, &mut self.counts);
        let due = self.notifier.notify_by(of, by, now, calls);
        due.filter(|_| !was_deferred)
    }

    /// Notifies the guest of used buffers if that was deferred and is due. Returns the due time of
    /// the deferral otherwise.
    pub(super) fn notify_deferred(
        &mut self,
        by: (Rules, Servers<'_>),
        now: Nanos,
        calls: &mut PendingCalls,
    ) -> Option<Nanos> {
        let of = (&mut self.queue, &mut self.counts);
        let defers = self.notifier.defers();
        defers.then(|| self.notifier.notify_by(of, by, now, calls))?
    }

    /// Notifies the guest of what was published when its ring could not be asked whether it wants
    /// that.
    pub(super) fn notify_again(&mut self, calls: &mut PendingCalls) {
        if self.fault.is_none() && !self.notifier.defers() && self.queue.needs_notify() {
            self.notify(calls);
        }
    }

    /// Notes that the guest is to be notified.
    pub(super) fn notify(&mut self, calls: &mut PendingCalls) {
        self.notifier.notify(&mut self.counts, calls);
    }

    /// Counts frames that were carried.
    #[inline(always)]
    fn carried(&mut self, done: Traffic) {
        self.counts.frames += done.packets;
        self.counts.bytes += done.bytes;
    }

    /// Counts the frames of a new batch.
    #[inline(always)]
    pub(super) fn count_leased(&mut self, batch: &Batch) {
        self.carried(batch.taken());
    }

    /// Takes the chains of the next batch. Not inlined: its loop then has all registers.
    #[inline(never)]
    fn take_chains(&mut self, batch: &mut Batch) {
        let limit = batch.limit();
        let limit = Limit {
            chains: limit.frames,
            bytes: limit.bytes,
        };
        let mut taken = ChainBatch {
            segs: batch.segments_mut(),
            chains: &mut self.chains,
        };
        if let Err(fault) = self.queue.take_all_readable(&mut taken, limit, prefetch) {
            self.fail(fault.into());
        }
        self.used |= !self.chains.is_empty();
    }

    /// Fills a batch in two passes: first all chains are taken, so that the heads of all frames are
    /// prefetched from the guest's core together.
    pub(super) fn lease(&mut self, features: Features, batch: &mut Batch) {
        if self.fault.is_some() {
            return;
        }
        self.take_chains(batch);
        let mut at = 0;
        while at < self.chains.len() {
            at += lease_wholes(&self.chains[at..], self.header, self.enabled, batch);
            let Some(chain) = self.chains.get(at) else {
                return;
            };
            if let Err(fault) = lease_one(chain, self.header, features, self.enabled, batch) {
                if !self.is_not_granted(at) {
                    self.fail(fault);
                    return self.leave_from(at);
                }
                batch.drop_taken(DropReason::NotGranted, 0);
            }
            at += 1;
        }
    }

    /// Returns whether the guest has not granted this chain: then it has no bytes, and so no room
    /// for a header.
    #[cold]
    #[inline(never)]
    fn is_not_granted(&self, at: usize) -> bool {
        self.chains[at].bytes == 0 && self.queue.is_translated()
    }

    /// Returns the chains from this one on to the guest, not processed.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_from(&mut self, at: usize) {
        let at = at.min(self.chains.len());
        self.queue.untake(&self.chains[at..]);
        self.chains.truncate(at);
    }

    /// Completes all leased chains.
    pub(super) fn end_leases(&mut self, calls: &mut PendingCalls) {
        self.queue.put_read(&self.chains);
        self.chains.clear();
        self.queue.publish();
        if self.queue.needs_notify() {
            self.notify(calls);
        }
    }

    /// Takes buffers for so many frames, as far as available, before the frames come, and
    /// prefetches their first lines from the guest's core.
    pub(super) fn expect(&mut self, frames: usize) {
        if self.is_masked() {
            return;
        }
        let ahead = self.chains.len() - self.spent;
        let room = BATCH.saturating_sub(self.chains.len());
        self.queue.expect_used(frames as u16);
        if !self.congestion.backlog.is_empty() {
            // They are first.
            return;
        }
        // A fault is found and reported again when a frame needs a buffer.
        let _ = self.take_ahead(frames.saturating_sub(ahead).min(room));
    }

    /// Copies frames with their headers into the buffers that were taken ahead, one each, up to the
    /// first frame that does not fit. Used only without a dirty log.
    #[inline(always)]
    pub(super) fn fill_each<'a>(
        &mut self,
        frames: impl Iterator<Item = (Words, Piece<'a>)> + Clone,
    ) -> Traffic {
        let mut copied = frames.clone();
        let copying = Copying {
            segments: &self.segments,
            header: self.header,
            frames,
            written: 0,
        };
        let ready = &self.chains[self.spent..];
        let (count, copying) = self.queue.put_filled(ready, copying);
        if count > 0 && lies_apart(copied.next(), ready, &self.segments, self.header) {
            self.counts.misaligned += count as u64;
        }
        self.spent += count;
        let done = Traffic {
            packets: count as u64,
            bytes: copying.written - count as u64 * u64::from(self.header),
        };
        self.congestion.found(count);
        self.carried(done);
        done
    }

    /// Copies one frame into the next buffers.
    #[inline(always)]
    pub(super) fn fill(&mut self, frame: &Outgoing<'_>, merge: bool) -> Result<(), DropReason> {
        if !self.logged
            && let Some(rest) = frame.payload.in_one_piece()
        {
            let piece = Piece {
                head: frame.headers,
                rest,
                rest_len: frame.payload.len(),
            };
            let header = header::encode(&frame.offload, 1);
            if self.fill_each(std::iter::once((header, piece))).packets == 1 {
                return Ok(());
            }
        }
        // Copied, so that only this path has the frame's parts in memory.
        let payload = *frame.payload;
        let frame = Outgoing {
            payload: &payload,
            ..*frame
        };
        self.fill_pieces(&frame, merge)
    }

    /// Marks the written bytes of these chains in the dirty log.
    #[cold]
    fn log(&self, chains: &[Chain], written: u32) {
        let mut parts = Spread(written);
        for chain in chains {
            let segments = chain.segs.of(&self.segments);
            self.queue.mark_written(segments, parts.next(chain));
        }
    }

    /// Copies a frame that has several segments, needs several buffers, or has no buffer yet.
    #[inline(never)]
    pub(super) fn fill_pieces(
        &mut self,
        frame: &Outgoing<'_>,
        merge: bool,
    ) -> Result<(), DropReason> {
        let need = self.header + frame.len();
        let count = self.reserve(need, merge)?;
        // SAFETY: the queue holds the GuestMemory that its segments came from, and is borrowed
        // until they are used no more.
        let mut target = unsafe { Cursor::new(self.memory_of(count)) };
        let (low, high) = header::encode(&frame.offload, count as u16);
        target.write_words(low, high, self.header as usize);
        target.write(frame.headers);
        let (mut payload, len) = (frame.payload.cursor(), frame.payload.len());
        let places = payload.place().zip(target.place());
        let misaligned = places.is_some_and(|(from, to)| is_misaligned(from, to, len as usize));
        target.copy_from(&mut payload, len);
        self.counts.misaligned += u64::from(misaligned);
        self.commit(count, need);
        self.carried(Traffic {
            packets: 1,
            bytes: frame.len().into(),
        });
        Ok(())
    }

    /// Reserves buffers for `need` bytes. Returns the number of chains from `spent` on.
    fn reserve(&mut self, need: u32, merge: bool) -> Result<usize, DropReason> {
        let (mut room, mut count) = (0, 0);
        while room < need {
            if self.spent + count == self.chains.len() {
                if !self.congestion.backlog.is_empty() {
                    return Err(DropReason::ReceiverUntranslated);
                }
                self.take_ahead(AHEAD)?;
            }
            let Some(chain) = self.chains.get(self.spent + count) else {
                return Err(self.found_none(count));
            };
            if chain.bytes < self.header {
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

    /// Returns the reason why there are no more than `count` buffers for a frame.
    #[cold]
    fn found_none(&mut self, count: usize) -> DropReason {
        if !self.queue.is_untranslated() {
            self.congestion.found_none();
            return DropReason::ReceiverFull;
        }
        if count > 0 && self.queue.is_denied() {
            // The next buffer is given back unused when no other is in use. So these go before it,
            // or frames that need several would never pass it.
            self.commit(count, 0);
        }
        DropReason::ReceiverUntranslated
    }

    /// Asks for the translations of the receive buffers that a guest with an IOMMU has offered, or
    /// for a kick if it has offered none: Linux does so when the interface comes up, and the first
    /// frame may come next.
    ///
    /// No worker waits for buffers without an IOMMU: a frame without one is dropped. Suppressed
    /// kicks spare the guest the exits.
    pub(super) fn look_for_buffers(&mut self) {
        self.kicks.awaits_buffers = self.queue.is_translated() && !self.queue.set_kicks(true);
        if !self.kicks.awaits_buffers {
            self.queue.set_kicks(false);
            self.ask_for_buffers();
        }
    }

    /// Asks for the translations of receive buffers that the guest has offered since the last time.
    pub(super) fn ask_for_buffers(&mut self) {
        if self.fault.is_none() {
            self.queue.ask_for_buffers(ASKED_AHEAD);
        }
    }

    /// Takes the next `count` buffers, or as many as are available.
    fn take_ahead(&mut self, count: usize) -> Result<(), DropReason> {
        if self.spent == self.chains.len() {
            self.forget_taken();
        }
        let mut taken = ChainBatch {
            segs: &mut self.segments,
            chains: &mut self.chains,
        };
        let limit = Limit {
            chains: count,
            bytes: u64::MAX,
        };
        let queue = &mut self.queue;
        let result = if prefetches_buffers() {
            let fetch = |buffer: &Segment| prefetch_buffer(buffer, net::LEN);
            queue.take_all_writable(&mut taken, limit, fetch)
        } else {
            queue.take_all_writable(&mut taken, limit, |_| ())
        };
        self.used |= !self.chains.is_empty();
        result.map_err(|fault| self.stop(fault.into()))
    }

    /// Returns the buffers that were taken ahead and not used.
    pub(super) fn give_back(&mut self) {
        self.queue.untake(&self.chains[self.spent..]);
        self.forget_taken();
    }

    /// Clears the chains taken ahead, and frees the memory of an unusually long segment list.
    #[inline(always)]
    fn forget_taken(&mut self) {
        self.spent = 0;
        self.chains.clear();
        self.segments.clear();
        if self.segments.capacity() > MAX_SEGMENTS {
            self.segments.shrink_to(SEGMENTS);
        }
    }

    /// Returns the memory of the next `count` chains, which were taken one after the other.
    fn memory_of(&self, count: usize) -> &[Segment] {
        let chains = &self.chains[self.spent..self.spent + count];
        let start = chains.first().map_or(0, |c| c.segs.start);
        let end = chains.last().map_or(0, |c| c.segs.start + c.segs.len);
        &self.segments[start as usize..end as usize]
    }

    /// Stages the next `count` chains as used for `written` bytes in total.
    fn commit(&mut self, count: usize, written: u32) {
        self.congestion.found(count);
        let chains = &self.chains[self.spent..self.spent + count];
        if self.logged {
            self.log(chains, written);
        }
        self.queue.put_filled(chains, Spread(written));
        self.spent += count;
    }
}

/// Returns whether a header with these first eight bytes requests no offload: no flag, no
/// segmentation.
#[inline(always)]
fn leaves_nothing(low: u64) -> bool {
    low as u16 == 0
}

/// Makes frames of chains with one buffer and no offload, the most common case, up to the first one
/// of another kind. Returns their number.
#[inline(always)]
fn lease_wholes(chains: &[Chain], header: u32, enabled: bool, batch: &mut Batch) -> usize {
    if !enabled {
        return 0;
    }
    if header == 0 {
        return lease_headerless(chains, batch);
    }
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released, and the frames lie within them.
    unsafe {
        batch.push_wholes(|segments| SingleBuffers::<false> {
            chains: chains.iter(),
            segments,
            header,
        })
    }
}

/// Makes frames as [`lease_wholes`] does, of a client that puts no header before them.
#[inline(never)]
fn lease_headerless(chains: &[Chain], batch: &mut Batch) -> usize {
    // SAFETY: as in `lease_wholes`.
    unsafe {
        batch.push_wholes(|segments| SingleBuffers::<true> {
            chains: chains.iter(),
            segments,
            header: 0,
        })
    }
}

/// Frames of chains with one buffer; see [`lease_wholes`]. `HEADERLESS`: without a header, which
/// `header` says too.
struct SingleBuffers<'a, const HEADERLESS: bool> {
    chains: std::slice::Iter<'a, Chain>,
    segments: &'a [Segment],
    /// Bytes of a header. Header and shortest frame together are longer than the longest header.
    header: u32,
}

impl<const HEADERLESS: bool> Iterator for SingleBuffers<'_, HEADERLESS> {
    type Item = FramePlace;

    #[inline(always)]
    fn next(&mut self) -> Option<FramePlace> {
        let chain = self.chains.next()?;
        let len = chain.bytes.wrapping_sub(self.header);
        if chain.segs.len != 1 || !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return None;
        }
        let at = chain.segs.start;
        let segment = self.segments.get(at as usize)?;
        // SAFETY: the segment was translated by the queue, whose memory is held; it is as long as
        // the chain, and so longer than the longest header.
        let (low, _) = unsafe { load_words(segment.ptr) };
        (HEADERLESS || leaves_nothing(low)).then(|| FramePlace {
            at,
            from: segment.ptr.wrapping_add(self.header as usize),
            skip: self.header,
            len,
        })
    }
}

/// Makes a frame of any chain, or counts it as dropped.
#[inline(never)]
fn lease_one(
    chain: &Chain,
    header_len: u32,
    features: Features,
    enabled: bool,
    batch: &mut Batch,
) -> Result<(), GuestFault> {
    let range = chain.segs.start..chain.segs.start + chain.segs.len;
    // SAFETY: the segments were translated by the queue, whose memory is held until the batch is
    // released.
    let Some((low, high)) = (unsafe { batch.peek_words(&range, header_len as usize) }) else {
        return Err(GuestFault::NoRoomForHeader);
    };
    let len = chain.bytes - header_len;
    let offload = if header_len == 0 || leaves_nothing(low) {
        Offload::default()
    } else {
        match header::decode_words(low, high, features) {
            Ok(offload) => offload,
            Err(reason) => {
                batch.drop_taken(reason, len);
                return Ok(());
            }
        }
    };
    let refused = match len {
        _ if !enabled => Some(DropReason::QueueDisabled),
        ..MIN_FRAME => Some(DropReason::Runt),
        len if len > MAX_FRAME => Some(DropReason::Oversize),
        _ => None,
    };
    match refused {
        // SAFETY: as above; the chain holds header_len + len bytes.
        None => unsafe { batch.push(range, header_len, len, offload) },
        Some(reason) => batch.drop_taken(reason, len),
    }
    Ok(())
}

/// Remaining bytes of a frame that was written to several chains.
struct Spread(u32);

impl Spread {
    #[inline(always)]
    fn next(&mut self, chain: &Chain) -> u32 {
        let part = self.0.min(chain.bytes);
        self.0 -= part;
        part
    }
}

impl Fill for Spread {
    #[inline(always)]
    fn fill(&mut self, chain: &Chain) -> Option<u32> {
        Some(self.next(chain))
    }

    #[inline(always)]
    fn more(&self) -> bool {
        self.0 > 0
    }
}

/// Copies one frame into each chain that consists of one buffer with enough room.
struct Copying<'a, I> {
    /// Buffers of the chains, in mapped memory.
    segments: &'a [Segment],
    /// Bytes of a header: at most [`net::LEN`].
    header: u32,
    frames: I,
    /// Bytes of all frames so far, with their headers.
    written: u64,
}

impl<'a, I: Iterator<Item = (Words, Piece<'a>)>> Fill for Copying<'_, I> {
    #[inline(always)]
    fn fill(&mut self, chain: &Chain) -> Option<u32> {
        let (header, frame) = self.frames.next()?;
        // The longest header must fit even if the actual one is shorter: the frame overwrites its
        // end.
        if chain.segs.len != 1 || chain.bytes < net::LEN as u32 + frame.len() {
            return None;
        }
        let buffer = self.segments.get(chain.segs.start as usize)?;
        // SAFETY: the buffer is one segment of the memory that the queue holds, with room for the
        // longest header and the frame; the frame's lease keeps its segments mapped.
        unsafe { write_frame(buffer.ptr, header, self.header, &frame) };
        let written = self.header + frame.len();
        self.written += u64::from(written);
        Some(written)
    }
}

/// Returns whether the first frame of a batch, copied to the first of these chains, was copied
/// misaligned. One frame stands for the others: buffers of a sender mostly lie alike, as those of a
/// receiver do, and a check of each frame would cost more than it tells.
#[inline(always)]
fn lies_apart(
    frame: Option<(Words, Piece<'_>)>,
    chains: &[Chain],
    segments: &[Segment],
    header: u32,
) -> bool {
    let buffer = chains
        .first()
        .and_then(|chain| segments.get(chain.segs.start as usize));
    let (Some((_, frame)), Some(buffer)) = (frame, buffer) else {
        return false;
    };
    let to = buffer.ptr.wrapping_add(header as usize + frame.head.len());
    is_misaligned(frame.rest, to, frame.rest_len as usize)
}

/// Writes header and frame to one buffer, the frame `skip` bytes from its start.
///
/// # Safety
/// At `to`, [`net::LEN`] plus the frame's length bytes are mapped, and so are the frame's segments;
/// `skip` is at most [`net::LEN`].
#[inline(always)]
unsafe fn write_frame(to: *mut u8, (low, high): Words, skip: u32, frame: &Piece<'_>) {
    let (head, rest) = (frame.head.len(), frame.rest_len as usize);
    // SAFETY: this function's contract has the same requirements.
    unsafe {
        store_words(to, low, high);
        let to = to.add(skip as usize);
        copy_bytes::<PrivateMemory>(frame.head.as_ptr(), to, head);
        if rest > 0 {
            copy_bytes::<SharedMemory>(frame.rest, to.add(head), rest);
        }
    }
}
