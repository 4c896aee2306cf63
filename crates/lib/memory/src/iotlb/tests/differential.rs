//! The table beside its [`Oracle`], after random messages.

use proptest::prelude::*;

use super::oracle::Oracle;
use super::*;

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
                let entered = writer.update(&memory, &update, asked.as_slice());
                assert!(entered.expect("a valid UPDATE") <= MOST_BLOCKS);
                let gpa = update.user_addr - USER;
                oracle.update(&update, gpa, asked);
                Oracle::check_answer(writer.table(), &update, gpa, asked);
                counts.updates += 1;
            }
            Step::Invalidate(iova, size) => {
                let generation = writer.table().generation();
                writer.invalidate(iova, size).expect("a size that is not 0");
                assert_ne!(writer.table().generation(), generation);
                oracle.invalidate(iova, size);
                let revoked = iova / PAGE..(iova + size).div_ceil(PAGE);
                oracle.check(writer.table(), revoked);
                counts.invalidations += 1;
            }
            Step::Resume => {
                #[cfg(not(miri))]
                {
                    writer = IotlbWriter::resume(&file).expect("the table that was left");
                }
            }
        }
        oracle.check(writer.table(), (0..2048).step_by(101));
    }
    let all = (0..4000).step_by(if cfg!(miri) { 37 } else { 1 });
    oracle.check(writer.table(), all.chain(same_set().take(7)));
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
