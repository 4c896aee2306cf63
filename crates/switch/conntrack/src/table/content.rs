//! The protocol's bits of a state word.
//!
//! ```text
//! bits 0..15 progress (progress.rs)   16..31 epoch of the rules   32..41 spare
//! ```

use crate::progress::Progress;

use super::word::Life;

/// The bits; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content(u64);

const EPOCH: u32 = 16;

impl Content {
    #[inline(always)]
    pub(crate) const fn new(progress: Progress, epoch: u16) -> Self {
        Self((epoch as u64) << EPOCH | progress.bits() as u64)
    }

    #[inline(always)]
    pub(crate) const fn of(life: Life) -> Self {
        Self(life.content())
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn progress(self) -> Progress {
        Progress::from_bits(self.0 as u16)
    }

    /// The epoch of the rules that have let the connection in.
    #[inline(always)]
    pub(crate) const fn epoch(self) -> u16 {
        (self.0 >> EPOCH) as u16
    }

    /// Returns whether the connection must be decided anew by the rules of an epoch.
    #[inline(always)]
    pub(crate) const fn is_stale(self, epoch: u16) -> bool {
        self.epoch() != epoch || self.progress().is_denied()
    }

    /// Returns whether bits are set that have no meaning.
    pub(crate) const fn is_strange(self) -> bool {
        self.0 >> 32 != 0
    }
}
