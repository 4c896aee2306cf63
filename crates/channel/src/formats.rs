//! Versions of what one Lasthop leaves to the next: an upgrade goes from one to the other only if they agree on all of it.
//!
//! Whoever changes what is named here raises its number; if the new one still understands what the old one wrote, the old
//! number stays in `reads`. What control and switch say to each other is not here: an upgrade replaces both together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One of the formats.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Format {
    /// The version that is written.
    pub writes: u32,
    /// All versions that are understood.
    pub reads: Vec<u32>,
}

/// Formats by name.
pub type Formats = BTreeMap<String, Format>;

/// The record by which a supervisor takes the place of another.
pub const SUPERVISOR: u32 = 2;

/// Those of this build.
#[must_use]
pub fn formats() -> Formats {
    let all = [
        ("supervisor", SUPERVISOR),
        // `supervision` and `driving`: a supervisor speaks with the processes that the one before it has started.
        ("supervision", 1),
        // `keeping::ConnectionRecord`, and the session's record in it.
        ("connection", u32::from(crate::keeping::VERSION)),
        // The journal of packed queues, and the file of marks.
        ("journal", 1),
        // `control::engine::Saved`, in the state file.
        ("state", 1),
        // `port::counters`.
        ("counters", 1),
    ];
    let format = |version| Format {
        writes: version,
        reads: vec![version],
    };
    let named = all.map(|(name, version)| (name.to_owned(), format(version)));
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
