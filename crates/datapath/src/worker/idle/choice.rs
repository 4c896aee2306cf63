//! The idle core that helps for a receiver (Ram, "Hyper-Switch", sections 4.3.4 and 4.5: the
//! offload criteria).
//!
//! 1. A core in the *cluster* of the receiver, those that share its last-level cache: what was
//!    copied there is near.
//! 2. Else a core of another cluster, of the same memory node first.
//! 3. Else none.
//!
//! A core in one *module* (a first- or second-level cache, or a hardware core) with a core on which
//! a guest runs is never chosen: the copies would displace the guest's data. Of equals, a core
//! without a worker in its module is better, and a hash spreads the work over the rest.

use channel::cores::CoreFacts;
use sched::topology::{Topology, share_module};

/// The state of a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreState {
    /// It idles, as far as is known.
    Idle,
    /// A vCPU runs there.
    Guest,
    /// A worker runs there.
    Worker,
    /// Another thread runs there.
    Busy,
}

/// The rank of a core; less is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    /// 0: same cluster, 1: same node, 2: elsewhere.
    distance: u8,
    /// A worker runs in its module.
    beside_worker: bool,
}

/// Returns the core that is to help for a receiver on core `near`, if any. `None` as `near` is a
/// receiver on an unknown core, to which all are equally far. `state` returns the state of a core.
#[must_use]
pub fn choose(
    topology: &Topology,
    near: Option<u16>,
    state: impl Fn(u16) -> CoreState,
    hash: u64,
) -> Option<u16> {
    let near = near.and_then(|core| topology.get(core));
    let ranked = || {
        let cores = topology.cores().iter();
        cores.filter_map(|facts| Some((rank(topology, near, facts, &state)?, facts.core)))
    };
    let (best, _) = ranked().min()?;
    let equals = || ranked().filter(|(rank, _)| *rank == best);
    let count = equals().count() as u64;
    // The upper half of a product is as even as the hash, unlike a remainder of few bits.
    let at = (u128::from(hash) * u128::from(count)) >> 64;
    equals().nth(at as usize).map(|(_, core)| core)
}

/// Returns the rank of a core; `None`: it cannot help.
fn rank(
    topology: &Topology,
    near: Option<&CoreFacts>,
    facts: &CoreFacts,
    state: &impl Fn(u16) -> CoreState,
) -> Option<Rank> {
    if !facts.allowed || state(facts.core) != CoreState::Idle {
        return None;
    }
    let mut beside_worker = false;
    for other in topology.cores() {
        if other.core != facts.core && share_module(facts, other) {
            match state(other.core) {
                CoreState::Guest => return None,
                CoreState::Worker => beside_worker = true,
                CoreState::Idle | CoreState::Busy => {}
            }
        }
    }
    let distance = match near {
        None => 0,
        Some(near) if near.l3 == facts.l3 => 0,
        Some(near) if near.node == facts.node => 1,
        Some(_) => 2,
    };
    Some(Rank {
        distance,
        beside_worker,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::CoreState::{Busy, Guest, Idle, Worker};
    use super::*;

    /// Two nodes of two clusters of two modules of two threads: module `core / 2`, cluster `core /
    /// 4`, node `core / 8`.
    fn server() -> Topology {
        let core = |core: u16| CoreFacts {
            core,
            allowed: true,
            smt: core / 2 * 2,
            l1: core / 2 * 2,
            l2: core / 2 * 2,
            l3: core / 4 * 4,
            node: core / 8,
        };
        Topology::new((0..16).map(core).collect())
    }

    fn among(near: Option<u16>, state: impl Fn(u16) -> CoreState + Copy) -> BTreeSet<u16> {
        let hashes = (0..64).map(|n| n << 58);
        hashes
            .filter_map(|h| choose(&server(), near, state, h))
            .collect()
    }

    #[test]
    fn the_papers_order() {
        // The receiver runs on core 0: not on its other thread, but anywhere else in its cluster.
        let only = |guests: &'static [u16], from: u16, to: u16| {
            move |core: u16| match core {
                _ if guests.contains(&core) => Guest,
                _ if (from..to).contains(&core) => Idle,
                _ => Busy,
            }
        };
        assert_eq!(among(Some(0), only(&[0], 0, 16)), [2, 3].into());
        // Another guest in the second module: the next cluster of the node.
        assert_eq!(among(Some(0), only(&[0, 3], 0, 16)), [4, 5, 6, 7].into());
        // That one is busy: the other node.
        let all = (8..16).collect();
        assert_eq!(among(Some(0), only(&[0, 3], 8, 16)), all);
        // Only beside guests: not at all.
        assert_eq!(among(Some(0), only(&[0, 2, 4], 0, 6)), [].into());
        assert_eq!(among(None, only(&[0], 0, 16)), (2..16).collect());
    }

    #[test]
    fn a_module_without_a_worker_is_better() {
        let state = |core: u16| if core == 2 { Worker } else { Idle };
        assert_eq!(among(Some(1), state), [0, 1].into());
        let state = |core: u16| match core {
            0 | 2 => Worker,
            _ => Idle,
        };
        assert_eq!(among(Some(1), state), [1, 3].into());
    }

    #[test]
    fn cores_that_are_not_allowed_or_not_known_are_not_chosen() {
        let mut cores = server().cores().to_vec();
        cores
            .iter_mut()
            .for_each(|facts| facts.allowed = facts.core == 9);
        let topology = Topology::new(cores);
        assert_eq!(choose(&topology, Some(77), |_| Idle, 5), Some(9));
        assert_eq!(choose(&topology, Some(0), |_| Busy, 5), None);
        assert_eq!(choose(&Topology::default(), Some(0), |_| Idle, 0), None);
    }

    /// The rules of the paper, by sets.
    fn slow(topology: &Topology, near: Option<u16>, state: &[CoreState]) -> BTreeSet<u16> {
        let of = |core: u16| topology.get(core).unwrap();
        let all: BTreeSet<u16> = topology.cores().iter().map(|f| f.core).collect();
        let module = |core: u16| -> BTreeSet<u16> {
            let shares = |o: &u16| {
                let (a, b) = (of(core), of(*o));
                a.smt == b.smt || a.l1 == b.l1 || a.l2 == b.l2
            };
            all.iter().copied().filter(shares).collect()
        };
        let runs = |core: u16, what: CoreState| state[usize::from(core)] == what;
        let idle: BTreeSet<u16> = all
            .iter()
            .copied()
            .filter(|c| runs(*c, Idle) && of(*c).allowed)
            .collect();
        let undisturbing: BTreeSet<u16> = idle
            .into_iter()
            .filter(|c| !module(*c).iter().any(|o| runs(*o, Guest)))
            .collect();
        let known = near.filter(|core| all.contains(core));
        let within = |same: &dyn Fn(u16) -> bool| -> BTreeSet<u16> {
            undisturbing.iter().copied().filter(|c| same(*c)).collect()
        };
        let places = match known {
            None => vec![undisturbing.clone()],
            Some(near) => vec![
                within(&|c| of(c).l3 == of(near).l3),
                within(&|c| of(c).node == of(near).node),
                undisturbing.clone(),
            ],
        };
        for place in places {
            let free = |c: &u16| !module(*c).iter().any(|o| runs(*o, Worker));
            let better: BTreeSet<u16> = place.iter().copied().filter(free).collect();
            if !better.is_empty() {
                return better;
            }
            if !place.is_empty() {
                return place;
            }
        }
        BTreeSet::new()
    }

    fn topologies() -> impl Strategy<Value = Topology> {
        let core = (any::<bool>(), 0..12u16, 0..12u16, 0..6u16, 0..3u16, 0..2u16);
        proptest::collection::vec(core, 1..12).prop_map(|cores| {
            let cores = (0..).zip(cores);
            let facts = |(core, (allowed, smt, l1, l2, l3, node))| CoreFacts {
                core,
                allowed,
                smt,
                l1,
                l2,
                l3,
                node,
            };
            Topology::new(cores.map(facts).collect())
        })
    }

    proptest! {
        #[test]
        fn the_choice_follows_the_rules_of_the_paper(
            topology in topologies(),
            state in proptest::collection::vec(
                prop_oneof![
                    4 => Just(Idle), 1 => Just(Guest), 1 => Just(Worker), 1 => Just(Busy)
                ],
                12,
            ),
            near in proptest::option::of(0..14u16),
        ) {
            let slow = slow(&topology, near, &state);
            let hashes = (0..=u64::MAX).step_by(1 << 58);
            let chosen: BTreeSet<u16> = hashes
                .filter_map(|hash| choose(&topology, near, |c| state[usize::from(c)], hash))
                .collect();
            // All of the best are used, and no other.
            prop_assert_eq!(chosen, slow);
        }
    }
}
