//! The writer's side: a cache of entries. Those that have met no frame for longest go first.

use std::collections::BTreeSet;
use std::time::Duration;

use wire::{FlowKey, FlowMask};

use crate::layout::{
    ACTIVE_AT, CPUS, CURSOR, CURSORS_AT, DESTINATIONS, KEY, LAYOUT, LAYOUT_AT, LEASE_AT, MAGIC,
    MAGIC_AT, MASKS, NEXT_AT, SAMPLES, SAMPLES_AT, SAMPLING_SHIFT, SEED_AT, SLOTS,
};
use crate::page::{Counts, MaskId, Memory, Page, Slot, destination, hash};
use crate::reader::{Action, entry_word};
use crate::sync::{Ordering, fence};

/// Time that a slot stays empty, 100 milliseconds: a program that still counts a frame of the
/// entry before it counts it there.
pub const REST: Duration = Duration::from_millis(100);

/// Reason why there is no table to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoTableError {
    /// The memory is no table.
    Other,
    /// The programs that read it are of another build, with this number.
    Layout(u64),
}

/// Reason why an entry is not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// There is one that decides about the frame.
    Known(Slot),
    /// There are too many masks.
    Mask,
    /// There is no room now: the set is full, and the entry that went rests.
    Room,
}

/// An entry, with data of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<T> {
    /// The masked key.
    pub key: FlowKey,
    /// The bits that count.
    pub mask: FlowMask,
    /// Its effect on frames.
    pub action: Action,
    /// When it was added.
    pub added: Duration,
    /// When it was last known to have met a frame.
    pub used: Duration,
    /// Data of the caller.
    pub about: T,
    mask_id: MaskId,
    /// Counters of the slot at the last sweep.
    seen: Counts,
}

/// State of a slot.
#[derive(Debug)]
enum State<T> {
    /// Empty, since then, if it ever had an entry.
    Empty(Option<Duration>),
    Live(Entry<T>),
}

/// See the module.
#[derive(Debug)]
pub struct Table<M, T> {
    page: Page<M>,
    slots: Vec<State<T>>,
    /// Masks in use, with the number of entries.
    masks: [Option<(FlowMask, u16)>; MASKS],
    /// For each destination and mask the number of entries.
    wanted: Vec<[u16; MASKS]>,
    live: BTreeSet<Slot>,
    limit: usize,
    /// Sampling under way, with the numbers of frames at its start.
    sampling: Option<(u32, [u64; CPUS])>,
}

/// Makes a table of zeros, for programs of this build.
pub fn create<M: Memory>(memory: M) {
    let page = Page::new(memory);
    for (at, value) in [(MAGIC_AT, MAGIC), (LAYOUT_AT, LAYOUT), (NEXT_AT, 1)] {
        page.store(at, value);
    }
}

/// Returns whether memory is a table for programs of this build.
#[must_use]
pub fn is_table<M: Memory>(memory: M) -> bool {
    let page = Page::new(memory);
    page.load(MAGIC_AT) == MAGIC && page.load(LAYOUT_AT) == LAYOUT
}

impl<M: Memory, T> Table<M, T> {
    /// Takes over a table, and empties it: its entries were those of another writer. Counters stay.
    /// `seed` is random and secret.
    ///
    /// # Errors
    /// The memory is no table, or one for other programs; nothing is changed then.
    pub fn adopt(memory: M, seed: u64) -> Result<Self, NoTableError> {
        let page = Page::new(memory);
        if page.load(MAGIC_AT) != MAGIC {
            return Err(NoTableError::Other);
        }
        match page.load(LAYOUT_AT) {
            LAYOUT => {}
            other => return Err(NoTableError::Layout(other)),
        }
        page.store(LEASE_AT, 0);
        page.store(ACTIVE_AT, 0);
        for slot in Slot::all() {
            page.generation(slot).store(0, Ordering::Relaxed);
        }
        for mask in MaskId::all() {
            page.mask_generation(mask).store(0, Ordering::Relaxed);
        }
        for destination in 0..DESTINATIONS {
            page.set_wanted(destination, 0);
        }
        fence(Ordering::SeqCst);
        page.store(SEED_AT, seed);
        Ok(Self {
            page,
            slots: (0..SLOTS).map(|_| State::Empty(None)).collect(),
            masks: [None; MASKS],
            wanted: vec![[0; MASKS]; DESTINATIONS],
            live: BTreeSet::new(),
            limit: SLOTS,
            sampling: None,
        })
    }

    /// Returns the memory's fields.
    pub const fn page(&self) -> &Page<M> {
        &self.page
    }

    /// Sets the maximum number of entries. There may be more until the next sweep.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(SLOTS);
    }

    /// Sets the time of the monotonic clock, in nanoseconds, until which hits count.
    pub fn set_lease(&self, until_ns: u64) {
        self.page.store(LEASE_AT, until_ns);
        fence(Ordering::SeqCst);
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Returns the masks in use.
    pub fn masks(&self) -> impl Iterator<Item = &FlowMask> {
        self.masks.iter().flatten().map(|(mask, _)| mask)
    }

    /// Returns the entries.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, &Entry<T>)> {
        let entry = |slot: &Slot| match &self.slots[slot.number()] {
            State::Live(entry) => Some((*slot, entry)),
            State::Empty(_) => None,
        };
        self.live.iter().filter_map(entry)
    }

    /// Returns the caller's data of an entry.
    pub fn about_mut(&mut self, slot: Slot) -> Option<&mut T> {
        match &mut self.slots[slot.number()] {
            State::Live(entry) => Some(&mut entry.about),
            State::Empty(_) => None,
        }
    }

    /// Returns the counters of an entry.
    pub fn counts(&self, slot: Slot) -> Counts {
        self.page.counts(slot).since(self.page.base(slot))
    }

    /// Returns the counters of all entries there have ever been, of this writer and those before.
    pub fn total(&self) -> Counts {
        if self.page.load(NEXT_AT) <= 1 {
            // There has never been any.
            return Counts::default();
        }
        Slot::all().fold(Counts::default(), |all, slot| {
            all.plus(self.page.counts(slot))
        })
    }

    /// Adds an entry that ends all frames that agree with a key in the bits of a mask: for tests.
    ///
    /// # Errors
    /// Why it is not added. If the set was full, one of its entries has gone.
    #[cfg(any(test, loom, feature = "test-utils"))]
    pub fn add(
        &mut self,
        now: Duration,
        key: &FlowKey,
        mask: &FlowMask,
        about: T,
    ) -> Result<Slot, AddError> {
        self.add_with(now, (key, mask), Action::Drop, about)
    }

    /// Adds an entry with an action for all frames that agree with a key in the bits of a mask.
    ///
    /// # Errors
    /// Why it is not added. If the set was full, one of its entries has gone.
    pub fn add_with(
        &mut self,
        now: Duration,
        (key, mask): (&FlowKey, &FlowMask),
        action: Action,
        about: T,
    ) -> Result<Slot, AddError> {
        let found = self.page.look_up(key, 0).map(|hit| hit.slot);
        if let Some(slot) = found.or_else(|| self.find(key)) {
            return Err(AddError::Known(slot));
        }
        let mask_id = self.mask_id(mask).ok_or(AddError::Mask)?;
        let key = key.masked(mask);
        let hash = hash(&key, self.page.seed());
        let slot = self.room(hash, now).ok_or(AddError::Room)?;
        let generation = self.next_generation();
        if self.masks[mask_id.number()].is_none() {
            self.page.set_mask(mask_id, mask);
            let of_mask = self.page.mask_generation(mask_id);
            of_mask.store(generation, Ordering::Release);
        }
        let seen = self.page.counts(slot);
        // A reader that meets one of these words finds the slot's generation changed: to zero,
        // before.
        fence(Ordering::Release);
        self.page.set_base(slot, seen);
        self.page.set_key(slot, &key);
        let word = entry_word(mask_id, action, hash);
        self.page.entry(slot).store(word, Ordering::Relaxed);
        let of_slot = self.page.generation(slot);
        of_slot.store(generation, Ordering::Release);
        self.slots[slot.number()] = State::Live(Entry {
            key,
            mask: *mask,
            action,
            added: now,
            used: now,
            about,
            mask_id,
            seen,
        });
        let users = self.masks[mask_id.number()].map_or(0, |(_, users)| users);
        self.masks[mask_id.number()] = Some((*mask, users + 1));
        self.want(&key, mask, mask_id, 1);
        self.live.insert(slot);
        self.store_activity();
        Ok(slot)
    }

    /// Removes an entry. A frame that arrives after [`Table::settle`] does not meet it.
    pub fn remove(&mut self, slot: Slot, now: Duration) -> Option<Entry<T>> {
        let state = &mut self.slots[slot.number()];
        if let State::Empty(_) = state {
            return None;
        }
        let State::Live(entry) = std::mem::replace(state, State::Empty(Some(now))) else {
            return None;
        };
        self.page.generation(slot).store(0, Ordering::Relaxed);
        self.live.remove(&slot);
        self.store_activity();
        self.want(&entry.key, &entry.mask, entry.mask_id, -1);
        let of_mask = &mut self.masks[entry.mask_id.number()];
        *of_mask = of_mask.and_then(|(mask, users)| (users > 1).then(|| (mask, users - 1)));
        if of_mask.is_none() {
            let generation = self.page.mask_generation(entry.mask_id);
            generation.store(0, Ordering::Relaxed);
        }
        Some(entry)
    }

    /// Removes the entries that a function does not keep.
    pub fn retain(
        &mut self,
        now: Duration,
        mut keeps: impl FnMut(&Entry<T>) -> bool,
    ) -> Vec<(Slot, Entry<T>)> {
        let doomed = self.entries().filter(|(_, entry)| !keeps(entry));
        let doomed: Vec<Slot> = doomed.map(|(slot, _)| slot).collect();
        let removed = doomed.into_iter();
        removed
            .filter_map(|slot| Some((slot, self.remove(slot, now)?)))
            .collect()
    }

    /// Makes removals known: no program that starts now meets a removed entry.
    pub fn settle(&self) {
        fence(Ordering::SeqCst);
    }

    /// Looks which entries have met frames, and removes those that have met none for a time, and
    /// those above the limit. Returns the removed ones.
    pub fn sweep(&mut self, now: Duration, idle: Duration) -> Vec<(Slot, Entry<T>)> {
        for slot in self.live.iter().copied() {
            let counts = self.page.counts(slot);
            if let State::Live(entry) = &mut self.slots[slot.number()]
                && counts != entry.seen
            {
                entry.seen = counts;
                entry.used = now;
            }
        }
        let mut removed = self.retain(now, |entry| now.saturating_sub(entry.used) < idle);
        removed.extend(self.make_room(0, now));
        removed
    }

    /// Removes as many entries as must go before that many more fit.
    pub fn make_room(&mut self, more: usize, now: Duration) -> Vec<(Slot, Entry<T>)> {
        let excess = (self.live.len() + more).saturating_sub(self.limit);
        if excess == 0 {
            return Vec::new();
        }
        let mut by_use: Vec<_> = self.entries().map(|(slot, e)| (e.used, slot)).collect();
        by_use.sort_unstable();
        let doomed = by_use.into_iter().take(excess);
        doomed
            .filter_map(|(_, slot)| Some((slot, self.remove(slot, now)?)))
            .collect()
    }

    /// Begins to sample the keys of frames without an entry: each 2^`shift`-th of a CPU.
    pub fn sample(&mut self, shift: u32) {
        let cursors = std::array::from_fn(|cpu| self.page.load(CURSORS_AT + CURSOR * cpu));
        self.sampling = Some((shift.min(31), cursors));
        self.store_activity();
    }

    /// Ends the sampling. Returns the last keys of each CPU, and the number of frames without an
    /// entry meanwhile. A key may be a mixture of two, which no frame has had.
    pub fn take_samples(&mut self) -> (Vec<FlowKey>, u64) {
        let Some((shift, cursors)) = self.sampling.take() else {
            return (Vec::new(), 0);
        };
        self.store_activity();
        let (mut keys, mut frames) = (Vec::new(), 0);
        for (cpu, before) in cursors.into_iter().enumerate() {
            let now = self.page.load(CURSORS_AT + CURSOR * cpu);
            frames += now.wrapping_sub(before);
            let new = (now >> shift).saturating_sub(before >> shift);
            for back in 0..new.min(SAMPLES as u64) {
                let place = ((now >> shift) - back) as usize % SAMPLES;
                let at = SAMPLES_AT + KEY * (SAMPLES * cpu + place);
                keys.push(FlowKey::from_words(self.page.words(at)));
            }
        }
        (keys, frames)
    }

    fn store_activity(&self) {
        let sampling = self.sampling.map_or(0, |(shift, _)| u64::from(shift) + 1);
        let activity = self.live.len() as u64 | sampling << SAMPLING_SHIFT;
        self.page.store(ACTIVE_AT, activity);
    }

    /// Returns the entry for a key, whatever the lease.
    fn find(&self, key: &FlowKey) -> Option<Slot> {
        MaskId::all().find_map(|id| {
            let (mask, _) = self.masks[id.number()]?;
            let masked = key.masked(&mask);
            let hash = hash(&masked, self.page.seed());
            let mut slots = Slot::of_hash(hash);
            slots.find(|slot| match &self.slots[slot.number()] {
                State::Live(entry) => entry.mask_id == id && entry.key == masked,
                State::Empty(_) => false,
            })
        })
    }

    /// Returns the number of a mask, or a free one for it.
    fn mask_id(&self, mask: &FlowMask) -> Option<MaskId> {
        let of = |id: &MaskId| self.masks[id.number()];
        let known = MaskId::all().find(|id| of(id).is_some_and(|(known, _)| known == *mask));
        known.or_else(|| MaskId::all().find(|id| of(id).is_none()))
    }

    /// Returns an empty slot of the set that has rested. Else removes the entry of the set that has
    /// met no frame for longest, unless another one rests already.
    fn room(&mut self, hash: u64, now: Duration) -> Option<Slot> {
        let (mut oldest, mut rests) = (None, false);
        for slot in Slot::of_hash(hash) {
            match &self.slots[slot.number()] {
                State::Empty(None) => return Some(slot),
                State::Empty(Some(since)) if now.saturating_sub(*since) >= REST => {
                    return Some(slot);
                }
                State::Empty(_) => rests = true,
                State::Live(entry) => {
                    let used = (entry.used, slot);
                    oldest = Some(oldest.map_or(used, |other| used.min(other)));
                }
            }
        }
        if let (Some((_, slot)), false) = (oldest, rests) {
            self.remove(slot, now);
        }
        None
    }

    fn next_generation(&self) -> u64 {
        let next = self.page.load(NEXT_AT).max(1);
        // Stored first: a writer that dies uses none twice.
        self.page.store(NEXT_AT, next + 1);
        fence(Ordering::Release);
        next
    }

    /// Counts an entry for its destination, or for all.
    fn want(&mut self, key: &FlowKey, mask: &FlowMask, id: MaskId, change: i16) {
        let whole = FlowMask::NONE.with_vlan().with_dmac();
        let places = if mask.covers(&whole) {
            let at = destination(key);
            at..at + 1
        } else {
            0..DESTINATIONS
        };
        for at in places {
            let counts = &mut self.wanted[at];
            counts[id.number()] = counts[id.number()].saturating_add_signed(change);
            let bits = MaskId::all().filter(|id| counts[id.number()] > 0);
            let bits = bits.fold(0, |bits, id| bits | id.bit());
            if bits != self.page.wanted(at) {
                self.page.set_wanted(at, bits);
            }
        }
    }
}
