//! Static entries of the forwarding database.

use std::collections::HashSet;

use api::v1::{DesiredState, Problem, ProblemKind, StaticEntry, parse_mac};

use super::at::{At, count, not_a_station, quoted};
use super::invalid::{Invalid, Place, expect};
use super::segments::{exists, one_of_segments};

/// Maximum number of static entries.
const MAX_ENTRIES: usize = 4096;

/// Checks the static entries of a state whose ports and segments are valid.
pub(super) fn check(state: &DesiredState) -> Result<(), Invalid> {
    let entries = &state.fdb;
    let last = Place::Fdb(entries.len().saturating_sub(1));
    count(
        At(last, "mac"),
        entries.len(),
        MAX_ENTRIES,
        "static entries",
    )?;
    let mut seen = HashSet::new();
    for (i, entry) in entries.iter().enumerate() {
        let at = |key| At(Place::Fdb(i), key);
        if let Some(found) = not_a_station(&entry.mac) {
            return Err(at("mac").wrong(expect::MAC, found));
        }
        if !exists(state, &entry.segment) {
            return Err(at("segment").wrong(one_of_segments(state), quoted(&entry.segment)));
        }
        let Some(port) = state.port(&entry.port) else {
            return Err(at("port").wrong("the name of a port", quoted(&entry.port)));
        };
        if port.segments().all(|segment| segment != entry.segment) {
            let expected = format!("a port in segment {}", quoted(&entry.segment));
            let found = format!("{}, which is in another", quoted(&entry.port));
            return Err(at("port").wrong(expected, found));
        }
        if !seen.insert((&entry.segment, parse_mac(&entry.mac))) {
            let found = format!("{} a second time", quoted(&entry.mac));
            return Err(at("mac").taken("each address once in a segment", found));
        }
    }
    Ok(())
}

/// Normalises checked entries.
pub(super) fn normalise(entries: &mut [StaticEntry]) {
    for entry in entries {
        entry.mac.make_ascii_lowercase();
    }
}

/// A change to a static entry, which segment and address identify.
#[derive(Clone, Debug, PartialEq)]
pub enum FdbChange {
    /// Replaces the entry of this address, or appends it.
    Put(StaticEntry),
    /// Removes the entry of this address.
    Remove {
        /// The segment.
        segment: String,
        /// The address.
        mac: String,
    },
}

impl FdbChange {
    /// Returns the state after the change; the changed part is checked.
    ///
    /// # Errors
    /// 404 for an unknown entry, 422 for an invalid one.
    pub(super) fn apply(&self, old: &DesiredState) -> Result<DesiredState, Problem> {
        let mut new = old.clone();
        match self {
            Self::Put(entry) => {
                new.fdb
                    .retain(|old| !is_of(old, &entry.segment, &entry.mac));
                new.fdb.push(entry.clone());
                check(&new).map_err(|invalid| invalid.to_problem())?;
                normalise(&mut new.fdb);
            }
            Self::Remove { segment, mac } => {
                new.fdb.retain(|old| !is_of(old, segment, mac));
                if new.fdb.len() == old.fdb.len() {
                    let detail = format!("there is no static entry `{mac}` in segment `{segment}`");
                    return Err(Problem::new(ProblemKind::NotFound, detail));
                }
            }
        }
        Ok(new)
    }
}

/// Returns whether an entry is for an address, in upper or lower case.
fn is_of(entry: &StaticEntry, segment: &str, mac: &str) -> bool {
    entry.segment == *segment && entry.mac.eq_ignore_ascii_case(mac)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use api::v1::PortSpec;
    use serde_json::json;

    use super::super::ports::{remove_port, set_port};
    use super::*;

    fn state(entries: serde_json::Value) -> DesiredState {
        let port = |name: &str, segment: &str| PortSpec {
            segment: Some(segment.to_owned()),
            ..PortSpec::vhost_user(name, name)
        };
        let trunk = PortSpec {
            trunk: Some(vec!["blue".to_owned(), "red".to_owned()]),
            ..PortSpec::vhost_user("t", "t")
        };
        DesiredState {
            segments: serde_json::from_value(
                json!([{"name": "blue", "vlan": 1}, {"name": "red", "vlan": 2}]),
            )
            .unwrap(),
            ports: vec![port("a", "blue"), port("b", "default"), trunk].into(),
            fdb: serde_json::from_value(entries).unwrap(),
            ..DesiredState::default()
        }
    }

    fn entry(segment: &str, mac: &str, port: &str) -> StaticEntry {
        StaticEntry {
            segment: segment.to_owned(),
            mac: mac.to_owned(),
            port: port.to_owned(),
        }
    }

    #[test]
    fn what_is_wrong_has_its_field() {
        let right = json!([
            {"segment": "blue", "mac": "52:54:00:00:00:0A", "port": "a"},
            {"segment": "red", "mac": "52:54:00:00:00:0a", "port": "t"},
            {"mac": "52:54:00:00:00:0a", "port": "b"},
        ]);
        assert_eq!(check(&state(right)).err().map(|e| e.to_string()), None);
        for (entries, expected) in [
            (
                json!([{"mac": "01:00:5e:00:00:01", "port": "b"}]),
                "fdb[0].mac: expected a unicast MAC address",
            ),
            (
                json!([{"segment": "green", "mac": "52:54:00:00:00:01", "port": "b"}]),
                "fdb[0].segment: expected the name of a segment (default, blue, red), found \
                 \"green\"",
            ),
            (
                json!([{"mac": "52:54:00:00:00:01", "port": "x"}]),
                "fdb[0].port: expected the name of a port, found \"x\"",
            ),
            (
                json!([{"mac": "52:54:00:00:00:01", "port": "a"}]),
                "fdb[0].port: expected a port in segment \"default\", found \"a\", which is in \
                 another",
            ),
            (
                json!([{"mac": "52:54:00:00:00:0a", "port": "b"}, {"mac": "52:54:00:00:00:0A", "port": "b"}]),
                "fdb[1].mac: expected each address once in a segment, found \"52:54:00:00:00:0A\" \
                 a second time",
            ),
        ] {
            let problem = check(&state(entries)).unwrap_err().to_problem_in(None);
            assert!(problem.to_string().starts_with(expected), "{problem}");
        }
    }

    #[test]
    fn one_entry_changes_and_the_others_stay() {
        let old = state(json!([{"segment": "blue", "mac": "52:54:00:00:00:0a", "port": "a"}]));
        let moved = FdbChange::Put(entry("blue", "52:54:00:00:00:0A", "t"));
        let new = moved.apply(&old).unwrap();
        assert_eq!(new.fdb, [entry("blue", "52:54:00:00:00:0a", "t")]);
        let other = FdbChange::Put(entry("default", "52:54:00:00:00:0A", "b"));
        let new = other.apply(&new).unwrap();
        assert_eq!(new.fdb.len(), 2);
        let remove = |segment: &str| FdbChange::Remove {
            segment: segment.to_owned(),
            mac: "52:54:00:00:00:0A".to_owned(),
        };
        assert_eq!(remove("default").apply(&new).unwrap().fdb.len(), 1);
        let problem = remove("red").apply(&new).unwrap_err();
        let said = "there is no static entry `52:54:00:00:00:0A` in segment `red`";
        assert_eq!((problem.status, &*problem.to_string()), (404, said));
    }

    #[test]
    fn what_an_entry_needs_stays() {
        let state = state(json!([{"segment": "blue", "mac": "52:54:00:00:00:0a", "port": "a"}]));
        let problem = remove_port(&state, "a").unwrap_err();
        let said = "port `a` cannot be removed: the static entry `52:54:00:00:00:0a` is behind \
                    it; change or remove that first";
        assert_eq!((problem.status, &*problem.detail), (409, said));
        let patch = serde_json::json!({"segment": "red"});
        let problem = set_port(&state, "a", &patch, Path::new("/run")).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (409, Some("segment"))
        );
        let said = "the static entry `52:54:00:00:00:0a` needs it otherwise: fdb.port: expected a \
                    port in segment \"blue\"";
        assert!(problem.detail.starts_with(said), "{problem}");
    }
}
