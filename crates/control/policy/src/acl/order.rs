//! Order of rules.

use serde::{Deserialize, Serialize};

/// Position of a rule in its list: the lower comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Order(u64);

impl Order {
    /// After all rules.
    pub(super) const NEVER: Self = Self(u64::MAX);

    /// Returns the position by priority, the highest first, then by place in the list. Places stay
    /// below `u32::MAX`.
    pub(super) fn new(priority: u32, place: u32) -> Self {
        Self(u64::from(u32::MAX - priority) << 32 | u64::from(place))
    }

    pub(super) fn priority(self) -> u32 {
        u32::MAX - (self.0 >> 32) as u32
    }

    pub(super) fn place(self) -> u32 {
        self.0 as u32
    }

    /// Returns the limit behind all rules of a greater priority.
    pub(super) fn before(priority: u32) -> Self {
        Self::new(priority, 0)
    }

    /// Returns the limit behind all rules of this priority or a greater one.
    pub(super) fn behind(priority: u32) -> Self {
        Self::new(priority, u32::MAX)
    }
}
