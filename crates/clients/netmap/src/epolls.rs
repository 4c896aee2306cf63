//! Epoll instances of the program with netmap's descriptors in them.
//!
//! Each wait is one of `poll` over the instance itself and the devices in it. Devices are
//! level-triggered, whatever was requested; `EPOLLONESHOT` holds.

use std::os::fd::RawFd;
use std::time::Duration;

use interpose::epolls::{self, Entries, Waker};
use interpose::{Mask, system};
use libc::{epoll_event, pollfd};
use rustix::io::Errno;

use crate::device::DEVICES;
use crate::wait;

/// Devices in one instance at most.
const MOST: usize = 63;

/// The devices in instances.
pub(crate) static ENTRIES: Entries = Entries::new(MOST);
/// Wakes a thread that waits for an instance in which another thread changes something.
static WAKER: Waker = Waker::new();

/// epoll_ctl(2) for a device; `event`: events and data. A thread that waits for the instance waits
/// for the device, too.
///
/// # Errors
/// Those of epoll_ctl(2).
pub(crate) fn control(
    epoll: RawFd,
    operation: i32,
    fd: RawFd,
    event: Option<(u32, u64)>,
) -> Result<(), Errno> {
    ENTRIES.control(epoll, operation, fd, event)?;
    if operation != libc::EPOLL_CTL_DEL {
        WAKER.wake(epoll);
    }
    Ok(())
}

/// Takes the library's own event out of those that were found: see [`Waker::take`].
pub(crate) fn take_own(events: &mut [epoll_event]) -> Option<usize> {
    WAKER.take(events)
}

/// epoll_pwait2(2) of an instance with devices.
///
/// # Errors
/// Those of epoll_pwait2(2).
pub(crate) fn wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    if events.is_empty() {
        return Err(Errno::INVAL);
    }
    let now = sys::time::monotonic;
    let until = limit.and_then(|limit| now().checked_add(limit));
    epolls::begins();
    let found = loop {
        let left = until.map(|until| until.saturating_sub(now()));
        let found = wait_once(epoll, events, left, mask);
        // Another thread may have taken what was there, or changed what is waited for.
        if found != Ok(0) || until.is_some_and(|until| now() >= until) {
            break found;
        }
    };
    epolls::ends();
    found
}

fn wait_once(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    let mut entries = ENTRIES.of(epoll);
    entries.retain(|entry| entry.requested() != 0 && DEVICES.is_ours(entry.fd));
    let of = |fd, events| pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = [of(-1, 0); MOST + 1];
    fds[0] = of(epoll, libc::POLLIN);
    for (fd, entry) in fds[1..].iter_mut().zip(&entries) {
        *fd = of(entry.fd, entry.requested());
    }
    let used = entries.len().min(MOST);
    wait::poll(&mut fds[..=used], limit, mask)?;
    let mut written = 0;
    for (entry, fd) in entries.iter().zip(&fds[1..]) {
        if fd.revents == 0 || written == events.len() {
            continue;
        }
        events[written] = epoll_event {
            events: u32::from(fd.revents.cast_unsigned()),
            u64: entry.data,
        };
        written += 1;
        ENTRIES.reported(entry, 0);
    }
    if fds[0].revents != 0 && written < events.len() {
        let rest = &mut events[written..];
        match system::epoll_wait(epoll, rest, Some(Duration::ZERO), Mask::NONE) {
            Ok(more) => written += WAKER.take(&mut rest[..more]).unwrap_or(more),
            // Another thread has closed the instance.
            Err(error) if written == 0 => return Err(error),
            Err(_) => {}
        }
    }
    Ok(written)
}
