//! Queue pairs that a worker serves, active or not.
//!
//! Those of ports with a priority at scheduled ports (`port.qos.priority`) are looked at between
//! any two batches of others: without that, a priority would end at the worker, which looks at the
//! sender too late. They pay for the time as all do.

use port::PortId;

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
    /// Pairs of interfaces: events tell when they have frames, and nothing else does.
    interfaces: Vec<Pair>,
}

impl ServedPairs {
    /// Notes that the worker serves a pair.
    pub(super) fn serve(&mut self, pair: Pair) {
        self.all.push(pair);
        self.choose();
    }

    /// Notes that a served pair is one of an interface.
    pub(super) fn note_interface(&mut self, pair: Pair) {
        self.interfaces.push(pair);
    }

    /// Returns whether a pair of an interface is served.
    pub(super) fn has_interfaces(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Notes that the worker serves a pair no longer.
    pub(super) fn leave(&mut self, pair: Pair) {
        self.all.retain(|served| *served != pair);
        self.interfaces.retain(|served| *served != pair);
        self.choose();
    }

    /// Notes whether a port has a priority.
    pub(super) fn set(&mut self, port: PortId, has_priority: bool) {
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

    /// Returns the next pair of a port; `at` is where the search continues, at first 0.
    pub(super) fn next_of(&self, port: PortId, at: &mut usize) -> Option<u16> {
        let rest = self.all.get(*at..)?;
        let skipped = rest.iter().position(|(of, _)| *of == port)?;
        *at += skipped + 1;
        Some(rest[skipped].1)
    }

    /// Returns the pairs with a priority, by index.
    #[inline]
    pub(super) fn first(&self, at: usize) -> Option<Pair> {
        self.first.get(at).copied()
    }

    /// Returns whether a pair has a priority.
    #[inline]
    pub(super) fn has_priorities(&self) -> bool {
        !self.first.is_empty()
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
