//! Figures of a worker.

use channel::driving::DriverCounters;
use channel::user_reports::UserTotals;
use usernet::Failure;
use usernet::network::Refusal;

/// Counters of a worker.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) frames: DriverCounters,
    /// Bound of flows, which the process cannot ask for any more.
    pub(super) flows_max: u32,
    pub(super) totals: UserTotals,
}

impl Counters {
    /// A frame or a connection is refused.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.frames.rejected_by_interface += 1;
        let at = Refusal::ALL.iter().position(|of| *of == refusal);
        if let Some(count) = at.and_then(|at| self.totals.refused.get_mut(at)) {
            *count += 1;
        }
    }

    /// A connection is established, or a mapping opened.
    pub(super) fn established(&mut self) {
        self.totals.results[0] += 1;
    }

    /// The socket of a connection failed before it was established.
    pub(super) fn failed(&mut self, failure: Failure) {
        match failure.refusal() {
            None => self.totals.results[1] += 1,
            Some(refusal) => {
                self.totals.results[2] += 1;
                self.refuse(refusal);
            }
        }
    }
}
