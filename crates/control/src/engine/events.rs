//! What the engine tells those who watch. What a guest can cause is told of each port no more often than its limit says.

use std::io;

use api::v1::EventKind;
use channel::switching::PortPhase;
use policy::SegmentId;
use policy::guard::Bound;
use port::{EventLimiter, PortId};
use wire::MacAddr;

use super::documents::api_state;
use super::{Engine, PORT_EVENTS};
use crate::events;

impl Engine {
    /// Whether there may be an event about what a port's guest did, and how many were left out before it.
    fn may_tell(&mut self, port: PortId) -> Option<u64> {
        let now = self.now();
        let limiter = self.ports_told.entry(port);
        let limiter = limiter.or_insert_with(|| EventLimiter::new(PORT_EVENTS.0, PORT_EVENTS.1));
        limiter.once_more(now)
    }

    pub(super) fn tell_moved(
        &mut self,
        (segment, mac): (SegmentId, MacAddr),
        from: PortId,
        to: PortId,
    ) {
        if let Some(left_out) = self.may_tell(to) {
            let what = EventKind::Moved {
                segment: self.segment_name(segment).to_owned(),
                mac: mac.to_string(),
                from: self.port_name(from).to_owned(),
                to: self.port_name(to).to_owned(),
            };
            self.events.tell(what, left_out);
        }
    }

    pub(super) fn tell_claimed(&mut self, (segment, mac): (SegmentId, MacAddr), port: PortId) {
        if let Some(left_out) = self.may_tell(port) {
            let what = EventKind::Claimed {
                segment: self.segment_name(segment).to_owned(),
                mac: mac.to_string(),
                port: self.port_name(port).to_owned(),
            };
            self.events.tell(what, left_out);
        }
    }

    pub(super) fn tell_bound(&mut self, port: PortId, bound: &Bound) {
        if let Some(left_out) = self.may_tell(port) {
            let what = EventKind::Bound {
                port: self.port_name(port).to_owned(),
                mac: bound.mac.map(|mac| MacAddr(mac).to_string()),
                addresses: bound.addresses().map(|a| a.to_string()).collect(),
            };
            self.events.tell(what, left_out);
        }
    }

    /// Tells how far ports are of which that was left out.
    pub(super) fn tell_phases(&mut self) {
        let now = self.now();
        let may_be_told = |port: &PortId| {
            let limiter = self.ports_told.get(port);
            limiter.is_none_or(|limiter| !limiter.is_exhausted(now))
        };
        let ports = self.phases_untold.keys().copied();
        let ports: Vec<PortId> = ports.filter(may_be_told).collect();
        for port in ports {
            self.tell_phase(port);
        }
    }

    /// Tells how far a port is, now or when that may be told.
    pub(super) fn tell_phase(&mut self, port: PortId) {
        if !self.phases_untold.contains_key(&port) {
            return;
        }
        let Some(left_out) = self.may_tell(port) else {
            return;
        };
        let Some((phase, reason)) = self.phases_untold.remove(&port) else {
            return;
        };
        // Of a port that is served, the reason is why it was not before.
        let is_served = matches!(phase, PortPhase::Connected | PortPhase::Up);
        let reason = reason.filter(|_| !is_served);
        let what = EventKind::Port {
            port: self.port_name(port).to_owned(),
            state: api_state(phase),
            reason: reason.as_deref().map(events::text),
        };
        match phase {
            PortPhase::Up => self.events.tell(what, left_out),
            // The switch itself logs who connects, leaves, or breaks a rule.
            _ => self.events.adopt(events::untold(what, left_out)),
        }
    }

    /// Passes on what the supervisor has told, which is in the log, and asks for more.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn tell_supervisors_events(&mut self) -> io::Result<()> {
        let documents = self.supervisor.take_events();
        if documents.is_empty() {
            return Ok(());
        }
        for document in documents {
            match serde_json::from_str(&document) {
                Ok(event) => self.events.adopt(event),
                Err(error) => tracing::debug!("an event of the supervisor is none: {error}"),
            }
        }
        self.supervisor.ask_for_events(true)
    }
}
