//! What the system says to the supervisor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// SIGTERM, SIGINT: end.
    End,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Blocks the signals that we follow; they become readable on the descriptor.
///
/// # Errors
/// The system's refusal.
pub(super) fn block() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by sigemptyset before anything reads it, and signalfd's result is a
    // new descriptor that nobody else owns.
    unsafe {
        // Ignored, which is inherited, it would have the system forget how children end.
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

/// The next signal that has come, if there is one.
pub(super) fn next(signals: &OwnedFd) -> Option<Wish> {
    // signalfd(2): one structure a signal, which starts with its number.
    let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
    // A read that fails finds none.
    let read = rustix::io::read(signals, &mut buffer).unwrap_or(0);
    let number = (read == buffer.len()).then_some(&buffer)?.first_chunk()?;
    match i32::from_ne_bytes(*number) {
        libc::SIGHUP => Some(Wish::Reload),
        _ => Some(Wish::End),
    }
}
