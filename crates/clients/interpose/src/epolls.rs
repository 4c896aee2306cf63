//! Epoll instances of the program with a library's descriptors in them.
//!
//! The kernel knows nothing of these entries: they are kept here.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::epoll_event;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::system::out_of_the_way;

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
    /// Counts entries that are new or other.
    changes: AtomicU64,
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
            changes: AtomicU64::new(0),
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
        if operation != libc::EPOLL_CTL_DEL {
            self.changes.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Number of entries so far that were new or other: a wait that began before another number is
    /// to begin anew.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Forgets all, in a child after fork(2): another thread may have held the lock, which stays
    /// locked then.
    pub fn forget(&self) {
        self.count.store(0, Ordering::Relaxed);
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

/// Threads that wait for instances by the next function.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A thread is about to wait by the next function, if the instance has no entry: the caller looks
/// at that after this call. [`ends`] follows; without it, threads are woken for nothing.
#[inline]
pub fn begins() {
    WAITING.fetch_add(1, Ordering::Relaxed);
    // Either this thread sees the entry, or the one that has added it sees this thread.
    fence(Ordering::SeqCst);
}

/// The end of what [`begins`] has begun.
#[inline]
pub fn ends() {
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// Wakes a thread that waits for an instance by the next function, when the instance has got its
/// first entry: the thread is to wait for that, too. A static of its library.
#[derive(Debug)]
pub struct Waker {
    /// It is always readable.
    event: OnceLock<Option<OwnedFd>>,
}

impl Waker {
    /// One that has woken none.
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            event: OnceLock::new(),
        }
    }

    /// The data of its events, which is none of the program's.
    fn data(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// Wakes a thread that waits for an instance, if there may be one.
    pub fn wake(&self, epoll: RawFd) {
        fence(Ordering::SeqCst);
        if WAITING.load(Ordering::Relaxed) == 0 {
            return;
        }
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let make = || rustix::event::eventfd(1, flags).map(out_of_the_way).ok();
        let Some(event) = self.event.get_or_init(make) else {
            return;
        };
        // One event for each of these calls, though it was readable before.
        let flags = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT;
        let mut own = epoll_event {
            events: flags.cast_unsigned(),
            u64: self.data(),
        };
        for operation in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD] {
            // SAFETY: the event is there for the call.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_epoll_ctl,
                    epoll,
                    operation,
                    event.as_raw_fd(),
                    &raw mut own,
                )
            };
            if done == 0 {
                return;
            }
        }
    }

    /// Takes its event out of those that were found; returns how many are left. `None`: it is not
    /// among them.
    pub fn take(&self, events: &mut [epoll_event]) -> Option<usize> {
        self.event.get()?;
        let own = self.data();
        let at = events.iter().position(|event| {
            let data = event.u64;
            data == own
        })?;
        events[at..].rotate_left(1);
        Some(events.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_woken_by_one_event() {
        static WAKER: Waker = Waker::new();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.unwrap();
        let fd = epoll.as_raw_fd();
        let found = || {
            let none = epoll_event { events: 0, u64: 7 };
            let mut events = [none; 4];
            let limit = Some(std::time::Duration::ZERO);
            let count = crate::system::epoll_wait(fd, &mut events, limit, crate::Mask::NONE);
            let count = count.unwrap();
            (count, WAKER.take(&mut events[..count]))
        };
        WAKER.wake(fd);
        assert_eq!(found(), (0, None), "none waits");
        begins();
        for _ in 0..2 {
            WAKER.wake(fd);
            assert_eq!(found(), (1, Some(0)));
            assert_eq!(found(), (0, None));
        }
        ends();
        let event = |data| epoll_event {
            events: 1,
            u64: data,
        };
        let mut events = [event(1), event(WAKER.data()), event(2)];
        assert_eq!(WAKER.take(&mut events), Some(2));
        assert_eq!(events.map(|event| event.u64)[..2], [1, 2]);
        assert_eq!(WAKER.take(&mut events[..2]), None);
    }

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
        let changes = entries.changes();
        entries.closed(5);
        entries.control(3, delete, 4, None).unwrap();
        assert!(!entries.concern(3) && entries.changes() == changes);
        entries.control(3, add, 4, event).unwrap();
        entries.control(3, modify, 4, event).unwrap();
        assert_eq!(entries.changes(), changes + 2);
        entries.forget();
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
