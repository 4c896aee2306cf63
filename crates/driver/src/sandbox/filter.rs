//! The system calls that a driver may make once it is set up (seccomp(2)); any other ends it.
//!
//! There is no call here that opens, creates, connects, starts or traces anything, changes a descriptor's settings, or
//! reads a file's name. What a driver has when the list comes into force is all that it ever has.

use std::io;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter,
};

/// A call on the list.
struct Allowed {
    number: c_long,
    /// Its third argument is a protection, which must not be executable.
    no_exec: bool,
}

const fn call(number: c_long, _reason: &'static str) -> Allowed {
    Allowed {
        number,
        no_exec: false,
    }
}

const fn memory(number: c_long, _reason: &'static str) -> Allowed {
    Allowed {
        number,
        no_exec: true,
    }
}

/// The list. The calls for each frame come first, because it is gone through from the start.
#[rustfmt::skip]
const LIST: &[Allowed] = &[
    call(libc::SYS_read, "frames of a TAP device; answers of the switch"),
    call(libc::SYS_write, "frames for a TAP device; kicks; the log"),
    call(libc::SYS_recvmmsg, "frames of a packet socket"),
    call(libc::SYS_sendmmsg, "frames for a packet socket"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_epoll_wait, "waiting for frames and buffers"),
    call(libc::SYS_epoll_pwait, "the same, where there is no epoll_wait"),
    call(libc::SYS_epoll_ctl, "whether room in the interface is to be told"),
    call(libc::SYS_recvmsg, "the supervisor's messages"),
    call(libc::SYS_sendmsg, "pongs and last words; setting up queues with the switch"),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_poll, "waiting for the supervisor and the switch"),
    call(libc::SYS_ppoll, "the same, where there is no poll"),
    call(libc::SYS_recvfrom, "answers of the switch, by the standard library's read"),
    call(libc::SYS_close, "what was handed to the switch; descriptors nobody asked for"),
    call(libc::SYS_futex, "threads that wait for one another"),
    call(libc::SYS_sched_yield, "the same"),
    call(libc::SYS_clock_gettime, "times in the log, where the vDSO has no clock"),
    call(libc::SYS_writev, "the log, where it is written in pieces"),
    call(libc::SYS_getrandom, "seeds of the standard library's hash tables"),
    call(libc::SYS_brk, "the allocator"),
    memory(libc::SYS_mmap, "the allocator; nothing executable"),
    memory(libc::SYS_mprotect, "the allocator; nothing executable"),
    call(libc::SYS_munmap, "the allocator; a thread's stack at its end"),
    call(libc::SYS_mremap, "the allocator"),
    call(libc::SYS_madvise, "the allocator; a thread's stack at its end"),
    call(libc::SYS_sigaltstack, "a thread's end"),
    call(libc::SYS_rt_sigprocmask, "the same; abort"),
    call(libc::SYS_sched_getaffinity, "the allocator counts processors for its arenas"),
    call(libc::SYS_rt_sigaction, "abort"),
    call(libc::SYS_rt_sigreturn, "the end of a signal handler"),
    call(libc::SYS_getpid, "abort"),
    call(libc::SYS_gettid, "abort"),
    call(libc::SYS_tgkill, "abort"),
    call(libc::SYS_restart_syscall, "a call that a stop signal interrupted"),
    call(libc::SYS_exit, "the end of a thread"),
    call(libc::SYS_exit_group, "the end"),
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data`: the low halves on a little-endian machine.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const THIRD_ARGUMENT_AT: u32 = 16 + 2 * 8;

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

/// The program that the kernel runs before each system call.
fn program() -> Vec<sock_filter> {
    const EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
    const ANY_OF: u32 = BPF_JMP | BPF_JSET | BPF_K;
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let kill = answer(libc::SECCOMP_RET_KILL_PROCESS);
    let mut program = vec![
        load(ARCHITECTURE_AT),
        jump(EQUAL, ARCHITECTURE, 1, 0),
        kill,
        load(NUMBER_AT),
    ];
    for allowed in LIST {
        let number = allowed.number as u32;
        if allowed.no_exec {
            program.extend([
                jump(EQUAL, number, 0, 4),
                load(THIRD_ARGUMENT_AT),
                jump(ANY_OF, libc::PROT_EXEC as u32, 0, 1),
                kill,
                allow,
            ]);
        } else {
            program.extend([jump(EQUAL, number, 0, 1), allow]);
        }
    }
    program.push(kill);
    program
}

/// Puts the list into force for all threads.
///
/// # Errors
/// A kernel without seccomp.
pub(super) fn install() -> io::Result<()> {
    let mut program = program();
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

    /// Runs the program as the kernel would; what it answers.
    fn run(architecture: u32, number: u32, third: u32) -> u32 {
        let program = program();
        let (mut at, mut register) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                c if c == BPF_LD | BPF_W | BPF_ABS => {
                    register = match k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        THIRD_ARGUMENT_AT => third,
                        other => panic!("no field at {other}"),
                    };
                }
                c if c == BPF_JMP | BPF_JEQ | BPF_K => {
                    at += usize::from(if register == k { jt } else { jf });
                }
                c if c == BPF_JMP | BPF_JSET | BPF_K => {
                    at += usize::from(if register & k != 0 { jt } else { jf });
                }
                c if c == BPF_RET | BPF_K => return k,
                other => panic!("no instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let (allow, kill) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
        for number in 0..1000 {
            let listed = LIST.iter().any(|a| a.number == number);
            let expected = if listed { allow } else { kill };
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
        for number in [
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_execve,
            libc::SYS_ioctl,
        ] {
            assert_eq!(run(ARCHITECTURE, number as u32, 0), kill);
        }
    }
}
