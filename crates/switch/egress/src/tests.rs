//! The tree beside the fluid model, and its promises in every window of time.

use proptest::prelude::*;

use crate::oracle::{BackloggedLeaf, TICK, run};
use crate::{
    Beyond, FullAction, Grant, LONGEST, Leaf, MAX_CLASSES, Nanos, Need, OutputConfig, Rates,
};
use crate::{Group, Sender, Tree, oracle};

const SECOND: Nanos = 1_000_000_000;
/// Frame lengths of a mixed sender, bits on the wire.
const MIXED: [u64; 3] = [88 * 8, 1538 * 8, LONGEST];

fn rates(min: u64, max: Option<u64>, weight: u16) -> Rates {
    Rates {
        min,
        max,
        weight,
        ..Rates::usual()
    }
}

fn sender(port: u32, rates: Rates) -> Sender {
    Sender {
        port,
        rates,
        priority: 0,
        group: None,
        beyond: Beyond::Hold,
        classes: Vec::new(),
    }
}

fn output(rate: u64, senders: Vec<Sender>) -> OutputConfig {
    OutputConfig {
        rate: Some(rate),
        overhead: 0,
        full: FullAction::Drop,
        room: 0,
        groups: Vec::new(),
        priorities: [0; MAX_CLASSES],
        senders,
    }
}

fn leaf(sender: usize) -> Leaf {
    Leaf::of(sender, 0)
}

/// Returns the bits a second that each leaf got in half a second, after another one.
fn bits_a_second(config: &OutputConfig, leaves: &[Leaf], frames: &[u64]) -> Vec<f64> {
    let mut tree = Tree::new(config, None);
    let mut leaves: Vec<_> = leaves
        .iter()
        .map(|leaf| BackloggedLeaf::new(*leaf, frames))
        .collect();
    let half = SECOND / 2;
    run(&mut tree, &mut leaves, 0, half);
    leaves.iter_mut().for_each(|leaf| leaf.sent = 0);
    run(&mut tree, &mut leaves, half, 2 * half);
    leaves.iter().map(|leaf| 2.0 * leaf.sent as f64).collect()
}

fn jain(bits: &[f64]) -> f64 {
    let sum: f64 = bits.iter().sum();
    let squares: f64 = bits.iter().map(|b| b * b).sum();
    sum * sum / (bits.len() as f64 * squares)
}

#[test]
fn a_single_sender_gets_the_rate_to_one_percent() {
    for rate in [10_000_000, 1_000_000_000, 10_000_000_000] {
        for frames in [&MIXED[..1], &MIXED[1..2], &MIXED[2..], &MIXED[..]] {
            let config = output(rate, vec![sender(1, Rates::usual())]);
            let bits = bits_a_second(&config, &[leaf(0)], frames)[0];
            let off = (bits - rate as f64).abs() - 2.0 * LONGEST as f64;
            assert!(off <= 0.001 * rate as f64, "{rate} {frames:?}: {bits}");
        }
    }
}

#[test]
fn equal_senders_with_mixed_frames_share_fairly() {
    for rate in [1_000_000_000, 10_000_000_000] {
        let senders = (0..64).map(|port| sender(port, Rates::usual())).collect();
        let leaves: Vec<Leaf> = (0..64).map(leaf).collect();
        let bits = bits_a_second(&output(rate, senders), &leaves, &MIXED);
        assert!(jain(&bits) >= 0.99, "{rate}: {}", jain(&bits));
        let sum: f64 = bits.iter().sum();
        assert!(sum >= 0.99 * rate as f64, "{rate}: {sum}");
    }
}

#[test]
fn more_classes_give_a_sender_no_more() {
    let senders = (0..2).map(|port| sender(port, Rates::usual())).collect();
    let mut leaves: Vec<Leaf> = (0..MAX_CLASSES as u8)
        .map(|class| Leaf::of(0, class))
        .collect();
    leaves.push(leaf(1));
    let bits = bits_a_second(&output(1_000_000_000, senders), &leaves, &MIXED[1..2]);
    let (classes, one) = bits.split_at(MAX_CLASSES);
    let all: f64 = classes.iter().sum();
    assert!(jain(&[all, one[0]]) >= 0.999, "{all} beside {}", one[0]);
}

#[test]
fn a_late_sender_keeps_its_share() {
    // One leaf asks only at every third tick, but then for more: it is behind, not idle.
    let config = output(
        1_000_000_000,
        (0..4).map(|port| sender(port, Rates::usual())).collect(),
    );
    let mut tree = Tree::new(&config, None);
    let mut leaves: Vec<_> = (0..4)
        .map(|at| BackloggedLeaf::new(leaf(at), &MIXED[1..2]))
        .collect();
    for tick in 0..20_000 {
        let late = tick % 3 != 0;
        let mut needs: Vec<Need> = leaves.iter_mut().map(BackloggedLeaf::send).collect();
        needs.retain(|need| !late || need.leaf != leaf(3));
        tree.allot(tick * TICK, None, &mut needs, |grant| {
            let at = grant.leaf.sender();
            leaves[at].credit += grant.bits as i64;
        });
    }
    let bits: Vec<f64> = leaves.iter().map(|leaf| leaf.sent as f64).collect();
    assert!(jain(&bits) >= 0.99, "{bits:?}");
}

#[test]
fn a_priority_waits_for_one_frame_at_most() {
    let mut senders: Vec<Sender> = (0..8).map(|port| sender(port, Rates::usual())).collect();
    senders[7].priority = 5;
    let mut tree = Tree::new(&output(1_000_000_000, senders), None);
    let mut floods: Vec<_> = (0..7)
        .map(|at| BackloggedLeaf::new(leaf(at), &MIXED))
        .collect();
    run(&mut tree, &mut floods, 0, SECOND);
    let one = Need {
        leaf: leaf(7),
        first: MIXED[1],
        all: MIXED[1],
    };
    let mut needs: Vec<Need> = floods.iter_mut().map(BackloggedLeaf::send).collect();
    needs.push(one);
    let mut first = None;
    let mut now = SECOND;
    while first.is_none() {
        now += TICK / 10;
        tree.allot(now, None, &mut needs, |grant| {
            first.get_or_insert(grant);
        });
    }
    assert_eq!(first.map(|grant| grant.leaf), Some(leaf(7)));
    assert!(now - SECOND <= TICK, "{now}");
}

#[test]
fn guarantees_hold_beside_floods_of_a_higher_priority() {
    let mut senders: Vec<Sender> = (0..64).map(|port| sender(port, Rates::usual())).collect();
    senders[0].rates = rates(300_000_000, None, 1);
    senders[1].rates = rates(200_000_000, Some(250_000_000), 1000);
    for flood in &mut senders[2..] {
        flood.priority = 7;
    }
    let leaves: Vec<Leaf> = (0..64).map(leaf).collect();
    let bits = bits_a_second(&output(1_000_000_000, senders), &leaves, &MIXED);
    assert!(
        bits[0] >= 0.99 * 300e6 && bits[1] >= 0.99 * 200e6,
        "{bits:?}"
    );
    assert!(
        bits[0] <= 1.01 * 300e6 && bits[1] <= 1.01 * 200e6,
        "{bits:?}"
    );
}

#[test]
fn a_group_guarantees_for_its_members_together() {
    let mut senders: Vec<Sender> = (0..4).map(|port| sender(port, Rates::usual())).collect();
    (senders[0].group, senders[1].group) = (Some(0), Some(0));
    senders[0].rates.min = 100_000_000;
    senders[2].priority = 1;
    let config = OutputConfig {
        groups: vec![group("g", rates(400_000_000, Some(600_000_000), 100))],
        ..output(1_000_000_000, senders)
    };
    let leaves: Vec<Leaf> = (0..4).map(leaf).collect();
    let bits = bits_a_second(&config, &leaves, &MIXED[1..2]);
    let group = bits[0] + bits[1];
    assert!((0.99 * 400e6..=1.01 * 400e6).contains(&group), "{bits:?}");
    assert!(bits[0] >= 0.99 * 100e6, "{bits:?}");
    assert!(bits[2] >= 0.99 * 600e6 - 2.0 * LONGEST as f64, "{bits:?}");
    // Without the sender of a higher priority, the group has its share of the rest, to its ceiling.
    let bits = bits_a_second(&config, &[leaf(0), leaf(1)], &MIXED[1..2]);
    let group = bits[0] + bits[1];
    assert!((0.99 * 600e6..=1.01 * 600e6).contains(&group), "{bits:?}");
}

#[test]
fn guarantees_are_scaled_to_a_slower_link() {
    let mut senders: Vec<Sender> = (0..2).map(|port| sender(port, Rates::usual())).collect();
    senders[0].rates.min = 600;
    senders[1].rates.min = 200;
    senders[1].classes = vec![(1, rates(100, None, 100))];
    let mut config = output(1000, senders);
    assert!(!config.scale_to(800));
    assert!(config.scale_to(400));
    let mins = config.senders.iter().map(|sender| sender.rates.min);
    assert_eq!(mins.collect::<Vec<_>>(), [300, 100]);
    assert_eq!(config.senders[1].classes[0].1.min, 50);
}

#[test]
fn a_changed_tree_keeps_what_its_nodes_had() {
    let limited = rates(0, Some(1_000_000), 100);
    let before = output(1_000_000_000, vec![sender(1, limited), sender(2, limited)]);
    let mut tree = Tree::new(&before, None);
    let mut leaves = [BackloggedLeaf::new(leaf(1), &MIXED[1..2])];
    let burst = run(&mut tree, &mut leaves, 0, TICK * 5);
    assert!(!burst.is_empty());
    // Port 2 has spent its burst; port 3 is new.
    let after = output(1_000_000_000, vec![sender(2, limited), sender(3, limited)]);
    let mut tree = Tree::new(&after, Some((&before, &tree)));
    let needs = |at| Need {
        leaf: leaf(at),
        first: LONGEST,
        all: LONGEST,
    };
    let mut granted = Vec::new();
    let wait = tree.allot(TICK * 6, None, &mut [needs(0), needs(1)], |grant| {
        granted.push(grant.leaf);
    });
    assert_eq!(granted, [leaf(1)]);
    assert!(wait.is_some());
}

#[test]
fn a_burst_that_cannot_wait_passes_after_a_pause_and_the_rate_holds_again() {
    let burst = 20_000_000;
    let rates = Rates {
        burst,
        ..Rates::usual()
    };
    let mut dropped = sender(1, rates);
    dropped.beyond = Beyond::Drop;
    let config = output(200_000_000, vec![dropped, sender(2, Rates::usual())]);
    let mut tree = Tree::new(&config, None);
    let mut granted = |now, at| {
        let mut bits = 0;
        let need = Need {
            leaf: leaf(at),
            first: 12_000,
            all: 100_000_000,
        };
        tree.allot(now, None, &mut [need], |grant| bits += grant.bits);
        bits
    };
    let depth = 2 * LONGEST;
    // A sender that can wait gets what the output has; the rest is left for the other one.
    assert_eq!(granted(SECOND, 1), depth);
    assert_eq!(granted(SECOND, 0), burst);
    assert_eq!(granted(SECOND + SECOND / 1000, 0), 200_000);
    // It is there again when the output had nothing to do for so long.
    let pause = (burst + depth) * SECOND / 200_000_000;
    assert_eq!(granted(2 * SECOND + pause, 0), burst + depth);
}

#[test]
fn a_changed_group_keeps_what_it_had() {
    let limited = rates(0, Some(1_000_000), 100);
    let member = |port| Sender {
        group: Some(0),
        ..sender(port, Rates::usual())
    };
    let with = |name, senders| OutputConfig {
        groups: vec![group(name, limited)],
        ..output(1_000_000_000, senders)
    };
    let before = with("a", vec![member(1), member(2)]);
    let mut tree = Tree::new(&before, None);
    let mut leaves = [BackloggedLeaf::new(leaf(0), &MIXED[1..2])];
    assert!(!run(&mut tree, &mut leaves, 0, TICK * 5).is_empty());
    let mut need = [Need {
        leaf: leaf(1),
        first: LONGEST,
        all: LONGEST,
    }];
    // A port joins, another one leaves: the ceiling of the group is used up all the same.
    let after = with("a", vec![member(3), member(2)]);
    let mut tree = Tree::new(&after, Some((&before, &tree)));
    let wait = tree.allot(TICK * 6, None, &mut need, |grant| panic!("{grant:?}"));
    assert!(wait.is_some());
    let other = with("b", vec![member(3)]);
    let mut tree = Tree::new(&other, Some((&after, &tree)));
    need[0].leaf = leaf(0);
    let mut granted = false;
    tree.allot(TICK * 6, None, &mut need, |_| granted = true);
    assert!(granted);
}

/// A batch of a sender may have one frame only, and room for two may come at once.
#[test]
fn with_room_for_few_frames_a_sender_with_a_priority_asks_again_before_others_have_their_turn() {
    let mut senders: Vec<_> = (0..2).map(|port| sender(port, Rates::usual())).collect();
    senders[1].priority = 5;
    let config = OutputConfig {
        rate: None,
        full: FullAction::Hold,
        ..output(0, senders)
    };
    let mut tree = Tree::new(&config, None);
    let frame = 12_000;
    let mut allot = |room, asking: &[usize]| {
        let need = |&at| Need {
            leaf: leaf(at),
            first: frame,
            all: frame,
        };
        let mut needs: Vec<_> = asking.iter().map(need).collect();
        let mut granted = Vec::new();
        let wait = tree.allot(0, Some(room), &mut needs, |grant| granted.push(grant.leaf));
        (granted, wait)
    };
    assert_eq!(allot(2 * frame, &[0, 1]), (vec![leaf(1)], Some(0)));
    assert_eq!(allot(frame, &[0, 1]), (vec![leaf(1)], Some(0)));
    // It has no more frames.
    assert_eq!(allot(frame, &[0]), (vec![leaf(0)], None));
    // With much room it has credit in store.
    assert_eq!(
        allot(crate::SCARCE, &[0, 1]),
        (vec![leaf(1), leaf(0)], None)
    );
}

#[test]
fn without_a_rate_the_room_of_the_interface_is_shared() {
    let config = OutputConfig {
        rate: None,
        ..output(1, (0..2).map(|port| sender(port, Rates::usual())).collect())
    };
    let mut tree = Tree::new(&config, None);
    let need = |at| Need {
        leaf: leaf(at),
        first: 1000,
        all: 1 << 20,
    };
    let mut got = [0, 0];
    let mut needs = [need(0), need(1)];
    tree.allot(0, Some(400_000), &mut needs, |grant| {
        got[grant.leaf.sender()] += grant.bits;
    });
    assert!(
        got[0] + got[1] <= 400_000 + 1000 && got[0] + got[1] >= 399_000,
        "{got:?}"
    );
    assert!(got[0].abs_diff(got[1]) <= 16 << 13, "{got:?}");
    let mut none = false;
    tree.allot(1, Some(0), &mut [need(0)], |_| none = true);
    assert!(!none);
}

const GROUPS: [&str; 3] = ["a", "b", "c"];

fn group(name: &str, rates: Rates) -> Group {
    let name = name.to_owned();
    Group { name, rates }
}

#[test]
fn a_change_keeps_the_shares_within_a_group() {
    let members = |count: u32| -> Vec<Sender> {
        let member = |port| Sender {
            group: Some(0),
            ..sender(port, Rates::usual())
        };
        (0..count).map(member).collect()
    };
    let config = |members: Vec<Sender>, name: &str| OutputConfig {
        groups: vec![group(name, Rates::usual())],
        ..output(1_000_000_000, members)
    };
    let old = config(members(2), "a");
    let mut tree = Tree::new(&old, None);
    let backlogged = |count| -> Vec<_> {
        let leaves = (0..count).map(leaf);
        leaves
            .map(|leaf| BackloggedLeaf::new(leaf, &MIXED[1..2]))
            .collect()
    };
    run(&mut tree, &mut backlogged(2), 0, SECOND);
    // A third member, of this group or of one that is new, gets a third.
    for name in ["a", "b"] {
        let mut tree = Tree::new(&config(members(3), name), Some((&old, &tree)));
        let mut leaves = backlogged(3);
        run(&mut tree, &mut leaves, SECOND, SECOND + SECOND / 5);
        for leaf in &leaves {
            let share = leaf.sent as f64 * 5.0 / 1e9;
            assert!((0.3..0.37).contains(&share), "{name}: {share}");
        }
    }
}

/// Trees of up to six ports with up to two classes each, in up to two groups.
fn configs() -> impl Strategy<Value = (OutputConfig, Vec<Leaf>)> {
    let max = || prop::option::of(20_000_000u64..600_000_000);
    let node = move || (max(), 1u16..400);
    let groups = prop::collection::vec(node(), 0..3);
    let port = (node(), 0u8..3, prop::option::of(0u16..3), 1u8..4);
    let ports = prop::collection::vec(port, 1..7);
    (groups, ports, 0u8..4).prop_map(|(groups, ports, second)| {
        let plain = |(max, weight): &(Option<u64>, u16)| rates(0, *max, *weight);
        let groups: Vec<Rates> = groups.iter().map(plain).collect();
        let mut leaves = Vec::new();
        let mut senders = Vec::new();
        for (at, (node, priority, group, classes)) in ports.iter().enumerate() {
            leaves.extend(
                (0..2)
                    .filter(|c| classes & (1 << c) != 0)
                    .map(|c| Leaf::of(at, c)),
            );
            senders.push(Sender {
                priority: *priority,
                group: group.filter(|group| usize::from(*group) < groups.len()),
                ..sender(at as u32, plain(node))
            });
        }
        let mut config = output(1_000_000_000, senders);
        config.groups = (0..)
            .zip(groups)
            .map(|(at, rates)| group(GROUPS[at], rates))
            .collect();
        config.priorities[1] = second;
        (config, leaves)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 16 },
        ..ProptestConfig::default()
    })]

    /// Long-run rates are those of the fluid model.
    #[test]
    fn rates_are_those_of_the_fluid_model((config, leaves) in configs()) {
        let bits = bits_a_second(&config, &leaves, &MIXED[1..2]);
        for ((leaf, fluid), bits) in oracle::rates(&config, &leaves).into_iter().zip(bits) {
            let error = (bits - fluid).abs();
            prop_assert!(error <= 0.01 * fluid + 2e6, "{leaf:?}: {bits} beside {fluid}");
        }
    }

    /// Every guarantee is kept and no ceiling exceeded, whatever the rest of the tree is.
    #[test]
    fn guarantees_and_ceilings_hold(
        (mut config, leaves) in configs(),
        mins in prop::collection::vec(0u64..150_000_000, 7),
    ) {
        for (sender, min) in config.senders.iter_mut().zip(mins) {
            if sender.group.is_none() {
                sender.rates.min = min.min(sender.rates.max.unwrap_or(u64::MAX));
            }
        }
        let bits = bits_a_second(&config, &leaves, &MIXED[1..2]);
        for (at, sender) in config.senders.iter().enumerate() {
            let own = leaves.iter().zip(&bits).filter(|(leaf, _)| leaf.sender() == at);
            let got: f64 = own.map(|(_, bits)| bits).sum();
            let any = leaves.iter().any(|leaf| leaf.sender() == at);
            let min = sender.rates.min as f64;
            prop_assert!(!any || got >= 0.99 * min - 2e6, "port {at}: {got} of {min}");
            let max = sender.rates.max.unwrap_or(u64::MAX) as f64;
            prop_assert!(got <= 1.01 * max + 2e6, "port {at}: {got} of {max}");
        }
    }

    /// In no window does a sender get more than burst and ceiling allow together, nor all more
    /// than the output.
    #[test]
    fn no_window_has_more_than_burst_and_rate(
        (config, leaves) in configs(),
        steps in prop::collection::vec((0u64..3_000_000, any::<u8>(), 0usize..3), 1..300),
    ) {
        let mut tree = Tree::new(&config, None);
        let own = leaves.iter().map(|leaf| BackloggedLeaf::new(*leaf, &MIXED));
        let mut own: Vec<_> = own.collect();
        let (mut now, mut log) = (0, Vec::new());
        for (passed, asks, _) in steps {
            now += passed;
            let asking = own.iter_mut().enumerate().filter(|(at, _)| asks & (1 << (at % 8)) != 0);
            let mut needs: Vec<Need> = asking.map(|(_, leaf)| leaf.send()).collect();
            tree.allot(now, None, &mut needs, |grant| {
                let leaf = own.iter_mut().find(|leaf| leaf.leaf == grant.leaf);
                leaf.unwrap().credit += grant.bits as i64;
                log.push((now, grant));
            });
        }
        for (at, sender) in config.senders.iter().enumerate() {
            let Some(max) = sender.rates.max else { continue };
            let own = log.iter().filter(|(_, grant)| grant.leaf.sender() == at);
            check_windows(&own.copied().collect::<Vec<_>>(), max, sender.rates.burst)?;
        }
        check_windows(&log, 1_000_000_000, 2 * LONGEST)?;
    }
}

fn check_windows(log: &[(Nanos, Grant)], rate: u64, burst: u64) -> Result<(), TestCaseError> {
    for (at, (begin, _)) in log.iter().enumerate() {
        let mut sum = 0;
        for (end, grant) in &log[at..] {
            sum += u128::from(grant.bits);
            let most = u128::from(end - begin) * u128::from(rate) / u128::from(SECOND);
            let most = most + u128::from(burst) + 1;
            prop_assert!(sum <= most, "{sum} bits in {begin}..{end}, {most} allowed");
        }
    }
    Ok(())
}
