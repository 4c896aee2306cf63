//! Frames that control has made in answer to one that waited.

use port::{Port, PortId};
use wire::vlan::CAP;

use super::Switch;

impl<P: Port> Switch<P> {
    /// Gives a port a frame in answer to one with this tag; nothing if it is longer than any that control makes.
    pub(crate) fn send_own(&mut self, to: PortId, tag: Option<u16>, frame: &[u8]) {
        if frame.len() > CAP {
            return;
        }
        self.meter.begin();
        self.fabric.give_own(to, tag, frame);
        self.fabric.flush();
        let copying = self.meter.lap();
        self.fabric.pay(copying);
    }
}
