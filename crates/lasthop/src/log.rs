//! The log of every process.

use std::io::{self, IsTerminal};

/// Log lines go to standard error; `LASTHOP_LOG` chooses them (`debug`, `datapath=trace`, ...).
pub(crate) fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LASTHOP_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}
