//! The switch process; started by `lasthop run`.

#[path = "../process.rs"]
mod process;

use sandbox::filter::{self, Allowed, DESCRIPTORS, RUNTIME, WAITING, call, requests};

/// What the switch calls beside [`RUNTIME`] once its threads run. Those of the data path come first, because a list is gone
/// through from the start.
#[rustfmt::skip]
const LIST: &[Allowed] = &[
    call(libc::SYS_epoll_pwait2, "waiting for kicks and messages"),
    call(libc::SYS_epoll_pwait, "the same"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_epoll_wait, "the same"),
    call(libc::SYS_read, "kicks; messages of front ends; rings' bells"),
    call(libc::SYS_write, "calls of queues; bells; answers to front ends"),
    call(libc::SYS_epoll_ctl, "queues and connections come and go"),
    call(libc::SYS_recvmsg, "messages of front ends, control and the supervisor"),
    call(libc::SYS_recvfrom, "messages of front ends are looked at before they are taken"),
    call(libc::SYS_sendmsg, "answers to them"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_poll, "room for an answer"),
    call(libc::SYS_ppoll, "the same"),
    call(libc::SYS_clock_nanosleep, "the watchdogs' ticks"),
    call(libc::SYS_accept4, "connections to listening sockets"),
    call(libc::SYS_shutdown, "the end of a connection whose socket others hold too"),
    call(libc::SYS_close, "what a front end has taken back"),
    requests(libc::SYS_fcntl, DESCRIPTORS, "copies for the supervisor; seals of memory; sockets that do not wait"),
    requests(libc::SYS_ioctl, WAITING, "sockets that do not wait; bytes in a pipe"),
    call(libc::SYS_fstat, "how long a memory file is, and what an event descriptor is"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_newfstatat, "the same, in other C libraries"),
    call(libc::SYS_readlinkat, "whether a descriptor is an eventfd"),
    call(libc::SYS_memfd_create, "records of descriptors in flight; rings for control"),
    call(libc::SYS_ftruncate, "their size"),
    call(libc::SYS_eventfd2, "rings' bells"),
    call(libc::SYS_pipe2, "answers that are held back"),
    call(libc::SYS_splice, "their way to the front end"),
    call(libc::SYS_getsockopt, "what kind of socket a front end has sent"),
    call(libc::SYS_setsockopt, "room for messages"),
    call(libc::SYS_sched_setscheduler, "helpers take the lowest priority, and the ordinary one while others wait"),
    call(libc::SYS_sched_setaffinity, "who waits for one has it on its own core"),
    call(libc::SYS_getcpu, "which that is, where the vDSO does not say"),
];

fn main() -> std::process::ExitCode {
    process::main("lasthop-switch", Some(sandbox::Process::Switch), |link| {
        datapath::process::run(link, || filter::install(&[LIST, RUNTIME].concat()))
    })
}
