//! When a worker pauses before it asks to be woken.
//!
//! Small frames that come one close behind the other wake a worker again and again, each time for a few of them, and whoever
//! sends them pays for that too: a wake-up costs as much as the way of several frames. So after a spell of many frames it pauses once
//! without asking for anything, and takes what has gathered meanwhile together (as network cards do, whose drivers know it
//! as interrupt moderation). As long as each pause brings many, another one follows.
//!
//! A spell is what is moved between two rests. One of few frames, as of a question and its answer or of a stream of
//! super-frames, is followed by no pause, so that a pause delays frames only where there are [`MANY`] of them in its time.

use std::time::Duration;

/// Frames in one direction that make a pause worth while.
const MANY: usize = 4;
/// How long a pause is. At its pace [`MANY`] are 80 000 frames a second.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Of this spell.
    received: usize,
    sent: usize,
}

impl Gathering {
    /// So many frames were moved.
    pub(super) fn moved(&mut self, received: usize, sent: usize) {
        self.received += received;
        self.sent += sent;
    }

    /// Ends the spell. `true` when a pause is worth while.
    pub(super) fn rest(&mut self) -> bool {
        let Self { received, sent } = std::mem::take(self);
        received.max(sent) >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_of_many_frames_in_one_direction_is_followed_by_one_pause() {
        let mut gathering = Gathering::default();
        assert!(!gathering.rest());
        for turn in 1..=MANY {
            gathering.moved(1, 0);
            gathering.moved(0, usize::from(turn > 1));
        }
        assert!(gathering.rest());
        assert!(!gathering.rest(), "it brought nothing");
        gathering.moved(0, MANY);
        assert!(gathering.rest());
    }

    #[test]
    fn few_are_not_waited_with() {
        let mut gathering = Gathering::default();
        for _ in 0..10 {
            gathering.moved(MANY - 1, 1);
            gathering.moved(0, MANY - 2);
            assert!(!gathering.rest());
        }
    }
}
