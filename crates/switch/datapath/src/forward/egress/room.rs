//! Room in the interface behind a scheduled port, where senders wait for it.
//!
//! It takes frames while it has a free buffer, and while the bits that wait in it are below a
//! limit: what waits there is served in the order in which it came, whatever its priority is. One
//! frame may exceed the limit, so that the longest one passes, too.
//!
//! The switch knows the length of what it delivers, and how many buffers have not come back. From
//! both follows what waits, exactly where frames are of one length, and else in proportion: the
//! count is right again whenever the interface is empty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use egress::SCARCE;

use crate::ports::coalescing::Nanos;
use crate::ports::port::Buffers;

/// Place of the number of frames in [`Room::waiting`]; their bits are below it.
const FRAMES: u32 = 40;
const BITS: u64 = (1 << FRAMES) - 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Bits that may wait in the interface.
    limit: u64,
    /// Longest time for which senders wait for an interface that takes nothing. A dead one must not
    /// stop them for good.
    patience: Nanos,
    /// Free buffers at the last look.
    free: AtomicU64,
    /// Used buffers at the last look.
    used: AtomicU64,
    /// Frames that were paid for and wait in the interface or on the way to it, and their bits.
    waiting: AtomicU64,
    /// Those of them that were not delivered yet.
    pending: AtomicU64,
    /// Time since when it takes none; 0: it does.
    full_since: AtomicU64,
    /// Bits of a frame, lately.
    frame_bits: AtomicU64,
}

/// Room for which senders have credit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unspent {
    bits: u64,
    buffers: u64,
}

impl Unspent {
    /// Adds the credit of a sender with frames of so many bits.
    pub(super) fn add(&mut self, bits: u64, frame: u64) {
        self.bits += bits;
        self.buffers += bits.div_ceil(frame.max(1));
    }
}

impl Room {
    /// Returns the room of an interface in which so many bytes may wait; 0: any number.
    pub(super) fn new(bytes: u64, patience: Nanos) -> Self {
        let limit = match bytes {
            0 => u64::MAX,
            bytes => bytes.saturating_mul(8),
        };
        Self {
            limit,
            patience,
            ..Self::default()
        }
    }

    /// Takes over what is known of the interface.
    pub(super) fn keep(&self, old: &Self) {
        for (own, old) in [
            (&self.free, &old.free),
            (&self.used, &old.used),
            (&self.waiting, &old.waiting),
            (&self.frame_bits, &old.frame_bits),
            (&self.full_since, &old.full_since),
        ] {
            own.store(old.load(Relaxed), Relaxed);
        }
    }

    /// Notes the buffers of the interface, if they are known, and the bits of a frame.
    pub(super) fn note(&self, buffers: Option<Buffers>, frame_bits: Option<u64>, now: Nanos) {
        if let Some(bits) = frame_bits {
            self.frame_bits.store(bits, Relaxed);
        }
        let Some(Buffers { free, used }) = buffers else {
            return;
        };
        let (free, used) = (free as u64, used as u64);
        self.free.store(free, Relaxed);
        let has_moved = used < self.used.swap(used, Relaxed);
        self.match_waiting(used + self.pending.load(Relaxed));
        if self.free() > 0 && self.bits_left() > 0 {
            self.full_since.store(0, Relaxed);
        } else if has_moved || self.full_since.load(Relaxed) == 0 {
            self.full_since.store(now.max(1), Relaxed);
        }
    }

    /// Corrects the count of what waits to so many frames.
    fn match_waiting(&self, frames: u64) {
        let usual = self.frame_bits.load(Relaxed);
        let scaled = |word: u64| {
            let (before, bits) = (word >> FRAMES, word & BITS);
            let bits = match before {
                before if before == frames => return None,
                0 => frames.saturating_mul(usual),
                before => (u128::from(bits) * u128::from(frames) / u128::from(before)) as u64,
            };
            Some(frames << FRAMES | bits.min(BITS))
        };
        // One that is right already stays.
        let _ = self.waiting.fetch_update(Relaxed, Relaxed, scaled);
    }

    /// Notes frames that are on their way to the interface. `pending`: they are delivered later,
    /// which [`Room::delivered`] notes.
    pub(super) fn add(&self, frames: u64, bits: u64, pending: bool) {
        self.waiting
            .fetch_add((frames << FRAMES) + bits.min(BITS), Relaxed);
        if pending {
            self.pending.fetch_add(frames, Relaxed);
        }
    }

    /// Notes that frames were delivered, or dropped at the interface.
    pub(super) fn delivered(&self, frames: u64) {
        self.pending.fetch_sub(frames, Relaxed);
    }

    /// Returns whether senders are to wait while it takes no more.
    pub(super) fn is_waited_for(&self, now: Nanos) -> bool {
        let since = self.full_since.load(Relaxed);
        since == 0 || now.saturating_sub(since) <= self.patience
    }

    /// Returns the free buffers beside those for frames on their way: another worker may deliver
    /// some.
    pub(super) fn free(&self) -> u64 {
        let pending = self.pending.load(Relaxed);
        self.free.load(Relaxed).saturating_sub(pending)
    }

    /// Returns the bits below the limit.
    pub(super) fn bits_left(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed) & BITS;
        self.limit.saturating_sub(waiting)
    }

    /// Returns whether no sender is to get more of it than its frames need.
    pub(super) fn is_scarce(&self) -> bool {
        self.takes(None, Unspent::default()) < SCARCE
    }

    /// Returns how many bits it takes now beside those of the credit. `shortest` are those of the
    /// shortest frame that waits for it, if one does: a free buffer takes no more of that.
    pub(super) fn takes(&self, shortest: Option<u64>, unspent: Unspent) -> u64 {
        let frame = shortest.unwrap_or_else(|| self.frame_bits.load(Relaxed));
        let free = self.free().saturating_sub(unspent.buffers);
        let left = self.bits_left().saturating_sub(unspent.bits);
        free.saturating_mul(frame.max(1)).min(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(free: usize, used: usize) -> Option<Buffers> {
        Some(Buffers { free, used })
    }

    #[test]
    fn bytes_that_wait_are_those_of_buffers_that_have_not_come_back() {
        let room = Room::new(1000, 50);
        room.note(buffers(10, 0), Some(800), 1);
        assert_eq!(
            (room.takes(None, Unspent::default()), room.bits_left()),
            (8000, 8000)
        );
        room.add(5, 4000, true);
        assert_eq!(room.bits_left(), 4000);
        // Frames that are not delivered yet have not come back.
        room.note(buffers(10, 0), None, 2);
        assert_eq!(room.bits_left(), 4000);
        room.delivered(5);
        room.note(buffers(5, 5), None, 3);
        assert_eq!(room.takes(None, Unspent::default()), 4000);
        room.note(buffers(9, 1), None, 4);
        assert_eq!(
            (room.takes(None, Unspent::default()), room.bits_left()),
            (7200, 7200)
        );
        room.note(buffers(10, 0), None, 5);
        assert_eq!(room.bits_left(), 8000);
        // Without a limit it has as much room as buffers.
        let unlimited = Room::new(0, 50);
        unlimited.note(buffers(3, 7), Some(800), 1);
        assert_eq!(unlimited.takes(None, Unspent::default()), 2400);
        assert_eq!(unlimited.takes(Some(100), Unspent::default()), 300);
        let mut unspent = Unspent::default();
        unspent.add(1000, 800);
        assert_eq!(unlimited.takes(None, unspent), 800, "one buffer is left");
    }

    #[test]
    fn buffers_of_frames_on_their_way_are_not_free_for_another_worker() {
        let room = Room::new(0, 50);
        room.note(buffers(4, 0), Some(800), 1);
        room.add(3, 2400, true);
        assert_eq!(room.free(), 1);
        // The other worker has the queue, so its buffers cannot be seen now.
        room.note(None, Some(800), 2);
        assert_eq!(room.takes(None, Unspent::default()), 800);
        room.delivered(3);
        room.note(buffers(1, 3), None, 3);
        assert_eq!(room.free(), 1);
    }

    #[test]
    fn an_interface_is_dead_when_no_buffer_comes_back() {
        let room = Room::new(1000, 50);
        room.add(8, 9000, false);
        room.note(buffers(2, 8), Some(1125), 100);
        assert!(room.is_waited_for(150) && !room.is_waited_for(151));
        // It is slow, and too much waits.
        room.note(buffers(3, 7), None, 151);
        room.add(1, 2000, false);
        room.note(buffers(2, 8), None, 152);
        assert!(room.is_waited_for(190));
        // What goes there meanwhile, or is dropped, is no sign of life.
        room.note(buffers(0, 10), None, 203);
        room.add(3, 900, true);
        room.delivered(3);
        room.note(buffers(0, 10), None, 204);
        assert!(!room.is_waited_for(204));
        room.note(buffers(10, 0), None, 205);
        assert!(room.is_waited_for(10_000));
    }

    #[test]
    fn what_a_former_output_knew_of_the_interface_stays_known() {
        let old = Room::new(1000, 50);
        old.add(4, 3000, false);
        old.note(buffers(2, 4), Some(750), 7);
        let new = Room::new(2000, 50);
        new.keep(&old);
        assert_eq!(
            (new.takes(None, Unspent::default()), new.bits_left()),
            (1500, 13_000)
        );
    }
}
