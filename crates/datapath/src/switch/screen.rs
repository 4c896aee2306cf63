//! What frames of guarded ports do, for their keys.
//!
//! Almost every frame shows in its first bytes that it does nothing a guard asks about. Only one that does not is looked at
//! further; so a guarded port needs no more of a frame than another, as long as no flow looks above Ethernet.

use port::{Port, PortId};
use wire::Conduct;
use wire::flow::FlowKey;
use wire::packet::Parsed;

use super::Switch;
use crate::fabric::Fabric;

impl<P: Port> Fabric<P> {
    /// Everything of a frame that a decision may look at. One that is decided alone must not share its key with another: it is
    /// numbered, where ICMPv6 has no ports.
    pub(super) fn exact_key(
        &self,
        from: PortId,
        headers: &[u8],
        len: usize,
        number: u64,
    ) -> FlowKey {
        let key = FlowKey::new(from.0, &Parsed::parse(headers, len));
        let guard = self.program.guard(from);
        if guard.is_open() {
            return key;
        }
        let conduct = Conduct::of(headers, len);
        let key = key.with_conduct(conduct);
        match guard.asks_one_by_one(&key) {
            true => key.with_l4_ports((number >> 16) as u16, number as u16),
            false => key,
        }
    }
}

impl<P: Port> Switch<P> {
    /// Whether it has to be known what frames of this port do.
    #[inline]
    pub(super) fn screens(&self, from: PortId) -> bool {
        !self.fabric.program.guard(from).is_open()
    }

    /// What a frame does that is not seen to be ordinary.
    #[cold]
    pub(super) fn look_closer(&mut self, index: usize) -> Conduct {
        self.batch.deepen(index);
        let len = self.batch.frames()[index].len() as usize;
        Conduct::of(self.batch.frames()[index].headers.as_slice(), len)
    }
}
