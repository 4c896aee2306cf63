//! Versions of the formats that one Lasthop leaves to the next: records, messages to processes that
//! run on, and files in memory.
//!
//! Rules:
//! * A format has a number, which rises with its layout, and a committed sample
//!   `tests/samples/FORMAT-NUMBER` in the crate that has the format; `FORMAT-PART-NUMBER` where it
//!   has several parts. A test fails where a sample differs from the encoding of today. With
//!   `BLESS=1`, `cargo test sample` writes the sample of a number that has none yet and removes
//!   that of the number before; it never overwrites one.
//! * Before a release a build reads one version of each format, its own. An upgrade between builds
//!   with different numbers is refused before anything is touched.
//! * From release 0.1.0 on a build reads version N, its own, and version N-1. It writes N-1 where
//!   it does not know the reader, as in the record for a self-check. So a build with version N
//!   upgrades from one with version N-1, and goes back to it. The code for N-1 goes with N+1.
//!
//! Messages between control and the switch are not listed here: an upgrade replaces both together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The record by which a supervisor takes over from another.
pub const SUPERVISOR: u32 = 23;
/// Messages of a supervisor and the processes that the one before it has started:
/// [`supervision`](crate::supervision) and [`driving`](crate::driving).
pub const SUPERVISION: u32 = 20;
/// The record of a connection beside its session: [`ConnectionRecord`].
///
/// [`ConnectionRecord`]: crate::keeping::ConnectionRecord
pub const CONNECTION: u32 = 13;
/// The crash record: [`ThreadSlots`](crate::keeping::ThreadSlots).
pub const CRASH_RECORD: u32 = 10;
/// The document of control in the state file, and its parts: `control::saved::SavedState`.
pub const STATE: u32 = 20;

/// All formats with their numbers. The samples of all crates have these numbers in their names,
/// which a test compares.
const ALL: [(&str, u32); 12] = [
    ("supervisor", SUPERVISOR),
    ("supervision", SUPERVISION),
    ("connection", CONNECTION),
    ("crash-record", CRASH_RECORD),
    ("state", STATE),
    // `virtio::vhost_user::RECORD_VERSION`.
    ("vhost-user-session", 10),
    // `memif::RECORD_VERSION`.
    ("memif-session", 10),
    // The positions of packed queues: `virtio::queue::JournalRegion`.
    ("journal", 10),
    // The translations of a guest with an IOMMU: `memory::iotlb`.
    ("iotlb", 1),
    // `port::counters`.
    ("counters", 12),
    // Flows of user ports: `usernet::RECORD_VERSION`.
    ("flow", 1),
    // Leases of user ports: `driver::user::kept_leases`.
    ("lease", 1),
];

/// Versions of one format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Format {
    /// The version that is written to a build whose versions are unknown.
    pub writes: u32,
    /// All versions that are read.
    pub reads: Vec<u32>,
}

/// Formats by name.
pub type Formats = BTreeMap<String, Format>;

/// Returns the formats of this build.
#[must_use]
pub fn formats() -> Formats {
    let format = |number| Format {
        writes: number,
        reads: vec![number],
    };
    let named = ALL.map(|(name, number)| (name.to_owned(), format(number)));
    named.into_iter().collect()
}

/// Checks whether an upgrade from `running` to `new` is possible, and its rollback.
///
/// # Errors
/// The format on which they do not agree, and the way to the new build.
pub fn agree(running: &Formats, new: &Formats) -> Result<(), String> {
    for name in running.keys().chain(new.keys()) {
        let (of_running, of_new) = (running.get(name), new.get(name));
        let both_read = of_running.zip(of_new).is_some_and(|(one, other)| {
            one.reads.contains(&other.writes) && other.reads.contains(&one.writes)
        });
        if !both_read {
            let number = |of: Option<&Format>| {
                of.map_or("none".to_owned(), |format| format.writes.to_string())
            };
            return Err(format!(
                "the format `{name}` has number {} in the running build and {} in the new one, and \
                 neither reads the other's; restart Lasthop to change to it",
                number(of_running),
                number(of_new)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn with(name: &str, writes: u32, reads: &[u32]) -> Formats {
        let mut all = formats();
        let reads = reads.to_vec();
        all.insert(name.to_owned(), Format { writes, reads });
        all
    }

    #[test]
    fn a_build_has_one_version_of_each_format_and_agrees_with_itself() {
        assert_eq!(formats().len(), ALL.len());
        for (name, format) in formats() {
            assert_eq!(format.reads, [format.writes], "{name}");
        }
        assert_eq!(agree(&formats(), &formats()), Ok(()));
    }

    #[test]
    fn a_build_with_another_number_is_refused_in_both_directions() {
        for (name, own) in ALL {
            let other = with(name, own + 1, &[own + 1]);
            assert_eq!(
                agree(&formats(), &other).unwrap_err(),
                format!(
                    "the format `{name}` has number {own} in the running build and {} in the new \
                     one, and neither reads the other's; restart Lasthop to change to it",
                    own + 1
                )
            );
            assert!(agree(&other, &formats()).is_err(), "{name}");
        }
        let more = agree(&formats(), &with("more", 1, &[1])).unwrap_err();
        assert!(more.contains("number none in the running build"), "{more}");
        assert!(agree(&with("more", 1, &[1]), &formats()).is_err());
    }

    #[test]
    fn a_build_that_reads_and_writes_the_version_before_is_accepted_in_both_directions() {
        let (first, both) = (with("state", 1, &[1]), with("state", 1, &[1, 2]));
        let next = with("state", 2, &[1, 2]);
        assert_eq!(agree(&first, &both), Ok(()));
        assert_eq!(agree(&both, &first), Ok(()));
        assert_eq!(agree(&both, &next), Ok(()));
        assert!(agree(&first, &next).is_err(), "the rollback");
        assert!(agree(&next, &first).is_err());
    }

    /// Returns the names of all committed samples in the crates of a folder, or of folders in it.
    fn samples_in(folder: &Path, names: &mut Vec<String>) {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries(folder).filter(|entry| entry.path().is_dir()) {
            let found = entries(&entry.path().join("tests/samples"));
            names.extend(found.map(|file| file.file_name().to_string_lossy().into_owned()));
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with('.') && name != "target" && name != "tests" {
                samples_in(&entry.path(), names);
            }
        }
    }

    #[test]
    fn committed_files_have_the_numbers_of_their_formats() {
        let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = folders.find(|folder| folder.join("Cargo.lock").exists());
        let mut names = Vec::new();
        samples_in(root.unwrap(), &mut names);
        let all = formats();
        let mut sampled = BTreeSet::new();
        for file in names {
            let number = file
                .rsplit_once('.')
                .and_then(|(stem, _)| stem.rsplit_once('-'));
            let (stem, number) = number.unwrap_or((&file, ""));
            let is_of = |format: &&String| {
                let rest = stem.strip_prefix(&**format);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            let format = all.keys().find(is_of);
            let format = format.unwrap_or_else(|| panic!("{file} is of no format in `formats`"));
            assert_eq!(number, all[format].writes.to_string(), "{file}: its number");
            sampled.insert(format);
        }
        let without = all.keys().filter(|format| !sampled.contains(format));
        assert_eq!(
            without.collect::<Vec<_>>(),
            [""; 0],
            "formats without sample"
        );
    }
}
