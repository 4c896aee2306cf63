//! Turns of guests for the buffers of a port: deficit round robin (Shreedhar and Varghese, 1995).
//! A guest with many flows gets no more than one with a single flow, and the flows of a guest have
//! their turns among themselves.

use std::collections::{BTreeMap, HashMap};

use wire::MacAddr;

use crate::{FlowId, Secret};

/// Bytes of a guest's turn: one super-frame.
pub const QUANTUM: u32 = 65_536;
/// Minimum count of a frame, so that small ones are not free.
const LEAST: u32 = 256;

#[derive(Debug)]
struct Guest {
    /// Flows in the order of their turns.
    flows: BTreeMap<u64, FlowId>,
    /// Place among the guests.
    place: u64,
    /// Bytes that are left of the turn; below 0, what the turn before had too many.
    left: i64,
}

/// Flows that have bytes for guests. A flow is in it once, so their number is bounded by that of
/// flows, if [`Turns::closed`] is called for each that ends.
#[derive(Debug)]
pub struct Turns {
    guests: HashMap<MacAddr, Guest, Secret>,
    /// Guests with flows, in the order of their turns.
    order: BTreeMap<u64, MacAddr>,
    /// Where each flow is.
    places: HashMap<FlowId, (MacAddr, u64), Secret>,
    next: u64,
}

impl Turns {
    /// No flow is ready.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self {
            guests: HashMap::with_hasher(secret),
            order: BTreeMap::new(),
            places: HashMap::with_hasher(secret),
            next: 0,
        }
    }

    /// A flow of the guest at this station is ready ([`crate::Action::Ready`]).
    pub fn ready(&mut self, guest: MacAddr, flow: FlowId) {
        if self.places.contains_key(&flow) {
            return;
        }
        self.next += 1;
        let place = self.next;
        self.places.insert(flow, (guest, place));
        let entry = self.guests.entry(guest).or_insert_with(|| {
            self.order.insert(place, guest);
            Guest {
                flows: BTreeMap::new(),
                place,
                left: i64::from(QUANTUM),
            }
        });
        entry.flows.insert(place, flow);
    }

    /// Returns the flow that is next.
    #[must_use]
    pub fn current(&self) -> Option<FlowId> {
        let (_, station) = self.order.first_key_value()?;
        let guest = self.guests.get(station)?;
        guest.flows.first_key_value().map(|(_, flow)| *flow)
    }

    /// A frame of `bytes` went to the guest from the [`Turns::current`] flow; the next flow of the
    /// guest has its turn, or the next guest.
    pub fn served(&mut self, bytes: u32) {
        let Some((_, station)) = self.order.first_key_value() else {
            return;
        };
        let station = *station;
        let Some(guest) = self.guests.get_mut(&station) else {
            return;
        };
        if let Some((_, flow)) = guest.flows.pop_first() {
            self.next += 1;
            guest.flows.insert(self.next, flow);
            self.places.insert(flow, (station, self.next));
        }
        guest.left -= i64::from(bytes.max(LEAST));
        if guest.left <= 0 {
            guest.left += i64::from(QUANTUM);
            self.next += 1;
            self.order.remove(&guest.place);
            self.order.insert(self.next, station);
            guest.place = self.next;
        }
    }

    /// A flow has nothing left (`Translator::peek` said so), or has ended.
    pub fn closed(&mut self, flow: FlowId) {
        let Some((station, place)) = self.places.remove(&flow) else {
            return;
        };
        let Some(guest) = self.guests.get_mut(&station) else {
            return;
        };
        guest.flows.remove(&place);
        if guest.flows.is_empty() {
            self.order.remove(&guest.place);
            self.guests.remove(&station);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn flow(index: u32) -> FlowId {
        FlowId {
            index,
            generation: 0,
        }
    }

    #[test]
    fn a_guest_with_many_flows_gets_no_more_than_one_with_a_single_flow() {
        let mut turns = Turns::new(Secret([1, 2]));
        (0..100).for_each(|at| turns.ready(ONE, flow(at)));
        turns.ready(OTHER, flow(100));
        let mut bytes = [0u32; 101];
        for _ in 0..400 {
            let flow = turns.current().unwrap();
            // Frames of the two guests differ in length.
            let len = if flow.index < 100 { QUANTUM } else { 1500 };
            bytes[flow.index()] += len;
            turns.served(len);
        }
        let own: u32 = bytes[..100].iter().sum();
        assert!(own.abs_diff(bytes[100]) <= QUANTUM, "{bytes:?}");
        // Its flows had their turns.
        let few = bytes[..100].iter().filter(|bytes| **bytes == 0).count();
        assert_eq!(few, 100 - (own / QUANTUM) as usize);
    }

    #[test]
    fn a_turn_that_was_too_long_makes_the_next_one_shorter() {
        let mut turns = Turns::new(Secret([1, 2]));
        turns.ready(ONE, flow(0));
        turns.ready(OTHER, flow(1));
        let mut bytes = [0u32; 2];
        for _ in 0..2000 {
            let index = turns.current().unwrap().index();
            let len = [QUANTUM - 10, 1500][index];
            bytes[index] += len;
            turns.served(len);
        }
        assert!(bytes[0].abs_diff(bytes[1]) <= 2 * QUANTUM, "{bytes:?}");
    }

    #[test]
    fn a_flow_is_there_once_and_is_forgotten() {
        let mut turns = Turns::new(Secret([1, 2]));
        turns.ready(ONE, flow(1));
        turns.ready(ONE, flow(1));
        turns.ready(OTHER, flow(2));
        turns.closed(flow(1));
        assert_eq!(turns.current(), Some(flow(2)));
        turns.closed(flow(2));
        turns.closed(flow(2));
        assert_eq!(turns.current(), None);
        assert!(turns.guests.is_empty() && turns.order.is_empty() && turns.places.is_empty());
    }
}
