use std::time::Duration;

use proptest::prelude::*;
use wire::{EtherType, FlowKey, FlowMask, MacAddr};

use crate::heap::Words;
use crate::layout::{LAYOUT_AT, LEASE_AT, MAGIC_AT, SIZE, SLOTS, WAYS};
use crate::sync::Ordering;
use crate::{AddError, Counts, Memory, NoTableError, Page, REST, Slot, Table, create, hash};

const LATER: u64 = 1;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn memory() -> Words {
    let memory = Words::zeros();
    create(&memory);
    memory
}

fn table(memory: &Words) -> Table<&Words, u32> {
    let table = Table::adopt(memory, 7).unwrap();
    table.set_lease(LATER + 1);
    table
}

/// Returns the key of a frame from a source to a destination.
fn key(source: u32, destination: u64) -> FlowKey {
    FlowKey::default()
        .with_ethertype(EtherType::IPV4)
        .with_dmac(MacAddr::from_u64(destination))
        .with_smac(MacAddr::from_u64(0x0200_0000_0001))
        .with_ip_proto(17)
        .with_src_ip(source.into())
        .with_dst_ip(0x0a00_0001)
        .with_l4_ports(1000, 53)
}

/// Returns a mask of the first bits of the source, with the destination's address.
fn prefix(bits: u32) -> FlowMask {
    sources(bits).with_dmac().with_vlan()
}

fn sources(bits: u32) -> FlowMask {
    let source = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    FlowMask::NONE
        .with_ethertype()
        .with_src_ip_bits(source.into())
}

#[test]
fn a_frame_meets_the_entry_that_it_agrees_with_and_no_other() {
    let memory = memory();
    let mut table = table(&memory);
    let slot = table
        .add(ms(0), &key(0x0a01_0203, 5), &prefix(16), 1)
        .unwrap();
    let met = |key: &FlowKey, now| Page::new(&memory).look_up(key, now).map(|hit| hit.slot);
    assert_eq!(met(&key(0x0a01_ffff, 5), LATER), Some(slot));
    assert_eq!(met(&key(0x0a02_0203, 5), LATER), None, "another source");
    assert_eq!(
        met(&key(0x0a01_0203, 6), LATER),
        None,
        "another destination"
    );
    assert_eq!(met(&key(0x0a01_0203, 5).with_vlan(Some(0)), LATER), None);
    assert_eq!(
        met(&key(0x0a01_ffff, 5), LATER + 1),
        None,
        "the lease is over"
    );
    table.set_lease(0);
    assert_eq!(met(&key(0x0a01_ffff, 5), 0), None, "there is no lease");
    table.set_lease(LATER + 1);
    assert_eq!(table.remove(slot, ms(1)).unwrap().about, 1);
    table.settle();
    assert_eq!(met(&key(0x0a01_ffff, 5), LATER), None);
    assert!(table.is_empty() && table.masks().next().is_none());
    assert_eq!(table.remove(slot, ms(1)), None);
}

#[test]
fn an_entry_without_a_destination_is_met_by_frames_to_all() {
    let memory = memory();
    let mut table = table(&memory);
    let slot = table.add(ms(0), &key(1 << 24, 5), &sources(8), 1).unwrap();
    for destination in [5, 6, 0xffff_ffff_ffff] {
        let met = Page::new(&memory).look_up(&key(1 << 24, destination), LATER);
        assert_eq!(met.map(|hit| hit.slot), Some(slot));
    }
}

#[test]
fn frames_that_meet_an_entry_get_no_second_one() {
    let memory = memory();
    let mut table = table(&memory);
    let slot = table
        .add(ms(0), &key(0x0a01_0203, 5), &prefix(16), 1)
        .unwrap();
    let known = table.add(ms(0), &key(0x0a01_ff03, 5), &prefix(32), 2);
    assert_eq!(known, Err(AddError::Known(slot)));
    table.set_lease(0);
    let known = table.add(ms(0), &key(0x0a01_ff03, 5), &prefix(32), 2);
    assert_eq!(known, Err(AddError::Known(slot)), "also without a lease");
}

#[test]
fn there_are_eight_masks_and_one_without_entries_makes_room_for_another() {
    let memory = memory();
    let mut table = table(&memory);
    let mut slots = Vec::new();
    for bits in 1..=8 {
        let source = key(1 << (32 - bits), u64::from(bits));
        slots.push(table.add(ms(0), &source, &prefix(bits), bits).unwrap());
    }
    let ninth = |table: &mut Table<&Words, u32>| table.add(ms(0), &key(9, 9), &prefix(9), 9);
    assert_eq!(ninth(&mut table), Err(AddError::Mask));
    table.remove(slots[3], ms(0));
    assert!(ninth(&mut table).is_ok());
    let fifth = Page::new(&memory).look_up(&key(1 << 27, 5), LATER).unwrap();
    assert_eq!(fifth.slot, slots[4]);
}

/// Returns keys of entries in the same set.
fn in_one_set(count: usize) -> Vec<FlowKey> {
    let set = |key: &FlowKey| Slot::of_hash(hash(&key.masked(&prefix(32)), 7)).next();
    let first = set(&key(0, 5));
    let keys = (0..).map(|source| key(source, 5));
    keys.filter(|key| set(key) == first).take(count).collect()
}

#[test]
fn of_a_full_set_the_entry_without_frames_for_longest_goes_and_its_slot_rests() {
    let memory = memory();
    let mut table = table(&memory);
    let keys = in_one_set(WAYS + 2);
    for (n, key) in keys[..WAYS].iter().enumerate() {
        table.add(ms(n as u64), key, &prefix(32), n as u32).unwrap();
    }
    let first = Page::new(&memory).look_up(&keys[0], LATER).unwrap();
    Page::new(&memory).count(first.slot, 3, 60);
    table.sweep(ms(10), ms(1000));
    let add = |table: &mut Table<&Words, u32>, now, n: usize| {
        table.add(now, &keys[n], &prefix(32), n as u32)
    };
    assert_eq!(add(&mut table, ms(20), WAYS), Err(AddError::Room));
    assert_eq!(
        add(&mut table, ms(21), WAYS),
        Err(AddError::Room),
        "no other goes meanwhile"
    );
    let mut left: Vec<u32> = table.entries().map(|(_, entry)| entry.about).collect();
    left.sort_unstable();
    assert_eq!(left, [0, 2, 3], "the first has met a frame");
    let slot = add(&mut table, ms(20) + REST, WAYS).unwrap();
    assert_eq!(table.counts(slot), Counts::default());
}

#[test]
fn counters_outlive_entries_and_their_writer() {
    let memory = memory();
    let page = Page::new(&memory);
    let mut table = table(&memory);
    let slot = table.add(ms(0), &key(1, 5), &prefix(32), 1).unwrap();
    for (cpu, bytes) in [(0, 60), (7, 1500), (8, 60)] {
        page.count(slot, cpu, bytes);
    }
    let three = Counts {
        frames: 3,
        bytes: 1620,
    };
    assert_eq!((table.counts(slot), table.total()), (three, three));
    table.remove(slot, ms(0));
    // A program that had found the entry before.
    page.count(slot, 0, 60);
    let again = table.add(ms(200), &key(1, 5), &prefix(32), 1).unwrap();
    assert_eq!((again, table.counts(again)), (slot, Counts::default()));
    page.count(slot, 0, 60);
    assert_eq!(
        table.counts(slot),
        Counts {
            frames: 1,
            bytes: 60
        }
    );
    drop(table);
    let table = Table::<_, u32>::adopt(&memory, 8).unwrap();
    assert_eq!(
        table.total(),
        Counts {
            frames: 5,
            bytes: 1740
        }
    );
    assert!(table.is_empty() && page.look_up(&key(1, 5), 0).is_none());
}

#[test]
fn a_generation_is_never_used_twice() {
    let memory = memory();
    let mut generations = std::collections::BTreeSet::new();
    for life in 0..3 {
        let mut table = table(&memory);
        for n in 0..4 {
            let now = ms(1000 * life + 200 * n);
            table.add(now, &key(1, 5), &prefix(32), 1).unwrap();
            let hit = Page::new(&memory).look_up(&key(1, 5), LATER).unwrap();
            assert!(generations.insert(hit.generation));
            table.remove(hit.slot, now);
        }
    }
}

#[test]
fn idle_entries_and_those_above_the_limit_go() {
    let memory = memory();
    let mut table = table(&memory);
    for n in 0..20 {
        table
            .add(ms(n), &key(n as u32, 5), &prefix(32), n as u32)
            .unwrap();
    }
    table.set_limit(16);
    let removed = |removed: Vec<(Slot, crate::Entry<u32>)>| -> Vec<u32> {
        let mut removed: Vec<u32> = removed.iter().map(|(_, entry)| entry.about).collect();
        removed.sort_unstable();
        removed
    };
    assert_eq!(removed(table.sweep(ms(20), ms(1000))), [0, 1, 2, 3]);
    assert_eq!(removed(table.make_room(2, ms(20))), [4, 5]);
    let hit = Page::new(&memory).look_up(&key(9, 5), LATER).unwrap();
    Page::new(&memory).count(hit.slot, 0, 60);
    table.sweep(ms(500), ms(1000));
    let idle = removed(table.sweep(ms(1100), ms(1000)));
    assert_eq!(idle, (6..20).filter(|n| *n != 9).collect::<Vec<_>>());
    assert_eq!(table.len(), 1);
}

#[test]
fn other_memory_and_tables_of_other_programs_are_left_alone() {
    let memory = Words::zeros();
    let refused = |memory: &Words| Table::<_, ()>::adopt(memory, 1).err();
    assert_eq!(refused(&memory), Some(NoTableError::Other));
    create(&memory);
    memory.word(LAYOUT_AT).store(99, Ordering::Relaxed);
    memory.word(LEASE_AT).store(99, Ordering::Relaxed);
    assert_eq!(refused(&memory), Some(NoTableError::Layout(99)));
    assert_eq!(memory.word(LEASE_AT).load(Ordering::Relaxed), 99);
    memory.word(MAGIC_AT).store(0, Ordering::Relaxed);
    assert_eq!(refused(&memory), Some(NoTableError::Other));
}

#[test]
fn the_programs_have_the_same_layout() {
    use crate::{connections, layout as rust};
    let header = include_str!("../../programs/layout.h");
    let number = |text: &str| {
        let text = text.trim_end_matches("ull");
        let hex = text.strip_prefix("0x");
        hex.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
    };
    let lines = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    let of_c: std::collections::BTreeMap<&str, u64> = lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, text)| (name, number(text).unwrap()))
        .collect();
    let of_rust = [
        ("SEED_AT", rust::SEED_AT),
        ("ACTIVE_AT", rust::ACTIVE_AT),
        ("SAMPLING_SHIFT", rust::SAMPLING_SHIFT as usize),
        ("LEASE_AT", rust::LEASE_AT),
        ("MASKS_AT", rust::MASKS_AT),
        ("MASKS", rust::MASKS),
        ("MASK_GENERATIONS_AT", rust::MASK_GENERATIONS_AT),
        ("WANTED_AT", rust::WANTED_AT),
        ("DESTINATIONS_LOG2", rust::DESTINATIONS.ilog2() as usize),
        ("SLOTS_AT", rust::SLOTS_AT),
        ("WAYS", rust::WAYS),
        ("SETS", rust::SETS),
        ("SLOT", rust::SLOT),
        ("KEY", rust::KEY),
        ("SIZE", rust::SIZE),
        ("ENTRY_AT", rust::ENTRY_AT),
        ("KEY_AT", rust::KEY_AT),
        ("COUNTS_AT", rust::COUNTS_AT),
        ("CPUS", rust::CPUS),
        ("CURSORS_AT", rust::CURSORS_AT),
        ("CURSOR", rust::CURSOR),
        ("SAMPLES_AT", rust::SAMPLES_AT),
        ("SAMPLES", rust::SAMPLES),
        ("DROP", rust::DROP.into()),
        ("DROP_NEW", rust::DROP_NEW.into()),
        ("CONNECTION_SEED_AT", connections::SEED_AT),
        ("CONNECTION_GENERATION_AT", connections::GENERATION_AT),
        ("CONNECTION_COUNTERS_AT", connections::COUNTERS_AT),
        ("CONNECTION_COUNTERS", connections::COUNTERS),
        ("CONNECTION_SIZE", connections::SIZE),
        ("FACTOR", rust::FACTOR as usize),
        ("VLAN_PRESENT", wire::flow::VLAN_PRESENT.into()),
    ];
    assert_eq!(of_c.len(), of_rust.len());
    for (name, value) in of_rust {
        assert_eq!(of_c.get(name), Some(&(value as u64)), "{name}");
    }
}

proptest! {
    /// A page of garbage misleads a reader, and no more.
    #[test]
    fn no_contents_of_the_memory_lead_outside(
        words in proptest::collection::vec((0..SIZE / 8, any::<u64>()), 1..400),
        fields in proptest::array::uniform8(any::<u64>()),
        live in any::<bool>(),
    ) {
        let memory = Words::zeros();
        for (at, value) in words {
            memory.word(8 * at).store(value, Ordering::Relaxed);
        }
        if live {
            memory.word(crate::layout::ACTIVE_AT).store(1, Ordering::Relaxed);
        }
        let hit = Page::new(&memory).look_up(&FlowKey::from_words(fields), 0);
        prop_assert!(hit.is_none_or(|hit| hit.slot.number() < SLOTS));
    }

    /// Whatever was added and removed, a frame meets an entry if and only if it agrees with one.
    #[test]
    fn frames_meet_exactly_the_entries_that_are_there(
        steps in proptest::collection::vec((0u32..32, 1u32..6, 0u64..3, any::<bool>()), 1..60),
    ) {
        let memory = memory();
        let mut table = table(&memory);
        let mut now = 0;
        for (source, bits, destination, adds) in steps {
            now += 150;
            let key = key(source << 27, destination);
            if adds {
                // Refused if it is there.
                let _ = table.add(ms(now), &key, &prefix(bits), bits);
            } else if let Some(hit) = Page::new(&memory).look_up(&key, LATER) {
                table.remove(hit.slot, ms(now)).unwrap();
            }
            let live: Vec<_> = table.entries().collect();
            for source in 0..32 {
                let frame = self::key(source << 27 | 5, destination);
                let agrees = |entry: &crate::Entry<u32>| frame.masked(&entry.mask) == entry.key;
                let mut agreeing = live.iter().filter(|(_, entry)| agrees(entry));
                match Page::new(&memory).look_up(&frame, LATER) {
                    None => prop_assert!(agreeing.next().is_none()),
                    Some(hit) => prop_assert!(agreeing.any(|(slot, _)| *slot == hit.slot)),
                }
            }
        }
    }
}
