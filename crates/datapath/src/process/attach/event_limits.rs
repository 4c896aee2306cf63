//! Rate limits of events that a guest, a VMM or another process with access to a port's socket can
//! cause.

use std::cell::Cell;
use std::time::{Duration, Instant};

use port::EventLimiter;

/// Log lines about a port, within this time.
const LOG_LINES: (u32, Duration) = (30, Duration::from_secs(30));
/// Log lines about rejected connections, for each reason: a wrongly configured VMM dials without
/// end.
const REJECTION_LOG_LINES: (u32, Duration) = (1, Duration::from_secs(60));
/// Announcements of a guest that has moved: a VMM makes some in the second after a migration, at
/// most one for each try and queue pair.
const ANNOUNCEMENTS: (u32, Duration) = (64, Duration::from_secs(1));

/// The limits of one port. Without the limit of log lines a port could make the log drop lines of
/// others; an announcement is a broadcast that is charged to no queue of the port.
#[derive(Debug)]
pub(super) struct EventLimits {
    began: Instant,
    lines: Cell<EventLimiter>,
    second_connections: Cell<EventLimiter>,
    wrong_user_connections: Cell<EventLimiter>,
    announcements: Cell<EventLimiter>,
}

impl Default for EventLimits {
    fn default() -> Self {
        let limiter = |(most, within)| Cell::new(EventLimiter::new(most, within));
        Self {
            began: Instant::now(),
            lines: limiter(LOG_LINES),
            second_connections: limiter(REJECTION_LOG_LINES),
            wrong_user_connections: limiter(REJECTION_LOG_LINES),
            announcements: limiter(ANNOUNCEMENTS),
        }
    }
}

impl EventLimits {
    /// Returns `Some` if a line may be logged now, with the number of lines suppressed before it,
    /// if any.
    #[expect(clippy::option_option, reason = "whether, and what the line says then")]
    pub(super) fn log_line(&self) -> Option<Option<u64>> {
        self.log_line_by(&self.lines)
    }

    /// Returns the same for a rejected connection, of a wrong user or a second one.
    #[expect(clippy::option_option, reason = "as above")]
    pub(super) fn rejection_log_line(&self, wrong_user: bool) -> Option<Option<u64>> {
        if wrong_user {
            self.log_line_by(&self.wrong_user_connections)
        } else {
            self.log_line_by(&self.second_connections)
        }
    }

    #[expect(clippy::option_option, reason = "as above")]
    fn log_line_by(&self, of: &Cell<EventLimiter>) -> Option<Option<u64>> {
        let suppressed = self.allow(of)?;
        Some((suppressed > 0).then_some(suppressed))
    }

    /// Returns the number of suppressed lines.
    pub(super) fn suppressed_log_lines(&self) -> u64 {
        let all = [
            &self.lines,
            &self.second_connections,
            &self.wrong_user_connections,
        ];
        all.map(|limiter| limiter.get().suppressed()).iter().sum()
    }

    /// Returns whether the guest may be announced now.
    pub(super) fn announcement(&self) -> bool {
        self.allow(&self.announcements).is_some()
    }

    fn allow(&self, of: &Cell<EventLimiter>) -> Option<u64> {
        let mut limiter = of.get();
        let may = limiter.admit(self.began.elapsed());
        of.set(limiter);
        may
    }
}
