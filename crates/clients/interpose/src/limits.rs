//! Limits of waits, as programs give them.

use std::ffi::c_int;
use std::time::Duration;

use libc::{nfds_t, pollfd, timespec, timeval};
use rustix::io::Errno;

/// A limit in milliseconds; less than 0: none.
#[must_use]
pub fn of_millis(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// A limit in seconds and nanoseconds; null: none.
///
/// # Errors
/// `EINVAL`: it is no time.
///
/// # Safety
/// It is null or leads to a limit.
pub unsafe fn of_timespec(limit: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: the caller says so.
    let Some(limit) = (unsafe { limit.as_ref() }) else {
        return Ok(None);
    };
    let nanos = u32::try_from(limit.tv_nsec)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    match (u64::try_from(limit.tv_sec), nanos) {
        (Ok(seconds), Some(nanos)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Errno::INVAL),
    }
}

/// A limit in seconds and microseconds.
#[must_use]
pub fn of_timeval(limit: &timeval) -> Duration {
    let micros = u64::try_from(limit.tv_usec).unwrap_or(0);
    let seconds = u64::try_from(limit.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// The descriptors of a wait.
///
/// # Safety
/// As poll(2): there are `count` of them, or none.
#[must_use]
pub unsafe fn descriptors<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() {
        return &mut [];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}
