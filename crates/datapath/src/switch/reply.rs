//! Frames that control generated in reply to a pending one.

use port::{Port, PortId};
use wire::vlan::CAP;

use super::Switch;

impl<P: Port> Switch<P> {
    /// Delivers a generated frame to a port in reply to a frame with this tag. Frames longer than
    /// the header buffer are ignored; control generates none.
    pub(crate) fn send_generated(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        if frame.len() > CAP {
            return;
        }
        self.meter.begin();
        self.fabric.deliver_generated(to, tag, frame);
        self.fabric.flush();
        let copying = self.meter.lap();
        self.fabric.charge_receivers(copying);
    }
}
