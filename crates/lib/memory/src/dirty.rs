//! The dirty log of a live migration: one bit per 4 KiB page of guest-physical memory, in memory
//! that the VMM shares and clears while the switch sets bits (vhost-user specification,
//! "Migration").

use std::sync::atomic::{AtomicU8, Ordering};

use mapping::{Amount, Mapping};

/// Bytes of guest memory that one bit stands for (`VHOST_LOG_PAGE`).
pub const LOG_PAGE: u64 = 4096;

/// A mapped dirty log.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
}

impl DirtyLog {
    /// Creates a log in memory that the VMM shares (`SET_LOG_BASE`). Its offset was applied once,
    /// by the mapping (CVE-2026-86563), and the file's length was checked against both
    /// (CVE-2020-10722).
    #[must_use]
    pub fn over(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// Returns the amount that the log takes of a quota.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.mapping.amount()
    }

    /// Creates a log of `size` bytes on the heap, for tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(size: u64) -> Self {
        Self {
            mapping: Mapping::heap(size),
        }
    }

    /// Returns the number of bytes of guest memory that the log covers, from address 0.
    #[must_use]
    pub fn covers(&self) -> u64 {
        (self.mapping.len() as u64).saturating_mul(8 * LOG_PAGE)
    }

    /// Sets the bit of every page that `len` bytes at `gpa` touch. Pages behind the log's end are
    /// not logged (CVE-2019-14835).
    #[inline]
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / LOG_PAGE;
        for page in gpa / LOG_PAGE..=last {
            let Some(byte) = self.byte_of(page) else {
                return;
            };
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }

    /// Returns whether the page with this number is marked.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn is_dirty(&self, page: u64) -> bool {
        self.byte_of(page)
            .is_some_and(|b| b.load(Ordering::Acquire) & (1 << (page % 8)) != 0)
    }

    /// Returns whether the VMM truncated the log.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    fn byte_of(&self, page: u64) -> Option<&AtomicU8> {
        let at = usize::try_from(page / 8).ok()?;
        if at >= self.mapping.len() {
            return None;
        }
        // SAFETY: `at` is inside the mapping, which lives as long as `self`; bytes are always
        // aligned, and the VMM reads and clears them with atomic instructions too.
        Some(unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(at)) })
    }
}
