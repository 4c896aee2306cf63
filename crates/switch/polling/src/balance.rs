//! What looking has cost beside sleeping.

/// Sleeps before a trial: the first, and the most after some in vain. Their number doubles. With
/// the trial it is odd, so that in waits that alternate each kind has its trials.
const SLEEPS_PER_TRIAL: (u32, u32) = (16, 1024);
/// A trial follows if this part of the sleeps may have been short: a fourth.
const SHORT_PART: u32 = 4;

/// The cost of looking less that of sleeping at once, over recent waits of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Balance {
    /// Nanoseconds.
    cost: i64,
    /// Sleeps since the last look, and those that may have been short.
    sleeps: u32,
    short_sleeps: u32,
    until_trial: u32,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            cost: 0,
            sleeps: 0,
            short_sleeps: 0,
            until_trial: SLEEPS_PER_TRIAL.0,
        }
    }
}

impl Balance {
    /// Returns whether to look in the next wait.
    pub(crate) fn is_for_looking(&self) -> bool {
        let is_trial =
            self.sleeps >= self.until_trial && self.short_sleeps * SHORT_PART >= self.until_trial;
        self.cost < 0 || is_trial
    }

    /// Enters a look: `more` is what it has cost beyond a sleep, nanoseconds, `limit` the limit of
    /// the balance.
    pub(crate) fn looked(&mut self, more: i64, limit: i64) {
        (self.sleeps, self.short_sleeps) = (0, 0);
        let (least, most) = SLEEPS_PER_TRIAL;
        self.until_trial = match more < 0 {
            true => least,
            false => (2 * self.until_trial).min(most),
        };
        if more < 0 {
            // A trial has shown more than sleeps can.
            self.cost = self.cost.min(0);
        }
        self.add(more, limit);
    }

    /// Enters a sleep: what a look would have cost beyond it, by estimate.
    pub(crate) fn slept(&mut self, more: i64, limit: i64, may_be_short: bool) {
        self.sleeps = self.sleeps.saturating_add(1);
        self.short_sleeps = self.short_sleeps.saturating_add(may_be_short.into());
        self.add(more, limit);
    }

    fn add(&mut self, more: i64, limit: i64) {
        self.cost = (self.cost + more).clamp(-limit, limit);
    }
}
