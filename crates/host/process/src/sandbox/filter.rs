//! A list of the system calls that a process may make (seccomp(2)); any other ends it.
//!
//! Calls that are newer than these lists fail as in a kernel that lacks them: a newer C library
//! tries them first, and falls back to an older way.

use std::io;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
    c_long, sock_filter,
};

/// Treatment of a call on a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Allow,
    /// Allowed unless its third argument, a protection, is executable.
    AllowData,
    /// Allowed if the argument at this offset is one of these; else it fails with `EPERM`.
    AllowValues(u32, &'static [u32]),
    /// Allowed if its second and third argument are one of these pairs; else it fails with `EPERM`.
    AllowPairs(&'static [(u32, u32)]),
    /// Allowed if its arguments are one of these; else it fails with `EPERM`.
    AllowSockets(&'static [SocketKind]),
    /// Fails with an error; the caller continues without it.
    Refuse,
}

/// Address family, type and protocol of a socket (socket(2)).
pub type SocketKind = (i32, i32, i32);

/// The part of the type argument that is no flag (`SOCK_TYPE_MASK` of the kernel).
const SOCKET_TYPE: u32 = 0xf;

/// A call on a list.
#[derive(Clone, Copy, Debug)]
pub struct AllowedCall {
    number: c_long,
    verdict: Verdict,
}

impl AllowedCall {
    /// Returns its number (syscalls(2)).
    #[must_use]
    pub const fn number(&self) -> c_long {
        self.number
    }
}

/// Allows a call, with the reason.
#[must_use]
pub const fn call(number: c_long, _reason: &'static str) -> AllowedCall {
    AllowedCall {
        number,
        verdict: Verdict::Allow,
    }
}

/// Allows a call that maps or protects memory, which must not become executable.
#[must_use]
pub const fn memory(number: c_long, _reason: &'static str) -> AllowedCall {
    AllowedCall {
        number,
        verdict: Verdict::AllowData,
    }
}

/// Allows a call of many purposes, such as ioctl(2) and fcntl(2), only with these requests as its
/// second argument. Any other fails with `EPERM`, because the C library tries some that are not
/// essential (whether a descriptor is a terminal).
#[must_use]
pub const fn requests(
    number: c_long,
    allowed: &'static [u32],
    _reason: &'static str,
) -> AllowedCall {
    AllowedCall {
        number,
        verdict: Verdict::AllowValues(SECOND_ARGUMENT_AT, allowed),
    }
}

/// Allows setsockopt(2) with these options only, each with its level. Any other fails with `EPERM`.
#[must_use]
pub const fn options(allowed: &'static [(u32, u32)], _reason: &'static str) -> AllowedCall {
    AllowedCall {
        number: libc::SYS_setsockopt,
        verdict: Verdict::AllowPairs(allowed),
    }
}

/// Allows socket(2) for these kinds of sockets only, each with any flags. Any other fails with
/// `EPERM`: a family alone would open more protocols than its name says (SCTP, DCCP, MPTCP, L2TP),
/// and load their modules.
#[must_use]
pub const fn sockets(kinds: &'static [SocketKind], _reason: &'static str) -> AllowedCall {
    AllowedCall {
        number: libc::SYS_socket,
        verdict: Verdict::AllowSockets(kinds),
    }
}

/// Lets a call fail with `EACCES`, because its caller works without.
#[must_use]
pub const fn refused(number: c_long, _reason: &'static str) -> AllowedCall {
    AllowedCall {
        number,
        verdict: Verdict::Refuse,
    }
}

/// Calls that every process of Lasthop needs at any time: memory, the log, the end.
#[rustfmt::skip]
pub const RUNTIME: &[AllowedCall] = &[
    call(libc::SYS_futex, "threads that wait for one another"),
    call(libc::SYS_sched_yield, "the same"),
    call(libc::SYS_clock_gettime, "the time, where the vDSO has no clock"),
    call(libc::SYS_brk, "the allocator"),
    memory(libc::SYS_mmap, "the allocator; nothing executable"),
    memory(libc::SYS_mprotect, "the allocator; nothing executable"),
    call(libc::SYS_munmap, "the allocator; a thread's stack at its end"),
    call(libc::SYS_mremap, "the allocator"),
    call(libc::SYS_madvise, "the allocator; a thread's stack at its end"),
    call(libc::SYS_sched_getaffinity, "the allocator counts CPUs for its arenas"),
    call(libc::SYS_getrandom, "seeds of the standard library's hash tables"),
    call(libc::SYS_write, "the log"),
    call(libc::SYS_writev, "the log, where it is written in pieces"),
    call(libc::SYS_sigaltstack, "a thread's end"),
    call(libc::SYS_rt_sigprocmask, "the same; abort"),
    call(libc::SYS_rt_sigaction, "abort"),
    call(libc::SYS_rt_sigreturn, "the end of a signal handler"),
    call(libc::SYS_getpid, "abort"),
    call(libc::SYS_gettid, "abort"),
    call(libc::SYS_tgkill, "abort; none can be signalled that has another user"),
    call(libc::SYS_restart_syscall, "a call that a stop signal interrupted"),
    call(libc::SYS_exit, "the end of a thread"),
    call(libc::SYS_exit_group, "the end"),
    refused(libc::SYS_openat, "a panic report looks for symbols, the allocator for CPUs"),
    #[cfg(target_arch = "x86_64")]
    refused(libc::SYS_readlink, "the report of a panic looks for the program"),
    refused(libc::SYS_getcwd, "the report of a panic shortens paths"),
];

/// Commands of fcntl(2) that the switch and control need: none that has signals sent or takes a
/// lease or a lock.
pub const DESCRIPTORS: &[u32] = &[
    libc::F_DUPFD_CLOEXEC as u32,
    libc::F_GETFD as u32,
    libc::F_SETFD as u32,
    libc::F_GETFL as u32,
    libc::F_SETFL as u32,
    libc::F_ADD_SEALS as u32,
    libc::F_GET_SEALS as u32,
];

/// Options of sockets that they need: room for messages. `SO_LINGER` is none of them: by it another
/// process would wait when it closes the last descriptor of a connection.
pub const ROOM: &[(u32, u32)] = &[(libc::SOL_SOCKET as u32, libc::SO_SNDBUF as u32)];

/// Requests of ioctl(2) that they need: non-blocking mode, bytes that wait, and what kind of file
/// it is; none of a terminal, on which a process could type (`TIOCSTI`, `TIOCLINUX`).
pub const WAITING: &[u32] = &[
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::FIOQSIZE as u32,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data`: the low halves on a little-endian machine.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const FIRST_ARGUMENT_AT: u32 = 16;
const SECOND_ARGUMENT_AT: u32 = 16 + 8;
const THIRD_ARGUMENT_AT: u32 = 16 + 2 * 8;
/// The first call that did not exist when the lists were written (`mseal` is 462), the same on all
/// machines since 424.
const YOUNG: u32 = 463;
/// The first number that is not a call of this machine: x86-64 has its x32 calls there.
const NO_CALL: u32 = 0x4000_0000;

const fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

const fn load(at: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, at)
}

const fn answer(action: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, action)
}

const EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
const AT_LEAST: u32 = BPF_JMP | BPF_JGE | BPF_K;
const ANY_OF: u32 = BPF_JMP | BPF_JSET | BPF_K;

const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const KILL: sock_filter = answer(libc::SECCOMP_RET_KILL_PROCESS);

const fn fail(error: i32) -> sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | error as u32)
}

/// Returns the program that the kernel runs before each system call.
fn program(list: &[AllowedCall]) -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE_AT),
        jump(EQUAL, ARCHITECTURE, 1, 0),
        KILL,
        load(NUMBER_AT),
    ];
    for allowed in list {
        add_call(&mut program, allowed);
    }
    program.extend([
        jump(AT_LEAST, NO_CALL, 1, 0),
        jump(AT_LEAST, YOUNG, 1, 0),
        KILL,
        fail(libc::ENOSYS),
    ]);
    program
}

/// Adds the instructions for one system call. Its number is loaded.
fn add_call(program: &mut Vec<sock_filter>, allowed: &AllowedCall) {
    let number = allowed.number as u32;
    match allowed.verdict {
        Verdict::Allow => program.extend([jump(EQUAL, number, 0, 1), ALLOW]),
        Verdict::Refuse => program.extend([jump(EQUAL, number, 0, 1), fail(libc::EACCES)]),
        Verdict::AllowData => program.extend([
            jump(EQUAL, number, 0, 4),
            load(THIRD_ARGUMENT_AT),
            jump(ANY_OF, libc::PROT_EXEC as u32, 0, 1),
            KILL,
            ALLOW,
        ]),
        // The kernel, too, reads the lower half only.
        Verdict::AllowValues(at, allowed) => {
            let count = u8::try_from(allowed.len()).expect("a short list");
            program.extend([jump(EQUAL, number, 0, count + 3), load(at)]);
            let left = (0..count).rev().map(|left| left + 1);
            let each = allowed.iter().zip(left);
            program.extend(each.map(|(request, to)| jump(EQUAL, *request, to, 0)));
            program.extend([fail(libc::EPERM), ALLOW]);
        }
        Verdict::AllowPairs(allowed) => {
            let pairs = allowed.iter().flat_map(|&(second, third)| {
                [
                    load(SECOND_ARGUMENT_AT),
                    jump(EQUAL, second, 0, 3),
                    load(THIRD_ARGUMENT_AT),
                    jump(EQUAL, third, 0, 1),
                    ALLOW,
                ]
            });
            let pairs: Vec<_> = pairs.collect();
            let end = u8::try_from(pairs.len() + 1).expect("fewer than 51 pairs");
            program.push(jump(EQUAL, number, 0, end));
            program.extend(pairs);
            program.push(fail(libc::EPERM));
        }
        Verdict::AllowSockets(allowed) => {
            let kinds = allowed.iter().flat_map(|&(family, of, protocol)| {
                [
                    load(FIRST_ARGUMENT_AT),
                    jump(EQUAL, family as u32, 0, 6),
                    load(SECOND_ARGUMENT_AT),
                    statement(BPF_ALU | BPF_AND | BPF_K, SOCKET_TYPE),
                    jump(EQUAL, of as u32, 0, 3),
                    load(THIRD_ARGUMENT_AT),
                    jump(EQUAL, protocol as u32, 0, 1),
                    ALLOW,
                ]
            });
            let kinds: Vec<_> = kinds.collect();
            let end = u8::try_from(kinds.len() + 1).expect("fewer than 32 kinds");
            program.push(jump(EQUAL, number, 0, end));
            program.extend(kinds);
            program.push(fail(libc::EPERM));
        }
    }
}

/// Installs a list for all threads. The kernel tests it from its start at each call: the frequent
/// ones come first.
///
/// # Errors
/// A kernel without seccomp.
pub fn install(list: &[AllowedCall]) -> io::Result<()> {
    install_program(&mut program(list))
}

/// Lets one call fail with `EPERM` in all threads, and in all programs that they execute; all other
/// calls stay as they are.
///
/// # Errors
/// A kernel without seccomp.
pub fn refuse(number: c_long) -> io::Result<()> {
    install_program(&mut without(number as u32))
}

/// Returns the program of [`refuse`].
fn without(number: u32) -> [sock_filter; 7] {
    const EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
    [
        load(ARCHITECTURE_AT),
        // Another machine's calls have other numbers.
        jump(EQUAL, ARCHITECTURE, 0, 3),
        load(NUMBER_AT),
        jump(EQUAL, number, 1, 0),
        jump(EQUAL, number | NO_CALL, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn install_program(program: &mut [sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let (mode, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) };
    match done {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has another list"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[AllowedCall] = &[
        call(libc::SYS_read, ""),
        memory(libc::SYS_mmap, ""),
        memory(libc::SYS_mprotect, ""),
        refused(libc::SYS_openat, ""),
        requests(libc::SYS_ioctl, REQUESTS, ""),
        sockets(KINDS, ""),
        options(OPTIONS, ""),
        call(libc::SYS_exit_group, ""),
    ];
    const OPTIONS: &[(u32, u32)] = &[
        (libc::SOL_SOCKET as u32, libc::SO_OOBINLINE as u32),
        (libc::SOL_IPV6 as u32, libc::IPV6_RECVERR as u32),
        (REQUESTS[0], 3),
    ];
    const KINDS: &[SocketKind] = &[
        (libc::AF_INET, libc::SOCK_STREAM, 0),
        (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
        // Of the first argument of `run`.
        (FIRST, (REQUESTS[0] & SOCKET_TYPE) as i32, 3),
    ];
    /// The first argument of calls, where a test has none of its own.
    const FIRST: i32 = 77;
    const REQUESTS: &[u32] = &[libc::FIONBIO as u32, libc::FIONREAD as u32];

    /// Runs the program as the kernel would; returns its verdict.
    fn run(architecture: u32, number: u32, third: u32) -> u32 {
        run_with(architecture, number, [REQUESTS[0], third])
    }

    /// Runs the program with a second and a third argument.
    fn run_with(architecture: u32, number: u32, [second, third]: [u32; 2]) -> u32 {
        let arguments = [FIRST as u32, second, third];
        run_program(&program(LIST), architecture, number, arguments)
    }

    fn run_program(
        program: &[sock_filter],
        architecture: u32,
        number: u32,
        [first, second, third]: [u32; 3],
    ) -> u32 {
        let (mut at, mut register) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                c if c == BPF_LD | BPF_W | BPF_ABS => {
                    register = match k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        FIRST_ARGUMENT_AT => first,
                        SECOND_ARGUMENT_AT => second,
                        THIRD_ARGUMENT_AT => third,
                        other => panic!("no field at {other}"),
                    };
                }
                c if c == BPF_JMP | BPF_JEQ | BPF_K => {
                    at += usize::from(if register == k { jt } else { jf });
                }
                c if c == BPF_JMP | BPF_JGE | BPF_K => {
                    at += usize::from(if register >= k { jt } else { jf });
                }
                c if c == BPF_JMP | BPF_JSET | BPF_K => {
                    at += usize::from(if register & k != 0 { jt } else { jf });
                }
                c if c == BPF_ALU | BPF_AND | BPF_K => register &= k,
                c if c == BPF_RET | BPF_K => return k,
                other => panic!("no instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let (allow, kill) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
        let fail = |error: i32| libc::SECCOMP_RET_ERRNO | error as u32;
        for number in 0..1000 {
            let expected = match LIST.iter().find(|a| a.number == number) {
                Some(a) if a.verdict == Verdict::Refuse => fail(libc::EACCES),
                Some(_) => allow,
                None if number < 463 => kill,
                None => fail(libc::ENOSYS),
            };
            assert_eq!(
                run(ARCHITECTURE, number as u32, 3),
                expected,
                "call {number}"
            );
            assert_eq!(run(ARCHITECTURE ^ 1, number as u32, 3), kill);
            // The x32 calls of x86-64.
            assert_eq!(run(ARCHITECTURE, number as u32 | 0x4000_0000, 3), kill);
        }
        for number in [libc::SYS_mmap, libc::SYS_mprotect] {
            assert_eq!(
                run(ARCHITECTURE, number as u32, 5),
                kill,
                "executable memory"
            );
        }
    }

    #[test]
    fn of_one_refused_call_no_form_is_left() {
        let number = libc::SYS_bpf as u32;
        let verdict = |architecture, number| {
            run_program(&without(libc::SYS_bpf as u32), architecture, number, [0; 3])
        };
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for call in [number, number | NO_CALL] {
            assert_eq!(verdict(ARCHITECTURE, call), refused);
        }
        for call in [number - 1, number + 1, 0, libc::SYS_execveat as u32] {
            assert_eq!(verdict(ARCHITECTURE, call), libc::SECCOMP_RET_ALLOW);
        }
        assert_eq!(
            verdict(ARCHITECTURE ^ 1, 0),
            refused,
            "all of another machine"
        );
    }

    #[test]
    fn of_a_call_of_many_purposes_only_those_listed_are_allowed() {
        let ioctl = |request| run_with(ARCHITECTURE, libc::SYS_ioctl as u32, [request, 0]);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for request in REQUESTS {
            assert_eq!(ioctl(*request), libc::SECCOMP_RET_ALLOW);
        }
        for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSCTTY, 0] {
            assert_eq!(ioctl(request as u32), refused, "{request:#x}");
        }
        let socket = |(family, of, protocol): SocketKind| {
            let arguments = [family, of, protocol].map(|argument| argument as u32);
            run_program(
                &program(LIST),
                ARCHITECTURE,
                libc::SYS_socket as u32,
                arguments,
            )
        };
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for (family, of, protocol) in &KINDS[..2] {
            for of in [*of, of | flags] {
                assert_eq!(socket((*family, of, *protocol)), libc::SECCOMP_RET_ALLOW);
            }
        }
        for kind in [
            (libc::AF_UNIX, libc::SOCK_STREAM, 0),
            (libc::AF_PACKET, libc::SOCK_STREAM, 0),
            (libc::AF_INET, libc::SOCK_SEQPACKET, 0),
            (libc::AF_INET, libc::SOCK_RAW | flags, 0),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
            (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
            (libc::AF_INET6, libc::SOCK_STREAM, 0),
            (libc::AF_INET6, libc::SOCK_DGRAM, 0),
        ] {
            assert_eq!(socket(kind), refused, "{kind:?}");
        }
        let option = |level: i32, name: i32| {
            let arguments = [level as u32, name as u32];
            run_with(ARCHITECTURE, libc::SYS_setsockopt as u32, arguments)
        };
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_OOBINLINE),
            (libc::SOL_IPV6, libc::IPV6_RECVERR),
        ] {
            assert_eq!(option(level, name), libc::SECCOMP_RET_ALLOW);
        }
        // Numbers of one level are others' at another: 25 is both of these.
        assert_eq!(libc::SO_BINDTODEVICE, libc::IPV6_RECVERR);
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_LINGER),
            (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
            (libc::SOL_IPV6, libc::SO_OOBINLINE),
        ] {
            assert_eq!(option(level, name), refused, "{level} {name}");
        }
        // The following entries of the list are not affected.
        let end = run_with(ARCHITECTURE, libc::SYS_exit_group as u32, [0, 0]);
        assert_eq!(end, libc::SECCOMP_RET_ALLOW);
    }
}
