//! Whose frames are worth a helper.
//!
//! What is copied by another core costs that core what it would have cost here. What it costs besides is paid by the frame: the
//! lines of both rings, of descriptors and of headers go from core to core. So long frames are lent, and short ones are not.

use crate::switch::BYTES_PER_LOAD;

/// Bytes of a frame, on average, from which on a pair is lent. Measured (docs/SCHEDULING.md, "Which frames are worth it"): a helper
/// loses with 64 bytes, wins or loses with 1500, and wins half with 4000.
const BYTES: u64 = 2048;
/// Pieces that are judged together: a pair that sends long frames and short ones is not given back for one of them.
const SPAN: u32 = 64;

/// Whether these frames are worth a helper; `load` is theirs, see [`crate::switch::Switch::last_load`].
#[inline]
pub(crate) fn is_worth_it(frames: u64, load: u64) -> bool {
    load.saturating_sub(frames) >= frames * (BYTES / BYTES_PER_LOAD)
}

/// What a helper learns of a pair that it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pieces: u32,
    frames: u64,
    load: u64,
}

impl Span {
    /// Adds a piece. `false` when the pair turns out not to be worth it.
    #[inline]
    pub(crate) fn add(&mut self, frames: u64, load: u64) -> bool {
        self.pieces += 1;
        self.frames += frames;
        self.load += load;
        if self.pieces < SPAN {
            return true;
        }
        let span = std::mem::take(self);
        is_worth_it(span.frames, span.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is counted: a frame is 1, and 512 bytes of all of them are 1 more.
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
            let lent = is_worth_it(frames, load(frames, bytes));
            assert_eq!(lent, worth, "{frames} of {bytes}");
        }
    }

    #[test]
    fn a_helper_gives_up_who_sends_short_frames_for_long() {
        let mut span = Span::default();
        let pieces = |span: &mut Span, bytes: u64| {
            let one = |_: &u32| span.add(8, load(8, bytes));
            (1..=SPAN).take_while(one).count() as u32
        };
        assert_eq!(pieces(&mut span, 4000), SPAN);
        assert_eq!(pieces(&mut span, 64), SPAN - 1);
        // One super-frame among many short ones: what is copied decides.
        for piece in 1..=10 * SPAN {
            let kept = match piece % 8 {
                0 => span.add(1, load(1, 65_214)),
                _ => span.add(2, load(2, 66)),
            };
            assert!(kept, "piece {piece}");
        }
    }
}
