//! `liblasthop_netmap.so`: stands in front of those functions of the C library with which a program
//! uses netmap, by `LD_PRELOAD` or by linking with it. Opening `/dev/netmap` is what it takes;
//! everything for other descriptors goes to the next function, after one look at a table.
//!
//! Crate `netmap` does the work.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use interpose::outcome::done;
use interpose::{Library as _, call_next};
use libc::{mode_t, off_t, size_t};
use netmap::{Netmap, device};

mod files;

fn load() {
    // SAFETY: these are the addresses of the functions with these names.
    unsafe { interpose::system::chain(next::ppoll.address(), next::epoll_pwait2.address()) };
}

interpose::functions! { super::load;
    open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2
    close dup dup2 dup3 fcntl fcntl64 ioctl mmap mmap64 munmap
    poll __poll_chk ppoll __ppoll_chk select pselect
    epoll_ctl epoll_wait epoll_pwait epoll_pwait2
}
interpose::interpose_descriptors!(Netmap);
interpose::interpose_waits!(Netmap);
