//! The switch's side of connection tracking.

use conntrack::{Ingress, Millis};
use flow_table::CachedDecision;
use policy::{PortId, SegmentId};
use wire::flow::FlowKey;
use wire::packet::ParsedHeaders;

use super::Switch;
use crate::forward::pending_upcalls::PendingFrame;
use crate::forward::tracking::pending::Resumption;
use crate::forward::tracking::sweep::Departure;
use crate::forward::tracking::{Connections, Tracking, read_parsed};
use crate::ports::port::Port;

/// The removal of a port's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    port: PortId,
    begun: Option<Departure>,
}

impl Flush {
    pub(crate) const fn of(port: PortId) -> Self {
        Self { port, begun: None }
    }
}

impl<P: Port> Switch<P> {
    /// Tracks the connections of the program's tracked segments in this table, or no longer.
    /// Returns whether it does so: a table has a limited number of threads.
    pub fn set_tracking(&mut self, tracking: Option<Tracking>) -> bool {
        let connections = tracking.and_then(Connections::new).map(Box::new);
        let is_on = connections.is_some();
        if let Some(lookup) = self.tracked_lookup(is_on) {
            lookup.connections = connections;
        }
        if is_on {
            self.follow_program();
        } else {
            self.set_tracked_ports(&[], self.now_ms());
        }
        is_on
    }

    /// Takes the tracked segments and ports from the program. Called when all flows are gone that
    /// another program decides otherwise: what these commit is let in by the rules of before.
    pub(crate) fn follow_program(&mut self) {
        let zones = self.program().tracked_segments().to_vec();
        let Some(connections) = self.connections() else {
            return;
        };
        connections.set_zones(zones);
        let ports: Vec<_> = self.program().tracked_ports().collect();
        self.set_tracked_ports(&ports, self.now_ms());
    }

    /// Judges a frame that waited once more, and has its connection opened, renewed, counted or
    /// forgotten as the decision says. The lookup of its port is in hand.
    pub(crate) fn resume(
        &mut self,
        key: &FlowKey,
        frame: &PendingFrame,
        (decided, rules): (CachedDecision, u16),
        now: u64,
    ) -> Resumption {
        let Some(connections) = self.lookup.connections.as_deref_mut() else {
            return Resumption::Decided(decided);
        };
        let rule = self.lookup.flows.first_rule(rules);
        let from = PortId(key.in_port());
        let (headers, len) = (frame.headers.as_slice(), frame.bytes());
        let at = (&connections.zones, &self.fabric.program, from);
        let parsed = ParsedHeaders::parse(headers, len);
        let parsed = read_parsed(at, (&parsed, headers), !frame.offload.is_nothing());
        let station = (SegmentId(parsed.zone.number), key.smac());
        let ingress = Ingress {
            port: from.0 as u16,
            is_home: self.lookup.flows.is_home(station, from),
            ..Ingress::default()
        };
        let asked = (key.ct(), decided, rule);
        let macs = (key.smac(), key.dmac());
        connections.resume(&parsed, (ingress, macs, len), asked, now as Millis)
    }

    /// Returns the table of connections with the time of its clock, if connections are tracked.
    pub(crate) fn tracking(&mut self) -> Option<(Tracking, Millis)> {
        let now = self.now_ms() as Millis;
        Some((self.connections()?.tracking.clone(), now))
    }

    /// Returns whether connections are tracked.
    pub(crate) fn is_tracking(&mut self) -> bool {
        self.connections().is_some()
    }

    /// Removes connections that are over, a part at a time.
    pub(crate) fn sweep_connections(&mut self, now: u64) {
        if let Some(connections) = self.connections() {
            connections.sweep(now);
        }
    }

    /// Removes a part of the connections of a port. Returns the rest of the work; `None` when it is
    /// done.
    pub(crate) fn flush_connections(&mut self, flush: Flush, now: u64) -> Option<Flush> {
        let tracking = &self.connections()?.tracking;
        if tracking.table.is_empty() {
            return None;
        }
        let Some(leave) = flush.begun else {
            let begun = tracking.sweeper.leave(flush.port);
            return Some(Flush { begun, ..flush });
        };
        let done = tracking
            .sweeper
            .continue_leave(leave, &tracking.settings, now as Millis);
        (!done).then_some(flush)
    }

    fn connections(&mut self) -> Option<&mut Connections> {
        self.tracked_lookup(false)?.connections.as_deref_mut()
    }

    /// Returns the time in milliseconds.
    fn now_ms(&self) -> u64 {
        self.fabric.now / 1_000_000
    }
}
