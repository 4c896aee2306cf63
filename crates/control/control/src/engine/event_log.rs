//! Events of the engine. Those that a guest can cause are limited per port.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::v1::{ConnectionOpener, EventKind};
use ipc::switching::{PhaseReport, PortPhase};
use port::{EventLimiter, PortId};
use wire::MacAddr;

use super::forwarding::{Directory, Notice};
use super::queries::status::api_state;
use crate::events::{self, Events};

/// Events and log lines that one port's guest can cause, per interval: the same limit as that of
/// the switch.
pub(super) const PORT_EVENTS: (u32, Duration) = (30, Duration::from_secs(30));

/// Changes of phases that are reported together and have a line each in the log.
const LOGGED_PHASES: usize = 16;

/// See the module documentation.
#[derive(Default)]
pub(super) struct EventLog {
    pub(super) events: Events,
    /// Limiters of the events that each port's guest can cause.
    limiters: BTreeMap<PortId, EventLimiter>,
    /// Phases of ports whose events are held back by a limiter.
    pending_phases: BTreeMap<PortId, (PortPhase, Option<String>)>,
    /// Ports with connections at a bound, by the word for the side that opens them.
    full: BTreeSet<(PortId, &'static str)>,
}

impl EventLog {
    /// Returns whether an event that a port's guest caused may be sent: `Some` with the number of
    /// events suppressed before it.
    fn admit(&mut self, now: Duration, port: PortId) -> Option<u64> {
        let limiter = self.limiters.entry(port);
        let limiter = limiter.or_insert_with(|| EventLimiter::new(PORT_EVENTS.0, PORT_EVENTS.1));
        limiter.admit(now)
    }

    /// Sends the event of something that a guest has caused.
    pub(super) fn emit(&mut self, now: Duration, notice: &Notice, directory: Directory<'_>) {
        let (Notice::Moved(_, _, port) | Notice::Flapping(_, port, _) | Notice::Bound(port, _)) =
            *notice;
        let Some(suppressed) = self.admit(now, port) else {
            return;
        };
        let name = |port| directory.ports.name(port).to_owned();
        let segment = |id| directory.store.segment_name(id).to_owned();
        let what = match notice {
            Notice::Moved((id, mac), from, to) => EventKind::MacMoved {
                segment: segment(*id),
                mac: mac.to_string(),
                from: name(*from),
                to: name(*to),
            },
            Notice::Flapping((id, mac), port, holder) => EventKind::MacFlapping {
                segment: segment(*id),
                mac: mac.to_string(),
                port: name(*port),
                holder: name(*holder),
            },
            Notice::Bound(port, bound) => EventKind::AddressBound {
                port: name(*port),
                mac: bound.mac.map(|mac| MacAddr(mac).to_string()),
                addresses: bound.addresses().map(|a| a.to_string()).collect(),
            },
        };
        self.events.emit(what, suppressed);
    }

    /// Records the phases of ports, and sends each event now or when its limiter admits it. Many at
    /// once are those of connections that continue: they have one line in the log.
    pub(super) fn phases_changed(
        &mut self,
        now: Duration,
        reports: Vec<PhaseReport>,
        directory: Directory<'_>,
    ) {
        let is_logged = reports.len() <= LOGGED_PHASES;
        if !is_logged {
            let is_up = |report: &&PhaseReport| report.phase == PortPhase::Up;
            let up = reports.iter().filter(is_up).count();
            tracing::info!(ports = reports.len(), up, "ports changed together");
        }
        for PhaseReport {
            port,
            phase,
            reason,
        } in reports
        {
            self.pending_phases.insert(port, (phase, reason));
            self.emit_phase(now, port, is_logged, directory);
        }
    }

    /// Sends the port events that were held back.
    pub(super) fn emit_pending(&mut self, now: Duration, directory: Directory<'_>) {
        let is_admitted = |port: &PortId| {
            let limiter = self.limiters.get(port);
            limiter.is_none_or(|limiter| !limiter.is_exhausted(now))
        };
        let ports = self.pending_phases.keys().copied();
        let ports: Vec<PortId> = ports.filter(is_admitted).collect();
        for port in ports {
            self.emit_phase(now, port, true, directory);
        }
    }

    fn emit_phase(
        &mut self,
        now: Duration,
        port: PortId,
        is_logged: bool,
        directory: Directory<'_>,
    ) {
        let Some(suppressed) = self.admit(now, port) else {
            return;
        };
        let Some((phase, reason)) = self.pending_phases.remove(&port) else {
            return;
        };
        // The reason of a connected port is that of an earlier phase.
        let is_served = matches!(phase, PortPhase::Connected | PortPhase::Up);
        let reason = reason.filter(|_| !is_served);
        let what = EventKind::Port {
            port: directory.ports.name(port).to_owned(),
            state: api_state(phase),
            reason: reason.as_deref().map(events::printable),
        };
        match phase {
            PortPhase::Up if is_logged => self.events.emit(what, suppressed),
            // The switch logs connections, disconnections and protocol errors itself.
            _ => self.events.publish(events::unlogged(what, suppressed)),
        }
    }

    /// Sends the event of connections that have reached a bound, unless it was sent before.
    pub(super) fn full(
        &mut self,
        now: Duration,
        (port, opener): (PortId, ConnectionOpener),
        what: EventKind,
    ) {
        if self.full.contains(&(port, opener.as_str())) {
            return;
        }
        // One that is suppressed now is sent later, if they are still at the bound.
        if let Some(suppressed) = self.admit(now, port) {
            self.full.insert((port, opener.as_str()));
            self.events.emit(what, suppressed);
        }
    }

    /// Sends an event that frames of a port can cause, unless there were too many before.
    pub(super) fn limited(&mut self, now: Duration, port: PortId, what: EventKind) {
        if let Some(suppressed) = self.admit(now, port) {
            self.events.emit(what, suppressed);
        }
    }

    /// Notes that connections are well below their bounds.
    pub(super) fn no_longer_full(&mut self, (port, opener): (PortId, ConnectionOpener)) {
        self.full.remove(&(port, opener.as_str()));
    }

    /// Publishes the supervisor's events, which are in the log already.
    pub(super) fn publish_documents(&self, documents: Vec<String>) {
        for document in documents {
            match serde_json::from_str(&document) {
                Ok(event) => self.events.publish(event),
                Err(error) => tracing::debug!("malformed event from the supervisor: {error}"),
            }
        }
    }

    /// Forgets a port that was removed.
    pub(super) fn forget(&mut self, port: PortId) {
        self.limiters.remove(&port);
        self.pending_phases.remove(&port);
        self.full.retain(|(of, _)| *of != port);
    }
}
