//! Switch process; started by `lasthop run`.

use process::sandbox::filter::{
    self, AllowedCall, DESCRIPTORS, ROOM, RUNTIME, WAITING, call, options, requests,
};

/// System calls of the switch beside [`RUNTIME`] once its threads run. Those of the data path are
/// first, because the filter compares in this order.
#[rustfmt::skip]
const LIST: &[AllowedCall] = &[
    call(libc::SYS_epoll_pwait2, "waiting for kicks and messages"),
    call(libc::SYS_epoll_pwait, "the same"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_epoll_wait, "the same"),
    call(libc::SYS_read, "frames of TAP devices; kicks; messages of front ends; notifications of rings"),
    call(libc::SYS_write, "calls of queues; notifications of rings; answers to front ends"),
    call(libc::SYS_writev, "frames to TAP devices"),
    call(libc::SYS_recvmmsg, "frames of packet sockets"),
    call(libc::SYS_sendmmsg, "frames to them"),
    call(libc::SYS_timerfd_settime, "looking after frames whose kicks are coalesced"),
    call(libc::SYS_epoll_ctl, "queues and connections come and go"),
    call(libc::SYS_recvmsg, "messages of front ends, control and the supervisor"),
    call(libc::SYS_recvfrom, "peeking at messages of front ends"),
    call(libc::SYS_sendmsg, "answers to them"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_poll, "room for an answer"),
    call(libc::SYS_ppoll, "the same"),
    call(libc::SYS_clock_nanosleep, "the watchdogs' ticks"),
    call(libc::SYS_accept4, "connections to listening sockets"),
    call(libc::SYS_shutdown, "the end of a connection whose socket others hold too"),
    call(libc::SYS_close, "descriptors that a front end replaced"),
    call(libc::SYS_timer_settime, "the end of a close that waits"),
    requests(libc::SYS_fcntl, DESCRIPTORS, "copies for the supervisor; seals; non-blocking mode"),
    requests(libc::SYS_ioctl, WAITING, "non-blocking mode; bytes in a pipe"),
    call(libc::SYS_fstat, "length of a memory file; kind of an event descriptor"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_newfstatat, "the same, in other C libraries"),
    call(libc::SYS_pread64, "translations that a former process has left; long messages"),
    call(libc::SYS_memfd_create, "records of descriptors in flight; rings; long messages"),
    call(libc::SYS_pwrite64, "a message that is too long for the link"),
    call(libc::SYS_ftruncate, "their size"),
    call(libc::SYS_eventfd2, "notifications of rings"),
    call(libc::SYS_pipe2, "answers that are delayed"),
    call(libc::SYS_splice, "sending them to the front end"),
    call(libc::SYS_getsockopt, "kind of a front end's socket"),
    options(ROOM, "room for messages"),
    call(libc::SYS_sched_setaffinity, "the core of a guest that may reply soon"),
];

const NAME: &str = "lasthop-switch";

fn main() -> std::process::ExitCode {
    process::main(NAME, Some(process::sandbox::Process::Switch), |link| {
        datapath::process::run(link, || {
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

    /// The states of a thousand ports may be too long for a datagram.
    #[test]
    fn a_message_that_is_too_long_for_the_link_passes() {
        let confine = || filter::install(&[LIST, RUNTIME].concat());
        testkit::confined::assert_works(confine, ipc::link::passes_a_long_message());
    }
}
