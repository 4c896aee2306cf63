//! The configuration file: reads TOML into a desired state, with the place of every error, and
//! writes one ([`export`]).
//!
//! Reading has three steps: TOML's syntax, the schema (keys and types), and the checks of any
//! desired state ([`desired::check`]). The second step records the offset of each value, so that
//! errors of the third have a line, too. Later versions add keys and never change the meaning of
//! one.

mod document;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use api::v1::DesiredState;

use crate::desired::{self, Invalid, Place, Why};
use crate::words;
use document::{Document, Fault};
pub use write::export;

/// An error in a configuration file.
///
/// Displayed as `FILE:LINE:COLUMN: KEY: expected …, found …`. Place and key may be absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as named by the operator.
    pub file: PathBuf,
    /// The line and the character in it, counted from 1; `None` if the file cannot be read.
    pub place: Option<(usize, usize)>,
    /// The key with its table, like `port.queues`; empty for an error of TOML's syntax.
    pub key: String,
    /// The expected value; empty if `found` is the whole message.
    pub expected: String,
    /// The value found.
    pub found: String,
}

/// One line without control characters: the text is written to terminals and logs.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = words::message(&self.expected, &self.found);
        write!(f, "{} {}", self.location(), printable(&message))
    }
}

impl ConfigError {
    /// Returns the beginning of the text, up to the key.
    fn location(&self) -> String {
        let mut text = format!("{}:", printable(&self.file.to_string_lossy()));
        if let Some((line, column)) = self.place {
            text += &format!("{line}:{column}:");
        }
        if !self.key.is_empty() {
            text += &format!(" {}:", printable(&self.key));
        }
        text
    }
}

/// The places of keys in a file's text: errors of the resources that it names are found later,
/// where the text is not at hand.
pub struct KeyPlaces<'a> {
    file: &'a Path,
    text: &'a str,
    document: Option<Document<'a>>,
}

impl<'a> KeyPlaces<'a> {
    /// Returns the places in a text; errors name `file`.
    #[must_use]
    pub fn new(text: &'a str, file: &'a Path) -> Self {
        let document = Document::parse(text).ok();
        Self {
            file,
            text,
            document,
        }
    }

    /// Returns the beginning of an error about a key, as `FILE:LINE:COLUMN: port.socket:`.
    #[must_use]
    pub fn of(&self, place: Place, key: &'static str) -> String {
        let invalid = Invalid {
            place,
            key,
            item: None,
            expected: String::new(),
            found: String::new(),
            why: Why::Taken,
        };
        self.error(&invalid).location()
    }

    /// Returns an error of a value in the text, with its line.
    #[must_use]
    pub fn error(&self, invalid: &Invalid) -> ConfigError {
        match &self.document {
            Some(document) => error_of(document.placed(invalid), self.text, self.file),
            None => ConfigError {
                file: self.file.to_owned(),
                place: None,
                key: invalid.place.key(invalid.key),
                expected: invalid.expected.clone(),
                found: invalid.found.clone(),
            },
        }
    }
}

/// Escapes the control characters of a text.
fn printable(text: &str) -> String {
    let each = text.chars().map(|c| {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    each.collect()
}

impl std::error::Error for ConfigError {}

/// Reads a configuration file.
///
/// The result is checked and normalised ([`desired::normalise`]). Relative socket paths start at
/// `runtime_dir`, which matters for the check of their length.
///
/// # Errors
/// The first error in the file.
pub fn load(file: &Path, runtime_dir: &Path) -> Result<DesiredState, ConfigError> {
    parse(&text_of(std::fs::read(file), file)?, file, runtime_dir)
}

/// Returns the text of a file that was read, for [`parse`]; errors name it `file`.
///
/// # Errors
/// The file could not be read, or is not UTF-8.
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

/// Returns an error with the line of its offset.
fn error_of(fault: Fault, text: &str, file: &Path) -> ConfigError {
    ConfigError {
        file: file.to_owned(),
        place: Some(place_of(text, fault.offset)),
        key: fault.key,
        expected: fault.expected,
        found: fault.found,
    }
}

/// Reads the text of a configuration file, which errors name `file`. See [`load`].
///
/// # Errors
/// The first error in the text.
pub fn parse(text: &str, file: &Path, runtime_dir: &Path) -> Result<DesiredState, ConfigError> {
    let mut state = document::read(text).map_err(|fault| error_of(fault, text, file))?;
    let checked = desired::check(&state, runtime_dir);
    let checked = checked.and_then(|()| desired::check_access(&state).map(drop));
    checked.map_err(|invalid| KeyPlaces::new(text, file).error(&invalid))?;
    desired::normalise(&mut state);
    Ok(state)
}

/// Returns the line and the character, counted from 1, of a byte offset.
fn place_of(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    let lines = before.bytes().filter(|byte| *byte == b'\n').count();
    (1 + lines, 1 + line.chars().count())
}
