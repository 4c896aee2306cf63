//! The writer of a table: what UPDATE and INVALIDATE do to it.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::fence;

use super::block::{Block, BlockIter, Class};
use super::file::{self, AttachError, Head, SETS, Table, WAYS, set_of};
use super::slot::Slot;
use super::sync::{AtomicU64, Ordering};
use super::{Access, AnsweredMessage, Iotlb, IotlbError, MOST_BLOCKS, Miss, Need, PAGE, Update};
use crate::GuestMemory;

/// Pages of a range that are looked for one by one. For more, all entries are looked at.
const MOST_PROBES: u64 = 1024;
/// Entries that an INVALIDATE removes at most, unless it counts as a flush.
const FLUSH: usize = 32;
/// Displaced entries that are remembered at most.
const MOST_DISPLACED: usize = 64;
/// Sets in a page of the table's file.
const SETS_IN_PAGE: usize = 64;

/// The one that changes a table. It has the order of the entries for itself: readers do without.
#[derive(Debug)]
pub struct IotlbWriter {
    table: Arc<Iotlb>,
    /// Age of the slots of each set.
    ages: Box<[Ages]>,
    /// Pages of the file that have had an entry; no others are looked at, so that a small table
    /// takes little memory.
    touched: Box<[bool]>,
    occupancy: Occupancy,
    /// Entries that others have displaced since the generation has changed last: readers may have
    /// kept them.
    displaced: Vec<Block>,
    /// Numbers of denials, for readers that wait and of what was asked for ahead.
    denied: [usize; 2],
}

impl IotlbWriter {
    /// Creates an empty table and its file for another process; see [`Iotlb::attach`] and
    /// [`IotlbWriter::resume`].
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create() -> Result<(Self, OwnedFd), AttachError> {
        let asked = sys::event::create()?;
        let (table, file) = Table::create()?;
        Ok((Self::over(table, Some(asked)), file))
    }

    /// Creates an empty table on the heap, for tests and Miri. Panics without descriptors.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap() -> Self {
        let asked = (!cfg!(miri)).then(|| sys::event::create().expect("a descriptor"));
        Self::over(Table::heap(), asked)
    }

    /// Continues a table that has lost its writer. The ages of its entries are lost, which costs no
    /// more than a miss.
    ///
    /// # Errors
    /// A file that is not such a table, or has a slot that is not as a writer leaves it at any
    /// moment of its death.
    pub fn resume(file: &OwnedFd) -> Result<Self, AttachError> {
        let asked = sys::event::create()?;
        let mut writer = Self::over(Table::map(file)?, Some(asked));
        for (slot, block) in file::entries(file)? {
            writer.touched[slot / WAYS / SETS_IN_PAGE] = true;
            writer.occupancy.add(&block);
        }
        writer.show_occupancy();
        Ok(writer)
    }

    fn over(table: Table, asked: Option<OwnedFd>) -> Self {
        Self {
            table: Arc::new(Iotlb::over(table, asked)),
            ages: vec![Ages::default(); SETS].into(),
            touched: vec![false; SETS / SETS_IN_PAGE].into(),
            occupancy: Occupancy::default(),
            displaced: Vec::new(),
            denied: [0; 2],
        }
    }

    /// Returns the table, for readers.
    #[must_use]
    pub fn table(&self) -> &Arc<Iotlb> {
        &self.table
    }

    /// Enters a range that the front end has granted (`VHOST_USER_IOTLB_MSG` of type UPDATE), cut
    /// into blocks, and returns the number of blocks. At most 512 are entered, those around the
    /// page that was asked for: others are missed, and asked for, when they are used.
    ///
    /// `asked` is the question that the message answers, or the questions that it may answer.
    /// Entries give no more access than each has asked for, because QEMU grants reads and writes
    /// whatever the guest's mapping permits (`address_space_get_iotlb_entry`); nothing is entered
    /// when the message denies what was asked for. Without a question, or with some for pages
    /// outside the range, the message holds as it is. The access of an earlier entry for the same
    /// memory stays; an entry that leads to other memory goes.
    ///
    /// # Errors
    /// [`IotlbError`]. Nothing is changed then.
    pub fn update(
        &mut self,
        memory: &GuestMemory,
        update: &Update,
        asked: &[Miss],
    ) -> Result<usize, IotlbError> {
        let checked = self.counted(update.check(memory))?;
        add(&self.head().counters.updates);
        Ok(self.enter_range(checked, asked))
    }

    /// Enters more of a range that was granted by an earlier [`IotlbWriter::update`], as the answer
    /// to another question.
    ///
    /// # Errors
    /// [`IotlbError`]: the guest's memory has changed since. Nothing is changed then.
    pub fn update_further(
        &mut self,
        memory: &GuestMemory,
        update: &Update,
        asked: Miss,
    ) -> Result<(), IotlbError> {
        let checked = update.check(memory)?;
        self.enter_range(checked, &[asked]);
        Ok(())
    }

    /// Enters a range, and returns the number of its blocks; see [`IotlbWriter::update`].
    fn enter_range(
        &mut self,
        (pages, frame, access): (Range<u64>, u64, Access),
        asked: &[Miss],
    ) -> usize {
        let offset = frame.wrapping_sub(pages.start);
        let elsewhere = |block: &Block| block.offset() != offset;
        let kept = |block: &Block| block.overlaps(&pages) && elsewhere(block);
        let was_displaced = self.displaced.iter().any(kept);
        if self.remove(&pages, elsewhere) > 0 || was_displaced {
            self.revoked();
        }
        let mut asked = asked.iter().filter(|miss| pages.contains(&miss.page));
        let around = asked.clone().next().map_or(pages.start, |miss| miss.page);
        let access = asked.try_fold(access, |access, miss| access.common(miss.access));
        let Some(access) = access else {
            return 0;
        };
        let blocks = BlockIter::new(pages.clone(), offset, access, around);
        let blocks: Vec<Block> = blocks.take(MOST_BLOCKS).collect();
        // The page that was asked for comes last: no other block of the range displaces it.
        for block in blocks.iter().rev() {
            self.enter(*block);
        }
        self.table.denials.lift(&pages);
        self.look_again();
        blocks.len()
    }

    /// Denies a miss, of this need: there is no mapping for it. One reader does without the page
    /// once, by [`Iotlb::take_denial`]; an UPDATE or INVALIDATE of the page ends the denial.
    pub fn deny(&mut self, miss: Miss, need: Need) {
        let number = &mut self.denied[usize::from(need == Need::Ahead)];
        self.table.denials.put(miss, need, *number);
        *number = number.wrapping_add(1);
        self.look_again();
    }

    /// Ends all denials: the guest may have mapped those pages since. Readers look again, also
    /// ahead.
    pub fn end_denials(&mut self) {
        self.table.denials.lift_all();
        add(&self.table.flushes);
        self.look_again();
    }

    /// Ends the denials of what was asked for ahead, as [`IotlbWriter::end_denials`] does.
    pub fn end_denials_ahead(&mut self) {
        self.table.denials.lift_ahead();
        add(&self.table.flushes);
        self.look_again();
    }

    /// Lets readers look again that lack a translation; see [`Iotlb::answers`].
    fn look_again(&self) {
        add(&self.table.answers);
    }

    /// Revokes `size` bytes from `iova` (`VHOST_USER_IOTLB_MSG` of type INVALIDATE), rounded
    /// outwards to whole entries. A range that wraps around ends with the last address.
    ///
    /// No look-up that begins later finds the pages, until a later UPDATE. Readers that have a
    /// translation already may still use it: the caller waits for them before it answers. This
    /// function ends with a sequentially consistent fence, so a reader that marks itself as busy,
    /// has such a fence after that mark, and then looks up, either misses or is seen to be busy.
    ///
    /// Misses of the pages end: QEMU takes a question for a page that is not mapped as the guest's
    /// fault. Returns whether readers must look again: there were such misses, or many entries were
    /// removed ([`Iotlb::flushes`]).
    ///
    /// # Errors
    /// A size of 0. Nothing is changed then.
    pub fn invalidate(&mut self, iova: u64, size: u64) -> Result<bool, IotlbError> {
        let last = size.checked_sub(1).ok_or(IotlbError::Empty);
        let last = iova.saturating_add(self.counted(last)?);
        add(&self.head().counters.invalidations);
        let pages = iova / PAGE..last / PAGE + 1;
        let is_flush = self.remove(&pages, |_| true) > FLUSH;
        if is_flush {
            add(&self.table.flushes);
        }
        self.table.denials.lift(&pages);
        let lifted = self.table.misses.lift(&pages);
        self.revoked();
        Ok(lifted || is_flush)
    }

    /// Removes all entries, denials and misses, as at a reset of the device or at the end of its
    /// connection. For readers that have a translation, see [`IotlbWriter::invalidate`].
    pub fn clear(&mut self) {
        let all = 0..u64::MAX;
        self.remove(&all, |_| true);
        self.table.denials.lift_all();
        self.table.misses.take(|_| ());
        self.revoked();
    }

    /// Stores which message was answered last, before its answer can leave. A message may be served
    /// twice, but is answered once: a successor of the process asks for it by
    /// [`AnsweredMessage::read`].
    pub fn set_answered(&self, answered: AnsweredMessage) {
        self.head().answer.store(answered);
    }

    /// Makes readers drop what they have kept of entries. This also comes where nothing was
    /// removed: a reader may have kept an entry that another has displaced since.
    fn revoked(&mut self) {
        self.displaced.clear();
        self.look_again();
        add(&self.head().state.generation);
        fence(Ordering::SeqCst);
    }

    fn head(&self) -> &Head {
        self.table.table.head()
    }

    /// Counts a refusal.
    fn counted<T>(&self, result: Result<T, IotlbError>) -> Result<T, IotlbError> {
        if result.is_err() {
            add(&self.head().counters.refusals);
        }
        result
    }

    /// Enters a block. Entries that overlap it lead to the same memory already.
    fn enter(&mut self, mut block: Block) {
        if self.is_covered(&block) {
            return;
        }
        let set = set_of(block.class, block.page);
        let (at, old) = self.place(set, &block);
        let is_same = |old: &Block| old.key() == block.key();
        if let Some(old) = old.filter(is_same) {
            block.access = block.access.with(old.access);
            if block == old {
                return;
            }
        }
        // Its class is known before it is there, and no longer than it is there.
        self.touched[set / SETS_IN_PAGE] = true;
        let neighbours = self.count(&block);
        self.slot(set, at).write(block.key(), block.value());
        if let Some(old) = old {
            self.uncount(&old);
            if old.key() != block.key() {
                self.displace(old);
            }
        }
        if neighbours == Class::Large.pages() {
            self.join(block);
        }
    }

    /// Notes that an entry was displaced. It is still granted, so a reader may use what it has kept
    /// of it, until the page leads elsewhere.
    fn displace(&mut self, old: Block) {
        add(&self.head().counters.evictions);
        self.displaced.push(old);
        if self.displaced.len() > MOST_DISPLACED {
            self.revoked();
        }
    }

    /// Chooses the slot for a block, which becomes the youngest of its set, and returns it with the
    /// entry that it has: the same block, none, or the oldest of the set.
    fn place(&mut self, set: usize, block: &Block) -> (usize, Option<Block>) {
        let entries: [_; WAYS] = std::array::from_fn(|at| self.entry(set, at));
        let is_same = |entry: &Option<Block>| entry.is_some_and(|e| e.key() == block.key());
        let same = entries.iter().position(is_same);
        let free = || entries.iter().position(Option::is_none);
        let at = same.or_else(free).unwrap_or(self.ages[set].oldest());
        self.ages[set].renew(at);
        (at, entries[at])
    }

    fn slot(&self, set: usize, at: usize) -> &Slot {
        &self.table.table.set(set).0[at]
    }

    fn entry(&self, set: usize, at: usize) -> Option<Block> {
        let (key, value) = self.slot(set, at).entry()?;
        Block::decode(key, value)
    }

    /// Replaces all small neighbours of a block by one large block. The large one comes first, so
    /// that readers miss none of the pages meanwhile.
    fn join(&mut self, of: Block) {
        let page = of.page & !(Class::Large.pages() - 1);
        let large = Block {
            class: Class::Large,
            page,
            frame: page.wrapping_add(of.offset()),
            access: of.access,
        };
        self.enter(large);
        self.remove(&large.range(), |block| {
            block.class == Class::Small && large.access.includes(block.access)
        });
    }

    /// Returns whether an entry of a larger class gives all that a block would give.
    fn is_covered(&self, block: &Block) -> bool {
        let classes = Class::ALL.into_iter().rev();
        let mut larger = classes.take_while(|class| *class != block.class);
        larger.any(|class| {
            let occurs = self.occupancy.entries[class as usize] > 0;
            let entry = occurs.then(|| self.table.entry(class, block.page));
            entry
                .flatten()
                .is_some_and(|entry| entry.access.includes(block.access))
        })
    }

    /// Removes the entries that overlap these pages and that `goes` accepts; returns their number.
    fn remove(&mut self, pages: &Range<u64>, goes: impl Fn(&Block) -> bool) -> usize {
        let goes = |block: &Block| block.overlaps(pages) && goes(block);
        if pages.end - pages.start > MOST_PROBES {
            let all = 0..SETS;
            return all.map(|set| self.remove_in(set, goes)).sum();
        }
        let mut removed = 0;
        for class in Class::ALL {
            if self.occupancy.entries[class as usize] == 0 {
                continue;
            }
            let first = pages.start >> class.shift() << class.shift();
            let blocks = (first..pages.end).step_by(class.pages() as usize);
            removed += blocks
                .map(|page| self.remove_in(set_of(class, page), goes))
                .sum::<usize>();
        }
        removed
    }

    /// Removes the entries of a set that `goes` accepts.
    fn remove_in(&mut self, set: usize, goes: impl Fn(&Block) -> bool) -> usize {
        if !self.touched[set / SETS_IN_PAGE] {
            return 0;
        }
        let mut removed = 0;
        for at in 0..WAYS {
            if let Some(block) = self.entry(set, at).filter(&goes) {
                self.slot(set, at).clear();
                self.uncount(&block);
                removed += 1;
            }
        }
        removed
    }

    /// Counts an entry that comes; returns the number of neighbours that can be joined to it,
    /// itself included.
    fn count(&mut self, block: &Block) -> u64 {
        let neighbours = self.occupancy.add(block);
        self.show_occupancy();
        neighbours
    }

    /// Counts an entry that is gone.
    fn uncount(&mut self, block: &Block) {
        self.occupancy.subtract(block);
        self.show_occupancy();
    }

    fn show_occupancy(&self) {
        let head = self.head();
        let classes = self.occupancy.classes();
        if head.state.classes.load(Ordering::Relaxed) != classes {
            head.state.classes.store(classes, Ordering::Relaxed);
        }
        let entries = self.occupancy.entries.iter().sum();
        head.counters.entries.store(entries, Ordering::Relaxed);
    }
}

/// Adds one to a word that this thread alone changes.
fn add(word: &AtomicU64) {
    let value = word.load(Ordering::Relaxed);
    word.store(value.wrapping_add(1), Ordering::Release);
}

/// Slots of a set by age: four numbers of two bits, the oldest in the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ages(u8);

impl Default for Ages {
    fn default() -> Self {
        Self(0b11_10_01_00)
    }
}

impl Ages {
    fn oldest(self) -> usize {
        usize::from(self.0 & 3)
    }

    /// Makes a slot the youngest.
    fn renew(&mut self, slot: usize) {
        let slots = (0..WAYS).map(|at| self.0 >> (2 * at) & 3);
        let others = slots.filter(|other| usize::from(*other) != slot);
        let others = others
            .enumerate()
            .fold(0, |all, (at, other)| all | other << (2 * at));
        self.0 = others | (slot as u8) << (2 * (WAYS - 1));
    }
}

/// Small blocks that make a large one when all are there: of one large block, at one distance from
/// guest-physical pages, with one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Neighbours {
    page: u64,
    offset: u64,
    access: Access,
}

impl Neighbours {
    /// Returns those of a block; `None` when it cannot be a part of a large one.
    fn of(block: &Block) -> Option<Self> {
        let is_aligned = block.offset().is_multiple_of(Class::Large.pages());
        (block.class == Class::Small && is_aligned).then(|| Self {
            page: block.page / Class::Large.pages(),
            offset: block.offset(),
            access: block.access,
        })
    }
}

/// Numbers of entries. The writer alone has them: readers need the classes only.
#[derive(Debug, Default)]
struct Occupancy {
    /// By class.
    entries: [u64; Class::ALL.len()],
    neighbours: HashMap<Neighbours, u64>,
}

impl Occupancy {
    /// Returns the bits of the classes that occur.
    fn classes(&self) -> u64 {
        let occur = |class: &Class| self.entries[*class as usize] > 0;
        let bits = Class::ALL.into_iter().filter(occur).map(Class::bit);
        bits.fold(0, |all, bit| all | bit)
    }

    fn add(&mut self, block: &Block) -> u64 {
        self.entries[block.class as usize] += 1;
        let Some(neighbours) = Neighbours::of(block) else {
            return 0;
        };
        let count = self.neighbours.entry(neighbours).or_default();
        *count += 1;
        *count
    }

    fn subtract(&mut self, block: &Block) {
        self.entries[block.class as usize] -= 1;
        let Some(neighbours) = Neighbours::of(block) else {
            return;
        };
        if let Some(count) = self.neighbours.get_mut(&neighbours) {
            *count -= 1;
            if *count == 0 {
                self.neighbours.remove(&neighbours);
            }
        }
    }
}
