//! The exact-match level: which flow the frames with one whole key have, so that not every mask has to be
//! asked.
//!
//! It holds references, no actions. A reference counts only if its flow still matches the key, bit by bit
//! under the flow's own mask; so a removed flow is never followed, and a changed one is as it is now. What
//! that does not show is a flow of an earlier mask that was installed since; therefore every installation
//! makes the references of its ingress port old. "Whole key" means all bits that some mask counts.

use super::cache::{prefetch, want_huge_pages};

/// Ingress ports are told apart by so many bits of their number.
const PORTS: usize = 256;

/// References in a set, which is a cache line.
const WAYS: usize = 4;
/// Keys that a set has on average when there are as many as flows in the largest table.
const KEYS_PER_SET: usize = 2;

/// Hash, and epoch and slot.
type Reference = [u64; 2];

/// See the module.
#[derive(Debug)]
pub(super) struct Exact {
    /// Sets, after a few unused places that bring the first to the start of a cache line: memory that comes
    /// zeroed from the system, and costs nothing before it is used, cannot be had aligned.
    places: Vec<Reference>,
    first: usize,
    /// Number of sets, a power of two, less one.
    last_set: usize,
    /// By ingress port: installations so far, from 1 on. A reference of another epoch is old.
    epochs: Box<[u32; PORTS]>,
}

impl Exact {
    /// A level for `flows` keys.
    pub(super) fn new(flows: usize) -> Self {
        let sets = (flows / KEYS_PER_SET).next_power_of_two();
        let places: Vec<Reference> = vec![[0; 2]; (sets + 1) * WAYS];
        want_huge_pages(&places);
        let line = WAYS * size_of::<Reference>();
        let unused = places.as_ptr().addr().next_multiple_of(line) - places.as_ptr().addr();
        Self {
            first: unused / size_of::<Reference>(),
            last_set: sets - 1,
            places,
            epochs: Box::new([1; PORTS]),
        }
    }

    /// Where the set of a hash begins.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        self.first + (hash as usize & self.last_set) * WAYS
    }

    #[inline]
    fn epoch(&self, in_port: u32) -> u32 {
        self.epochs[in_port as usize % PORTS]
    }

    /// Fetches the set of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.places[self.set(hash)]);
    }

    /// The slot of the flow that a key of this hash had.
    #[inline]
    pub(super) fn find(&self, hash: u64, in_port: u32) -> Option<u32> {
        let set = self.places[self.set(hash)..].first_chunk::<WAYS>()?;
        let [_, rest] = set.iter().find(|[known, _]| *known == hash)?;
        let fresh = (rest >> 32) as u32 == self.epoch(in_port);
        fresh.then_some(*rest as u32)
    }

    /// Notes where a key's flow is: in its own place, an unused one, or another's that is as good as random.
    pub(super) fn remember(&mut self, hash: u64, in_port: u32, slot: u32) {
        let (start, epoch) = (self.set(hash), self.epoch(in_port));
        let set = &mut self.places[start..start + WAYS];
        let own = set.iter().position(|[known, _]| *known == hash);
        let way = own
            .or_else(|| set.iter().position(|place| *place == [0; 2]))
            .unwrap_or((hash >> 62) as usize);
        set[way] = [hash, u64::from(epoch) << 32 | u64::from(slot)];
    }

    /// References of a port's frames are old; without a port, all are.
    pub(super) fn outdate(&mut self, in_port: Option<u32>) {
        let mut wrapped = false;
        let mut advance = |epoch: &mut u32| {
            *epoch = epoch.checked_add(1).unwrap_or(1);
            wrapped |= *epoch == 1;
        };
        match in_port {
            Some(port) => advance(&mut self.epochs[port as usize % PORTS]),
            None => self.epochs.iter_mut().for_each(advance),
        }
        if wrapped {
            // Once in four billion installations: nothing of the last round may look new.
            self.places.fill([0; 2]);
        }
    }
}
