//! The configuration file: TOML to a wanted state, every error with its place, and back ([`export`]).
//!
//! Reading goes in three steps: TOML's syntax, the shape of the document (keys and types), and what must
//! hold for any wanted state ([`wanted::check`]). The second step notes where each value stands, so that an
//! error of the third has its line too. Later versions add keys and never change the meaning of one.

mod document;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use api::v1::WantedState;

use crate::wanted::{self, Invalid};
use document::{Fault, Lines};
pub use write::export;

/// What is wrong with a configuration file.
///
/// Displayed as `FILE:LINE:COLUMN: KEY: expected …, found …`; place and key are left out where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as the operator named it.
    pub file: PathBuf,
    /// The line and the character in it, counted from 1; none when the file cannot be read at all.
    pub place: Option<(usize, usize)>,
    /// The key with its table, like `port.queues`; empty for an error of TOML's syntax.
    pub key: String,
    /// What may be there; empty where `found` says it all.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// One line without control characters, whatever the file has: it goes to terminals and logs.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", printable(&self.file.to_string_lossy()))?;
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", printable(&self.key))?;
        }
        let said = wanted::said(&self.expected, &self.found);
        write!(f, " {}", printable(&said))
    }
}

/// A text with its control characters escaped.
fn printable(text: &str) -> String {
    let each = text.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    each.collect()
}

impl std::error::Error for ConfigError {}

/// Reads a configuration file.
///
/// The result is checked and normalised ([`wanted::normalise`]). `runtime_dir` is where relative socket
/// paths start, for the check of their length.
///
/// # Errors
/// The first thing that is wrong with the file; nothing was changed then.
pub fn load(file: &Path, runtime_dir: &Path) -> Result<WantedState, ConfigError> {
    parse(&text_of(std::fs::read(file), file)?, file, runtime_dir)
}

/// The text that was read, or not, of what errors call `file`; for [`parse`].
///
/// # Errors
/// It could not be read, or is no UTF-8.
pub fn text_of(bytes: io::Result<Vec<u8>>, file: &Path) -> Result<String, ConfigError> {
    let bytes = bytes.map_err(|error| ConfigError {
        file: file.to_owned(),
        place: None,
        key: String::new(),
        expected: "a file that can be read".to_owned(),
        found: error.to_string(),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
        ConfigError {
            file: file.to_owned(),
            place: Some(place_of(&before, before.len())),
            key: String::new(),
            expected: "UTF-8 text".to_owned(),
            found: "a byte that is not".to_owned(),
        }
    })
}

/// The error for something of a port that cannot be had, with its line; `port` is the port's place in the file.
#[must_use]
pub fn port_error(
    file: &Path,
    port: usize,
    key: &'static str,
    expected: &str,
    found: &str,
) -> ConfigError {
    let invalid = Invalid {
        place: wanted::Place::Port(port),
        key,
        item: None,
        expected: expected.to_owned(),
        found: found.to_owned(),
        why: wanted::Why::Taken,
    };
    error_in(file, &invalid)
}

/// The error for something in a file that is right by itself, with its line.
#[must_use]
pub fn error_in(file: &Path, invalid: &Invalid) -> ConfigError {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    error_in_text(&text, file, invalid)
}

/// The same, of a file with this text.
#[must_use]
pub fn error_in_text(text: &str, file: &Path, invalid: &Invalid) -> ConfigError {
    let lines = document::read(text).ok().map(|(_, lines)| lines);
    let offset = lines.map(|lines| lines.find(invalid.place, invalid.key, invalid.item));
    ConfigError {
        file: file.to_owned(),
        place: offset.map(|offset| place_of(text, offset)),
        key: invalid.place.key(invalid.key),
        expected: invalid.expected.clone(),
        found: invalid.found.clone(),
    }
}

/// Reads the text of a configuration file; `file` is what errors call it. See [`load`].
///
/// # Errors
/// The first thing that is wrong with the text.
pub fn parse(text: &str, file: &Path, runtime_dir: &Path) -> Result<WantedState, ConfigError> {
    let blame = |fault: Fault| ConfigError {
        file: file.to_owned(),
        place: Some(place_of(text, fault.offset)),
        key: fault.key,
        expected: fault.expected,
        found: fault.found,
    };
    let (mut state, lines) = document::read(text).map_err(blame)?;
    let checked = wanted::check(&state, runtime_dir);
    let checked = checked.and_then(|()| wanted::check_access(&state).map(drop));
    checked.map_err(|invalid| blame(placed(&invalid, &lines)))?;
    wanted::normalise(&mut state);
    Ok(state)
}

/// An error of the wanted state with its place in the file.
fn placed(invalid: &Invalid, lines: &Lines) -> Fault {
    Fault {
        offset: lines.find(invalid.place, invalid.key, invalid.item),
        key: invalid.place.key(invalid.key),
        expected: invalid.expected.clone(),
        found: invalid.found.clone(),
    }
}

/// Line and character, counted from 1, of a byte offset.
fn place_of(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    let lines = before.bytes().filter(|byte| *byte == b'\n').count();
    (1 + lines, 1 + line.chars().count())
}
