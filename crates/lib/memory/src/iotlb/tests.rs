mod attach;
mod differential;
mod questions;

use std::sync::Arc;

use super::block::BlockIter;
use super::oracle::same_set;
use super::*;
use crate::Region;
use testkit::stop::Stop;

const MIB: u64 = 1 << 20;
#[cfg(not(miri))]
const GIB: u64 = 1 << 30;
/// User addresses of the guest's memory begin here.
const USER: u64 = 0x7000_0000_0000;
/// Bytes of the guest's memory, from guest-physical address 0.
const MEMORY: u64 = 16 * MIB;

fn region(gpa: u64, size: u64, uva: u64) -> Arc<Region> {
    Arc::new(Region::heap(gpa, size, uva))
}

/// A region of any size, for which no memory is allocated.
#[cfg(not(miri))]
fn sparse(gpa: u64, size: u64, uva: u64) -> Arc<Region> {
    let file = sys::file::fixed("test", size).unwrap();
    Arc::new(Region::map(file, gpa, size, uva, 0).unwrap())
}

fn memory() -> GuestMemory {
    GuestMemory::new(vec![region(0, MEMORY, USER)], None).unwrap()
}

fn update(iova: u64, size: u64, gpa: u64, permission: u8) -> Update {
    Update {
        iova,
        size,
        user_addr: USER.wrapping_add(gpa),
        permission,
    }
}

/// A table with its guest.
struct Rig {
    writer: IotlbWriter,
    memory: GuestMemory,
}

impl Rig {
    fn new() -> Self {
        Self {
            writer: IotlbWriter::heap(),
            memory: memory(),
        }
    }

    /// A guest with one region of this size.
    #[cfg(not(miri))]
    fn with_memory(size: u64) -> Self {
        Self {
            writer: IotlbWriter::heap(),
            memory: GuestMemory::new(vec![sparse(0, size, USER)], None).unwrap(),
        }
    }

    /// Grants a range, as an answer to a question if there is one; returns the number of blocks.
    fn grant(&mut self, update: Update, asked: Option<Miss>) -> usize {
        let asked = asked.as_slice();
        let entered = self.writer.update(&self.memory, &update, asked);
        entered.expect("a valid UPDATE")
    }

    fn refused(&mut self, update: Update) -> IotlbError {
        let before = (self.counts(), self.writer.table().generation());
        let refused = self.writer.update(&self.memory, &update, &[]);
        let Counts { refusals, .. } = before.0;
        let refusals = refusals + 1;
        let after = (self.counts(), self.writer.table().generation());
        assert_eq!(
            after,
            (
                Counts {
                    refusals,
                    ..before.0
                },
                before.1
            )
        );
        refused.expect_err("an invalid UPDATE")
    }

    fn found(&self, iova: u64, access: Access) -> Option<(u64, u64)> {
        let hit = self.writer.table().look_up(iova, access)?;
        Some((hit.gpa, hit.len))
    }

    fn counts(&self) -> Counts {
        self.writer.table().counts()
    }

    fn entries(&self) -> u64 {
        self.counts().entries
    }
}

#[test]
fn a_granted_page_is_found_with_its_access() {
    let mut rig = Rig::new();
    assert_eq!(rig.found(0x8000, Access::READ), None);
    assert_eq!(rig.grant(update(0x8000, 0x1000, 0x3000, 1), None), 1);
    assert_eq!(rig.found(0x8000, Access::READ), Some((0x3000, 0x1000)));
    assert_eq!(rig.found(0x8fff, Access::READ), Some((0x3fff, 1)));
    assert_eq!(rig.found(0x8000, Access::WRITE), None);
    assert_eq!(rig.found(0x8000, Access::READ_WRITE), None);
    assert_eq!(rig.found(0x7fff, Access::READ), None);
    assert_eq!(rig.found(0x9000, Access::READ), None);
    let counts = Counts {
        entries: 1,
        updates: 1,
        ..Counts::default()
    };
    assert_eq!(rig.counts(), counts);
}

#[test]
fn a_permission_that_is_added_later_is_joined() {
    let mut rig = Rig::new();
    rig.grant(update(0x8000, 0x1000, 0x3000, 1), None);
    rig.grant(update(0x8000, 0x1000, 0x3000, 2), None);
    assert_eq!(
        rig.found(0x8000, Access::READ_WRITE),
        Some((0x3000, 0x1000))
    );
    assert_eq!((rig.entries(), rig.writer.table().generation()), (1, 0));
}

#[test]
fn an_answer_gives_no_more_than_was_asked_for() {
    let mut rig = Rig::new();
    let asked = Miss::new(0x8123, Access::READ);
    rig.grant(update(0x8000, 0x1000, 0x3000, 3), Some(asked));
    assert_eq!(rig.found(0x8000, Access::READ), Some((0x3000, 0x1000)));
    assert_eq!(rig.found(0x8000, Access::WRITE), None);
    // A question for another page: the message was not asked for.
    rig.grant(update(0x9000, 0x1000, 0x4000, 3), Some(asked));
    assert!(rig.found(0x9000, Access::READ_WRITE).is_some());
    // Less than was asked for: nothing.
    let asked = Miss::new(0xa000, Access::WRITE);
    assert_eq!(rig.grant(update(0xa000, 0x1000, 0x5000, 1), Some(asked)), 0);
    assert_eq!(rig.found(0xa000, Access::READ), None);
}

#[test]
fn a_page_that_leads_elsewhere_replaces_the_one_before() {
    let mut rig = Rig::new();
    rig.grant(update(0, 2 * MIB, 2 * MIB, 3), None);
    assert_eq!(rig.found(0, Access::WRITE), Some((2 * MIB, 2 * MIB)));
    rig.grant(update(0x5000, 0x1000, 0x9000, 1), None);
    assert_eq!(rig.found(0x5000, Access::READ), Some((0x9000, 0x1000)));
    assert_eq!(rig.found(0x5000, Access::WRITE), None);
    assert_eq!(
        rig.found(0, Access::READ),
        None,
        "the block goes as a whole"
    );
    assert_eq!(
        rig.writer.table().generation(),
        1,
        "readers drop what they have kept"
    );
    rig.grant(update(0, 2 * MIB, 4 * MIB, 1), None);
    assert_eq!(
        rig.found(0x5000, Access::READ).map(|found| found.0),
        Some(4 * MIB + 0x5000)
    );
    assert_eq!(rig.entries(), 1);
}

#[test]
fn a_page_in_blocks_of_two_classes_has_the_access_of_both() {
    let mut rig = Rig::new();
    rig.grant(update(0, 2 * MIB, 2 * MIB, 1), None);
    rig.grant(update(0x5000, 0x1000, 2 * MIB + 0x5000, 2), None);
    assert_eq!(rig.entries(), 2);
    assert!(rig.found(0x5000, Access::READ).is_some());
    assert_eq!(
        rig.found(0x5000, Access::WRITE),
        Some((2 * MIB + 0x5000, 0x1000))
    );
    // What the large block gives already takes no slot.
    rig.grant(update(0x6000, 0x1000, 2 * MIB + 0x6000, 1), None);
    assert_eq!(rig.entries(), 2);
    rig.writer.invalidate(0x5000, 1).unwrap();
    assert_eq!((rig.entries(), rig.found(0x5000, Access::READ)), (0, None));
}

#[test]
fn invalidate_is_rounded_outwards() {
    let mut rig = Rig::new();
    rig.grant(update(0x1000, 0x4000, 0x1000, 1), None);
    rig.writer.invalidate(0x2fff, 2).unwrap();
    let found = |page: u64| rig.found(page * 0x1000, Access::READ).is_some();
    assert_eq!([1, 2, 3, 4].map(found), [true, false, false, true]);
    assert_eq!(rig.counts().invalidations, 1);
    assert_eq!(rig.writer.table().generation(), 1);
    rig.writer.invalidate(0x2fff, 2).unwrap();
    assert_eq!(rig.writer.table().generation(), 2, "also without an entry");
}

#[test]
fn an_invalidate_of_everything_leaves_nothing() {
    let mut rig = Rig::new();
    rig.grant(update(0u64.wrapping_sub(0x1000), 0x1000, 0, 1), None);
    rig.grant(update(0x1000, 0x1000, 0, 1), None);
    assert!(
        rig.found(u64::MAX, Access::READ).is_some(),
        "the last page of all"
    );
    rig.writer.invalidate(0x2000, u64::MAX).unwrap();
    assert_eq!(rig.found(u64::MAX, Access::READ), None);
    assert_eq!(rig.entries(), 1);
    rig.writer.invalidate(0, u64::MAX).unwrap();
    assert_eq!(rig.entries(), 0);
    assert_eq!(rig.writer.invalidate(0x1000, 0), Err(IotlbError::Empty));
    assert_eq!((rig.counts().invalidations, rig.counts().refusals), (2, 1));
}

#[test]
fn a_cleared_table_is_empty() {
    let mut rig = Rig::new();
    rig.grant(update(0x1000, 0x3000, 0, 1), None);
    rig.writer.clear();
    assert_eq!((rig.entries(), rig.found(0x1000, Access::READ)), (0, None));
    assert_eq!(rig.writer.table().generation(), 1);
}

/// Also CVE-2020-10725: translated addresses are within the guest's memory.
#[test]
fn what_is_no_granted_memory_is_refused() {
    let mut rig = Rig::new();
    let second = region(MEMORY + 0x1000, 0x2000, USER + MEMORY);
    let regions = [rig.memory.regions()[0].clone(), second];
    rig.memory = GuestMemory::new(regions.to_vec(), None).unwrap();
    rig.grant(update(0x1000, 0x1000, 0x1000, 3), None);
    let misaligned = |what, value| IotlbError::Misaligned { what, value };
    let wraps = |iova, size| IotlbError::Wraps { iova, size };
    let gap = |gpa, size| IotlbError::Gap {
        user_addr: USER + gpa,
        size,
    };
    let last = 0u64.wrapping_sub(0x1000);
    let cases = [
        (update(0x1000, 0, 0x2000, 1), IotlbError::Empty),
        (update(0x1000, 0x1000, 0x2000, 0), IotlbError::Permission(0)),
        (update(0x1000, 0x1000, 0x2000, 4), IotlbError::Permission(4)),
        (
            update(0x1000, 0x1000, 0x2000, 0xf3),
            IotlbError::Permission(0xf3),
        ),
        (
            update(0x1001, 0x1000, 0x2000, 1),
            misaligned("address", 0x1001),
        ),
        (
            update(0x1000, 0x1001, 0x2000, 1),
            misaligned("size", 0x1001),
        ),
        (
            update(0x1000, 0x1000, 0x2008, 1),
            misaligned("user address", USER + 0x2008),
        ),
        (update(last, 0x2000, 0, 1), wraps(last, 0x2000)),
        (update(0x1000, last, 0, 1), gap(0, last)),
        (
            update(0x1000, 0x1000, MEMORY + 0x2000, 1),
            IotlbError::Outside(USER + MEMORY + 0x2000),
        ),
        (
            update(0x1000, 0x1000, 0u64.wrapping_sub(0x1000), 1),
            IotlbError::Outside(USER - 0x1000),
        ),
        // Neighbours in the VMM, and none in the guest.
        (
            update(0x1000, 0x2000, MEMORY - 0x1000, 1),
            gap(MEMORY - 0x1000, 0x2000),
        ),
        (update(0x1000, 0x3000, MEMORY, 1), gap(MEMORY, 0x3000)),
    ];
    for (update, reason) in cases {
        assert_eq!(rig.refused(update), reason, "{update:x?}");
        assert!(!reason.to_string().is_empty());
        assert_eq!(
            rig.found(0x1000, Access::READ_WRITE),
            Some((0x1000, 0x1000))
        );
    }
}

#[test]
fn regions_that_touch_in_both_spaces_are_granted_together() {
    let mut rig = Rig::new();
    let second = region(MEMORY, 0x2000, USER + MEMORY);
    let regions = [rig.memory.regions()[0].clone(), second];
    rig.memory = GuestMemory::new(regions.to_vec(), None).unwrap();
    assert_eq!(
        rig.grant(update(0x1000, 0x3000, MEMORY - 0x1000, 1), None),
        3
    );
    let found = rig.found(0x3000, Access::READ);
    assert_eq!(found, Some((MEMORY + 0x1000, 0x1000)));
}

#[test]
fn a_range_is_cut_into_blocks_that_are_aligned_in_both_spaces() {
    let cut = |pages: Range<u64>, offset: u64, around| {
        let blocks = BlockIter::new(pages.clone(), offset, Access::READ, around);
        let mut blocks: Vec<Block> = blocks.collect();
        let first = blocks[0].range();
        assert!(first.contains(&around), "{pages:?}: {blocks:?}");
        blocks.sort_by_key(|block| block.page);
        let mut end = pages.start;
        for block in &blocks {
            assert_eq!(block.page, end, "no gap, and none twice: {blocks:?}");
            assert!(block.page.is_multiple_of(block.class.pages()));
            assert!(block.frame.is_multiple_of(block.class.pages()));
            assert_eq!(block.offset(), offset);
            end = block.range().end;
        }
        assert_eq!(end, pages.end);
        Class::ALL.map(|class| blocks.iter().filter(|b| b.class == class).count())
    };
    assert_eq!(cut(7..8, 0, 7), [1, 0, 0]);
    assert_eq!(cut(0..512, 512, 3), [0, 1, 0]);
    assert_eq!(cut(0..512, 1, 3), [512, 0, 0]);
    assert_eq!(cut(1..1025, 0, 1), [512, 1, 0]);
    assert_eq!(cut(511..1 << 18, 0, 700), [1, 511, 0]);
    assert_eq!(cut(511..(2 << 18) + 1, 0, 600), [2, 511, 1]);
    let below = 0u64.wrapping_sub(1 << 18);
    assert_eq!(cut(1 << 18..2 << 18, below, 1 << 18), [0, 0, 1]);
    assert_eq!(cut(0..1 << 18, 512, 1), [0, 512, 0]);
}

#[cfg(not(miri))]
#[test]
fn blocks_of_1_gib_are_found() {
    let mut rig = Rig::with_memory(4 * GIB);
    assert_eq!(rig.grant(update(8 * GIB, 2 * GIB, GIB, 2), None), 2);
    let found = rig.found(9 * GIB + 5, Access::WRITE);
    assert_eq!(found, Some((2 * GIB + 5, GIB - 5)));
    rig.writer.invalidate(8 * GIB + 12345, 1).unwrap();
    assert_eq!(rig.found(8 * GIB, Access::WRITE), None);
    assert!(rig.found(9 * GIB, Access::WRITE).is_some());
}

#[cfg(not(miri))]
#[test]
fn a_huge_range_enters_512_blocks_around_what_was_asked_for() {
    let mut rig = Rig::with_memory(1 << 40);
    let asked = Miss::new(700 * GIB + 0x5000, Access::READ);
    let entered = rig.grant(update(0, 1 << 40, 0, 3), Some(asked));
    assert_eq!((entered, rig.entries()), (512, 512));
    let found = |gib: u64| rig.found(gib * GIB, Access::READ).is_some();
    assert!(found(700) && found(699) && found(701));
    assert_eq!((0..1024).filter(|gib| found(*gib)).count(), 512);
    // At a distance that is aligned to pages only.
    rig.writer.clear();
    let asked = Miss::new(4 * GIB, Access::WRITE);
    rig.grant(update(0x1000, GIB * 8, 0, 3), Some(asked));
    let found = |page: u64| rig.found(page * 0x1000, Access::WRITE).is_some();
    let page = 4 * GIB / 0x1000;
    assert!(found(page) && found(page + 256) && found(page - 255));
    assert!(!found(page + 257) && !found(page - 256));
}

#[test]
fn an_update_of_512_neighbours_that_come_one_by_one_is_one_block() {
    let mut rig = Rig::new();
    // In an order that is not theirs.
    for n in 0..512 {
        let page = 4 * MIB + n * 37 % 512 * 0x1000;
        let asked = Miss::new(page, Access::READ);
        rig.grant(update(page, 0x1000, page - 2 * MIB, 3), Some(asked));
        assert!(rig.found(page, Access::READ).is_some());
    }
    assert_eq!(rig.entries(), 1);
    assert_eq!(rig.found(4 * MIB, Access::READ), Some((2 * MIB, 2 * MIB)));
    assert_eq!(rig.found(4 * MIB, Access::WRITE), None);
    assert_eq!((rig.counts().updates, rig.counts().evictions), (512, 0));
    rig.writer.invalidate(4 * MIB + 0x7000, 0x1000).unwrap();
    assert_eq!(rig.entries(), 0, "the whole block");
}

/// DPDK takes neighbours in IOVA for neighbours in memory.
#[cfg(not(miri))]
#[test]
fn neighbours_that_lead_to_different_places_or_with_different_access_are_not_joined() {
    let mut rig = Rig::new();
    for n in 0..511 {
        rig.grant(update(n * 0x1000, 0x1000, n * 0x1000, 1), None);
    }
    rig.grant(update(511 * 0x1000, 0x1000, 4 * MIB, 1), None);
    assert_eq!(rig.entries(), 512);
    assert_eq!(
        rig.found(511 * 0x1000, Access::READ),
        Some((4 * MIB, 0x1000))
    );
    rig.grant(update(511 * 0x1000, 0x1000, 511 * 0x1000, 2), None);
    assert_eq!(rig.entries(), 512);
    rig.grant(update(511 * 0x1000, 0x1000, 511 * 0x1000, 1), None);
    assert_eq!(rig.entries(), 512, "511 are read only");
    for n in 0..511 {
        rig.grant(update(n * 0x1000, 0x1000, n * 0x1000, 2), None);
    }
    assert_eq!(rig.entries(), 1);
    assert_eq!(rig.found(0, Access::READ_WRITE), Some((0, 2 * MIB)));
}

#[test]
fn a_full_set_loses_its_oldest() {
    let mut rig = Rig::new();
    let pages: Vec<u64> = same_set().take(6).collect();
    let grant = |rig: &mut Rig, n: usize| rig.grant(update(pages[n] * PAGE, PAGE, 0, 1), None);
    for n in 0..4 {
        grant(&mut rig, n);
    }
    assert_eq!(rig.counts().evictions, 0);
    // The first is renewed, so the second is the oldest; then the third.
    for n in [0, 4, 5] {
        grant(&mut rig, n);
    }
    let found = |n: usize| rig.found(pages[n] * PAGE, Access::READ).is_some();
    let there = [true, false, false, true, true, true];
    assert_eq!([0, 1, 2, 3, 4, 5].map(found), there);
    assert_eq!((rig.counts().evictions, rig.entries()), (2, 4));
    assert_eq!(rig.writer.table().generation(), 0, "they are still granted");
    // A slot that is free is used before any is evicted.
    rig.writer.invalidate(pages[3] * PAGE, 1).unwrap();
    grant(&mut rig, 1);
    assert_eq!((rig.counts().evictions, rig.entries()), (2, 4));
}

/// Found by fuzzing: an entry that another displaced is gone from the table, and a reader may have
/// kept it.
#[test]
fn a_page_that_leads_elsewhere_ends_what_a_reader_kept_of_a_displaced_entry() {
    let pages: Vec<u64> = same_set().take(5).collect();
    let mut rig = Rig::new();
    for page in &pages {
        rig.grant(update(page * PAGE, PAGE, 0, 1), None);
    }
    assert_eq!(rig.found(pages[0] * PAGE, Access::READ), None, "displaced");
    let generation = rig.writer.table().generation();
    rig.grant(update(pages[0] * PAGE, PAGE, 0, 2), None);
    assert_eq!(
        rig.writer.table().generation(),
        generation,
        "the same memory"
    );
    rig.grant(update(pages[1] * PAGE, PAGE, 0, 2), None);
    let generation = rig.writer.table().generation();
    rig.grant(update(pages[2] * PAGE, PAGE, 0x7000, 1), None);
    assert_ne!(rig.writer.table().generation(), generation);
}

/// However many are displaced: the writer remembers a few.
#[test]
fn readers_keep_nothing_of_many_displaced_entries() {
    let pages: Vec<u64> = same_set().take(6).collect();
    let mut rig = Rig::new();
    let mut generations = Vec::new();
    for n in 0..200 {
        let page = pages[n % pages.len()];
        rig.grant(update(page * PAGE, PAGE, 0, 1), None);
        generations.push(rig.writer.table().generation());
    }
    generations.dedup();
    assert_eq!(generations, [0, 1, 2, 3]);
}

/// A range of which five blocks, of all classes, belong to one set.
#[test]
#[cfg(not(miri))]
fn a_range_never_displaces_the_page_that_was_asked_for() {
    let pages = 18_052_043..23_354_468;
    let offset = 0u64.wrapping_sub(68 << Class::Huge.shift());
    let set = file::set_of(Class::Small, pages.start);
    let blocks = BlockIter::new(pages.clone(), offset, Access::READ, pages.start);
    let in_set = blocks.filter(|block| file::set_of(block.class, block.page) == set);
    assert_eq!(in_set.count(), 5);
    let mut rig = Rig::with_memory(32 * GIB);
    let iova = pages.start * PAGE;
    let gpa = iova - 68 * GIB;
    let size = (pages.end - pages.start) * PAGE;
    let entered = rig.grant(update(iova, size, gpa, 1), None);
    assert_eq!((entered, rig.counts().evictions), (289, 1));
    assert_eq!(rig.found(iova, Access::READ), Some((gpa, PAGE)));
}

/// DPDK 37771844a0: a table that was full took no new entries.
#[test]
#[cfg(not(miri))]
fn a_full_table_takes_new_entries() {
    let mut rig = Rig::with_memory(GIB);
    let pages = 2 * SLOTS as u64;
    for n in 0..pages {
        let iova = (n + 1) * PAGE;
        let asked = Miss::new(iova, Access::READ);
        rig.grant(update(iova, PAGE, n * PAGE, 1), Some(asked));
        assert!(rig.found(iova, Access::READ).is_some());
    }
    let Counts {
        entries, evictions, ..
    } = rig.counts();
    assert_eq!(entries + evictions, pages);
    assert!(entries > 60_000, "{entries}");
}

/// The slots serve as many pages of one range as there are: no cliff before.
#[test]
#[cfg(not(miri))]
fn consecutive_pages_displace_few_of_each_other() {
    for start in [0, 0xfff0_0000, 0xffff_0000_0000] {
        let mut rig = Rig::with_memory(GIB);
        let pages = SLOTS as u64 / 2;
        for n in 0..pages {
            rig.grant(update(start + (n + 1) * PAGE, PAGE, n * PAGE, 1), None);
        }
        let evictions = rig.counts().evictions;
        assert!(evictions < pages / 50, "{evictions} at {start:#x}");
    }
}

#[test]
fn misses_are_taken_once() {
    let rig = Rig::new();
    let misses = rig.writer.table().misses();
    let miss = |n: u64, access| Miss::new(n * PAGE + 17, access);
    assert_eq!(
        misses.note(miss(0, Access::READ), Need::Now),
        NoteResult::Notify
    );
    assert_eq!(
        misses.note(miss(0, Access::READ), Need::Now),
        NoteResult::Pending
    );
    // Another access is another question.
    assert_eq!(
        misses.note(miss(0, Access::WRITE), Need::Now),
        NoteResult::Pending
    );
    for n in 1..63 {
        assert_eq!(
            misses.note(miss(n, Access::READ), Need::Now),
            NoteResult::Pending
        );
    }
    assert_eq!(
        misses.note(miss(63, Access::READ), Need::Now),
        NoteResult::Full
    );
    assert_eq!(
        misses.note(miss(62, Access::READ), Need::Now),
        NoteResult::Pending
    );
    let mut taken = Vec::new();
    misses.take(|miss| taken.push((miss.iova(), miss.access())));
    assert_eq!(taken.len(), MOST_MISSES);
    assert_eq!(taken[1], (0, Access::WRITE));
    misses.take(|miss| panic!("{miss:?} once more"));
    assert_eq!(
        misses.note(miss(63, Access::READ), Need::Now),
        NoteResult::Notify
    );
    let last = Miss::new(u64::MAX, Access::READ_WRITE);
    assert_eq!(misses.note(last, Need::Now), NoteResult::Pending);
    misses.take(|miss| taken.push((miss.iova(), miss.access())));
    assert_eq!(taken.last(), Some(&(u64::MAX - 0xfff, Access::READ_WRITE)));
}

/// Readers beside a writer that grants and revokes pages without end: each translation that they
/// find is one that the page has had. They find some, and miss some.
#[test]
fn readers_find_nothing_that_was_never_there() {
    let rounds = if cfg!(miri) { 5 } else { 2000 };
    let mut rig = Rig::new();
    let table = Arc::clone(rig.writer.table());
    let done = Stop::new();
    let [found, missed] = [const { std::sync::atomic::AtomicBool::new(false) }; 2];
    let pages: Vec<u64> = same_set().take(8).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.is_set() {
                    for (n, page) in (0..).zip(&pages) {
                        let hit = table.look_up(page * PAGE, Access::READ);
                        assert!(hit.is_none_or(|hit| hit.gpa / PAGE % 8 == n && hit.len == PAGE));
                        let seen = if hit.is_some() { &found } else { &missed };
                        seen.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        let _done = done.at_end();
        let both = || found.load(Ordering::Relaxed) && missed.load(Ordering::Relaxed);
        for round in 0u64.. {
            if round >= rounds && both() {
                break;
            }
            assert!(round < 10_000_000, "no reader looks beside the writer");
            for (n, page) in (0..).zip(&pages) {
                let gpa = (round % 8 * 8 + n) * PAGE;
                rig.grant(update(page * PAGE, PAGE, gpa, 1), None);
            }
            rig.writer.invalidate(pages[2] * PAGE, PAGE).unwrap();
        }
    });
}
