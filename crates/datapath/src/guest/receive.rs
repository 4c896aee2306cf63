//! To-guest direction: filling receive buffers.

use memory::Segment;
use memory::copy::{Cursor, Private, Shared, copy_bytes, prefetch_buffer, store_words};
use port::counters::Traffic;
use port::{BATCH, DropReason, Outgoing, Piece};
use virtio::net;
use virtio::queue::{Chain, Fill, Limit, Taken};

use super::header::{self, Words};
use super::{GuestFault, GuestQueue, SEGMENTS};

/// Receive buffers that are taken ahead when the number of frames is unknown.
const AHEAD: usize = 16;
/// Segments for which capacity is kept: all buffers of a batch in several regions each.
const MAX_SEGMENTS: usize = 4096;
/// Receive buffers that are merged for one frame at most: 64 KiB in buffers of 512 bytes.
const MAX_MERGED: usize = 128;

impl GuestQueue {
    /// Takes buffers for so many frames, as far as available, before the frames come, and
    /// prefetches their first lines from the guest's core.
    pub(super) fn expect(&mut self, frames: usize) {
        if self.is_masked() {
            return;
        }
        let ahead = self.chains.len() - self.spent;
        let room = BATCH.saturating_sub(self.chains.len());
        self.queue.expect_used(frames as u16);
        // A fault is found and reported again when a frame needs a buffer.
        let _ = self.take_ahead(frames.saturating_sub(ahead).min(room));
    }

    /// Copies frames with their headers into the buffers that were taken ahead, one each, up to the
    /// first frame that does not fit. Used only without a dirty log.
    #[inline(always)]
    pub(super) fn fill_each<'a>(
        &mut self,
        frames: impl Iterator<Item = (Words, Piece<'a>)>,
    ) -> Traffic {
        let mut copying = Copying {
            segments: &self.segments,
            header: self.header,
            frames,
            written: 0,
        };
        let ready = &self.chains[self.spent..];
        let count = self.queue.put_filled(ready, &mut copying);
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
    fn fill_pieces(&mut self, frame: &Outgoing<'_>, merge: bool) -> Result<(), DropReason> {
        let need = self.header + frame.len();
        let count = self.reserve(need, merge)?;
        // SAFETY: the queue holds the GuestMemory that its segments came from, and is borrowed
        // until they are used no more.
        let mut target = unsafe { Cursor::new(self.memory_of(count)) };
        let (low, high) = header::encode(&frame.offload, count as u16);
        target.write_words(low, high, self.header as usize);
        target.write(frame.headers);
        let (mut payload, len) = (frame.payload.cursor(), frame.payload.len());
        target.copy_from(&mut payload, len);
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
                self.take_ahead(AHEAD)?;
            }
            let Some(chain) = self.chains.get(self.spent + count) else {
                self.congestion.found_none();
                return Err(DropReason::ReceiverFull);
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

    /// Takes the next `count` buffers, or as many as are available.
    fn take_ahead(&mut self, count: usize) -> Result<(), DropReason> {
        if self.spent == self.chains.len() {
            self.forget_taken();
        }
        let mut taken = Taken {
            segs: &mut self.segments,
            chains: &mut self.chains,
        };
        let limit = Limit {
            chains: count,
            bytes: u64::MAX,
        };
        let fetch = |buffer: &Segment| prefetch_buffer(buffer, net::LEN);
        let result = self.queue.take_all_writable(&mut taken, limit, fetch);
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
        self.queue.put_filled(chains, &mut Spread(written));
        self.spent += count;
    }
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
        copy_bytes::<Private>(frame.head.as_ptr(), to, head);
        if rest > 0 {
            copy_bytes::<Shared>(frame.rest, to.add(head), rest);
        }
    }
}
