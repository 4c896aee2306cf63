//! The active queue pairs, which are polled without a kick.

use channel::keeping::ThreadSlot;
use port::PortId;

/// Rounds with frames of other pairs and none of this one, after which its kicks are enabled: that
/// many polls cost about as much as a kick.
const QUIET_ROUNDS: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    pair: u16,
    /// The last round in which it had frames.
    last: u64,
    /// Until then its guest need not kick, if it runs: nanoseconds.
    quiet_until: u64,
}

/// The active pairs, each once, in no order.
#[derive(Debug, Default)]
pub(super) struct ActivePairs {
    list: Vec<Entry>,
    /// By port id: a bit for each of its pairs in the list.
    by_port: Vec<u64>,
    /// Rounds in which any pair had frames.
    rounds: u64,
    /// The number of pairs at the front of the list that wait in this round.
    waiting: usize,
    /// The slot that records the port of the current pair.
    slot: Option<ThreadSlot>,
}

impl ActivePairs {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Sets the slot that records the port of the current pair.
    pub(super) fn set_thread_slot(&mut self, slot: ThreadSlot) {
        self.slot = Some(slot);
    }

    /// Returns the pair at an index, which is about to be served; `None` behind the end.
    #[inline]
    pub(super) fn get(&mut self, at: usize) -> Option<(PortId, u16)> {
        if at == 0 {
            self.waiting = 0;
        }
        let entry = self.list.get(at);
        if let Some(slot) = &self.slot {
            match entry {
                Some(entry) => slot.serve(entry.port),
                None => slot.rest(),
            }
        }
        entry.map(|entry| (entry.port, entry.pair))
    }

    /// Adds a pair. Returns `false` if it is listed already, or beyond the 64 pairs of a port.
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

    /// Returns whether a pair is active.
    pub(super) fn has(&self, port: PortId, pair: u16) -> bool {
        let pairs = self.by_port.get(port.0 as usize);
        pair < 64 && pairs.is_some_and(|pairs| pairs & (1 << pair) != 0)
    }

    /// Notes a kick for an active pair: its guest need not kick again until then.
    pub(super) fn keep_quiet(&mut self, port: PortId, pair: u16, until: u64) {
        let of_pair = |entry: &&mut Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(entry) = self.list.iter_mut().find(of_pair) {
            entry.quiet_until = until;
        }
    }

    /// Returns the time until which the guest of the pair at this index need not kick.
    pub(super) fn quiet_until(&self, at: usize) -> u64 {
        self.list[at].quiet_until
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, port: PortId, pair: u16) {
        let here = |entry: &Entry| (entry.port, entry.pair) == (port, pair);
        if let Some(at) = self.list.iter().position(here) {
            self.remove_at(at);
        }
    }

    /// Removes the pair at this index; another one moves there.
    pub(super) fn remove_at(&mut self, at: usize) {
        let Entry { port, pair, .. } = self.list.swap_remove(at);
        self.by_port[port.0 as usize] &= !(1 << pair);
    }

    /// Makes the current pair at this index wait. It is among the first in the next round, so that
    /// the pairs of a port take turns before the port's turn is over.
    pub(super) fn waits(&mut self, at: usize) {
        self.list.swap(self.waiting, at);
        self.waiting += 1;
    }

    /// Notes that the pair at this index had frames in this round.
    pub(super) fn had_frames(&mut self, at: usize) {
        self.list[at].last = self.rounds;
    }

    /// Returns whether the pair at this index had no frames for so long that a kick is cheaper.
    pub(super) fn is_quiet(&self, at: usize) -> bool {
        self.rounds - self.list[at].last >= QUIET_ROUNDS
    }

    /// Ends a round in which any pair had frames.
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
    fn the_slot_names_the_port_of_the_current_pair_only() {
        let file = rustix::fs::memfd_create("marks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, channel::keeping::CRASH_RECORD_LEN).unwrap();
        let slots = channel::keeping::ThreadSlots::map(&file).unwrap();
        let mut active = ActivePairs::default();
        active.set_thread_slot(slots.of(1));
        active.add(A, 0);
        active.add(B, 0);
        let slot = slots.of(1);
        assert_eq!(slot.served(), None);
        for (at, served) in [(0, Some(A)), (1, Some(B)), (2, None)] {
            active.get(at);
            assert_eq!(slot.served(), served, "at {at}");
        }
    }

    #[test]
    fn a_pair_that_had_to_wait_comes_first_in_the_next_round() {
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
        // The turns differ, but a waiting pair only moves forward in the list.
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
