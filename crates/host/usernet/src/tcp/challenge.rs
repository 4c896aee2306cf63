//! A bound on challenge acknowledgements (RFC 5961, section 7). Each flow has its own: one that all
//! shared would tell a guest what another one's flow does.

use crate::Nanos;

/// Challenges of a flow in an interval, as the section has them.
const MOST: u8 = 10;
const INTERVAL: Nanos = 5_000_000_000;

/// The challenges of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    begin: Nanos,
    sent: u8,
}

impl Challenges {
    /// Returns whether one more may be sent.
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.begin) >= INTERVAL {
            *self = Self {
                begin: now,
                sent: 0,
            };
        }
        let may = self.sent < MOST;
        self.sent += u8::from(may);
        may
    }
}
