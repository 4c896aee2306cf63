//! Committed samples of records that one build leaves to the next.

use std::path::Path;

/// Compares today's encoding of a record with the sample `tests/samples/NAME` of the crate whose
/// manifest is in `crate_dir`, and returns the sample. With `BLESS=1` in the environment it writes
/// the sample first.
///
/// # Panics
/// The sample cannot be read or written, or differs from the encoding.
#[must_use]
pub fn sample(crate_dir: &str, name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = Path::new(crate_dir).join("tests/samples").join(name);
    if std::env::var_os("BLESS").is_some() {
        let written = std::fs::write(&path, encoded);
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let sample = std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; BLESS=1 writes it", path.display());
    });
    assert!(
        sample == encoded,
        "{}: the encoding has changed, which takes another version (see `channel::formats`); \
         BLESS=1 writes the sample anew",
        path.display()
    );
    sample
}
