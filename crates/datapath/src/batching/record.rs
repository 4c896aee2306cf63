//! Whether something that is tried again and again pays.

/// After the first time that it did not pay, it is spared so many times, and twice as many after each other time.
const SPARED: u32 = 8;
const SPARED_MOST: u32 = 1024;

/// What became of trying.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Record {
    /// Times that it did not pay, less those that it did.
    failures: u32,
    /// So many times it is not tried.
    spared: u32,
}

impl Record {
    /// Whether to try. Asked once each time that it could be.
    pub(crate) fn wants(&mut self) -> bool {
        let spared = self.spared > 0;
        self.spared = self.spared.saturating_sub(1);
        !spared
    }

    /// How a try went.
    pub(crate) fn learn(&mut self, paid: bool) {
        if paid {
            self.failures = self.failures.saturating_sub(1);
            return;
        }
        let doublings = self.failures.min(SPARED_MOST.ilog2());
        self.spared = (SPARED << doublings).min(SPARED_MOST);
        self.failures = self.failures.saturating_add(1);
    }
}
