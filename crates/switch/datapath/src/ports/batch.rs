//! A batch of frames leased from one queue pair.

use std::ops::Range;

use memory::Segment;
use memory::copy::{Cursor, SharedMemory, copy_bytes};
use port::counters::Traffic;
use port::{DropReason, Offload};
use wire::flow::{FlowKey, PLAIN_HEAD};
use wire::vlan::{CAP, HeaderBuf};

use super::budget::Cost;
use super::payload::Payload;

/// Most frames in a batch.
pub const BATCH: usize = 64;

/// Limit of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimit {
    /// Frames, [`BATCH`] at most.
    pub frames: usize,
    /// Bytes after which no further frame is taken.
    pub bytes: u64,
}

impl BatchLimit {
    /// The limit that no batch exceeds by more than a frame.
    pub const MOST: Self = Self {
        frames: BATCH,
        bytes: 256 << 10,
    };
}

/// Bytes of a frame's private head at first: one line, copied in registers, with all fields that
/// almost every frame needs. [`Batch::deepen`] copies more. Frames with offloads have all at once.
pub const SHALLOW: usize = 64;

/// A frame that leaves as it came in, in two pieces: no change, no offload.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The checked, private first bytes.
    pub head: &'a [u8],
    /// The rest, mapped as long as the batch is not cleared.
    pub rest: *const u8,
    /// Bytes of the rest.
    pub rest_len: u32,
}

impl Piece<'_> {
    /// Returns the length in bytes.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a frame is never empty
    pub fn len(&self) -> u32 {
        self.head.len() as u32 + self.rest_len
    }
}

/// Frames of a batch that leave as they came in; see [`Batch::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    frames: std::slice::Iter<'a, Frame>,
    longest: u32,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Piece<'a>> {
        let frame = self.frames.next()?;
        if frame.rest.is_null() || frame.len() > self.longest {
            return None;
        }
        Some(Piece {
            head: frame.headers.as_slice(),
            rest: frame.rest,
            rest_len: frame.payload_len,
        })
    }
}

/// One leased frame.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Frame {
    /// Work left to the receiver.
    pub offload: Offload,
    segments: Range<u32>,
    /// Bytes of the segments that come before the payload.
    skip: u32,
    payload_len: u32,
    /// Start of the payload, if it lies in one piece and there is no offload; else null.
    rest: *const u8,
    /// A private copy of the first bytes, made once; the bytes that are checked here are delivered.
    /// Last, so that a shallow frame is two cache lines.
    pub headers: HeaderBuf,
}

// SAFETY: the pointer is an address in memory that the batch's filler keeps mapped; code that reads
// there argues for that (see `Batch::push`).
unsafe impl Send for Frame {}

impl Default for Frame {
    fn default() -> Self {
        Self {
            offload: Offload::default(),
            segments: 0..0,
            skip: 0,
            payload_len: 0,
            rest: std::ptr::null(),
            headers: HeaderBuf::default(),
        }
    }
}

impl Frame {
    /// Returns the length in bytes, as taken.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a frame is never empty
    pub fn len(&self) -> u32 {
        self.headers.len() as u32 + self.payload_len
    }

    /// Returns the frame's Ethernet header in two words, if no other field of the frame must be
    /// examined; see [`FlowKey::ethernet_words`].
    #[inline(always)]
    #[must_use]
    pub fn ethernet_words(&self) -> Option<(u64, u64)> {
        if !self.offload.is_nothing() {
            return None;
        }
        self.ethernet()
    }

    /// Returns the same of a frame with any offload, which must have been checked.
    #[inline(always)]
    #[must_use]
    pub fn ethernet(&self) -> Option<(u64, u64)> {
        FlowKey::ethernet_words(self.headers.first()?)
    }

    /// Returns the frame's first bytes, if no other field of the frame must be examined.
    #[inline(always)]
    #[must_use]
    pub fn plain_head(&self) -> Option<&[u8; PLAIN_HEAD]> {
        let head = self.headers.first()?;
        self.offload.is_nothing().then_some(head)
    }
}

/// Place of a frame in its sender's memory, if it is in one piece.
#[derive(Clone, Copy, Debug)]
pub struct FramePlace {
    /// Its segment in the batch's arena.
    pub at: u32,
    /// Its first byte.
    pub from: *const u8,
    /// Bytes of the segment before that.
    pub skip: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Copies the first bytes of a frame, at most [`SHALLOW`]. Returns their number.
///
/// # Safety
/// The frame is mapped.
#[inline(always)]
unsafe fn snapshot(headers: &mut HeaderBuf, whole: &FramePlace) -> u32 {
    // SAFETY: the caller guarantees that `len` bytes are mapped, and no more are read.
    unsafe {
        if whole.len >= SHALLOW as u32 {
            let block = headers.fill_block::<SHALLOW>();
            copy_bytes::<SharedMemory>(whole.from, block.as_mut_ptr(), SHALLOW);
            return SHALLOW as u32;
        }
        let bytes = headers.fill(whole.len as usize);
        copy_bytes::<SharedMemory>(whole.from, bytes.as_mut_ptr(), bytes.len());
        bytes.len() as u32
    }
}

/// A frame that was taken and dropped at once.
#[derive(Clone, Copy, Debug)]
struct TakenDrop {
    /// Number of frames of the batch that were taken before it.
    behind: usize,
    reason: DropReason,
    len: u32,
}

/// Frames leased from one queue pair, with the arena of segments that they point into. Reused from
/// batch to batch: nothing is allocated once it has grown.
#[derive(Debug)]
pub struct Batch {
    frames: Box<[Frame]>,
    len: usize,
    segments: Vec<Segment>,
    taken: Traffic,
    /// Frames that were taken and dropped at once: almost never any.
    drops: Vec<TakenDrop>,
    limit: BatchLimit,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            frames: std::iter::repeat_with(Frame::default).take(BATCH).collect(),
            len: 0,
            segments: Vec::with_capacity(4 * BATCH),
            taken: Traffic::default(),
            drops: Vec::with_capacity(BATCH),
            limit: BatchLimit::MOST,
        }
    }

    /// Sets the limit of the next batches.
    pub fn set_limit(&mut self, limit: BatchLimit) {
        self.limit = BatchLimit {
            frames: limit.frames.clamp(1, BATCH),
            ..limit
        };
    }

    /// Returns the limit.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> BatchLimit {
        self.limit
    }

    /// Leaves only the first `frames` frames in the batch, with what was dropped between them, as
    /// if the others had not been taken. Returns the number of taken frames that stay, the dropped
    /// ones included.
    pub fn cut(&mut self, frames: usize) -> usize {
        let Some(cut) = self.frames[..self.len].get(frames..) else {
            return self.len + self.drops.len();
        };
        let mut left = Traffic {
            packets: cut.len() as u64,
            bytes: cut.iter().map(|frame| u64::from(frame.len())).sum(),
        };
        let kept = self.drops.partition_point(|drop| drop.behind <= frames);
        for drop in self.drops.drain(kept..) {
            left.packets += 1;
            left.bytes += u64::from(drop.len);
        }
        self.taken.packets -= left.packets;
        self.taken.bytes -= left.bytes;
        self.len = frames;
        frames + kept
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.len = 0;
        self.segments.clear();
        self.taken = Traffic::default();
        self.drops.clear();
    }

    /// Returns whether the batch has reached its limit.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len >= self.limit.frames || self.taken.bytes >= self.limit.bytes
    }

    /// Returns whether the batch has reached a limit that is set for the sake of other senders, so
    /// that its sender may have more frames while others want the worker.
    #[inline]
    #[must_use]
    pub fn is_cut_for_others(&self) -> bool {
        self.limit.bytes < BatchLimit::MOST.bytes && self.is_full()
    }

    /// Returns whether no frame was taken, not even one that was dropped.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.taken.packets == 0
    }

    /// Returns the arena, for ports to append a frame's segments to before [`Batch::push`].
    #[inline]
    pub fn segments_mut(&mut self) -> &mut Vec<Segment> {
        &mut self.segments
    }

    /// Reads the first twelve bytes of a frame's segments as two little-endian numbers, without
    /// taking them as part of the frame: the virtio header. Missing bytes are 0; `None` when there
    /// are fewer than `least`.
    ///
    /// # Safety
    /// The memory behind the segments in `range` is mapped.
    #[inline]
    pub unsafe fn peek_words(&self, range: &Range<u32>, least: usize) -> Option<(u64, u32)> {
        let segments = &self.segments[range.start as usize..range.end as usize];
        // SAFETY: the caller keeps the memory mapped.
        unsafe { Cursor::new(segments) }.read_words(least)
    }

    /// Adds a frame of `len` bytes that starts `skip` bytes into the segments of `range`. The
    /// headers are copied now, once.
    ///
    /// # Safety
    /// The memory behind these segments stays mapped until the batch is cleared or dropped, and
    /// they hold at least `skip + len` bytes.
    ///
    /// # Panics
    /// When the batch is full.
    #[inline]
    pub unsafe fn push(&mut self, range: Range<u32>, skip: u32, len: u32, offload: Offload) {
        let segments = &self.segments[range.start as usize..range.end as usize];
        if let [only] = segments
            && only.len >= skip + len
            && offload.is_nothing()
        {
            let whole = FramePlace {
                at: range.start,
                from: only.ptr.wrapping_add(skip as usize),
                skip,
                len,
            };
            // SAFETY: the caller keeps the memory mapped.
            let pushed = unsafe { self.push_wholes(|_| std::iter::once(whole)) };
            assert_eq!(pushed, 1, "the batch is full");
            return;
        }
        let frame = &mut self.frames[self.len];
        let depth = if offload.is_nothing() { SHALLOW } else { CAP };
        let snapshot = frame.headers.fill((len as usize).min(depth));
        let held = snapshot.len() as u32;
        // SAFETY: the caller keeps the memory mapped.
        let mut cursor = unsafe { Cursor::new(segments) };
        cursor.skip(skip);
        cursor.read(snapshot);
        frame.offload = offload;
        frame.segments = range;
        frame.skip = skip + held;
        frame.payload_len = len - held;
        frame.rest = std::ptr::null();
        self.len += 1;
        self.count_taken(len);
    }

    /// Adds frames that lie in one segment each and have no offload, as almost every frame does, up
    /// to the end of the iterator. `wholes` creates the frames, of the arena. Returns their number.
    ///
    /// # Safety
    /// As [`Batch::push`], for every frame that is yielded.
    #[inline(always)]
    pub unsafe fn push_wholes<'a, I: Iterator<Item = FramePlace>>(
        &'a mut self,
        wholes: impl FnOnce(&'a [Segment]) -> I,
    ) -> usize {
        let (mut count, mut bytes) = (0, 0);
        for (frame, whole) in self.frames[self.len..]
            .iter_mut()
            .zip(wholes(&self.segments))
        {
            // SAFETY: the caller guarantees that `len` bytes are mapped there.
            let held = unsafe { snapshot(&mut frame.headers, &whole) };
            frame.offload = Offload::default();
            frame.segments = whole.at..whole.at + 1;
            frame.skip = whole.skip + held;
            frame.payload_len = whole.len - held;
            frame.rest = whole.from.wrapping_add(held as usize);
            count += 1;
            bytes += u64::from(whole.len);
        }
        self.len += count;
        self.taken.packets += count as u64;
        self.taken.bytes += bytes;
        count
    }

    /// Records a frame that was taken and dropped at once.
    pub fn drop_taken(&mut self, reason: DropReason, len: u32) {
        let behind = self.len;
        self.drops.push(TakenDrop {
            behind,
            reason,
            len,
        });
        self.count_taken(len);
    }

    #[inline]
    fn count_taken(&mut self, len: u32) {
        self.taken.packets += 1;
        self.taken.bytes += u64::from(len);
    }

    /// Returns everything taken, dropped frames included.
    #[must_use]
    pub fn taken(&self) -> Traffic {
        self.taken
    }

    /// Returns the frames that were dropped while taking, with their lengths in bytes.
    pub fn dropped(&self) -> impl Iterator<Item = u32> + '_ {
        self.drops.iter().map(|drop| drop.len)
    }

    /// Returns the drops recorded while taking.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.iter().map(|drop| (drop.reason, 1))
    }

    /// Returns the frames.
    #[inline]
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// Returns the bytes of some of the frames.
    #[inline]
    #[must_use]
    pub fn bytes(&self, frames: Range<usize>) -> u64 {
        let frames = self.frames().get(frames).unwrap_or_default();
        frames.iter().map(|frame| u64::from(frame.len())).sum()
    }

    /// Returns the cost of some of the frames on the wire, behind a link that pads them to
    /// `shortest` bytes. Their offloads have been checked.
    #[inline]
    #[must_use]
    pub fn cost(&self, frames: Range<usize>, shortest: u32) -> Cost {
        let frames = self.frames().get(frames).unwrap_or_default();
        let costs = frames
            .iter()
            .map(|frame| Cost::of_padded(frame.len(), &frame.offload, shortest));
        costs.fold(Cost::default(), |sum, cost| sum + cost)
    }

    /// Makes a frame's private head as long as possible, for checks beyond Ethernet. Bytes that
    /// were copied before stay as they are; the others are read now, once.
    pub fn deepen(&mut self, index: usize) {
        let frame = &mut self.frames[..self.len][index];
        let missing = CAP.saturating_sub(frame.headers.len());
        let range = frame.segments.start as usize..frame.segments.end as usize;
        // SAFETY: `push`'s caller keeps the memory mapped as long as the frame is in the batch.
        let mut cursor = unsafe { Cursor::new(&self.segments[range]) };
        cursor.skip(frame.skip);
        // Where a tag was removed, there may be less room than is missing.
        let more = frame
            .headers
            .extend(missing.min(frame.payload_len as usize));
        cursor.read(more);
        frame.skip += more.len() as u32;
        frame.payload_len -= more.len() as u32;
        if !frame.rest.is_null() {
            frame.rest = frame.rest.wrapping_add(more.len());
        }
    }

    /// Gives these frames the tag of VLAN `vid`, or none, in place of their outer one, whose
    /// priority they keep; up to the first one that is in several pieces, has an offload, or would
    /// be left with a second tag as its outer one. Returns their number. A repetition changes
    /// nothing.
    pub fn retag(&mut self, frames: Range<usize>, vid: Option<u16>) -> usize {
        let frames = self.frames[..self.len].get_mut(frames).unwrap_or_default();
        let retag = |frame: &mut Frame| !frame.rest.is_null() && frame.headers.retag(vid);
        let failed = frames.iter_mut().position(|frame| !retag(frame));
        failed.unwrap_or(frames.len())
    }

    /// Sets the priority of the tags of these frames.
    pub fn set_priority(&mut self, frames: Range<usize>, pcp: u8) {
        let frames = self.frames[..self.len].get_mut(frames).unwrap_or_default();
        for frame in frames {
            frame.headers.set_priority(pcp);
        }
    }

    /// Returns these frames with their tags, up to the first one that cannot leave as it is:
    /// because it is longer than `longest` bytes, in several pieces, or has an offload.
    #[inline]
    #[must_use]
    pub fn pieces(&self, frames: Range<usize>, longest: u32) -> Pieces<'_> {
        let frames = self.frames[..self.len].get(frames).unwrap_or_default();
        Pieces {
            frames: frames.iter(),
            longest,
        }
    }

    /// Returns a frame's private headers, to be changed, with its payload.
    #[inline(always)]
    pub fn split(&mut self, index: usize) -> (&mut HeaderBuf, Payload<'_>, &mut Offload) {
        let frame = &mut self.frames[..self.len][index];
        let range = frame.segments.start as usize..frame.segments.end as usize;
        // SAFETY: `push`'s caller keeps the memory mapped as long as the frame is in the batch.
        let payload = unsafe { Payload::new(&self.segments[range], frame.skip, frame.payload_len) };
        (&mut frame.headers, payload, &mut frame.offload)
    }
}
