//! Repeated trials: whether a measure pays.

/// Opportunities that are skipped after the first failure; twice as many after each further one.
const SKIPS: u32 = 8;
const MAX_SKIPS: u32 = 1024;

/// The record of earlier trials.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TrialRecord {
    /// Failures less successes.
    failures: u32,
    /// The number of opportunities to skip.
    skips: u32,
}

impl TrialRecord {
    /// Returns whether to try. To be called once for each opportunity.
    pub(crate) fn should_try(&mut self) -> bool {
        let skips = self.skips > 0;
        self.skips = self.skips.saturating_sub(1);
        !skips
    }

    /// Records the result of a trial.
    pub(crate) fn learn(&mut self, paid: bool) {
        if paid {
            self.failures = self.failures.saturating_sub(1);
            return;
        }
        let doublings = self.failures.min(MAX_SKIPS.ilog2());
        self.skips = (SKIPS << doublings).min(MAX_SKIPS);
        self.failures = self.failures.saturating_add(1);
    }
}
