//! The two lookups of a switch: that of tracked ports, and that of all others.
//!
//! Flows of tracked ports have a table of their own. So their masks, and how deep they look, cost
//! the frames of other ports nothing. One lookup is in hand: that of the port that is served, or of
//! the answer that is applied. What visits all flows visits both tables, always in the same order.

use flow_table::{Effort, FlowTable, Progress};
use port::PortId;
use port::counters::MAX_PORTS;

use crate::forward::flow_batch::Lookup;

/// Tracked ports, and the lookup that is not in hand.
#[derive(Debug)]
pub(crate) struct TrackedPorts {
    /// Whether a port is tracked, by number.
    ports: Box<[bool; MAX_PORTS]>,
    /// Whether the lookup in hand is that of the tracked ports.
    in_hand: bool,
    other: Box<Lookup>,
}

impl TrackedPorts {
    /// Returns no ports, and an empty lookup for them beside that of all others, which is in hand.
    pub(crate) fn beside(lookup: &Lookup) -> Self {
        Self {
            ports: Box::new([false; MAX_PORTS]),
            in_hand: false,
            other: Box::new(Lookup::new(lookup.flows.empty_like())),
        }
    }

    fn has(&self, id: PortId) -> bool {
        self.ports.get(id.0 as usize).is_some_and(|is| *is)
    }

    /// Exchanges the lookups if that in hand is not the port's.
    ///
    /// Not inlined: a switch without tracked ports has one test for it.
    #[inline(never)]
    pub(crate) fn take_up(&mut self, lookup: &mut Box<Lookup>, id: PortId) {
        let is_tracked = self.has(id);
        if is_tracked != self.in_hand {
            self.other.batch.set_limit(lookup.batch.limit());
            std::mem::swap(lookup, &mut self.other);
            self.in_hand = is_tracked;
        }
    }

    /// Replaces the ports. Returns those that were tracked and are not, or the reverse.
    pub(crate) fn replace(&mut self, ports: &[PortId]) -> Vec<PortId> {
        let mut new = Box::new([false; MAX_PORTS]);
        for id in ports {
            if let Some(is) = new.get_mut(id.0 as usize) {
                *is = true;
            }
        }
        let old = std::mem::replace(&mut self.ports, new);
        let numbers = (0..).zip(old.iter().zip(self.ports.iter()));
        let changed = numbers.filter(|(_, (old, new))| old != new);
        changed.map(|(number, _)| PortId(number)).collect()
    }

    /// Removes a port.
    pub(crate) fn remove(&mut self, id: PortId) {
        if let Some(is) = self.ports.get_mut(id.0 as usize) {
            *is = false;
        }
    }

    /// Returns the lookup of the tracked ports.
    pub(crate) fn lookup<'a>(&'a mut self, in_hand: &'a mut Lookup) -> &'a mut Lookup {
        if self.in_hand {
            in_hand
        } else {
            &mut self.other
        }
    }

    /// Returns the lookup that is not in hand.
    pub(crate) fn other(&self) -> &Lookup {
        &self.other
    }
}

/// Position of a walk through the flows of both tables; the default is the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    table: usize,
    at: usize,
}

/// Flow tables of a switch: that of untracked ports, and that of tracked ones, if there is one.
pub(crate) struct Tables<'a>([Option<&'a mut FlowTable>; 2]);

impl<'a> Tables<'a> {
    pub(crate) fn of(lookup: &'a mut Lookup, tracked: Option<&'a mut TrackedPorts>) -> Self {
        let in_hand = &mut lookup.flows;
        let Some(tracked) = tracked else {
            return Self([Some(in_hand), None]);
        };
        let other = &mut tracked.other.flows;
        Self(match tracked.in_hand {
            true => [Some(other), Some(in_hand)],
            false => [Some(in_hand), Some(other)],
        })
    }

    /// Calls `part` for each table.
    pub(crate) fn each(&mut self, mut part: impl FnMut(&mut FlowTable)) {
        self.0.iter_mut().flatten().for_each(|table| part(table));
    }

    /// Walks through the tables from a place on, one after the other, while effort is left: `part`
    /// does it for a table and a position in it. Returns the place at which to continue.
    pub(crate) fn walk(
        &mut self,
        from: Place,
        effort: &mut Effort,
        mut part: impl FnMut(&mut FlowTable, usize, &mut Effort) -> Progress,
    ) -> Option<Place> {
        let mut place = from;
        while let Some(Some(table)) = self.0.get_mut(place.table) {
            // A table is begun once.
            if place.table > from.table && effort.is_spent() {
                return Some(place);
            }
            if let Progress::ResumeAt(at) = part(table, place.at, effort) {
                return Some(Place { at, ..place });
            }
            place = Place {
                table: place.table + 1,
                at: 0,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_begins_each_table_once_and_with_effort_left() {
        let [mut one, mut other] = [FlowTable::new(4, 1), FlowTable::new(4, 1)];
        let mut tables = Tables([Some(&mut one), Some(&mut other)]);
        let mut parts = Vec::new();
        let mut next = Some(Place::default());
        while let Some(place) = next {
            let effort = &mut Effort::default();
            next = tables.walk(place, effort, |_, at, effort| {
                parts.push((place.table, at));
                // Each table has two parts. The second one ends with its effort.
                effort.charge(usize::MAX);
                match at {
                    0 => Progress::ResumeAt(7),
                    _ => Progress::Done,
                }
            });
        }
        assert_eq!(parts, [(0, 0), (0, 7), (1, 0), (1, 7)]);
        let mut tables = Tables([Some(&mut one), None]);
        let rest = tables.walk(Place::default(), &mut Effort::default(), |_, _, _| {
            Progress::Done
        });
        assert_eq!(rest, None);
    }
}
