//! Upcalls that wait: each port has its turn, whatever others ask.
//!
//! Everything is taken out of the ring again and again, so that nobody finds it full for long, and waits here in a queue of its port's
//! own. One is answered of each port that asks, then the next of each. So a question waits for one of every other port, and for
//! those that are answered between two looks at the ring. What finds its port's queue full is forgotten: the switch
//! asks again.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use channel::records::Upcall;
use channel::shared::Receiver;

use port::PortId;

use super::{Engine, UPCALLS_PER_TURN};

/// Questions of one port: more than a switch of four workers has open at a time.
const PER_PORT: usize = 256;
/// Questions of all ports.
const ALL: usize = 1 << 15;
/// Taken out of the ring at a time: more than it holds.
const AT_ONCE: usize = 1 << 13;
/// Questions that are answered between two looks at the ring.
pub(super) const BETWEEN_LOOKS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Questions {
    by_port: BTreeMap<u32, VecDeque<Upcall>>,
    /// Ports with questions, in the order in which they have their turns.
    turns: VecDeque<u32>,
    waiting: usize,
}

impl Questions {
    /// Takes what there is out of the ring.
    fn hear(&mut self, ring: &mut Receiver) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(upcall) = ring.recv::<Upcall>()? else {
                break;
            };
            self.add(upcall);
        }
        Ok(())
    }

    fn add(&mut self, upcall: Upcall) {
        let port = upcall.flow_key().in_port();
        let queue = self.by_port.entry(port).or_default();
        if queue.len() == PER_PORT || self.waiting == ALL {
            return;
        }
        if queue.is_empty() {
            self.turns.push_back(port);
        }
        queue.push_back(upcall);
        self.waiting += 1;
    }

    /// The next one.
    fn next(&mut self) -> Option<Upcall> {
        let port = self.turns.pop_front()?;
        let queue = self.by_port.get_mut(&port)?;
        let upcall = queue.pop_front()?;
        self.waiting -= 1;
        match queue.is_empty() {
            true => drop(self.by_port.remove(&port)),
            false => self.turns.push_back(port),
        }
        Some(upcall)
    }

    /// Forgets what a port has asked.
    fn forget(&mut self, port: u32) {
        if let Some(queue) = self.by_port.remove(&port) {
            self.waiting -= queue.len();
            self.turns.retain(|other| *other != port);
        }
    }
}

impl Engine {
    /// Forgets what a port has asked, also what is in the ring: it goes away, or whoever asked is not there any more.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn forget_questions(&mut self, port: PortId) -> io::Result<()> {
        self.questions.hear(&mut self.upcalls)?;
        self.questions.forget(port.0);
        Ok(())
    }

    /// Answers waiting upcalls. `true` when there may be more.
    pub(super) fn answer_upcalls(&mut self) -> io::Result<bool> {
        self.send_backlog();
        let mut more = true;
        for answered in 0..UPCALLS_PER_TURN {
            if answered % BETWEEN_LOOKS == 0 {
                self.questions.hear(&mut self.upcalls)?;
            }
            let Some(upcall) = self.questions.next() else {
                more = false;
                break;
            };
            self.decide(&upcall);
        }
        self.save_moves()?;
        self.answers.ring_bell();
        Ok(more)
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
        }
    }

    fn ids(questions: &mut Questions) -> Vec<u64> {
        std::iter::from_fn(|| questions.next())
            .map(|u| u.id)
            .collect()
    }

    #[test]
    fn every_port_has_its_turn_and_keeps_its_order() {
        let mut questions = Questions::default();
        for (id, port) in [(1, 7), (2, 7), (3, 7), (4, 8), (5, 9), (6, 9)] {
            questions.add(upcall(id, port));
        }
        assert_eq!(ids(&mut questions), [1, 4, 5, 2, 6, 3]);
        assert_eq!((questions.waiting, questions.by_port.len()), (0, 0));
    }

    #[test]
    fn a_port_fills_its_own_queue_only() {
        let mut questions = Questions::default();
        (0..10_000).for_each(|id| questions.add(upcall(id, 7)));
        questions.add(upcall(10_000, 8));
        assert_eq!(questions.waiting, PER_PORT + 1);
        let order = ids(&mut questions);
        assert_eq!((order[0], order[1]), (0, 10_000));
        assert_eq!(order.len(), PER_PORT + 1);
        for port in 0..2000 {
            (0..100).for_each(|id| questions.add(upcall(id, port)));
        }
        assert_eq!(questions.waiting, ALL, "bounded in all");
    }

    #[test]
    fn what_is_forgotten_has_no_turn() {
        let mut questions = Questions::default();
        for (id, port) in [(1, 7), (2, 8), (3, 7)] {
            questions.add(upcall(id, port));
        }
        questions.forget(7);
        questions.add(upcall(4, 7));
        assert_eq!(ids(&mut questions), [2, 4]);
    }
}
