//! What the system says to the supervisor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use api::v1::Asker;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// SIGTERM, SIGINT: end.
    End,
    /// SIGHUP: read the configuration again. Whose process has sent it, if it was one.
    Reload(Option<Asker>),
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
    let buffer = (read == buffer.len()).then_some(&buffer)?;
    match number_at(buffer, 0) as i32 {
        libc::SIGHUP => Some(Wish::Reload(sender(buffer))),
        _ => Some(Wish::End),
    }
}

/// Who has sent a signal; nobody where it is the kernel's, as when a terminal hangs up.
fn sender(buffer: &[u8]) -> Option<Asker> {
    // ssi_code, ssi_pid and ssi_uid.
    let (code, pid, uid) = (
        number_at(buffer, 8) as i32,
        number_at(buffer, 12),
        number_at(buffer, 16),
    );
    let is_a_process = [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL].contains(&code);
    // 0 is a process that we cannot see.
    let pid = Some(pid).filter(|pid| *pid != 0);
    is_a_process.then_some(Asker { uid, pid })
}

/// Four bytes as a number; 0 behind the end.
fn number_at(buffer: &[u8], at: usize) -> u32 {
    let four = buffer.get(at..).and_then(<[u8]>::first_chunk);
    four.map_or(0, |four| u32::from_ne_bytes(*four))
}
