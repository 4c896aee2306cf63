//! The table of flows: slots, keys, what each guest has, and deadlines.

use std::net::SocketAddr;

use wire::MacAddr;

use super::Translator;
use crate::Nanos;
use crate::action::{Action, FlowId};
use crate::headers::Ends;
use crate::network::Protocol;
use crate::tcp::{Context, Flow, State};
use crate::udp::Mapping;

/// A slot of the table.
#[derive(Debug, Default)]
pub(super) struct Slot {
    generation: u32,
    entry: Option<Entry>,
    /// The deadline under which the flow stands in the order of deadlines.
    deadline: Option<Nanos>,
}

#[derive(Debug)]
pub(super) enum Entry {
    Tcp(Box<Flow>),
    Udp(Mapping),
}

/// Ends of a flow: protocol, guest, and the peer where it belongs to the flow.
pub(super) type Key = (Protocol, SocketAddr, Option<SocketAddr>);

/// Flows of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    flows: u32,
    half_open: u32,
}

impl Translator {
    pub(super) fn has_room(&self, station: MacAddr, half_open: bool) -> bool {
        let bounds = &self.settings.bounds;
        let guest = self.guests.get(&station).copied().unwrap_or_default();
        self.keys.len() < bounds.flows as usize
            && guest.flows < bounds.guest
            && !(half_open && guest.half_open >= bounds.half_open)
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
        let counts = self.guests.entry(entry.ends().station).or_default();
        counts.flows += 1;
        counts.half_open += u32::from(entry.is_half_open());
        self.keys.insert(entry.key(), id.index);
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
        let Some(flow) = self.flow_mut(id) else {
            return;
        };
        let was_half_open = flow.is_half_open();
        step(flow, &mut Context { id, now, out });
        let (is_half_open, station) = (flow.is_half_open(), flow.ends.station);
        let is_closed = flow.state == State::Closed;
        if was_half_open
            && !is_half_open
            && let Some(counts) = self.guests.get_mut(&station)
        {
            counts.half_open = counts.half_open.saturating_sub(1);
        }
        if is_closed {
            self.remove(id.index);
        } else {
            self.settle(id.index);
        }
    }

    /// Puts the flow where its deadline belongs.
    pub(super) fn settle(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let deadline = slot.entry.as_ref().and_then(Entry::deadline);
        if deadline != slot.deadline {
            if let Some(old) = slot.deadline {
                self.deadlines.remove(&(old, index));
            }
            if let Some(new) = deadline {
                self.deadlines.insert((new, index));
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
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(old) = slot.deadline.take() {
            self.deadlines.remove(&(old, index));
        }
        self.keys.remove(&entry.key());
        self.free.push(index);
        let station = entry.ends().station;
        if let Some(counts) = self.guests.get_mut(&station) {
            counts.flows = counts.flows.saturating_sub(1);
            counts.half_open -= u32::from(entry.is_half_open()).min(counts.half_open);
            if counts.flows == 0 {
                self.guests.remove(&station);
            }
        }
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
            Self::Udp(_) => (Protocol::Udp, ends.guest, None),
        }
    }

    fn is_half_open(&self) -> bool {
        matches!(self, Self::Tcp(flow) if flow.is_half_open())
    }

    fn deadline(&self) -> Option<Nanos> {
        match self {
            Self::Tcp(flow) => flow.deadline(),
            Self::Udp(mapping) => Some(mapping.deadline()),
        }
    }
}
