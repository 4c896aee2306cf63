//! Waits, over sockets of ours and descriptors of others.

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use interpose::epolls::{Entries, Entry, Waker};
use interpose::{Library, Mask, system};
use libc::{POLLIN, POLLNVAL, c_int, c_long, epoll_event, pollfd};
use rustix::io::Errno;

use super::{SOCKETS, Socket, generation, is_owner, net, socket};
use crate::net::{Interest, Net, Set};
use crate::stack::MOST;

/// The sockets in epoll instances.
pub(super) static ENTRIES: Entries = Entries::new(MOST);
/// Wakes threads that wait for an instance without sockets.
static WAKER: Waker = Waker::new();

/// The library of the sockets.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

impl Library for Sockets {
    #[inline]
    fn is_ours(fd: RawFd) -> bool {
        SOCKETS.is_ours(fd)
    }

    fn closed(fd: RawFd) {
        // A child of vfork(2) closes descriptors of its own, and shares these tables.
        if (SOCKETS.is_ours(fd) || ENTRIES.concern(fd)) && !is_owner() {
            return;
        }
        ENTRIES.closed(fd);
        // In a child after fork(2) another thread of the parent may hold the lock for ever.
        drop(match generation() {
            0 => SOCKETS.remove(fd),
            _ => SOCKETS.forget(fd),
        });
    }

    fn duplicated(old: RawFd, new: RawFd) -> Result<(), Errno> {
        match SOCKETS.get(old) {
            Some(socket) if is_owner() => SOCKETS.insert(new, socket).inspect_err(|_| {
                // SAFETY: the program does not know the descriptor: it gets an error.
                drop(unsafe { OwnedFd::from_raw_fd(new) });
            }),
            _ => Ok(()),
        }
    }

    fn control(fd: RawFd, command: c_int, argument: c_long) -> Option<Result<c_int, Errno>> {
        let flags = |socket: &Socket| {
            let is_nonblocking = socket.is_nonblocking.load(Ordering::Relaxed);
            libc::O_RDWR | if is_nonblocking { libc::O_NONBLOCK } else { 0 }
        };
        match command {
            libc::F_GETFL => Some(socket(fd).map(|socket| flags(&socket))),
            libc::F_SETFL => Some(socket(fd).map(|socket| {
                let on = argument & c_long::from(libc::O_NONBLOCK) != 0;
                socket.is_nonblocking.store(on, Ordering::Relaxed);
                0
            })),
            _ => None,
        }
    }

    fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
        poll(fds, limit, mask)
    }

    #[inline]
    fn concerns(epoll: RawFd) -> bool {
        ENTRIES.concern(epoll)
    }

    fn epoll_control(
        epoll: RawFd,
        operation: c_int,
        fd: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno> {
        let is_first = !ENTRIES.concern(epoll);
        ENTRIES.control(epoll, operation, fd, event)?;
        if operation == libc::EPOLL_CTL_DEL {
            return Ok(());
        }
        // Threads that wait for the instance are to wait for this socket, too.
        if is_first {
            WAKER.wake(epoll);
        }
        if let Some(net) = net() {
            net.set_has_changed(epoll);
        }
        Ok(())
    }

    fn take_own(events: &mut [epoll_event]) -> Option<usize> {
        WAKER.take(events)
    }

    fn epoll_wait(
        epoll: RawFd,
        events: &mut [epoll_event],
        limit: Option<Duration>,
        mask: Mask,
    ) -> Result<usize, Errno> {
        epoll_wait(epoll, events, limit, mask)
    }
}

/// ppoll(2).
fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
    let mut others = fds.to_vec();
    let mut interests = Vec::with_capacity(fds.len());
    let mut is_wrong = false;
    for (fd, other) in fds.iter_mut().zip(&mut others) {
        fd.revents = 0;
        other.revents = 0;
        if !SOCKETS.is_ours(fd.fd) {
            continue;
        }
        match socket(fd.fd) {
            Ok(socket) => interests.push(Interest {
                id: socket.id,
                events: fd.events,
                known: None,
            }),
            Err(_) => is_wrong = true,
        }
        other.fd = -1;
    }
    let Some(net) = net() else {
        // All sockets are those of a parent.
        return Ok(fill(fds, &others));
    };
    let limit = if is_wrong {
        Some(Duration::ZERO)
    } else {
        limit
    };
    net.wait(&interests, &mut others, limit, mask)?;
    Ok(fill(fds, &others))
}

/// Fills the events in; returns how many descriptors have some.
fn fill(fds: &mut [pollfd], others: &[pollfd]) -> usize {
    let mut ready = 0;
    for (fd, other) in fds.iter_mut().zip(others) {
        fd.revents = if SOCKETS.is_ours(fd.fd) {
            let events = |socket: &Socket| socket.net.ready(socket.id, fd.events);
            socket(fd.fd).map_or(POLLNVAL, |socket| events(&socket))
        } else {
            other.revents
        };
        ready += usize::from(fd.revents != 0);
    }
    ready
}

/// An entry with its socket's interest.
fn interest(entry: &Entry) -> Option<Interest> {
    let socket = socket(entry.fd).ok()?;
    let events = entry.requested();
    (events != 0).then_some(Interest {
        id: socket.id,
        events,
        known: entry.is_edge_triggered().then_some(entry.seen),
    })
}

/// epoll_pwait2(2) of an instance with sockets.
fn epoll_wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    let Some(net) = net() else {
        return system::epoll_wait(epoll, events, limit, mask);
    };
    let now = sys::time::monotonic;
    let until = limit.and_then(|limit| now().checked_add(limit));
    loop {
        let changes = ENTRIES.changes();
        let entries = ENTRIES.of(epoll);
        let interests: Vec<_> = entries
            .iter()
            .filter_map(|entry| Some((*entry, interest(entry)?)))
            .collect();
        let requested: Vec<_> = interests.iter().map(|(_, interest)| *interest).collect();
        let mut others = [pollfd {
            fd: epoll,
            events: POLLIN,
            revents: 0,
        }];
        let set = Set {
            number: epoll,
            has_changed: &|| ENTRIES.changes() != changes,
        };
        let left = until.map(|until| until.saturating_sub(now()));
        net.wait_for(&requested, &mut others, (left, mask), Some(&set))?;
        let mut written = take(net, &interests, events);
        if others[0].revents != 0 {
            match take_others(epoll, &mut events[written..]) {
                Ok(found) => written += found,
                // Another thread has closed the instance.
                Err(error) if written == 0 => return Err(error),
                Err(_) => {}
            }
        }
        // Another thread may have taken what was there, or changed what is waited for.
        if written > 0 || until.is_some_and(|until| now() >= until) {
            return Ok(written);
        }
    }
}

/// Writes the events of descriptors that are not ours; returns how many there are.
///
/// # Errors
/// Those of epoll_pwait2(2).
fn take_others(epoll: RawFd, events: &mut [epoll_event]) -> Result<usize, Errno> {
    if events.is_empty() {
        return Ok(0);
    }
    let found = system::epoll_wait(epoll, events, Some(Duration::ZERO), Mask::NONE)?;
    let found = found.min(events.len());
    Ok(WAKER.take(&mut events[..found]).unwrap_or(found))
}

/// Writes the events of sockets; returns how many there are.
fn take(net: &Net, interests: &[(Entry, Interest)], events: &mut [epoll_event]) -> usize {
    let mut written = 0;
    for (entry, interest) in interests {
        let changes = net.changes(interest.id);
        let found = net.ready(interest.id, interest.events);
        if found == 0 || interest.known == Some(changes) {
            continue;
        }
        let Some(event) = events.get_mut(written) else {
            break;
        };
        *event = epoll_event {
            events: u32::from(found.cast_unsigned()),
            u64: entry.data,
        };
        written += 1;
        ENTRIES.reported(entry, changes);
    }
    written
}

/// A socket has become the kernel's: so do its entries.
pub(super) fn give_to_kernel(fd: RawFd) {
    for entry in ENTRIES.with(fd) {
        let mut event = epoll_event {
            events: entry.events,
            u64: entry.data,
        };
        // SAFETY: the event is there for the call.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_ctl,
                entry.epoll,
                libc::EPOLL_CTL_ADD,
                fd,
                &raw mut event,
            )
        };
    }
    ENTRIES.closed(fd);
}
