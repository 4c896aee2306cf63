//! A process that dies between any two stores to shared memory: its successor takes every chain
//! again that was not published, as it was, in order, and publishes none twice.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use memory::Segment;
use proptest::prelude::*;
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{Chain, Inflight, InflightRegion, Journal, JournalRegion, Queue, QueueFault};

thread_local! {
    /// Stores until death; `None`: the process lives.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns whether the next store still happens.
pub(in crate::queue) fn next_store_happens() -> bool {
    match LEFT.get() {
        None => true,
        Some(0) => false,
        Some(left) => {
            LEFT.set(Some(left - 1));
            true
        }
    }
}

pub(super) fn is_dead() -> bool {
    LEFT.get() == Some(0)
}

/// Begins a life of so many stores; `None`: without an end.
pub(super) fn allow(stores: Option<usize>) {
    LEFT.set(stores);
}

/// Returns the number of stores that `job` does.
pub(super) fn stores(job: impl FnOnce()) -> usize {
    const MANY: usize = 1 << 20;
    allow(Some(MANY));
    job();
    let left = LEFT.replace(None);
    MANY - left.expect("just set")
}

/// One turn: chains that are offered (buffers, indirect), how many are taken, and how many of those
/// go back unused.
#[derive(Clone, Debug)]
struct Turn {
    offers: Vec<(usize, bool)>,
    take: usize,
    untake: usize,
}

fn turn() -> impl Strategy<Value = Turn> {
    let offer = (1..4usize, prop::bool::weighted(0.2));
    let offers = prop::collection::vec(offer, 0..6);
    (offers, 0..8usize, 0..3usize).prop_map(|(offers, take, untake)| Turn {
        offers,
        take,
        untake,
    })
}

/// A chain as the driver offered it: id, bytes, place of its buffers.
type Offered = (u16, u32, Vec<(u64, u32)>);

struct World {
    driver: Driver,
    journal: Journal,
    writable: bool,
    /// Offered and not yet seen as used, in order.
    open: VecDeque<Offered>,
    /// Of `open`, those that the living process has taken.
    taken: usize,
    offers: u64,
}

impl World {
    fn new(size: u16, features: Features, writable: bool) -> Self {
        let region = Arc::new(JournalRegion::heap(1));
        Self {
            driver: Driver::new(Guest::new(size, features)),
            journal: Journal::new(region, 0, 7).expect("a part"),
            writable,
            open: VecDeque::new(),
            taken: 0,
            offers: 0,
        }
    }

    fn start(&mut self) -> Queue {
        self.taken = 0;
        let guest = &self.driver.guest;
        let journal = Some(self.journal.clone());
        let (mem, start) = (guest.mem.clone(), guest.start());
        Queue::resume(mem, guest.layout, guest.features, start, journal).expect("a sound ring")
    }

    fn offer(&mut self, buffers: usize, indirect: bool) {
        self.offers += 1;
        let len = 40 + (self.offers % 50) as u32;
        let buffer = |n: u64| Buffer {
            gpa: DATA + 128 * ((3 * self.offers + n) % 100),
            len,
            writable: self.writable,
        };
        let buffers: Vec<Buffer> = (0..buffers as u64).map(buffer).collect();
        if let Some(id) = self.driver.add(&buffers, indirect, self.offers as usize) {
            let bytes = buffers.len() as u32 * len;
            self.open.push_back((id, bytes, wanted_ranges(&buffers)));
        }
    }

    /// Takes the next chain, which must be the oldest that this process has not taken yet.
    fn take(&mut self, queue: &mut Queue) -> Option<Chain> {
        let mut segs: Vec<Segment> = Vec::new();
        let chain = if self.writable {
            queue.take_writable(&mut segs)
        } else {
            queue.take_readable(&mut segs)
        };
        let chain = chain.expect("a sound driver");
        let desired = self.open.get(self.taken);
        let found = chain.map(|c| (c.id, c.bytes, ranges(c.segs.of(&segs))));
        assert_eq!(found.as_ref(), desired);
        self.taken += usize::from(chain.is_some());
        chain
    }

    /// The driver looks: what is used is the oldest, once each, with its length.
    fn reap(&mut self) {
        let mut order: VecDeque<u16> = self.open.iter().map(|(id, ..)| *id).collect();
        for (id, len) in self.driver.reap_in_order(&mut order) {
            let (offered, bytes, _) = self.open.pop_front().expect("an open chain");
            let written = if self.writable { bytes } else { 0 };
            assert_eq!((id, len), (offered, written));
            self.taken = self.taken.saturating_sub(1);
        }
    }

    fn serve(&mut self, queue: &mut Queue, take: usize, untake: usize) {
        let mut chains = Vec::new();
        while chains.len() < take
            && let Some(chain) = self.take(queue)
        {
            chains.push(chain);
        }
        let (done, back) = chains.split_at(chains.len().saturating_sub(untake));
        queue.untake(back);
        self.taken -= back.len();
        if self.writable {
            done.iter().for_each(|chain| queue.put(*chain, chain.bytes));
        } else {
            queue.put_read(done);
        }
        queue.publish();
    }
}

/// Lives through `turns` and dies after so many stores. Whether it died.
fn live(world: &mut World, turns: &[Turn], stores: usize) -> bool {
    let mut died = false;
    let mut queue = world.start();
    LEFT.set(Some(stores));
    for turn in turns {
        for (buffers, indirect) in &turn.offers {
            world.offer(*buffers, *indirect);
        }
        world.serve(&mut queue, turn.take, turn.untake);
        if !died && is_dead() {
            died = true;
            LEFT.set(None);
            world.reap();
            queue = world.start();
        }
        world.reap();
    }
    LEFT.set(None);
    while !world.open.is_empty() {
        world.serve(&mut queue, 3, 0);
        world.reap();
    }
    died
}

fn features() -> impl Strategy<Value = Features> {
    (any::<bool>(), any::<bool>()).prop_map(|(packed, in_order)| {
        let mut features = Features::VERSION_1 | Features::RING_INDIRECT_DESC;
        features.set(Features::RING_PACKED, packed);
        features.set(Features::IN_ORDER, in_order);
        features
    })
}

proptest! {
    #![proptest_config(cases(2, 64))]

    #[test]
    fn nothing_is_lost_or_used_twice(
        features in features(),
        size in prop::sample::select(vec![4u16, 8, 16]),
        writable: bool,
        turns in prop::collection::vec(turn(), 1..if cfg!(miri) { 4 } else { 24 }),
    ) {
        for stores in 0.. {
            let mut world = World::new(size, features, writable);
            if !live(&mut world, &turns, stores) {
                break;
            }
        }
    }

    #[test]
    fn dying_again_and_again_changes_nothing(
        features in features(),
        writable: bool,
        lives in prop::collection::vec((prop::collection::vec(turn(), 1..4), 0..12usize), 1..8),
    ) {
        let mut world = World::new(8, features, writable);
        for (turns, stores) in lives {
            let mut queue = world.start();
            LEFT.set(Some(stores));
            for turn in turns {
                for (buffers, indirect) in &turn.offers {
                    world.offer(*buffers, *indirect);
                }
                world.serve(&mut queue, turn.take, turn.untake);
                if is_dead() {
                    break;
                }
                world.reap();
            }
            // Also in the middle of resuming.
            LEFT.set(Some(stores / 2));
            drop(world.start());
            LEFT.set(None);
            world.reap();
        }
        let mut queue = world.start();
        while !world.open.is_empty() {
            world.serve(&mut queue, 5, 0);
            world.reap();
        }
    }
}

#[test]
fn what_was_written_and_not_logged_is_logged() {
    for packed in [false, true] {
        let mut features = Features::VERSION_1;
        features.set(Features::RING_PACKED, packed);
        let guest = Guest::new(256, features);
        let (layout, start) = (guest.layout, guest.start());
        let logged = |start_in: &dyn Fn(Arc<memory::GuestMemory>)| {
            let log = Arc::new(memory::DirtyLog::heap(4096));
            start_in(Arc::new(guest.mem.with_log(Some(Arc::clone(&log)))));
            let dirty = |gpa: u64| log.is_dirty(gpa / memory::LOG_PAGE);
            dirty(layout.device) && (!packed || dirty(layout.desc))
        };
        let part = Journal::new(Arc::new(JournalRegion::heap(1)), 0, 1);
        assert!(logged(&|mem| {
            let resumed = Queue::resume(mem, layout, features, start, part.clone());
            resumed.expect("a sound ring");
        }));
        let area = Arc::new(InflightRegion::heap(Inflight::region_size(256, packed)));
        assert!(logged(&|mem| {
            let area = Inflight::new(Arc::clone(&area), 0, 256, packed).expect("an area");
            let again = Queue::with_inflight(mem, layout, features, start, area);
            again.expect("a sound ring");
        }));
    }
}

#[test]
fn a_journal_of_another_queue_is_refused() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    let mut world = World::new(16, features, true);
    let mut queue = world.start();
    for _ in 0..12 {
        world.offer(1, false);
    }
    world.serve(&mut queue, 12, 0);
    let small = Guest::new(8, features);
    let journal = Some(world.journal.clone());
    let found = Queue::resume(
        small.mem.clone(),
        small.layout,
        features,
        0x8000_8000,
        journal,
    );
    assert_eq!(found.err(), Some(QueueFault::InflightCorrupt));
}

#[test]
fn another_start_of_the_queue_has_another_position() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    let region = Arc::new(JournalRegion::heap(2));
    let guest = Guest::new(8, features);
    let part = |index, start| Journal::new(Arc::clone(&region), index, start).expect("a part");
    let resume = |at, journal| {
        let queue = Queue::resume(guest.mem.clone(), guest.layout, features, at, Some(journal));
        queue.expect("a sound ring").position()
    };
    assert_eq!((region.last_start(0), region.last_start(1)), (0, 0));
    assert_eq!(resume(0x8003_8003, part(1, 4)), 0x8003_8003, "none before");
    assert_eq!((region.last_start(0), region.last_start(1)), (0, 4));
    assert_eq!(resume(0x8000_8000, part(1, 4)), 0x8003_8003, "the same");
    assert_eq!(resume(0x8000_8000, part(1, 5)), 0x8000_8000, "the next");
    assert_eq!(region.last_start(1), 5);
    assert!(Journal::new(region, 2, 1).is_none());
}

#[test]
fn a_ring_shows_whether_it_was_ever_served() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    let mut world = World::new(8, features, true);
    let mut queue = world.start();
    let served = |world: &World| {
        let guest = &world.driver.guest;
        Queue::was_served(&guest.mem.clone().into(), guest.layout)
    };
    (0..8).for_each(|_| world.offer(1, false));
    assert!(!served(&world), "offered only");
    for _ in 0..3 {
        world.serve(&mut queue, 3, 0);
        assert!(served(&world));
        world.reap();
        (0..8).for_each(|_| world.offer(1, false));
        assert!(served(&world), "offered again");
    }
}

const ONE_SLOT_EACH: Features = Features::VERSION_1
    .union(Features::RING_PACKED)
    .union(Features::RING_INDIRECT_DESC);

fn told_by_ring(world: &World, features: Features) -> Option<u32> {
    let guest = &world.driver.guest;
    Queue::position_in_ring(&guest.mem.clone().into(), guest.layout, features)
}

proptest! {
    #![proptest_config(cases(4, 256))]

    /// A successor that was left nothing but the ring.
    #[test]
    fn a_ring_whose_buffers_take_a_slot_each_tells_its_position(
        size in 1..20u16,
        turns in prop::collection::vec((0..8usize, 0..8usize, any::<bool>()), 1..60),
    ) {
        let mut world = World::new(size, ONE_SLOT_EACH, true);
        let mut queue = world.start();
        for (offers, serve, reap) in turns {
            (0..offers).for_each(|n| world.offer(1 + n % 3, true));
            world.serve(&mut queue, serve, 0);
            if reap {
                world.reap();
            }
            if let Some(told) = told_by_ring(&world, ONE_SLOT_EACH) {
                prop_assert_eq!(told, queue.position());
            } else {
                let guest = &world.driver.guest;
                prop_assert!(!Queue::was_served(&guest.mem.clone().into(), guest.layout));
            }
        }
    }
}

#[test]
fn a_ring_with_chains_of_several_slots_is_not_judged() {
    let mut world = World::new(8, ONE_SLOT_EACH, true);
    let mut queue = world.start();
    world.offer(1, false);
    world.serve(&mut queue, 1, 0);
    assert!(told_by_ring(&world, ONE_SLOT_EACH).is_some());
    assert_eq!(
        told_by_ring(&world, ONE_SLOT_EACH | Features::IN_ORDER),
        None
    );
    let direct = ONE_SLOT_EACH - Features::RING_INDIRECT_DESC;
    assert_eq!(told_by_ring(&world, direct), None);
    world.offer(3, false);
    assert_eq!(told_by_ring(&world, ONE_SLOT_EACH), None);
}
