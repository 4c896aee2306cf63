//! Choice of the lookup for a batch or an answer: that of tracked ports, or that of all others.

use ipc::flows::CachedFlow;
use port::PortId;
use wire::flow::FlowKey;

use super::Switch;
use crate::forward::flow_batch::Lookup;
use crate::forward::tables::{Tables, TrackedPorts};
use crate::ports::port::Port;

impl<P: Port> Switch<P> {
    /// Takes up the lookup with the flows of this port.
    #[inline]
    pub(super) fn take_up_lookup(&mut self, id: PortId) {
        if let Some(tracked) = &mut self.tracked {
            tracked.take_up(&mut self.lookup, id);
        }
    }

    /// Returns the tables of all flows.
    pub(crate) fn tables(&mut self) -> Tables<'_> {
        Tables::of(&mut self.lookup, self.tracked.as_deref_mut())
    }

    /// Returns the flow that a frame with this key has now.
    pub(crate) fn peek(&mut self, key: &FlowKey, now: u64) -> Option<CachedFlow> {
        self.take_up_lookup(PortId(key.in_port()));
        self.lookup.flows.peek(key, now)
    }

    /// Sets the tracked ports, and begins to remove the flows of those that become tracked or are
    /// no longer; [`Switch::continue_work`] completes that. With the first one the switch gets a
    /// second flow table, which it keeps.
    pub fn set_tracked_ports(&mut self, ports: &[PortId], now: u64) {
        if !ports.is_empty() {
            self.tracked_lookup(true);
        }
        let Some(tracked) = &mut self.tracked else {
            return;
        };
        for id in tracked.replace(ports) {
            self.forget_flows_of(id, now);
        }
    }

    /// Returns the lookup of tracked ports. `make`: if there is none, it is made.
    pub(crate) fn tracked_lookup(&mut self, make: bool) -> Option<&mut Lookup> {
        if self.tracked.is_none() && make {
            self.tracked = Some(Box::new(TrackedPorts::beside(&self.lookup)));
        }
        let tracked = self.tracked.as_deref_mut()?;
        Some(tracked.lookup(&mut self.lookup))
    }

    /// Ends the tracking of a port that is removed.
    pub(super) fn untrack(&mut self, id: PortId) {
        if let Some(tracked) = &mut self.tracked {
            tracked.remove(id);
        }
    }
}
