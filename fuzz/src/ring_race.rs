//! Both ends of our shared-memory ring while a peer rewrites the header and the data as they are
//! read: each call returns, a record is never longer than the ring, and a fault is permanent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arbitrary::{Arbitrary, Result, Unstructured};
use ring::{Consumer, Producer, RingMemory};

/// Words of the header.
const HEADER: usize = 64;
/// Records that are taken in a row at most: a peer that always has more is no fault.
const IN_A_ROW: usize = 64;

struct Write {
    header: bool,
    at: u8,
    value: u64,
}

impl<'a> Arbitrary<'a> for Write {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (header, at, value) = u.arbitrary()?;
        Ok(Self { header, at, value })
    }
}

enum Step {
    Push(u8),
    Pop,
    Drain,
    Sleep,
    Doorbell,
    AttachConsumer,
    AttachProducer,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? % 8 {
            0 | 1 => Self::Push(u.arbitrary()?),
            2 => Self::Pop,
            3 => Self::Drain,
            4 => Self::Sleep,
            5 => Self::Doorbell,
            6 => Self::AttachConsumer,
            _ => Self::AttachProducer,
        })
    }
}

struct Ends {
    memory: RingMemory,
    capacity: u64,
    consumer: Option<Consumer>,
    producer: Option<Producer>,
}

/// One byte of capacity, what is written, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((size, count)) = u.arbitrary::<(u8, u8)>() else {
        return;
    };
    let writes: Result<Vec<Write>> = (0..count % 16).map(|_| u.arbitrary()).collect();
    let Ok(writes) = writes else { return };
    let capacity = 64 << (size % 4);
    let len = ring::memory_len(capacity).expect("a legal capacity");
    let words: Arc<Vec<AtomicU64>> = Arc::new((0..len / 8).map(|_| AtomicU64::new(0)).collect());
    let start = words.as_ptr().cast_mut().cast();
    // SAFETY: the words are `len` bytes, aligned to 8, and their owner goes along; everybody uses
    // atomics.
    let memory = unsafe { RingMemory::from_raw(start, len, words.clone()) }.expect("aligned");
    let mut ends = Ends {
        producer: Some(Producer::create(memory.clone(), capacity).expect("room")),
        consumer: Some(Consumer::attach(memory.clone()).expect("a fresh ring")),
        memory,
        capacity,
    };
    let stop = AtomicBool::new(writes.is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(&words, &writes, &stop));
        while !u.is_empty() {
            let Ok(step) = u.arbitrary() else { break };
            ends.step(&step);
        }
        stop.store(true, Relaxed);
    });
}

fn rewrite(words: &[AtomicU64], writes: &[Write], stop: &AtomicBool) {
    let place = |write: &Write| {
        let (start, len) = if write.header {
            (0, HEADER)
        } else {
            (HEADER, words.len() - HEADER)
        };
        &words[start + usize::from(write.at) % len]
    };
    let before: Vec<u64> = writes.iter().map(|w| place(w).load(Relaxed)).collect();
    while !stop.load(Relaxed) {
        for (write, before) in writes.iter().zip(&before) {
            place(write).store(write.value, Relaxed);
            std::hint::spin_loop();
            place(write).store(*before, Relaxed);
        }
    }
}

impl Ends {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Push(len) => {
                if let Some(producer) = &mut self.producer {
                    let _ = producer.push(&vec![*len; usize::from(*len)]);
                }
            }
            Step::Pop => drop(self.pop()),
            Step::Drain => drop((0..IN_A_ROW).take_while(|_| self.pop()).count()),
            Step::Sleep => {
                if let Some(consumer) = &mut self.consumer {
                    let _ = consumer.prepare_sleep();
                    consumer.woke();
                }
            }
            Step::Doorbell => {
                if let Some(producer) = &mut self.producer {
                    let _ = producer.needs_doorbell();
                }
            }
            Step::AttachConsumer => self.consumer = Consumer::attach(self.memory.clone()).ok(),
            Step::AttachProducer => self.producer = Producer::attach(self.memory.clone()).ok(),
        }
    }

    /// Returns whether there was a record.
    fn pop(&mut self) -> bool {
        let Some(consumer) = &mut self.consumer else {
            return false;
        };
        let fault = consumer.fault();
        let mut record = Vec::new();
        let popped = consumer.pop(&mut record);
        assert!(record.len() as u64 <= consumer.capacity() - 8);
        assert!(consumer.capacity() <= self.capacity);
        if let Some(fault) = fault {
            assert_eq!(popped, Err(fault), "a fault is permanent");
        }
        assert_eq!(consumer.fault(), popped.err());
        popped == Ok(true)
    }
}
