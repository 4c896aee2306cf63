//! The search for the vCPU threads of a VMM: the process that holds a port's connection.
//!
//! | source | evidence | exact |
//! |---|---|---|
//! | [`names`] | the names that VMMs give their threads | yes, where they do |
//! | [`debugfs`] | KVM's list of its VMs and their vCPU threads | yes |
//! | [`tracepoints`] | threads of the VMM that have entered a guest of KVM | as soon as all have |
//! | [`activity`] | threads that ran while the guest received frames | no vCPU is left out |
//!
//! The supervisor asks them in this order, and takes the first that knows. A source that does not
//! know says why. Nothing is guessed: where none knows, the vCPUs are unknown, and their states
//! are not used.

pub mod activity;
pub mod debugfs;
pub mod names;
pub mod tracepoints;

/// Most threads of one process that are followed.
pub const MOST_FOLLOWED: usize = 512;

/// Work that one turn of the search may do, in entries of directories that are read, each with its
/// file or link. A VMM chooses how many threads, descriptors and VMs it has; a scan that runs out
/// of work continues in the next turn where it stopped.
#[derive(Debug)]
pub struct Work {
    all: usize,
    left: usize,
}

impl Work {
    /// Returns so many entries.
    #[must_use]
    pub const fn of(entries: usize) -> Self {
        Self {
            all: entries,
            left: entries,
        }
    }

    /// Takes one entry; `false`: there is none left in this turn.
    pub fn take(&mut self) -> bool {
        let has_any = self.left > 0;
        self.left -= usize::from(has_any);
        has_any
    }

    /// Takes so many entries at once; `false`: there are not so many left. A whole turn may be used
    /// up by more.
    pub fn take_at_once(&mut self, entries: usize) -> bool {
        let is_enough = entries <= self.left || self.left == self.all;
        if is_enough {
            self.left = self.left.saturating_sub(entries);
        }
        is_enough
    }

    /// Returns the entries that were taken.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.all - self.left
    }
}
