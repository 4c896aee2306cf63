use proptest::prelude::*;
use wire::{FlowKey, MacAddr};

use crate::connections::{COUNTERS, COUNTERS_AT, GENERATION_AT, create};
use crate::heap::Words;
use crate::sync::Ordering;
use crate::{ConnectionFilter, Conversation, Memory};

fn memory() -> Words {
    let memory = Words::of_filter();
    create(&memory);
    memory
}

/// Returns a filter without connections, which readers use.
fn filter(memory: &Words) -> ConnectionFilter<&Words> {
    let filter = ConnectionFilter::begin(memory, 7).unwrap();
    filter.publish();
    filter
}

/// Returns the conversation of a number.
fn conversation(number: u64) -> Conversation {
    let end = |part: u64| (part, part.wrapping_mul(0x1_0001), part as u16);
    let protocol = [6, 17, 1, 58][number as usize % 4];
    Conversation::new(protocol, [end(number), end(number / 3 + 1000)])
}

#[test]
fn both_directions_are_one_conversation_and_icmp_has_no_ports() {
    let key = FlowKey::default()
        .with_smac(MacAddr::from_u64(1))
        .with_ip_proto(6)
        .with_src_ip(0x0a00_0001)
        .with_dst_ip(u128::MAX - 5)
        .with_l4_ports(1000, 53);
    let back = FlowKey::default()
        .with_dmac(MacAddr::from_u64(7))
        .with_ip_proto(6)
        .with_src_ip(u128::MAX - 5)
        .with_dst_ip(0x0a00_0001)
        .with_l4_ports(53, 1000);
    let hash = |key: &FlowKey| Conversation::of(key).hash(5);
    assert_eq!(hash(&key), hash(&back));
    // An end has both, its address and its port.
    let others = [
        key.with_l4_ports(53, 1000),
        key.with_l4_ports(1000, 54),
        key.with_ip_proto(17),
        key.with_src_ip(0x0a00_0002),
    ];
    assert!(others.iter().all(|other| hash(other) != hash(&key)));
    assert_ne!(Conversation::of(&key).hash(6), hash(&key));
    let icmp = key.with_ip_proto(1);
    assert_eq!(hash(&icmp), hash(&icmp.with_l4_ports(0, 0)));
}

#[test]
fn nothing_is_ruled_out_before_a_filter_is_published_and_while_it_is_made() {
    let memory = memory();
    let one = conversation(1);
    assert!(ConnectionFilter::new(&memory).may_know(&one));
    let first = filter(&memory);
    assert!(!first.may_know(&one));
    first.raise(&one);
    assert!(first.may_know(&one));
    let second = ConnectionFilter::begin(&memory, 8).unwrap();
    assert!(first.may_know(&conversation(2)), "it is made anew");
    second.publish();
    assert!(!first.may_know(&one), "and holds nothing of before");
    let generation = memory.word(GENERATION_AT).load(Ordering::Relaxed);
    assert_eq!(generation, 2);
    assert!(ConnectionFilter::begin(&Words::of_filter(), 1).is_none());
}

#[test]
fn a_full_counter_stays() {
    let memory = memory();
    let filter = filter(&memory);
    let one = conversation(1);
    for _ in 0..300 {
        filter.raise(&one);
    }
    for _ in 0..300 {
        filter.lower(&one);
    }
    assert!(filter.may_know(&one));
    // Its neighbours are not touched.
    let counters = (0..COUNTERS).step_by(8);
    let counters = counters.map(|at| memory.word(COUNTERS_AT + at).load(Ordering::Relaxed));
    let set: Vec<u64> = counters.filter(|word| *word != 0).collect();
    assert!(set.len() == 1 && set[0].count_ones() == 8, "{set:x?}");
    // Lowered too often, as garbage would have it.
    let two = conversation(2);
    filter.lower(&two);
    assert!(!filter.may_know(&two));
}

#[test]
fn a_usual_table_leaves_most_conversations_out() {
    let memory = memory();
    let filter = filter(&memory);
    for number in 0..256 << 10 {
        filter.raise(&conversation(number));
    }
    let others = (0..100_000).map(|number| conversation(number + (1 << 32)));
    let known = others.filter(|of| filter.may_know(of)).count();
    assert!((10_000..13_000).contains(&known), "{known}");
}

#[test]
fn threads_lose_no_connection() {
    let memory = memory();
    let filter = filter(&memory);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let filter = &filter;
            scope.spawn(move || {
                // All threads share these counters.
                for round in 0..10_000_u64 {
                    let one = conversation(round % 5);
                    filter.raise(&one);
                    assert!(filter.may_know(&one));
                    if round % 5 != thread {
                        filter.lower(&one);
                    }
                }
            });
        }
    });
    // Each thread has kept those of one conversation, thousands: full.
    for number in 0..4 {
        assert!(filter.may_know(&conversation(number)));
    }
    assert!(!filter.may_know(&conversation(4)), "all were lowered");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is raised and lowered, a raised conversation may be known, in both directions.
    #[test]
    fn no_known_conversation_is_ruled_out(
        steps in proptest::collection::vec((0u64..40, 0u8..8), 1..400),
    ) {
        let memory = memory();
        let mut filter = filter(&memory);
        let mut known: Vec<u64> = Vec::new();
        for (number, step) in steps {
            match step {
                0 => {
                    filter = ConnectionFilter::begin(&memory, number).unwrap();
                    for number in &known {
                        filter.raise(&conversation(*number));
                    }
                    filter.publish();
                }
                1..4 => {
                    if let Some(at) = known.iter().position(|known| *known == number) {
                        known.swap_remove(at);
                        filter.lower(&conversation(number));
                    }
                }
                _ => {
                    filter.raise(&conversation(number));
                    known.push(number);
                }
            }
            for number in 0..40 {
                let of = conversation(number);
                let expected = known.contains(&number);
                prop_assert!(filter.may_know(&of) || !expected);
            }
        }
        for number in known.drain(..) {
            filter.lower(&conversation(number));
        }
        for number in 0..40 {
            prop_assert!(!filter.may_know(&conversation(number)));
        }
    }
}
