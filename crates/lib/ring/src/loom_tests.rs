//! Every interleaving and every stale read that the memory model allows, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p lasthop-ring --release --lib`

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::{Consumer, Producer, RingMemory, memory_len};

const CAPACITY: u64 = 64;

fn ring() -> (Producer, Consumer) {
    let memory = RingMemory::heap(memory_len(CAPACITY).unwrap());
    let producer = Producer::create(memory.clone(), CAPACITY).unwrap();
    let consumer = Consumer::attach(memory).unwrap();
    (producer, consumer)
}

/// Runs `test` with a bound on preemptions, which keeps the search finite and finds what
/// needs up to three ill-timed switches.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// An event descriptor: counts rings, the reader waits and takes all.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn records_are_seen_whole() {
    model(|| {
        let (mut producer, mut consumer) = ring();
        let sender = thread::spawn(move || {
            producer.push(&[1; 3]).unwrap();
            producer.push(&[2; 9]).unwrap();
        });
        let mut seen = Vec::new();
        let mut out = Vec::new();
        for _ in 0..3 {
            if consumer.pop(&mut out).unwrap() {
                seen.push(out.clone());
            }
        }
        sender.join().unwrap();
        while consumer.pop(&mut out).unwrap() {
            seen.push(out.clone());
        }
        assert_eq!(seen, [vec![1; 3], vec![2; 9]]);
    });
}

#[test]
fn room_is_not_reused_before_it_was_copied_out() {
    model(|| {
        let (mut producer, mut consumer) = ring();
        producer.push(&[1; 40]).unwrap();
        let sender = thread::spawn(move || {
            // Fits only after the first record is consumed, and then overwrites it.
            producer.push(&[2; 40]).is_ok()
        });
        let mut out = Vec::new();
        assert!(consumer.pop(&mut out).unwrap());
        assert_eq!(out, [1; 40]);
        let pushed = sender.join().unwrap();
        assert_eq!(consumer.pop(&mut out).unwrap(), pushed);
        assert!(!pushed || out == [2; 40]);
    });
}

/// A lost wake-up is a deadlock, which loom reports.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let (mut producer, mut consumer) = ring();
        let doorbell = Arc::new(Doorbell::default());
        let sender = thread::spawn({
            let doorbell = doorbell.clone();
            move || {
                for record in [&[1u8; 1], &[2; 1]] {
                    producer.push(record).unwrap();
                    if producer.needs_doorbell() {
                        doorbell.ring();
                    }
                }
            }
        });
        let mut out = Vec::new();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            while consumer.pop(&mut out).unwrap() {
                seen.push(out[0]);
            }
            if seen.len() < 2 && consumer.prepare_sleep() {
                doorbell.wait();
                consumer.woke();
            }
        }
        assert_eq!(seen, [1, 2]);
        sender.join().unwrap();
    });
}
