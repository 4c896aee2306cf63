//! Chains go through in order, byte for byte, in every interleaving.

use std::collections::VecDeque;

use memory::Segment;
use memory::iotlb::Access;
use proptest::prelude::*;
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{Chain, ChainBatch, Limit, Queue};

#[derive(Clone, Debug)]
enum Step {
    Add {
        buffers: Vec<(u16, u16)>,
        indirect: bool,
        pick: usize,
    },
    Take,
    TakeBatch(usize),
    Untake(usize),
    Put {
        which: usize,
        written: u32,
    },
    Publish,
    Reap,
    /// With an IOMMU: the page of this address of a buffer, table or ring is revoked.
    Revoke(u64),
    /// With an IOMMU, to the guest: so many buffers are looked at ahead.
    LookAhead(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (
            prop::collection::vec((0..0x7000u16, 1..0x1000u16), 1..5),
            any::<bool>(),
            any::<usize>(),
        )
            .prop_map(|(buffers, indirect, pick)| Step::Add { buffers, indirect, pick }),
        3 => Just(Step::Take),
        2 => (1..9usize).prop_map(Step::TakeBatch),
        1 => (0..4usize).prop_map(Step::Untake),
        4 => (any::<usize>(), 0..3u32).prop_map(|(which, written)| Step::Put { which, written }),
        2 => Just(Step::Publish),
        4 => Just(Step::Reap),
        1 => prop_oneof![
            DATA..DATA + 2 * DATA_LEN,
            TABLES..TABLES + 0x1000,
            RINGS..RINGS + 0x400,
        ].prop_map(Step::Revoke),
        2 => prop_oneof![1..8u16, Just(256u16)].prop_map(Step::LookAhead),
    ]
}

/// The chains that the driver and the device should each see, in plain lists.
struct Model {
    driver: Driver,
    queue: Queue,
    writable: bool,
    offered: VecDeque<(u16, Vec<Buffer>)>,
    taken: Vec<(Chain, Vec<Buffer>)>,
    staged: Vec<(u16, u32)>,
    visible: VecDeque<(u16, u32)>,
    /// Chains put since the last untake limit: only a suffix of what was taken may go back.
    newest: usize,
}

impl Model {
    fn new(size: u16, features: Features, start: u16, writable: bool) -> Self {
        Self::of(Guest::new(size, features), start, writable)
    }

    /// As [`Model::new`], of a guest with an IOMMU that grants pages when they are asked for.
    fn with_iommu(size: u16, features: Features, start: u16, writable: bool) -> Self {
        let mut guest = Guest::with_iommu(size, features, None);
        let (layout, mem) = (guest.layout, guest.mem.clone());
        let iommu = guest.iommu.as_mut().expect("it has one");
        let end = layout.device + 6 + 8 * u64::from(size);
        (RINGS..end)
            .step_by(64)
            .for_each(|at| iommu.grant(&mem, at, None));
        iommu.grant(&mem, end - 1, None);
        Self::of(guest, start, writable)
    }

    fn of(guest: Guest, start: u16, writable: bool) -> Self {
        let mut driver = Driver::new(guest);
        let mut position = driver.guest.start();
        if !driver.guest.packed() {
            driver.start_at(start);
            position = u32::from(start);
        }
        let queue = driver.guest.queue_at(position).expect("a sound queue");
        Self {
            driver,
            queue,
            writable,
            offered: VecDeque::new(),
            taken: Vec::new(),
            staged: Vec::new(),
            visible: VecDeque::new(),
            newest: 0,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Add {
                buffers,
                indirect,
                pick,
            } => self.add(&buffers, indirect, pick),
            Step::Take => self.take(),
            Step::TakeBatch(most) => self.take_batch(most),
            Step::Untake(n) => self.untake(n),
            Step::Put { which, written } => self.put(which, written),
            Step::Publish => {
                self.queue.publish();
                self.visible.extend(self.staged.drain(..));
            }
            Step::Reap => assert_eq!(self.driver.reap(), self.visible.pop_front()),
            Step::Revoke(iova) => self.revoke(iova),
            Step::LookAhead(most) => {
                if self.writable {
                    self.look_ahead(most);
                }
            }
        }
    }

    /// Revokes a page, unless the device holds a chain, for which the guest would wait. The address
    /// of a buffer leads to another page then.
    fn revoke(&mut self, iova: u64) {
        let is_free = self.taken.is_empty() && self.staged.is_empty();
        if let Some(iommu) = &mut self.driver.guest.iommu
            && is_free
        {
            iommu.revoke(iova);
            if (DATA..DATA + 2 * DATA_LEN).contains(&iova) {
                iommu.remap(iova, DATA + iova * 3 % (2 * DATA_LEN));
            }
        }
    }

    /// Looks at buffers ahead until nothing is asked for any more. Then all that are offered are
    /// translated, if `most` were enough.
    fn look_ahead(&mut self, most: u16) {
        self.queue.ask_for_buffers(most);
        let guest = &mut self.driver.guest;
        let Some(iommu) = &mut guest.iommu else {
            return;
        };
        while !iommu.answer(&guest.mem).is_empty() {
            self.queue.ask_for_buffers(most);
        }
        if most < self.queue.size() {
            return;
        }
        for buffer in self.offered.iter().flat_map(|(_, buffers)| buffers) {
            for iova in [buffer.gpa, buffer.gpa + u64::from(buffer.len) - 1] {
                let hit = iommu.writer.table().look_up(iova, Access::WRITE);
                assert!(hit.is_some(), "nothing was asked for {iova:#x}");
            }
        }
    }

    /// Takes the next chain, whose missing pages are granted when they are asked for.
    fn take_next(&mut self, segs: &mut Vec<Segment>) -> Option<Chain> {
        loop {
            let chain = if self.writable {
                self.queue.take_writable(segs)
            } else {
                self.queue.take_readable(segs)
            };
            let chain = chain.expect("a sound driver");
            let guest = &mut self.driver.guest;
            let Some(iommu) = guest.iommu.as_mut().filter(|_| chain.is_none()) else {
                return chain;
            };
            assert!(!self.queue.has_available());
            if iommu.answer(&guest.mem).is_empty() {
                return None;
            }
        }
    }

    fn add(&mut self, buffers: &[(u16, u16)], indirect: bool, pick: usize) {
        let writable = self.writable;
        let buffers: Vec<Buffer> = buffers
            .iter()
            .map(|&(offset, len)| Buffer {
                gpa: DATA + u64::from(offset),
                len: u32::from(len),
                writable,
            })
            .collect();
        if let Some(id) = self.driver.add(&buffers, indirect, pick) {
            self.offered.push_back((id, buffers));
        }
    }

    fn take(&mut self) {
        let mut segs = Vec::new();
        let chain = self.take_next(&mut segs);
        let desired = self.offered.pop_front();
        assert_eq!(chain.map(|c| c.id), desired.as_ref().map(|w| w.0));
        if let (Some(chain), Some((_, buffers))) = (chain, desired) {
            self.took(chain, buffers, &segs);
        }
    }

    /// Takes up to `most` chains in one batch, which ends before one whose page is missing. Missing
    /// pages are granted behind it.
    fn take_batch(&mut self, most: usize) {
        let (mut segs, mut chains) = (Vec::new(), Vec::new());
        let mut into = ChainBatch {
            segs: &mut segs,
            chains: &mut chains,
        };
        let limit = Limit {
            chains: most,
            bytes: u64::MAX,
        };
        let result = if self.writable {
            self.queue.take_all_writable(&mut into, limit, |_| ())
        } else {
            self.queue.take_all_readable(&mut into, limit, |_| ())
        };
        result.expect("a sound driver");
        assert!(chains.len() <= most);
        for chain in chains {
            let (id, buffers) = self.offered.pop_front().expect("it was offered");
            assert_eq!(chain.id, id);
            self.took(chain, buffers, &segs);
        }
        let guest = &mut self.driver.guest;
        if let Some(iommu) = &mut guest.iommu {
            iommu.answer(&guest.mem);
        }
    }

    /// Checks a chain that was taken.
    fn took(&mut self, chain: Chain, buffers: Vec<Buffer>, segs: &[Segment]) {
        let bytes: u32 = buffers.iter().map(|b| b.len).sum();
        assert_eq!(chain.bytes, bytes);
        let expected = wanted_ranges(&buffers);
        let iommu = self.driver.guest.iommu.as_ref();
        let expected = iommu.map_or(expected.clone(), |iommu| iommu.translate(&expected));
        assert_eq!(ranges(chain.segs.of(segs)), expected);
        self.taken.push((chain, buffers));
        self.newest += 1;
    }

    /// Gives back up to `n` of the newest chains, as many as have not been put.
    fn untake(&mut self, n: usize) {
        let n = n.min(self.newest);
        let from = self.taken.len() - n;
        let back: Vec<_> = self.taken.drain(from..).collect();
        let chains: Vec<Chain> = back.iter().map(|(chain, _)| *chain).collect();
        self.queue.untake(&chains);
        self.newest -= n;
        for (chain, buffers) in back.into_iter().rev() {
            self.offered.push_front((chain.id, buffers));
        }
    }

    fn put(&mut self, which: usize, written: u32) {
        if self.taken.is_empty() {
            return;
        }
        let at = which % self.taken.len();
        let (chain, _) = self.taken.remove(at);
        // What was taken before the chain that is put now can go back no more.
        self.newest = self.newest.min(self.taken.len() - at);
        let written = if self.writable { written } else { 0 };
        self.queue.put(chain, written);
        self.staged.push((chain.id, written));
    }

    fn drain(&mut self) {
        while !self.offered.is_empty() {
            self.take();
        }
        while !self.taken.is_empty() {
            self.put(0, 1);
        }
        self.run(Step::Publish);
        while !self.visible.is_empty() {
            self.run(Step::Reap);
        }
        assert_eq!(self.driver.reap(), None);
    }
}

proptest! {
    #![proptest_config(cases(6, 512))]

    #[test]
    fn split_chains_go_through_in_order(
        log2 in 0..6u32,
        start in prop_oneof![Just(0u16), 65_500..=65_535u16, any::<u16>()],
        writable: bool,
        steps in prop::collection::vec(step(), 0..if cfg!(miri) { 60 } else { 400 }),
    ) {
        let [features, _] = both(Features::RING_INDIRECT_DESC);
        let mut model = Model::new(1 << log2, features, start, writable);
        steps.clone().into_iter().for_each(|s| model.run(s));
        model.drain();
        let mut model = Model::with_iommu(1 << log2, features, start, writable);
        steps.into_iter().for_each(|s| model.run(s));
        model.drain();
    }

    #[test]
    fn packed_chains_go_through_in_order(
        size in prop_oneof![1..8u16, 1..70u16],
        writable: bool,
        steps in prop::collection::vec(step(), 0..if cfg!(miri) { 60 } else { 400 }),
    ) {
        let [_, features] = both(Features::RING_INDIRECT_DESC);
        let mut model = Model::new(size, features, 0, writable);
        steps.clone().into_iter().for_each(|s| model.run(s));
        model.drain();
        let mut model = Model::with_iommu(size, features, 0, writable);
        steps.into_iter().for_each(|s| model.run(s));
        model.drain();
    }
}

#[test]
fn every_queue_size_wraps() {
    let sizes: &[u16] = if cfg!(miri) {
        &[1, 2]
    } else {
        &[1, 2, 256, 4096]
    };
    for &size in sizes {
        for features in both(Features::empty()) {
            for mut model in [
                Model::new(size, features, 0, true),
                Model::with_iommu(size, features, 0, true),
            ] {
                for _ in 0..u32::from(size) * 2 + 3 {
                    model.add(&[(0, 60)], false, 0);
                    model.take();
                    model.put(0, 60);
                    model.run(Step::Publish);
                    model.run(Step::Reap);
                }
            }
        }
    }
}

#[test]
fn a_full_ring_is_one_batch() {
    for features in both(Features::empty()) {
        let mut model = Model::new(8, features, 0, false);
        for _ in 0..3 {
            for i in 0..8 {
                model.add(&[(i, 60)], false, usize::from(i));
            }
            for _ in 0..9 {
                model.take();
            }
            while !model.taken.is_empty() {
                model.put(5, 0);
                assert_eq!(model.driver.reap(), None, "staged elements are hidden");
            }
            model.run(Step::Publish);
            for _ in 0..9 {
                model.run(Step::Reap);
            }
        }
    }
}

#[test]
fn a_mixed_split_chain_ends_in_a_table() {
    let [features, _] = both(Features::RING_INDIRECT_DESC);
    let guest = Guest::new(4, features);
    guest.set_ring_desc(0, DATA, 10, NEXT, 2);
    guest.set_ring_desc(2, TABLES, 32, INDIRECT | WRITE, 0);
    guest.set_desc(TABLES, DATA + 100, 20, NEXT, 1);
    guest.set_desc(TABLES + 16, DATA + 200, 30, 0, 0);
    guest.offer_first();
    let mut segs = Vec::new();
    let chain = guest.queue().take_readable(&mut segs).unwrap().unwrap();
    assert_eq!((chain.id, chain.count, chain.bytes), (0, 1, 60));
    assert_eq!(
        ranges(&segs),
        [(DATA, 10), (DATA + 100, 20), (DATA + 200, 30)]
    );
}

#[test]
fn a_buffer_may_cross_adjacent_regions() {
    for features in both(Features::empty()) {
        let guest = Guest::new(4, features);
        guest.set_ring_desc(0, SEAM - 10, 30, 0, 0);
        guest.offer_first();
        let mut segs = Vec::new();
        let chain = guest.queue().take_readable(&mut segs).unwrap().unwrap();
        assert_eq!(chain.segs.of(&segs).len(), 2);
        assert_eq!(ranges(&segs), [(SEAM - 10, 30)]);
    }
}

#[test]
fn an_indirect_table_may_be_misaligned_and_cross_regions() {
    for features in both(Features::RING_INDIRECT_DESC) {
        let guest = Guest::new(4, features);
        let next = if guest.packed() { 0 } else { NEXT };
        for table in [TABLES + 3, SEAM - 16] {
            guest.set_desc(table, DATA, 20, next, 1);
            guest.set_desc(table + 16, DATA + 50, 30, 0, 0);
            guest.set_ring_desc(0, table, 32, INDIRECT, 1);
            guest.offer_first();
            let mut segs = Vec::new();
            let chain = guest.queue().take_readable(&mut segs).unwrap().unwrap();
            assert_eq!((chain.count, chain.bytes), (1, 50));
            assert_eq!(ranges(&segs), [(DATA, 20), (DATA + 50, 30)]);
        }
    }
}

#[test]
fn segments_are_appended_to_the_arena() {
    for features in both(Features::empty()) {
        let mut driver = Driver::new(Guest::new(4, features));
        let buffer = |gpa| Buffer {
            gpa,
            len: 9,
            writable: false,
        };
        driver.add(&[buffer(DATA)], false, 0);
        driver.add(&[buffer(DATA + 100), buffer(DATA + 200)], false, 0);
        let mut queue = driver.guest.queue();
        let mut segs = Vec::new();
        let first = queue.take_readable(&mut segs).unwrap().unwrap();
        let second = queue.take_readable(&mut segs).unwrap().unwrap();
        assert_eq!(ranges(first.segs.of(&segs)), [(DATA, 9)]);
        assert_eq!(
            ranges(second.segs.of(&segs)),
            [(DATA + 100, 9), (DATA + 200, 9)]
        );
    }
}

#[test]
fn a_queue_goes_on_at_its_position() {
    for features in both(Features::empty()) {
        let mut model = Model::new(4, features, 0, true);
        for round in 0..40u16 {
            model.add(&[(round, 60)], false, usize::from(round));
            model.add(&[(round, 60), (0, 5)], false, 0);
            model.take();
            model.put(0, 1);
            model.run(Step::Publish);
            model.run(Step::Reap);
            let position = model.queue.position();
            model.queue = model.driver.guest.queue_at(position).expect("its position");
            assert_eq!(model.queue.position(), position);
            model.take();
            model.put(0, 1);
            model.run(Step::Publish);
            model.run(Step::Reap);
        }
    }
}

#[test]
fn a_packed_position_without_its_used_half_starts_level() {
    let [_, features] = both(Features::empty());
    let guest = Guest::new(4, features);
    assert_eq!(guest.queue_at(0x8000).unwrap().position(), 0x8000_8000);
    assert_eq!(guest.queue_at(0x8003).unwrap().position(), 0x8003_8003);
    assert_eq!(guest.queue_at(0x8001_0001).unwrap().position(), 0x8001_0001);
}
