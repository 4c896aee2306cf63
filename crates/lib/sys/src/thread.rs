//! Threads of our processes.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::limit;

/// Starts a thread.
///
/// # Errors
/// The system starts none; the limit that is reached is named.
pub fn start<T: Send + 'static>(
    thread: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let started = thread.spawn(run);
    started.map_err(|error| io::Error::new(error.kind(), limit::of_start(&error)))
}
