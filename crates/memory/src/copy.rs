//! Walking and copying scattered guest memory. This is the one place that touches frame bytes.

use std::ptr;

use crate::Segment;

/// Bytes of a cache line.
const LINE: u32 = 64;

/// Has the first lines of a segment brought near, for a frame's head: nothing is read.
#[inline]
pub fn prefetch(segment: &Segment) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let second = segment
            .ptr
            .wrapping_add(segment.len.min(LINE + 1) as usize - 1);
        // SAFETY: a hint; no address can make it fault.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(segment.ptr.cast());
            _mm_prefetch::<_MM_HINT_T0>(second.cast());
        }
    }
    let _ = segment;
}

/// The same for memory that is about to be written: it is taken from other cores.
#[inline]
pub fn prefetch_for_write(segment: &Segment) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let second = segment
            .ptr
            .wrapping_add(segment.len.min(LINE + 1) as usize - 1);
        // SAFETY: a hint; no address can make it fault.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>(segment.ptr.cast());
            _mm_prefetch::<_MM_HINT_ET0>(second.cast());
        }
    }
    let _ = segment;
}

/// A position in a list of segments that moves forward only.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that are behind us.
    used: u32,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first byte.
    ///
    /// # Safety
    /// The memory behind every segment stays mapped for `'a`: the caller holds the `GuestMemory` (or
    /// the private buffer) that they came from.
    #[inline]
    #[must_use]
    pub unsafe fn new(segments: &'a [Segment]) -> Self {
        Self { segments, used: 0 }
    }

    /// The next contiguous piece, at most `max` bytes, or `None` at the end.
    #[inline]
    pub fn next_piece(&mut self, max: u32) -> Option<Segment> {
        let first = self.segments.first()?;
        let len = max.min(first.len - self.used);
        let piece = first.slice(self.used, len);
        self.used += len;
        if self.used == first.len {
            self.segments = &self.segments[1..];
            self.used = 0;
        }
        Some(piece)
    }

    /// Moves `n` bytes on; stops at the end. Returns the bytes skipped.
    #[inline]
    pub fn skip(&mut self, n: u32) -> u32 {
        let mut left = n;
        while left > 0 {
            let Some(piece) = self.next_piece(left) else {
                break;
            };
            left -= piece.len;
        }
        n - left
    }

    /// Copies the next bytes into private memory. Returns how many there were.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let want = u32::try_from(out.len() - done).unwrap_or(u32::MAX);
            let Some(piece) = self.next_piece(want) else {
                break;
            };
            // SAFETY: `new`'s caller keeps the piece mapped; `out` is private and has `piece.len` bytes
            // left from `done`. The guest may write meanwhile: what is read is then any mix of bytes.
            unsafe {
                ptr::copy_nonoverlapping(piece.ptr, out.as_mut_ptr().add(done), piece.len as usize);
            }
            done += piece.len as usize;
        }
        done
    }

    /// Copies private bytes to the next positions. Returns how many found room.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len() {
            let want = u32::try_from(from.len() - done).unwrap_or(u32::MAX);
            let Some(piece) = self.next_piece(want) else {
                break;
            };
            // SAFETY: `new`'s caller keeps the piece mapped; `from` has `piece.len` bytes left.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr().add(done), piece.ptr, piece.len as usize);
            }
            done += piece.len as usize;
        }
        done
    }

    /// Writes twelve bytes, given as they lie in memory in two little-endian numbers: from registers, where a
    /// copy would read back what has just been stored in other pieces. Returns how many found room.
    #[inline]
    pub fn write_words(&mut self, low: u64, high: u32) -> usize {
        match self.segments.first() {
            Some(first) if first.len - self.used >= 12 => {
                let at = first.ptr.wrapping_add(self.used as usize);
                // SAFETY: `new`'s caller keeps the segment mapped, which has twelve bytes left.
                unsafe {
                    at.cast::<u64>().write_unaligned(low.to_le());
                    at.add(8).cast::<u32>().write_unaligned(high.to_le());
                }
                self.skip(12);
                12
            }
            _ => {
                let mut bytes = [0; 12];
                bytes[..8].copy_from_slice(&low.to_le_bytes());
                bytes[8..].copy_from_slice(&high.to_le_bytes());
                self.write(&bytes)
            }
        }
    }

    /// Copies up to `len` bytes from another guest's memory to the next positions. Returns how many were
    /// copied: fewer when either side ends.
    #[inline]
    pub fn copy_from(&mut self, from: &mut Cursor<'_>, len: u32) -> u32 {
        let mut left = len;
        while left > 0 {
            let Some(room) = self.segments.first().map(|s| s.len - self.used) else {
                break;
            };
            let Some(source) = from.next_piece(left.min(room)) else {
                break;
            };
            let Some(target) = self.next_piece(source.len) else {
                break;
            };
            // SAFETY: both cursors' makers keep the pieces mapped; target is as long as source. Two
            // guests may have been given the same memory by a hostile VMM, so they may overlap.
            unsafe { ptr::copy(source.ptr, target.ptr, source.len as usize) };
            left -= source.len;
        }
        len - left
    }
}
