//! Self-check: a new binary reports its version and formats before an upgrade.

use std::io::{self, Write};

use channel::formats::Formats;
use serde::{Deserialize, Serialize};

/// Argument that starts the self-check of control, switch and driver; `lasthop` has a command for
/// it.
#[allow(dead_code, reason = "each binary uses one side")]
pub(crate) const ARGUMENT: &str = "--self-check";

/// Report: one line of JSON on standard output, after the process has dropped its rights.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SelfCheck {
    /// Version of the package.
    pub(crate) version: String,
    /// Versioned formats that it shares with other versions.
    pub(crate) formats: Formats,
}

impl SelfCheck {
    /// Returns the report of this build.
    pub(crate) fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: channel::formats::formats(),
        }
    }

    /// Prints the report.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}
