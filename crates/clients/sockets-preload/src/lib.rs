//! `liblasthop_net.so`: stands in front of those functions of the C library with which a program
//! uses sockets, by `LD_PRELOAD` or by linking with it. Sockets of `AF_INET` and `AF_INET6` are
//! those of a stack in this process, over a port of Lasthop; everything for other descriptors goes
//! to the next function, after one look at a table.
//!
//! Crate `net` does the work.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use interpose::outcome::{done, fail, size};
use interpose::{Library as _, call_next};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sockets::Errno;
use sockets::posix::{self, Sockets};

mod bytes;
mod calls;
mod messages;
mod names;
mod settings;
mod splices;

fn load() {
    // SAFETY: these are the addresses of the functions with these names.
    unsafe { interpose::system::chain(next::ppoll.address(), next::epoll_pwait2.address()) };
    posix::loaded();
}

interpose::functions! { super::load;
    socket bind listen accept accept4 connect getsockname getpeername shutdown
    getsockopt setsockopt ioctl
    read __read_chk readv write writev
    send sendto sendmsg sendmmsg sendfile sendfile64 splice
    recv __recv_chk recvfrom __recvfrom_chk recvmsg recvmmsg
    getaddrinfo
    close dup dup2 dup3 fcntl fcntl64
    poll __poll_chk ppoll __ppoll_chk select pselect
    epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    execve execv execvp execvpe fexecve execveat posix_spawn posix_spawnp
}
interpose::interpose_descriptors!(Sockets);
interpose::interpose_waits!(Sockets);
interpose::interpose_execs!(posix::may_run);
