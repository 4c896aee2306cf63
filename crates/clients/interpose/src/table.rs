//! The descriptors of this process that are a library's. A look-up of any other descriptor is one
//! load.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use rustix::io::Errno;

/// Descriptors below this number can be a library's.
const MOST: usize = 1 << 14;
/// Attempts to get a lock that may stay locked.
const TRIES: u32 = 64;

/// A table, which is a static of its library.
#[derive(Debug)]
pub struct Table<T> {
    /// One bit for each descriptor that is ours.
    ours: [AtomicU64; MOST / 64],
    entries: [RwLock<Option<Arc<T>>>; MOST],
    /// There was an entry; for those who need not look through all.
    is_used: AtomicBool,
}

fn index(fd: RawFd) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MOST)
}

impl<T> Table<T> {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ours: [const { AtomicU64::new(0) }; MOST / 64],
            entries: [const { RwLock::new(None) }; MOST],
            is_used: AtomicBool::new(false),
        }
    }

    /// Whether there ever was an entry.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Whether a descriptor is the library's.
    #[inline]
    pub fn is_ours(&self, fd: RawFd) -> bool {
        index(fd).is_some_and(|fd| self.ours[fd / 64].load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
    }

    /// The entry of a descriptor, if it is the library's.
    #[inline]
    pub fn get(&self, fd: RawFd) -> Option<Arc<T>> {
        if !self.is_ours(fd) {
            return None;
        }
        let entry = self.entries[index(fd)?].read();
        entry.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a new descriptor. Its number is the system's.
    ///
    /// # Errors
    /// `EMFILE`: its number is too large.
    pub fn insert(&self, fd: RawFd, value: Arc<T>) -> Result<(), Errno> {
        let index = index(fd).ok_or(Errno::MFILE)?;
        let mut entry = self.entries[index]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = entry.replace(value);
        self.is_used.store(true, Ordering::Relaxed);
        self.ours[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        drop(entry);
        drop(before);
        Ok(())
    }

    /// Forgets a descriptor; returns its entry.
    pub fn remove(&self, fd: RawFd) -> Option<Arc<T>> {
        let index = index(fd).filter(|_| self.is_ours(fd))?;
        let mut entry = self.entries[index]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.ours[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        entry.take()
    }

    /// As [`Self::remove`], in a child after fork(2), where a lock that another thread held stays
    /// locked: what is behind such a one is not returned.
    pub fn forget(&self, fd: RawFd) -> Option<Arc<T>> {
        let index = index(fd).filter(|_| self.is_ours(fd))?;
        self.ours[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        for _ in 0..TRIES {
            match self.entries[index].try_write() {
                Ok(mut entry) => return entry.take(),
                Err(TryLockError::Poisoned(entry)) => return entry.into_inner().take(),
                // A thread of the child has it for a moment, or none will ever free it.
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// All entries, to look through, with their descriptors.
    pub fn all(&self) -> impl Iterator<Item = (RawFd, Arc<T>)> {
        let words = self.ours.iter().enumerate();
        let bits = words.flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Relaxed);
            (0..64)
                .filter(move |bit| bits >> bit & 1 != 0)
                .map(move |bit| word * 64 + bit)
        });
        bits.filter_map(|fd| Some((fd as RawFd, self.get(fd as RawFd)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_ours_from_its_entry_to_its_removal() {
        static TABLE: Table<u32> = Table::new();
        assert!(!TABLE.is_used());
        for fd in [-1, 0, 63, 64, MOST as RawFd] {
            assert!(!TABLE.is_ours(fd) && TABLE.get(fd).is_none() && TABLE.remove(fd).is_none());
        }
        TABLE.insert(64, Arc::new(7)).unwrap();
        TABLE.insert(3, Arc::new(8)).unwrap();
        assert_eq!(TABLE.insert(MOST as RawFd, Arc::new(9)), Err(Errno::MFILE));
        assert!(TABLE.is_used() && TABLE.is_ours(64) && !TABLE.is_ours(65));
        let all: Vec<_> = TABLE.all().map(|(fd, value)| (fd, *value)).collect();
        assert_eq!(all, [(3, 8), (64, 7)]);
        assert_eq!(TABLE.remove(64).as_deref(), Some(&7));
        assert!(!TABLE.is_ours(64) && TABLE.get(64).is_none());
        let held = TABLE.entries[3].read().unwrap();
        assert!(TABLE.forget(3).is_none() && !TABLE.is_ours(3));
        drop(held);
        TABLE.insert(3, Arc::new(8)).unwrap();
        assert_eq!(TABLE.forget(3).as_deref(), Some(&8));
        assert!(TABLE.forget(3).is_none());
    }
}
