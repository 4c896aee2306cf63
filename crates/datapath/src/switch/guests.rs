//! Periodic checks of all guest ports.

use port::PortId;

use super::Switch;
use crate::guest::{GuestFault, GuestPort};

impl Switch<GuestPort> {
    /// Returns the ports whose VMM removed guest memory, and whether all ports were checked: other
    /// workers may have locked some.
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

    /// Returns the queues whose guests violated the protocol since the last call: port, queue
    /// index, fault.
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
