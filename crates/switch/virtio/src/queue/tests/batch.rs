//! Chains that are taken and given back together are those that are taken and given back one by
//! one.

use std::collections::VecDeque;
use std::sync::Arc;

use memory::Segment;
use proptest::prelude::*;
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{Chain, ChainBatch, Inflight, InflightRegion, Limit, Queue, QueueFault};

/// One turn: what the driver offers, how much is taken, and how much of it goes back.
#[derive(Clone, Debug)]
struct Turn {
    offers: Vec<(Vec<Buffer>, bool)>,
    limit: Limit,
    untaken: usize,
}

fn offer() -> impl Strategy<Value = (Vec<Buffer>, bool)> {
    let gpa = prop_oneof![120 => (0..0x7000u64).prop_map(|at| DATA + at), 1 => Just(NOWHERE)];
    let buffer = (gpa, 1..0x1000u32).prop_map(|(gpa, len)| Buffer {
        gpa,
        len,
        writable: false,
    });
    let buffers = prop_oneof![
        4 => prop::collection::vec(buffer.clone(), 1),
        1 => prop::collection::vec(buffer, 1..5),
    ];
    (buffers, prop::bool::weighted(0.2))
}

fn turn() -> impl Strategy<Value = Turn> {
    let bytes = prop_oneof![3 => Just(u64::MAX), 1 => 0..0x8000u64];
    (
        prop::collection::vec(offer(), 0..12),
        0..20usize,
        bytes,
        0..3usize,
    )
        .prop_map(|(offers, chains, bytes, untaken)| Turn {
            offers,
            limit: Limit { chains, bytes },
            untaken,
        })
}

/// A chain in terms of the guest: id, slots, bytes, and where they lie.
type Seen = (u16, u16, u32, Vec<(u64, u32)>);

/// A driver and the queue that serves it.
struct Side {
    driver: Driver,
    queue: Queue,
    offered: VecDeque<u16>,
    segs: Vec<Segment>,
    chains: Vec<Chain>,
}

impl Side {
    fn new(size: u16, features: Features, start: u16, tracked: bool) -> Self {
        let mut driver = Driver::new(Guest::new(size, features));
        let guest = &driver.guest;
        let (packed, mut position) = (guest.packed(), guest.start());
        if !packed {
            driver.start_at(start);
            position = u32::from(start);
        }
        let guest = &driver.guest;
        let queue = if tracked {
            let region = Arc::new(InflightRegion::heap(Inflight::region_size(size, packed)));
            let part = Inflight::new(region, 0, size, packed).expect("a part that fits");
            let mem = guest.mem.clone();
            Queue::with_inflight(mem, guest.layout, features, position, part)
        } else {
            guest.queue_at(position)
        };
        Self {
            driver,
            queue: queue.expect("a sound queue"),
            offered: VecDeque::new(),
            segs: Vec::new(),
            chains: Vec::new(),
        }
    }

    fn offer(&mut self, offers: &[(Vec<Buffer>, bool)], writable: bool) {
        for (buffers, indirect) in offers {
            let buffers: Vec<_> = buffers.iter().map(|b| Buffer { writable, ..*b }).collect();
            self.offered.extend(self.driver.add(&buffers, *indirect, 0));
        }
    }

    fn one(&mut self, writable: bool) -> Result<Option<Chain>, QueueFault> {
        if writable {
            self.queue.take_writable(&mut self.segs)
        } else {
            self.queue.take_readable(&mut self.segs)
        }
    }

    fn take_one_by_one(&mut self, limit: Limit, writable: bool) -> Result<(), QueueFault> {
        let mut bytes = 0;
        while self.chains.len() < limit.chains && bytes < limit.bytes {
            let Some(chain) = self.one(writable)? else {
                break;
            };
            // A piece more is as 128 bytes more.
            bytes += u64::from(chain.bytes) + u64::from(chain.segs.len - 1) * 128;
            self.chains.push(chain);
        }
        Ok(())
    }

    fn take_batch(&mut self, limit: Limit, writable: bool) -> Result<(), QueueFault> {
        let prefetched = std::cell::RefCell::new(Vec::new());
        let mut taken = ChainBatch {
            segs: &mut self.segs,
            chains: &mut self.chains,
        };
        let prefetch = |first: &Segment| prefetched.borrow_mut().push(first.gpa);
        let result = if writable {
            self.queue.take_all_writable(&mut taken, limit, prefetch)
        } else {
            self.queue.take_all_readable(&mut taken, limit, prefetch)
        };
        let first = |c: &Chain| c.segs.of(&self.segs)[0].gpa;
        let firsts: Vec<_> = self.chains.iter().map(first).collect();
        assert_eq!(
            prefetched.into_inner(),
            firsts,
            "each first buffer is prefetched once"
        );
        result
    }

    /// Chains of the batch.
    fn seen(&self) -> Vec<Seen> {
        let seen = |c: &Chain| (c.id, c.count, c.bytes, ranges(c.segs.of(&self.segs)));
        self.chains.iter().map(seen).collect()
    }

    fn untake(&mut self, count: usize) {
        let keep = self.chains.len() - count.min(self.chains.len());
        self.queue.untake(&self.chains[keep..]);
        self.chains.truncate(keep);
    }

    /// Publishes what was staged; the driver sees these chains used, and nothing else.
    fn publish(&mut self, written: u32) {
        self.queue.publish();
        let used = self.driver.reap_in_order(&mut self.offered);
        let desired: Vec<_> = self.chains.iter().map(|c| (c.id, written)).collect();
        assert_eq!(used, desired);
        self.chains.clear();
        self.segs.clear();
    }
}

fn run(
    mut single: Side,
    mut batch: Side,
    writable: bool,
    turns: Vec<Turn>,
) -> Result<(), TestCaseError> {
    for turn in turns {
        single.offer(&turn.offers, writable);
        batch.offer(&turn.offers, writable);
        let desired = single.take_one_by_one(turn.limit, writable);
        let got = batch.take_batch(turn.limit, writable);
        prop_assert_eq!(got, desired);
        prop_assert_eq!(batch.seen(), single.seen());
        prop_assert_eq!(batch.queue.position(), single.queue.position());
        if got.is_err() {
            break;
        }
        single.untake(turn.untaken);
        batch.untake(turn.untaken);
        let written = u32::from(writable);
        single
            .chains
            .iter()
            .for_each(|c| single.queue.put(*c, written));
        if writable {
            let chains = batch.chains.iter();
            chains.for_each(|c| batch.queue.put(*c, written));
        } else {
            // In two batches, of which either may be empty.
            let (a, b) = batch.chains.split_at(batch.chains.len() / 3);
            batch.queue.put_read(a);
            batch.queue.put_read(b);
        }
        single.publish(written);
        batch.publish(written);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(6, 256))]

    #[test]
    fn split_chains_go_together_as_one_by_one(
        log2 in 0..6u32,
        start in prop_oneof![Just(0u16), 65_500..=65_535u16],
        in_order: bool, tracked: bool, writable: bool,
        turns in prop::collection::vec(turn(), 0..if cfg!(miri) { 8 } else { 40 }),
    ) {
        let [features, _] = both(Features::RING_INDIRECT_DESC);
        let more = if in_order { features | Features::IN_ORDER } else { features };
        let single = Side::new(1 << log2, features, start, false);
        run(single, Side::new(1 << log2, more, start, tracked), writable, turns)?;
    }

    #[test]
    fn packed_chains_go_together_as_one_by_one(
        size in 1..40u16,
        in_order: bool, tracked: bool, writable: bool,
        turns in prop::collection::vec(turn(), 0..if cfg!(miri) { 8 } else { 40 }),
    ) {
        let [_, features] = both(Features::RING_INDIRECT_DESC);
        let more = if in_order { features | Features::IN_ORDER } else { features };
        let single = Side::new(size, features, 0, false);
        run(single, Side::new(size, more, 0, tracked), writable, turns)?;
    }
}

/// However small the pieces are that a driver cuts its buffers into, few of them are taken at a
/// time.
#[test]
fn a_batch_in_many_pieces_is_short() {
    for features in both(Features::RING_INDIRECT_DESC) {
        let mut side = Side::new(256, features, 0, false);
        // Two pieces each: the border between two regions lies within.
        let across = Buffer {
            gpa: SEAM - 1,
            len: 2,
            writable: false,
        };
        side.offer(&vec![(vec![across; 5], true); 64], false);
        let limit = Limit {
            chains: 64,
            bytes: 16 << 10,
        };
        side.take_batch(limit, false).expect("sound");
        let taken = (side.chains.len(), side.segs.len());
        assert_eq!(taken, (15, 150), "1162 of 16384 bytes each, not 10");
    }
}
