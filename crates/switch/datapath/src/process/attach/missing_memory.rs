//! Detection of a driver that has started without shared memory: the commonest misconfiguration.
//!
//! QEMU reports no error: it negotiates features, finds no memory that it could share, and does not
//! start the queues.

use std::time::{Duration, Instant};

/// Time between the choice of features and the memory table, seconds.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason for operators.
pub(super) const REASON: &str = "the guest's driver has started, and the VMM shares no memory: \
     QEMU needs -object memory-backend-memfd,id=mem,size=SIZE,share=on \
     and -numa node,memdev=mem (or -machine memory-backend=mem)";

/// The state of one connection.
#[derive(Debug, Default)]
pub(super) struct MissingMemory {
    since: Option<Instant>,
    warned: bool,
}

impl MissingMemory {
    /// Notes after a message whether a started driver has no shared memory.
    pub(super) fn update(&mut self, lacks_memory: bool, now: Instant) {
        if lacks_memory {
            self.since = self.since.or(Some(now))
        } else {
            self.since = None
        }
    }

    /// Returns whether the memory is overdue.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns the time of the warning, if it was not logged yet.
    pub(super) fn warn_at(&self) -> Option<Instant> {
        self.deadline().filter(|_| !self.warned)
    }

    /// Notes that the warning was logged; once for each connection.
    pub(super) fn mark_warned(&mut self) {
        self.warned = true;
    }

    fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + MEMORY_TIMEOUT)
    }
}
