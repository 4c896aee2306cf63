//! Traversal and copying of scattered guest memory. Only this module accesses frame bytes, as the
//! section [Concurrency](crate#concurrency) says.

#[cfg(not(miri))]
use std::ptr;
use std::sync::OnceLock;
#[cfg(miri)]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::Segment;

/// Bytes of a cache line.
const LINE: u32 = 64;

/// Longest piece that is copied in registers.
const SHORT: usize = 256;

/// The widest word of a copy.
#[cfg(target_arch = "x86_64")]
type Wide = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Wide = u128;

/// A word at any address.
#[cfg(not(miri))]
#[repr(C, packed)]
struct UnalignedWord<W>(W);

/// The kind of memory that a copy reads.
pub trait Source {
    /// Loads a word, at any alignment.
    ///
    /// # Safety
    /// It is mapped; every bit pattern is a `W`.
    unsafe fn load<W: Copy>(at: *const u8) -> W;
}

/// Memory that a guest, or another process, may write meanwhile: a word is loaded once (see
/// [Concurrency](crate#concurrency)).
#[derive(Debug)]
pub enum SharedMemory {}

/// Memory of this thread's own.
#[derive(Debug)]
pub enum PrivateMemory {}

impl Source for SharedMemory {
    #[cfg(not(miri))]
    #[inline(always)]
    unsafe fn load<W: Copy>(at: *const u8) -> W {
        // SAFETY: the caller keeps the word mapped; the type has no alignment. Others may write
        // meanwhile, see the crate's section on concurrency: the load is volatile.
        unsafe { at.cast::<UnalignedWord<W>>().read_volatile() }.0
    }

    #[cfg(miri)]
    unsafe fn load<W: Copy>(at: *const u8) -> W {
        let mut word = std::mem::MaybeUninit::<W>::uninit();
        for i in 0..size_of::<W>() {
            // SAFETY: as above, for each byte; `word` has as many.
            unsafe {
                let byte = AtomicU8::from_ptr(at.add(i).cast_mut()).load(Ordering::Relaxed);
                word.as_mut_ptr().cast::<u8>().add(i).write(byte);
            }
        }
        // SAFETY: all bytes were written, and every bit pattern is a `W`.
        unsafe { word.assume_init() }
    }
}

impl Source for PrivateMemory {
    #[inline(always)]
    unsafe fn load<W: Copy>(at: *const u8) -> W {
        // SAFETY: the caller's word is readable, and unaligned reads need no more.
        unsafe { at.cast::<W>().read_unaligned() }
    }
}

/// Stores a word, at any alignment. A guest may write it meanwhile: it is not read back.
///
/// # Safety
/// It is mapped.
#[inline(always)]
unsafe fn store<W: Copy>(at: *mut u8, word: W) {
    // SAFETY: the caller keeps the word mapped; unaligned writes need no more.
    #[cfg(not(miri))]
    unsafe {
        at.cast::<W>().write_unaligned(word);
    }
    #[cfg(miri)]
    for i in 0..size_of::<W>() {
        // SAFETY: as above, for each byte of a word without padding.
        unsafe {
            let byte = (&raw const word).cast::<u8>().add(i).read();
            AtomicU8::from_ptr(at.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

/// Copies `len` bytes; short pieces in registers, without a call. The two ranges may overlap,
/// because a hostile VMM may give the same memory to two guests: short pieces are then any mix of
/// old bytes.
///
/// # Safety
/// `len` bytes are mapped at both places. A guest may write to the target meanwhile, and to a
/// [`SharedMemory`] source.
#[inline(always)]
pub unsafe fn copy_bytes<S: Source>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every word lies within the first `len` bytes, which the caller keeps mapped.
    unsafe {
        match len {
            // The head of almost every frame.
            64 => copy_words::<S, Wide, 4>(from, to, 0),
            0..4 => {
                for at in 0..len {
                    copy_words::<S, u8, 1>(from, to, at);
                }
            }
            4..8 => copy_ends::<S, u32, 1>(from, to, len),
            8..16 => copy_ends::<S, u64, 1>(from, to, len),
            16..32 => copy_ends::<S, Wide, 1>(from, to, len),
            32..64 => copy_ends::<S, Wide, 2>(from, to, len),
            65..=SHORT => {
                let mut at = 0;
                while at + 64 < len {
                    copy_words::<S, Wide, 4>(from, to, at);
                    at += 64;
                }
                copy_words::<S, Wide, 4>(from, to, len - 64);
            }
            // Bytes that are on their way and not looked at.
            #[cfg(not(miri))]
            _ => ptr::copy(from, to, len),
            #[cfg(miri)]
            _ => copy_long::<S>(from, to, len),
        }
    }
}

/// Returns whether a copy of `len` bytes is *misaligned*: long, so that the C library makes it line
/// by line, between places at different offsets in their cache lines. Each line that is written
/// then needs two that are read. Short copies are made in registers, where that matters little.
#[inline(always)]
#[must_use]
pub fn is_misaligned(from: *const u8, to: *const u8, len: usize) -> bool {
    len > SHORT && !(from.addr() ^ to.addr()).is_multiple_of(LINE as usize)
}

/// Copies as `memmove` does, in steps that Miri can tell from races.
///
/// # Safety
/// As [`copy_bytes`].
#[cfg(miri)]
unsafe fn copy_long<S: Source>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller keeps `len` bytes mapped at both places.
    let bytes: Vec<u8> = (0..len)
        .map(|at| unsafe { S::load(from.add(at)) })
        .collect();
    for (at, byte) in bytes.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { store(to.add(at), byte) };
    }
}

/// Copies the first and the last `N` words of `len` bytes, which are all when `len` is at most
/// twice as long as they are.
///
/// # Safety
/// As [`copy_bytes`]; `N` words are not longer than `len`.
#[inline(always)]
unsafe fn copy_ends<S: Source, W: Copy, const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller keeps `len` bytes mapped; both blocks lie within them.
    unsafe {
        copy_words::<S, W, N>(from, to, 0);
        copy_words::<S, W, N>(from, to, len - N * size_of::<W>());
    }
}

/// Copies `N` words at `at`, through registers.
///
/// # Safety
/// They are mapped at both places, and every bit pattern is a `W`.
#[inline(always)]
unsafe fn copy_words<S: Source, W: Copy, const N: usize>(from: *const u8, to: *mut u8, at: usize) {
    let offset = |i| at + i * size_of::<W>();
    // SAFETY: the caller keeps the words mapped.
    let words: [W; N] = std::array::from_fn(|i| unsafe { S::load(from.add(offset(i))) });
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { store(to.add(offset(i)), word) };
    }
}

/// Loads twelve bytes as two little-endian numbers.
///
/// # Safety
/// They are mapped. A guest may write to them meanwhile.
#[inline(always)]
pub unsafe fn load_words(at: *const u8) -> (u64, u32) {
    // SAFETY: the caller keeps the bytes mapped; every bit pattern is a number.
    unsafe {
        (
            u64::from_le(SharedMemory::load(at)),
            u32::from_le(SharedMemory::load(at.add(8))),
        )
    }
}

/// Stores twelve bytes, and writes only those that differ: a line that does not change stays in the
/// cache of the guest that reads it. The old bytes decide nothing else.
///
/// # Safety
/// They are mapped. A guest may write to them meanwhile.
#[inline(always)]
pub unsafe fn store_words(at: *mut u8, low: u64, high: u32) {
    // A plain load becomes a part of the comparison: an instruction less for each frame. Repeated
    // or torn, it is still nothing but a reason to store.
    #[cfg(not(miri))]
    type OldBytes = PrivateMemory;
    #[cfg(miri)]
    type OldBytes = SharedMemory;
    // SAFETY: the caller keeps the bytes mapped; every bit pattern is a number.
    unsafe {
        let (old_low, old_high): (u64, u32) = (OldBytes::load(at), OldBytes::load(at.add(8)));
        if old_low != low.to_le() {
            store(at, low.to_le());
        }
        if old_high != high.to_le() {
            store(at.add(8), high.to_le());
        }
    }
}

/// Prefetches the line of `at`: nothing is read.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    // SAFETY: a hint; no address can make it fault.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    let _ = at;
}

/// Prefetches the line of `at` for a write: it is taken from other cores.
#[inline(always)]
pub fn prefetch_line_for_write(at: *const u8) {
    // The instruction itself: the compiler's intrinsic becomes a prefetch for reading where the
    // target is any x86-64. Older CPUs execute it as a no-op.
    // SAFETY: a hint; no address can make it fault.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    let _ = at;
}

/// Prefetches the first lines of a segment, for a frame's head.
#[inline]
pub fn prefetch(segment: &Segment) {
    let last = segment.len.clamp(1, LINE + 1) as usize - 1;
    prefetch_line(segment.ptr);
    prefetch_line(segment.ptr.wrapping_add(last));
}

/// Prefetches a receive buffer's first lines: bytes after a header of `header` bytes will be
/// written. A line with nothing but the header is only read, because it rarely changes, and then
/// the guest keeps its copy.
#[inline]
pub fn prefetch_buffer(segment: &Segment, header: usize) {
    let head = segment.ptr.wrapping_add(header);
    if segment.ptr.addr() / LINE as usize != head.addr() / LINE as usize {
        prefetch_line(segment.ptr);
    }
    prefetch_line_for_write(head);
    prefetch_line_for_write(head.wrapping_add(LINE as usize - 1));
}

/// Whether [`prefetch_buffer`] is of use, once it is decided.
static OF_USE: OnceLock<bool> = OnceLock::new();

/// Decides about [`prefetches_buffers`] in place of the CPU's vendor, before it is called first:
/// for measurements.
pub fn decide_prefetches(on: bool) {
    let _ = OF_USE.set(on);
}

/// Returns whether [`prefetch_buffer`] is of use on this CPU; decided once, by its vendor.
///
/// A guest has last read the lines of a receive buffer on another core. On CPUs of AMD the prefetch
/// moves them before the copy needs them. On an Intel Xeon it made copies to such lines 1.6 to 3.2
/// times slower, so CPUs of other vendors do not get it. On other architectures than x86-64 it is
/// no instruction at all.
#[inline]
#[must_use]
pub fn prefetches_buffers() -> bool {
    *OF_USE.get_or_init(|| cpu_vendor().is_some_and(|vendor| prefetches_on(&vendor)))
}

/// Returns whether buffers are prefetched on CPUs of a vendor.
fn prefetches_on(vendor: &[u8; 12]) -> bool {
    // Hygon's are AMD's design.
    matches!(vendor, b"AuthenticAMD" | b"HygonGenuine")
}

/// Returns the vendor as the CPU names it.
fn cpu_vendor() -> Option<[u8; 12]> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        let mut vendor = [0; 12];
        for (to, from) in vendor
            .chunks_exact_mut(4)
            .zip([leaf.ebx, leaf.edx, leaf.ecx])
        {
            to.copy_from_slice(&from.to_le_bytes());
        }
        Some(vendor)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

/// A position in a list of segments that moves forward only.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that were passed.
    used: u32,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the first byte.
    ///
    /// # Safety
    /// The memory of every segment stays mapped for `'a`: the caller holds the `GuestMemory` (or
    /// the private buffer) that they came from.
    #[inline]
    #[must_use]
    pub unsafe fn new(segments: &'a [Segment]) -> Self {
        Self { segments, used: 0 }
    }

    /// Returns the next contiguous piece, at most `max` bytes, or `None` at the end.
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

    /// Advances by `n` bytes; stops at the end. Returns the bytes skipped.
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

    /// Returns the address of the next byte; `None` at the end.
    #[inline]
    #[must_use]
    pub fn place(&self) -> Option<*const u8> {
        let first = self.segments.first()?;
        Some(first.ptr.wrapping_add(self.used as usize))
    }

    /// Copies the next bytes into private memory. Returns their number.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let want = u32::try_from(out.len() - done).unwrap_or(u32::MAX);
            let Some(piece) = self.next_piece(want) else {
                break;
            };
            let len = piece.len as usize;
            // SAFETY: `new`'s caller keeps the piece mapped; `out` is private and has `len` bytes
            // left from `done`.
            unsafe { copy_bytes::<SharedMemory>(piece.ptr, out.as_mut_ptr().add(done), len) };
            if len > SHORT {
                // The compiler takes the source for changed: it reads the copy, and not the source
                // in place of it.
                compiler_fence(Ordering::AcqRel);
            }
            done += len;
        }
        done
    }

    /// Copies private bytes to the next positions. Returns the number that found room.
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
                copy_bytes::<PrivateMemory>(from.as_ptr().add(done), piece.ptr, piece.len as usize);
            }
            done += piece.len as usize;
        }
        done
    }

    /// Loads the next twelve bytes as two little-endian numbers into registers: bytes that were
    /// stored a moment ago could not be read back whole before every store has left the core.
    /// Missing bytes are 0; `None` when there are fewer than `least`.
    #[inline]
    pub fn read_words(&mut self, least: usize) -> Option<(u64, u32)> {
        if let Some(first) = self.segments.first()
            && first.len - self.used > 12
        {
            let at = first.ptr.wrapping_add(self.used as usize);
            self.used += 12;
            // SAFETY: `new`'s caller keeps the segment mapped, which has more than twelve bytes
            // left.
            return Some(unsafe { load_words(at) });
        }
        let mut bytes = [0; 12];
        let enough = self.read(&mut bytes) >= least;
        // SAFETY: twelve bytes of our own.
        enough.then(|| unsafe { load_words(bytes.as_mut_ptr()) })
    }

    /// Stores the next twelve bytes, given as two little-endian numbers, or the first `len` of
    /// them. Returns the number that found room.
    #[inline]
    pub fn write_words(&mut self, low: u64, high: u32, len: usize) -> usize {
        match self.segments.first() {
            Some(first) if len >= 12 && first.len - self.used >= 12 => {
                let at = first.ptr.wrapping_add(self.used as usize);
                // SAFETY: `new`'s caller keeps the segment mapped, which has twelve bytes left.
                unsafe { store_words(at, low, high) };
                self.skip(12);
                12
            }
            _ => {
                let mut bytes = [0; 12];
                bytes[..8].copy_from_slice(&low.to_le_bytes());
                bytes[8..].copy_from_slice(&high.to_le_bytes());
                self.write(&bytes[..len.min(12)])
            }
        }
    }

    /// Copies up to `len` bytes of another guest's memory to the next positions. Returns the
    /// number: fewer when either side ends.
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
            // SAFETY: the creators of both cursors keep the pieces mapped; target is as long as
            // source.
            unsafe { copy_bytes::<SharedMemory>(source.ptr, target.ptr, source.len as usize) };
            left -= source.len;
        }
        len - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_copies_between_other_offsets_in_a_line_are_misaligned() {
        let at = |offset: usize| std::ptr::null::<u8>().wrapping_add(4096 + offset);
        for (from, to, len, misaligned) in [
            (12, 12, 1500, false),
            (12, 64 + 12, 1500, false),
            (12, 16, 1500, true),
            (0, 32, SHORT + 1, true),
            (0, 32, SHORT, false),
        ] {
            assert_eq!(
                is_misaligned(at(from), at(to), len),
                misaligned,
                "{from} {to}"
            );
        }
    }

    #[test]
    fn the_vendor_decides_about_prefetches() {
        assert!(prefetches_on(b"AuthenticAMD") && prefetches_on(b"HygonGenuine"));
        assert!(!prefetches_on(b"GenuineIntel") && !prefetches_on(b"CentaurHauls"));
        let here = cpu_vendor();
        assert_eq!(
            prefetches_buffers(),
            here.is_some_and(|vendor| prefetches_on(&vendor))
        );
        assert!(here.is_none_or(|vendor| vendor.is_ascii()));
    }
}
