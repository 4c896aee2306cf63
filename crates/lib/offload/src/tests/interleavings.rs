//! Every interleaving and every stale read that the memory model allows, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p lasthop-offload --release --lib`

use loom::sync::Arc;
use loom::thread;
use wire::{FlowKey, FlowMask, MacAddr};

use super::Words;
use crate::layout::*;
use crate::page::{MaskId, Page, Slot, destination, hash};
use crate::reader::{Action, entry_word};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{ConnectionFilter, Conversation, connections};

fn key(source: u64) -> FlowKey {
    FlowKey::default().with_smac(MacAddr::from_u64(source))
}

/// Returns the words of one set, one mask and one destination.
fn words(slot: Slot, destination: usize) -> Words {
    let header = [
        SEED_AT,
        ACTIVE_AT,
        LEASE_AT,
        WANTED_AT + destination / 8 * 8,
    ];
    let masks = (0..8).map(|word| MASKS_AT + 8 * word);
    let generations = (0..MASKS).map(|mask| MASK_GENERATIONS_AT + 8 * mask);
    let set = slot.number() / WAYS * WAYS;
    let set = (set..set + WAYS).flat_map(|slot| {
        let at = SLOTS_AT + SLOT * slot;
        let key = (0..8).map(move |word| at + KEY_AT + 8 * word);
        [at, at + ENTRY_AT].into_iter().chain(key)
    });
    let all = header
        .into_iter()
        .chain(masks)
        .chain(generations)
        .chain(set);
    Words::new(all)
}

/// Writes an entry as the table does.
fn publish(page: &Page<Arc<Words>>, slot: Slot, key: &FlowKey, generation: u64) {
    fence(Ordering::Release);
    page.set_key(slot, key);
    let word = entry_word(MaskId::all().next().unwrap(), Action::Drop, hash(key, 0));
    page.entry(slot).store(word, Ordering::Relaxed);
    page.generation(slot).store(generation, Ordering::Release);
}

impl crate::Memory for Arc<Words> {
    fn word(&self, at: usize) -> &crate::sync::AtomicU64 {
        (**self).word(at)
    }
}

/// Runs a test with a bound on preemptions, which keeps the search finite.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

/// Two keys of one hash, which differ in two words, and their slot.
fn pair() -> (FlowKey, FlowKey, Slot) {
    let first = key(1);
    let mut words = *first.words();
    // A multiplication by an odd factor keeps the difference in the highest bit.
    words[3] ^= 1 << 63;
    words[4] ^= 1 << 63 | 1 << 31;
    let second = FlowKey::from_words(words);
    assert_eq!(hash(&first, 0), hash(&second, 0));
    let slot = Slot::of_hash(hash(&first, 0)).next().unwrap();
    (first, second, slot)
}

/// Returns a table with one entry, by a mask.
fn with_entry(entry: &FlowKey, slot: Slot, mask: &FlowMask) -> (Page<Arc<Words>>, MaskId) {
    let page = Page::new(Arc::new(words(slot, destination(entry))));
    let id = MaskId::all().next().unwrap();
    page.set_mask(id, mask);
    page.mask_generation(id).store(1, Ordering::Relaxed);
    page.set_wanted(destination(entry), id.bit());
    page.store(ACTIVE_AT, 1);
    page.store(LEASE_AT, u64::MAX);
    publish(&page, slot, entry, 1);
    (page, id)
}

#[test]
fn a_slot_that_changes_is_met_by_the_frames_of_one_entry_only() {
    let (first, second, slot) = pair();
    model(move || {
        let (page, _) = with_entry(&first, slot, &FlowMask::EXACT);
        let writer = page.clone();
        let writer = thread::spawn(move || {
            writer.generation(slot).store(0, Ordering::Relaxed);
            publish(&writer, slot, &second, 2);
        });
        let hit = page.look_up(&second, 0);
        assert!(hit.is_none_or(|hit| hit.generation == 2));
        writer.join().unwrap();
    });
}

#[test]
fn a_removed_entry_is_met_by_no_frame_that_comes_later() {
    let (first, _, slot) = pair();
    model(move || {
        let (page, _) = with_entry(&first, slot, &FlowMask::EXACT);
        let removed = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (writer, told) = (page.clone(), removed.clone());
        let writer = thread::spawn(move || {
            writer.generation(slot).store(0, Ordering::Relaxed);
            told.store(true, Ordering::Release);
        });
        let is_removed = removed.load(Ordering::Acquire);
        let hit = page.look_up(&first, 0);
        assert!(!is_removed || hit.is_none());
        writer.join().unwrap();
    });
}

#[test]
fn frames_by_a_former_mask_meet_no_entry_by_the_next_one() {
    let (first, _, slot) = pair();
    let narrow = FlowMask::NONE.with_smac().with_dmac().with_vlan();
    let frame = first.with_src_ip(5);
    model(move || {
        let (page, mask) = with_entry(&first, slot, &narrow);
        let writer = page.clone();
        let writer = thread::spawn(move || {
            writer.generation(slot).store(0, Ordering::Relaxed);
            writer.mask_generation(mask).store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            writer.set_mask(mask, &narrow.with_src_ip());
            writer.mask_generation(mask).store(2, Ordering::Release);
            publish(&writer, slot, &first, 3);
        });
        let hit = page.look_up(&frame, 0);
        assert!(hit.is_none_or(|hit| hit.generation == 1));
        writer.join().unwrap();
    });
}

/// Returns a conversation, and the words of a filter that it concerns with these seeds.
fn conversation(seeds: &[u64]) -> (Conversation, Arc<Words>, Vec<usize>) {
    let one = Conversation::new(17, [(1, 0, 2), (3, 0, 4)]);
    let place = |seed: &u64| {
        let counter = one.hash(*seed) as usize & (connections::COUNTERS - 1);
        connections::COUNTERS_AT + counter / 8 * 8
    };
    let places: Vec<usize> = seeds.iter().map(place).collect();
    let header = [
        connections::SEED_AT,
        connections::GENERATION_AT,
        connections::NEXT_AT,
    ];
    let words = Words::new(header.into_iter().chain(places.iter().copied()));
    (one, Arc::new(words), places)
}

#[test]
fn a_filter_that_is_made_anew_rules_out_no_known_conversation() {
    model(|| {
        let (one, words, places) = conversation(&[0, 9]);
        let filter = ConnectionFilter::new(Arc::clone(&words));
        filter.raise(&one);
        filter.publish();
        let of_reader = ConnectionFilter::new(Arc::clone(&words));
        let reader = thread::spawn(move || of_reader.may_know(&one));
        // Another switch begins.
        filter.withdraw(9);
        for at in places {
            crate::Memory::word(&words, at).store(0, Ordering::Relaxed);
        }
        filter.raise(&one);
        filter.publish();
        assert!(reader.join().unwrap());
    });
}

#[test]
fn a_conversation_is_known_before_its_first_frame_leaves() {
    model(|| {
        let (one, words, _) = conversation(&[0]);
        let filter = ConnectionFilter::new(words);
        filter.publish();
        let (of_reader, left) = (filter.clone(), Arc::new(AtomicU64::new(0)));
        let of_wire = Arc::clone(&left);
        let reader = thread::spawn(move || {
            let has_left = of_wire.load(Ordering::Acquire) == 1;
            of_reader.may_know(&one) || !has_left
        });
        filter.raise(&one);
        left.store(1, Ordering::Release);
        assert!(reader.join().unwrap());
    });
}
