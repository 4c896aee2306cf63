//! Rejected connections, which are closed at once: a port has one guest.

use std::time::{Duration, Instant};

use super::pause::Pauses;

/// Time for which the port's reason mentions rejected connections, seconds.
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

    /// Notes that the open connection has ended.
    pub(super) fn connection_ended(&mut self) {
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
            let ago = ago.as_secs();
            format!(
                "rejected {others} other connections, the last one {ago} s ago: \
                 does a second VMM use this socket?"
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
        assert!(away.reason().unwrap().starts_with("rejected 1 other"));
        // The report expires, whatever is rejected later.
        away.last_other = Instant::now().checked_sub(REPORT_TIMEOUT).unwrap();
        away.record(false);
        assert_eq!((away.reason(), away.count), (None, 3));
    }
}
