//! Libraries that stand in front of functions of the C library (symbol interposition, `LD_PRELOAD`,
//! ld.so(8)), for some descriptors of a program: what they have in common.
//!
//! A library of this kind is a cdylib. It defines the functions by the macros of this crate, and
//! implements [`Library`] for its descriptors. A call for any other descriptor goes to the next
//! function of the same name, after one look at a [`table::Table`]: to the C library, or to another
//! library of this kind, so that several can be loaded at once.
//!
//! A panic in a library ends the program: it cannot unwind through a function of C.

use std::ffi::{c_int, c_long};
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{epoll_event, pollfd};
use rustix::io::Errno;

pub mod descriptors;
pub mod epolls;
pub mod execs;
pub mod forks;
pub mod limits;
pub mod next;
pub mod outcome;
pub mod programs;
pub mod say;
pub mod sets;
pub mod system;
pub mod table;
mod waits;

pub use system::Mask;

/// The descriptors of a library.
pub trait Library {
    /// Whether a descriptor is the library's.
    fn is_ours(fd: RawFd) -> bool;

    /// The program closes a descriptor of any kind, or puts another file in its place.
    fn closed(fd: RawFd);

    /// The program has a new descriptor for what `old` is, which is the library's.
    ///
    /// # Errors
    /// The library cannot have it; it is closed.
    fn duplicated(old: RawFd, new: RawFd) -> Result<(), Errno>;

    /// fcntl(2) with a command that duplicates nothing, on a descriptor of the library. `None`: the
    /// next function has it.
    #[must_use]
    fn control(fd: RawFd, command: c_int, argument: c_long) -> Option<Result<c_int, Errno>> {
        let _ = (fd, command, argument);
        None
    }

    /// ppoll(2) over descriptors, some of them the library's. `limit`: `None` waits without end.
    ///
    /// # Errors
    /// Those of ppoll(2).
    fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno>;

    /// Whether an epoll instance has a descriptor of the library.
    fn concerns(epoll: RawFd) -> bool;

    /// epoll_ctl(2) for a descriptor of the library; `event`: events and data.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn epoll_control(
        epoll: RawFd,
        operation: c_int,
        fd: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno>;

    /// Takes the library's own event out of those that the next function has found
    /// ([`epolls::Waker::take`]); returns how many are left. `None`: it is not among them.
    #[must_use]
    fn take_own(events: &mut [epoll_event]) -> Option<usize> {
        let _ = events;
        None
    }

    /// epoll_pwait2(2) of an instance that [`Library::concerns`] the library.
    ///
    /// # Errors
    /// Those of epoll_pwait2(2).
    fn epoll_wait(
        epoll: RawFd,
        events: &mut [epoll_event],
        limit: Option<Duration>,
        mask: Mask,
    ) -> Result<usize, Errno>;
}

/// Whether one of the descriptors is the library's.
#[inline]
#[must_use]
pub fn any_ours<L: Library>(fds: &[pollfd]) -> bool {
    fds.iter().any(|fd| L::is_ours(fd.fd))
}
