//! Which pages the guest itself writes: what a VMM learns from its accelerator during a migration,
//! beside the log of the back end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const PAGE: u64 = 4096;

/// See the module; nothing is noted before it is switched on.
#[derive(Debug, Default)]
pub(super) struct Written {
    on: AtomicBool,
    pages: Mutex<BTreeSet<u64>>,
}

impl Written {
    /// Marks pages after a write, so that a reader of the pages sees it.
    pub(super) fn note(&self, gpa: u64, len: usize) {
        if len > 0 && self.on.load(Ordering::Relaxed) {
            let last = (gpa + len as u64 - 1) / PAGE;
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.extend(gpa / PAGE..=last);
        }
    }

    /// The pages since the last time; from the first time on they are noted.
    pub(super) fn take(&self) -> BTreeSet<u64> {
        self.on.store(true, Ordering::SeqCst);
        std::mem::take(&mut *self.pages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
