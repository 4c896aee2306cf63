//! A process dies at the worst moments; its successor finds every chain that is in flight, in
//! order.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use wire::virtio::features::Features;

use super::{Inflight, InflightRegion};
use crate::queue::tests::driver::*;
use crate::queue::{Chain, Queue, QueueFault};

fn part(size: u16, packed: bool) -> Inflight {
    let region = Arc::new(InflightRegion::heap(Inflight::region_size(size, packed)));
    Inflight::new(region, 0, size, packed).expect("a part that fits")
}

impl Inflight {
    /// Overwrites 16 bits, as a hostile front end may. The words that the code writes whole are
    /// written whole: Miri models no atomics of mixed size.
    pub(in crate::queue) fn poke(&self, at: usize, value: u16) {
        if at + 2 > self.len {
            return;
        }
        let cursors = self.packed && (16..24).contains(&at);
        let field = at % if self.packed { 32 } else { 16 };
        let narrow =
            at < 16 || matches!(field, 2 | 4 | 6) || self.packed && matches!(field, 16 | 18);
        if cfg!(miri) && !cursors && !narrow {
            return;
        }
        if !cursors {
            return self.set16(at, value);
        }
        let mut bytes = self.get64(16).to_ne_bytes();
        bytes[at - 16..][..2].copy_from_slice(&value.to_ne_bytes());
        self.set64(16, u64::from_ne_bytes(bytes));
    }
}

/// Bytes `16..24` of a packed part.
fn cursors(part: &Inflight) -> [u16; 4] {
    let b = part.get64(16).to_ne_bytes();
    [0, 2, 4, 6].map(|i| u16::from_ne_bytes([b[i], b[i + 1]]))
}

fn resume(guest: &Guest, part: &Inflight) -> Result<Queue, QueueFault> {
    let (mem, start) = (guest.mem.clone(), guest.start());
    Queue::with_inflight(mem, guest.layout, guest.features, start, part.clone())
}

fn buffers(n: u16) -> Vec<Buffer> {
    let one = |i| Buffer {
        gpa: DATA + 100 * u64::from(i),
        len: 60,
        writable: true,
    };
    (0..n).map(one).collect()
}

fn take(queue: &mut Queue) -> Option<Chain> {
    let chain = queue.take_writable(&mut Vec::new());
    chain.expect("a sound driver")
}

/// Offers `n` chains of one to three buffers and takes them.
fn take_new(driver: &mut Driver, queue: &mut Queue, n: u16) -> Vec<Chain> {
    let one = |i| {
        let desired = driver.add(&buffers(1 + i % 2), i % 3 == 2, usize::from(i));
        let chain = take(queue).expect("what was offered");
        assert_eq!(Some(chain.id), desired);
        chain
    };
    (0..n).map(one).collect()
}

/// Returns the chains that a resumed queue yields before any new one.
fn taken_again(queue: &mut Queue, n: usize) -> Vec<(u16, u16, u32)> {
    (0..n)
        .map(|_| key(take(queue).expect("a chain in flight")))
        .collect()
}

fn key(chain: Chain) -> (u16, u16, u32) {
    (chain.id, chain.count, chain.bytes)
}

fn keys(chains: &[Chain]) -> Vec<(u16, u16, u32)> {
    chains.iter().copied().map(key).collect()
}

#[test]
fn sizes_are_those_of_the_specification() {
    assert_eq!(Inflight::region_size(256, false), 4160);
    assert_eq!(Inflight::region_size(256, true), 8256);
    assert_eq!(Inflight::region_size(1, false), 64);
    assert_eq!(Inflight::region_size(1, true), 64);
}

#[test]
fn the_split_layout_is_that_of_the_specification() {
    let part = part(4, false);
    let mut driver = Driver::new(Guest::new(4, both(Features::RING_INDIRECT_DESC)[0]));
    let mut queue = resume(&driver.guest, &part).unwrap();
    let chains = take_new(&mut driver, &mut queue, 2);
    assert_eq!((part.get16(8), part.get16(10)), (1, 4), "version, desc_num");
    let entry = |i: u16| 16 + 16 * usize::from(i);
    let second = entry(chains[1].id);
    assert_eq!((part.get8(second), part.get64(second + 8)), (1, 1));
    queue.put(chains[0], 0);
    queue.put(chains[1], 0);
    queue.publish();
    assert_eq!(part.get16(12), chains[1].id, "last_batch_head");
    assert_eq!(part.get16(14), 2, "used_idx");
    assert_eq!(part.get16(second + 6), chains[0].id, "next in the batch");
    assert_eq!(part.get8(second), 0);
}

#[test]
fn the_packed_layout_is_that_of_the_specification() {
    let part = part(4, true);
    let mut driver = Driver::new(Guest::new(4, both(Features::RING_INDIRECT_DESC)[1]));
    let mut queue = resume(&driver.guest, &part).unwrap();
    let id = driver.add(&buffers(2), false, 3).unwrap();
    let chain = take(&mut queue).unwrap();
    assert_eq!((part.get16(12), part.get16(14)), (2, 2), "free heads");
    assert_eq!(part.get8(32), 1, "inflight");
    assert_eq!((part.get16(36), part.get16(38)), (1, 2), "last, num");
    assert_eq!(
        (part.get16(48), part.get32(52), part.get64(56)),
        (id, 60, DATA)
    );
    assert_eq!(part.get64(32 + 56), DATA + 100);
    queue.put(chain, 5);
    queue.publish();
    let wraps = u16::from_ne_bytes([1, 1]);
    assert_eq!(
        cursors(&part),
        [2, 2, wraps, 0],
        "used indices, wrap counters"
    );
    assert_eq!((part.get8(32), part.get16(12), part.get16(14)), (0, 0, 0));
    assert_eq!(
        part.get16(32 + 32 + 2),
        2,
        "the last entry links to the free list"
    );
}

#[test]
fn chains_in_flight_come_again_oldest_first() {
    for features in both(Features::RING_INDIRECT_DESC) {
        let mut driver = Driver::new(Guest::new(16, features));
        let part = part(16, driver.guest.packed());
        let mut queue = resume(&driver.guest, &part).unwrap();
        let mut chains = take_new(&mut driver, &mut queue, 8);
        for at in [3, 0, 4] {
            queue.put(chains.remove(at), 1);
        }
        queue.publish();
        let new = driver.add(&buffers(1), false, 0).unwrap();
        let mut queue = resume(&driver.guest, &part).unwrap();
        assert!(queue.set_kicks(true), "there is something to do");
        assert_eq!(taken_again(&mut queue, 5), keys(&chains));
        assert_eq!(take(&mut queue).map(|c| c.id), Some(new));
        assert_eq!(take(&mut queue), None);
    }
}

#[test]
fn staged_chains_count_as_in_flight() {
    for features in both(Features::RING_INDIRECT_DESC) {
        let mut driver = Driver::new(Guest::new(8, features));
        let part = part(8, driver.guest.packed());
        let mut queue = resume(&driver.guest, &part).unwrap();
        let chains = take_new(&mut driver, &mut queue, 3);
        queue.put(chains[2], 1);
        queue.put(chains[0], 1);
        let mut queue = resume(&driver.guest, &part).unwrap();
        assert_eq!(taken_again(&mut queue, 3), keys(&chains));
    }
}

#[test]
fn elements_staged_by_a_dead_process_stay_hidden() {
    let mut driver = Driver::new(Guest::new(8, both(Features::RING_INDIRECT_DESC)[1]));
    let part = part(8, true);
    let mut queue = resume(&driver.guest, &part).unwrap();
    let chains = take_new(&mut driver, &mut queue, 3);
    chains.iter().for_each(|&chain| queue.put(chain, 1));
    // The second element's flags are in the ring already, behind the first one's.
    let mut queue = resume(&driver.guest, &part).unwrap();
    let first = take(&mut queue).unwrap();
    queue.put(first, 2);
    queue.publish();
    assert_eq!(driver.reap(), Some((first.id, 2)));
    assert_eq!(driver.reap(), None);
}

#[test]
fn chains_taken_again_can_go_back_and_come_again() {
    for features in both(Features::RING_INDIRECT_DESC) {
        let mut driver = Driver::new(Guest::new(8, features));
        let part = part(8, driver.guest.packed());
        let mut queue = resume(&driver.guest, &part).unwrap();
        take_new(&mut driver, &mut queue, 3);
        let mut queue = resume(&driver.guest, &part).unwrap();
        driver.add(&buffers(1), false, 0);
        let all: Vec<Chain> = (0..4).map(|_| take(&mut queue).unwrap()).collect();
        queue.untake(&all[1..]);
        assert_eq!(taken_again(&mut queue, 3), keys(&all[1..]));
        queue.untake(&all[3..]);
        let mut queue = resume(&driver.guest, &part).unwrap();
        assert_eq!(taken_again(&mut queue, 4), keys(&all));
    }
}

#[test]
fn a_split_batch_that_was_published_but_not_cleared_does_not_come_again() {
    let mut driver = Driver::new(Guest::new(8, both(Features::RING_INDIRECT_DESC)[0]));
    let part = part(8, false);
    let mut queue = resume(&driver.guest, &part).unwrap();
    let chains = take_new(&mut driver, &mut queue, 3);
    queue.put(chains[1], 1);
    queue.put(chains[0], 1);
    queue.publish();
    // As it was just after the used index was written.
    part.set16(14, 0);
    for chain in &chains[..2] {
        part.set8(16 + 16 * usize::from(chain.id), 1);
    }
    let mut queue = resume(&driver.guest, &part).unwrap();
    assert_eq!(taken_again(&mut queue, 1), keys(&chains[2..]));
    assert_eq!(take(&mut queue), None);
}

#[test]
fn a_packed_batch_is_committed_when_the_ring_shows_it_and_rolled_back_when_not() {
    for published in [false, true] {
        let mut driver = Driver::new(Guest::new(4, both(Features::RING_INDIRECT_DESC)[1]));
        let part = part(4, true);
        let mut queue = resume(&driver.guest, &part).unwrap();
        let chains = take_new(&mut driver, &mut queue, 3);
        let first = driver.guest.get16(RINGS + 14);
        let [free, old_used] = [part.get16(14), cursors(&part)[1]];
        queue.put(chains[1], 1);
        queue.publish();
        // As it was just before, or just after, the flags were written.
        part.set16(14, free);
        part.poke(18, old_used);
        part.set8(32 + 32, 1);
        if !published {
            driver.guest.set16(RINGS + 14, first);
        }
        let mut queue = resume(&driver.guest, &part).unwrap();
        if published {
            assert_eq!(taken_again(&mut queue, 2), keys(&[chains[0], chains[2]]));
            assert_eq!(driver.reap(), Some((chains[1].id, 1)));
        } else {
            assert_eq!(taken_again(&mut queue, 3), keys(&chains));
        }
        assert_eq!(take(&mut queue), None);
    }
}

#[test]
fn a_region_that_is_not_the_queues_is_inflight_mismatch() {
    let mismatch = Some(QueueFault::InflightMismatch);
    for packed in [false, true] {
        let region = Arc::new(InflightRegion::heap(Inflight::region_size(8, packed)));
        let new = |offset, size| Inflight::new(region.clone(), offset, size, packed).err();
        assert_eq!(new(0, 8), None);
        assert_eq!(new(0, 64), mismatch);
        assert_eq!(new(64, 8), mismatch);
        assert_eq!(new(u64::MAX - 7, 8), mismatch);
        assert_eq!(new(4, 1), mismatch);
        assert_eq!(new(0, 0), Some(QueueFault::BadSize));
        let guest = Guest::new(8, both(Features::RING_INDIRECT_DESC)[usize::from(packed)]);
        assert_eq!(resume(&guest, &part(16, packed)).err(), mismatch);
        assert_eq!(resume(&guest, &part(8, !packed)).err(), mismatch);
        for (at, value) in [(8, 2), (10, 7)] {
            let part = part(8, packed);
            part.seal();
            part.set16(at, value);
            assert_eq!(resume(&guest, &part).err(), mismatch);
        }
    }
}

#[test]
fn a_region_that_contradicts_itself_is_inflight_corrupt() {
    let corrupt = Some(QueueFault::InflightCorrupt);
    let guest = Guest::new(8, both(Features::RING_INDIRECT_DESC)[0]);
    for (last_batch, used) in [(8, 0xfffe), (0xffff, 0xffff)] {
        let part = part(8, false);
        part.seal();
        part.set16(12, last_batch);
        part.set16(14, used);
        assert_eq!(resume(&guest, &part).err(), corrupt);
    }
    // (offset, value) of one field: used index, number, next entry, id of the last entry.
    let fields = [
        (16, 8),
        (18, 8),
        (38, 0),
        (38, 9),
        (34, 8),
        (34, 0),
        (80, 8),
    ];
    for (at, value) in fields {
        let mut driver = Driver::new(Guest::new(8, both(Features::RING_INDIRECT_DESC)[1]));
        let part = part(8, true);
        let mut queue = resume(&driver.guest, &part).unwrap();
        driver.add(&buffers(2), false, 0);
        assert!(take(&mut queue).is_some());
        part.poke(at, value);
        assert_eq!(resume(&driver.guest, &part).err(), corrupt, "{at} {value}");
    }
}

#[test]
fn a_split_region_from_before_a_reset_is_begun_anew() {
    let mut driver = Driver::new(Guest::new(8, both(Features::RING_INDIRECT_DESC)[0]));
    let part = part(8, false);
    part.seal();
    part.set16(14, 500);
    part.set8(16, 1);
    let mut queue = resume(&driver.guest, &part).unwrap();
    assert_eq!(part.get16(14), 0);
    take_new(&mut driver, &mut queue, 1);
    assert_eq!(take(&mut queue), None);
}

#[test]
fn a_copy_that_changes_after_recovery_is_inflight_corrupt() {
    let mut driver = Driver::new(Guest::new(8, both(Features::RING_INDIRECT_DESC)[1]));
    let part = part(8, true);
    let mut queue = resume(&driver.guest, &part).unwrap();
    take_new(&mut driver, &mut queue, 2);
    // Two slots where there was one, one where there were two, another id.
    for (at, value) in [(50, 3), (32 + 50, 2), (48, 5)] {
        let old = part.get16(at);
        let mut queue = resume(&driver.guest, &part).unwrap();
        part.set16(at, value);
        let mut segs = Vec::new();
        let results = [
            queue.take_writable(&mut segs),
            queue.take_writable(&mut segs),
        ];
        assert!(
            results.contains(&Err(QueueFault::InflightCorrupt)),
            "{at} {value}"
        );
        part.set16(at, old);
    }
}

#[test]
fn a_buffer_offered_while_in_flight_is_offered_twice() {
    let [split, packed] = both(Features::RING_INDIRECT_DESC).map(|f| Guest::new(8, f));
    for i in 0..2 {
        split.set_ring_desc(i, DATA, 60, 0, 0);
        packed.set_ring_desc(i, DATA, 60, 0, 5);
    }
    split.set16(split.layout.driver + 2, 2);
    for guest in [split, packed] {
        let mut queue = resume(&guest, &part(8, guest.packed())).unwrap();
        let mut segs = Vec::new();
        assert!(queue.take_readable(&mut segs).unwrap().is_some());
        assert_eq!(
            queue.take_readable(&mut segs),
            Err(QueueFault::OfferedTwice)
        );
        assert_eq!(segs.len(), 1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u16, bool, usize),
    Take,
    Untake,
    Put(usize),
    Publish,
    Reap,
    Die,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4u16, any::<bool>(), any::<usize>()).prop_map(|(n, i, p)| Step::Add(n, i, p)),
        4 => Just(Step::Take),
        1 => Just(Step::Untake),
        3 => any::<usize>().prop_map(Step::Put),
        2 => Just(Step::Publish),
        3 => Just(Step::Reap),
        1 => Just(Step::Die),
    ]
}

/// The device's life in several processes.
struct Lives {
    driver: Driver,
    part: Inflight,
    queue: Queue,
    /// Offered or in flight from a former life, in the order in which they must be taken.
    waiting: VecDeque<u16>,
    /// Taken and not published, in the order in which they were taken first.
    order: Vec<u16>,
    held: Vec<Chain>,
    staged: Vec<u16>,
    visible: VecDeque<u16>,
    /// Returns how many of `held`, from the end, may be untaken: nothing taken after them was put.
    newest: usize,
}

impl Lives {
    fn new(size: u16, features: Features) -> Self {
        let driver = Driver::new(Guest::new(size, features));
        let part = part(size, driver.guest.packed());
        let queue = resume(&driver.guest, &part).unwrap();
        Self {
            driver,
            part,
            queue,
            waiting: VecDeque::new(),
            order: Vec::new(),
            held: Vec::new(),
            staged: Vec::new(),
            visible: VecDeque::new(),
            newest: 0,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Add(n, indirect, pick) => {
                self.waiting
                    .extend(self.driver.add(&buffers(n), indirect, pick));
            }
            Step::Take => {
                let chain = take(&mut self.queue);
                assert_eq!(chain.map(|c| c.id), self.waiting.pop_front());
                self.order.extend(chain.map(|c| c.id));
                self.newest += usize::from(chain.is_some());
                self.held.extend(chain);
            }
            Step::Untake => self.untake(),
            Step::Put(which) if !self.held.is_empty() => {
                let at = which % self.held.len();
                let chain = self.held.remove(at);
                self.newest = self.newest.min(self.held.len() - at);
                self.queue.put(chain, 7);
                self.staged.push(chain.id);
            }
            Step::Put(_) => {}
            Step::Publish => {
                self.queue.publish();
                self.order.retain(|id| !self.staged.contains(id));
                self.visible.extend(self.staged.drain(..));
            }
            Step::Reap => {
                let desired = self.visible.pop_front().map(|id| (id, 7));
                assert_eq!(self.driver.reap(), desired);
            }
            Step::Die => self.die(),
        }
    }

    /// Gives the newest chain back, if it has not been put.
    fn untake(&mut self) {
        if self.newest == 0 {
            return;
        }
        self.newest -= 1;
        let chain = self.held.pop().expect("the newest chain");
        self.queue.untake(&[chain]);
        assert_eq!(self.order.pop(), Some(chain.id));
        self.waiting.push_front(chain.id);
    }

    fn die(&mut self) {
        self.queue = resume(&self.driver.guest, &self.part).expect("a sound region");
        self.held.clear();
        self.newest = 0;
        self.staged.clear();
        for id in self.order.drain(..).rev() {
            self.waiting.push_front(id);
        }
    }

    fn finish(&mut self) {
        self.run(Step::Die);
        while !self.waiting.is_empty() {
            self.run(Step::Take);
            self.run(Step::Put(0));
        }
        self.run(Step::Publish);
        while !self.visible.is_empty() {
            self.run(Step::Reap);
        }
        assert_eq!(self.driver.reap(), None);
        assert_eq!(take(&mut self.queue), None);
    }
}

proptest! {
    #![proptest_config(cases(5, 512))]

    #[test]
    fn no_chain_is_lost_or_used_twice(
        log2 in 0..5u32,
        packed: bool,
        steps in prop::collection::vec(step(), 0..if cfg!(miri) { 50 } else { 300 }),
    ) {
        let features = both(Features::RING_INDIRECT_DESC)[usize::from(packed)];
        let mut lives = Lives::new(1 << log2, features);
        steps.into_iter().for_each(|s| lives.run(s));
        lives.finish();
    }
}
