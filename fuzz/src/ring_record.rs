//! Our shared-memory ring, read while its peer writes anything anywhere: records are never longer
//! than the ring, draining ends, a fault is permanent; and with an honest peer every record arrives
//! once, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::{Arbitrary, Result, Unstructured};
use ring::{Consumer, Producer, RingMemory};

#[derive(Debug)]
enum Step {
    Push(u8),
    Pop,
    Drain,
    Sleep,
    Woke,
    Attach,
    /// The peer dies and another attaches.
    AttachProducer,
    /// Writes a word of the header.
    Header(u8, u64),
    /// Writes a word of the data.
    Data(u16, u64),
    Doorbell,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? % 10 {
            0 => Self::Push(u.arbitrary()?),
            1 => Self::Pop,
            2 => Self::Drain,
            3 => Self::Sleep,
            4 => Self::Woke,
            5 => Self::Attach,
            6 => Self::AttachProducer,
            7 => Self::Header(u.arbitrary()?, word(u)?),
            8 => Self::Data(u.arbitrary()?, word(u)?),
            _ => Self::Doorbell,
        })
    }
}

/// A number: small, negative, or anything.
fn word(u: &mut Unstructured<'_>) -> Result<u64> {
    let small = u64::from(u.arbitrary::<u8>()?);
    Ok(match small % 4 {
        0 => small * 2,
        1 => 0u64.wrapping_sub(small & !7),
        2 => 1 << (small % 64),
        _ => u.arbitrary()?,
    })
}

struct Rig {
    words: Arc<Vec<AtomicU64>>,
    memory: RingMemory,
    capacity: u64,
    consumer: Option<Consumer>,
    producer: Option<Producer>,
    /// Records of an honest peer; `None` once it was anything else.
    honest: Option<VecDeque<Vec<u8>>>,
    pushed: u8,
    /// The consumer sleeps and was not rung for yet.
    asleep: bool,
}

/// One byte of capacity, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(size) = u.arbitrary::<u8>() else {
        return;
    };
    let capacity = 64 << (size % 4);
    let len = ring::memory_len(capacity).expect("a legal capacity");
    let words: Arc<Vec<AtomicU64>> = Arc::new((0..len / 8).map(|_| AtomicU64::new(0)).collect());
    let start = words.as_ptr().cast_mut().cast();
    // SAFETY: the words are `len` bytes, aligned to 8, and their owner goes along; everybody uses
    // atomics.
    let memory = unsafe { RingMemory::from_raw(start, len, words.clone()) }.expect("aligned");
    let mut rig = Rig {
        words,
        producer: Some(Producer::create(memory.clone(), capacity).expect("room")),
        consumer: Some(Consumer::attach(memory.clone()).expect("a fresh ring")),
        memory,
        capacity,
        honest: Some(VecDeque::new()),
        pushed: 0,
        asleep: false,
    };
    while !u.is_empty() {
        let Ok(step) = u.arbitrary() else {
            break;
        };
        rig.step(&step);
    }
    rig.drain();
}

impl Rig {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Push(len) => self.push(usize::from(len)),
            Step::Pop => drop(self.pop()),
            Step::Drain => self.drain(),
            Step::Sleep => self.sleep(),
            Step::Woke => {
                self.asleep = false;
                if let Some(consumer) = &mut self.consumer {
                    consumer.woke();
                }
            }
            Step::Attach => {
                self.asleep = false;
                self.consumer = Consumer::attach(self.memory.clone()).ok();
                assert!(self.consumer.is_some() || self.honest.is_none());
            }
            Step::AttachProducer => {
                self.producer = Producer::attach(self.memory.clone()).ok();
                assert!(self.producer.is_some() || self.honest.is_none());
            }
            Step::Header(at, value) => self.write(usize::from(at) % 64, value),
            Step::Data(at, value) => {
                self.write(64 + usize::from(at) % (self.capacity as usize / 8), value);
            }
            Step::Doorbell => {
                if let Some(producer) = &mut self.producer {
                    let rings = producer.needs_doorbell();
                    assert!(
                        rings || !self.asleep || self.honest.is_none(),
                        "a lost wake-up"
                    );
                    self.asleep = false;
                }
            }
        }
    }

    fn write(&mut self, at: usize, value: u64) {
        self.honest = None;
        self.words[at].store(value, Ordering::Relaxed);
    }

    fn push(&mut self, len: usize) {
        let Some(producer) = &mut self.producer else {
            return;
        };
        let record = vec![self.pushed; len];
        self.pushed = self.pushed.wrapping_add(1);
        if producer.push(&record).is_ok()
            && let Some(honest) = &mut self.honest
        {
            honest.push_back(record);
        }
    }

    /// Returns whether there was a record.
    fn pop(&mut self) -> bool {
        let Some(consumer) = &mut self.consumer else {
            return false;
        };
        let fault = consumer.fault();
        let mut record = vec![1];
        let popped = consumer.pop(&mut record);
        assert!(record.len() as u64 <= consumer.capacity() - 8);
        assert!(consumer.capacity() <= self.capacity);
        assert!(
            fault.is_none() || popped == Err(fault.expect("checked")),
            "a fault is permanent"
        );
        assert_eq!(consumer.fault(), popped.err());
        if popped != Ok(true) {
            assert!(record.is_empty());
        }
        if let Some(honest) = &mut self.honest {
            let expected = honest.pop_front();
            assert_eq!(popped, Ok(expected.is_some()));
            assert_eq!(record, expected.unwrap_or_default());
        }
        popped == Ok(true)
    }

    /// A ring holds no more records than words: those known of, and once more what its index says
    /// then.
    fn drain(&mut self) {
        let mut records = 0;
        while self.pop() {
            records += 1;
            assert!(
                records <= 2 * (self.capacity / 8),
                "more records than words"
            );
        }
    }

    fn sleep(&mut self) {
        let Some(consumer) = &mut self.consumer else {
            return;
        };
        let quiet = consumer.prepare_sleep();
        self.asleep = quiet;
        if let Some(honest) = &self.honest {
            assert_eq!(quiet, honest.is_empty());
        }
    }
}
