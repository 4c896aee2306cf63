//! Rate limits of events that a guest, a VMM or another process with access to a port's socket can
//! cause.

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
    lines: EventLimiter,
    second_connections: EventLimiter,
    wrong_user_connections: EventLimiter,
    announcements: EventLimiter,
}

impl Default for EventLimits {
    fn default() -> Self {
        let limiter = |(most, within)| EventLimiter::new(most, within);
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
    pub(super) fn log_line(&mut self) -> Option<Option<u64>> {
        log_line_by(&mut self.lines, self.began)
    }

    /// Returns the same for a rejected connection, of a wrong user or a second one.
    #[expect(clippy::option_option, reason = "as above")]
    pub(super) fn rejection_log_line(&mut self, wrong_user: bool) -> Option<Option<u64>> {
        let limiter = if wrong_user {
            &mut self.wrong_user_connections
        } else {
            &mut self.second_connections
        };
        log_line_by(limiter, self.began)
    }

    /// Returns the number of suppressed lines.
    pub(super) fn suppressed_log_lines(&self) -> u64 {
        let all = [
            &self.lines,
            &self.second_connections,
            &self.wrong_user_connections,
        ];
        all.map(|limiter| limiter.suppressed()).iter().sum()
    }

    /// Returns whether the guest may be announced now.
    pub(super) fn announcement(&mut self) -> bool {
        self.announcements.admit(self.began.elapsed()).is_some()
    }
}

#[expect(clippy::option_option, reason = "as above")]
fn log_line_by(limiter: &mut EventLimiter, began: Instant) -> Option<Option<u64>> {
    let suppressed = limiter.admit(began.elapsed())?;
    Some((suppressed > 0).then_some(suppressed))
}
