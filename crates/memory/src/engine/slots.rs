//! Places for copies that are under way.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::dsa::Record;
use crate::copy::copy_bytes;

/// Copies of one worker that are under way at most.
pub const SLOTS: usize = 256;

/// The copy is under way, or was not begun.
const BUSY: u64 = 1;
/// Somebody finishes it, alone.
const CLAIMED: u64 = 2;
/// Bits of a state below the copy's number.
const PHASE: u32 = 2;

/// One copy at a time. The owner of its line writes what is to be copied, then that it is busy; who wants to finish
/// it claims it; done is what has this number and neither mark, or a later number.
#[derive(Debug, Default)]
pub struct Slot {
    state: AtomicU64,
    from: AtomicUsize,
    to: AtomicUsize,
    len: AtomicU32,
    /// Where a device says how it ended.
    pub(super) record: Record,
}

impl Slot {
    /// Where bytes come from, where they go, and how many they are.
    #[must_use]
    pub fn span(&self) -> (usize, usize, u32) {
        (
            self.from.load(Ordering::Relaxed),
            self.to.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        )
    }

    fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) & (BUSY | CLAIMED) == 0
    }

    /// Whether a copy is under way here that nobody has claimed.
    pub(super) fn is_busy(&self) -> bool {
        self.state.load(Ordering::Acquire) & BUSY != 0
    }

    /// Describes copy `number`.
    ///
    /// # Safety
    /// The slot is free, nobody else describes one, and the memory stays mapped until the copy is done.
    unsafe fn fill(&self, number: u64, from: *const u8, to: *mut u8, len: u32) {
        self.from.store(from.expose_provenance(), Ordering::Relaxed);
        self.to.store(to.expose_provenance(), Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.record.clear();
        self.state.store(number << PHASE | BUSY, Ordering::Release);
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state >> PHASE != number || state & (BUSY | CLAIMED) == 0
    }

    /// The right to finish what is copied here now, which one alone gets.
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        self.claim_of(self.state.load(Ordering::Acquire) >> PHASE)
    }

    /// The right to finish copy `number`, and none that came later: what is known of the one says nothing of the other.
    pub(super) fn claim_of(&self, number: u64) -> Option<Claim<'_>> {
        let (busy, claimed) = (number << PHASE | BUSY, number << PHASE | CLAIMED);
        let state = &self.state;
        state
            .compare_exchange(busy, claimed, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some(Claim { slot: self, number })
    }
}

/// The right to finish a copy. To drop it leaves the copy under way for ever, so whoever gets one finishes.
#[must_use]
pub(super) struct Claim<'a> {
    slot: &'a Slot,
    number: u64,
}

impl Claim<'_> {
    /// Copies all of it, and is done.
    pub(super) fn copy(self) {
        let len = self.slot.len.load(Ordering::Relaxed);
        self.finish(0, len);
    }

    /// Copies what is left, `len` bytes from `at` on, and is done.
    pub(super) fn finish(self, at: u32, len: u32) {
        let (from, to, all) = self.slot.span();
        let at = at.min(all);
        let len = len.min(all - at);
        let from = std::ptr::with_exposed_provenance::<u8>(from).wrapping_add(at as usize);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to).wrapping_add(at as usize);
        // SAFETY: who filled the slot keeps the memory mapped until it is done, which is said below; `at` and `len`
        // are within what it described.
        unsafe { copy_bytes(from, to, len as usize) };
        let done = self.number << PHASE;
        self.slot.state.store(done, Ordering::Release);
    }
}

/// The slots of one worker, who alone fills them.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) slots: Box<[Slot]>,
    /// The number of the next copy; from 1 on.
    next: AtomicU64,
    /// The first number of the lease that lasts; 0: none does.
    lease: AtomicU64,
    /// The worker whose line it is has it: a second one would break what it goes by.
    taken: AtomicBool,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            slots: std::iter::repeat_with(Slot::default).take(SLOTS).collect(),
            next: AtomicU64::new(1),
            lease: AtomicU64::new(0),
            taken: AtomicBool::new(false),
        }
    }

    /// Whether the line had no owner before.
    pub(super) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }

    pub(super) fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % SLOTS]
    }

    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn begin_lease(&self) {
        self.lease.store(self.next(), Ordering::Relaxed);
    }

    /// The numbers of the copies since the lease began.
    pub(super) fn end_lease(&self) -> (u64, u64) {
        let next = self.next();
        match self.lease.swap(0, Ordering::Relaxed) {
            0 => (next, next),
            first => (first, next),
        }
    }

    pub(super) fn is_leased(&self) -> bool {
        self.lease.load(Ordering::Relaxed) != 0
    }

    /// Fills the next slot, if it is free.
    ///
    /// # Safety
    /// By the line's owner; the memory stays mapped until the copy is done.
    pub(super) unsafe fn fill(&self, from: *const u8, to: *mut u8, len: u32) -> Option<&Slot> {
        let number = self.next();
        let slot = self.slot(number);
        if !slot.is_free() {
            return None;
        }
        // SAFETY: only the owner fills, and it is free; the rest is passed on to our caller.
        unsafe { slot.fill(number, from, to, len) };
        self.next.store(number + 1, Ordering::Relaxed);
        Some(slot)
    }
}
