//! The system calls that a driver may make once it is set up; any other ends it.
//!
//! There is no call here that opens, creates, connects, starts, signals or traces anything, changes
//! a descriptor's settings, or reads a file's name, but for the sockets of user ports. Every other
//! driver never gets more than it has when the list comes into force. A panic prints its message
//! and then ends the process by a call that is not on the list, which is as good an end as any.

use interfaces::vhost;
use ipc::driving::BackEnd;
use process::sandbox::filter::{
    AllowedCall, SocketKind, call, memory, options, refused, requests, sockets,
};

/// The list for a back end. The calls for each frame come first, because it is gone through from
/// the start.
pub(crate) fn list(back_end: BackEnd) -> Vec<AllowedCall> {
    let own = match back_end {
        BackEnd::Tap => TAP,
        BackEnd::Packet => PACKET,
        BackEnd::Xdp { .. } => XDP,
        BackEnd::VhostNet => VHOST_NET,
        BackEnd::User => USER,
    };
    [own, LIST].concat()
}

/// System calls that only TAP devices need.
const TAP: &[AllowedCall] = &[call(libc::SYS_writev, "super-frames for a TAP device")];

/// System calls that only packet sockets need.
const PACKET: &[AllowedCall] = &[call(
    libc::SYS_getsockopt,
    "whether the bytes are bounded that may wait in the interface; frames that were dropped",
)];

/// System calls that only `AF_XDP` sockets need.
#[rustfmt::skip]
const XDP: &[AllowedCall] = &[
    call(libc::SYS_sendto, "the system is to look at the ring of frames to send"),
    call(libc::SYS_getsockopt, "frames that a socket has lost"),
];

/// System calls that only vhost devices need. Their memory and rings cannot be changed any more.
const VHOST_NET: &[AllowedCall] = &[requests(
    libc::SYS_ioctl,
    vhost::AT_WORK,
    "the device is to take no more frames of the interface",
)];

/// System calls that only the sockets of user ports need.
#[rustfmt::skip]
const USER: &[AllowedCall] = &[
    call(libc::SYS_sendto, "bytes of guests; finding the host's own addresses"),
    requests(libc::SYS_ioctl, QUEUES, "bytes that the peer has not acknowledged, or that wait"),
    call(libc::SYS_getsockopt, "errors of connections, and the size of their buffers"),
    sockets(SOCKETS, "sockets of flows"),
    call(libc::SYS_accept4, "connections of forwards"),
    call(libc::SYS_connect, "the same; whether there is a way for IPv6"),
    options(OPTIONS, "peeking, datagrams that come together, errors, hops, probes, ports, buffers"),
    call(libc::SYS_shutdown, "a guest has closed its half of a connection"),
    call(libc::SYS_bind, "ports of mappings and of questions at resolvers"),
    call(libc::SYS_getsockname, "addresses of forwards' sockets"),
    call(libc::SYS_mremap, "the allocator, for tables of flows"),
    refused(libc::SYS_openat, "the allocator asks how to give memory of a thread's tables back"),
];

/// Sockets of flows: TCP, UDP, and echo requests (icmp(7), "ping sockets").
const SOCKETS: &[SocketKind] = &[
    (libc::AF_INET, libc::SOCK_STREAM, 0),
    (libc::AF_INET6, libc::SOCK_STREAM, 0),
    (libc::AF_INET, libc::SOCK_DGRAM, 0),
    (libc::AF_INET6, libc::SOCK_DGRAM, 0),
    (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
    (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
];

/// Requests for the lengths of the queues of a socket (`SIOCOUTQ`, `SIOCINQ`; tcp(7)).
const QUEUES: &[u32] = &[libc::TIOCOUTQ as u32, libc::FIONREAD as u32];

/// Levels and options of sockets (setsockopt(2)) that have a use. `SO_LINGER` is none of them: by
/// it the supervisor would wait when it closes the last descriptor of a connection.
const OPTIONS: &[(u32, u32)] = &[
    (libc::IPPROTO_TCP as u32, libc::TCP_NODELAY as u32),
    (libc::IPPROTO_TCP as u32, libc::TCP_KEEPIDLE as u32),
    (libc::IPPROTO_TCP as u32, libc::TCP_KEEPINTVL as u32),
    (libc::IPPROTO_TCP as u32, libc::TCP_KEEPCNT as u32),
    (libc::SOL_SOCKET as u32, libc::SO_OOBINLINE as u32),
    (libc::SOL_SOCKET as u32, libc::SO_KEEPALIVE as u32),
    (libc::SOL_SOCKET as u32, libc::SO_PEEK_OFF as u32),
    (libc::SOL_SOCKET as u32, libc::SO_RCVBUF as u32),
    (libc::SOL_SOCKET as u32, libc::SO_SNDBUF as u32),
    (libc::SOL_SOCKET as u32, crate::user::SO_BUF_LOCK),
    (libc::SOL_UDP as u32, libc::UDP_GRO as u32),
    (libc::SOL_IP as u32, libc::IP_RECVERR as u32),
    (libc::SOL_IP as u32, libc::IP_TTL as u32),
    (libc::SOL_IPV6 as u32, libc::IPV6_RECVERR as u32),
    (libc::SOL_IPV6 as u32, libc::IPV6_UNICAST_HOPS as u32),
    (libc::SOL_IPV6 as u32, libc::IPV6_V6ONLY as u32),
    (libc::SOL_IP as u32, crate::user::IP_LOCAL_PORT_RANGE),
];

/// System calls that all drivers need.
#[rustfmt::skip]
const LIST: &[AllowedCall] = &[
    call(libc::SYS_read, "frames of a TAP device; replies of the switch"),
    call(libc::SYS_write, "frames for a TAP device; kicks; the log"),
    call(libc::SYS_recvmmsg, "frames of a packet socket; datagrams"),
    call(libc::SYS_sendmmsg, "frames for a packet socket; datagrams"),
    call(libc::SYS_epoll_pwait2, "waiting for frames and buffers"),
    call(libc::SYS_clock_nanosleep, "a pause in which frames gather"),
    call(libc::SYS_epoll_ctl, "notification of room in the interface, on or off"),
    call(libc::SYS_recvmsg, "the supervisor's messages"),
    call(libc::SYS_sendmsg, "pongs and the final error; setting up queues with the switch"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_poll, "waiting for the supervisor and the switch"),
    call(libc::SYS_ppoll, "the same, where there is no poll"),
    call(libc::SYS_recvfrom, "answers of the switch; with AF_XDP, a look at the free buffers"),
    call(libc::SYS_close, "descriptors passed to the switch, and unexpected ones"),
    #[cfg(debug_assertions)]
    call(libc::SYS_fcntl, "the standard library checks what it closes"),
    call(libc::SYS_futex, "threads that wait for one another"),
    call(libc::SYS_sched_yield, "the same"),
    call(libc::SYS_clock_gettime, "times in the log, where the vDSO has no clock"),
    call(libc::SYS_getrandom, "seeds of the standard library's hash tables"),
    call(libc::SYS_brk, "the allocator"),
    memory(libc::SYS_mmap, "the allocator; nothing executable"),
    memory(libc::SYS_mprotect, "the allocator; nothing executable"),
    call(libc::SYS_munmap, "the allocator; a thread's stack at its end"),
    call(libc::SYS_madvise, "the allocator; a thread's stack at its end"),
    call(libc::SYS_sigaltstack, "a thread's end"),
    call(libc::SYS_rt_sigprocmask, "the same"),
    call(libc::SYS_sched_getaffinity, "the allocator counts processors for its arenas"),
    call(libc::SYS_restart_syscall, "a call that a stop signal interrupted"),
    call(libc::SYS_exit, "the end of a thread"),
    call(libc::SYS_exit_group, "the end"),
];

#[cfg(test)]
mod tests {
    use testkit::confined::refused_options;

    use super::*;

    /// The names of all calls on the lists.
    macro_rules! names {
        ($($name:ident $number:ident;)*) => {
            &[$((stringify!($name), libc::$number),)*]
        };
    }
    const NAMES: &[(&str, libc::c_long)] = names! {
        accept4 SYS_accept4;
        bind SYS_bind;
        brk SYS_brk;
        clock_gettime SYS_clock_gettime;
        clock_nanosleep SYS_clock_nanosleep;
        close SYS_close;
        connect SYS_connect;
        epoll_ctl SYS_epoll_ctl;
        epoll_pwait2 SYS_epoll_pwait2;
        exit SYS_exit;
        exit_group SYS_exit_group;
        fcntl SYS_fcntl;
        futex SYS_futex;
        getrandom SYS_getrandom;
        getsockname SYS_getsockname;
        getsockopt SYS_getsockopt;
        ioctl SYS_ioctl;
        madvise SYS_madvise;
        mmap SYS_mmap;
        mprotect SYS_mprotect;
        mremap SYS_mremap;
        munmap SYS_munmap;
        openat SYS_openat;
        ppoll SYS_ppoll;
        read SYS_read;
        recvfrom SYS_recvfrom;
        recvmmsg SYS_recvmmsg;
        recvmsg SYS_recvmsg;
        restart_syscall SYS_restart_syscall;
        rt_sigprocmask SYS_rt_sigprocmask;
        sched_getaffinity SYS_sched_getaffinity;
        sched_yield SYS_sched_yield;
        sendmmsg SYS_sendmmsg;
        sendmsg SYS_sendmsg;
        sendto SYS_sendto;
        setsockopt SYS_setsockopt;
        shutdown SYS_shutdown;
        sigaltstack SYS_sigaltstack;
        socket SYS_socket;
        write SYS_write;
        writev SYS_writev;
    };

    /// A row of the threat model's table.
    fn row(drivers: &str, calls: &[AllowedCall]) -> String {
        let name = |number| {
            let known = NAMES.iter().find(|(_, of)| *of == number);
            known.map_or("unnamed", |(name, _)| name)
        };
        // poll(2) is not everywhere, and fcntl(2) is not in release builds.
        let everywhere = calls
            .iter()
            .map(AllowedCall::number)
            .filter(|number| *number != libc::SYS_fcntl);
        #[cfg(target_arch = "x86_64")]
        let everywhere = everywhere.filter(|number| *number != libc::SYS_poll);
        let mut names: Vec<_> = everywhere
            .map(|number| format!("`{}`", name(number)))
            .collect();
        names.sort();
        names.dedup();
        format!("| {drivers} | {} |\n", names.join(", "))
    }

    #[test]
    fn the_threat_model_has_the_lists() {
        let document = include_str!("../../../../../docs/dev/threat-model.md");
        for (drivers, calls) in [
            ("all", LIST),
            ("`tap`, also", TAP),
            ("`packet`, also", PACKET),
            ("`xdp`, also", XDP),
            ("`vhost-net`, also", VHOST_NET),
            ("`user`, also", USER),
        ] {
            let row = row(drivers, calls);
            assert!(document.contains(&row), "the table lacks this row: {row}");
        }
    }

    #[test]
    fn options_by_which_a_close_waits_are_refused() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = refused_options(
            || process::sandbox::filter::install(&list(BackEnd::User)),
            &socket,
            &[
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
                (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
                (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
                (libc::SOL_IP, libc::IP_TTL),
                (libc::SOL_SOCKET, libc::SO_LINGER),
                (libc::SOL_SOCKET, libc::SO_SNDBUF),
                (libc::IPPROTO_TCP, libc::TCP_LINGER2),
            ],
        );
        let expected = [false, false, false, false, true, false, true];
        assert_eq!(refused, expected);
    }

    #[test]
    fn nothing_is_opened_started_or_signalled() {
        for number in [
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_ioctl,
            libc::SYS_kill,
            libc::SYS_tgkill,
            libc::SYS_rt_sigaction,
            libc::SYS_ptrace,
            libc::SYS_bpf,
            libc::SYS_setsockopt,
        ] {
            for back_end in [BackEnd::Xdp { zero_copy: true }, BackEnd::VhostNet] {
                let list = list(back_end);
                let is_vhost = back_end == BackEnd::VhostNet && number == libc::SYS_ioctl;
                let found = list.iter().any(|allowed| allowed.number() == number);
                assert_eq!(found, is_vhost, "call {number}");
            }
        }
        let packet = list(BackEnd::Packet);
        assert!(
            packet
                .iter()
                .all(|allowed| allowed.number() != libc::SYS_sendto)
        );
    }
}
