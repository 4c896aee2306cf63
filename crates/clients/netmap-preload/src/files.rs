//! Opening, requests and mappings.

use super::*;

/// Whether a path is netmap's.
///
/// # Safety
/// As open(2): it is a string or null.
unsafe fn is_netmap(path: *const c_char) -> bool {
    // SAFETY: the caller says so.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == c"/dev/netmap"
}

macro_rules! open {
    ($($name:ident)*) => { $(
        /// open(2). The mode is there or not, as for the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the path is the program's.
            if unsafe { is_netmap(path) } {
                return done(device::open());
            }
            type OpenFn = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
            call_next!($name: OpenFn, path, flags, mode)
        }
    )* };
}

macro_rules! open_at {
    ($($name:ident)*) => { $(
        /// openat(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: the path is the program's.
            if unsafe { is_netmap(path) } {
                return done(device::open());
            }
            type OpenAtFn = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
            call_next!($name: OpenAtFn, at, path, flags, mode)
        }
    )* };
}

macro_rules! open_2 {
    ($($name:ident)*) => { $(
        /// open(2) of a program that was compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the path is the program's.
            if unsafe { is_netmap(path) } {
                return done(device::open());
            }
            type OpenFn = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
            call_next!($name: OpenFn, path, flags)
        }
    )* };
}

macro_rules! open_at_2 {
    ($($name:ident)*) => { $(
        /// openat(2) of a program that was compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the path is the program's.
            if unsafe { is_netmap(path) } {
                return done(device::open());
            }
            type OpenAtFn = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
            call_next!($name: OpenAtFn, at, path, flags)
        }
    )* };
}

open! { open open64 }
open_at! { openat openat64 }
open_2! { __open_2 __open64_2 }
open_at_2! { __openat_2 __openat64_2 }

/// ioctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if Netmap::is_ours(fd) {
        // SAFETY: the argument is the program's, as the request needs it.
        let result = unsafe { netmap::ioctl::ioctl(fd, request, argument) };
        return done(result.map(|()| 0));
    }
    type IoctlFn = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
    let result = call_next!(ioctl: IoctlFn, fd, request, argument);
    if result < 0 && netmap::ioctl::is_netmaps(request) {
        device::say_not_ours(fd);
    }
    result
}

macro_rules! mmap {
    ($($name:ident)*) => { $(
        /// mmap(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            address: *mut c_void,
            len: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS == 0 && Netmap::is_ours(fd) {
                let range = (address as usize, len);
                // SAFETY: what the program requests to be replaced is its own.
                let mapped = unsafe { device::map(fd, range, prot, flags, offset.cast_unsigned()) };
                return done(mapped.map(|address| address as *mut c_void));
            }
            if flags & libc::MAP_FIXED != 0 {
                device::unmapped(address as usize, len);
            }
            type MmapFn = unsafe extern "C" fn(
                *mut c_void, size_t, c_int, c_int, c_int, off_t,
            ) -> *mut c_void;
            let mapped = call_next!($name: MmapFn, address, len, prot, flags, fd, offset);
            if mapped == libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0 {
                device::say_if_of_another(fd);
            }
            mapped
        }
    )* };
}

mmap! { mmap mmap64 }

/// munmap(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    device::unmapped(address as usize, len);
    type MunmapFn = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
    call_next!(munmap: MunmapFn, address, len)
}
