//! Waits for descriptors (poll(2), epoll(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A limit that the system cannot express is none.
#[inline]
fn timespec(limit: Option<Duration>) -> Option<Timespec> {
    limit.and_then(|limit| limit.try_into().ok())
}

/// Waits until one of the descriptors is ready, until `until` at most. Returns the number of those
/// that are: zero at the deadline.
///
/// # Errors
/// The error of the system call.
pub fn poll(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match rustix::event::poll(fds, timespec(left).as_ref()) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Waits until a descriptor is ready, until `until` at most. Returns in which way: in none at the
/// deadline. `HUP` and `ERR` are returned unrequested.
///
/// # Errors
/// The error of the system call.
pub fn ready(fd: impl AsFd, flags: PollFlags, until: Option<Instant>) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(&fd, flags)];
    poll(&mut fds, until)?;
    Ok(fds[0].revents())
}

/// Waits for events of an epoll descriptor, at most so long; returns as many as `buffer` has room
/// for. An interrupted wait returns none.
///
/// # Errors
/// The error of the system call.
#[inline]
pub fn events(
    epoll: impl AsFd,
    buffer: &mut [MaybeUninit<Event>],
    limit: Option<Duration>,
) -> io::Result<&[Event]> {
    match epoll::wait(epoll, buffer, timespec(limit).as_ref()) {
        Ok((events, _)) => Ok(events),
        Err(Errno::INTR) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};

    use super::*;
    use crate::event;

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let event = event::create().unwrap();
        let until = Instant::now() + Duration::from_millis(5);
        let ready = ready(&event, PollFlags::IN, Some(until)).unwrap();
        assert!(ready.is_empty() && Instant::now() >= until);
    }

    #[test]
    fn a_wait_returns_who_is_ready() {
        let (one, other) = (event::create().unwrap(), event::create().unwrap());
        event::ring(&other).unwrap();
        let mut fds = [&one, &other].map(|fd| PollFd::new(fd, PollFlags::IN));
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
        assert_eq!(fds[0].revents(), PollFlags::empty());
        assert_eq!(fds[1].revents(), PollFlags::IN);
    }

    #[test]
    fn events_have_the_data_of_their_descriptor() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let both = [event::create().unwrap(), event::create().unwrap()];
        for (data, event) in (7..).zip(&both) {
            epoll::add(&epoll, event, EventData::new_u64(data), EventFlags::IN).unwrap();
        }
        let mut buffer = [MaybeUninit::uninit(); 4];
        let limit = Some(Duration::from_millis(1));
        assert!(events(&epoll, &mut buffer, limit).unwrap().is_empty());
        event::ring(&both[1]).unwrap();
        let found = events(&epoll, &mut buffer, None).unwrap();
        let found: Vec<u64> = found.iter().map(|event| event.data.u64()).collect();
        assert_eq!(found, [8]);
    }
}
