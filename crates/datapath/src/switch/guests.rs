//! What is asked of all guests' ports now and then.

use port::PortId;

use super::Switch;
use crate::guest::{GuestFault, GuestPort};

impl Switch<GuestPort> {
    /// Ports whose VMM took guest memory away, and whether all were seen: others may be busy with some.
    pub fn ports_without_memory(&mut self) -> (Vec<PortId>, bool) {
        let (mut lost, mut all) = (Vec::new(), true);
        for (id, slot) in self.fabric.slots.iter_mut().enumerate() {
            match slot.as_mut().map(|slot| slot.port.lost_memory()) {
                Some(Some(true)) => lost.push(PortId(id as u32)),
                Some(None) => all = false,
                Some(Some(false)) | None => {}
            }
        }
        (lost, all)
    }

    /// Queues whose guests broke a rule since the last call: port, queue index, and how.
    pub fn take_faults(&mut self) -> Vec<(PortId, u16, GuestFault)> {
        let mut faults = Vec::new();
        for (id, slot) in self.fabric.slots.iter_mut().enumerate() {
            while let Some((queue, fault)) = slot.as_mut().and_then(|s| s.port.take_fault()) {
                faults.push((PortId(id as u32), queue, fault));
            }
        }
        faults
    }
}
