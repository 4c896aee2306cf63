//! The frames that are worth a helper.
//!
//! A copy costs another core as much as the worker's. The additional cost is per frame: the cache
//! lines of both rings, of descriptors and of headers move from core to core. So pairs with long
//! frames are assigned, pairs with short ones are not.

use crate::forward::cycles::BYTES_PER_LOAD;

/// Least average length of frames of an assigned pair, bytes. Measured (docs/benchmarks/wakeups.md,
/// "Frame length"): a helper loses with 64 bytes, wins or loses with 1500, and wins half with 4000.
const MIN_BYTES: u64 = 2048;
/// Chunks that are judged together: a pair that sends long frames and short ones is not returned
/// for one chunk.
const CHUNKS: u32 = 64;

/// Returns whether these frames are worth a helper; `load` is their load, see
/// [`crate::forward::switch::Switch::last_load`].
#[inline]
pub(crate) fn is_worth_it(frames: u64, load: u64) -> bool {
    load.saturating_sub(frames) >= frames * (MIN_BYTES / BYTES_PER_LOAD)
}

/// The frame lengths of a pair that a helper serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameLengths {
    chunks: u32,
    frames: u64,
    load: u64,
}

impl FrameLengths {
    /// Adds a chunk. Returns `false` when the pair turns out not to be worth a helper.
    #[inline]
    pub(crate) fn add(&mut self, frames: u64, load: u64) -> bool {
        self.chunks += 1;
        self.frames += frames;
        self.load += load;
        if self.chunks < CHUNKS {
            return true;
        }
        let span = std::mem::take(self);
        is_worth_it(span.frames, span.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load as the switch counts it: 1 for a frame, and 1 for every 512 bytes of all frames.
    fn load(frames: u64, bytes: u64) -> u64 {
        frames + frames * bytes / 512
    }

    #[test]
    fn long_frames_are_worth_a_helper_and_short_ones_are_not() {
        for (frames, bytes, worth) in [
            (64, 64, false),
            (64, 512, false),
            (32, 1514, false),
            (1, 1514, false),
            (12, 2048, true),
            (5, 9000, true),
            (1, 65_214, true),
            (64, 0, false),
        ] {
            let assigned = is_worth_it(frames, load(frames, bytes));
            assert_eq!(assigned, worth, "{frames} of {bytes}");
        }
    }

    #[test]
    fn a_helper_returns_a_pair_that_sends_short_frames_for_long() {
        let mut span = FrameLengths::default();
        let chunks = |span: &mut FrameLengths, bytes: u64| {
            let one = |_: &u32| span.add(8, load(8, bytes));
            (1..=CHUNKS).take_while(one).count() as u32
        };
        assert_eq!(chunks(&mut span, 4000), CHUNKS);
        assert_eq!(chunks(&mut span, 64), CHUNKS - 1);
        // One TSO frame among many short ones: the copied bytes decide.
        for chunk in 1..=10 * CHUNKS {
            let kept = match chunk % 8 {
                0 => span.add(1, load(1, 65_214)),
                _ => span.add(2, load(2, 66)),
            };
            assert!(kept, "chunk {chunk}");
        }
    }
}
