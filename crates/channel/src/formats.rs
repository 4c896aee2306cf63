//! Versions of the formats that one Lasthop leaves to the next. An upgrade between two builds is
//! possible only if both agree on all formats.
//!
//! Rules:
//! * A change of an encoding gives its format the next number. Numbers begin at 10, which no build
//!   before the first release wrote.
//! * A build reads version N, its own, and version N-1. It writes N-1 to a build whose versions it
//!   does not know, and the newest version that both read to a build that it has asked.
//! * So a build with version N upgrades from a build with version N-1, and goes back to it. The
//!   code for N-1 goes with version N+1.
//! * For each version that is read, a sample is committed in `tests/samples` of the crate that has
//!   the format, and a test reads it. The test fails when the encoding of today differs from the
//!   sample of the newest version. `BLESS=1 cargo test --workspace sample` writes these samples;
//!   before a release that is all that a change of an encoding needs, and after it the number in
//!   the file's name changes, too.
//!
//! Messages between control and the switch are not listed here: an upgrade replaces both together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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

/// Name of the record by which a supervisor takes over from another.
pub const SUPERVISOR: &str = "supervisor";
/// Its versions. 11 adds the file of the command line, which is not the supervisor's any longer,
/// 12 the source of vCPU states with the BPF programs, 13 the back ends and all counters of
/// drivers, 15 user ports and where their forwards may listen. 10 stays while builds without 15
/// write it.
pub const SUPERVISOR_VERSIONS: [u32; 5] = [10, 11, 12, 13, 15];

/// Returns the formats of this build.
#[must_use]
pub fn formats() -> Formats {
    let all: [(&str, &[u32]); 6] = [
        (SUPERVISOR, &SUPERVISOR_VERSIONS),
        // `supervision` and `driving`: a supervisor talks to processes that the one before it has
        // started.
        ("supervision", &[10]),
        // `keeping::ConnectionRecord`, and the session's record in it
        // (`virtio::vhost_user::RECORD_VERSION`, `memif::RECORD_VERSION`).
        // 11 is written for ports that a build with 10 does not have, 12 for ports whose guests
        // need an IOMMU.
        ("connection", &crate::keeping::VERSIONS.map(u32::from)),
        // The journal of packed queues (`virtio::queue::JournalRegion`), and the crash record.
        ("journal", &[10]),
        // `control::saved::Saved`, in the state file. 11 is written where something is scheduled,
        // 12 where `iommu` of a port is not the default, 13 where a port has a `cpu_weight`, 14
        // with a user port, 15 with `forward_addresses`: a state without any of them is one of 10.
        ("state", &[10, 11, 12, 13, 14, 15]),
        // `port::counters`.
        ("counters", &[10]),
    ];
    let format = |versions: &[u32]| Format {
        writes: versions[0],
        reads: versions.to_vec(),
    };
    let named = all.map(|(name, versions)| (name.to_owned(), format(versions)));
    named.into_iter().collect()
}

/// Checks whether an upgrade from `old` to `new` is possible, and its rollback.
///
/// # Errors
/// The format on which they do not agree.
pub fn agree(old: &Formats, new: &Formats) -> Result<(), String> {
    for name in old.keys().chain(new.keys()) {
        let (Some(before), Some(after)) = (old.get(name), new.get(name)) else {
            return Err(format!("only one of them knows {name}"));
        };
        for (writer, reader) in [(before, after), (after, before)] {
            if !reader.reads.contains(&writer.writes) {
                let (old, new) = (before.writes, after.writes);
                return Err(format!(
                    "{name} has version {old} in the old one and {new} in the new one"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the newest version of a format that both read.
#[must_use]
pub fn newest(one: &Formats, other: &Formats, name: &str) -> Option<u32> {
    let (one, other) = (one.get(name)?, other.get(name)?);
    let both = one.reads.iter().filter(|v| other.reads.contains(v));
    both.copied().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, writes: u32, reads: &[u32]) -> Formats {
        let mut all = formats();
        let reads = reads.to_vec();
        all.insert(name.to_owned(), Format { writes, reads });
        all
    }

    #[test]
    fn every_build_agrees_with_itself() {
        assert_eq!(agree(&formats(), &formats()), Ok(()));
    }

    #[test]
    fn what_is_written_is_the_newest_that_both_read() {
        let old = with(SUPERVISOR, 1, &[1]);
        let new = with(SUPERVISOR, 1, &[1, 2, 3]);
        assert_eq!(agree(&old, &new), Ok(()), "the old one knows no other");
        assert_eq!(agree(&new, &old), Ok(()), "nor does it have to");
        assert_eq!(newest(&new, &old, SUPERVISOR), Some(1));
        assert_eq!(newest(&new, &new, SUPERVISOR), Some(3));
        let newer = with(SUPERVISOR, 2, &[2, 3, 4]);
        assert_eq!(newest(&new, &newer, SUPERVISOR), Some(3));
        assert_eq!(newest(&new, &new, "nothing"), None);
    }

    #[test]
    fn both_ways_count() {
        let (old, new) = (with("state", 1, &[1]), with("state", 2, &[1, 2]));
        let refused = agree(&old, &new).unwrap_err();
        assert!(refused.contains("state has version 1"), "{refused}");
        assert!(agree(&new, &old).is_err());
        let prepared = with("state", 1, &[1, 2]);
        assert_eq!(agree(&prepared, &new), Ok(()));
        assert!(agree(&with("more", 1, &[1]), &formats()).is_err());
        assert!(agree(&formats(), &with("more", 1, &[1])).is_err());
    }
}
