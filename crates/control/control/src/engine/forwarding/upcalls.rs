//! Queue of upcalls, with round robin over the ports: a port cannot delay the upcalls of others.
//!
//! The ring is emptied often, so that it is rarely full, into a queue per port. The engine handles
//! one upcall of each port, then the next of each. So an upcall waits for at most one of every
//! other port, and for those between two reads of the ring. An upcall that finds its port's queue
//! full is discarded: the switch sends it again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipc::records::Upcall;
use ipc::shared::Receiver;

use port::PortId;

/// Upcalls of one port that are queued: as many as a switch of eight workers has open at a time,
/// which is the most without a configured number. One that is discarded waits for its repetition,
/// and finds the queue full again as long as its port has others.
const PER_PORT: usize = 512;
/// Upcalls of all ports that are queued.
const TOTAL: usize = 1 << 15;
/// Upcalls read from the ring at a time: more than it holds.
const PER_DRAIN: usize = 1 << 13;
/// Upcalls handled between two reads of the ring.
pub(super) const BETWEEN_READS: usize = 16;

/// The ring of upcalls with its queue; see the module documentation.
pub(in crate::engine) struct Upcalls {
    ring: Receiver,
    queue: UpcallQueue,
}

impl Upcalls {
    pub(super) fn new(ring: Receiver) -> Self {
        let queue = UpcallQueue::default();
        Self { ring, queue }
    }

    /// Moves upcalls from the ring to the queue.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        for _ in 0..PER_DRAIN {
            let Some(upcall) = self.ring.recv::<Upcall>()? else {
                break;
            };
            self.queue.add(upcall);
        }
        Ok(())
    }

    /// Returns the next upcall.
    pub(super) fn next(&mut self) -> Option<Upcall> {
        self.queue.next()
    }

    /// Discards the upcalls of a port, also those in the ring: the port is removed, or the guest
    /// that caused them has disconnected.
    ///
    /// # Errors
    /// The ring is broken.
    pub(in crate::engine) fn discard(&mut self, port: PortId) -> io::Result<()> {
        self.drain()?;
        self.queue.discard(port.0);
        Ok(())
    }

    /// Keeps the upcalls of a new port in the queue: the program that is in effect does not know
    /// the port, or knows an earlier one of its number.
    pub(in crate::engine) fn hold(&mut self, port: PortId) {
        self.queue.hold(port.0);
    }

    /// Gives the ports on hold their turns.
    pub(in crate::engine) fn release(&mut self) {
        self.queue.release();
    }

    /// Returns the number of ports whose upcalls have a turn.
    pub(in crate::engine) fn waiting(&self) -> usize {
        self.queue.turns.len()
    }

    /// Prepares to wait for the ring; `false` when it has upcalls.
    pub(in crate::engine) fn prepare_sleep(&mut self) -> bool {
        self.ring.prepare_sleep()
    }

    /// Ends a wait.
    pub(in crate::engine) fn woke(&mut self) {
        self.ring.rang();
    }
}

impl AsFd for Upcalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Queue of upcalls; see the module documentation.
#[derive(Debug, Default)]
struct UpcallQueue {
    by_port: BTreeMap<u32, VecDeque<Upcall>>,
    /// Ports with upcalls, in the order of their turns.
    turns: VecDeque<u32>,
    waiting: usize,
    /// Ports whose upcalls have no turn for now.
    held: BTreeSet<u32>,
}

impl UpcallQueue {
    fn add(&mut self, upcall: Upcall) {
        let port = upcall.flow_key().in_port();
        let queue = self.by_port.entry(port).or_default();
        if queue.len() == PER_PORT || self.waiting == TOTAL {
            return;
        }
        if queue.is_empty() && !self.held.contains(&port) {
            self.turns.push_back(port);
        }
        queue.push_back(upcall);
        self.waiting += 1;
    }

    /// Returns the next upcall.
    fn next(&mut self) -> Option<Upcall> {
        let port = self.turns.pop_front()?;
        let queue = self.by_port.get_mut(&port)?;
        let upcall = queue.pop_front()?;
        self.waiting -= 1;
        if queue.is_empty() {
            self.by_port.remove(&port);
        } else {
            self.turns.push_back(port);
        }
        Some(upcall)
    }

    fn hold(&mut self, port: u32) {
        self.held.insert(port);
        self.turns.retain(|other| *other != port);
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held).into_iter();
        self.turns
            .extend(held.filter(|port| self.by_port.contains_key(port)));
    }

    /// Discards the upcalls of a port.
    fn discard(&mut self, port: u32) {
        if let Some(queue) = self.by_port.remove(&port) {
            self.waiting -= queue.len();
            self.turns.retain(|other| *other != port);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::FlowKey;

    use super::*;

    fn upcall(id: u64, port: u32) -> Upcall {
        Upcall {
            id,
            key: *FlowKey::default().with_in_port(port).words(),
            frame_len: 64,
            headers: Vec::new(),
            connection: None,
        }
    }

    fn ids(queue: &mut UpcallQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.next()).map(|u| u.id).collect()
    }

    #[test]
    fn every_port_has_its_turn_and_keeps_its_order() {
        let mut queue = UpcallQueue::default();
        for (id, port) in [(1, 7), (2, 7), (3, 7), (4, 8), (5, 9), (6, 9)] {
            queue.add(upcall(id, port));
        }
        assert_eq!(ids(&mut queue), [1, 4, 5, 2, 6, 3]);
        assert_eq!((queue.waiting, queue.by_port.len()), (0, 0));
    }

    #[test]
    fn a_port_fills_its_own_queue_only() {
        let mut queue = UpcallQueue::default();
        (0..10_000).for_each(|id| queue.add(upcall(id, 7)));
        queue.add(upcall(10_000, 8));
        assert_eq!(queue.waiting, PER_PORT + 1);
        let order = ids(&mut queue);
        assert_eq!((order[0], order[1]), (0, 10_000));
        assert_eq!(order.len(), PER_PORT + 1);
        for port in 0..2000 {
            (0..100).for_each(|id| queue.add(upcall(id, port)));
        }
        assert_eq!(queue.waiting, TOTAL, "bounded in all");
    }

    #[test]
    fn discarded_upcalls_have_no_turn() {
        let mut queue = UpcallQueue::default();
        for (id, port) in [(1, 7), (2, 8), (3, 7)] {
            queue.add(upcall(id, port));
        }
        queue.discard(7);
        queue.add(upcall(4, 7));
        assert_eq!(ids(&mut queue), [2, 4]);
    }

    #[test]
    fn upcalls_of_a_port_on_hold_wait_for_its_release() {
        let mut queue = UpcallQueue::default();
        queue.add(upcall(1, 7));
        queue.hold(7);
        (2..600).for_each(|id| queue.add(upcall(id, 7)));
        queue.add(upcall(600, 8));
        assert_eq!(ids(&mut queue), [600]);
        queue.release();
        assert_eq!(ids(&mut queue), (1..=PER_PORT as u64).collect::<Vec<_>>());
        assert_eq!((queue.waiting, queue.turns.len()), (0, 0));
        queue.hold(7);
        queue.add(upcall(1, 7));
        queue.discard(7);
        queue.release();
        assert_eq!(ids(&mut queue), [0; 0]);
    }
}
