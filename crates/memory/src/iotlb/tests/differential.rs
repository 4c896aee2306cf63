//! The table beside a map of pages, after random messages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// All that the messages have granted and not revoked: page, guest-physical page, access. The table
/// may have less at any time, and never more.
#[derive(Default)]
struct Oracle(BTreeMap<u64, (u64, Access)>);

impl Oracle {
    fn update(&mut self, update: &Update, asked: Option<Miss>) {
        let access = Access::from_bits(update.permission.into()).expect("a valid permission");
        let pages = update.iova / PAGE..(update.iova + update.size) / PAGE;
        let asked = asked.filter(|miss| pages.contains(&(miss.iova() / PAGE)));
        let access = asked.map_or(Some(access), |miss| access.common(miss.access()));
        for page in pages.clone() {
            let frame = (update.user_addr - USER) / PAGE + (page - pages.start);
            let old = self.0.remove(&page).filter(|(old, _)| *old == frame);
            let old = old.map(|(_, access)| access);
            let access = match (old, access) {
                (Some(old), Some(access)) => Some(old.with(access)),
                (old, access) => old.or(access),
            };
            if let Some(access) = access {
                self.0.insert(page, (frame, access));
            }
        }
    }

    fn invalidate(&mut self, iova: u64, size: u64) {
        let last = (iova + size - 1) / PAGE;
        self.0.retain(|page, _| *page < iova / PAGE || *page > last);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Update(Update, Option<Miss>),
    Invalidate(u64, u64),
    /// A successor continues the table.
    Resume,
}

/// Page numbers: of a few blocks of 2 MiB, and of one set.
fn page() -> impl Strategy<Value = u64> {
    let set: Vec<u64> = same_set().take(7).collect();
    prop_oneof![
        4 => 0..2048u64,
        2 => (0..5u64).prop_map(|n| n * 512),
        1 => prop::sample::select(set),
    ]
}

fn pages() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..4u64, 2 => Just(512), 1 => 1..1100u64]
}

fn access() -> impl Strategy<Value = Access> {
    (1..=3u64).prop_map(|bits| Access::from_bits(bits).expect("an access"))
}

fn step() -> impl Strategy<Value = Step> {
    let asked = prop::option::of((0..8u64, access()));
    // Most distances are one of a few, so that blocks can be large, overlap and agree.
    let distance = prop_oneof![3 => Just(0), 1 => Just(512), 1 => Just(1), 1 => 0..1024u64];
    let update = (page(), pages(), distance, access(), asked).prop_map(
        |(page, pages, distance, access, asked)| {
            let frame = (page + distance) % (MEMORY / PAGE);
            let pages = pages.min(MEMORY / PAGE - frame);
            let permission = access.bits() as u8;
            let update = update(page * PAGE, pages * PAGE, frame * PAGE, permission);
            let miss = |(n, access)| Miss::new((page + n * pages / 7) * PAGE, access);
            Step::Update(update, asked.map(miss))
        },
    );
    let invalidate = (page(), 0..PAGE, pages()).prop_map(|(page, inside, pages)| {
        let iova = page * PAGE + inside;
        Step::Invalidate(iova, pages * PAGE)
    });
    prop_oneof![12 => update, 3 => invalidate, 1 => Just(Step::Resume)]
}

/// Everything that the table has is what the oracle has, with no more access.
fn check(table: &Iotlb, oracle: &Oracle, pages: impl Iterator<Item = u64>) {
    for page in pages {
        for access in [Access::READ, Access::WRITE, Access::READ_WRITE] {
            let Some(hit) = table.look_up(page * PAGE + 9, access) else {
                continue;
            };
            let granted = oracle.0.get(&page);
            let (frame, granted) = *granted.unwrap_or_else(|| panic!("page {page} is revoked"));
            assert_eq!(hit.gpa, frame * PAGE + 9, "page {page}");
            assert!(
                granted.includes(access),
                "page {page}: {access:?} of {granted:?}"
            );
            // The rest of the block leads to the memory behind.
            let last = page + (hit.len - 1) / PAGE;
            let behind = oracle.0.get(&last).map(|(frame, _)| *frame);
            assert_eq!(
                behind,
                Some(frame + (last - page)),
                "block of {page} to {last}"
            );
        }
    }
}

/// The page that a message answers is there behind it, with the access that both name.
fn check_answer(table: &Iotlb, update: &Update, asked: Option<Miss>) {
    let given = Access::from_bits(update.permission.into()).expect("a valid permission");
    let range = update.iova..update.iova + update.size;
    let asked = asked.filter(|miss| range.contains(&miss.iova()));
    let asked = asked.unwrap_or(Miss::new(update.iova, given));
    if let Some(access) = asked.access().common(given) {
        let gpa = update.user_addr - USER + asked.iova() - update.iova;
        let hit = table.look_up(asked.iova(), access);
        assert_eq!(hit.map(|hit| hit.gpa), Some(gpa), "{asked:?} {update:x?}");
    }
}

/// Steps on a table in a file, which successors continue; Miri has no files, so on the heap there.
fn run(steps: Vec<Step>) {
    #[cfg(not(miri))]
    let (mut writer, file) = IotlbWriter::create().expect("a table");
    #[cfg(miri)]
    let mut writer = IotlbWriter::heap();
    let memory = memory();
    let mut oracle = Oracle::default();
    let mut counts = Counts::default();
    for step in steps {
        match step {
            Step::Update(update, asked) => {
                let entered = writer.update(&memory, &update, asked);
                assert!(entered.expect("a valid UPDATE") <= MOST_BLOCKS);
                oracle.update(&update, asked);
                check_answer(writer.table(), &update, asked);
                counts.updates += 1;
            }
            Step::Invalidate(iova, size) => {
                let generation = writer.table().generation();
                writer.invalidate(iova, size).expect("a size that is not 0");
                assert_ne!(writer.table().generation(), generation);
                oracle.invalidate(iova, size);
                let revoked = iova / PAGE..(iova + size).div_ceil(PAGE);
                check(writer.table(), &oracle, revoked);
                counts.invalidations += 1;
            }
            Step::Resume => {
                #[cfg(not(miri))]
                {
                    writer = IotlbWriter::resume(&file).expect("the table that was left");
                }
            }
        }
        let some = oracle.0.keys().copied().step_by(61).take(20);
        check(writer.table(), &oracle, some);
    }
    let all = (0..4000).step_by(if cfg!(miri) { 37 } else { 1 });
    check(writer.table(), &oracle, all.chain(same_set().take(7)));
    let seen = writer.table().counts();
    counts.entries = seen.entries;
    counts.evictions = seen.evictions;
    assert_eq!(seen, counts);
}

/// Steps at most: few for Miri, which is slow.
const STEPS: usize = if cfg!(miri) { 6 } else { 40 };

proptest! {
    #[test]
    fn the_table_never_has_more_than_was_granted(steps in prop::collection::vec(step(), 1..STEPS)) {
        run(steps);
    }
}
