//! Signals that end a command.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;

/// SIGINT and SIGTERM.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Starts to handle the signals.
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(error.to_string());
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for one of the signals.
    pub(super) async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
