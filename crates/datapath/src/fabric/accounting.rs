//! CPU cycles of deliveries, charged to the receivers.

use port::Port;
use port::counters::Ticks;

use super::Fabric;

impl<P: Port> Fabric<P> {
    /// Charges the cycles since the last call to the receivers of the flushed frames. Returns
    /// `false` if there were none.
    pub(crate) fn charge_receivers(&mut self, copying: u64) -> bool {
        let ticks = |copying| Ticks {
            switching: 0,
            copying,
        };
        match self.uncharged.as_slice() {
            [] => return false,
            [one] => self.counters.add_ticks(one.port, ticks(copying)),
            many => {
                let total: u64 = many.iter().map(|receiver| receiver.load).sum();
                for receiver in many {
                    let part = u128::from(copying) * u128::from(receiver.load) / u128::from(total);
                    self.counters.add_ticks(receiver.port, ticks(part as u64));
                }
            }
        }
        self.uncharged.clear();
        true
    }
}
