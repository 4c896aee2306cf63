//! Event files: kicks and calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An eventfd.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// A fresh one at 0, non-blocking.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Adds 1.
    ///
    /// # Panics
    /// When the eventfd does not take it, which means that it was never read 2^64 times.
    pub fn signal(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).expect("an eventfd with room");
    }

    /// Takes the count without waiting.
    #[must_use]
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Waits until the count is not 0 and takes it; 0 after `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> u64 {
        if wait_any(&[self], timeout) {
            self.take()
        } else {
            0
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the events is signalled; takes nothing. False after `timeout`.
///
/// # Panics
/// When the system cannot poll.
#[must_use]
pub fn wait_any(events: &[&Event], timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    let mut fds: Vec<PollFd<'_>> = events
        .iter()
        .map(|e| PollFd::new(*e, PollFlags::IN))
        .collect();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a timeout of less than centuries");
        match poll(&mut fds, Some(&left)) {
            Ok(n) => return n > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll: {e}"),
        }
    }
}
