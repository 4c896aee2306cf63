//! A driver and a front end that write anything anywhere: the queue faults or serves, it never
//! panics, never loops, never leaves the guest's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memory::Segment;
use proptest::prelude::*;
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{
    Chain, Inflight, InflightRegion, MAX_CHAIN_BYTES, MAX_CHAIN_DESCRIPTORS, Queue, QueueFault,
};

const SIZE: u16 = 8;

#[derive(Clone, Debug)]
enum Step {
    /// Offers a sound chain of this many buffers.
    Add(u16, bool, bool),
    /// Writes a descriptor into the ring, or into the table if `.0`.
    Desc(bool, u16, u64, u32, u16, u16),
    /// Writes a field of the driver area.
    Driver(u16, u16),
    /// Writes a field of the device area: the driver's to spoil too.
    Device(u16, u16),
    Take(bool),
    Put(usize),
    Untake,
    Publish,
    Kicks(bool),
    /// Overwrites a field of the inflight region.
    Inflight(u16, u16),
    /// Makes the queue anew, in the same memory or in a fresh guest.
    Again(bool),
}

fn small() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 0..10u16, 1 => any::<u16>()]
}

fn addr() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => DATA..SEAM + DATA_LEN,
        3 => (0..9u64).prop_map(|i| TABLES + 16 * i),
        1 => any::<u64>(),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![4 => (1..5u32).prop_map(|n| 16 * n), 2 => 0..0x5000u32, 1 => any::<u32>()]
}

fn flags() -> impl Strategy<Value = u16> {
    let lap = prop_oneof![Just(0u16), Just(0x80), Just(0x8000), Just(0x8080)];
    (0..8u16, lap).prop_map(|(kind, lap)| kind | lap)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..4u16, prop::bool::weighted(0.03), any::<bool>())
            .prop_map(|(n, w, i)| Step::Add(n, w, i)),
        4 => (any::<bool>(), 0..SIZE, addr(), len(), flags(), small())
            .prop_map(|(t, i, a, l, f, n)| Step::Desc(t, i, a, l, f, n)),
        1 => (0..11u16, small()).prop_map(|(at, v)| Step::Driver(at, v)),
        1 => (0..35u16, small()).prop_map(|(at, v)| Step::Device(at, v)),
        12 => prop::bool::weighted(0.03).prop_map(Step::Take),
        4 => any::<usize>().prop_map(Step::Put),
        1 => Just(Step::Untake),
        2 => Just(Step::Publish),
        1 => any::<bool>().prop_map(Step::Kicks),
        1 => (0..64u16, small()).prop_map(|(at, v)| Step::Inflight(at, v)),
        4 => any::<bool>().prop_map(Step::Again),
    ]
}

fn check(guest: &Guest, chain: &Chain, segs: &[Segment]) {
    let sum: u64 = segs.iter().map(|s| u64::from(s.len)).sum();
    assert_eq!(u64::from(chain.bytes), sum);
    assert!(chain.bytes > 0 && chain.bytes <= MAX_CHAIN_BYTES);
    assert!(chain.count > 0 && chain.count <= SIZE && chain.id < SIZE);
    assert!(segs.len() <= 2 * MAX_CHAIN_DESCRIPTORS as usize);
    for seg in segs {
        let place = guest.mem.translate(seg.gpa, seg.len).expect("mapped");
        assert_eq!(place.ptr, seg.ptr);
    }
}

/// Takes one chain and checks it; keeps what was taken.
fn take(guest: &Guest, queue: &mut Queue, writable: bool, held: &mut Vec<Chain>) {
    let mut segs = Vec::new();
    let taken = if writable {
        queue.take_writable(&mut segs)
    } else {
        queue.take_readable(&mut segs)
    };
    match taken {
        Ok(Some(chain)) => {
            check(guest, &chain, &segs);
            held.push(chain);
            let slots: u16 = held.iter().map(|c| c.count).sum();
            assert!(slots <= SIZE, "no more in flight than the queue holds");
        }
        Ok(None) => assert!(segs.is_empty()),
        Err(fault) => {
            assert!(segs.is_empty());
            assert_eq!(queue.fault(), Some(fault));
        }
    }
}

fn write(driver: &mut Driver, step: &Step) {
    let guest = &driver.guest;
    match *step {
        Step::Add(n, writable, indirect) => {
            let one = |i| Buffer {
                gpa: DATA + 100 * u64::from(i),
                len: 60,
                writable,
            };
            let buffers: Vec<Buffer> = (0..n).map(one).collect();
            driver.add(&buffers, indirect, usize::from(n));
        }
        Step::Desc(table, at, addr, len, flags, link) => {
            let base = if table { TABLES } else { guest.layout.desc };
            guest.set_desc(base + 16 * u64::from(at), addr, len, flags, link);
        }
        Step::Driver(at, value) => {
            // The areas are as long as a split queue's, whatever the layout.
            guest.set16(guest.layout.driver + 2 * u64::from(at), value);
        }
        Step::Device(at, value) => {
            guest.set16(guest.layout.device + 2 * u64::from(at), value);
        }
        _ => {}
    }
}

fn serve(guest: &Guest, queue: &mut Queue, step: &Step, held: &mut Vec<Chain>) {
    match *step {
        Step::Take(writable) => take(guest, queue, writable, held),
        Step::Put(which) if !held.is_empty() => {
            let chain = held.remove(which % held.len());
            queue.put(chain, chain.bytes);
            // Where it lay among the taken ones is forgotten: publish before anything is untaken.
            queue.publish();
        }
        Step::Untake => {
            if let Some(chain) = held.pop() {
                queue.untake(&[chain]);
                held.clear();
            }
        }
        Step::Publish => {
            queue.publish();
            let _ = queue.needs_notify();
        }
        Step::Kicks(on) => {
            queue.set_kicks(on);
        }
        _ => {}
    }
}

/// A queue at a place where one can start, whatever the guest wrote into its rings.
fn start(guest: &Guest, part: Option<&Inflight>) -> Result<Queue, QueueFault> {
    let position = if guest.packed() {
        guest.start()
    } else {
        u32::from(guest.get16(guest.layout.device + 2))
    };
    match part {
        None => guest.queue_at(position),
        Some(part) => Queue::with_inflight(
            guest.mem.clone(),
            guest.layout,
            guest.features,
            position,
            part.clone(),
        ),
    }
}

/// One guest after the other, each with its own inflight region if `tracked`.
fn run(features: Features, steps: &[Step], tracked: bool) {
    let packed = features.contains(Features::RING_PACKED);
    for life in steps.split(|s| matches!(s, Step::Again(true))) {
        let region = InflightRegion::heap(Inflight::region_size(SIZE, packed));
        let part = Inflight::new(Arc::new(region), 0, SIZE, packed).expect("a part that fits");
        let driver = Driver::new(Guest::new(SIZE, features));
        run_guest(driver, life, tracked.then_some(&part));
    }
}

fn run_guest(mut driver: Driver, steps: &[Step], part: Option<&Inflight>) {
    let mut held = Vec::new();
    let mut queue = start(&driver.guest, part);
    for step in steps {
        write(&mut driver, step);
        if let (Step::Inflight(at, value), Some(part)) = (step, part) {
            part.poke(2 * usize::from(*at), *value);
        }
        let again = matches!(step, Step::Again(_));
        match &mut queue {
            Ok(queue) if !again => serve(&driver.guest, queue, step, &mut held),
            _ => {
                held.clear();
                queue = start(&driver.guest, part);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(6, 2000))]

    #[test]
    fn a_hostile_driver_reaches_nothing_but_its_own_memory(
        packed: bool,
        event_idx: bool,
        tracked: bool,
        steps in prop::collection::vec(step(), 0..if cfg!(miri) { 80 } else { 250 }),
    ) {
        let mut features = both(Features::RING_INDIRECT_DESC)[usize::from(packed)];
        features.set(Features::RING_EVENT_IDX, event_idx);
        run(features, &steps, tracked);
    }
}

#[test]
fn a_driver_that_rewrites_descriptors_while_they_are_read_reaches_nothing_else() {
    if cfg!(miri) {
        // A driver that races with itself is no concern of the memory model.
        return;
    }
    for features in both(Features::RING_INDIRECT_DESC) {
        let guest = Arc::new(Guest::new(SIZE, features));
        let done = Arc::new(AtomicBool::new(false));
        let (writer, writer_done) = (guest.clone(), done.clone());
        let hostile = thread::spawn(move || {
            let mut n = 0u64;
            while !writer_done.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (table, at, kind) = (n >> 63 == 1, (n >> 40) % 8, (n >> 50) as u16 & 0x8087);
                let base = if table { TABLES } else { writer.layout.desc };
                let addr = if n >> 62 & 1 == 1 {
                    TABLES
                } else {
                    DATA + (n >> 20) % 0x9000
                };
                writer.set_desc(
                    base + 16 * at,
                    addr,
                    16 * (1 + (n >> 33) as u32 % 4),
                    kind,
                    at as u16,
                );
                let index = writer
                    .get16(writer.layout.device + 2)
                    .wrapping_add(at as u16);
                if !writer.packed() {
                    writer.set16(writer.layout.driver + 2, index);
                }
            }
        });
        // The race was hit when some chains were sound and others were not.
        let (mut sound, mut faults) = (0, 0);
        for round in 0.. {
            if round >= 2000 && sound > 0 && faults > 0 {
                break;
            }
            assert!(round < 10_000_000, "{sound} sound, {faults} faults");
            let Ok(mut queue) = start(&guest, None) else {
                continue;
            };
            let mut held = Vec::new();
            for _ in 0..8 {
                take(&guest, &mut queue, false, &mut held);
            }
            sound += held.len();
            faults += usize::from(queue.fault().is_some());
            held.drain(..).for_each(|chain| queue.put(chain, 0));
            queue.publish();
        }
        done.store(true, Ordering::Relaxed);
        hostile.join().expect("it only writes");
    }
}
