//! Writer's side in user space: slots of threads, and the states at their start.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::Region;
use crate::layout::{
    BUCKETS, COUNTS_HALTS_AT, ENTRY, HALTS_AT, KERNEL, LINE, MAGIC, POLLED_AT, POLLED_MOST, SIZE,
    SLOTS, Slot, TIDS_AT, VCPUS_AT, VERSION, Vcpu, WAYS, WRITER_AT,
};

/// The memory of states, with the rights of its writer.
#[derive(Debug)]
pub struct Table {
    region: Region,
    /// Descriptor for readers.
    reader: OwnedFd,
    /// Slots by thread id.
    threads: BTreeMap<u32, Slot>,
    /// The slot that was free for longest comes first: the BPF program may still use one that was
    /// freed just now.
    free: VecDeque<Slot>,
}

impl Table {
    /// Creates a memory file whose states only its user sets: for tests of readers.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn in_memory() -> io::Result<Self> {
        let file = sys::file::fixed("lasthop-guests", SIZE as u64)?;
        let reader = std::fs::File::open(sys::file::path_of(&file))?;
        Self::over(file.as_fd(), reader.into())
    }

    /// Wraps memory of zeros; `reader` is a descriptor of the same memory for readers.
    pub(crate) fn over(memory: BorrowedFd<'_>, reader: OwnedFd) -> io::Result<Self> {
        let region = Region::map(memory, true)?;
        let fields = [(0, MAGIC), (4, VERSION), (WRITER_AT, KERNEL)];
        for (at, value) in fields {
            region.half(at).store(value, Ordering::Relaxed);
        }
        Ok(Self {
            region,
            reader,
            threads: BTreeMap::new(),
            free: (0..SLOTS as u16).map(Slot).collect(),
        })
    }

    /// Adopts the memory of a former table of this layout, with the threads that it follows.
    ///
    /// # Errors
    /// The error of the system call, or memory of another layout ([`io::ErrorKind::InvalidData`]).
    pub(crate) fn adopt(memory: OwnedFd) -> io::Result<Self> {
        let region = Region::map(memory.as_fd(), true)?;
        let field = |at| region.half(at).load(Ordering::Relaxed);
        if [field(0), field(4), field(WRITER_AT)] != [MAGIC, VERSION, KERNEL] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut table = Self {
            region,
            reader: memory,
            threads: BTreeMap::new(),
            free: VecDeque::new(),
        };
        let used = table.find_threads();
        let free = (0..SLOTS as u16).map(Slot);
        table.free = free.filter(|slot| !used.contains(slot)).collect();
        Ok(table)
    }

    /// Reads the threads that the memory has; returns their slots. The switch may write there, too:
    /// what cannot be is removed.
    fn find_threads(&mut self) -> BTreeSet<Slot> {
        let mut used = BTreeSet::new();
        for entry in (TIDS_AT..SIZE).step_by(ENTRY) {
            let thread = self.thread_at(entry);
            if thread == 0 {
                continue;
            }
            let number = self.region.half(entry + 4).load(Ordering::Relaxed);
            let slot = Slot(number.try_into().unwrap_or(u16::MAX));
            let possible = usize::from(slot.0) < SLOTS
                && self.entries(thread).any(|at| at == entry)
                && !self.threads.contains_key(&thread);
            if possible && used.insert(slot) {
                self.threads.insert(thread, slot);
            } else {
                self.region.half(entry).store(0, Ordering::Relaxed);
            }
        }
        used
    }

    /// Returns the memory for a [`View`](crate::View). A memory file cannot be written by this
    /// descriptor.
    #[must_use]
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Follows a thread; returns its slot. `None` when too many are followed.
    pub fn follow(&mut self, thread: u32) -> Option<Slot> {
        if let Some(slot) = self.threads.get(&thread) {
            return Some(*slot);
        }
        let entry = self.entries(thread).find(|at| self.thread_at(*at) == 0)?;
        let slot = self.free.pop_front()?;
        self.clear(slot);
        self.set_polls_for(slot, false);
        let number = self.region.half(entry + 4);
        number.store(slot.0.into(), Ordering::Relaxed);
        // The slot is stored before a reader can find it.
        self.region.half(entry).store(thread, Ordering::Release);
        self.threads.insert(thread, slot);
        Some(slot)
    }

    /// Stops following a thread.
    pub fn unfollow(&mut self, thread: u32) {
        let Some(slot) = self.threads.remove(&thread) else {
            return;
        };
        // The BPF program has removed the entry of a thread that ended.
        if let Some(entry) = self
            .entries(thread)
            .find(|at| self.thread_at(*at) == thread)
        {
            self.region.half(entry).store(0, Ordering::Relaxed);
        }
        self.clear(slot);
        self.free.push_back(slot);
    }

    /// Returns the followed threads, with their slots.
    pub fn threads(&self) -> impl Iterator<Item = (u32, Slot)> {
        self.threads.iter().map(|(thread, slot)| (*thread, *slot))
    }

    /// Returns whether the kernel has seen the end of a followed thread.
    #[must_use]
    pub fn has_ended(&self, thread: u32) -> bool {
        self.threads.contains_key(&thread)
            && !self.entries(thread).any(|at| self.thread_at(at) == thread)
    }

    /// Stores a state.
    pub fn set(&self, slot: Slot, state: Vcpu) {
        self.word(slot).store(state.to_word(), Ordering::Relaxed);
    }

    /// Stores a state if none is known yet: the BPF program may store a better one at the same
    /// time.
    pub fn set_first(&self, slot: Slot, state: Vcpu) {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        // The BPF program was first.
        let _ = self
            .word(slot)
            .compare_exchange(0, state.to_word(), success, failure);
    }

    /// Returns the stored state of a thread.
    #[must_use]
    pub fn state(&self, slot: Slot) -> Option<Vcpu> {
        Vcpu::from_word(self.word(slot).load(Ordering::Relaxed))
    }

    /// Marks the state of a thread as unknown.
    pub fn clear(&self, slot: Slot) {
        self.word(slot).store(0, Ordering::Relaxed);
    }

    /// Notes that halts of vCPUs of KVM are counted.
    pub fn set_counts_halts(&self) {
        self.region
            .half(COUNTS_HALTS_AT)
            .store(1, Ordering::Relaxed);
    }

    /// Returns whether halts of vCPUs of KVM are counted.
    #[must_use]
    pub fn counts_halts(&self) -> bool {
        self.region.half(COUNTS_HALTS_AT).load(Ordering::Relaxed) != 0
    }

    /// Counts a halt that has ended, as the BPF program does: for tests of readers.
    pub fn count_halt(&self, slot: Slot) {
        let at = usize::from(slot.0).min(SLOTS - 1);
        let halts = self.region.word(VCPUS_AT + at * LINE + HALTS_AT);
        halts.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores whether KVM polls in the place of a vCPU that has halted, as the BPF program does.
    pub fn set_polls_for(&self, slot: Slot, polls: bool) {
        let at = usize::from(slot.0).min(SLOTS - 1);
        let polled = self.region.word(VCPUS_AT + at * LINE + POLLED_AT);
        let score = if polls { POLLED_MOST } else { 0 };
        polled.store(score, Ordering::Relaxed);
    }

    fn word(&self, slot: Slot) -> &std::sync::atomic::AtomicU64 {
        let at = usize::from(slot.0).min(SLOTS - 1);
        self.region.word(VCPUS_AT + at * LINE)
    }

    /// Returns the places at which a thread's entry may be.
    fn entries(&self, thread: u32) -> impl Iterator<Item = usize> + use<> {
        let bucket = thread as usize & (BUCKETS - 1);
        (0..WAYS).map(move |way| TIDS_AT + (bucket * WAYS + way) * ENTRY)
    }

    fn thread_at(&self, entry: usize) -> u32 {
        self.region.half(entry).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activity, View};

    fn table() -> (Table, View) {
        let table = Table::in_memory().unwrap();
        let view = View::map(table.reader()).unwrap();
        (table, view)
    }

    fn state(activity: Activity, core: u16, since_ns: u64) -> Vcpu {
        Vcpu {
            activity,
            core,
            since_ns,
        }
    }

    #[test]
    fn what_is_noted_is_seen_by_who_reads() {
        let (mut table, view) = table();
        let slot = table.follow(4711).unwrap();
        assert_eq!(table.follow(4711), Some(slot), "it has one slot");
        assert_eq!(view.state(slot), None);
        let blocked = state(Activity::Blocked, 1023, 1 << 40);
        table.set_first(slot, blocked);
        table.set_first(slot, state(Activity::Running, 0, 0));
        assert_eq!(view.state(slot), Some(blocked));
        table.set(slot, state(Activity::Runnable, 3, 256));
        assert_eq!(view.state(slot), Some(state(Activity::Runnable, 3, 256)));
    }

    #[test]
    fn halts_are_those_of_their_vcpu() {
        let (mut table, view) = table();
        let [one, other] = [1, 2].map(|thread| table.follow(thread).unwrap());
        assert!(!view.counts_halts() && !table.counts_halts());
        table.set_counts_halts();
        assert!(view.counts_halts() && table.counts_halts());
        table.count_halt(one);
        table.count_halt(one);
        assert_eq!([view.halts(one), view.halts(other)], [2, 0]);
        assert_eq!(view.state(one), None, "a state of its own");
        table.set_polls_for(one, true);
        assert_eq!([one, other].map(|slot| view.polls_for(slot)), [true, false]);
        table.unfollow(1);
        let slots: Vec<_> = (3..SLOTS as u32 + 2)
            .map(|n| table.follow(n).unwrap())
            .collect();
        assert!(
            slots.contains(&one) && !view.polls_for(one),
            "of another thread"
        );
        assert_eq!(view.halts(Slot(u16::MAX)), 0);
    }

    #[test]
    fn nothing_is_there_beyond_the_ends() {
        let (_table, view) = table();
        assert_eq!(view.state(Slot(SLOTS as u16)), None);
        assert_eq!(view.state(Slot(u16::MAX)), None);
    }

    #[test]
    fn a_slot_that_was_left_says_nothing_and_comes_last() {
        let (mut table, view) = table();
        let slot = table.follow(1).unwrap();
        table.set(slot, state(Activity::Running, 0, 0));
        table.unfollow(1);
        table.unfollow(1);
        assert_eq!(view.state(slot), None);
        assert_eq!(table.threads().count(), 0);
        let others: Vec<_> = (1..SLOTS as u32)
            .map(|n| table.follow(n).unwrap())
            .collect();
        assert!(!others.contains(&slot));
        assert_eq!(table.follow(9999), Some(slot));
        assert_eq!(table.follow(10_000), None, "all are taken");
    }

    #[test]
    fn threads_that_share_a_bucket_are_told_apart_as_long_as_there_is_room() {
        let (mut table, _) = table();
        let step = BUCKETS as u32;
        let slots = [7, 7 + step].map(|thread| table.follow(thread).unwrap());
        assert_ne!(slots[0], slots[1]);
        assert_eq!(table.follow(7 + 2 * step), None);
        table.unfollow(7);
        assert!(table.follow(7 + 2 * step).is_some());
        assert!(!table.has_ended(7 + step) && !table.has_ended(7));
    }

    #[test]
    fn a_successor_adopts_threads_and_slots() {
        let file = sys::file::fixed("test", SIZE as u64).unwrap();
        let mut table = Table::over(file.as_fd(), file.try_clone().unwrap()).unwrap();
        let slots = [7, 9, 7 + BUCKETS as u32].map(|thread| table.follow(thread).unwrap());
        let running = state(Activity::Running, 1, 256);
        table.set(slots[1], running);
        table.unfollow(7);
        // What an attacker in the switch may have written.
        for (thread, place, slot) in [
            (100, 100, SLOTS as u32),
            (101, 101, u32::MAX),
            (102, 102, u32::from(slots[1].0)),
            (103, 104, 77),
        ] {
            let entry = TIDS_AT + place * WAYS * ENTRY;
            table.region.half(entry + 4).store(slot, Ordering::Relaxed);
            table.region.half(entry).store(thread, Ordering::Relaxed);
        }
        drop(table);
        let mut table = Table::adopt(file).unwrap();
        let expected = [(9, slots[1]), (7 + BUCKETS as u32, slots[2])];
        assert!(table.threads().eq(expected));
        assert_eq!(table.state(slots[1]), Some(running));
        assert_eq!(table.follow(9), Some(slots[1]));
        let all = SLOTS as u32 - 2;
        let new: Vec<_> = (200..200 + all).map(|n| table.follow(n)).collect();
        assert!(new.iter().all(Option::is_some));
        assert_eq!(table.follow(9999), None);
        let own = [Some(slots[1]), Some(slots[2])];
        assert!(!new.iter().any(|slot| own.contains(slot)));
    }

    #[test]
    fn who_reads_cannot_write() {
        let (table, _) = table();
        assert!(Region::map(table.reader(), true).is_err());
    }

    #[test]
    fn other_memory_is_refused() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for size in [0, 4096, SIZE as u64] {
            rustix::fs::ftruncate(&file, size).unwrap();
            assert!(View::map(file.as_fd()).is_err(), "{size} bytes of zeros");
            assert!(Table::adopt(file.try_clone().unwrap()).is_err());
        }
    }
}
