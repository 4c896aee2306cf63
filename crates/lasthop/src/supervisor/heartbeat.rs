//! Whether a process still does anything: it is asked twice a second, and hangs when it does not answer.
//!
//! What counts are looks, not the time between them: when we were held up ourselves, as on a machine that was paused, the
//! process gets the same number of chances. Nothing here waits: a question for which there is no room counts as
//! unanswered, too.

use std::time::{Duration, Instant};

use channel::driving;

use super::child::Kind;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Looks that do not count because the process has shown otherwise that it gets on, until it answers again.
const SPARED: u32 = 35;
/// The environment variable that switches this off, for all but drivers, when it is `off`: for debuggers, which stop what they look at.
pub(super) const SWITCH: &str = "LASTHOP_HEARTBEAT";

/// The heart-beat of one process, from its start on.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// When to look next; never where nobody is to look.
    next: Option<Instant>,
    /// Whether there is a question without an answer, or one that could not be asked.
    open: bool,
    /// It has been sent.
    sent: bool,
    missed: u32,
    spared: u32,
    patience: Patience,
    /// It has answered once.
    lives: bool,
}

/// Looks in a row without an answer after which a process hangs.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Until it has answered once.
    at_first: u32,
    /// From then on.
    later: u32,
}

impl Patience {
    /// Control and switch may have much to take over at first, and control may have to wait for the switch, five seconds at most. A driver
    /// answers nothing during its set-up, which waits for the switch ([`driving::SET_UP`]).
    fn with(kind: Kind) -> Self {
        let (at_first, later) = match kind {
            Kind::Control => (40, 12),
            Kind::Switch => (40, 5),
            Kind::Driver => {
                let later = 4;
                let set_up = driving::SET_UP.as_millis().div_ceil(LOOK.as_millis());
                (later + set_up as u32, later)
            }
        };
        Self { at_first, later }
    }
}

/// Whether somebody has stopped a process, by a signal or as a debugger (proc_pid_stat(5)).
pub(super) fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['T', 't'])
}

/// What a look has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// It was not time, or all is well.
    Nothing,
    /// It has not answered since the last look.
    Missed,
    /// It has not answered for too long.
    Hangs,
}

impl Heartbeat {
    /// Of a process that starts now.
    pub(super) fn new(now: Instant, kind: Kind) -> Self {
        let off = std::env::var_os(SWITCH).is_some_and(|how| how == "off");
        let on = kind == Kind::Driver || !off;
        Self::watching(on, now, Patience::with(kind))
    }

    fn watching(on: bool, now: Instant, patience: Patience) -> Self {
        Self {
            next: on.then_some(now),
            open: false,
            sent: false,
            missed: 0,
            spared: 0,
            patience,
            lives: false,
        }
    }

    /// Whether an answer is owed, and whether one has ever come: for the supervisor that takes the place of this one.
    pub(super) fn pass(&self) -> (bool, bool) {
        (self.sent, self.lives)
    }

    /// That of a process which runs already.
    pub(super) fn take((owes, lives): (bool, bool), now: Instant, kind: Kind) -> Self {
        Self {
            open: owes,
            sent: owes,
            lives,
            ..Self::new(now, kind)
        }
    }

    /// Looks, when it is time. `ask` asks the process without waiting; whether it was asked.
    pub(super) fn look(&mut self, now: Instant, ask: impl FnOnce() -> bool) -> Seen {
        if self.next.is_none_or(|next| now < next) {
            return Seen::Nothing;
        }
        self.next = Some(now + LOOK);
        let missed = std::mem::replace(&mut self.open, true);
        self.missed += u32::from(missed);
        let most = match self.lives {
            true => self.patience.later,
            false => self.patience.at_first,
        };
        if self.missed >= most {
            // Once is enough.
            self.next = None;
            return Seen::Hangs;
        }
        if !self.sent {
            self.sent = ask();
        }
        if missed { Seen::Missed } else { Seen::Nothing }
    }

    /// It has answered. `false` when it was not asked.
    pub(super) fn answered(&mut self) -> bool {
        let asked = self.sent;
        (self.open, self.sent, self.lives) = (false, false, true);
        (self.missed, self.spared) = (0, 0);
        asked
    }

    /// Whether there was no room for the last question.
    pub(super) fn is_unheard(&self) -> bool {
        self.open && !self.sent
    }

    /// Whether it has ever answered.
    pub(super) fn lives(&self) -> bool {
        self.lives
    }

    /// It has not answered and gets on all the same: the last look does not count. That does not go on for ever.
    pub(super) fn spare(&mut self) {
        if self.spared < SPARED {
            self.spared += 1;
            self.missed = self.missed.saturating_sub(1);
        }
    }

    /// When to look next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSED: u32 = 5;
    const PATIENCE: Patience = Patience {
        at_first: MISSED_AT_FIRST,
        later: MISSED,
    };

    const MISSED_AT_FIRST: u32 = 40;

    fn beat() -> Heartbeat {
        Heartbeat::watching(true, Instant::now(), PATIENCE)
    }

    /// Looks at each due time; what was seen, and how often it was asked.
    fn looks(beat: &mut Heartbeat, count: usize, room: bool) -> (Vec<Seen>, usize) {
        let mut asked = 0;
        let mut look = |_| {
            let at = beat.due().unwrap();
            let too_early = beat.look(at - LOOK / 2, || unreachable!());
            assert_eq!(too_early, Seen::Nothing);
            beat.look(at, || {
                asked += 1;
                room
            })
        };
        let seen = (0..count).map(&mut look).collect();
        (seen, asked)
    }

    #[test]
    fn who_answers_lives_and_who_stops_answering_hangs() {
        let mut beat = beat();
        for _ in 0..10 {
            assert_eq!(looks(&mut beat, 1, true), (vec![Seen::Nothing], 1));
            beat.answered();
        }
        // Late, but in time.
        let mut expected = vec![Seen::Nothing];
        expected.extend([Seen::Missed; 4]);
        assert_eq!(looks(&mut beat, 5, true), (expected.clone(), 1));
        beat.answered();
        expected.push(Seen::Hangs);
        assert_eq!(looks(&mut beat, 6, true), (expected, 1));
        assert_eq!(beat.due(), None);
    }

    #[test]
    fn who_does_not_read_hangs_too_and_is_asked_until_there_is_room() {
        let mut beat = beat();
        looks(&mut beat, 1, true);
        beat.answered();
        let (seen, asked) = looks(&mut beat, 6, false);
        assert_eq!((seen[5], asked), (Seen::Hangs, 5));
    }

    #[test]
    fn who_starts_has_more_time() {
        let mut beat = beat();
        let (seen, _) = looks(&mut beat, 1 + MISSED_AT_FIRST as usize, true);
        let hangs = seen.iter().position(|seen| *seen == Seen::Hangs);
        assert_eq!(hangs, Some(MISSED_AT_FIRST as usize));
    }

    #[test]
    fn who_gets_on_without_an_answer_is_spared_for_a_while() {
        let mut beat = beat();
        looks(&mut beat, 1, true);
        beat.answered();
        looks(&mut beat, 1, true);
        for _ in 0..SPARED {
            assert_eq!(looks(&mut beat, 1, true).0, [Seen::Missed]);
            beat.spare();
        }
        for n in 1..=MISSED {
            let hangs = looks(&mut beat, 1, true).0 == [Seen::Hangs];
            assert_eq!(hangs, n == MISSED);
            beat.spare();
        }
    }

    #[test]
    fn an_answer_that_is_owed_is_owed_to_the_next_supervisor_too() {
        for lives in [false, true] {
            let mut before = beat();
            before.lives = lives;
            looks(&mut before, 1, true);
            let mut beat = Heartbeat::take(before.pass(), Instant::now(), Kind::Switch);
            beat.next = Some(Instant::now());
            assert_eq!(looks(&mut beat, 1, true), (vec![Seen::Missed], 0));
            beat.answered();
            assert_eq!(beat.pass(), (false, true));
            assert_eq!(looks(&mut beat, 1, true), (vec![Seen::Nothing], 1));
        }
    }

    #[test]
    fn an_answer_is_owed_once_for_each_question() {
        let mut beat = beat();
        assert!(!beat.answered(), "nobody has asked");
        looks(&mut beat, 1, true);
        assert!(beat.answered());
        assert!(!beat.answered(), "it has been given");
        looks(&mut beat, 1, false);
        assert!(beat.is_unheard());
    }

    #[test]
    fn a_driver_may_take_its_time_for_its_set_up_and_for_nothing_else() {
        let Patience { at_first, later } = Patience::with(Kind::Driver);
        assert_eq!(at_first * LOOK, driving::SET_UP + Duration::from_secs(2));
        assert_eq!(later * LOOK, Duration::from_secs(2));
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut beat = Heartbeat::watching(false, Instant::now(), PATIENCE);
        assert_eq!(beat.due(), None);
        let later = Instant::now() + 100 * LOOK;
        assert_eq!(beat.look(later, || unreachable!()), Seen::Nothing);
    }
}
