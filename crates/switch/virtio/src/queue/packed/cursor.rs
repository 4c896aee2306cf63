//! Positions in a packed ring, and their arithmetic (virtio 1.3, section 2.8.10).

use crate::queue::event::need_event;

/// A position in a packed ring: a slot and the wrap counter of the lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) struct Cursor {
    pub(in crate::queue) index: u16,
    pub(in crate::queue) wrap: bool,
}

impl Cursor {
    /// From the 16-bit form: slot in bits 0..15, wrap counter in bit 15.
    pub(in crate::queue) fn from_bits(bits: u16) -> Self {
        Self {
            index: bits & 0x7fff,
            wrap: bits & 0x8000 != 0,
        }
    }

    #[inline]
    pub(in crate::queue) fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// Advances by `n` slots; `n <= size`.
    #[inline]
    pub(in crate::queue) fn advance(&mut self, n: u16, size: u16) {
        self.index += n;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    /// Goes back by `n` slots; `n <= size`.
    pub(in crate::queue) fn retreat(&mut self, n: u16, size: u16) {
        if self.index < n {
            self.index += size;
            self.wrap = !self.wrap;
        }
        self.index -= n;
    }

    /// Returns the number of slots from `self` to `to`, in `0..=2 * size - 1`; more than `size`
    /// means that `to` is not ahead.
    pub(in crate::queue) fn distance(self, to: Cursor, size: u16) -> u16 {
        let lap = if self.wrap == to.wrap { 0 } else { size };
        // Same lap and behind: two laps less the number of slots that `to` is behind.
        let to_index = to.index + lap;
        if to_index >= self.index {
            to_index - self.index
        } else {
            to_index + 2 * size - self.index
        }
    }
}

/// Returns whether a packed ring's driver wants a notification for the `moved` slots before `used`,
/// when its event suppression structure names the position `event`.
#[inline]
pub(in crate::queue) fn packed_need_event(
    event: Cursor,
    used: Cursor,
    moved: u32,
    size: u16,
) -> bool {
    if moved > u32::from(size) {
        return true;
    }
    let mut at = event.index;
    if event.wrap != used.wrap {
        at = at.wrapping_sub(size);
    }
    need_event(at, used.index, used.index.wrapping_sub(moved as u16))
}
