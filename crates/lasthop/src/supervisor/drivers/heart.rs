//! When a driver is to be asked for a sign of life, and when it has been silent for too long.
//!
//! ```text
//!   new ---> asked --- pong ---> PING after the last time: asked again
//!              +--- nothing for `PATIENCE`, the first time `driving::SET_UP` more: dead
//! ```

use std::time::{Duration, Instant};

use channel::driving;

/// Between two pings.
const PING: Duration = Duration::from_millis(500);
/// How long a driver may take to answer one: longer than a busy machine keeps it from its core.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Nothing,
    /// Ask it.
    Ping,
    /// It hangs.
    Death,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heart {
    next_ping: Instant,
    /// A ping without an answer.
    pinged: Option<Instant>,
    /// It has answered once, so its set-up is over.
    settled: bool,
}

impl Heart {
    /// That of a process which starts now. It is asked at once: the answer says that its set-up is over.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_ping: now,
            pinged: None,
            settled: false,
        }
    }

    /// Whether an answer is owed, and whether one has ever come.
    pub(super) fn pass(&self) -> (bool, bool) {
        (self.pinged.is_some(), self.settled)
    }

    /// That of a process which runs already.
    pub(super) fn take((owes, settled): (bool, bool), now: Instant) -> Self {
        Self {
            pinged: owes.then_some(now),
            settled,
            ..Self::new(now)
        }
    }

    /// What is due; a ping that is due counts as sent.
    pub(super) fn turn(&mut self, now: Instant) -> Due {
        match self.pinged {
            Some(since) if now >= since + self.patience() => Due::Death,
            None if now >= self.next_ping => {
                self.pinged = Some(now);
                self.next_ping = now + PING;
                Due::Ping
            }
            _ => Due::Nothing,
        }
    }

    /// An answer has come. `false` when none was owed.
    pub(super) fn pong(&mut self) -> bool {
        self.settled = true;
        self.pinged.take().is_some()
    }

    /// Whether it has ever answered: then its set-up is over.
    pub(super) fn has_settled(&self) -> bool {
        self.settled
    }

    /// When something is due.
    pub(super) fn due(&self) -> Instant {
        let dead = |since| since + self.patience();
        self.pinged.map_or(self.next_ping, dead)
    }

    /// Nothing is answered during the set-up, which waits for the switch.
    fn patience(&self) -> Duration {
        match self.settled {
            true => PATIENCE,
            false => driving::SET_UP + PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn a_sign_of_life_is_owed_once_for_each_ping() {
        let start = Instant::now();
        let mut heart = Heart::new(start);
        assert!(!heart.pong(), "nobody has asked");
        for round in 0..4 {
            let now = start + round * PING;
            assert_eq!((heart.due(), heart.turn(now)), (now, Due::Ping));
            assert_eq!(heart.turn(now), Due::Nothing, "one at a time");
            assert!(heart.pong());
            assert!(!heart.pong(), "it has been given");
            assert_eq!(heart.turn(now + PING - MOMENT), Due::Nothing);
        }
    }

    #[test]
    fn a_set_up_may_take_its_time_and_nothing_else_may() {
        let start = Instant::now();
        let mut heart = Heart::new(start);
        assert_eq!(heart.turn(start), Due::Ping);
        let asked = start + driving::SET_UP + PATIENCE;
        assert_eq!(heart.turn(asked - MOMENT), Due::Nothing);
        assert_eq!(heart.turn(asked), Due::Death);
        assert!(heart.pong());
        assert_eq!(heart.turn(asked), Due::Ping);
        assert_eq!(heart.turn(asked + PATIENCE - MOMENT), Due::Nothing);
        assert_eq!(heart.due(), asked + PATIENCE);
        assert_eq!(heart.turn(asked + PATIENCE), Due::Death);
    }
}
