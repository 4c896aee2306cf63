//! Versions of what one Lasthop leaves to the next: an upgrade goes from one to the other only if they agree on all of it.
//!
//! Whoever changes what is named here gives it another number. A build writes the oldest version that it still can to one of
//! whom it knows nothing, and the newest that both read to one that it has asked; so a new version can be had as soon as
//! both know it, and the old one goes when nobody is left that needs it. What control and switch say to each other is not
//! here: an upgrade replaces both together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One of the formats.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Format {
    /// The version that is written to one of whom nothing is known.
    pub writes: u32,
    /// All versions that are understood.
    pub reads: Vec<u32>,
}

/// Formats by name.
pub type Formats = BTreeMap<String, Format>;

/// The name of the record by which a supervisor takes the place of another.
pub const SUPERVISOR: &str = "supervisor";
/// Its versions. The second also says who is to blame for deaths of the switch, and has interfaces with
/// `AF_XDP` sockets, and how guests are notified and what copies for them. The third says where sockets may be, and where
/// front ends are.
pub const SUPERVISOR_VERSIONS: [u32; 3] = [1, 2, 3];

/// Those of this build.
#[must_use]
pub fn formats() -> Formats {
    let all: [(&str, &[u32]); 6] = [
        (SUPERVISOR, &SUPERVISOR_VERSIONS),
        // `supervision` and `driving`: a supervisor speaks with the processes that the one before it has started.
        // 3: the switch dials by port alone, control says where to; `supervision::Ask::DialPath` is of 2.
        ("supervision", &[2, 3]),
        // `keeping::ConnectionRecord`, and the session's record in it.
        ("connection", &[crate::keeping::VERSION as u32]),
        // The journal of packed queues, and the file of marks.
        ("journal", &[1]),
        // `control::engine::Saved`, in the state file. 2: ports have a weight.
        ("state", &[2]),
        // `port::counters`. 2: ticks, and fewer places for drops.
        ("counters", &[2]),
    ];
    let format = |versions: &[u32]| Format {
        writes: versions[0],
        reads: versions.to_vec(),
    };
    let named = all.map(|(name, versions)| (name.to_owned(), format(versions)));
    named.into_iter().collect()
}

/// Whether an upgrade from `old` to `new` can be done, and undone.
///
/// # Errors
/// What they do not agree on.
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

/// The newest version of a format that both read.
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
        let (new, old) = (formats(), with(SUPERVISOR, 1, &[1]));
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
