//! Epoll instances of the program with netmap's descriptors in them.
//!
//! The kernel knows nothing of these entries: they are kept here, and each wait is one of `poll`
//! over the instance itself and the devices in it. They are level-triggered, whatever was
//! requested; `EPOLLONESHOT` holds.

use std::ffi::{c_int, c_short};
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libc::{epoll_event, pollfd};
use rustix::io::Errno;

use crate::table;
use crate::view::lock;
use crate::wait::{self, Mask};

/// Devices in one instance at most.
const MOST: usize = 63;

#[derive(Clone, Copy, Debug)]
struct Entry {
    epoll: RawFd,
    fd: RawFd,
    events: u32,
    data: u64,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// Number of entries, for those who have none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether an epoll instance has a netmap descriptor.
#[inline]
#[must_use]
pub fn concerns(epoll: RawFd) -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && lock(&ENTRIES).iter().any(|entry| entry.epoll == epoll)
}

/// epoll_ctl(2) for a netmap descriptor; `event`: events and data.
///
/// # Errors
/// Those of epoll_ctl(2).
pub fn control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    event: Option<(u32, u64)>,
) -> Result<(), Errno> {
    let mut entries = lock(&ENTRIES);
    let found = entries
        .iter()
        .position(|entry| (entry.epoll, entry.fd) == (epoll, fd));
    match (operation, found) {
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
        (libc::EPOLL_CTL_ADD, None) => {
            let (events, data) = event.ok_or(Errno::FAULT)?;
            if entries.iter().filter(|entry| entry.epoll == epoll).count() >= MOST {
                return Err(Errno::NOSPC);
            }
            entries.push(Entry {
                epoll,
                fd,
                events,
                data,
            });
        }
        (libc::EPOLL_CTL_MOD, Some(at)) => {
            (entries[at].events, entries[at].data) = event.ok_or(Errno::FAULT)?;
        }
        (libc::EPOLL_CTL_DEL, Some(at)) => drop(entries.remove(at)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
        _ => return Err(Errno::INVAL),
    }
    COUNT.store(entries.len(), Ordering::Relaxed);
    Ok(())
}

/// A descriptor is closed: the entries with it go.
pub(crate) fn closed(fd: RawFd) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut entries = lock(&ENTRIES);
    entries.retain(|entry| entry.epoll != fd && entry.fd != fd);
    COUNT.store(entries.len(), Ordering::Relaxed);
}

/// The program closes a descriptor that may be an epoll instance.
#[inline]
pub fn forget(fd: RawFd) {
    closed(fd);
}

/// epoll_pwait2(2) of an instance that [`concerns`] us.
///
/// # Errors
/// Those of epoll_pwait2(2).
pub fn wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    if events.is_empty() {
        return Err(Errno::INVAL);
    }
    let none = pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    let mut fds = [none; MOST + 1];
    (fds[0].fd, fds[0].events) = (epoll, libc::POLLIN);
    let mut entries = [None; MOST];
    let mut count = 0;
    for entry in lock(&ENTRIES).iter().filter(|entry| entry.epoll == epoll) {
        // The lower bits of events are those of poll(2).
        let wanted = (entry.events & 0xffff) as c_short;
        let is_off = wanted == 0 || !table::is_ours(entry.fd);
        if count < MOST && !is_off {
            entries[count] = Some(*entry);
            count += 1;
            (fds[count].fd, fds[count].events) = (entry.fd, wanted);
        }
    }
    wait::poll(&mut fds[..=count], limit, mask)?;
    let mut written = 0;
    for (entry, fd) in entries.iter().flatten().zip(&fds[1..]) {
        if fd.revents == 0 || written == events.len() {
            continue;
        }
        events[written] = epoll_event {
            events: u32::from(fd.revents.cast_unsigned()),
            u64: entry.data,
        };
        written += 1;
        if entry.events & libc::EPOLLONESHOT.cast_unsigned() != 0 {
            let mut entries = lock(&ENTRIES);
            let same = |other: &&mut Entry| (other.epoll, other.fd) == (epoll, entry.fd);
            if let Some(entry) = entries.iter_mut().find(same) {
                entry.events &= !0xffff;
            }
        }
    }
    if fds[0].revents != 0 && written < events.len() {
        let rest = &mut events[written..];
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the array is as long as it says; a wait without a mask.
        let more = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                rest.as_mut_ptr(),
                rest.len(),
                &raw const now,
                std::ptr::null::<libc::sigset_t>(),
                8usize,
            )
        };
        written += usize::try_from(more).unwrap_or(0);
    }
    Ok(written)
}
