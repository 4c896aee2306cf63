//! Why a queue was stopped, for an operator who asks when the program has ended: one that closes
//! its port in order stops its queues itself, and with them ends their fault.

use std::time::{Duration, Instant};

/// Time for which the reason outlives the connection.
const KEPT: Duration = Duration::from_secs(60);

/// The last queue that broke a rule.
#[derive(Debug, Default)]
pub(super) struct StoppedQueues {
    reason: Option<String>,
    /// When its connection ended.
    ended: Option<Instant>,
}

impl StoppedQueues {
    /// A queue was stopped.
    pub(super) fn note(&mut self, index: u16, reason: &str) {
        self.reason = Some(format!("queue {index} stopped: {reason}"));
        self.ended = None;
    }

    /// The connection has ended, if it was that of the queue.
    pub(super) fn connection_ended(&mut self, now: Instant) {
        self.ended = self.ended.or(Some(now));
    }

    /// The open connection serves its guest. What happened in the one before is over.
    pub(super) fn next_serves(&mut self) {
        if self.ended.is_some() {
            *self = Self::default();
        }
    }

    /// Returns the reason; `serves`: queues run, so there is nothing to explain.
    pub(super) fn reason(&self, serves: bool, now: Instant) -> Option<String> {
        let ended = self.ended.unwrap_or(now);
        let is_kept = !serves && now.saturating_duration_since(ended) < KEPT;
        self.reason.clone().filter(|_| is_kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_outlives_its_connection_by_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stopped = StoppedQueues::default();
        assert_eq!(stopped.reason(false, start), None);
        stopped.note(3, "a buffer that is none");
        let reason = Some("queue 3 stopped: a buffer that is none".to_owned());
        assert_eq!(stopped.reason(false, at(500)), reason, "it is open");
        assert_eq!(stopped.reason(true, at(500)), None, "others run");
        stopped.connection_ended(at(500));
        assert_eq!(stopped.reason(false, at(559)), reason);
        assert_eq!(stopped.reason(false, at(560)), None);
        // Connections that serve nothing, in between.
        stopped.connection_ended(at(530));
        assert_eq!(stopped.reason(false, at(560)), None);
        stopped.next_serves();
        assert_eq!(stopped.reason(false, at(501)), None);
    }

    #[test]
    fn queues_beside_a_stopped_one_do_not_end_its_reason() {
        let start = Instant::now();
        let mut stopped = StoppedQueues::default();
        stopped.note(1, "x");
        stopped.next_serves();
        assert!(stopped.reason(false, start).is_some());
    }
}
