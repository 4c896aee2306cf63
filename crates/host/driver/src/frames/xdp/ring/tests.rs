//! Rings on the heap, with the system played here.

use proptest::prelude::*;

use rustix::net::xdp::XdpDescOptions;

use super::*;

const FLAGS_AT: u64 = 128;
const LAYOUT: XdpRingOffset = XdpRingOffset {
    producer: 0,
    consumer: 64,
    desc: 192,
    flags: Some(FLAGS_AT),
};

fn frame(number: u64) -> XdpDesc {
    XdpDesc {
        addr: number,
        len: number as u32,
        options: XdpDescOptions::empty(),
    }
}

/// The memory of a ring, which both of its sides use.
pub(crate) struct Shared(Box<[u64]>);

impl Shared {
    pub(crate) fn new<T>(entries: u16) -> Self {
        let bytes = LAYOUT.desc as usize + usize::from(entries) * size_of::<T>();
        Self(vec![0; bytes.div_ceil(8)].into())
    }

    fn ring<T: Entry>(&mut self, entries: u16) -> Ring<T> {
        let memory = Memory {
            base: NonNull::from(&mut *self.0).cast(),
            len: size_of_val(&*self.0),
            mapped: false,
        };
        Ring::new(memory, LAYOUT, entries)
    }

    pub(crate) fn producer<T: Entry>(&mut self, entries: u16) -> Producer<T> {
        let ring = self.ring(entries);
        let next = ring.producer().load(Ordering::Relaxed);
        Producer { ring, next }
    }

    pub(crate) fn consumer<T: Entry>(&mut self, entries: u16) -> Consumer<T> {
        let ring = self.ring(entries);
        let next = ring.consumer().load(Ordering::Relaxed);
        Consumer {
            ring,
            next,
            end: next,
        }
    }

    /// Both indices, as if so many entries had gone through.
    fn start_at(&mut self, index: u32) {
        let ring = self.ring::<u64>(1);
        ring.producer().store(index, Ordering::Relaxed);
        ring.consumer().store(index, Ordering::Relaxed);
    }

    pub(crate) fn want_wakeup(&mut self, desired: bool) {
        let flags = self.ring::<u64>(1);
        let flags = flags.number(FLAGS_AT);
        flags.store(u32::from(desired), Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_seen_before_it_is_published_or_released() {
    let mut shared = Shared::new::<u64>(4);
    let mut writer = shared.producer::<u64>(4);
    let mut reader = shared.consumer::<u64>(4);
    writer.push(1);
    assert_eq!(reader.pop(), None);
    writer.publish();
    assert_eq!((reader.pop(), reader.pop()), (Some(1), None));
    assert_eq!(writer.pending(), 1);
    reader.release();
    assert_eq!(writer.pending(), 0);
    assert!(!writer.needs_wakeup());
    shared.want_wakeup(true);
    assert!(writer.needs_wakeup());
}

#[test]
fn a_ring_that_does_not_fit_its_memory_is_refused() {
    let mut shared = Shared::new::<XdpDesc>(4);
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shared.producer::<XdpDesc>(8);
    }));
    assert!(made.is_err());
}

proptest! {
    #[test]
    fn every_entry_goes_through_once_and_in_order(
        start in prop_oneof![any::<u32>(), u32::MAX - 20..],
        steps in prop::collection::vec((0u32..6, 0u32..6), 1..60),
    ) {
        const ENTRIES: u16 = 8;
        let mut shared = Shared::new::<XdpDesc>(ENTRIES);
        shared.start_at(start);
        let mut writer = shared.producer::<XdpDesc>(ENTRIES);
        let mut reader = shared.consumer::<XdpDesc>(ENTRIES);
        let (mut written, mut read) = (0, 0);
        for (puts, takes) in steps {
            for _ in 0..puts.min(u32::from(ENTRIES) - writer.pending()) {
                writer.push(frame(written));
                written += 1;
            }
            writer.publish();
            prop_assert_eq!(u64::from(writer.pending()), written - read);
            for _ in 0..takes {
                let Some(frame) = reader.pop() else { break };
                prop_assert_eq!((frame.addr, u64::from(frame.len)), (read, read));
                read += 1;
            }
            reader.release();
        }
        while reader.pop().is_some() {
            read += 1;
        }
        prop_assert_eq!(read, written);
    }
}
