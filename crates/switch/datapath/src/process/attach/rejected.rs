//! Rejected connections, which are closed at once: a port has one guest.

use std::time::{Duration, Instant};

use super::pause::Pauses;

/// Time for which the port's reason mentions rejected connections: a minute, or until the
/// connection has ended beside which they came.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// The rejected connections of one port.
#[derive(Debug)]
pub(super) struct RejectedConnections {
    /// The number of rejected connections.
    pub(super) count: u64,
    last: Instant,
    /// Connections that came while another one was open.
    others: u64,
    last_other: Instant,
    /// The pauses in which no connection is accepted.
    pub(super) pauses: Pauses,
}

impl Default for RejectedConnections {
    fn default() -> Self {
        Self {
            count: 0,
            last: Instant::now(),
            others: 0,
            last_other: Instant::now(),
            pauses: Pauses::after_rejection(),
        }
    }
}

impl RejectedConnections {
    /// Counts a rejected connection. While another one is open no new one could be served, so a
    /// pause follows. At a free port none follows, so that the next connection need not wait.
    pub(super) fn record(&mut self, other_is_open: bool) {
        let now = Instant::now();
        if other_is_open {
            self.others += 1;
            self.last_other = now;
            self.pauses.begin_again(now);
        }
        self.count += 1;
        self.last = now;
    }

    /// Notes that the open connection has ended: the next one is no second.
    pub(super) fn connection_ended(&mut self) {
        self.others = 0;
        self.pauses.end_now(Instant::now());
    }

    /// Returns the time since the last one, milliseconds.
    pub(super) fn last_ms_ago(&self) -> Option<u64> {
        (self.count > 0).then(|| self.last.elapsed().as_millis() as u64)
    }

    /// Returns a reason for operators, while it is recent.
    pub(super) fn reason(&self) -> Option<String> {
        let (others, ago) = (self.others, self.last_other.elapsed());
        (others > 0 && ago < REPORT_TIMEOUT).then(|| {
            let (ago, s) = (ago.as_secs(), if others == 1 { "" } else { "s" });
            format!(
                "rejected {others} other connection{s}, the last one {ago} s ago: \
                 does a second program or VMM use this socket?"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_beside_another_are_reported_as_a_second_vmm() {
        let mut away = RejectedConnections::default();
        away.record(false);
        assert_eq!((away.reason(), away.count), (None, 1));
        away.record(true);
        let expected = "rejected 1 other connection, the last one 0 s ago: \
                        does a second program or VMM use this socket?";
        assert_eq!(away.reason().as_deref(), Some(expected));
        // The report expires, whatever is rejected later.
        away.last_other = Instant::now().checked_sub(REPORT_TIMEOUT).unwrap();
        away.record(false);
        assert_eq!((away.reason(), away.count), (None, 3));
    }

    #[test]
    fn the_report_ends_with_the_connection_that_was_open() {
        let mut away = RejectedConnections::default();
        away.record(true);
        away.record(true);
        assert!(
            away.reason()
                .unwrap()
                .starts_with("rejected 2 other connections, ")
        );
        away.connection_ended();
        assert_eq!((away.reason(), away.count), (None, 2));
        // The next one is reported by itself.
        away.record(true);
        assert!(
            away.reason()
                .unwrap()
                .starts_with("rejected 1 other connection, ")
        );
    }
}
