//! Events of the engine. Those that a guest can cause are limited per port.

use std::io;

use api::v1::EventKind;
use channel::switching::PortPhase;
use policy::SegmentId;
use policy::port_security::Bindings;
use port::{EventLimiter, PortId};
use wire::MacAddr;

use super::documents::api_state;
use super::{Engine, PORT_EVENTS};
use crate::events;

impl Engine {
    /// Returns whether an event that a port's guest caused may be sent: `Some` with the number of
    /// events suppressed before it.
    fn admit_event(&mut self, port: PortId) -> Option<u64> {
        let now = self.now();
        let limiter = self.event_limiters.entry(port);
        let limiter = limiter.or_insert_with(|| EventLimiter::new(PORT_EVENTS.0, PORT_EVENTS.1));
        limiter.admit(now)
    }

    pub(super) fn emit_mac_moved(
        &mut self,
        (segment, mac): (SegmentId, MacAddr),
        from: PortId,
        to: PortId,
    ) {
        if let Some(suppressed) = self.admit_event(to) {
            let what = EventKind::MacMoved {
                segment: self.segment_name(segment).to_owned(),
                mac: mac.to_string(),
                from: self.port_name(from).to_owned(),
                to: self.port_name(to).to_owned(),
            };
            self.events.emit(what, suppressed);
        }
    }

    pub(super) fn emit_mac_spoofed(&mut self, (segment, mac): (SegmentId, MacAddr), port: PortId) {
        if let Some(suppressed) = self.admit_event(port) {
            let what = EventKind::MacSpoofed {
                segment: self.segment_name(segment).to_owned(),
                mac: mac.to_string(),
                port: self.port_name(port).to_owned(),
            };
            self.events.emit(what, suppressed);
        }
    }

    pub(super) fn emit_address_bound(&mut self, port: PortId, bound: &Bindings) {
        if let Some(suppressed) = self.admit_event(port) {
            let what = EventKind::AddressBound {
                port: self.port_name(port).to_owned(),
                mac: bound.mac.map(|mac| MacAddr(mac).to_string()),
                addresses: bound.addresses().map(|a| a.to_string()).collect(),
            };
            self.events.emit(what, suppressed);
        }
    }

    /// Sends the port events that were held back.
    pub(super) fn emit_pending_phases(&mut self) {
        let now = self.now();
        let is_admitted = |port: &PortId| {
            let limiter = self.event_limiters.get(port);
            limiter.is_none_or(|limiter| !limiter.is_exhausted(now))
        };
        let ports = self.pending_phases.keys().copied();
        let ports: Vec<PortId> = ports.filter(is_admitted).collect();
        for port in ports {
            self.emit_phase(port);
        }
    }

    /// Sends the event of a port's phase, now or when the limiter admits it.
    pub(super) fn emit_phase(&mut self, port: PortId) {
        if !self.pending_phases.contains_key(&port) {
            return;
        }
        let Some(suppressed) = self.admit_event(port) else {
            return;
        };
        let Some((phase, reason)) = self.pending_phases.remove(&port) else {
            return;
        };
        // The reason of a connected port is that of an earlier phase.
        let is_served = matches!(phase, PortPhase::Connected | PortPhase::Up);
        let reason = reason.filter(|_| !is_served);
        let what = EventKind::Port {
            port: self.port_name(port).to_owned(),
            state: api_state(phase),
            reason: reason.as_deref().map(events::printable),
        };
        match phase {
            PortPhase::Up => self.events.emit(what, suppressed),
            // The switch logs connections, disconnections and protocol errors itself.
            _ => self.events.publish(events::unlogged(what, suppressed)),
        }
    }

    /// Publishes the supervisor's events, which are in the log already, and requests more.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn publish_supervisor_events(&mut self) -> io::Result<()> {
        let documents = self.supervisor.take_events();
        if documents.is_empty() {
            return Ok(());
        }
        for document in documents {
            match serde_json::from_str(&document) {
                Ok(event) => self.events.publish(event),
                Err(error) => tracing::debug!("malformed event from the supervisor: {error}"),
            }
        }
        self.supervisor.request_events(true)
    }
}
