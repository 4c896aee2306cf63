//! Frame classes of ports with port security, as part of their flow keys.
//!
//! Almost every frame is ordinary by its first bytes. Only the others are parsed further; so a port
//! with port security needs no more of a frame than another one while no flow looks above Ethernet.

use policy::frame_class::classify;
use port::{Port, PortId};
use wire::FrameClass;
use wire::flow::FlowKey;
use wire::packet::Parsed;

use super::Switch;
use crate::fabric::Fabric;

impl<P: Port> Fabric<P> {
    /// Returns all fields that a decision may look at. A frame that is decided alone must not share
    /// its key with another: it is numbered in the ports, which ICMPv6 does not have.
    pub(super) fn exact_key(
        &self,
        from: PortId,
        headers: &[u8],
        len: usize,
        number: u64,
    ) -> FlowKey {
        let key = FlowKey::new(from.0, &Parsed::parse(headers, len));
        let security = self.program.port_security(from);
        if security.is_open() {
            return key;
        }
        let frame_class = classify(headers, len);
        let key = key.with_frame_class(frame_class);
        if security.needs_upcalls(&key) {
            key.with_l4_ports((number >> 16) as u16, number as u16)
        } else {
            key
        }
    }
}

impl<P: Port> Switch<P> {
    /// Returns whether frames of this port need a frame class.
    #[inline]
    pub(super) fn has_port_security(&self, from: PortId) -> bool {
        !self.fabric.program.port_security(from).is_open()
    }

    /// Returns the class of a frame that is not ordinary by its first bytes.
    #[cold]
    pub(super) fn classify(&mut self, index: usize) -> FrameClass {
        self.batch.deepen(index);
        let len = self.batch.frames()[index].len() as usize;
        classify(self.batch.frames()[index].headers.as_slice(), len)
    }
}
