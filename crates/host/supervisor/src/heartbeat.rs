//! Heartbeat of a process: a ping twice a second. A process that does not reply hangs.
//!
//! Checks are counted, not the time between them: if the supervisor itself was delayed, as on a
//! machine that was paused, the process gets the same number of chances. Nothing here waits: a ping
//! that does not fit into the link counts as missed, too.

use std::time::Instant;

use ipc::timeouts::{DRIVER_SETUP, HEARTBEAT as INTERVAL, HEARTBEATS};

use super::environment::HEARTBEAT;
use super::kind::Kind;

/// Missed checks of control or the switch; neither waits for another process.
const LIMITS: MissedLimits = MissedLimits {
    // They may have much to take over at first.
    before_first_reply: 40,
    after_first_reply: HEARTBEATS,
};
/// Maximum number of missed checks that are excused because the process makes progress, until its
/// next reply.
const MAX_EXCUSED: u32 = 35;

/// Heartbeat of one process since its start.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// Time of the next check; `None` when disabled.
    next: Option<Instant>,
    /// Set while a ping has no reply, or could not be sent.
    outstanding: bool,
    /// Set when the ping was sent.
    sent: bool,
    missed: u32,
    excused: u32,
    limits: MissedLimits,
    /// Set after the first reply.
    has_replied: bool,
}

/// Maximum numbers of missed checks in a row.
#[derive(Clone, Copy, Debug)]
struct MissedLimits {
    /// Limit until the first reply.
    before_first_reply: u32,
    /// Limit after the first reply.
    after_first_reply: u32,
}

impl MissedLimits {
    /// Returns the limits of a kind. A driver does not reply during its set-up, which waits for the
    /// switch ([`DRIVER_SETUP`]).
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Control | Kind::Switch => LIMITS,
            Kind::Driver => {
                let after_first_reply = 4;
                let set_up = DRIVER_SETUP.as_millis().div_ceil(INTERVAL.as_millis());
                Self {
                    before_first_reply: after_first_reply + set_up as u32,
                    after_first_reply,
                }
            }
        }
    }
}

/// Returns whether a process is stopped by a signal or a debugger (proc_pid_stat(5)).
pub(super) fn is_stopped(pid: u32) -> bool {
    let stat = sys::file::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = sys::procfs::stat_fields(&stat).and_then(|mut fields| fields.next());
    matches!(state, Some("T" | "t"))
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeartbeatStatus {
    /// No check was due, or no reply is missing.
    Ok,
    /// The process has not replied since the last check.
    Missed,
    /// The process has not replied for too long.
    Hung,
}

impl Heartbeat {
    /// Returns the heartbeat of a process that starts now.
    pub(super) fn new(now: Instant, kind: Kind) -> Self {
        let off = std::env::var_os(HEARTBEAT).is_some_and(|how| how == "off");
        let on = kind == Kind::Driver || !off;
        Self::with_limits(on, now, MissedLimits::of(kind))
    }

    fn with_limits(on: bool, now: Instant, limits: MissedLimits) -> Self {
        Self {
            next: on.then_some(now),
            outstanding: false,
            sent: false,
            missed: 0,
            excused: 0,
            limits,
            has_replied: false,
        }
    }

    /// Returns whether a reply is outstanding and whether one has ever come, for the next
    /// supervisor.
    pub(super) fn pass(&self) -> (bool, bool) {
        (self.sent, self.has_replied)
    }

    /// Returns the heartbeat of a running process from the previous supervisor's record.
    pub(super) fn take((outstanding, has_replied): (bool, bool), now: Instant, kind: Kind) -> Self {
        Self {
            outstanding,
            sent: outstanding,
            has_replied,
            ..Self::new(now, kind)
        }
    }

    /// Checks when it is due. `request` sends a ping without waiting, and returns whether it was
    /// sent.
    pub(super) fn check(
        &mut self,
        now: Instant,
        request: impl FnOnce() -> bool,
    ) -> HeartbeatStatus {
        if self.next.is_none_or(|next| now < next) {
            return HeartbeatStatus::Ok;
        }
        self.next = Some(now + INTERVAL);
        let missed = std::mem::replace(&mut self.outstanding, true);
        self.missed += u32::from(missed);
        let most = if self.has_replied {
            self.limits.after_first_reply
        } else {
            self.limits.before_first_reply
        };
        if self.missed >= most {
            // A hung process is reported once.
            self.next = None;
            return HeartbeatStatus::Hung;
        }
        if !self.sent {
            self.sent = request();
        }
        if missed {
            HeartbeatStatus::Missed
        } else {
            HeartbeatStatus::Ok
        }
    }

    /// Records a reply. Returns `false` if no ping was sent.
    pub(super) fn replied(&mut self) -> bool {
        let pinged = self.sent;
        (self.outstanding, self.sent, self.has_replied) = (false, false, true);
        (self.missed, self.excused) = (0, 0);
        pinged
    }

    /// Returns whether the last ping could not be sent.
    pub(super) fn is_blocked(&self) -> bool {
        self.outstanding && !self.sent
    }

    /// Returns whether the process has ever replied.
    pub(super) fn has_replied(&self) -> bool {
        self.has_replied
    }

    /// Excuses the last missed check of a process that makes progress, [`MAX_EXCUSED`] times at
    /// most.
    pub(super) fn excuse(&mut self) {
        if self.excused < MAX_EXCUSED {
            self.excused += 1;
            self.missed = self.missed.saturating_sub(1);
        }
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MISSED: u32 = LIMITS.after_first_reply;
    const MISSED_BEFORE_FIRST_REPLY: u32 = LIMITS.before_first_reply;

    fn beat() -> Heartbeat {
        Heartbeat::with_limits(true, Instant::now(), LIMITS)
    }

    /// Checks at each due time; returns the results and the number of pings.
    fn checks(beat: &mut Heartbeat, count: usize, room: bool) -> (Vec<HeartbeatStatus>, usize) {
        let mut pinged = 0;
        let mut check = |_| {
            let at = beat.due().unwrap();
            let too_early = beat.check(at - INTERVAL / 2, || unreachable!());
            assert_eq!(too_early, HeartbeatStatus::Ok);
            beat.check(at, || {
                pinged += 1;
                room
            })
        };
        let seen = (0..count).map(&mut check).collect();
        (seen, pinged)
    }

    #[test]
    fn control_and_switch_have_the_same_time() {
        for kind in [Kind::Control, Kind::Switch] {
            let limits = MissedLimits::of(kind);
            let of = |checks: u32| checks * INTERVAL;
            assert_eq!(of(limits.before_first_reply), Duration::from_secs(20));
            assert_eq!(of(limits.after_first_reply), Duration::from_millis(2500));
        }
    }

    #[test]
    fn a_process_that_stops_replying_hangs() {
        let mut beat = beat();
        for _ in 0..10 {
            assert_eq!(checks(&mut beat, 1, true), (vec![HeartbeatStatus::Ok], 1));
            beat.replied();
        }
        // The reply is late, but in time.
        let mut expected = vec![HeartbeatStatus::Ok];
        expected.extend([HeartbeatStatus::Missed; 4]);
        assert_eq!(checks(&mut beat, 5, true), (expected.clone(), 1));
        beat.replied();
        expected.push(HeartbeatStatus::Hung);
        assert_eq!(checks(&mut beat, 6, true), (expected, 1));
        assert_eq!(beat.due(), None);
    }

    #[test]
    fn a_process_with_a_full_link_hangs_too() {
        let mut beat = beat();
        checks(&mut beat, 1, true);
        beat.replied();
        let (seen, pinged) = checks(&mut beat, 6, false);
        assert_eq!((seen[5], pinged), (HeartbeatStatus::Hung, 5));
    }

    #[test]
    fn a_starting_process_has_more_time() {
        let mut beat = beat();
        let (seen, _) = checks(&mut beat, 1 + MISSED_BEFORE_FIRST_REPLY as usize, true);
        let hangs = seen.iter().position(|seen| *seen == HeartbeatStatus::Hung);
        assert_eq!(hangs, Some(MISSED_BEFORE_FIRST_REPLY as usize));
    }

    #[test]
    fn a_process_with_progress_is_excused_for_a_while() {
        let mut beat = beat();
        checks(&mut beat, 1, true);
        beat.replied();
        checks(&mut beat, 1, true);
        for _ in 0..MAX_EXCUSED {
            assert_eq!(checks(&mut beat, 1, true).0, [HeartbeatStatus::Missed]);
            beat.excuse();
        }
        for n in 1..=MISSED {
            let hangs = checks(&mut beat, 1, true).0 == [HeartbeatStatus::Hung];
            assert_eq!(hangs, n == MISSED);
            beat.excuse();
        }
    }

    #[test]
    fn an_outstanding_reply_passes_to_the_next_supervisor() {
        for has_replied in [false, true] {
            let mut before = beat();
            before.has_replied = has_replied;
            checks(&mut before, 1, true);
            let mut beat = Heartbeat::take(before.pass(), Instant::now(), Kind::Switch);
            beat.next = Some(Instant::now());
            assert_eq!(
                checks(&mut beat, 1, true),
                (vec![HeartbeatStatus::Missed], 0)
            );
            beat.replied();
            assert_eq!(beat.pass(), (false, true));
            assert_eq!(checks(&mut beat, 1, true), (vec![HeartbeatStatus::Ok], 1));
        }
    }

    #[test]
    fn each_ping_has_one_reply() {
        let mut beat = beat();
        assert!(!beat.replied(), "no ping was sent");
        checks(&mut beat, 1, true);
        assert!(beat.replied());
        assert!(!beat.replied(), "it was given");
        checks(&mut beat, 1, false);
        assert!(beat.is_blocked());
    }

    #[test]
    fn a_driver_has_more_time_for_its_set_up_only() {
        let MissedLimits {
            before_first_reply,
            after_first_reply,
        } = MissedLimits::of(Kind::Driver);
        assert_eq!(
            before_first_reply * INTERVAL,
            DRIVER_SETUP + Duration::from_secs(2)
        );
        assert_eq!(after_first_reply * INTERVAL, Duration::from_secs(2));
    }

    #[test]
    fn it_can_be_disabled() {
        let mut beat = Heartbeat::with_limits(false, Instant::now(), LIMITS);
        assert_eq!(beat.due(), None);
        let after_first_reply = Instant::now() + 100 * INTERVAL;
        assert_eq!(
            beat.check(after_first_reply, || unreachable!()),
            HeartbeatStatus::Ok
        );
    }
}
