//! Control process; started by `lasthop run`.

use process::sandbox::filter::{
    self, AllowedCall, DESCRIPTORS, ROOM, RUNTIME, WAITING, call, options, requests,
};

/// System calls of control beside [`RUNTIME`] once it serves its API.
#[rustfmt::skip]
const LIST: &[AllowedCall] = &[
    call(libc::SYS_epoll_pwait2, "waiting for events"),
    call(libc::SYS_epoll_pwait, "the same"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_epoll_wait, "the same"),
    call(libc::SYS_read, "requests; notifications of rings"),
    call(libc::SYS_recvmsg, "messages of the switch and of the supervisor"),
    call(libc::SYS_sendmsg, "messages to them"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_poll, "waiting for answers"),
    call(libc::SYS_ppoll, "the same"),
    call(libc::SYS_recvfrom, "requests"),
    call(libc::SYS_sendto, "answers"),
    call(libc::SYS_accept4, "clients of the API"),
    call(libc::SYS_getsockopt, "whether a client's connection has failed"),
    options(ROOM, "send buffer of a client"),
    call(libc::SYS_shutdown, "the end of an answer"),
    call(libc::SYS_epoll_ctl, "clients come and go"),
    call(libc::SYS_close, "clients; sockets that were passed on"),
    call(libc::SYS_timer_settime, "the end of a close that waits"),
    requests(libc::SYS_fcntl, DESCRIPTORS, "non-blocking mode; copies; seals of memory"),
    requests(libc::SYS_ioctl, WAITING, "non-blocking mode"),
    call(libc::SYS_pread64, "the state file"),
    call(libc::SYS_pwrite64, "the state file"),
    call(libc::SYS_fstat, "the state file's length"),
    call(libc::SYS_memfd_create, "a message that is too long for the link"),
];

const NAME: &str = "lasthop-control";

fn main() -> std::process::ExitCode {
    process::main(NAME, Some(process::sandbox::Process::Control), |link| {
        control::process::run(link, || {
            process::set_name(NAME);
            filter::install(&[LIST, RUNTIME].concat())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_options_of_a_socket_its_room_alone_can_be_set() {
        let confine = || filter::install(&[LIST, RUNTIME].concat());
        testkit::confined::assert_room_alone_can_be_set(confine);
    }

    /// A program for a thousand ports may be too long for a datagram.
    #[test]
    fn a_message_that_is_too_long_for_the_link_passes() {
        let confine = || filter::install(&[LIST, RUNTIME].concat());
        testkit::confined::assert_works(confine, ipc::link::passes_a_long_message());
    }
}
