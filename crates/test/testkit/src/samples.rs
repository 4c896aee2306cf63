//! Committed samples of formats that one build leaves to the next.

use std::fs;
use std::path::Path;

/// Compares today's encoding of a format with its sample, and returns the sample. It is the file
/// `tests/samples/STEM-NUMBER.EXTENSION` of the crate whose manifest is in `crate_dir`; `name` is
/// its stem and extension. With `BLESS=1` in the environment the sample of a number that has none
/// is written, and those of other numbers are removed.
///
/// # Panics
/// The sample is missing or differs, or another number has a sample, too.
#[must_use]
pub fn sample(crate_dir: &str, name: &str, number: u32, encoded: &[u8]) -> Vec<u8> {
    let dir = Path::new(crate_dir).join("tests/samples");
    let bless = std::env::var_os("BLESS").is_some();
    match compare(&dir, name, number, encoded, bless) {
        Ok(sample) => sample,
        Err(why) => panic!("{}: {why}", dir.display()),
    }
}

fn compare(
    dir: &Path,
    name: &str,
    number: u32,
    encoded: &[u8],
    bless: bool,
) -> Result<Vec<u8>, String> {
    let (stem, extension) = name.split_once('.').ok_or("a name has an extension")?;
    let own = format!("{stem}-{number}.{extension}");
    let path = dir.join(&own);
    for other in others(dir, stem, &own) {
        if !bless {
            return Err(format!("{other} beside {own}: a format has one version"));
        }
        fs::remove_file(dir.join(&other)).map_err(|e| format!("{other}: {e}"))?;
    }
    if bless && !path.exists() {
        fs::write(&path, encoded).map_err(|e| format!("{own}: {e}"))?;
    }
    let sample = fs::read(&path).map_err(|e| format!("{own}: {e}; BLESS=1 writes it"))?;
    if sample == encoded {
        Ok(sample)
    } else {
        Err(format!(
            "{own}: the encoding has changed: give the format the next number (see \
             `ipc::formats`), and run the test with BLESS=1 then. A sample that was never \
             committed may be deleted instead"
        ))
    }
}

/// Returns the samples of the same format with other numbers.
fn others(dir: &Path, stem: &str, own: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let has_stem = |name: &String| {
        let stem_of = name.rsplit_once('-').map(|(stem, _)| stem);
        stem_of == Some(stem) && name != own
    };
    names.filter(has_stem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_encoding_takes_another_number_even_with_bless() {
        let dir = tempfile::tempdir().unwrap();
        let test = |number, encoded: &[u8], bless| {
            compare(dir.path(), "a-record.bin", number, encoded, bless)
        };
        let missing = test(3, b"one", false).unwrap_err();
        assert!(missing.contains("BLESS=1 writes it"), "{missing}");
        assert_eq!(test(3, b"one", true).unwrap(), b"one");
        assert_eq!(test(3, b"one", false).unwrap(), b"one");
        for bless in [false, true] {
            let refused = test(3, b"two", bless).unwrap_err();
            assert!(
                refused.contains("a-record-3.bin: the encoding has"),
                "{refused}"
            );
        }
        assert_eq!(fs::read(dir.path().join("a-record-3.bin")).unwrap(), b"one");
        let second = test(4, b"two", false).unwrap_err();
        assert!(
            second.contains("a-record-3.bin beside a-record-4.bin"),
            "{second}"
        );
        assert_eq!(test(4, b"two", true).unwrap(), b"two");
        assert!(!dir.path().join("a-record-3.bin").exists());
        let other = compare(dir.path(), "record.bin", 1, b"", true);
        assert_eq!(other.unwrap(), b"", "another format");
        assert!(dir.path().join("a-record-4.bin").exists());
    }
}
