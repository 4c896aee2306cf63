//! How often a guest, a VMM, or any other who may open a port's socket can have something done.

use std::cell::Cell;
use std::time::{Duration, Instant};

use port::EventLimiter;

/// Lines of the log about a port.
const LINES: (u32, Duration) = (30, Duration::from_secs(30));
/// Lines about connections that are turned away for the same reason: a VMM that is not wanted dials for ever.
const TURNED_AWAY: (u32, Duration) = (1, Duration::from_secs(60));
/// Announcements of a guest that has moved: a VMM makes some in the second after a migration, one for each try and queue pair at most.
const ANNOUNCEMENTS: (u32, Duration) = (64, Duration::from_secs(1));

/// The bounds of one port. Without that of the log it could have the lines of others thrown away by whoever keeps them; an announcement
/// is a broadcast that no queue of the port has paid for.
#[derive(Debug)]
pub(super) struct Bounds {
    began: Instant,
    lines: Cell<EventLimiter>,
    seconds: Cell<EventLimiter>,
    strangers: Cell<EventLimiter>,
    announcements: Cell<EventLimiter>,
}

impl Default for Bounds {
    fn default() -> Self {
        let limiter = |(most, within)| Cell::new(EventLimiter::new(most, within));
        Self {
            began: Instant::now(),
            lines: limiter(LINES),
            seconds: limiter(TURNED_AWAY),
            strangers: limiter(TURNED_AWAY),
            announcements: limiter(ANNOUNCEMENTS),
        }
    }
}

impl Bounds {
    /// Whether there may be a line now, and how many were left out before it, if any.
    #[expect(clippy::option_option, reason = "whether, and what the line says then")]
    pub(super) fn line(&self) -> Option<Option<u64>> {
        self.line_of(&self.lines)
    }

    /// The same about a connection that is turned away, of a stranger or a second one.
    #[expect(clippy::option_option, reason = "as above")]
    pub(super) fn line_of_turned_away(&self, is_stranger: bool) -> Option<Option<u64>> {
        match is_stranger {
            true => self.line_of(&self.strangers),
            false => self.line_of(&self.seconds),
        }
    }

    #[expect(clippy::option_option, reason = "as above")]
    fn line_of(&self, of: &Cell<EventLimiter>) -> Option<Option<u64>> {
        let left_out = self.once_more(of)?;
        Some((left_out > 0).then_some(left_out))
    }

    /// Lines that were left out so far.
    pub(super) fn lines_left_out(&self) -> u64 {
        let all = [&self.lines, &self.seconds, &self.strangers];
        all.map(|limiter| limiter.get().all_left_out()).iter().sum()
    }

    /// Whether the guest may be announced now.
    pub(super) fn announcement(&self) -> bool {
        self.once_more(&self.announcements).is_some()
    }

    fn once_more(&self, of: &Cell<EventLimiter>) -> Option<u64> {
        let mut limiter = of.get();
        let may = limiter.once_more(self.began.elapsed());
        of.set(limiter);
        may
    }
}
