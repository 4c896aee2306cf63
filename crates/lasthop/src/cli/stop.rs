//! The end of a command that goes on until it is interrupted.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;

/// SIGINT and SIGTERM.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Follows them from now on.
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(error.to_string());
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for one.
    pub(super) async fn wanted(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
