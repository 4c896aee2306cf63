//! Frames to an interface: collected for the rest of a batch, written at its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::driving::DriverCounters;
use ipc::figures::QueueCounts;
use memory::copy::{SharedMemory, copy_bytes};
use netio::{BATCH, HEAD, HEADER, Kind, MAX_HEAD, Outbox, Sender, Stop};
use port::DropReason;
use port::counters::Traffic;

use super::Fault;
use super::backlog::{Backlog, FrameCopy};
use crate::ports::batch::Pieces;
use crate::ports::coalescing::Nanos;
use crate::ports::guest::header;
use crate::ports::payload::Outgoing;
use crate::ports::port::{Buffers, Settlement};

/// Interval of tries with an interface that takes no more, nanoseconds.
const RETRY: Nanos = 1_000_000;
/// Time after which a batch makes no further system call, milliseconds: its senders' memory is
/// leased meanwhile, and who revokes some of it waits. A call descriptor that blocks takes as long.
const LONGEST_BATCH: Duration = Duration::from_millis(4);
/// The virtio header of a frame without offloads.
const PLAIN: [u8; HEADER as usize] = [0; HEADER as usize];
/// Bytes of a page. Each may be missing.
const PAGE: usize = 4096;

/// A queue of an interface that takes frames.
#[derive(Debug)]
pub(super) struct SendQueue {
    sender: Sender,
    /// Frames of this batch; their payloads are in memory that their sender leases, or in `held`.
    outbox: Outbox,
    /// Lengths of the frames in the outbox, by id.
    lens: Vec<u32>,
    /// Whole frames in the outbox that no sender leases.
    held: Vec<FrameCopy>,
    /// Ids of frames that are done, and whether they were sent; kept for its memory.
    done: Vec<(u16, bool)>,
    backlog: Backlog,
    /// Time of the next try with frames of the backlog.
    retry_at: Nanos,
    /// The worker knows of that time.
    deferred: bool,
    /// Corrections since [`SendQueue::take_settlement`].
    settled: Option<Settlement>,
    pub(super) fault: Fault,
    pub(super) interface: DriverCounters,
    pub(super) counts: QueueCounts,
}

impl SendQueue {
    pub(super) fn new(kind: Kind, descriptor: Arc<OwnedFd>, uso: bool) -> Self {
        Self {
            sender: Sender::new(kind, descriptor),
            outbox: Outbox::new(uso),
            lens: Vec::with_capacity(BATCH),
            held: Vec::with_capacity(BATCH),
            done: Vec::with_capacity(BATCH),
            backlog: Backlog::default(),
            retry_at: 0,
            deferred: false,
            settled: None,
            fault: Fault::default(),
            interface: DriverCounters::default(),
            counts: QueueCounts::default(),
        }
    }

    /// Returns whether the next frame has the others written first.
    pub(super) fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    pub(super) fn buffers(&self) -> Buffers {
        Buffers {
            free: self.backlog.free(),
            used: self.backlog.len(),
        }
    }

    /// Adds a frame. Its payload stays where it is while it is leased memory; other memory may end
    /// before the batch does, and is copied.
    pub(super) fn add(&mut self, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        if self.outbox.is_full() {
            self.write(LONGEST_BATCH);
        }
        if self.fault.is_some() {
            return Err(DropReason::ReceiverDown);
        }
        if !self.backlog.is_empty() {
            return self.keep(frame);
        }
        let header = header_of(frame);
        let id = self.lens.len() as u16;
        self.lens.push(frame.len());
        if frame.payload.is_private() {
            let copy = self.copy_of(frame);
            self.push_kept(id, header, copy);
            return Ok(());
        }
        let (mut cursor, mut left) = (frame.payload.cursor(), frame.payload.len());
        let mut longer = [0; MAX_HEAD];
        let own = frame.headers.len();
        let desired = head_len(frame.len());
        let head = if own < desired {
            let (copy, more) = longer.split_at_mut(own);
            copy.copy_from_slice(frame.headers);
            left -= cursor.read(&mut more[..desired - own]) as u32;
            &longer[..desired]
        } else {
            frame.headers
        };
        let pieces = std::iter::from_fn(|| {
            let piece = cursor.next_piece(left).filter(|_| left > 0)?;
            left -= piece.len;
            Some((piece.ptr.cast_const(), piece.len as usize))
        });
        // SAFETY: the pieces are leased by their sender until the batch ends, which is after the
        // frames are written.
        if !unsafe { self.outbox.push(id, header, head, pieces) } {
            let copy = self.copy_of(frame);
            self.push_kept(id, header, copy);
        }
        Ok(())
    }

    /// Adds frames that leave as they came in, as many as there is room for. Returns the amount.
    pub(super) fn add_pieces(&mut self, frames: Pieces<'_>) -> Traffic {
        let mut done = Traffic::default();
        if self.fault.is_some() || !self.backlog.is_empty() {
            return done;
        }
        for frame in frames {
            let id = self.lens.len() as u16;
            let more_len = head_len(frame.len()).saturating_sub(frame.head.len());
            let mut longer = [0; MAX_HEAD];
            let mut head = frame.head;
            if more_len > 0 {
                let (own, more) = longer.split_at_mut(head.len());
                own.copy_from_slice(head);
                // SAFETY: the bytes are inside of the rest, which is mapped until the batch is
                // cleared, and of `longer`.
                unsafe { copy_bytes::<SharedMemory>(frame.rest, more.as_mut_ptr(), more_len) };
                head = &longer[..head.len() + more_len];
            }
            let rest = frame.rest.wrapping_add(more_len);
            let rest = [(rest, frame.rest_len as usize - more_len)];
            // SAFETY: a batch is not cleared before its frames are written, and keeps its memory
            // mapped.
            if !unsafe { self.outbox.push(id, PLAIN, head, rest) } {
                break;
            }
            self.lens.push(frame.len());
            done.packets += 1;
            done.bytes += u64::from(frame.len());
        }
        done
    }

    /// Returns a copy of a whole frame with its header.
    fn copy_of(&mut self, frame: &Outgoing<'_>) -> FrameCopy {
        let mut copy = self.backlog.memory();
        copy.extend_from_slice(&header_of(frame));
        copy.extend_from_slice(frame.headers);
        frame.payload.append_to(&mut copy);
        copy
    }

    /// Adds a copy of a frame to the outbox, which stays in `held` until it has left.
    fn push_kept(&mut self, id: u16, header: [u8; HEADER as usize], frame: FrameCopy) {
        let bytes = &frame[HEADER as usize..];
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD));
        let piece = (rest.as_ptr(), rest.len());
        // SAFETY: the bytes are on the heap, and their owner is kept until the outbox is empty.
        let is_added = unsafe { self.outbox.push(id, header, head, [piece]) };
        debug_assert!(is_added, "it has one piece, and there is room");
        self.held.push(frame);
    }

    /// Keeps a copy of a frame, after those that wait.
    #[cold]
    fn keep(&mut self, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        if !self.backlog.has_room() {
            return Err(DropReason::ReceiverFull);
        }
        let copy = self.copy_of(frame);
        self.backlog.push(copy);
        let kept = &mut self.settled.get_or_insert_default().kept;
        kept.packets += 1;
        kept.bytes += u64::from(frame.len());
        Ok(())
    }

    /// Writes what was collected. Returns what became of frames otherwise than was assumed when
    /// they were added.
    pub(super) fn transmit(&mut self, now: Nanos) -> Option<Settlement> {
        self.write(LONGEST_BATCH);
        if !self.backlog.is_empty() && !self.deferred {
            self.retry_at = now + RETRY;
        }
        self.settled.take()
    }

    /// Returns the time of the next try, if the worker does not know it.
    pub(super) fn take_deferral(&mut self) -> Option<Nanos> {
        let new = !self.backlog.is_empty() && !std::mem::replace(&mut self.deferred, true);
        new.then_some(self.retry_at)
    }

    /// Returns what became of frames of the backlog.
    pub(super) fn take_settlement(&mut self) -> Option<Settlement> {
        let mut settled = self.settled.take()?;
        let Traffic { packets, bytes } = std::mem::take(&mut settled.kept);
        settled.delivered.packets = settled.delivered.packets.saturating_sub(packets);
        settled.delivered.bytes = settled.delivered.bytes.saturating_sub(bytes);
        Some(settled)
    }

    /// Writes frames of the backlog if that is due. Returns the time of the next try, if some are
    /// left.
    pub(super) fn retry(&mut self, now: Nanos) -> Option<Nanos> {
        if now < self.retry_at && !self.backlog.is_empty() {
            return Some(self.retry_at);
        }
        while self.write_backlog(LONGEST_BATCH) {}
        self.retry_at = now + RETRY;
        self.deferred = !self.backlog.is_empty();
        self.deferred.then_some(self.retry_at)
    }

    /// Writes what waits once more, and drops the rest. Returns what became of it.
    pub(super) fn end(&mut self) -> Option<Settlement> {
        while self.write_backlog(Duration::MAX) {}
        let mut left = 0;
        while self.backlog.pop().is_some() {
            left += 1;
        }
        self.deferred = false;
        self.add_drops(DropReason::ReceiverFull, left);
        self.take_settlement()
    }

    /// Writes a batch of the backlog. Returns whether all of it left, and more is there.
    fn write_backlog(&mut self, longest: Duration) -> bool {
        let before = self.backlog.len();
        while !self.outbox.is_full()
            && let Some(frame) = self.backlog.pop()
        {
            let id = self.lens.len() as u16;
            let header = std::array::from_fn(|at| frame[at]);
            let len = frame.len() as u32 - HEADER;
            self.lens.push(len);
            // It counts as kept so far; what happens now decides.
            let delivered = &mut self.settled.get_or_insert_default().delivered;
            delivered.packets += 1;
            delivered.bytes += u64::from(len);
            self.push_kept(id, header, frame);
        }
        let count = self.outbox.len();
        self.write(longest);
        count > 0 && !self.backlog.is_empty() && self.backlog.len() == before - count
    }

    /// Writes the outbox, with system calls for at most this time. What the interface does not take
    /// in time goes to the front of the backlog.
    pub(super) fn write(&mut self, longest: Duration) {
        let (began, mut touched) = (Instant::now(), usize::MAX);
        while !self.outbox.is_empty() {
            self.done.clear();
            let (outbox, done) = (&mut self.outbox, &mut self.done);
            let in_time = |_: &[_]| began.elapsed() < longest;
            let stop = self
                .sender
                .send_while(outbox, done, &mut self.interface, in_time);
            self.count_done();
            match stop {
                Ok(Stop::Done) if self.outbox.is_empty() => {}
                Ok(Stop::Done | Stop::Wait | Stop::Retry) => self.keep_rest(),
                // The dummy page is there now, or the frame cannot be read at all.
                Ok(Stop::Fault) if touched == self.outbox.len() => self.drop_first(),
                Ok(Stop::Fault) => {
                    touched = self.outbox.len();
                    self.outbox.first_group().for_each(touch);
                }
                Err(error) => {
                    self.fault.note(&error);
                    self.drop_rest();
                }
            }
        }
        self.lens.clear();
        while let Some(frame) = self.held.pop() {
            self.backlog.reuse(frame);
        }
    }

    /// Counts frames that have left the outbox.
    fn count_done(&mut self) {
        let mut refused = 0;
        for (id, is_sent) in &self.done {
            let len = u64::from(self.lens.get(usize::from(*id)).copied().unwrap_or(0));
            if *is_sent {
                self.counts.frames += 1;
                self.counts.bytes += len;
            } else {
                refused += 1;
                undo(&mut self.settled, len);
            }
        }
        self.add_drops(DropReason::InterfaceRefused, refused);
    }

    fn add_drops(&mut self, reason: DropReason, frames: u64) {
        if frames > 0 {
            let settled = self.settled.get_or_insert_default();
            settled.dropped.push((reason, frames));
        }
    }

    /// Moves the rest of the outbox to the backlog, as far as there is room.
    #[cold]
    fn keep_rest(&mut self) {
        let rest = self.outbox.len();
        let kept = self.backlog.room_for(self.outbox.lens());
        for at in (0..kept).rev() {
            let frame = self.backlog.copy_of(&self.outbox, at);
            self.backlog.put_back(frame);
        }
        self.undo_frames(rest);
        self.add_drops(DropReason::ReceiverFull, (rest - kept) as u64);
        self.outbox.clear();
    }

    /// Drops the first frame: its memory cannot be read.
    #[cold]
    fn drop_first(&mut self) {
        self.done.clear();
        self.outbox.drop_first_group(&mut self.done);
        self.count_done();
    }

    /// Drops all frames.
    #[cold]
    fn drop_rest(&mut self) {
        let count = self.outbox.len();
        self.undo_frames(count);
        self.add_drops(DropReason::ReceiverDown, count as u64);
        self.outbox.clear();
    }

    /// Takes back that the first frames of the outbox count as delivered.
    fn undo_frames(&mut self, count: usize) {
        for len in self.outbox.lens().take(count) {
            undo(&mut self.settled, (len - HEADER).into());
        }
    }
}

/// Returns how many bytes of a frame are copied before it is sent: all of a short one, which is one
/// piece then, and of others enough for coalescing.
fn head_len(len: u32) -> usize {
    let len = len as usize;
    if len <= MAX_HEAD { len } else { HEAD }
}

/// Takes back that a frame of this length counts as delivered.
fn undo(settled: &mut Option<Settlement>, len: u64) {
    let kept = &mut settled.get_or_insert_default().kept;
    kept.packets += 1;
    kept.bytes += len;
}

/// Returns the virtio header of a frame; the system does not look at the number of buffers.
fn header_of(frame: &Outgoing<'_>) -> [u8; HEADER as usize] {
    let (low, high) = header::encode(&frame.offload, 0);
    let mut bytes = [0; HEADER as usize];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    bytes
}

/// Reads a byte of each page of a piece: where the file of guest memory has become shorter, the
/// system could not read it, and this thread gets the dummy page (see the crate `mapping`).
#[cold]
fn touch((start, len): (*const u8, usize)) {
    let mut byte = 0;
    let inside = (0..len).step_by(PAGE).chain(len.checked_sub(1));
    for at in inside {
        // SAFETY: the byte is inside a piece, which is mapped; a copy of it is made, and nothing is
        // done with it.
        unsafe { copy_bytes::<SharedMemory>(start.wrapping_add(at), &raw mut byte, 1) };
    }
}
