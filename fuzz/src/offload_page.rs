//! The table of a prefilter: a memory of garbage leads no look-up outside, and a writer that takes
//! it over, with its magic in place, ends frames of its own entries only.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use offload::heap::Words;
use offload::layout::{LAYOUT, LAYOUT_AT, MAGIC, MAGIC_AT, SIZE, SLOTS};
use offload::{Memory, Page, Table};
use std::sync::atomic::Ordering::Relaxed;
use wire::{FlowKey, FlowMask};

/// See the module.
pub fn run(data: &[u8]) {
    let mut bytes = Unstructured::new(data);
    let _ = walk(&mut bytes);
}

fn walk(bytes: &mut Unstructured<'_>) -> Result<()> {
    let memory = Words::zeros();
    let page = Page::new(memory.clone());
    // Garbage of a writer before.
    for _ in 0..bytes.int_in_range(0..=64)? {
        let at: usize = bytes.int_in_range(0..=SIZE / 8 - 1)?;
        memory.word(8 * at).store(bytes.arbitrary()?, Relaxed);
        let hit = page.look_up(&FlowKey::from_words(bytes.arbitrary()?), 0);
        assert!(hit.is_none_or(|hit| hit.slot.number() < SLOTS));
    }
    memory.word(MAGIC_AT).store(MAGIC, Relaxed);
    memory.word(LAYOUT_AT).store(LAYOUT, Relaxed);
    let mut table = Table::<_, ()>::adopt(memory.clone(), bytes.arbitrary()?).expect("a table");
    table.set_lease(u64::MAX);
    let (mut now, mut is_sound) = (Duration::ZERO, true);
    while !bytes.is_empty() {
        now += Duration::from_millis(60);
        match bytes.int_in_range(0..=6u8)? {
            0 => {
                let (at, value): (u32, u64) = bytes.arbitrary()?;
                memory
                    .word(8 * (at as usize % (SIZE / 8)))
                    .store(value, Relaxed);
                is_sound = false;
            }
            1 => {
                let (key, mask) = (bytes.arbitrary()?, bytes.arbitrary()?);
                let (key, mask) = (FlowKey::from_words(key), FlowMask::from_words(mask));
                // Refused where there is no room.
                let _ = table.add(now, &key, &mask, ());
            }
            2 => {
                let first = table.entries().next().map(|(slot, _)| slot);
                first.and_then(|slot| table.remove(slot, now));
            }
            3 => {
                table.take_samples();
                table.sample(bytes.arbitrary()?);
            }
            4 => {
                let key = FlowKey::from_words(bytes.arbitrary()?);
                let ends = page.receive(&key, 3, 60, 0);
                let agrees = |entry: &offload::Entry<()>| key.masked(&entry.mask) == entry.key;
                let is_covered = table.entries().any(|(_, entry)| agrees(entry));
                assert!(!is_sound || ends == is_covered);
            }
            5 => drop(table.sweep(now, Duration::from_secs(1))),
            _ => {
                memory.word(MAGIC_AT).store(MAGIC, Relaxed);
                memory.word(LAYOUT_AT).store(LAYOUT, Relaxed);
                table = Table::adopt(memory.clone(), bytes.arbitrary()?).expect("a table");
                table.set_lease(u64::MAX);
                is_sound = true;
            }
        }
    }
    Ok(())
}
