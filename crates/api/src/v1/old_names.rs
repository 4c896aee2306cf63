//! Names that were changed before the first release. One spelling is accepted: a request or a file
//! with an old name is refused, and the answer has the new name.
//!
//! The tables of `docs/user/changed-names.md` are generated from these rows.

#[cfg(test)]
mod tests;

use std::fmt;

/// The page with all changed names, as answers refer to it.
pub const PAGE: &str = "docs/user/changed-names.md";

/// One changed name. As a text: the new name, and the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldName {
    /// Its place.
    pub place: OldPlace,
    /// The old name.
    pub old: &'static str,
    /// Its replacement.
    pub new: Replacement,
}

/// The place of a changed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPlace {
    /// A key in this table of the configuration file, and in the same object of the desired state.
    Key(&'static str),
    /// A value of these keys.
    Value(&'static str),
    /// A kind of events, which a filter may name.
    EventKind,
    /// A field of this part of answers, or one of its values. Requests do not have it.
    Answer(&'static str),
}

/// The replacement of a changed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The new name.
    Name(&'static str),
    /// None: the key or value was removed.
    Removed {
        /// A key that the same table still has, or another value of the same key.
        beside: &'static str,
        /// The reason.
        why: &'static str,
    },
}

/// All changed names of the configuration file and of the API.
pub const OLD_NAMES: &[OldName] = &[
    key("[switch]", "batching", "coalescing"),
    key("[switch.coalescing]", "threshold", "frames"),
    key("[switch]", "offload", "helpers"),
    key("[switch.helpers]", "mark", "backlog"),
    OldName {
        place: OldPlace::Key("[switch]"),
        old: "copy_engine",
        new: Replacement::Removed {
            beside: "workers",
            why: "workers copy",
        },
    },
    key("[[port]]", "guard", "port_security"),
    OldName {
        place: OldPlace::Value("`macs` and `addresses`"),
        ..key("", "learned-once", "sticky")
    },
    OldName {
        place: OldPlace::Value("`guest_state`"),
        old: "proc",
        new: Replacement::Removed {
            beside: "off",
            why: "no rule could use samples of /proc, write \"auto\" or \"off\"",
        },
    },
    answer("changes", "wanted", "desired"),
    answer(FRONT_ENDS, "turned_away", "rejected_connections"),
    answer(FRONT_ENDS, "turned_away_ms_ago", "last_rejected_ms_ago"),
    answer(FRONT_ENDS, "last_stranger", "last_rejected_uid"),
    answer(FRONT_ENDS, "refusals", "refused_messages"),
    answer(FRONT_ENDS, "lines_left_out", "suppressed_log_lines"),
    answer("driver", "too_long", "oversized_frames"),
    answer("driver", "refused_by_interface", "rejected_by_interface"),
    answer("switch", "helped", "helper_frames"),
    answer("work of a port", "masked_batches", "skipped_batches"),
    answer("events", "left_out", "suppressed"),
    answer("`progress` of events", "begun", "started"),
    event_kind("moved", "mac_moved"),
    event_kind("claimed", "mac_spoofed"),
    event_kind("bound", "address_bound"),
    event_kind("flushed", "fdb_flushed"),
    event_kind("purged", "flows_purged"),
];

const FRONT_ENDS: &str = "front ends of a port";

const fn key(table: &'static str, old: &'static str, new: &'static str) -> OldName {
    OldName {
        place: OldPlace::Key(table),
        old,
        new: Replacement::Name(new),
    }
}

const fn answer(part: &'static str, old: &'static str, new: &'static str) -> OldName {
    OldName {
        place: OldPlace::Answer(part),
        ..key("", old, new)
    }
}

const fn event_kind(old: &'static str, new: &'static str) -> OldName {
    OldName {
        place: OldPlace::EventKind,
        ..key("", old, new)
    }
}

/// Returns the row of an unknown key of a table or an object; `known` are the keys that it may
/// have.
#[must_use]
pub fn old_key(unknown: &str, known: &[&str]) -> Option<&'static OldName> {
    find(unknown, |row| {
        matches!(row.place, OldPlace::Key(_)) && row.is_beside(known)
    })
}

/// Returns the row of an unknown value of a key; `known` are the words that it may have.
#[must_use]
pub fn old_value(unknown: &str, known: &[&str]) -> Option<&'static OldName> {
    find(unknown, |row| {
        matches!(row.place, OldPlace::Value(_)) && row.is_beside(known)
    })
}

/// Returns the row of an unknown kind of events.
#[must_use]
pub fn old_event_kind(unknown: &str) -> Option<&'static OldName> {
    find(unknown, |row| row.place == OldPlace::EventKind)
}

fn find(old: &str, is_it: impl Fn(&OldName) -> bool) -> Option<&'static OldName> {
    OLD_NAMES.iter().find(|row| row.old == old && is_it(row))
}

impl OldName {
    /// Returns whether its replacement, or a neighbour of a removed name, is among these.
    fn is_beside(&self, known: &[&str]) -> bool {
        let neighbour = match self.new {
            Replacement::Name(new) => new,
            Replacement::Removed { beside, .. } => beside,
        };
        known.contains(&neighbour)
    }
}

impl fmt::Display for OldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(self.place, OldPlace::Key(_)) {
            write!(f, "\"{}\" was ", self.old)?;
        }
        match self.new {
            Replacement::Name(new) => write!(f, "renamed to \"{new}\"")?,
            Replacement::Removed { why, .. } => write!(f, "removed: {why}")?,
        }
        write!(f, " (see {PAGE})")
    }
}
