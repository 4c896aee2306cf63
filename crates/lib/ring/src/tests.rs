//! Tests on heap memory: behaviour, hostile peers, index arithmetic, two threads.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::index;
use crate::layout::{self, DATA_WORD, HEAD_WORD, SLEEP_WORD, TAIL_WORD};
use crate::sync::Ordering;
use crate::{Consumer, Producer, PushError, RingFault, RingMemory, SetupError, memory_len};

const CAPACITY: u64 = 128;

fn memory() -> RingMemory {
    RingMemory::heap(memory_len(CAPACITY).unwrap())
}

fn ring_at(start: u64) -> (RingMemory, Producer, Consumer) {
    let memory = memory();
    layout::format_at(&memory, CAPACITY, start).unwrap();
    let producer = Producer::attach(memory.clone()).unwrap();
    let consumer = Consumer::attach(memory.clone()).unwrap();
    (memory, producer, consumer)
}

fn pop(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    consumer.pop(&mut out).unwrap().then_some(out)
}

fn poke(memory: &RingMemory, word: usize, value: u64) {
    memory.word(word).store(value, Ordering::SeqCst);
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn records_come_out_in_order_and_whole() {
    let (_, mut producer, mut consumer) = ring_at(0);
    producer.push(b"").unwrap();
    producer.push(b"12345678").unwrap();
    producer
        .push_parts(&[b"abc", b"", b"defghijk", b"l"])
        .unwrap();
    assert_eq!(pop(&mut consumer).unwrap(), b"");
    assert_eq!(pop(&mut consumer).unwrap(), b"12345678");
    assert_eq!(pop(&mut consumer).unwrap(), b"abcdefghijkl");
    assert_eq!(pop(&mut consumer), None);
}

#[test]
fn full_is_temporary_and_too_long_is_not() {
    let (_, mut producer, mut consumer) = ring_at(0);
    assert_eq!(producer.push(&[1; 121]), Err(PushError::TooLong));
    producer.push(&[1; 120]).unwrap();
    assert_eq!(producer.push(b""), Err(PushError::Full));
    assert_eq!(pop(&mut consumer).unwrap(), [1; 120]);
    producer.push(&[2; 120]).unwrap();
    assert_eq!(pop(&mut consumer).unwrap(), [2; 120]);
}

#[test]
fn a_lazy_reader_gives_room_back_after_an_eighth_of_the_ring_and_when_it_is_empty() {
    let memory = RingMemory::heap(memory_len(1024).unwrap());
    let mut producer = Producer::create(memory.clone(), 1024).unwrap();
    let mut consumer = Consumer::attach(memory).unwrap();
    let mut out = Vec::new();
    // 64 records of 16 bytes each.
    for n in 0..64 {
        producer.push(&[n; 8]).unwrap();
    }
    for n in 0..8 {
        assert!(!producer.has_room(8), "{n}");
        assert!(consumer.pop_lazily(&mut out).unwrap());
        assert_eq!(out, [n; 8]);
    }
    assert!(producer.has_room(120) && !producer.has_room(121));
    for _ in 8..63 {
        assert!(consumer.pop_lazily(&mut out).unwrap());
    }
    assert!(!producer.has_room(1016));
    assert!(consumer.pop_lazily(&mut out).unwrap());
    assert!(!consumer.pop_lazily(&mut out).unwrap() && out.is_empty());
    assert!(producer.has_room(1016));
}

#[test]
fn reservation_is_published_by_commit_only() {
    let (_, mut producer, mut consumer) = ring_at(0);
    producer.reserve(10).unwrap().bytes().fill(7);
    assert_eq!(pop(&mut consumer), None);
    let mut reservation = producer.reserve(3).unwrap();
    assert_eq!(reservation.bytes(), [0; 3]);
    reservation.bytes().copy_from_slice(b"abc");
    reservation.commit().unwrap();
    assert_eq!(pop(&mut consumer).unwrap(), b"abc");
    assert_eq!(producer.reserve(121).err(), Some(PushError::TooLong));
}

#[test]
fn setup_refuses_what_is_no_ring() {
    let attach = |memory: &RingMemory| {
        let consumer = Consumer::attach(memory.clone()).err();
        assert_eq!(Producer::attach(memory.clone()).err(), consumer);
        consumer
    };
    assert_eq!(attach(&RingMemory::heap(0)), Some(SetupError::TooShort));
    assert_eq!(attach(&memory()), Some(SetupError::Magic));
    for capacity in [0, 32, 100, u64::MAX, 1 << 31, 1 << 63] {
        let result = Producer::create(memory(), capacity);
        assert_eq!(result.err(), Some(SetupError::Capacity), "{capacity}");
    }
    assert_eq!(
        Producer::create(memory(), 2 * CAPACITY).err(),
        Some(SetupError::TooShort)
    );
    for (word, value, error) in [
        (layout::VERSION_WORD, 2, SetupError::Version),
        (layout::CAPACITY_WORD, 2 * CAPACITY, SetupError::TooShort),
        (layout::CAPACITY_WORD, u64::MAX, SetupError::Capacity),
        (
            HEAD_WORD,
            CAPACITY + 8,
            SetupError::Fault(RingFault::IndexJump),
        ),
        (TAIL_WORD, 8, SetupError::Fault(RingFault::IndexJump)),
        (HEAD_WORD, 4, SetupError::Fault(RingFault::IndexAlignment)),
    ] {
        let (memory, ..) = ring_at(0);
        poke(&memory, word, value);
        assert_eq!(attach(&memory), Some(error));
    }
}

#[test]
fn raw_memory_must_be_aligned() {
    let owner = std::sync::Arc::new(());
    for ptr in [std::ptr::null_mut(), std::ptr::without_provenance_mut(4)] {
        // SAFETY: the pointer is refused before it is used.
        let memory = unsafe { RingMemory::from_raw(ptr, 4096, owner.clone()) };
        assert_eq!(memory.err(), Some(SetupError::Misaligned));
    }
}

#[test]
fn header_is_not_read_again() {
    let (memory, mut producer, mut consumer) = ring_at(0);
    poke(&memory, layout::CAPACITY_WORD, u64::MAX);
    poke(&memory, layout::MAGIC_WORD, 0);
    for _ in 0..100 {
        producer.push(b"still here").unwrap();
        assert_eq!(pop(&mut consumer).unwrap(), b"still here");
    }
}

#[test]
fn hostile_producer_kills_the_ring_and_no_more() {
    let head_values = [CAPACITY + 8, u64::MAX - 7, 1 << 63, 1 << 32];
    for (head, fault) in head_values
        .map(|head| (head, RingFault::IndexJump))
        .into_iter()
        .chain([(3, RingFault::IndexAlignment)])
    {
        let (memory, mut producer, mut consumer) = ring_at(0);
        poke(&memory, HEAD_WORD, head);
        assert!(!consumer.prepare_sleep(), "a fault is not slept over");
        assert_eq!(consumer.pop(&mut Vec::new()), Err(fault));
        producer.push(b"too late").unwrap();
        assert_eq!(consumer.pop(&mut Vec::new()), Err(fault));
        assert_eq!(consumer.fault(), Some(fault));
    }
}

#[test]
fn hostile_length_is_checked_against_what_is_published() {
    for len in [
        9,
        17,
        128,
        u64::from(u32::MAX),
        1 << 32,
        u64::MAX,
        u64::MAX - 7,
        u64::MAX - 15,
    ] {
        let (memory, mut producer, mut consumer) = ring_at(0);
        producer.push(b"12345678").unwrap();
        poke(&memory, DATA_WORD, len);
        let mut out = b"old".to_vec();
        assert_eq!(
            consumer.pop(&mut out),
            Err(RingFault::RecordLength),
            "{len}"
        );
        assert_eq!(out, b"");
    }
}

#[test]
fn hostile_consumer_kills_the_ring_and_no_more() {
    for tail in [136, 1 << 32, u64::MAX - 7, u64::MAX - 127] {
        let (memory, mut producer, _) = ring_at(0);
        producer.push(&[0; 120]).unwrap();
        poke(&memory, TAIL_WORD, tail);
        let fault = PushError::Fault(RingFault::IndexJump);
        assert_eq!(producer.push(b"x"), Err(fault), "{tail}");
        poke(&memory, TAIL_WORD, 128);
        assert_eq!(producer.push(b"x"), Err(fault));
        assert_eq!(producer.reserve(1).err(), Some(fault));
        assert_eq!(producer.fault(), Some(RingFault::IndexJump));
    }
}

#[test]
fn consumer_cannot_take_its_progress_back() {
    let (memory, mut producer, mut consumer) = ring_at(0);
    producer.push(&[0; 56]).unwrap();
    producer.push(&[0; 56]).unwrap();
    pop(&mut consumer).unwrap();
    producer.push(&[0; 56]).unwrap();
    poke(&memory, TAIL_WORD, 0);
    assert_eq!(
        producer.push(b""),
        Err(PushError::Fault(RingFault::IndexJump))
    );
}

#[test]
fn doorbell_once_for_each_sleep() {
    let (_, mut producer, mut consumer) = ring_at(0);
    producer.push(b"a").unwrap();
    assert!(!producer.needs_doorbell(), "the consumer is awake");
    assert!(!consumer.prepare_sleep(), "a record waits");
    assert!(!producer.needs_doorbell());
    pop(&mut consumer).unwrap();
    for _ in 0..3 {
        assert!(consumer.prepare_sleep());
        producer.push(b"b").unwrap();
        assert!(producer.needs_doorbell());
        producer.push(b"c").unwrap();
        assert!(!producer.needs_doorbell(), "already rung for this sleep");
        consumer.woke();
        while pop(&mut consumer).is_some() {}
    }
    // A consumer that goes to sleep again without saying that it woke is rung again.
    assert!(consumer.prepare_sleep());
    assert!(producer.needs_doorbell());
    assert!(consumer.prepare_sleep());
    assert!(producer.needs_doorbell());
}

#[test]
fn sleep_number_overflows_without_a_lost_doorbell() {
    let (memory, mut producer, _) = ring_at(0);
    poke(&memory, SLEEP_WORD, u64::MAX - 2);
    let mut consumer = Consumer::attach(memory).unwrap();
    for _ in 0..4 {
        assert!(consumer.prepare_sleep());
        assert!(producer.needs_doorbell());
        consumer.woke();
        assert!(!producer.needs_doorbell());
    }
}

#[test]
fn restarted_ends_go_on_where_the_dead_ones_stopped() {
    let (memory, mut producer, mut consumer) = ring_at(u64::MAX - 15);
    producer.push(b"one").unwrap();
    producer.push(b"two").unwrap();
    assert_eq!(pop(&mut consumer).unwrap(), b"one");
    assert!(!consumer.prepare_sleep());
    drop(consumer);
    producer.push(b"three").unwrap();
    // A reservation that its owner did not live to commit.
    producer.reserve(8).unwrap().bytes().fill(0xee);
    drop(producer);

    let mut producer = Producer::attach(memory.clone()).unwrap();
    producer.push(b"four").unwrap();
    let mut consumer = Consumer::attach(memory).unwrap();
    assert!(!producer.needs_doorbell(), "attaching means awake");
    for record in ["two", "three", "four"] {
        assert_eq!(pop(&mut consumer).unwrap(), record.as_bytes());
    }
    assert!(consumer.prepare_sleep());
}

#[test]
fn consumer_that_died_asleep_leaves_no_doorbell_behind() {
    let (memory, mut producer, mut consumer) = ring_at(0);
    assert!(consumer.prepare_sleep());
    drop(consumer);
    producer.push(b"a").unwrap();
    assert!(producer.needs_doorbell());
    let mut consumer = Consumer::attach(memory).unwrap();
    assert!(!producer.needs_doorbell());
    pop(&mut consumer).unwrap();
    assert!(consumer.prepare_sleep());
    assert!(
        producer.needs_doorbell(),
        "the successor's sleep is a new one"
    );
}

#[test]
fn two_threads_pass_everything() {
    let (_, mut producer, mut consumer) = ring_at(u64::MAX - 63);
    let count: u32 = if cfg!(miri) { 100 } else { 100_000 };
    let sender = std::thread::spawn(move || {
        for i in 0..count {
            let record = [i as u8; 40];
            while producer
                .push_parts(&[&i.to_ne_bytes(), &record[..i as usize % 41]])
                .is_err()
            {
                std::thread::yield_now();
            }
        }
    });
    let mut out = Vec::new();
    for i in 0..count {
        while !consumer.pop(&mut out).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(out[..4], i.to_ne_bytes());
        assert_eq!(out[4..], [i as u8; 40][..i as usize % 41]);
    }
    sender.join().unwrap();
}

/// Indices near 0, near the u32 and near the u64 overflow, and anywhere.
fn start() -> impl Strategy<Value = u64> {
    let near = |at: u64| (0..64u64).prop_map(move |step| at.wrapping_add(step * 8));
    prop_oneof![
        near(0),
        near((1 << 32) - 256),
        near(u64::MAX - 255),
        any::<u64>().prop_map(|index| index & !7),
    ]
}

proptest! {
    #![proptest_config(config())]

    /// Against a queue of vectors, from any start, with restarts of either end in between.
    #[test]
    fn behaves_like_a_bounded_queue(
        start in start(),
        steps in prop::collection::vec((0..5u8, 0..140usize, any::<u8>()), 1..60),
    ) {
        let (memory, mut producer, mut consumer) = ring_at(start);
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        for (step, len, byte) in steps {
            match step {
                0 | 1 => {
                    let record = vec![byte; len];
                    let used: usize = model.iter().map(|r| 8 + r.len().next_multiple_of(8)).sum();
                    let takes = 8 + len.next_multiple_of(8);
                    let expected = if takes > CAPACITY as usize {
                        Err(PushError::TooLong)
                    } else if used + takes > CAPACITY as usize {
                        Err(PushError::Full)
                    } else {
                        model.push_back(record.clone());
                        Ok(())
                    };
                    prop_assert_eq!(producer.push(&record), expected);
                }
                2 => prop_assert_eq!(pop(&mut consumer), model.pop_front()),
                3 => producer = Producer::attach(memory.clone()).unwrap(),
                _ => consumer = Consumer::attach(memory.clone()).unwrap(),
            }
        }
    }

    /// Whatever a peer writes, calls return and stay in bounds.
    #[test]
    fn survives_any_scribbling(
        start in start(),
        steps in prop::collection::vec((0..3u8, any::<prop::sample::Index>(), any::<u64>()), 1..60),
    ) {
        let (memory, mut producer, mut consumer) = ring_at(start);
        let mut out = Vec::new();
        for (step, place, value) in steps {
            match step {
                0 => poke(&memory, place.index(memory.len() / 8), value),
                1 => drop(producer.push(&[1; 24][..value as usize % 25])),
                _ => drop(consumer.pop(&mut out)),
            }
            consumer.prepare_sleep();
            producer.needs_doorbell();
            prop_assert!(out.len() <= CAPACITY as usize);
        }
    }

    #[test]
    fn filled_accepts_exactly_the_possible_pairs(tail in start(), ahead in any::<u64>()) {
        for ahead in [ahead, ahead % 256] {
            let head = tail.wrapping_add(ahead);
            let expected = if ahead > CAPACITY {
                Err(RingFault::IndexJump)
            } else if ahead % 8 != 0 {
                Err(RingFault::IndexAlignment)
            } else {
                Ok(ahead)
            };
            prop_assert_eq!(index::filled(CAPACITY, head, tail, 0..=CAPACITY), expected);
        }
    }

    #[test]
    fn record_never_passes_what_is_available(len in any::<u64>(), available in 0..17u64) {
        for len in [len, len % 200, u64::MAX - len % 200, (1 << 32) - 100 + len % 200] {
            let fits = u128::from(len).next_multiple_of(8) + 8 <= u128::from(available * 8);
            let checked = index::check_record(len, available * 8);
            prop_assert_eq!(checked.is_ok(), fits);
            prop_assert!(checked.is_err() || checked.unwrap() <= available * 8);
        }
    }

    #[test]
    fn data_word_stays_inside(index in any::<u64>(), shift in 6..31u32) {
        let capacity = 1u64 << shift;
        prop_assert!(index::data_word(capacity, index) < (capacity / 8) as usize);
    }
}
