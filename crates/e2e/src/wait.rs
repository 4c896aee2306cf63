//! Waiting for something that another process does.

use std::time::{Duration, Instant};

/// Asks `probe` every 10 ms until it has an answer. Panics after `limit`, saying `what` did not
/// happen.
pub fn eventually<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    within(limit, probe).unwrap_or_else(|| panic!("not within {limit:?}: {what}"))
}

/// Asks `probe` every 10 ms until it has an answer, or gives up after `limit`.
pub fn within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        match probe() {
            Some(answer) => return Some(answer),
            None if Instant::now() >= end => return None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
