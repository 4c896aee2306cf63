//! Self-check: a new binary reports its version and formats before an upgrade.

use std::io::{self, Write};

use ipc::formats::Formats;
use serde::{Deserialize, Serialize};

/// Argument that starts the self-check of a program.
pub const ARGUMENT: &str = "--self-check";
/// Further argument with which the supervisor also checks that it can read the record of another
/// one on standard input.
pub const RECORD_ARGUMENT: &str = "--record";

/// Report: one line of JSON on standard output, after the process has dropped its rights.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelfCheck {
    /// Version of the package.
    pub version: String,
    /// Versioned formats that it shares with other versions.
    pub formats: Formats,
}

impl SelfCheck {
    /// Returns the report of this build.
    #[must_use]
    pub fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: ipc::formats::formats(),
        }
    }

    /// Prints the report.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(&self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}
