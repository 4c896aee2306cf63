//! Results as C has them.

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

/// A result of C's that says failure.
pub trait Failure {
    /// The value that says so.
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for isize {
    const FAILED: Self = -1;
}

impl Failure for *mut c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

/// Sets errno, and returns what says so.
pub fn fail<T: Failure>(error: c_int) -> T {
    // SAFETY: the C library returns the address of this thread's error number.
    unsafe { *libc::__errno_location() = error };
    T::FAILED
}

/// The result of a function of ours, as C has it.
pub fn done<T: Failure>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|errno| fail(errno.raw_os_error()))
}

/// A number of descriptors, as C has it.
pub fn count(result: Result<usize, Errno>) -> c_int {
    done(result.map(|count| count as c_int))
}

/// A number of bytes, as C has it.
pub fn size(result: Result<usize, Errno>) -> isize {
    done(result.map(|size| size as isize))
}
