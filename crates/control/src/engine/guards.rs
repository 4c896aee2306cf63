//! Guards: what is bound at ports, and frames that are decided one by one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1::{GuardStatus, PortSpec};
use channel::records::Upcall;
use channel::switching::{PortPhase, Station, StationUse};
use policy::guard::{Addresses, Bound, Guard, Guards, Macs};
use policy::{Action, CompileError, Decision, Lookup, Model, Program, SegmentId, decide};
use port::{DropReason, PortId};
use wire::conduct::Neighbour;
use wire::{Conduct, FlowKey, MacAddr};

use super::Engine;
use crate::learning::{Effect, View};
use crate::wanted;

/// What is known for decisions: stations, and what is bound.
pub(super) struct Known<'a> {
    stations: View<'a>,
    bound: &'a BTreeMap<PortId, Bound>,
}

impl Lookup for Known<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.stations.port_of(segment, mac)
    }

    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool {
        self.stations.is_barred(segment, mac, port)
    }

    fn bound(&self, port: PortId) -> Bound {
        self.bound.get(&port).copied().unwrap_or_default()
    }
}

impl Engine {
    /// What is known now.
    pub(super) fn known(&self, now: Duration) -> Known<'_> {
        Known {
            stations: self.fdb.at(now),
            bound: &self.saved.bound,
        }
    }

    /// The program that is wanted, under this epoch, without access lists.
    pub(super) fn compiled(&mut self, model: &Model, epoch: u64) -> Result<Program, CompileError> {
        let program = Program::compile(model, epoch)?;
        let specs = self.saved.wanted.ports.clone();
        let segments = self.saved.wanted.segments.clone();
        let guards = specs.iter().map(|spec| {
            let id = self.saved.numbers.port_id(&spec.name);
            let answers = wanted::answers_for(&segments, spec);
            let guard = wanted::guard_of(spec);
            (id, Guard { answers, ..guard })
        });
        let guards: Guards = guards.collect();
        Ok(program.with_guards(guards))
    }

    /// What a port's guest may send, and what is bound there.
    pub(super) fn guard_status(&self, spec: &PortSpec, id: Option<PortId>) -> GuardStatus {
        let bound = id.and_then(|id| self.saved.bound.get(&id)).copied();
        let bound = bound.unwrap_or_default();
        let mac = bound.mac.map(|mac| MacAddr(mac).to_string());
        let v4 = bound.v4.map(|v4| v4.to_string());
        let v6 = [bound.link_local, bound.v6];
        let v6 = v6.into_iter().flatten().map(|v6| v6.to_string());
        GuardStatus {
            bound: mac.into_iter().chain(v4).chain(v6).collect(),
            ..wanted::guard_status(spec)
        }
    }

    /// The key of a frame as this program sees it: the switch may have asked when it had another.
    pub(super) fn key_of(&self, upcall: &Upcall) -> FlowKey {
        self.guarded_key(
            upcall.flow_key(),
            &upcall.headers,
            upcall.frame_len as usize,
        )
    }

    /// The same of a frame that begins with these bytes.
    pub(super) fn guarded_key(&self, key: FlowKey, headers: &[u8], frame_len: usize) -> FlowKey {
        let guard = self.program.guard(PortId(key.in_port()));
        if guard.is_open() || headers.is_empty() {
            return key;
        }
        let conduct = Conduct::of(headers, frame_len);
        let key = key.with_conduct(conduct);
        match guard.asks_one_by_one(&key) {
            // In the switch there is a number that keeps such frames apart.
            true => key.with_l4_ports(0, 0),
            false => key,
        }
    }

    /// Decides about a frame, and learns from it. `true`: about it alone, and others with its key are to be asked about. `None`: it
    /// would bind something, and that cannot be saved; the switch asks again.
    pub(super) fn judge(
        &mut self,
        upcall: &Upcall,
        key: &FlowKey,
        now: Duration,
    ) -> Option<(Decision, bool)> {
        let decision = decide(&self.program, &self.known(now), key);
        let Some((segment, mac)) = decision.learn else {
            return Some((decision, false));
        };
        self.inquiries.seen.note(now, segment, key);
        let port = PortId(key.in_port());
        let guard = self.program.guard(port);
        let alone = guard.asks_one_by_one(key);
        let said = alone.then(|| Neighbour::in_frame(&upcall.headers, upcall.frame_len as usize));
        let claims = said.flatten().and_then(|said| said.claims);
        let bound = self.known(now).bound(port);
        if claims.is_some_and(|address| !guard.may_claim(&bound, IpAddr::V6(address))) {
            let refused = Decision {
                action: Action::Drop(DropReason::SpoofedNeighbour),
                learn: None,
                ..decision
            };
            return Some((refused, true));
        }
        let new = guard.bind(&bound, key, claims);
        if new != bound {
            if self.frozen {
                return None;
            }
            self.saved.bound.insert(port, new);
            self.owners.outdate();
            self.unsaved_bound = true;
            self.tell_bound(port, &new);
        }
        let effects = self.fdb.learn(now, segment, mac, port);
        if effects.is_empty() && new == bound {
            return Some((decision, alone));
        }
        self.carry_out(effects);
        Some((decide(&self.program, &self.known(now), key), alone))
    }

    /// Forgets what was bound where a port's guard has changed. The switch has forgotten its flows.
    pub(super) fn guard_changed(&mut self, port: PortId, old: &Guard) {
        let new = self.program.guard(port);
        if new == old {
            return;
        }
        let (macs, addresses) = (
            new.macs == Macs::Learned,
            new.addresses == old.addresses && new.addresses != Addresses::Any,
        );
        if let Some(bound) = self.saved.bound.get_mut(&port) {
            let kept = *bound;
            *bound = Bound {
                mac: kept.mac.filter(|_| macs),
                v4: kept.v4.filter(|_| addresses),
                link_local: kept.link_local.filter(|_| addresses),
                v6: kept.v6.filter(|_| addresses),
            };
        }
    }

    /// Takes over what was bound. A switch that was there all the time says who has left since.
    pub(super) fn adopt_bound(
        &mut self,
        uses: &[StationUse],
        switch_is_new: bool,
    ) -> std::io::Result<()> {
        let (states, _) = self.switch.port_states()?;
        for state in states {
            match state.phase {
                PortPhase::Waiting | PortPhase::Dialing if switch_is_new => {}
                PortPhase::Waiting | PortPhase::Dialing => {
                    self.saved.bound.remove(&state.config.id);
                }
                phase => drop(self.connected.insert(state.config.id, phase)),
            }
        }
        // What was bound just before the end is not in the file, but has flows.
        for StationUse { station, .. } in uses {
            if self.program.guard(station.port).macs == Macs::Learned {
                let bound = self.saved.bound.entry(station.port).or_default();
                bound.mac.get_or_insert(station.mac);
            }
        }
        Ok(())
    }

    /// Has the addresses that guards list belong to their ports, as long as these are up: no other port may use them meanwhile.
    pub(super) fn pin_stations(&mut self) {
        let (now, pins) = (self.now(), self.pins());
        let effects = self.fdb.pin_all(now, &pins);
        if !effects.is_empty() {
            self.carry_out(effects);
            self.answers.ring_bell();
        }
    }

    /// The same after a start: the one before us has done it, so that flows are right.
    pub(super) fn adopt_pins(&mut self) {
        let (now, pins) = (self.now(), self.pins());
        drop(self.fdb.pin_all(now, &pins));
    }

    /// A port may have got up while nobody was here, and others have flows of its station.
    pub(super) fn forget_pretender(&mut self, station: &Station) {
        let (segment, mac) = (station.segment, MacAddr(station.mac));
        if self
            .fdb
            .at(self.now())
            .is_barred(segment, mac, station.port)
        {
            self.carry_out(vec![Effect::Invalidate { segment, mac }]);
        }
    }

    /// Whose address is whose by its guard. What several ports list that are up is nobody's: they may take turns.
    fn pins(&self) -> BTreeMap<(SegmentId, MacAddr), PortId> {
        let mut pins = BTreeMap::new();
        let up = self.connected.iter();
        for (&port, _) in up.filter(|(_, phase)| **phase == PortPhase::Up) {
            let Macs::Only(macs) = &self.program.guard(port).macs else {
                continue;
            };
            let macs = macs.iter().map(|mac| MacAddr(*mac));
            for segment in self.program.ingress(port).segments() {
                for mac in macs.clone() {
                    let owner: &mut Option<PortId> =
                        pins.entry((segment, mac)).or_insert(Some(port));
                    *owner = owner.filter(|owner| *owner == port);
                }
            }
        }
        // What the operator says of an address counts more than what a guard lists.
        pins.extend(self.static_entries());
        let sure = pins
            .into_iter()
            .filter_map(|(key, owner)| Some((key, owner?)));
        sure.collect()
    }

    /// Where stations are because somebody has said so, whether their ports are up or not.
    fn static_entries(&self) -> impl Iterator<Item = ((SegmentId, MacAddr), Option<PortId>)> {
        let numbers = &self.saved.numbers;
        self.saved.wanted.fdb.iter().filter_map(|entry| {
            let segment = *numbers.segments.get(&entry.segment)?;
            let mac = MacAddr(api::v1::parse_mac(&entry.mac)?);
            Some(((segment, mac), Some(*numbers.ports.get(&entry.port)?)))
        })
    }

    /// What is bound ends with the connection: the next guest is another. Who is not up has no address for sure.
    ///
    /// # Errors
    /// The ring of upcalls is broken.
    pub(super) fn note_phase(&mut self, port: PortId, phase: PortPhase) -> std::io::Result<()> {
        let is_up = |engine: &Self| engine.connected.get(&port) == Some(&PortPhase::Up);
        let was_up = is_up(self);
        self.note_connection(port, phase)?;
        if was_up != is_up(self) {
            self.pin_stations();
        }
        Ok(())
    }

    fn note_connection(&mut self, port: PortId, phase: PortPhase) -> std::io::Result<()> {
        match phase {
            PortPhase::Waiting | PortPhase::Dialing => {
                if self.connected.remove(&port).is_some() {
                    // The last questions of who has gone would bind its address again.
                    self.forget_questions(port)?;
                    self.unbind(port);
                }
            }
            PortPhase::Connected | PortPhase::Up | PortPhase::Faulted => {
                self.connected.insert(port, phase);
            }
        }
        Ok(())
    }

    /// Nothing is bound at a port any more.
    pub(super) fn unbind(&mut self, port: PortId) {
        if self.saved.bound.remove(&port).is_some() {
            self.unsaved_move = true;
            self.forget_flows(port);
            self.answers.ring_bell();
        }
    }
}
