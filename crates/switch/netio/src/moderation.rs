//! Receive moderation: a pause before an interface is waited for.
//!
//! Small frames in close succession wake a thread again and again, each time for a few of them, and
//! their sender pays for that too: a wake-up costs as much as forwarding several frames. Few frames
//! also leave little to coalesce. So after a burst of many frames the thread leaves the interface
//! alone for a while, and takes the frames of that time together (interrupt moderation, as in
//! drivers of network cards). As long as each pause brings many, another one follows. A driver
//! process sleeps meanwhile, a worker of the switch serves others.
//!
//! A burst is all small frames between two idle turns. A short one, as of a request and its reply,
//! is followed by no pause, so that a pause delays frames only if there are [`MIN_BURST`] of them
//! in its time. Nor is a stream of super-frames: a wake-up costs little beside the bytes of one,
//! and its sender waits for the answer.

use std::time::Duration;

/// A frame of as many bytes, virtio header included, is no small one: a super-frame, or a jumbo
/// frame.
const LARGE: u32 = 2048;
/// Small frames in one direction that are worth a pause.
const MIN_BURST: usize = 4;
/// Length of a pause, in microseconds. The least burst in it makes 80 000 frames a second.
pub const PAUSE: Duration = Duration::from_micros(50);

/// Moderation state: see the module.
#[derive(Debug, Default)]
pub struct Moderation {
    /// Small frames of this burst.
    received: usize,
    sent: usize,
}

impl Moderation {
    /// Counts a frame of the interface: `len` bytes.
    pub fn received(&mut self, len: u32) {
        self.received += usize::from(len < LARGE);
    }

    /// Counts a frame for the interface: `len` bytes.
    pub fn sent(&mut self, len: u32) {
        self.sent += usize::from(len < LARGE);
    }

    /// Ends the burst. `true` when a pause is worth while.
    #[must_use]
    pub fn end_burst(&mut self) -> bool {
        let Self { received, sent } = std::mem::take(self);
        received.max(sent) >= MIN_BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small frames of a turn.
    fn moved(moderation: &mut Moderation, received: usize, sent: usize) {
        (0..received).for_each(|_| moderation.received(LARGE - 1));
        (0..sent).for_each(|_| moderation.sent(100));
    }

    #[test]
    fn a_spell_of_many_frames_in_one_direction_is_followed_by_one_pause() {
        let mut moderation = Moderation::default();
        assert!(!moderation.end_burst());
        for turn in 1..=MIN_BURST {
            moved(&mut moderation, 1, 0);
            moved(&mut moderation, 0, usize::from(turn > 1));
        }
        assert!(moderation.end_burst());
        assert!(!moderation.end_burst(), "it brought nothing");
        moved(&mut moderation, 0, MIN_BURST);
        assert!(moderation.end_burst());
    }

    #[test]
    fn few_are_not_waited_with() {
        let mut moderation = Moderation::default();
        for _ in 0..10 {
            moved(&mut moderation, MIN_BURST - 1, 1);
            moved(&mut moderation, 0, MIN_BURST - 2);
            assert!(!moderation.end_burst());
        }
    }

    #[test]
    fn super_frames_are_not_waited_with() {
        let mut moderation = Moderation::default();
        for len in [LARGE, 65_000] {
            (0..64).for_each(|_| moderation.received(len));
            (0..64).for_each(|_| moderation.sent(len));
            // Their acknowledgements.
            moved(&mut moderation, MIN_BURST - 1, MIN_BURST - 1);
            assert!(!moderation.end_burst());
        }
    }
}
