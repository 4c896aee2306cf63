//! What a binary says of itself when it is asked whether it could take over.

use std::io::{self, Write};

use channel::formats::Formats;
use serde::{Deserialize, Serialize};

/// The argument of control, switch and driver that asks; of `lasthop` it is a command.
#[allow(dead_code, reason = "each binary asks, or is asked")]
pub(crate) const ARGUMENT: &str = "--self-check";

/// The answer: one line of JSON on standard output, from where the process would do its work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SelfCheck {
    /// The version of the package.
    pub(crate) version: String,
    /// The formats that it shares with the version before it.
    pub(crate) formats: Formats,
}

impl SelfCheck {
    /// Of this build.
    pub(crate) fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: channel::formats::formats(),
        }
    }

    /// Says it.
    ///
    /// # Errors
    /// Nobody listens.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}
