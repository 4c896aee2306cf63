//! Epoll instances of the program with a library's descriptors in them.
//!
//! The kernel knows nothing of these entries: they are kept here.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Events in the lower bits of an entry are those of poll(2); above are flags.
const EVENTS: u32 = 0xffff;

/// A descriptor of the library in an instance.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The instance.
    pub epoll: RawFd,
    /// The descriptor.
    pub fd: RawFd,
    /// Events and flags, as epoll_ctl(2) has them.
    pub events: u32,
    /// The program's.
    pub data: u64,
    /// The library's, of an edge-triggered entry: what was reported. 0 after each epoll_ctl(2).
    pub seen: u64,
}

impl Entry {
    /// The events of poll(2) that are requested; none: the entry is off.
    #[must_use]
    pub fn requested(&self) -> i16 {
        (self.events & EVENTS) as i16
    }

    /// Whether only changes are reported.
    #[must_use]
    pub fn is_edge_triggered(&self) -> bool {
        self.events & libc::EPOLLET.cast_unsigned() != 0
    }
}

/// The entries of a library, a static of it.
#[derive(Debug)]
pub struct Entries {
    entries: Mutex<Vec<Entry>>,
    /// Number of entries, for those who have none.
    count: AtomicUsize,
    /// Entries of one instance at most.
    most: usize,
}

impl Entries {
    /// None; `most`: entries of one instance at most.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            entries: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
            most,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an instance has entries.
    #[inline]
    pub fn concern(&self, epoll: RawFd) -> bool {
        self.count.load(Ordering::Relaxed) != 0
            && self.lock().iter().any(|entry| entry.epoll == epoll)
    }

    /// epoll_ctl(2) for a descriptor of the library; `event`: events and data.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn control(
        &self,
        epoll: RawFd,
        operation: c_int,
        fd: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno> {
        let mut entries = self.lock();
        let found = entries
            .iter()
            .position(|entry| (entry.epoll, entry.fd) == (epoll, fd));
        let entry = |(events, data)| Entry {
            epoll,
            fd,
            events,
            data,
            seen: 0,
        };
        match (operation, found) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
            (libc::EPOLL_CTL_ADD, None) => {
                let entry = event.map(entry).ok_or(Errno::FAULT)?;
                if entries.iter().filter(|entry| entry.epoll == epoll).count() >= self.most {
                    return Err(Errno::NOSPC);
                }
                entries.push(entry);
            }
            (libc::EPOLL_CTL_MOD, Some(at)) => {
                entries[at] = event.map(entry).ok_or(Errno::FAULT)?;
            }
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(entries.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
            _ => return Err(Errno::INVAL),
        }
        self.count.store(entries.len(), Ordering::Relaxed);
        Ok(())
    }

    /// A descriptor is closed, an instance or one of the library: the entries with it go.
    #[inline]
    pub fn closed(&self, fd: RawFd) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut entries = self.lock();
        entries.retain(|entry| entry.epoll != fd && entry.fd != fd);
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    /// The entries of an instance.
    pub fn of(&self, epoll: RawFd) -> Vec<Entry> {
        let entries = self.lock();
        let own = entries.iter().filter(|entry| entry.epoll == epoll);
        own.copied().collect()
    }

    /// The entries with a descriptor of the library, of all instances.
    pub fn with(&self, fd: RawFd) -> Vec<Entry> {
        let entries = self.lock();
        let own = entries.iter().filter(|entry| entry.fd == fd);
        own.copied().collect()
    }

    /// An entry is reported, with what was `seen` then: one of `EPOLLONESHOT` is off.
    pub fn reported(&self, entry: &Entry, seen: u64) {
        let is_once = entry.events & libc::EPOLLONESHOT.cast_unsigned() != 0;
        if !is_once && !entry.is_edge_triggered() {
            return;
        }
        let mut entries = self.lock();
        let same = |other: &&mut Entry| (other.epoll, other.fd) == (entry.epoll, entry.fd);
        if let Some(entry) = entries.iter_mut().find(same) {
            entry.seen = seen;
            if is_once {
                entry.events &= !EVENTS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_epoll_ctl() {
        let entries = Entries::new(2);
        let (add, modify, delete) = (
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
        );
        let event = Some((1, 7));
        assert!(!entries.concern(3));
        assert_eq!(entries.control(3, modify, 4, event), Err(Errno::NOENT));
        assert_eq!(entries.control(3, add, 4, None), Err(Errno::FAULT));
        entries.control(3, add, 4, event).unwrap();
        assert_eq!(entries.control(3, add, 4, event), Err(Errno::EXIST));
        entries.control(3, add, 5, event).unwrap();
        assert_eq!(entries.control(3, add, 6, event), Err(Errno::NOSPC));
        assert_eq!(entries.control(3, 77, 4, event), Err(Errno::INVAL));
        assert!(entries.concern(3) && !entries.concern(2));
        entries.closed(5);
        entries.control(3, delete, 4, None).unwrap();
        assert!(!entries.concern(3));
    }

    #[test]
    fn a_report_is_noted_where_that_counts() {
        let entries = Entries::new(2);
        let once = 1 | libc::EPOLLONESHOT.cast_unsigned();
        let edge = 1 | libc::EPOLLET.cast_unsigned();
        for (fd, events) in [(4, 1), (5, once), (6, edge)] {
            let number = 10 + fd;
            let add = libc::EPOLL_CTL_ADD;
            entries.control(number, add, fd, Some((events, 0))).unwrap();
            entries.reported(&entries.of(number)[0], 9);
        }
        let now = |number: RawFd| {
            let entry = entries.of(number)[0];
            (entry.requested(), entry.seen)
        };
        assert_eq!([now(14), now(15), now(16)], [(1, 0), (0, 9), (1, 9)]);
    }
}
