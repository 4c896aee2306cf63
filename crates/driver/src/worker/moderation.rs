//! Receive moderation: a pause of the worker before it requests notifications.
//!
//! Small frames in close succession wake a worker again and again, each time for a few of them, and
//! their sender pays for that too: a wake-up costs as much as forwarding several frames. So after a
//! burst of many frames the worker pauses once without requesting notifications, and takes the
//! frames of that time together (interrupt moderation, as in drivers of network cards). As long as
//! each pause brings many, another one follows.
//!
//! A burst is all frames between two idle turns. A small one, as of a request and its reply or of a
//! stream of super-frames, is followed by no pause, so that a pause delays frames only if there are
//! [`MIN_BURST`] of them in its time.

use std::time::Duration;

/// Frames in one direction that are worth a pause.
const MIN_BURST: usize = 4;
/// Length of a pause, in microseconds. At that rate [`MIN_BURST`] are 80 000 frames a second.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Moderation state: see the module.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    /// Frames of this burst.
    received: usize,
    sent: usize,
}

impl Moderation {
    /// Counts moved frames.
    pub(super) fn moved(&mut self, received: usize, sent: usize) {
        self.received += received;
        self.sent += sent;
    }

    /// Ends the burst. `true` when a pause is worth while.
    pub(super) fn end_burst(&mut self) -> bool {
        let Self { received, sent } = std::mem::take(self);
        received.max(sent) >= MIN_BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_of_many_frames_in_one_direction_is_followed_by_one_pause() {
        let mut moderation = Moderation::default();
        assert!(!moderation.end_burst());
        for turn in 1..=MIN_BURST {
            moderation.moved(1, 0);
            moderation.moved(0, usize::from(turn > 1));
        }
        assert!(moderation.end_burst());
        assert!(!moderation.end_burst(), "it brought nothing");
        moderation.moved(0, MIN_BURST);
        assert!(moderation.end_burst());
    }

    #[test]
    fn few_are_not_waited_with() {
        let mut moderation = Moderation::default();
        for _ in 0..10 {
            moderation.moved(MIN_BURST - 1, 1);
            moderation.moved(0, MIN_BURST - 2);
            assert!(!moderation.end_burst());
        }
    }
}
