//! The table of flows: slots, keys, what each guest has, and deadlines.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use wire::MacAddr;

use super::Translator;
use super::listing::ListedFlow;
use super::ports::Supply;
use crate::Nanos;
use crate::Secret;
use crate::action::{Action, ForwardPeer};
use crate::flow::{FlowId, FlowState};
use crate::headers::Ends;
use crate::network::Protocol;
use crate::tcp::{Context, Flow, State};
use crate::udp::Mapping;
use crate::waiting::{SocketQueues, TimerKind, WaitsFor};

/// A slot of the table.
#[derive(Debug, Default)]
pub(super) struct Slot {
    generation: u32,
    entry: Option<Entry>,
    /// The deadline under which the flow stands in the order of deadlines.
    deadline: Option<Nanos>,
    /// The state under which the flow is counted.
    state: Option<FlowState>,
}

#[derive(Debug)]
pub(super) enum Entry {
    Tcp(Box<Flow>),
    Udp(Mapping),
}

/// Ends of a flow: protocol, guest, and the peer where it belongs to the flow.
pub(super) type Key = (Protocol, SocketAddr, Option<SocketAddr>);

/// Flows of a guest that count against its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    flows: u32,
    pub(super) half_open: u32,
    /// Connections of peers that the guest has not answered.
    pub(super) unanswered: u32,
    /// Mappings that peers of forwards have opened.
    pub(super) forwarded: u32,
}

/// Room that is kept for guests with stations that their ports name: a guest may invent others.
#[derive(Debug)]
pub(super) struct Reserve {
    known: HashSet<MacAddr, Secret>,
    /// Flows that are kept for each of them.
    share: u32,
    /// Flows beyond these shares, of all guests.
    shared: u32,
}

impl Reserve {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            known: HashSet::with_hasher(secret),
            share: 0,
            shared: 0,
        }
    }

    /// Number of known stations.
    pub(super) fn known(&self) -> u32 {
        self.known.len() as u32
    }

    /// Returns what is kept for a station, of a share of each known one.
    pub(super) fn of(&self, station: MacAddr, share: u32) -> u32 {
        match self.known.contains(&station) {
            true => share,
            false => 0,
        }
    }

    fn share_of(&self, station: MacAddr) -> u32 {
        self.of(station, self.share)
    }

    /// The flows of a guest that are beyond its share.
    fn beyond(&self, station: MacAddr, flows: u32) -> u32 {
        flows.saturating_sub(self.share_of(station))
    }

    /// Returns whether a guest with `flows` flows may have one more, of `bound` in all.
    fn has_room(&self, station: MacAddr, flows: u32, bound: u32) -> bool {
        let kept = self.share.saturating_mul(self.known());
        flows < self.share_of(station) || self.shared < bound.saturating_sub(kept)
    }
}

/// Mappings of forwards.
#[derive(Debug)]
pub(super) struct Peers {
    /// By their peers.
    pub(super) flows: HashMap<ForwardPeer, u32, Secret>,
    /// By their stations, the one that will end first in front.
    pub(super) idle: BTreeSet<(MacAddr, Nanos, u32)>,
}

impl Peers {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            flows: HashMap::with_hasher(secret),
            idle: BTreeSet::new(),
        }
    }
}

impl Counts {
    /// The part of one flow. One that only waits for late segments has none.
    fn of(flow: &Flow) -> Self {
        Self {
            flows: u32::from(flow.state != State::Late),
            half_open: u32::from(flow.is_half_open()),
            unanswered: u32::from(flow.state == State::SynSent),
            forwarded: 0,
        }
    }
}

impl Translator {
    /// Returns the number of slots, free ones included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the flow of a slot, see [`FlowId::index`]; `None` for a free one.
    #[must_use]
    pub fn listed(&self, slot: u32) -> Option<ListedFlow> {
        let id = self.id(slot);
        let entry = self.entry(id)?;
        let ends = entry.ends();
        let (protocol, connected, progress, timer, tcp) = match entry {
            Entry::Tcp(flow) => {
                let (connected, tcp) = (flow.has_connected(), Some(flow.counters()));
                (Protocol::Tcp, connected, flow.progress(), flow.timer(), tcp)
            }
            Entry::Udp(mapping) => {
                let timer = Some((TimerKind::Expiry, mapping.deadline()));
                (Protocol::Udp, false, mapping.last_used(), timer, None)
            }
        };
        Some(ListedFlow {
            id,
            protocol,
            connected,
            station: ends.station,
            guest: ends.guest,
            peer: ends.peer,
            state: entry.state(),
            progress,
            timer,
            tcp,
        })
    }

    /// Returns what a TCP flow waits for, with these bytes in its socket. `has_buffer`: there is a
    /// free buffer for frames to guests.
    #[must_use]
    pub fn waits_for(&self, id: FlowId, queues: &SocketQueues, has_buffer: bool) -> WaitsFor {
        let flow = self.flow(id);
        flow.map_or(WaitsFor::Nothing, |flow| flow.waits_for(queues, has_buffer))
    }

    /// Returns the numbers of flows by state, in the order of [`FlowState::ALL`].
    #[must_use]
    pub fn states(&self) -> [u32; FlowState::ALL.len()] {
        self.states.0
    }

    /// Keeps room for the guests at these known stations: half of all flows at most, in equal
    /// shares. However many stations others invent, they do not get it.
    pub fn reserve(&mut self, stations: impl IntoIterator<Item = MacAddr>) {
        let bounds = self.settings.bounds;
        let reserve = &mut self.reserve;
        reserve.known.clear();
        reserve.known.extend(stations);
        let known = (reserve.known.len() as u32).max(1);
        reserve.share = (bounds.flows / 2 / known).min(bounds.guest);
        let all = self.guests.iter();
        let beyond = all.map(|(station, counts)| reserve.beyond(*station, counts.flows));
        reserve.shared = beyond.sum();
        self.ports.divide(bounds.ports, &self.reserve);
    }

    /// Changes the number of ports of the host, see `ports` of the bounds. Flows stay.
    pub fn set_ports(&mut self, ports: u32) {
        self.settings.bounds.ports = ports;
        self.ports.divide(ports, &self.reserve);
    }

    /// Returns whether a guest may have one more flow with a port of the host.
    pub(super) fn has_port(&self, supply: Supply, station: MacAddr) -> bool {
        self.ports.has_room(supply, station, &self.reserve)
    }

    /// Returns whether a guest may have one more flow. `pending` of its kind are not established. A
    /// flow that waits for late segments makes room for it.
    pub(super) fn has_room(
        &mut self,
        station: MacAddr,
        pending: impl FnOnce(&Counts) -> u32,
    ) -> bool {
        let bounds = self.settings.bounds;
        let guest = self.guests.get(&station).copied().unwrap_or_default();
        guest.flows < bounds.guest
            && self.reserve.has_room(station, guest.flows, bounds.flows)
            && pending(&guest) < bounds.half_open
            && (self.keys.len() < bounds.flows as usize || self.forget_late())
    }

    /// Forgets the flow that has waited longest for late segments; false if there is none.
    fn forget_late(&mut self) -> bool {
        while let Some(id) = self.late.pop_front() {
            if self.is_late(id) {
                self.remove(id.index);
                return true;
            }
        }
        false
    }

    fn is_late(&self, id: FlowId) -> bool {
        self.flow(id).is_some_and(|flow| flow.state == State::Late)
    }

    /// Changes what a guest has by the part of one flow.
    fn count(&mut self, station: MacAddr, before: Counts, after: Counts) {
        if before == after {
            return;
        }
        let counts = self.guests.entry(station).or_default();
        let beyond = self.reserve.beyond(station, counts.flows);
        let change = |all: u32, before, after| all.saturating_sub(before).saturating_add(after);
        counts.flows = change(counts.flows, before.flows, after.flows);
        counts.half_open = change(counts.half_open, before.half_open, after.half_open);
        counts.unanswered = change(counts.unanswered, before.unanswered, after.unanswered);
        counts.forwarded = change(counts.forwarded, before.forwarded, after.forwarded);
        let now_beyond = self.reserve.beyond(station, counts.flows);
        self.reserve.shared = change(self.reserve.shared, beyond, now_beyond);
        if counts.flows == 0 {
            self.guests.remove(&station);
        }
    }

    pub(super) fn id(&self, index: u32) -> FlowId {
        let slot = self.slots.get(index as usize);
        FlowId {
            index,
            generation: slot.map_or(0, |slot| slot.generation),
        }
    }

    pub(super) fn next_id(&self) -> FlowId {
        self.id(self.free.last().copied().unwrap_or(self.slots.len() as u32))
    }

    pub(super) fn insert(&mut self, entry: Entry) -> FlowId {
        let id = self.next_id();
        if self.free.pop().is_none() {
            self.slots.push(Slot::default());
        }
        let station = entry.ends().station;
        self.count(station, Counts::default(), entry.counts());
        if let Some(supply) = Supply::of(&entry) {
            self.ports.take(supply, station, &self.reserve);
        }
        self.keys.insert(entry.key(), id.index);
        if let Some(forwarded) = entry.forwarded() {
            self.peers.flows.insert(forwarded, id.index);
        }
        self.slots[id.index()].entry = Some(entry);
        self.settle(id.index);
        id
    }

    pub(super) fn entry(&self, id: FlowId) -> Option<&Entry> {
        let slot = self.slots.get(id.index())?;
        slot.entry
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    pub(super) fn entry_mut(&mut self, id: FlowId) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(id.index())?;
        slot.entry
            .as_mut()
            .filter(|_| slot.generation == id.generation)
    }

    pub(super) fn flow(&self, id: FlowId) -> Option<&Flow> {
        match self.entry(id)? {
            Entry::Tcp(flow) => Some(flow),
            Entry::Udp(_) => None,
        }
    }

    pub(super) fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        match self.entry_mut(id)? {
            Entry::Tcp(flow) => Some(flow),
            Entry::Udp(_) => None,
        }
    }

    /// Runs a step of a TCP flow, and keeps counts, deadlines and the table with it.
    pub(super) fn with(
        &mut self,
        id: FlowId,
        now: Nanos,
        out: &mut Vec<Action>,
        step: impl FnOnce(&mut Flow, &mut Context<'_>),
    ) {
        let mut context = self.context(id, now, out);
        let Some(flow) = self.flow_mut(id) else {
            return;
        };
        let (was, before) = (flow.state, Counts::of(flow));
        step(flow, &mut context);
        let (is, after, station) = (flow.state, Counts::of(flow), flow.ends.station);
        self.count(station, before, after);
        if is == State::Closed {
            return self.remove(id.index);
        }
        self.settle(id.index);
        if is == State::Late && was != State::Late {
            self.put_late(id);
        }
    }

    /// A flow waits for late segments. Those before it that have ended are forgotten: all wait for
    /// the same time.
    fn put_late(&mut self, id: FlowId) {
        while self.late.front().is_some_and(|first| !self.is_late(*first)) {
            self.late.pop_front();
        }
        self.late.push_back(id);
    }

    /// Puts the flow where its deadline and its state belong.
    pub(super) fn settle(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let entry = slot.entry.as_ref();
        let state = entry.map(Entry::state);
        self.states.change(slot.state, state);
        slot.state = state;
        let deadline = entry.and_then(Entry::deadline);
        if deadline != slot.deadline {
            let forwarded = entry.filter(|entry| entry.forwarded().is_some());
            let station = forwarded.map(|entry| entry.ends().station);
            if let Some(old) = slot.deadline {
                self.deadlines.remove(&(old, index));
                station.map(|station| self.peers.idle.remove(&(station, old, index)));
            }
            if let Some(new) = deadline {
                self.deadlines.insert((new, index));
                station.map(|station| self.peers.idle.insert((station, new, index)));
            }
            slot.deadline = deadline;
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let Some(entry) = slot.entry.take() else {
            return;
        };
        self.states.change(slot.state.take(), None);
        slot.generation = slot.generation.wrapping_add(1);
        let station = entry.ends().station;
        if let Some(old) = slot.deadline.take() {
            self.deadlines.remove(&(old, index));
            self.peers.idle.remove(&(station, old, index));
        }
        if let Some(forwarded) = entry.forwarded() {
            self.peers.flows.remove(&forwarded);
        }
        self.keys.remove(&entry.key());
        self.free.push(index);
        if let Some(supply) = Supply::of(&entry) {
            self.ports.give_back(supply, station, &self.reserve);
        }
        self.count(station, entry.counts(), Counts::default());
    }
}

impl Entry {
    pub(super) fn ends(&self) -> &Ends {
        match self {
            Self::Tcp(flow) => &flow.ends,
            Self::Udp(mapping) => &mapping.ends,
        }
    }

    fn key(&self) -> Key {
        let ends = self.ends();
        match self {
            Self::Tcp(_) => (Protocol::Tcp, ends.guest, Some(ends.peer)),
            Self::Udp(mapping) => {
                let peer = mapping.forwarded.map(|_| ends.peer);
                (Protocol::Udp, ends.guest, peer)
            }
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Tcp(flow) => Counts::of(flow),
            Self::Udp(mapping) => Counts {
                flows: 1,
                half_open: 0,
                unanswered: 0,
                forwarded: u32::from(mapping.forwarded.is_some()),
            },
        }
    }

    pub(super) fn forwarded(&self) -> Option<ForwardPeer> {
        match self {
            Self::Tcp(_) => None,
            Self::Udp(mapping) => mapping.forwarded,
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        match self {
            Self::Tcp(flow) => flow.deadline(),
            Self::Udp(mapping) => Some(mapping.deadline()),
        }
    }
}
