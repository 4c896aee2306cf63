//! Queues of guests with an IOMMU: scattered rings, pages that are missing, denied and revoked.

use std::sync::Arc;

use memory::iotlb::{Access, Miss, Need};
use memory::{DirtyLog, GuestMemory, Segment};
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{Chain, ChainBatch, Limit, Queue, QueueFault};

const PAGE: u64 = 4096;

/// A guest, the driver of its queue, and the device's side.
struct World {
    driver: Driver,
    queue: Queue,
    segs: Vec<Segment>,
}

impl World {
    /// All is granted.
    fn new(size: u16, features: Features) -> Self {
        let mut guest = Guest::with_iommu(size, features, None);
        let mem = guest.mem.clone();
        guest.iommu.as_mut().unwrap().grant_all(&mem);
        let queue = guest.queue();
        Self {
            driver: Driver::new(guest),
            queue,
            segs: Vec::new(),
        }
    }

    fn iommu(&mut self) -> &mut Iommu {
        self.driver.guest.iommu.as_mut().expect("it has one")
    }

    /// Takes what the queue has asked for.
    fn asked(&mut self) -> Vec<(Miss, Need)> {
        let mut asked = Vec::new();
        let misses = self.iommu().writer.table().misses();
        misses.take_some(|miss, need| {
            asked.push((miss, need));
            true
        });
        asked
    }

    fn answer(&mut self) -> Vec<Miss> {
        let mem = self.driver.guest.mem.clone();
        self.iommu().answer(&mem)
    }

    /// Offers a chain of one buffer; returns its id.
    fn offer(&mut self, iova: u64, len: u32, writable: bool) -> u16 {
        let gpa = iova;
        let buffer = Buffer { gpa, len, writable };
        self.driver.add(&[buffer], false, 0).expect("room")
    }

    fn take_readable(&mut self) -> Option<Chain> {
        self.queue.take_readable(&mut self.segs).expect("no fault")
    }

    fn take_writable(&mut self, chains: usize) -> Vec<Chain> {
        let mut taken = Vec::new();
        let mut into = ChainBatch {
            segs: &mut self.segs,
            chains: &mut taken,
        };
        let limit = Limit {
            chains,
            bytes: u64::MAX,
        };
        let all = self.queue.take_all_writable(&mut into, limit, |_| ());
        all.expect("no fault");
        taken
    }

    fn finish(&mut self, chain: Chain, written: u32) {
        self.queue.put(chain, written);
        self.queue.publish();
    }
}

/// Worlds of both layouts.
fn worlds(size: u16) -> impl Iterator<Item = World> {
    let features = both(Features::RING_INDIRECT_DESC);
    features
        .into_iter()
        .map(move |features| World::new(size, features))
}

#[test]
fn a_chain_whose_page_is_missing_waits_and_those_behind_it_are_asked_for() {
    for mut world in worlds(16) {
        for page in [0, 1, 2] {
            world.iommu().revoke(DATA + page * PAGE);
        }
        let ids = [0, 1, 2].map(|page| world.offer(DATA + page * PAGE + 7, 60, false));
        assert!(world.queue.has_available());
        assert_eq!(world.take_readable(), None);
        assert!(world.queue.is_untranslated() && !world.queue.has_available());
        assert!(!world.queue.set_kicks(true), "the worker may sleep");
        let asked = world.answer();
        let pages = [0, 1, 2].map(|page| Miss::new(DATA + page * PAGE, Access::READ));
        assert_eq!(asked, pages);
        assert!(world.queue.has_available());
        assert_eq!(ids.map(|_| world.take_readable().unwrap().id), ids);
    }
}

#[test]
fn a_chain_that_is_not_granted_costs_one_frame() {
    for mut world in worlds(16) {
        let nowhere = world.offer(NOWHERE, 60, false);
        let good = world.offer(DATA, 60, false);
        assert_eq!(world.take_readable(), None);
        assert_eq!(world.answer().len(), 1);
        let chain = world.take_readable().expect("an empty chain");
        assert_eq!((chain.id, chain.bytes, chain.segs.len), (nowhere, 0, 0));
        let next = world.take_readable().expect("a chain");
        assert_eq!((next.id, next.bytes), (good, 60));
        world.queue.put(chain, 0);
        world.finish(next, 0);
        assert_eq!(world.driver.reap(), Some((nowhere, 0)));
        assert_eq!(world.driver.reap(), Some((good, 0)));
        assert_eq!(world.queue.fault(), None);
    }
}

#[test]
fn a_denied_page_is_asked_for_again_when_it_is_used_again() {
    for mut world in worlds(16) {
        for _ in 0..3 {
            world.offer(NOWHERE, 60, false);
            assert_eq!(world.take_readable(), None);
            assert_eq!(world.answer(), [Miss::new(NOWHERE, Access::READ)]);
            let chain = world.take_readable().expect("an empty chain");
            world.finish(chain, 0);
            world.driver.reap();
        }
        world.iommu().remap(NOWHERE, DATA);
        world.offer(NOWHERE, 60, false);
        assert_eq!(world.take_readable(), None);
        assert_eq!(world.answer(), [Miss::new(NOWHERE, Access::READ)]);
        assert_eq!(world.take_readable().expect("a chain").bytes, 60);
    }
}

#[test]
fn a_receive_buffer_that_is_not_granted_goes_back_unused() {
    for mut world in worlds(16) {
        let first = world.offer(DATA, 60, true);
        let nowhere = world.offer(NOWHERE, 60, true);
        let last = world.offer(DATA + PAGE, 60, true);
        let taken = world.take_writable(8);
        assert_eq!(taken.iter().map(|c| c.id).collect::<Vec<_>>(), [first]);
        assert_eq!(world.answer(), [Miss::new(NOWHERE, Access::WRITE)]);
        assert!(world.take_writable(8).is_empty(), "the first is in use");
        assert!(world.queue.is_untranslated());
        world.queue.put(taken[0], 60);
        let rest = world.take_writable(8);
        assert_eq!(rest.iter().map(|c| c.id).collect::<Vec<_>>(), [last]);
        world.finish(rest[0], 60);
        let used = [(first, 60), (nowhere, 0), (last, 60)];
        assert_eq!(used.map(|_| world.driver.reap().unwrap()), used);
    }
}

/// CVE-2026-86567: the ring is revoked while the queue runs.
#[test]
fn a_revoked_ring_is_not_touched_until_it_is_granted_again() {
    for mut world in worlds(16) {
        world.offer(DATA, 60, false);
        let chain = world.take_readable().expect("a chain");
        world.finish(chain, 0);
        world.driver.reap();
        world.offer(DATA, 60, false);
        let rings = world.driver.guest.layout;
        world.iommu().revoke(rings.device);
        let before: [u8; 256] = world.driver.guest.read(rings.desc);
        assert!(!world.queue.has_available());
        assert_eq!(world.take_readable(), None);
        assert!(!world.queue.set_kicks(true) && !world.queue.needs_notify());
        assert_eq!(world.queue.fault(), None);
        assert_eq!(world.driver.guest.read::<256>(rings.desc), before);
        assert!(!world.answer().is_empty());
        let chain = world.take_readable().expect("it goes on");
        world.finish(chain, 0);
        assert!(world.driver.reap().is_some());
    }
}

#[test]
fn a_ring_may_move_to_other_pages() {
    for mut world in worlds(16) {
        let rings = world.driver.guest.layout;
        world.offer(DATA, 60, false);
        let bytes: [u8; 1024] = world.driver.guest.read(rings.desc);
        world.iommu().revoke(rings.desc);
        world.iommu().remap(rings.desc, DATA + 2 * PAGE);
        world.driver.guest.write(rings.desc, bytes);
        assert_eq!(world.take_readable(), None);
        assert!(!world.answer().is_empty());
        let chain = world.take_readable().expect("the ring's new place");
        world.finish(chain, 0);
        assert!(world.driver.reap().is_some());
    }
}

#[test]
fn reading_gives_no_right_to_write() {
    for mut world in worlds(16) {
        world.iommu().revoke(DATA);
        world.offer(DATA, 60, true);
        let miss = Miss::new(DATA, Access::READ);
        let mem = world.driver.guest.mem.clone();
        world.iommu().grant(&mem, DATA, Some(miss));
        assert!(world.take_writable(1).is_empty());
        assert_eq!(world.answer(), [Miss::new(DATA, Access::WRITE)]);
        assert_eq!(world.take_writable(1).len(), 1);
    }
}

#[test]
fn what_was_found_before_a_revocation_is_not_used_after_it() {
    for mut world in worlds(16) {
        world.offer(DATA, 60, false);
        let chain = world.take_readable().expect("a chain");
        world.finish(chain, 0);
        world.iommu().revoke(DATA);
        world.offer(DATA, 60, false);
        assert_eq!(world.take_readable(), None);
    }
}

#[test]
fn a_buffer_that_was_looked_up_ahead_is_not_used_after_its_revocation() {
    for mut world in worlds(16) {
        let pages = [DATA, DATA + PAGE, DATA + 2 * PAGE];
        for iova in pages {
            world.offer(iova, 60, true);
        }
        world.queue.ask_for_buffers(16);
        assert!(world.answer().is_empty(), "all are granted");
        let taken = world.take_writable(1);
        world.finish(taken[0], 60);
        let before = world.iommu().gpa(pages[1]);
        world.iommu().revoke(pages[1]);
        world.iommu().remap(pages[1], DATA + 3 * PAGE);
        assert!(world.take_writable(2).is_empty(), "it waits for its page");
        assert_eq!(world.answer(), [Miss::new(pages[1], Access::WRITE)]);
        let taken = world.take_writable(2);
        assert_eq!(taken.len(), 2);
        let gpa = world.segs[taken[0].segs.start as usize].gpa;
        assert_eq!(gpa, world.iommu().gpa(pages[1]));
        assert_ne!(gpa, before, "the page is another one");
    }
}

#[test]
fn a_buffer_that_was_looked_up_ahead_is_not_used_in_the_next_lap() {
    for mut world in worlds(4) {
        for lap in 0..5 {
            let iova = DATA + lap * PAGE;
            world.offer(iova, 60, true);
            if lap == 0 {
                world.queue.ask_for_buffers(16);
            }
            let taken = world.take_writable(1);
            // One that is given back was looked up in this lap, too.
            world.queue.untake(&taken);
            let taken = world.take_writable(1);
            let segment = world.segs[taken[0].segs.start as usize];
            assert_eq!(segment.gpa, world.iommu().gpa(iova), "lap {lap}");
            world.finish(taken[0], 60);
            world.driver.reap();
        }
    }
}

#[test]
fn a_buffer_of_the_last_lap_is_not_taken_behind_one_that_waited() {
    for mut world in worlds(16) {
        let late = DATA + PAGE;
        world.iommu().revoke(late);
        // A lap of buffers that were looked up ahead.
        for _ in 0..16 {
            world.offer(DATA, 60, true);
        }
        world.queue.ask_for_buffers(16);
        for chain in world.take_writable(16) {
            world.finish(chain, 60);
            world.driver.reap();
        }
        let waiting = world.offer(late, 60, true);
        let behind = world.offer(DATA, 60, true);
        assert!(world.take_writable(8).is_empty());
        assert_eq!(world.answer(), [Miss::new(late, Access::WRITE)]);
        let taken = world.take_writable(8);
        let ids: Vec<u16> = taken.iter().map(|chain| chain.id).collect();
        assert_eq!(ids, [waiting, behind], "no more are offered");
    }
}

#[test]
fn memory_that_the_guest_lost_is_not_granted() {
    for mut world in worlds(16) {
        world.offer(DATA, 60, false);
        let lost = world.iommu().gpa(DATA);
        let regions = world.driver.guest.mem.regions().iter();
        let left = regions.filter(|region| region.gpa() != lost).cloned();
        let mem = GuestMemory::new(left.collect(), None).expect("disjoint regions");
        world
            .queue
            .set_memory(mem.into())
            .expect("the rings are there");
        assert_eq!(world.take_readable(), None);
        assert!(world.queue.has_available());
        let chain = world.take_readable().expect("an empty chain");
        assert_eq!(chain.bytes, 0);
    }
}

#[test]
fn a_table_of_descriptors_may_be_scattered_and_misaligned() {
    for mut world in worlds(16) {
        let guest = &world.driver.guest;
        let next = if guest.packed() { 0 } else { NEXT };
        let table = DATA + PAGE - 19;
        guest.set_desc(table, DATA, 20, next, 1);
        guest.set_desc(table + 16, DATA + 50, 30, 0, 0);
        guest.set_ring_desc(0, table, 32, INDIRECT, 1);
        guest.offer_first();
        world.iommu().revoke(DATA + PAGE);
        assert_eq!(world.take_readable(), None);
        assert_eq!(world.answer(), [Miss::new(DATA + PAGE, Access::READ)]);
        let chain = world.take_readable().expect("a chain");
        let gpa = world.iommu().gpa(DATA);
        assert_eq!(ranges(&world.segs), [(gpa, 20), (gpa + 50, 30)]);
        assert_eq!(chain.bytes, 50);
    }
}

#[test]
fn a_queue_does_not_start_without_its_rings() {
    for features in both(Features::empty()) {
        let mut guest = Guest::with_iommu(16, features, None);
        let start = guest.start();
        let started = guest.queue_at(start).err();
        assert_eq!(started, Some(QueueFault::UnmappedRing));
        let mem = guest.mem.clone();
        assert!(!guest.iommu.as_mut().unwrap().answer(&mem).is_empty());
        assert!(guest.queue_at(start).is_ok());
    }
}

#[test]
fn a_front_end_that_answers_nothing_is_asked_for_49_pages() {
    for mut world in worlds(128) {
        (0..100).for_each(|n| _ = world.offer(NOWHERE + n * PAGE, 60, false));
        assert_eq!(world.take_readable(), None);
        assert_eq!(world.take_readable(), None);
        // The chain that waits, and as many ahead as there is room for.
        let asked = world.asked();
        assert_eq!(asked.len(), 1 + 48);
        let now = asked.iter().filter(|(_, need)| *need == Need::Now);
        let waits = &(Miss::new(NOWHERE, Access::READ), Need::Now);
        assert_eq!(now.collect::<Vec<_>>(), [waits]);
    }
}

#[test]
fn a_chain_that_waits_is_asked_for_beside_receive_buffers_without_number() {
    for mut world in worlds(128) {
        (0..100).for_each(|n| _ = world.offer(NOWHERE + n * PAGE, 60, true));
        world.queue.ask_for_buffers(100);
        let asked = world.asked();
        assert_eq!(asked.len(), 48);
        assert!(asked.iter().all(|(_, need)| *need == Need::Ahead));
    }
    for mut world in worlds(16) {
        let table = world.iommu().writer.table().clone();
        let ahead = |n: &u64| table.ask(Miss::new(n * PAGE, Access::WRITE), Need::Ahead);
        assert_eq!((100..).take_while(ahead).count(), 48);
        // A chain of many pages needs one place.
        world.offer(NOWHERE, 30 * PAGE as u32, false);
        assert_eq!(world.take_readable(), None);
        let asked = world.asked();
        assert_eq!(asked.len(), 49);
        let waits = (Miss::new(NOWHERE, Access::READ), Need::Now);
        assert_eq!(asked[0], waits);
    }
}

#[test]
fn writes_are_logged_by_guest_physical_pages() {
    for features in both(Features::empty()) {
        let log = Arc::new(DirtyLog::heap(0x1_0000));
        let mut guest = Guest::with_iommu(1024, features, Some(log.clone()));
        let mem = guest.mem.clone();
        guest.iommu.as_mut().unwrap().grant_all(&mem);
        let queue = guest.queue();
        let segs = Vec::new();
        let driver = Driver::new(guest);
        let mut world = World {
            driver,
            queue,
            segs,
        };
        world.offer(DATA, 60, true);
        let chain = world.take_writable(1)[0];
        world.queue.mark_written(&world.segs.clone(), 60);
        world.finish(chain, 60);
        let layout = world.driver.guest.layout;
        let used = if world.driver.guest.packed() {
            layout.desc
        } else {
            layout.device
        };
        for iova in [DATA, used] {
            let page = world.iommu().gpa(iova) / PAGE;
            assert!(log.is_dirty(page), "{iova:#x}");
        }
    }
}

#[test]
fn a_denial_does_not_count_for_a_later_chain() {
    for mut world in worlds(16) {
        let stale = Miss::new(DATA, Access::READ);
        world.iommu().revoke(DATA);
        world.iommu().writer.deny(stale, Need::Now);
        world.offer(DATA, 60, false);
        assert_eq!(world.take_readable(), None);
        assert_eq!(world.answer(), [stale]);
        assert_eq!(world.take_readable().expect("a chain").bytes, 60);
    }
}

#[test]
fn pages_are_forgotten_in_every_round() {
    for mut world in worlds(16) {
        for _ in 0..if cfg!(miri) { 3 } else { 2100 } {
            world.offer(DATA, 60, false);
            let chain = world.take_readable().expect("a chain");
            world.finish(chain, 0);
            world.driver.reap();
            world.iommu().revoke(DATA);
            world.offer(DATA, 60, false);
            assert_eq!(world.take_readable(), None);
            world.answer();
            let chain = world.take_readable().expect("a chain");
            world.finish(chain, 0);
            world.driver.reap();
        }
    }
}

#[test]
fn a_chain_that_was_given_back_comes_before_the_one_that_waits() {
    for mut world in worlds(16) {
        let first = world.offer(DATA, 60, true);
        let nowhere = world.offer(NOWHERE, 60, true);
        let last = world.offer(DATA + PAGE, 60, true);
        let taken = world.take_writable(8);
        assert_eq!(taken.iter().map(|c| c.id).collect::<Vec<_>>(), [first]);
        world.queue.untake(&taken);
        assert!(world.queue.has_available(), "the first may be used");
        assert_eq!(world.answer(), [Miss::new(NOWHERE, Access::WRITE)]);
        // A frame that needs two: the denial is not forgotten.
        let taken = world.take_writable(1);
        assert_eq!(taken.iter().map(|c| c.id).collect::<Vec<_>>(), [first]);
        assert!(world.take_writable(1).is_empty());
        assert!(world.queue.is_denied() && world.answer().is_empty());
        world.queue.put(taken[0], 0);
        let rest = world.take_writable(8);
        assert_eq!(rest.iter().map(|c| c.id).collect::<Vec<_>>(), [last]);
        world.finish(rest[0], 60);
        let used = [(first, 0), (nowhere, 0), (last, 60)];
        assert_eq!(used.map(|_| world.driver.reap().unwrap()), used);
    }
}

#[test]
fn a_buffer_is_not_given_back_before_one_that_the_same_batch_took() {
    for mut world in worlds(16) {
        let first = world.offer(DATA, 60, true);
        let nowhere = world.offer(NOWHERE, 60, true);
        let taken = world.take_writable(8);
        world.queue.untake(&taken);
        world.answer();
        let taken = world.take_writable(8);
        assert_eq!(taken.iter().map(|c| c.id).collect::<Vec<_>>(), [first]);
        world.queue.untake(&taken);
        world.queue.publish();
        assert_eq!(world.driver.reap(), None, "nothing is used yet");
        let taken = world.take_writable(1);
        world.queue.put(taken[0], 60);
        assert!(world.take_writable(1).is_empty());
        world.queue.publish();
        let used = [(first, 60), (nowhere, 0)];
        assert_eq!(used.map(|_| world.driver.reap().unwrap()), used);
    }
}
