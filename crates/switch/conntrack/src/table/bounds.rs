//! The bounds of accounts, from the numbers of all of them. The switch decides by them, and
//! another process shows them.

use super::admit::LimitKind;

/// The use of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Number of connections that it holds.
    pub capacity: u32,
    /// Entries in use.
    pub taken: u32,
    /// Accounts with connections.
    pub active: u32,
}

impl Occupancy {
    /// Entries that are kept free, for connections that take another's place while that one cannot
    /// be reused yet.
    #[must_use]
    pub(crate) fn reserve(self) -> u32 {
        (self.capacity / 64).max(256.min(self.capacity / 8))
    }

    /// The share of each account when the table is full, with one of `has` connections.
    pub(crate) fn fair_share(self, has: u32) -> u32 {
        let active = self.active.saturating_add(u32::from(has == 0));
        self.capacity.saturating_sub(self.reserve()) / active.max(1)
    }

    /// The limit of an account of `has` connections and this configured limit.
    #[must_use]
    pub fn limit(self, configured: u32, has: u32) -> (LimitKind, u32) {
        let share = if self.taken < self.capacity / 8 * 7 {
            self.capacity / 4
        } else {
            self.fair_share(has)
        };
        if configured < share {
            (LimitKind::Configured, configured)
        } else {
            (LimitKind::Share, share)
        }
    }

    /// The limit of an account's unreplied connections.
    #[must_use]
    pub const fn unreplied(self) -> u32 {
        self.capacity / 16
    }
}
