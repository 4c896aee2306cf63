//! Ctrl-C and SIGTERM end a run in order: all waits give up, and everything that was started is
//! dropped.

use std::io;
use std::time::Duration;

use anyhow::Result;
use testkit::wait;

extern "C" fn note(_: libc::c_int) {
    wait::interrupt();
}

/// Makes SIGINT and SIGTERM cause errors of [`check`] instead of ending the process. Programs that
/// are started get the default back, because handlers do not survive `exec`.
///
/// # Errors
/// When the kernel refuses.
pub fn on_signals() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = note;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a handler may do only what is async-signal-safe; `note` stores to an atomic and
        // nothing else.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// # Errors
/// When the run was interrupted.
pub fn check() -> Result<()> {
    Ok(wait::check()?)
}

/// Sleeps, unless the run is interrupted meanwhile.
///
/// # Errors
/// When the run was interrupted.
pub fn sleep(time: Duration) -> Result<()> {
    Ok(wait::sleep(time)?)
}

/// Calls `probe` every 5 ms until it returns a value.
///
/// # Errors
/// After `limit`, when interrupted, and those of `probe`.
pub fn try_wait<T>(
    what: &str,
    limit: Duration,
    probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    wait::try_wait(what, limit, probe)
}
