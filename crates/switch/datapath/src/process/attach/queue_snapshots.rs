//! Queue positions of broken connections, for a front end that connects again, maybe at another
//! port. The session checks by the queue's memory whether a position is its own.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use port::PortId;
use virtio::vhost_user::QueueSnapshot;

/// Time for which snapshots are kept, seconds; front ends reconnect within seconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest number of queues of one port: 64 pairs. A port cannot use up the places of others.
const QUEUES_PER_PORT: usize = 128;
/// Largest number of queues of all ports; beyond it, the port with the most snapshots loses its
/// oldest.
const ALL_QUEUES: usize = 4096;

/// The snapshots of each port, the newest first.
#[derive(Debug)]
struct ByPort<T>(BTreeMap<PortId, VecDeque<(Instant, T)>>);

impl<T> ByPort<T> {
    /// Adds a snapshot; `same` returns whether two are of one queue.
    fn add(&mut self, port: PortId, now: Instant, snapshot: T, same: impl Fn(&T, &T) -> bool) {
        self.retain(|_, before| !same(before, &snapshot));
        let own = self.0.entry(port).or_default();
        own.push_front((now, snapshot));
        own.truncate(QUEUES_PER_PORT);
        if self.0.values().map(VecDeque::len).sum::<usize>() > ALL_QUEUES
            && let Some(most) = self.0.values_mut().max_by_key(|own| own.len())
        {
            most.pop_back();
        }
    }

    fn retain(&mut self, keep: impl Fn(Instant, &T) -> bool) {
        for own in self.0.values_mut() {
            own.retain(|(at, snapshot)| keep(*at, snapshot));
        }
        self.0.retain(|_, own| !own.is_empty());
    }
}

/// The snapshots of all ports. Clones share them.
#[derive(Clone, Debug)]
pub struct QueueSnapshots(Rc<RefCell<ByPort<QueueSnapshot>>>);

impl Default for QueueSnapshots {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(ByPort(BTreeMap::new()))))
    }
}

impl QueueSnapshots {
    /// Adds the snapshots of a connection of this port. Older ones of the same queues are replaced.
    pub fn add(&self, port: PortId, snapshot: Vec<QueueSnapshot>) {
        let (mut all, now) = (self.0.borrow_mut(), Instant::now());
        for snapshot in snapshot {
            all.add(port, now, snapshot, QueueSnapshot::is_of_same_queue);
        }
    }

    /// Returns all snapshots, the newest first.
    #[must_use]
    pub fn all(&self) -> Vec<QueueSnapshot> {
        let mut by_port = self.0.borrow_mut();
        by_port.retain(|at, _| at.elapsed() < SNAPSHOT_TIMEOUT);
        let mut all: Vec<_> = by_port.0.values().flatten().cloned().collect();
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        all.into_iter().map(|(_, snapshot)| snapshot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);

    fn add(all: &mut ByPort<u64>, port: PortId, snapshot: u64) {
        all.add(port, Instant::now(), snapshot, u64::eq);
    }

    fn of(all: &ByPort<u64>, port: PortId) -> Vec<u64> {
        let own = all.0.get(&port).into_iter().flatten();
        own.map(|(_, snapshot)| *snapshot).collect()
    }

    #[test]
    fn a_port_cannot_use_up_places_of_others_and_the_newest_stay() {
        let mut all = ByPort(BTreeMap::new());
        add(&mut all, B, u64::MAX);
        (0..10_000).for_each(|snapshot| add(&mut all, A, snapshot));
        assert_eq!(of(&all, B), [u64::MAX]);
        let newest: Vec<u64> = (0..10_000).rev().take(QUEUES_PER_PORT).collect();
        assert_eq!(of(&all, A), newest);
        for port in 3..1000 {
            (0..20)
                .for_each(|snapshot| add(&mut all, PortId(port), u64::from(port) << 32 | snapshot));
        }
        assert_eq!(of(&all, B), [u64::MAX]);
        let count = all.0.values().map(VecDeque::len).sum::<usize>();
        assert_eq!(count, ALL_QUEUES);
    }

    #[test]
    fn the_newest_of_a_queue_replaces_the_others() {
        let mut all = ByPort(BTreeMap::new());
        for port in [A, B, A] {
            add(&mut all, port, 5);
        }
        add(&mut all, A, 6);
        assert_eq!((of(&all, A), of(&all, B)), (vec![6, 5], vec![]));
    }
}
