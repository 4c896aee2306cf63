//! Queue pairs that a worker serves, active or not.
//!
//! Those of ports with a priority at scheduled ports (`port.qos.priority`) are looked at between any
//! two batches of others: a guarantee in bits is worth nothing where the worker looks at the sender
//! too late. They pay for the time as all do.

use channel::egress::SenderQos;
use port::PortId;

use super::Worker;
use super::fair::Turn;

type Pair = (PortId, u16);

/// Pairs of a worker that are looked at often, at most: each look takes some nanoseconds.
const MAX_PAIRS: usize = 8;

/// Served pairs; see the module.
#[derive(Debug, Default)]
pub(super) struct ServedPairs {
    all: Vec<Pair>,
    /// Ports with a priority.
    ports: Vec<PortId>,
    /// Pairs of such ports.
    first: Vec<Pair>,
}

impl ServedPairs {
    /// Notes that the worker serves a pair.
    pub(super) fn serve(&mut self, pair: Pair) {
        self.all.push(pair);
        self.choose();
    }

    /// Notes that the worker serves a pair no longer.
    pub(super) fn leave(&mut self, pair: Pair) {
        self.all.retain(|served| *served != pair);
        self.choose();
    }

    fn set(&mut self, port: PortId, has_priority: bool) {
        self.ports.retain(|known| *known != port);
        self.ports.extend(has_priority.then_some(port));
        self.choose();
    }

    fn choose(&mut self) {
        let has_priority = |pair: &&Pair| self.ports.contains(&pair.0);
        let chosen = self.all.iter().filter(has_priority).take(MAX_PAIRS);
        self.first = chosen.copied().collect();
    }

    /// Returns the number of pairs.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether a pair has a priority.
    #[inline]
    pub(super) fn has_priorities(&self) -> bool {
        !self.first.is_empty()
    }
}

impl Worker {
    /// Sets the settings of a port as a sender to scheduled ports.
    pub fn set_qos(&mut self, port: PortId, qos: SenderQos) {
        self.served.set(port, qos.priority > 0);
        self.switch.set_qos(port, qos);
    }

    /// Serves the pairs with a priority that have frames. `now` is in milliseconds. Returns whether
    /// there was one.
    #[cold]
    pub(super) fn serve_priorities(&mut self, now: u64) -> bool {
        let mut found = false;
        for at in 0..self.served.first.len() {
            let (port, pair) = self.served.first[at];
            if self.paused.has((port, pair)) || self.assignments.has((port, pair)) {
                continue;
            }
            let guest = self.switch.port_mut(port);
            if !guest.is_some_and(|guest| guest.has_frames(pair)) {
                continue;
            }
            self.activate(port, pair);
            let (switch, upcalls) = (&mut self.switch, &mut self.control);
            let turn = self.fair.serve(switch, (port, pair), false, now, upcalls);
            if turn == Turn::Served {
                found = true;
                self.note_batch((port, pair));
            }
            if let Some(pause) = self.switch.take_pause() {
                self.active.remove(port, pair);
                self.paused.add((port, pair), pause);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_ports_with_a_priority_are_chosen_while_they_are_served() {
        let [a, b] = [PortId(1), PortId(2)];
        let mut pairs = ServedPairs::default();
        pairs.serve((a, 0));
        pairs.serve((b, 0));
        assert!(!pairs.has_priorities());
        pairs.set(b, true);
        pairs.serve((b, 1));
        assert_eq!(pairs.first, [(b, 0), (b, 1)]);
        pairs.leave((b, 0));
        assert_eq!(pairs.first, [(b, 1)]);
        (2..20).for_each(|pair| pairs.serve((b, pair)));
        assert_eq!(pairs.first.len(), MAX_PAIRS);
        pairs.set(b, false);
        assert!(!pairs.has_priorities());
    }
}
