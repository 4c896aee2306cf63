//! Which way of copying is the fastest for which size: GiB/s.
//!
//! ```sh
//! cargo run --release -p lasthop-memory --example copying
//! ```
//!
//! Frames go from a ring of buffers to another, as from guest to guest: at the same place of each buffer (`alike`,
//! 76 bytes in), or at places that differ by two bytes. `ring` is the memory of either. `read` is what counts for a
//! receiver: every frame is read, on the core that copied it, before the next one; `copied` is the copying alone.
//! The ways take turns; each figure is the best of its rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use memory::engine::{Aligned, Copies, Cpu, Streaming};

/// Bytes of virtio header and of the frame's head, which are written apart.
const BEFORE: usize = 76;
const SIZES: [usize; 5] = [1448, 4096, 9000, 16_384, 65_459];
const RINGS: [usize; 3] = [256 << 10, 8 << 20, 128 << 20];
const ROUNDS: usize = 3;
const WINDOW: Duration = Duration::from_millis(40);

struct Rings {
    from: Vec<u8>,
    to: Vec<u8>,
    stride: usize,
    size: usize,
    shift: usize,
    read: bool,
}

impl Rings {
    fn new(bytes: usize, size: usize, shift: usize, read: bool) -> Self {
        let stride = (size + BEFORE + 64).next_multiple_of(2048);
        Self {
            from: vec![1; bytes.max(2 * stride) + 64],
            to: vec![2; bytes.max(2 * stride) + 64],
            stride,
            size,
            shift,
            read,
        }
    }

    /// GiB/s of one way to copy.
    fn measure(&mut self, engine: &mut impl Copies) -> f64 {
        let (from, to) = (self.from.as_ptr(), self.to.as_mut_ptr());
        let (from, to) = (
            from.wrapping_add(from.align_offset(64)),
            to.wrapping_add(to.align_offset(64)),
        );
        let places = (self.from.len() - 64) / self.stride;
        let (began, mut frames, mut sum) = (Instant::now(), 0usize, 0u64);
        while began.elapsed() < WINDOW {
            for _ in 0..16 {
                let at = frames % places * self.stride + BEFORE;
                // SAFETY: both rings have `places` buffers of `stride` bytes, more than `shift` and a frame.
                unsafe {
                    let target = to.add(at + self.shift);
                    engine.copy(from.add(at), target, self.size);
                    if self.read {
                        let words = std::slice::from_raw_parts(target, self.size).chunks_exact(8);
                        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                        sum ^= words.map(word).fold(0, |all, one| all ^ one);
                    }
                }
                frames += 1;
            }
        }
        black_box(sum);
        (frames * self.size) as f64 / began.elapsed().as_secs_f64() / (1u64 << 30) as f64
    }
}

fn main() {
    println!(
        "{:>6}  {:>8}  {:<7}  {:<7}  {:>8}  {:>8}  {:>9}",
        "bytes", "ring KiB", "placed", "what", "memmove", "aligned", "streaming"
    );
    for size in SIZES {
        for ring in RINGS {
            for (shift, read) in [(0, false), (0, true), (2, false)] {
                let mut rings = Rings::new(ring, size, shift, read);
                let mut best = [0f64; 3];
                for _ in 0..ROUNDS {
                    best[0] = best[0].max(rings.measure(&mut Cpu));
                    best[1] = best[1].max(rings.measure(&mut Aligned));
                    best[2] = best[2].max(rings.measure(&mut Streaming));
                }
                println!(
                    "{size:>6}  {:>8}  {:<7}  {:<7}  {:>8.1}  {:>8.1}  {:>9.1}",
                    ring >> 10,
                    if shift == 0 { "alike" } else { "apart" },
                    if read { "read" } else { "copied" },
                    best[0],
                    best[1],
                    best[2]
                );
            }
        }
    }
}
