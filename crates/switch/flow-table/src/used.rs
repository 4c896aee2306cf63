//! Bitmap of the slots in use: walks over all flows skip free slots, of which there may be many.

/// Slots in a word.
const BITS: usize = u64::BITS as usize;

/// Bitmap of slots; see the module.
#[derive(Debug)]
pub(super) struct SlotBitmap(Vec<u64>);

impl SlotBitmap {
    /// Returns a bitmap of `slots` free slots.
    pub(super) fn new(slots: usize) -> Self {
        Self(vec![0; slots.div_ceil(BITS)])
    }

    pub(super) fn set(&mut self, slot: u32, used: bool) {
        let bit = 1 << (slot as usize % BITS);
        let word = &mut self.0[slot as usize / BITS];
        *word = if used { *word | bit } else { *word & !bit };
    }

    /// Returns the first used slot at a position or behind it. The largest table has 16 384 words.
    pub(super) fn next(&self, at: usize) -> Option<usize> {
        let (word, bit) = (at / BITS, at % BITS);
        let here = self.0.get(word)? & u64::MAX << bit;
        if here != 0 {
            return Some(word * BITS + here.trailing_zeros() as usize);
        }
        let behind = &self.0[word + 1..];
        let skipped = behind.iter().position(|bits| *bits != 0)?;
        let slot = behind[skipped].trailing_zeros() as usize;
        Some((word + 1 + skipped) * BITS + slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_used_slot_is_met_once_and_no_other() {
        let slots = [0, 1, 63, 64, 127, 640, 999];
        let mut used = SlotBitmap::new(1000);
        for slot in slots.into_iter().chain([5, 500]) {
            used.set(slot, true);
        }
        used.set(5, false);
        used.set(500, false);
        let mut met = Vec::new();
        let mut at = 0;
        while let Some(slot) = used.next(at) {
            met.push(slot as u32);
            at = slot + 1;
        }
        assert_eq!(met, slots);
        assert_eq!(used.next(usize::MAX), None);
        assert_eq!(SlotBitmap::new(0).next(0), None);
    }
}
