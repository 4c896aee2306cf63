//! One ring: the program's `head`, `cur` and `tail`, modulo the number of slots, over two
//! free-running index lines.
//!
//! ```text
//!   role       our line has                  their line has     the program's slots
//!   Send       slots that hold frames: P     slots done: T      P .. T + n - 1
//!   Receive    empty buffers: U + n - 1      frames: T          U .. T         of a port
//!   Consume    slots returned: U             frames: T          U .. T         of a pipe
//! ```
//! P and U are where the program's `head` is. At most n - 1 slots are the program's, and `tail` is
//! the end of them. Both indices run modulo 2^16, a multiple of n.
//!
//! Over a pipe the program may have its slots in another memory than both ends: `copies`.
//!
//! `sync` does what netmap's txsync and rxsync do. It trusts neither side: `head` and `cur` must
//! lie in the program's slots, in this order (`nm_txsync_prologue`, `nm_rxsync_prologue`), a
//! changed `tail` is repaired, and an index of the other side that leaves its window stops the
//! ring.

mod copies;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, addr_of, addr_of_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use rustix::io::Errno;

use crate::abi::{self, NR_TIMESTAMP, NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG, Slot};
use crate::region::{Block, Frame, Region};
use crate::wake::{self, Line};

pub(crate) use copies::Far;

/// Slots of a frame at most (`NETMAP_MAX_FRAGS`).
const MAX_FRAGMENTS: u16 = 64;

/// Syncs without progress of the other side, after which it may be gone.
const SYNCS_UNTIL_STUCK: u16 = 64;

/// Use of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Transmission by a port.
    Send,
    /// Transmission over a pipe: only whole frames are published, and slots are left as they are.
    Produce,
    /// Reception from a port.
    Receive,
    /// Reception over a pipe.
    Consume,
    /// Transmission to the host's stack, which takes everything and does nothing with it.
    Discard,
    /// Reception from the host's stack: nothing ever comes.
    Silent,
}

impl Role {
    /// Whether the program sends.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Send | Self::Produce | Self::Discard)
    }

    /// Added to the program's head for our index.
    fn given(self, slots: u16) -> u16 {
        if self == Self::Receive { slots - 1 } else { 0 }
    }

    /// Added to the other side's index for `tail`.
    fn taken(self, slots: u16) -> u16 {
        if self.sends() { slots - 1 } else { 0 }
    }
}

/// The memory of a ring. The pointers lead to memory that lives as long as `frame`, or the ring.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) header: NonNull<abi::Ring>,
    pub(crate) slots: NonNull<Slot>,
    pub(crate) mine: NonNull<Line>,
    pub(crate) theirs: NonNull<Line>,
    /// The header's pages; `None` in tests.
    pub(crate) frame: Option<Frame>,
    /// Buffers for frames that lie elsewhere; `None` in tests.
    pub(crate) region: Option<Arc<Region>>,
    /// The slots of the pipe, where `slots` are the program's alone.
    pub(crate) far: Option<Far>,
}

impl Places {
    /// Those of a ring over a block of a region. Its lines (ours and the other side's) may lie
    /// elsewhere.
    ///
    /// # Errors
    /// `ENOMEM`: there is no room for its header.
    pub(crate) fn new(
        region: &Arc<Region>,
        block: Block,
        slots: u16,
        [mine, theirs]: [NonNull<Line>; 2],
    ) -> Result<Self, Errno> {
        let frame = region.frame(block, slots)?;
        Ok(Self {
            header: frame.header(),
            slots: region.slots(block, slots),
            mine,
            theirs,
            frame: Some(frame),
            region: Some(Arc::clone(region)),
            far: None,
        })
    }
}

/// Positions after the last sync.
#[derive(Debug)]
struct State {
    /// The program's head, free-running.
    user: u16,
    /// Our index as it is published.
    published: u16,
    /// The other side's index.
    seen: u16,
    /// `tail` as the program has it.
    tail: u32,
    /// The other side, or its memory, is not to be believed, or has stopped the queue.
    stopped: bool,
    /// The other side's index when a notification was last requested, while one is awaited.
    awaited: Option<u16>,
    /// Average of the slots that came free while the program was being woken.
    woken_late: u16,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    places: Places,
    role: Role,
    slots: u16,
    /// One thread at a time syncs; others do not wait, as in netmap.
    busy: AtomicBool,
    state: UnsafeCell<State>,
    /// Syncs since the other side has done something, while it has something to do.
    stuck: AtomicU16,
    /// We signal it.
    kick: OwnedFd,
    /// The other side signals it.
    call: OwnedFd,
}

// SAFETY: `state` is reached by the holder of `busy` only; the pointers lead to memory that other
// threads and processes write at any time and that is read and written by atomic or volatile
// accesses only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// Result of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SyncResult {
    /// There are slots from `cur` on.
    Ready,
    /// There are none.
    Nothing,
    /// Another thread is at it.
    Busy,
}

/// The right to look at the state, until it is dropped.
struct StateGuard<'a>(&'a Ring);

impl StateGuard<'_> {
    fn state(&mut self) -> &mut State {
        // SAFETY: `busy` was taken for this value alone, and the borrow ends before it does.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Ring {
    /// A ring over lines with their indices where `user` says: zero for a new one.
    pub(crate) fn new(
        places: Places,
        role: Role,
        slots: u16,
        (kick, call): (OwnedFd, OwnedFd),
    ) -> Self {
        debug_assert!(slots.is_power_of_two());
        let ring = Self {
            places,
            role,
            slots,
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                user: 0,
                published: 0,
                seen: 0,
                tail: 0,
                stopped: false,
                awaited: None,
                woken_late: 0,
            }),
            stuck: AtomicU16::new(0),
            kick,
            call,
        };
        if let Some(mut guard) = ring.hold() {
            ring.resume(guard.state());
        }
        ring
    }

    /// Continues at the indices in memory, and tells the program.
    fn resume(&self, state: &mut State) {
        let mine = self.mine().index.load(Ordering::Relaxed);
        state.user = mine;
        state.published = mine;
        if self.role == Role::Receive {
            // A ring that was never used gives all its buffers. If the index of a used ring is zero
            // once more, the switch's index lags.
            let given = self.role.given(self.slots);
            if mine == 0 && self.theirs().index.load(Ordering::Acquire) == 0 {
                state.published = given;
                self.mine().index.store(given, Ordering::Release);
            } else {
                state.user = mine.wrapping_sub(given);
            }
        }
        // The first look compares with the least that the index may be.
        state.seen = match self.role {
            Role::Receive | Role::Consume | Role::Silent => state.user,
            Role::Send | Role::Produce | Role::Discard => {
                let theirs = self.theirs().index.load(Ordering::Acquire);
                let is_possible = state.published.wrapping_sub(theirs) < self.slots;
                if is_possible { theirs } else { state.published }
            }
        };
        // Nothing is awaited before the program waits.
        let event = self.theirs().index.load(Ordering::Relaxed).wrapping_sub(1);
        self.mine().event.store(event, Ordering::Relaxed);
        self.write_positions(state);
        self.look(state);
        self.write_tail(state);
    }

    fn hold(&self) -> Option<StateGuard<'_>> {
        let free = self.busy.swap(true, Ordering::Acquire);
        (!free).then_some(StateGuard(self))
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    /// The descriptor that the other side signals.
    pub(crate) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// The descriptor that we signal.
    pub(crate) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Offset of the header in the view.
    pub(crate) fn offset(&self) -> u64 {
        self.places.frame.as_ref().map_or(0, Frame::offset)
    }

    fn mine(&self) -> &Line {
        // SAFETY: `Places` leads to a line that lives as long as the ring; a line has atomics only.
        unsafe { self.places.mine.as_ref() }
    }

    fn theirs(&self) -> &Line {
        // SAFETY: as in `mine`.
        unsafe { self.places.theirs.as_ref() }
    }

    fn header(&self) -> *mut abi::Ring {
        self.places.header.as_ptr()
    }

    /// Fills the fields that do not change. `buf_ofs`: distance of buffer 0 from the header.
    pub(crate) fn describe(&self, buf_ofs: i64, buffer_size: u32, number: u16) {
        let header = self.header();
        let dir = u16::from(!self.role.sends());
        // SAFETY: the header is writable memory of its size, and all of its fields are plain
        // numbers; no reference to it exists.
        unsafe {
            addr_of_mut!((*header).buf_ofs).write_volatile(buf_ofs);
            addr_of_mut!((*header).num_slots).write_volatile(u32::from(self.slots));
            addr_of_mut!((*header).nr_buf_size).write_volatile(buffer_size);
            addr_of_mut!((*header).ringid).write_volatile(number);
            addr_of_mut!((*header).dir).write_volatile(dir);
            addr_of_mut!((*header).buf_align).write_volatile(1);
        }
    }

    /// The slot with this number modulo their number.
    fn slot(&self, number: u16) -> *mut Slot {
        let index = number & (self.slots - 1);
        // SAFETY: there are `slots` slots, a power of two.
        unsafe { self.places.slots.add(usize::from(index)).as_ptr() }
    }

    /// Number of the buffer in a slot.
    pub(crate) fn buffer_of(&self, number: u16) -> u32 {
        // SAFETY: `slot` returns an address of a slot; the program may write it meanwhile.
        unsafe { addr_of!((*self.slot(number)).buf_idx).read_volatile() }
    }

    /// Puts a buffer into a slot that has no user yet.
    pub(crate) fn set_buffer(&self, number: u16, buf_idx: u32) {
        let slot = Slot {
            buf_idx,
            ..Slot::default()
        };
        // SAFETY: as in `buffer_of`.
        unsafe { self.slot(number).write_volatile(slot) };
    }

    fn flags_of(&self, number: u16) -> u16 {
        // SAFETY: as in `buffer_of`.
        unsafe { addr_of!((*self.slot(number)).flags).read_volatile() }
    }

    /// `head` and `cur` of the program.
    fn positions(&self) -> (u32, u32) {
        let header = self.header();
        // SAFETY: the header is readable memory; the program may write it meanwhile.
        unsafe {
            let head = addr_of!((*header).head).read_volatile();
            (head, addr_of!((*header).cur).read_volatile())
        }
    }

    fn write_positions(&self, state: &State) {
        let (header, head) = (self.header(), self.modulo(state.user));
        // SAFETY: as in `describe`.
        unsafe {
            addr_of_mut!((*header).head).write_volatile(head);
            addr_of_mut!((*header).cur).write_volatile(head);
        }
    }

    fn write_tail(&self, state: &mut State) {
        state.tail = self.modulo(state.seen.wrapping_add(self.role.taken(self.slots)));
        // SAFETY: as in `describe`.
        unsafe { addr_of_mut!((*self.header()).tail).write_volatile(state.tail) };
    }

    fn modulo(&self, index: u16) -> u32 {
        u32::from(index & (self.slots - 1))
    }

    /// Whether the program has moved `head` since the last sync.
    pub(crate) fn has_moved(&self) -> bool {
        let Some(mut guard) = self.hold() else {
            return false;
        };
        self.positions().0 != self.modulo(guard.state().user)
    }

    /// Publishes the program's progress and shows it the other side's.
    ///
    /// # Errors
    /// `EINVAL`: the program has broken a rule, and its positions were set back; or the ring is
    /// stopped.
    pub(crate) fn sync(&self) -> Result<SyncResult, Errno> {
        let Some(mut guard) = self.hold() else {
            return Ok(SyncResult::Busy);
        };
        let state = guard.state();
        let (head, cur) = self.positions();
        let Some(moved) = self.checked(state, head, cur) else {
            self.write_positions(state);
            self.write_tail(state);
            return Err(Errno::INVAL);
        };
        if moved > 0 {
            if self.role == Role::Send {
                self.prepare(state.user, moved);
            }
            state.user = state.user.wrapping_add(moved);
        }
        if state.stopped {
            return Err(Errno::INVAL);
        }
        self.publish(state);
        let before = state.seen;
        self.look(state);
        self.note_stuck(state, before);
        self.write_tail(state);
        if !self.role.sends() {
            self.set_time();
        }
        if state.stopped {
            return Err(Errno::INVAL);
        }
        let found = cur != state.tail;
        Ok(if found {
            SyncResult::Ready
        } else {
            SyncResult::Nothing
        })
    }

    fn note_stuck(&self, state: &State, before: u16) {
        let stuck = self.stuck.load(Ordering::Relaxed);
        if state.seen == before && state.seen != state.published && self.role == Role::Send {
            self.stuck.store(stuck.wrapping_add(1), Ordering::Relaxed);
        } else if stuck != 0 {
            self.stuck.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the other side has had something to do for a long time and may be gone: true once in
    /// a while.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) % SYNCS_UNTIL_STUCK == SYNCS_UNTIL_STUCK - 1
    }

    /// Checks the program's positions; returns how far `head` has moved.
    fn checked(&self, state: &State, head: u32, cur: u32) -> Option<u16> {
        let slots = u32::from(self.slots);
        if head >= slots || cur >= slots {
            return None;
        }
        let from = self.modulo(state.user);
        let ahead = |position: u32| position.wrapping_sub(from) & (slots - 1);
        let (moved, window) = (ahead(head), ahead(state.tail));
        (moved <= ahead(cur) && ahead(cur) <= window).then_some(moved as u16)
    }

    /// Prepares slots that the program hands over: frames that lie elsewhere are copied into the
    /// slots' buffers, and changed buffers are noted.
    fn prepare(&self, from: u16, count: u16) {
        for at in 0..count {
            let number = from.wrapping_add(at);
            let flags = self.flags_of(number);
            if flags & (NS_BUF_CHANGED | NS_INDIRECT) != 0 {
                if flags & NS_INDIRECT != 0 {
                    self.copy_indirect(number);
                }
                let flags = flags & !(NS_BUF_CHANGED | NS_INDIRECT);
                // SAFETY: as in `buffer_of`.
                unsafe { addr_of_mut!((*self.slot(number)).flags).write_volatile(flags) };
            }
        }
    }

    fn copy_indirect(&self, number: u16) {
        // SAFETY: as in `buffer_of`.
        let slot = unsafe { self.slot(number).read_volatile() };
        let Some(region) = &self.places.region else {
            return;
        };
        let len = usize::from(slot.len).min(region.geometry.buffer_size as usize);
        if let Some(buffer) = region.buffer(slot.buf_idx) {
            // SAFETY: the program says that its frame of `len` bytes lies there, as it would to the
            // kernel; the buffer has room for them, and is the program's. They may overlap.
            unsafe { std::ptr::copy(slot.ptr as *const u8, buffer.as_ptr(), len) };
        }
    }

    fn publish(&self, state: &mut State) {
        let mut new = state.user.wrapping_add(self.role.given(self.slots));
        if self.role == Role::Produce {
            // Of a frame of several slots nothing is published before its last slot is there.
            let last = |index: u16| self.flags_of(index.wrapping_sub(1));
            while new != state.published && last(new) & NS_MOREFRAG != 0 {
                let open = state.user.wrapping_sub(new);
                if open >= MAX_FRAGMENTS {
                    new = state.user;
                    break;
                }
                new = new.wrapping_sub(1);
            }
        }
        let old = std::mem::replace(&mut state.published, new);
        if new == old {
            return;
        }
        if self.role == Role::Produce {
            self.copy(old, new);
        }
        match self.role {
            // The switch looks for buffers when it needs one.
            Role::Receive => self.mine().index.store(new, Ordering::Release),
            Role::Discard => {
                self.mine().index.store(new, Ordering::Release);
                self.theirs().index.store(new, Ordering::Release);
            }
            _ => {
                if wake::publish(self.mine(), self.theirs(), old, new) {
                    // A descriptor that cannot be signalled has no other side.
                    let _ = sys::event::ring(&self.kick);
                }
            }
        }
    }

    /// Reads the other side's index, and believes it within its window.
    fn look(&self, state: &mut State) {
        let theirs = self.theirs().index.load(Ordering::Acquire);
        let end = match self.role {
            Role::Consume | Role::Silent => state.user.wrapping_add(self.slots - 1),
            _ => state.published,
        };
        if theirs.wrapping_sub(state.seen) > end.wrapping_sub(state.seen) {
            state.stopped = true;
            return;
        }
        if self.role == Role::Consume {
            self.copy(state.seen, theirs);
        }
        if theirs != state.seen
            && let Some(since) = state.awaited.take()
        {
            let event = self.mine().event.load(Ordering::Relaxed);
            let late = theirs.wrapping_sub(event).wrapping_sub(1);
            if late < self.slots && theirs.wrapping_sub(since) < self.slots {
                let sum = 7 * u32::from(state.woken_late) + u32::from(late) + 4;
                state.woken_late = (sum / 8) as u16;
            }
        }
        state.seen = theirs;
    }

    /// Requests a notification: of the next slot, or, when `patient`, of enough that a sender finds
    /// work for as long as waking it takes. Returns the number of slots, or `None` if there are
    /// some already.
    pub(crate) fn request(&self, patient: bool) -> Option<u16> {
        let Some(mut guard) = self.hold() else {
            return Some(1);
        };
        let state = guard.state();
        let pending = state.published.wrapping_sub(state.seen);
        let mut slots = 1;
        if patient && self.role.sends() {
            // As many as come free during a wake-up; the queue must not run dry meanwhile.
            let dry = (self.slots / 2).min(pending.saturating_sub(state.woken_late));
            slots = state.woken_late.clamp(1, dry.max(1));
        }
        let event = state.seen.wrapping_add(slots - 1);
        let theirs = wake::request(self.mine(), self.theirs(), event);
        state.awaited = Some(state.seen);
        // Also an index that is not to be believed is something to look at.
        (theirs.wrapping_sub(state.seen) < slots).then_some(slots)
    }

    /// Stops the ring: the other side has.
    pub(crate) fn stop(&self) {
        if let Some(mut guard) = self.hold() {
            guard.state().stopped = true;
        }
    }

    /// Whether it is stopped.
    #[cfg(test)]
    pub(crate) fn is_stopped(&self) -> bool {
        self.hold().is_some_and(|mut guard| guard.state().stopped)
    }

    /// `head`, `cur`, `tail`, as a program reads them.
    #[cfg(test)]
    pub(crate) fn program(&self) -> (u32, u32, u32) {
        let (head, cur) = self.positions();
        // SAFETY: as in `positions`.
        let tail = unsafe { addr_of!((*self.header()).tail).read_volatile() };
        (head, cur, tail)
    }

    /// A slot, as a program has it: after the header.
    #[cfg(test)]
    #[expect(clippy::mut_from_ref, reason = "the test is the program")]
    pub(crate) fn program_slot(&self, index: u32) -> &mut Slot {
        // SAFETY: the slots follow the header, and nobody else borrows them.
        unsafe { &mut *self.header().add(1).cast::<Slot>().add(index as usize) }
    }

    /// Moves `head` and `cur`, as a program does.
    #[cfg(test)]
    pub(crate) fn program_moves(&self, to: u32) {
        // SAFETY: as in `describe`.
        unsafe {
            addr_of_mut!((*self.header()).head).write_volatile(to);
            addr_of_mut!((*self.header()).cur).write_volatile(to);
        }
    }

    fn set_time(&self) {
        let header = self.header();
        // SAFETY: as in `positions` and `describe`.
        unsafe {
            if addr_of!((*header).flags).read_volatile() & NR_TIMESTAMP != 0 {
                let now = sys::time::since_1970();
                let time = [now.as_secs() as i64, i64::from(now.subsec_micros())];
                addr_of_mut!((*header).ts).write_volatile(time);
            }
        }
    }
}
