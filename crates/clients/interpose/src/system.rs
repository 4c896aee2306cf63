//! Waits for descriptors that are not the library's: the system calls themselves, or the functions
//! of another library of this kind that is loaded after this one.

use std::ffi::c_int;
use std::mem;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libc::{epoll_event, nfds_t, pollfd, sigset_t};
use rustix::io::Errno;

/// Library descriptors are at least this, so that the program's own have the numbers that it would
/// see without the library, as far as its limit allows.
const FIRST_OF_LIBRARY: RawFd = 200;

/// Moves a descriptor out of the program's way.
#[must_use]
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_OF_LIBRARY).unwrap_or(fd)
}

type PpollFn =
    unsafe extern "C" fn(*mut pollfd, nfds_t, *const libc::timespec, *const sigset_t) -> c_int;
type EpollPwait2Fn = unsafe extern "C" fn(
    RawFd,
    *mut epoll_event,
    c_int,
    *const libc::timespec,
    *const sigset_t,
) -> c_int;

/// Addresses of the next `ppoll` and `epoll_pwait2`; 0: none.
static NEXT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Has [`poll`] and [`epoll_wait`] call these functions; 0: the system itself.
///
/// # Safety
/// The addresses are those of functions with the types of the C library's.
pub unsafe fn chain(ppoll: usize, epoll_pwait2: usize) {
    NEXT[0].store(ppoll, Ordering::Relaxed);
    NEXT[1].store(epoll_pwait2, Ordering::Relaxed);
}

/// The signal mask of a wait, as the program gave it.
#[derive(Clone, Copy, Debug)]
pub struct Mask(pub *const libc::sigset_t);

impl Mask {
    /// No other mask than the thread's.
    pub const NONE: Self = Self(ptr::null());
}

/// A limit as system calls have it.
#[must_use]
pub fn timespec(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}

/// ppoll(2). `limit`: `None` waits without end.
///
/// # Errors
/// Those of ppoll(2).
pub fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
    // The system writes what is left of the time.
    let limit = limit.map(timespec);
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (array, len) = (fds.as_mut_ptr(), fds.len());
    let next = NEXT[0].load(Ordering::Relaxed);
    if next != 0 {
        // SAFETY: `chain` was called with the address of a function of this type.
        let next = unsafe { mem::transmute::<usize, PpollFn>(next) };
        // SAFETY: the array is as long as it says, and the mask is the program's or null.
        return result(unsafe { next(array, len as nfds_t, limit, mask.0) }.into());
    }
    // SAFETY: the array is as long as it says, and the mask is the program's: 8 bytes or null.
    let ready = unsafe { libc::syscall(libc::SYS_ppoll, array, len, limit, mask.0, 8usize) };
    result(ready)
}

/// epoll_pwait2(2) on an instance of this number. `limit`: `None` waits without end.
///
/// # Errors
/// Those of epoll_pwait2(2).
pub fn epoll_wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: Mask,
) -> Result<usize, Errno> {
    let limit = limit.map(timespec);
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (array, len) = (events.as_mut_ptr(), events.len());
    let next = NEXT[1].load(Ordering::Relaxed);
    if next != 0 {
        // SAFETY: `chain` was called with the address of a function of this type.
        let next = unsafe { mem::transmute::<usize, EpollPwait2Fn>(next) };
        let len = c_int::try_from(len).unwrap_or(c_int::MAX);
        // SAFETY: the array is as long as it says, and the mask is the program's or null.
        return result(unsafe { next(epoll, array, len, limit, mask.0) }.into());
    }
    // SAFETY: the array is as long as it says, and the mask is the program's: 8 bytes or null.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll,
            array,
            len,
            limit,
            mask.0,
            8usize,
        )
    };
    result(count)
}

fn result(returned: i64) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
    })
}
