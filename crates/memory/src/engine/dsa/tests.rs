//! A model of the device: it reads descriptors byte by byte as `linux/idxd.h` describes them, and writes records so.

use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::{Copier, Copies, Engines, Tickets};

/// How the model ends a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Success,
    /// After so many bytes there is a page missing, to be read or to be written.
    Fault {
        after: usize,
        backwards: bool,
        write: bool,
    },
    /// A status without a byte copied.
    Error(u8),
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<[u8; 64]>,
    room: usize,
}

#[derive(Clone, Debug)]
struct Model(Arc<Mutex<Queue>>);

impl Portal for Model {
    unsafe fn submit(&self, descriptor: &Descriptor) -> bool {
        let mut queue = self.0.lock().unwrap();
        let room = queue.waiting.len() < queue.room;
        if room {
            queue.waiting.push(descriptor.bytes());
        }
        room
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut all = [0; 8];
    all[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(all)
}

impl Model {
    fn new(room: usize) -> Self {
        let waiting = Vec::new();
        Self(Arc::new(Mutex::new(Queue { waiting, room })))
    }

    fn engines(&self) -> (Arc<Engines>, Copier) {
        let engines = Engines::of(Box::new(Dsa::behind(self.clone())), 1);
        let copier = Copier::new(&engines, 0);
        copier.begin_lease();
        (engines, copier)
    }

    fn waiting(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }

    /// Does the descriptor at `at` of those that wait.
    fn run(&self, at: usize, end: End) {
        let bytes = self.0.lock().unwrap().waiting.remove(at);
        assert_eq!(number::<4>(&bytes, 0), 0, "pasid and privilege");
        assert_eq!(number::<3>(&bytes, 4), 0x4 | 0x8 | 0x100, "flags");
        assert_eq!(bytes[7], 3, "opcode");
        assert_eq!(number::<8>(&bytes, 8) % 32, 0, "the record's alignment");
        assert!(bytes[36..].iter().all(|byte| *byte == 0), "reserved");
        let len = number::<4>(&bytes, 32) as usize;
        let from = std::ptr::with_exposed_provenance::<u8>(number::<8>(&bytes, 16) as usize);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(number::<8>(&bytes, 24) as usize);
        let (status, first, count, backwards) = match end {
            End::Success => (1, 0, len, false),
            End::Fault {
                after,
                backwards,
                write,
            } => {
                let first = if backwards { len - after } else { 0 };
                (3 | u8::from(write) << 7, first, after, backwards)
            }
            End::Error(status) => (status, 0, 0, false),
        };
        let record = number::<8>(&bytes, 8) as usize;
        let record = std::ptr::with_exposed_provenance::<AtomicU64>(record);
        let word = u64::from(status) | u64::from(backwards) << 8 | (count as u64) << 32;
        // SAFETY: the addresses are of the test's buffers and of a slot, which live still; a record is atomic numbers.
        unsafe {
            std::ptr::copy(from.add(first), to.add(first), count);
            (*record).store(word.to_le(), Ordering::Release);
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251 + 1) as u8).collect()
}

/// Has `from` copied by the engine.
fn begin(copier: &Copier, from: &[u8], to: &mut [u8]) -> Tickets {
    let mut frame = copier.frame();
    // SAFETY: `to` is as long as `from`, and both outlive the copy.
    unsafe { frame.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    frame.tickets()
}

#[test]
fn a_descriptor_is_64_bytes_and_a_record_32_aligned() {
    assert_eq!(
        (size_of::<Descriptor>(), align_of::<Descriptor>()),
        (64, 64)
    );
    assert_eq!((size_of::<Record>(), align_of::<Record>()), (32, 32));
}

#[test]
fn copies_that_end_in_another_order_are_told_apart() {
    let model = Model::new(8);
    let (engines, copier) = model.engines();
    let from = pattern(3000);
    let (mut first, mut second) = (vec![0; 3000], vec![0; 3000]);
    let mut one = begin(&copier, &from, &mut first);
    let mut two = begin(&copier, &from, &mut second);
    model.run(1, End::Success);
    assert!(!engines.are_done(&mut one) && engines.are_done(&mut two));
    assert_eq!((&second, first[0]), (&from, 0));
    model.run(0, End::Success);
    assert!(engines.are_done(&mut one));
    assert_eq!(first, from);
}

#[test]
fn what_a_missing_page_left_is_copied_by_the_processor() {
    let from = pattern(5000);
    for after in [0, 1, 1024, 4096, 4999, 5000] {
        for (backwards, write) in [(false, false), (false, true), (true, false)] {
            let model = Model::new(8);
            let (engines, copier) = model.engines();
            let mut to = vec![0; 5000];
            let mut tickets = begin(&copier, &from, &mut to);
            model.run(
                0,
                End::Fault {
                    after,
                    backwards,
                    write,
                },
            );
            assert!(engines.are_done(&mut tickets));
            assert_eq!(to, from, "{after} {backwards}");
        }
    }
}

#[test]
fn whatever_else_the_device_says_the_processor_copies_all() {
    let from = pattern(2000);
    for status in [4, 5, 0x10, 0x16, 0x1a, 0x1f, 0x7f] {
        let model = Model::new(8);
        let (engines, copier) = model.engines();
        let mut to = vec![0; 2000];
        let mut tickets = begin(&copier, &from, &mut to);
        model.run(0, End::Error(status));
        assert!(engines.are_done(&mut tickets));
        assert_eq!(to, from, "{status:#x}");
    }
}

/// A device is not believed more than the length that it was given.
#[test]
fn a_record_that_claims_too_much_moves_no_byte_behind_the_copy() {
    let record = Record::default();
    record.0[0].store((9000u64 << 32 | 3).to_le(), Ordering::Relaxed);
    assert_eq!(record.outcome(1024), Outcome::Left { from: 1024, len: 0 });
}

#[test]
fn a_full_queue_and_small_pieces_are_for_the_processor() {
    let model = Model::new(1);
    let (engines, copier) = model.engines();
    let from = pattern(2000);
    let mut to = [vec![0; 2000], vec![0; 2000], vec![0; 1023]];
    let mut first = begin(&copier, &from, &mut to[0]);
    for at in [1, 2] {
        let len = to[at].len();
        let mut tickets = begin(&copier, &from[..len], &mut to[at]);
        assert!(engines.are_done(&mut tickets));
        assert_eq!(to[at], from[..len]);
    }
    assert_eq!(model.waiting(), 1);
    assert!(!engines.are_done(&mut first));
    model.run(0, End::Success);
    assert!(engines.are_done(&mut first));
}

#[test]
fn whoever_waits_has_to_wait_for_the_device() {
    let model = Model::new(1);
    let (engines, copier) = model.engines();
    let from = pattern(4000);
    let mut to = vec![0; 4000];
    let tickets = begin(&copier, &from, &mut to);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| engines.wait(tickets));
        model.run(
            0,
            End::Fault {
                after: 100,
                backwards: false,
                write: false,
            },
        );
        waiting.join().unwrap();
    });
    assert_eq!(to, from);
}

#[test]
fn what_is_no_such_device_is_refused() {
    let file = rustix::fs::memfd_create("none", rustix::fs::MemfdFlags::empty()).unwrap();
    assert!(open(file).unwrap_err().to_string().contains("character"));
}
