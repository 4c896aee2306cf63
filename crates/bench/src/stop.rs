//! Ctrl-C and SIGTERM end the run in order: whatever waits gives up, and what was started is
//! dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM cause errors of [`check`] instead of ending the process. Programs that
/// are started get the default back, because handlers do not survive `exec`.
pub(crate) fn on_signals() -> Result<()> {
    let handler: extern "C" fn(libc::c_int) = note;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a handler may do only what is async-signal-safe; `note` stores to an atomic and
        // nothing else.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            bail!(
                "no handler for signal {signal}: {}",
                std::io::Error::last_os_error()
            );
        }
    }
    Ok(())
}

/// # Errors
/// When the run was interrupted.
pub(crate) fn check() -> Result<()> {
    if STOPPED.load(Ordering::Relaxed) {
        bail!("interrupted; everything that was started has been taken down");
    }
    Ok(())
}

/// Sleeps, unless the run is interrupted meanwhile.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Asks `ready` every 5 ms until it has an answer.
///
/// # Errors
/// After `limit`, when interrupted, and when `ready` fails.
pub(crate) fn wait<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        check()?;
        if let Some(answer) = ready()? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            bail!("{what}: not within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
