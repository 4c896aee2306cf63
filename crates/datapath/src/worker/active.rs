//! The queue pairs that are looked at without a kick.

use channel::keeping::Mark;
use port::PortId;

/// Rounds in which others had frames and a pair had none, after which its guest is asked for kicks: looking
/// that often costs about what a kick does.
const QUIET_ROUNDS: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    pair: u16,
    /// The round in which it had frames last.
    last: u64,
    /// Its guest need not kick before, if it runs: nanoseconds.
    quiet_until: u64,
}

/// A list without doubles, in no order.
#[derive(Debug, Default)]
pub(super) struct ActivePairs {
    list: Vec<Entry>,
    /// By port id: which of its pairs are in the list.
    by_port: Vec<u64>,
    /// Rounds in which somebody had frames.
    rounds: u64,
    /// So many at the front of the list wait in this round.
    waiting: usize,
    /// Where the pair is named that is looked at.
    mark: Option<Mark>,
}

impl ActivePairs {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// From now on, says whose pair is looked at.
    pub(super) fn set_mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// The pair at a place of the list, which is about to be looked at; `None` behind its end, where nobody is.
    #[inline]
    pub(super) fn get(&mut self, at: usize) -> Option<(PortId, u16)> {
        if at == 0 {
            self.waiting = 0;
        }
        let entry = self.list.get(at);
        if let Some(mark) = &self.mark {
            match entry {
                Some(entry) => mark.serve(entry.port),
                None => mark.rest(),
            }
        }
        entry.map(|entry| (entry.port, entry.pair))
    }

    /// Adds a pair; `false` if it is there already, or can never be (its port has 64 at most).
    pub(super) fn add(&mut self, port: PortId, pair: u16) -> bool {
        let index = port.0 as usize;
        if self.by_port.len() <= index {
            self.by_port.resize(index + 1, 0);
        }
        let new = pair < 64 && self.by_port[index] & (1 << pair) == 0;
        if new {
            self.by_port[index] |= 1 << pair;
            let last = self.rounds;
            self.list.push(Entry {
                port,
                pair,
                last,
                quiet_until: 0,
            });
        }
        new
    }

    /// Whether a pair is there.
    pub(super) fn has(&self, port: PortId, pair: u16) -> bool {
        let pairs = self.by_port.get(port.0 as usize);
        pair < 64 && pairs.is_some_and(|pairs| pairs & (1 << pair) != 0)
    }

    /// The guest of a pair that is there has kicked, and need not do so again before.
    pub(super) fn keep_quiet(&mut self, port: PortId, pair: u16, until: u64) {
        let of_pair = |entry: &&mut Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(entry) = self.list.iter_mut().find(of_pair) {
            entry.quiet_until = until;
        }
    }

    /// Until when the guest of the pair at this place need not kick.
    pub(super) fn quiet_until(&self, at: usize) -> u64 {
        self.list[at].quiet_until
    }

    /// Takes a pair off, if it is there.
    pub(super) fn remove(&mut self, port: PortId, pair: u16) {
        let here = |entry: &Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(at) = self.list.iter().position(here) {
            self.remove_at(at);
        }
    }

    /// Takes the pair at this place off; another one takes the place.
    pub(super) fn remove_at(&mut self, at: usize) {
        let Entry { port, pair, .. } = self.list.swap_remove(at);
        self.by_port[port.0 as usize] &= !(1 << pair);
    }

    /// The pair at this place, which was looked at last, has to wait. It is one of the first in the next round, so that
    /// of several pairs of a port not always the same have their turn before the port's turn is over.
    pub(super) fn waits(&mut self, at: usize) {
        self.list.swap(self.waiting, at);
        self.waiting += 1;
    }

    /// The pair at this place had frames in this round.
    pub(super) fn had_frames(&mut self, at: usize) {
        self.list[at].last = self.rounds;
    }

    /// Whether the pair at this place had none for so long that a kick is cheaper.
    pub(super) fn is_quiet(&self, at: usize) -> bool {
        self.rounds - self.list[at].last >= QUIET_ROUNDS
    }

    /// A round is over in which somebody had frames.
    pub(super) fn end_round(&mut self) {
        self.rounds += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(3);
    const B: PortId = PortId(700);

    fn pairs(active: &mut ActivePairs) -> Vec<(PortId, u16)> {
        (0..).map_while(|at| active.get(at)).collect()
    }

    #[test]
    fn a_pair_is_listed_once() {
        let mut active = ActivePairs::default();
        assert!(active.is_empty());
        assert!(active.add(A, 0) && active.add(A, 63) && active.add(B, 0));
        assert!(!active.add(A, 63) && !active.add(A, 64));
        active.remove(A, 0);
        active.remove(A, 1);
        assert_eq!(pairs(&mut active), [(B, 0), (A, 63)]);
        assert!(active.add(A, 0));
        active.remove_at(0);
        assert_eq!(pairs(&mut active), [(A, 0), (A, 63)]);
    }

    #[test]
    fn who_is_looked_at_is_marked_and_nobody_else() {
        let file = rustix::fs::memfd_create("marks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, channel::keeping::MARKS).unwrap();
        let marks = channel::keeping::Marks::map(&file).unwrap();
        let mut active = ActivePairs::default();
        active.set_mark(marks.of(1));
        active.add(A, 0);
        active.add(B, 0);
        let mark = marks.of(1);
        assert_eq!(mark.served(), None);
        for (at, served) in [(0, Some(A)), (1, Some(B)), (2, None)] {
            active.get(at);
            assert_eq!(mark.served(), served, "after a look at {at}");
        }
    }

    #[test]
    fn who_had_to_wait_comes_first_in_the_next_round() {
        let mut active = ActivePairs::default();
        assert!((0..5).all(|pair| active.add(A, pair)));
        // Two of the pairs are served in each round.
        let mut turns = [0; 5];
        for _ in 0..50 {
            for at in 0..5 {
                let (_, pair) = active.get(at).unwrap();
                match at {
                    0 | 1 => turns[usize::from(pair)] += 1,
                    _ => active.waits(at),
                }
            }
        }
        // Not all alike, but who waits only ever moves forward in the list.
        assert!(turns.iter().all(|turns| *turns >= 10), "{turns:?}");
    }

    #[test]
    fn only_rounds_with_frames_of_others_make_a_pair_quiet() {
        let mut active = ActivePairs::default();
        active.add(A, 0);
        active.add(B, 0);
        for _ in 0..QUIET_ROUNDS {
            assert!(!active.is_quiet(1));
            active.had_frames(0);
            active.end_round();
        }
        assert!(active.is_quiet(1) && !active.is_quiet(0));
        active.remove_at(1);
        active.add(B, 0);
        assert!(!active.is_quiet(1), "it starts anew");
    }
}
