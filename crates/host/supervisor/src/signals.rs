//! Signals to the supervisor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use model::Requester;

/// Signal that the supervisor handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Signal {
    /// SIGTERM, SIGINT: ends Lasthop.
    Terminate,
    /// SIGHUP: reads the configuration again. With the sender, if it is a process.
    Reload(Option<Requester>),
}

/// Blocks the signals; they become readable on the descriptor.
///
/// # Errors
/// Failed system call.
pub(super) fn block() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by sigemptyset before anything reads it, and signalfd's result
    // is a new descriptor without another owner.
    unsafe {
        // An inherited "ignore" would make the kernel discard exit statuses.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGHUP);
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        match libc::signalfd(-1, set.as_ptr(), flags) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Returns the next pending signal.
pub(super) fn next(signals: &OwnedFd) -> Option<Signal> {
    // signalfd(2): one structure per signal, which starts with its number.
    let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
    // A failed read finds none.
    let read = rustix::io::read(signals, &mut buffer).unwrap_or(0);
    let buffer = (read == buffer.len()).then_some(&buffer)?;
    match number_at(buffer, 0) as i32 {
        libc::SIGHUP => Some(Signal::Reload(sender(buffer))),
        _ => Some(Signal::Terminate),
    }
}

/// Returns the sender of a signal; `None` for signals of the kernel, for example when a terminal is
/// closed.
fn sender(buffer: &[u8]) -> Option<Requester> {
    // ssi_code, ssi_pid and ssi_uid.
    let (code, pid, uid) = (
        number_at(buffer, 8) as i32,
        number_at(buffer, 12),
        number_at(buffer, 16),
    );
    let is_a_process = [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL].contains(&code);
    // 0 is a process outside of our PID namespace.
    let pid = Some(pid).filter(|pid| *pid != 0);
    is_a_process.then_some(Requester { uid, pid })
}

/// Returns four bytes as a number; 0 beyond the end.
fn number_at(buffer: &[u8], at: usize) -> u32 {
    let four = buffer.get(at..).and_then(<[u8]>::first_chunk);
    four.map_or(0, |four| u32::from_ne_bytes(*four))
}
