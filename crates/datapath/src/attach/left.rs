//! Where the queues of connections stood that broke, for those that come next: a front end that dials again, maybe at
//! another port. Whether a position is a queue's own, the session finds out by its memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use port::PortId;
use virtio::vhost_user::Left;

/// For so long; front ends dial again within seconds.
const KEPT: Duration = Duration::from_secs(60);
/// Queues of one port at most: 64 pairs. A front end that breaks its connection again and again takes no place of others.
const QUEUES: usize = 128;
/// Queues of all ports at most; where there are more, the port with the most of them loses its oldest.
const ALL_QUEUES: usize = 4096;

/// What the connections of each port have left, the newest first.
#[derive(Debug)]
struct ByPort<T>(BTreeMap<PortId, VecDeque<(Instant, T)>>);

impl<T> ByPort<T> {
    /// `same`: whether two are of one queue.
    fn add(&mut self, port: PortId, now: Instant, left: T, same: impl Fn(&T, &T) -> bool) {
        self.retain(|_, before| !same(before, &left));
        let own = self.0.entry(port).or_default();
        own.push_front((now, left));
        own.truncate(QUEUES);
        if self.0.values().map(VecDeque::len).sum::<usize>() > ALL_QUEUES
            && let Some(most) = self.0.values_mut().max_by_key(|own| own.len())
        {
            most.pop_back();
        }
    }

    fn retain(&mut self, keep: impl Fn(Instant, &T) -> bool) {
        for own in self.0.values_mut() {
            own.retain(|(at, left)| keep(*at, left));
        }
        self.0.retain(|_, own| !own.is_empty());
    }
}

/// See the module. Clones are the same one.
#[derive(Clone, Debug)]
pub struct LeftBehind(Rc<RefCell<ByPort<Left>>>);

impl Default for LeftBehind {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(ByPort(BTreeMap::new()))))
    }
}

impl LeftBehind {
    /// Remembers what a connection of this port has left, the newest of all. What was known of the same queues is out of
    /// date.
    pub fn add(&self, port: PortId, left: Vec<Left>) {
        let (mut all, now) = (self.0.borrow_mut(), Instant::now());
        for left in left {
            all.add(port, now, left, Left::is_of_same_queue);
        }
    }

    /// All that are remembered, the newest first.
    #[must_use]
    pub fn all(&self) -> Vec<Left> {
        let mut by_port = self.0.borrow_mut();
        by_port.retain(|at, _| at.elapsed() < KEPT);
        let mut all: Vec<_> = by_port.0.values().flatten().cloned().collect();
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        all.into_iter().map(|(_, left)| left).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);

    fn add(all: &mut ByPort<u64>, port: PortId, left: u64) {
        all.add(port, Instant::now(), left, u64::eq);
    }

    fn of(all: &ByPort<u64>, port: PortId) -> Vec<u64> {
        let own = all.0.get(&port).into_iter().flatten();
        own.map(|(_, left)| *left).collect()
    }

    #[test]
    fn a_port_takes_no_place_of_others_and_the_newest_stay() {
        let mut all = ByPort(BTreeMap::new());
        add(&mut all, B, u64::MAX);
        (0..10_000).for_each(|left| add(&mut all, A, left));
        assert_eq!(of(&all, B), [u64::MAX]);
        let newest: Vec<u64> = (0..10_000).rev().take(QUEUES).collect();
        assert_eq!(of(&all, A), newest);
        for port in 3..1000 {
            (0..20).for_each(|left| add(&mut all, PortId(port), u64::from(port) << 32 | left));
        }
        assert_eq!(of(&all, B), [u64::MAX]);
        let count = all.0.values().map(VecDeque::len).sum::<usize>();
        assert_eq!(count, ALL_QUEUES);
    }

    #[test]
    fn the_newest_of_a_queue_is_in_place_of_the_others() {
        let mut all = ByPort(BTreeMap::new());
        for port in [A, B, A] {
            add(&mut all, port, 5);
        }
        add(&mut all, A, 6);
        assert_eq!((of(&all, A), of(&all, B)), (vec![6, 5], vec![]));
    }
}
