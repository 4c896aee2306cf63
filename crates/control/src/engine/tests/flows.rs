//! The flow index against a list.

use std::time::Duration;

use channel::records::{Answer, key_from_words};
use policy::{Action, DECISION_MASK, DropReason, SegmentId};
use port::PortId;
use proptest::prelude::*;
use wire::flow::FlowKey;

use super::world::{flood, key, mac, to};
use crate::engine::flows::FlowIndex;
use crate::learning::Side;

#[derive(Clone, Debug)]
enum Step {
    Insert(FlowKey, Action, Option<u16>),
    Invalidate(u16, u8, Side),
    ForgetPort(u32),
    Remove(FlowKey),
    ForgetUnseen(u64),
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    (0u32..3, 1u8..4, 1u8..4).prop_map(|(port, from, to)| key(port, from, to))
}

fn any_step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        (0u32..3).prop_map(to),
        (0u16..2).prop_map(flood),
        Just(Action::Drop(DropReason::Reflection)),
    ];
    let side = prop_oneof![Just(Side::Both), Just(Side::Destination)];
    prop_oneof![
        5 => (any_key(), action, prop::option::of(0u16..2))
            .prop_map(|(k, a, s)| Step::Insert(k, a, s)),
        2 => (0u16..2, 1u8..4, side).prop_map(|(s, m, side)| Step::Invalidate(s, m, side)),
        1 => (0u32..3).prop_map(Step::ForgetPort),
        1 => any_key().prop_map(Step::Remove),
        1 => (0u64..20).prop_map(Step::ForgetUnseen),
    ]
}

/// One flow of the list.
#[derive(Clone, Copy)]
struct Naive {
    key: FlowKey,
    action: Action,
    segment: Option<u16>,
    known: u64,
}

/// Takes what matches out of the list; their keys.
fn take(list: &mut Vec<Naive>, which: impl Fn(&Naive) -> bool) -> Vec<[u64; 8]> {
    let (gone, kept) = list.iter().partition(|flow| which(flow));
    *list = kept;
    let mut keys: Vec<_> = gone.iter().map(|flow: &Naive| *flow.key.words()).collect();
    keys.sort_unstable();
    keys
}

fn keys(answers: &[Answer]) -> Vec<[u64; 8]> {
    let mut keys: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Answer::Remove { key, mask } => {
                assert_eq!(mask, DECISION_MASK.words());
                *key
            }
            other => panic!("{other:?}"),
        })
        .collect();
    keys.sort_unstable();
    keys
}

proptest! {
    #[test]
    fn the_index_is_a_list(steps in prop::collection::vec(any_step(), 1..60)) {
        let (mut index, mut list) = (FlowIndex::default(), Vec::<Naive>::new());
        for (at, step) in steps.into_iter().enumerate() {
            let at = at as u64;
            let (got, expected) = match step {
                Step::Insert(key, action, segment) => {
                    take(&mut list, |f| f.key == key);
                    list.push(Naive { key, action, segment, known: at });
                    let (words, mask) = (key.words(), DECISION_MASK.words());
                    let now = Duration::from_secs(at);
                    index.insert(words, mask, action, segment.map(SegmentId), now);
                    (Vec::new(), Vec::new())
                }
                Step::Invalidate(segment, n, side) => (
                    keys(&index.invalidate(SegmentId(segment), mac(n), side)),
                    take(&mut list, |f| {
                        f.segment.is_none_or(|s| s == segment)
                            && (f.key.dmac() == mac(n)
                                || (side == Side::Both && f.key.smac() == mac(n)))
                    }),
                ),
                Step::ForgetPort(n) => (
                    keys(&index.forget_port(PortId(n))),
                    take(&mut list, |f| f.key.in_port() == n || f.action == to(n)),
                ),
                Step::Remove(key) => (
                    keys(&index.remove(key.words())),
                    take(&mut list, |f| f.key == key),
                ),
                Step::ForgetUnseen(before) => {
                    index.forget_unseen(Duration::from_secs(before));
                    take(&mut list, |f| f.known < before);
                    (Vec::new(), Vec::new())
                }
            };
            prop_assert_eq!(got, expected);
        }
        // Nothing is left behind: what remains can be taken out by its addresses alone.
        let mut rest = Vec::new();
        for n in 1..4 {
            for segment in 0..2 {
                rest.extend(keys(&index.invalidate(SegmentId(segment), mac(n), Side::Both)));
            }
        }
        rest.sort_unstable();
        prop_assert_eq!(rest, take(&mut list, |_| true));
        prop_assert!(index.is_empty());
    }
}

#[test]
fn words_are_keys() {
    let key = key(1, 2, 3).with_vlan(Some(5));
    assert_eq!(key_from_words(key.words()), key);
}
