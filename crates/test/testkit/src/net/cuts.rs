//! How a buffer is cut into pieces: the specification allows any layout (virtio 1.3 section 2.7.4),
//! and devices that expect the header alone in the first descriptor break here.

use crate::driver::Piece;
use crate::guest_ram::GuestRam;

/// Bytes between pieces: odd, so that pieces are not aligned, and never part of the buffer.
const GAP: u64 = 13;
const GUARD: u8 = 0xa5;

/// Partition of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cuts {
    /// One piece: header and data together.
    #[default]
    Together,
    /// The 12 bytes of a header of that length, then the rest.
    HeaderApart,
    /// Pieces of this length, the last one shorter.
    Every(u32),
    /// Pieces of these lengths, then the rest; zero lengths are skipped.
    At(Vec<u32>),
}

impl Cuts {
    fn lens(&self, total: u32) -> Vec<u32> {
        let desired: Vec<u32> = match self {
            Self::Together => vec![],
            Self::HeaderApart => vec![12],
            Self::Every(n) => vec![(*n).max(1); (total / (*n).max(1)) as usize],
            Self::At(lens) => lens.clone(),
        };
        let mut left = total;
        let mut lens: Vec<u32> = Vec::new();
        for len in desired.into_iter().chain([u32::MAX]) {
            let n = len.min(left);
            left -= n;
            lens.extend((n > 0).then_some(n));
        }
        lens
    }

    /// Bytes of memory that [`Cuts::pieces`] spreads `total` bytes over.
    #[must_use]
    pub fn room(&self, total: u32) -> u64 {
        if *self == Self::Together {
            return u64::from(total);
        }
        u64::from(total) + GAP * self.lens(total).len() as u64
    }

    /// The pieces of a buffer of `total` bytes in the memory at `gpa`, with gaps between them.
    #[must_use]
    pub fn pieces(&self, gpa: u64, total: u32) -> Vec<Piece> {
        if *self == Self::Together {
            return vec![Piece::new(gpa, total)];
        }
        let mut at = gpa;
        let mut piece = |len: u32| {
            let piece = Piece::new(at, len);
            at += u64::from(len) + GAP;
            piece
        };
        self.lens(total).into_iter().map(&mut piece).collect()
    }

    /// Returns a buffer with canary bytes in the gaps.
    pub(super) fn slot(&self, ram: &GuestRam, total: u32) -> Slot {
        let room = self.room(total);
        let gpa = ram.alloc(room, 64);
        let slot = Slot {
            memory: Piece::new(gpa, room as u32),
            pieces: self.pieces(gpa, total),
            guarded: *self != Self::Together,
        };
        slot.guard(ram);
        slot
    }
}

/// A receive buffer.
#[derive(Debug)]
pub(super) struct Slot {
    /// All of its memory, gaps included.
    pub(super) memory: Piece,
    pub(super) pieces: Vec<Piece>,
    guarded: bool,
}

impl Slot {
    /// Fills the gaps.
    pub(super) fn guard(&self, ram: &GuestRam) {
        let ends = self.pieces.iter().map(|p| p.gpa + u64::from(p.len));
        ends.filter(|_| self.guarded)
            .for_each(|end| ram.fill(end, GAP as usize, GUARD));
    }

    /// Returns whether the gaps are as they were; else the address of the first one that is not.
    pub(super) fn check_canaries(&self, ram: &GuestRam) -> Result<(), u64> {
        let ends = self.pieces.iter().map(|p| p.gpa + u64::from(p.len));
        for end in ends.filter(|_| self.guarded) {
            let mut gap = [0; GAP as usize];
            ram.read(end, &mut gap);
            if gap != [GUARD; GAP as usize] {
                return Err(end);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_the_buffer() {
        let all = [
            Cuts::Together,
            Cuts::HeaderApart,
            Cuts::Every(7),
            Cuts::Every(50),
            Cuts::At(vec![1, 0, 5, 500]),
        ];
        for cuts in all {
            let pieces = cuts.pieces(0x1000, 100);
            assert_eq!(pieces.iter().map(|p| p.len).sum::<u32>(), 100);
            let last = pieces.last().expect("a piece");
            assert!(last.gpa + u64::from(last.len) <= 0x1000 + cuts.room(100));
            assert!(pieces.iter().all(|p| p.len > 0));
        }
    }
}
