//! The processor as copy engine: done when the call returns.

use std::ptr;

use super::Copies;
use crate::copy::copy_bytes;

/// Bytes of a cache line: what is stored at a time past the caches.
const LINE: usize = 64;

/// Copies at once, through the caches. What the paper calls aligned copies (Santos et al., 3.4.1) needs no code here:
/// a frame has the same offset in the sender's and the receiver's buffer, and the system's `memmove` aligns the
/// destination of what is longer than a few registers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Copies for Cpu {
    #[inline(always)]
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: passed on to our caller.
        unsafe { copy_bytes(from, to, len) }
    }
}

/// Copies at once, in stores that are aligned to the destination's lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aligned;

impl Copies for Aligned {
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: passed on to our caller; a line's worth lies within `len` where it is asked for.
        unsafe { by_lines(from, to, len, |from, to| ptr::copy(from, to, LINE)) }
    }
}

/// Copies at once, with stores that go past the caches (non-temporal), aligned to the destination's lines: for what
/// neither this core nor the receiver's will find in a cache anyway.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streaming;

impl Copies for Streaming {
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: passed on to our caller; `by_lines` gives places of a whole line each, aligned at `to`.
        unsafe {
            by_lines(from, to, len, |from, to| stream_line(from, to));
            drain_stores();
        }
    }
}

/// Copies what comes before the destination's first whole line and behind its last one as it is, and each line by
/// `line`. The two ranges may overlap; what is written is then any mix of old bytes.
///
/// # Safety
/// `len` bytes are mapped at both places. A guest may write to either meanwhile.
#[inline(always)]
unsafe fn by_lines(
    from: *const u8,
    to: *mut u8,
    len: usize,
    mut line: impl FnMut(*const u8, *mut u8),
) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: every place is within the first `len` bytes.
    unsafe {
        copy_bytes(from, to, head);
        for at in (head..tail).step_by(LINE) {
            line(from.add(at), to.add(at));
        }
        copy_bytes(from.add(tail), to.add(tail), len - tail);
    }
}

/// # Safety
/// A line is mapped at both places, and `to` is aligned to it.
#[inline(always)]
unsafe fn stream_line(from: *const u8, to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: passed on to our caller; every x86-64 has these instructions.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
        let parts: [__m128i; 4] = std::array::from_fn(|at| _mm_loadu_si128(from.add(at)));
        for (at, part) in parts.into_iter().enumerate() {
            _mm_stream_si128(to.add(at), part);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: passed on to our caller.
    unsafe {
        ptr::copy(from, to, LINE);
    }
}

/// Stores past the caches keep no order with later ones, not even with a store that releases: this does.
#[inline(always)]
fn drain_stores() {
    // SAFETY: every x86-64 has this instruction; it touches no memory.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(engine: &mut impl Copies, skip: usize, from: &[u8]) -> Vec<u8> {
        let mut to = vec![0; from.len() + skip + 1];
        // SAFETY: `to` has so many bytes left behind `skip`.
        unsafe { engine.copy(from.as_ptr(), to[skip..].as_mut_ptr(), from.len()) };
        assert_eq!(to.pop(), Some(0), "a byte too many");
        to.split_off(skip)
    }

    #[test]
    fn every_way_to_copy_copies_every_length_from_and_to_any_alignment() {
        let bytes: Vec<u8> = (0..700).map(|n| (n % 251 + 1) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 640]) {
            for (at, skip) in [(0, 0), (1, 0), (0, 12), (12, 12), (7, 63)] {
                let from = &bytes[at..at + len];
                assert_eq!(copied(&mut Cpu, skip, from), from);
                assert_eq!(copied(&mut Aligned, skip, from), from);
                assert_eq!(copied(&mut Streaming, skip, from), from);
            }
        }
    }

    #[test]
    fn a_hostile_overlap_moves_bytes_and_nothing_else() {
        let mut bytes: Vec<u8> = (0..=255).cycle().take(2048).collect();
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges lie within `bytes`.
        unsafe { Streaming.copy(base.add(64), base.add(100), 1024) };
        let expected: Vec<u8> = (0..=255).cycle().take(2048).collect();
        assert_eq!(bytes[..100], expected[..100]);
        assert_eq!(bytes[1124..], expected[1124..]);
    }
}
