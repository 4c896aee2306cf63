//! What deliveries cost, and who pays for it.

use port::Port;
use port::counters::Ticks;

use super::Fabric;

impl<P: Port> Fabric<P> {
    /// Counts what all that was flushed since the last time has cost, at those who got it. `false` if nobody did.
    pub(crate) fn pay(&mut self, copying: u64) -> bool {
        let ticks = |copying| Ticks {
            switching: 0,
            copying,
        };
        match self.payers.as_slice() {
            [] => return false,
            [one] => self.counters.add_ticks(one.port, ticks(copying)),
            many => {
                let total: u64 = many.iter().map(|payer| payer.load).sum();
                for payer in many {
                    let part = u128::from(copying) * u128::from(payer.load) / u128::from(total);
                    self.counters.add_ticks(payer.port, ticks(part as u64));
                }
            }
        }
        self.payers.clear();
        true
    }
}
