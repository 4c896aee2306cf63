//! `liblasthop_netmap.so`: stands in front of those functions of the C library with which a program
//! uses netmap, by `LD_PRELOAD` or by linking with it. Opening `/dev/netmap` is what it takes;
//! everything for other descriptors goes to the next function, after one look at a table.
//!
//! Crate `netmap` does the work. A panic there ends the process: it cannot unwind through a
//! function of C.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{epoll_event, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t, timespec, timeval};
use netmap::wait::{Mask, Sets};
use netmap::{device, epolls, table, wait};
use next::call_next;

mod files;
mod next;
mod waits;

/// The error number of our library, as rustix has it.
type Errno = netmap::Errno;

/// A result of C's that says failure.
trait Failure {
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for *mut c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

/// Sets errno, and returns what says so.
fn fail<T: Failure>(error: c_int) -> T {
    // SAFETY: the C library returns the address of this thread's error number.
    unsafe { *libc::__errno_location() = error };
    T::FAILED
}

/// The result of a function of ours, as C has it.
fn done<T: Failure>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|errno| fail(errno.raw_os_error()))
}

fn count(result: Result<usize, Errno>) -> c_int {
    done(result.map(|count| count as c_int))
}

/// Looks all functions up before the program's first call, which may come from a signal handler.
extern "C" fn load() {
    for next in next::table::ALL {
        next.look_up();
    }
}

#[used]
// SAFETY: the dynamic loader calls the functions in this section when it has loaded the library.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
