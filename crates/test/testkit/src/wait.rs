//! Waiting for events, with one generous limit. A run that is interrupted stops waiting.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a wait for an event: generous, as it only matters when a test fails.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes [`check`] fail from then on. A signal handler may call it.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// # Errors
/// When the run was interrupted.
pub fn check() -> io::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        let why = "interrupted; everything that was started has been taken down";
        return Err(io::Error::other(why));
    }
    Ok(())
}

/// Sleeps, unless the run is interrupted meanwhile.
///
/// # Errors
/// When the run was interrupted.
pub fn sleep(time: Duration) -> io::Result<()> {
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

/// Calls `probe` every 5 ms until it returns a value.
///
/// # Errors
/// After `limit`, when interrupted, and those of `probe`.
pub fn try_wait<T, E: From<io::Error>>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    let end = Instant::now() + limit;
    loop {
        check()?;
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(io::Error::other(format!("{what}: not within {limit:?}")).into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Calls `probe` every 5 ms until it returns a value; `None` after `limit`.
pub fn within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let found = try_wait("", limit, || Ok::<_, io::Error>(probe()));
    found.ok()
}

/// Calls `probe` every 5 ms until it returns a value.
///
/// # Panics
/// After [`LIMIT`].
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let found = try_wait(what, LIMIT, || Ok::<_, io::Error>(probe()));
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until `holds` returns true.
///
/// # Panics
/// After [`LIMIT`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Asserts that something took less than a limit, in runs of `make timing`, which have the machine
/// to themselves. Elsewhere a busy machine would fail a sound program.
///
/// # Panics
/// When it took longer.
#[track_caller]
pub fn assert_faster(took: Duration, limit: Duration) {
    assert!(!is_timed() || took < limit, "{took:?}, not below {limit:?}");
}

fn is_timed() -> bool {
    std::env::var_os("LASTHOP_TIMING").is_some_and(|value| value == "1")
}

/// Runs something; prints how long it took in runs of `make timing`.
pub fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    if is_timed() {
        println!("{what}: {:?}", start.elapsed());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_with_the_event_or_the_limit() {
        let mut looks = 0;
        wait_until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(within(PAUSE, || None::<()>), None);
        let failed = try_wait("it", PAUSE, || Ok::<Option<()>, io::Error>(None));
        assert!(failed.is_err_and(|error| error.to_string().starts_with("it: not within")));
    }
}
