//! Bytes and descriptors of a saved session, of vhost-user or of memif: a version and the record in
//! postcard's encoding, and the descriptors by the numbers that the record has for them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::foreign::ForeignFd;

/// Stored descriptors by their numbers; each belongs to one place.
#[derive(Debug)]
pub struct StoredFiles(pub BTreeMap<u64, ForeignFd>);

impl StoredFiles {
    /// Takes the descriptor with this number.
    ///
    /// # Errors
    /// It was not stored, or is in another place.
    pub fn take(&mut self, number: u64) -> Result<ForeignFd, String> {
        let found = self.0.remove(&number);
        found.ok_or_else(|| format!("descriptor {number} was not kept"))
    }
}

/// Encodes a record behind its version, which is a little-endian number.
#[must_use]
pub fn encode(version: &[u8], record: &impl Serialize) -> Vec<u8> {
    // Only a writer that runs full can fail here, and a vector grows.
    postcard::to_extend(record, version.to_vec()).unwrap_or_default()
}

/// Parses a record as hostile input; its contents are checked later.
///
/// # Errors
/// The record is empty, of another version, or malformed.
pub fn decode<R: DeserializeOwned>(version: &[u8], bytes: &[u8]) -> Result<R, String> {
    let (found, rest) = bytes
        .split_at_checked(version.len())
        .ok_or("the record of the session is empty")?;
    if found != version {
        let bytes = found.iter().rev();
        let number = bytes.fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        return Err(format!("a record of version {number}"));
    }
    match postcard::take_from_bytes(rest) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err("a record with more than a session in it".into()),
        Err(error) => Err(format!("malformed record: {error}")),
    }
}

/// Returns the number of the next descriptor of a session whose record has these.
///
/// # Errors
/// No number is left.
pub fn next_number(numbers: &[u64]) -> Result<u64, &'static str> {
    let last = numbers.iter().max();
    last.map_or(Some(0), |n| n.checked_add(1))
        .ok_or("its numbers")
}
