//! Port security: bindings of ports, and decisions that hold for one frame only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipc::records::Upcall;
use ipc::switching::{PhaseReport, PortPhase, PortState, Station, StationUse};
use policy::connection::WithFarPort;
use policy::frame_class::{Neighbour, classify};
use policy::port_security::{Addresses, Bindings, Macs, PortSecurity};
use policy::{Action, Decision, Lookup, SegmentId, decide};
use port::{DropReason, PortId};
use wire::{FlowKey, MacAddr};

use super::{Directory, Forwarding, Notice};
use crate::learning::{Effect, View};

/// The state for decisions: the FDB and the bindings.
pub(in crate::engine) struct KnownAddresses<'a> {
    stations: View<'a>,
    bound: &'a BTreeMap<PortId, Bindings>,
}

impl Lookup for KnownAddresses<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.stations.port_of(segment, mac)
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.stations.is_barred(segment, mac, port)
    }

    fn bound(&self, port: PortId) -> Bindings {
        self.bound.get(&port).copied().unwrap_or_default()
    }
}

impl Forwarding {
    /// Returns the current state for decisions.
    pub(in crate::engine) fn known(&self, now: Duration) -> KnownAddresses<'_> {
        KnownAddresses {
            stations: self.fdb.at(now),
            bound: &self.bound,
        }
    }

    /// Returns the key of a frame under the current program: the switch may have made it under
    /// another.
    pub(super) fn key_of(&self, upcall: &Upcall) -> FlowKey {
        self.classified_key(
            upcall.flow_key(),
            &upcall.headers,
            upcall.frame_len as usize,
        )
    }

    /// Returns the key of a frame that begins with these bytes.
    pub(in crate::engine) fn classified_key(
        &self,
        key: FlowKey,
        headers: &[u8],
        frame_len: usize,
    ) -> FlowKey {
        let port_security = self.program.port_security(PortId(key.in_port()));
        if port_security.is_open() || headers.is_empty() {
            return key;
        }
        let frame_class = classify(headers, frame_len);
        let key = key.with_frame_class(frame_class);
        if !port_security.needs_upcalls(&key) {
            return key;
        }
        // The switch has a number in place of the ports that keeps such frames apart.
        key.with_l4_ports(0, 0)
    }

    /// Decides a frame, and learns from it. `true`: the decision holds for this frame only, and
    /// further frames with its key cause upcalls. `None`: the frame would create a binding that
    /// cannot be saved now; the switch repeats the upcall.
    pub(super) fn decide_and_learn(
        &mut self,
        upcall: &Upcall,
        key: &FlowKey,
        now: Duration,
        may_bind: bool,
    ) -> Option<(Decision, bool)> {
        let far = upcall.connection.and_then(|connection| connection.far);
        let decided = |this: &Self| {
            let known = this.known(now);
            let fdb = WithFarPort::new(&known, far);
            let decision = decide(&this.program, &fdb, key);
            (decision, fdb.is_for_one(key))
        };
        let (decision, is_for_one) = decided(self);
        let Some((segment, mac)) = decision.learn else {
            return Some((decision, is_for_one));
        };
        self.seen.note(now, segment, key);
        let port = PortId(key.in_port());
        let port_security = self.program.port_security(port);
        let alone = port_security.needs_upcalls(key);
        let neighbour =
            alone.then(|| Neighbour::in_frame(&upcall.headers, upcall.frame_len as usize));
        let claims = neighbour.flatten().and_then(|neighbour| neighbour.claims);
        let bound = self.known(now).bound(port);
        if claims.is_some_and(|address| !port_security.may_claim(&bound, IpAddr::V6(address))) {
            let refused = Decision {
                action: Action::Drop(DropReason::SpoofedNeighbour),
                learn: None,
                ..decision
            };
            return Some((refused, true));
        }
        let new = port_security.bind(&bound, key, claims);
        if new != bound {
            if !may_bind {
                return None;
            }
            self.bound.insert(port, new);
            self.owners.invalidate();
            self.answers.hold();
            self.notices.push(Notice::Bound(port, new));
        }
        let effects = self.fdb.learn(now, segment, mac, port);
        if effects.is_empty() && new == bound {
            return Some((decision, alone || is_for_one));
        }
        self.apply_effects(effects);
        let (decision, is_for_one) = decided(self);
        Some((decision, alone || is_for_one))
    }

    /// Removes the bindings that a change of port security invalidates. The switch has removed the
    /// port's flows.
    pub(super) fn port_security_changed(&mut self, port: PortId, old: &PortSecurity) {
        let new = self.program.port_security(port);
        if new == old {
            return;
        }
        let (macs, addresses) = (
            new.macs == Macs::Learned,
            new.addresses == old.addresses && new.addresses != Addresses::Any,
        );
        if let Some(bound) = self.bound.get_mut(&port) {
            let kept = *bound;
            *bound = Bindings {
                mac: kept.mac.filter(|_| macs),
                v4: kept.v4.filter(|_| addresses),
                link_local: kept.link_local.filter(|_| addresses),
                v6: kept.v6.filter(|_| addresses),
            };
        }
    }

    /// Adopts the saved bindings. A switch that survived reports the ports whose guests
    /// have left since.
    pub(in crate::engine) fn adopt_bindings(
        &mut self,
        states: &[PortState],
        uses: &[StationUse],
        switch_is_new: bool,
    ) {
        for state in states {
            match state.phase {
                PortPhase::Waiting | PortPhase::Dialing if switch_is_new => {}
                PortPhase::Waiting | PortPhase::Dialing => {
                    self.bound.remove(&state.config.id);
                }
                phase => drop(self.connected.insert(state.config.id, phase)),
            }
        }
        // Bindings made just before the end are not in the file, but have flows.
        for StationUse { station, .. } in uses {
            if self.program.port_security(station.port).macs == Macs::Learned {
                let bound = self.bound.entry(station.port).or_default();
                bound.mac.get_or_insert(station.mac);
            }
        }
    }

    /// Gives the addresses that port security lists to their ports, as long as these are up: no
    /// other port may use them meanwhile.
    pub(in crate::engine) fn own_stations(&mut self, directory: Directory<'_>) {
        let (now, owners) = (self.now(), self.owners_of_stations(directory));
        let effects = self.fdb.own(now, &owners);
        if !effects.is_empty() {
            self.apply_effects(effects);
            self.answers.ring_bell();
        }
    }

    /// Gives addresses to ports after a start. Flows are right already: the addresses of the
    /// predecessor belonged to the same ports.
    pub(in crate::engine) fn adopt_owners(&mut self, directory: Directory<'_>) {
        let (now, owners) = (self.now(), self.owners_of_stations(directory));
        drop(self.fdb.own(now, &owners));
    }

    /// Removes flows of other ports from an address whose port got up during the restart.
    pub(super) fn invalidate_barred(&mut self, station: &Station) {
        let (segment, mac) = (station.segment, MacAddr(station.mac));
        if self
            .fdb
            .at(self.now())
            .is_barred(segment, mac, station.port)
        {
            self.apply_effects(vec![Effect::Invalidate { segment, mac }]);
        }
    }

    /// Returns the ports to which addresses belong: those that are up and list the address, unless
    /// a static entry says otherwise.
    fn owners_of_stations(
        &self,
        directory: Directory<'_>,
    ) -> BTreeMap<(SegmentId, MacAddr), Vec<PortId>> {
        let mut owners: BTreeMap<_, Vec<PortId>> = BTreeMap::new();
        let up = self.connected.iter();
        for (&port, _) in up.filter(|(_, phase)| **phase == PortPhase::Up) {
            let Macs::Only(macs) = &self.program.port_security(port).macs else {
                continue;
            };
            let segments = self.program.ingress(port).segments();
            let keys = segments.flat_map(|s| macs.iter().map(move |mac| (s, MacAddr(*mac))));
            for key in keys.collect::<BTreeSet<_>>() {
                owners.entry(key).or_default().push(port);
            }
        }
        let fixed = directory.store.static_entries();
        owners.extend(fixed.map(|(key, port)| (key, vec![port])));
        owners
    }

    /// Records phases of ports. Bindings end with the connection, as the next guest may be another
    /// one. Listed addresses belong to the port while it is up.
    ///
    /// # Errors
    /// The ring of upcalls is broken.
    pub(in crate::engine) fn record_phases(
        &mut self,
        reports: &[PhaseReport],
        directory: Directory<'_>,
    ) -> std::io::Result<()> {
        let (mut has_changed, mut down) = (false, Vec::new());
        for PhaseReport { port, phase, .. } in reports {
            let is_up = |this: &Self| this.connected.get(port) == Some(&PortPhase::Up);
            let was_up = is_up(self);
            self.record_connection(*port, *phase)?;
            has_changed |= was_up != is_up(self);
            down.extend((was_up && !is_up(self)).then_some(*port));
        }
        if has_changed {
            self.own_stations(directory);
        }
        for port in down {
            let effects = self.fdb.port_down(port);
            self.apply_effects(effects);
            self.answers.ring_bell();
        }
        Ok(())
    }

    fn record_connection(&mut self, port: PortId, phase: PortPhase) -> std::io::Result<()> {
        match phase {
            PortPhase::Waiting | PortPhase::Dialing => {
                if self.connected.remove(&port).is_some() {
                    // The last upcalls of the disconnected guest would bind its address again.
                    self.upcalls.discard(port)?;
                    self.unbind(port);
                }
            }
            PortPhase::Connected | PortPhase::Up | PortPhase::Faulted => {
                self.connected.insert(port, phase);
            }
        }
        Ok(())
    }

    /// Removes all bindings of a port.
    pub(super) fn unbind(&mut self, port: PortId) {
        if self.bound.remove(&port).is_some() {
            self.unsaved_move = true;
            self.remove_flows(port);
            self.answers.ring_bell();
        }
    }
}
