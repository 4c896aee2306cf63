//! Checks and changes of mirrors.

use std::collections::HashSet;

use api::v1::{
    DesiredState, MirrorDirection, MirrorSpec, MirrorStats, MirrorStatus, PortStats, Problem,
    StatsDocument,
};
use filter::Filter;
use ipc::mirrors::MAX_MIRRORS;

use super::at::{At, count, name, quoted};
use super::invalid::{Invalid, Place};
use super::segments::{exists, one_of_segments};

/// The expected value of a mirror's port.
const PORT: &str = "the name of a port";

/// Checks the mirrors of a state whose ports and segments are valid.
pub(super) fn check(state: &DesiredState) -> Result<(), Invalid> {
    let mirrors = &state.mirrors;
    let last = Place::Mirror(mirrors.len().saturating_sub(1));
    count(At(last, "name"), mirrors.len(), MAX_MIRRORS, "mirrors")?;
    for (i, mirror) in mirrors.iter().enumerate() {
        let at = |key| At(Place::Mirror(i), key);
        name(at("name"), &mirror.name)?;
        if mirrors[..i].iter().any(|other| other.name == mirror.name) {
            let found = format!("{} a second time", quoted(&mirror.name));
            return Err(at("name").taken("a name that no other mirror has", found));
        }
        if state.port(&mirror.to).is_none() {
            return Err(at("to").wrong(PORT, quoted(&mirror.to)));
        }
        scope(i, mirror, state)?;
        let text = mirror.filter.as_deref().unwrap_or_default();
        Filter::parse(text).map_err(|error| at("filter").wrong("", error.to_string()))?;
    }
    no_copies_of_copies(mirrors)
}

/// Checks the ports, segments and filter of a mirror: they exist, are unique, and are not all
/// absent.
fn scope(i: usize, mirror: &MirrorSpec, state: &DesiredState) -> Result<(), Invalid> {
    let at = |key| At(Place::Mirror(i), key);
    let MirrorSpec {
        ports, segments, ..
    } = mirror;
    each_once(at("ports"), "port", ports)?;
    each_once(at("segments"), "segment", segments)?;
    if let Some(n) = ports.iter().position(|port| state.port(port).is_none()) {
        return Err(at("ports").item(n, PORT, quoted(&ports[n])));
    }
    if let Some(n) = ports.iter().position(|port| *port == mirror.to) {
        let found = format!("{}, which gets the copies", quoted(&mirror.to));
        return Err(at("ports").item(n, "another port", found));
    }
    if let Some(n) = segments.iter().position(|name| !exists(state, name)) {
        let (expected, found) = (one_of_segments(state), quoted(&segments[n]));
        return Err(at("segments").item(n, expected, found));
    }
    if ports.is_empty() && segments.is_empty() && mirror.filter.is_none() {
        let expected = "ports, segments or a filter";
        return Err(at("ports").wrong(expected, "none of them"));
    }
    if ports.is_empty() && mirror.direction != MirrorDirection::Both {
        let found = "no ports: frames of a segment are copied as they were sent";
        return Err(at("direction").wrong("ports that it is about", found));
    }
    Ok(())
}

fn each_once(at: At, what: &str, names: &[String]) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    match names.iter().position(|name| !seen.insert(name)) {
        Some(n) => {
            let found = format!("{} a second time", quoted(&names[n]));
            Err(at.item(n, format!("each {what} once"), found))
        }
        None => Ok(()),
    }
}

/// Checks that no port that receives copies is mirrored by name: it would get copies of copies, or
/// two mirrors would form a loop.
fn no_copies_of_copies(mirrors: &[MirrorSpec]) -> Result<(), Invalid> {
    for (i, mirror) in mirrors.iter().enumerate() {
        for (n, port) in mirror.ports.iter().enumerate() {
            if let Some(other) = mirrors.iter().find(|other| other.to == *port) {
                let (own, other) = (quoted(port), quoted(&other.name));
                let found = format!("{own}, which gets the copies of mirror {other}");
                let at = At(Place::Mirror(i), "ports");
                return Err(at.item(n, "ports that get no copies", found));
            }
        }
    }
    Ok(())
}

/// A change to a mirror, which its name identifies.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorChange {
    /// Appends a mirror.
    Add(MirrorSpec),
    /// Replaces the mirror of this name, or appends it.
    Put(MirrorSpec),
    /// Removes the mirror of this name.
    Remove(String),
}

impl MirrorChange {
    /// Returns the state after the change; the changed part is checked.
    ///
    /// # Errors
    /// 404 for an unknown mirror, 409 if the name is taken, 422 for other errors.
    pub(super) fn apply(&self, old: &DesiredState) -> Result<DesiredState, Problem> {
        let mut new = old.clone();
        let place = |name: &str| old.mirrors.iter().position(|one| one.name == *name);
        let at = match self {
            Self::Add(mirror) => append(&mut new.mirrors, mirror),
            Self::Put(mirror) => match place(&mirror.name) {
                Some(at) => {
                    new.mirrors[at].clone_from(mirror);
                    at
                }
                None => append(&mut new.mirrors, mirror),
            },
            Self::Remove(name) => {
                let at = place(name).ok_or_else(|| Problem::no_such("mirror", name))?;
                new.mirrors.remove(at);
                return Ok(new);
            }
        };
        check(&new).map_err(|invalid| error_at(at, &new.mirrors, &invalid))?;
        Ok(new)
    }
}

/// Appends a mirror and returns its index.
fn append(mirrors: &mut Vec<MirrorSpec>, new: &MirrorSpec) -> usize {
    mirrors.push(new.clone());
    mirrors.len() - 1
}

/// Returns an error that the change of the mirror at `at` causes, for a request about that mirror.
/// An error at another mirror means that the changed one sends copies to a port of that one.
fn error_at(at: usize, mirrors: &[MirrorSpec], invalid: &Invalid) -> Problem {
    match invalid.place {
        Place::Mirror(other) if other != at => {
            let (to, other) = (quoted(&mirrors[at].to), quoted(&mirrors[other].name));
            let found = format!("{to}, which mirror {other} copies");
            let to =
                At(Place::Mirror(at), "to").wrong("a port that no mirror copies by name", found);
            to.to_problem()
        }
        _ => invalid.to_problem_in(Some(&format!("mirrors[{at}]"))),
    }
}

/// Returns the mirrors, with their counters and those of the ports that receive the copies.
#[must_use]
pub fn mirrors(state: &DesiredState, stats: &StatsDocument) -> Vec<MirrorStatus> {
    let (none, unknown) = (MirrorStats::default(), PortStats::default());
    let own = |name: &str| stats.mirrors.iter().find(|mirror| mirror.name == name);
    let numbers = |name: &str| stats.ports.iter().find(|port| port.name == name);
    let status = |spec: &MirrorSpec| {
        let own = own(&spec.name).unwrap_or(&none);
        MirrorStatus::new(spec, own, numbers(&spec.to).unwrap_or(&unknown))
    };
    state.mirrors.iter().map(status).collect()
}

#[cfg(test)]
mod tests {
    use api::v1::{PortSpec, PortState, Traffic};
    use serde_json::json;

    use super::*;

    fn wrong(mirrors: serde_json::Value) -> Option<String> {
        let ports = ["a", "b", "c"].map(|name| PortSpec::vhost_user(name, name));
        let state = DesiredState {
            ports: ports.into(),
            mirrors: serde_json::from_value(mirrors).unwrap(),
            ..DesiredState::default()
        };
        let problem = check(&state).err()?.to_problem_in(None);
        let field = problem.field.clone().unwrap_or_default();
        Some(format!("{field}: {}", problem.detail))
    }

    #[test]
    fn a_mirror_is_of_ports_of_segments_or_of_what_a_filter_means() {
        let of = json!([
            {"name": "1", "to": "c", "ports": ["a", "b"], "direction": "in"},
            {"name": "2", "to": "c", "segments": ["default"], "filter": "arp"},
            {"name": "3", "to": "c", "filter": "tcp port 80"},
        ]);
        assert_eq!(wrong(of), None);
    }

    /// Three ports, and two mirrors to `c`.
    fn mirrored() -> DesiredState {
        let ports = ["a", "b", "c"].map(|name| PortSpec::vhost_user(name, name));
        DesiredState {
            ports: ports.into(),
            mirrors: vec![mirror("1", "c", "a"), mirror("2", "c", "b")],
            ..DesiredState::default()
        }
    }

    fn mirror(name: &str, to: &str, port: &str) -> MirrorSpec {
        MirrorSpec {
            name: name.to_owned(),
            to: to.to_owned(),
            ports: vec![port.to_owned()],
            ..MirrorSpec::default()
        }
    }

    #[test]
    fn one_mirror_changes_and_the_others_stay_where_they_are() {
        let old = mirrored();
        let names = |change: MirrorChange| -> Vec<String> {
            let new = change.apply(&old).unwrap();
            assert_eq!(new.ports, old.ports);
            let names = new.mirrors.iter();
            names
                .map(|m| format!("{}:{}", m.name, m.ports[0]))
                .collect()
        };
        let add = MirrorChange::Add(mirror("3", "c", "a"));
        assert_eq!(names(add), ["1:a", "2:b", "3:a"]);
        let put = MirrorChange::Put(mirror("1", "c", "b"));
        assert_eq!(names(put), ["1:b", "2:b"]);
        let put = MirrorChange::Put(mirror("3", "c", "b"));
        assert_eq!(names(put), ["1:a", "2:b", "3:b"]);
        assert_eq!(names(MirrorChange::Remove("1".to_owned())), ["2:b"]);
    }

    #[test]
    fn what_is_wrong_is_blamed_on_the_mirror_that_changes() {
        let mut old = mirrored();
        for (change, status, said) in [
            (
                MirrorChange::Put(mirror("1", "b", "a")),
                422,
                "to: expected a port that no mirror copies by name, found \"b\", which mirror \
                 \"2\" copies",
            ),
            (
                MirrorChange::Put(mirror("1", "a", "c")),
                422,
                "ports[0]: expected ports that get no copies, found \"c\", which gets the copies \
                 of mirror \"2\"",
            ),
            (
                MirrorChange::Add(mirror("1", "c", "b")),
                409,
                "name: expected a name that no other mirror has, found \"1\" a second time",
            ),
            (
                MirrorChange::Remove("3".to_owned()),
                404,
                "there is no mirror `3`",
            ),
        ] {
            let problem = change.apply(&old).unwrap_err();
            assert_eq!((problem.status, &*problem.to_string()), (status, said));
        }
        old.mirrors = (0..MAX_MIRRORS)
            .map(|n| mirror(&n.to_string(), "c", "a"))
            .collect();
        let one_more = MirrorChange::Put(mirror("more", "c", "a"));
        let problem = one_more.apply(&old).unwrap_err();
        let said = "name: expected at most 64 mirrors, found 65";
        assert_eq!((problem.status, &*problem.to_string()), (422, said));
        let other = MirrorChange::Put(mirror("63", "c", "b"));
        assert_eq!(other.apply(&old).unwrap().mirrors[63].ports, ["b"]);
    }

    #[test]
    fn a_mirror_has_its_numbers_and_those_of_its_receiver() {
        let numbers = PortStats {
            neighbour_replies: 0,
            name: "c".to_owned(),
            state: PortState::Up,
            to_guest: Traffic {
                packets: 7,
                bytes: 700,
            },
            drops: [("receiver-full".to_owned(), 3)].into(),
            ..PortStats::default()
        };
        let stats = StatsDocument {
            ports: vec![PortStats::default(), numbers.clone()],
            mirrors: vec![MirrorStats {
                name: "2".to_owned(),
                copied: numbers.to_guest,
                lost: numbers.drops.clone(),
            }],
            ..StatsDocument::default()
        };
        let all = mirrors(&mirrored(), &stats);
        assert_eq!(all.len(), 2);
        let own = all.iter().map(|one| (one.copied.packets, one.lost.len()));
        assert_eq!(own.collect::<Vec<_>>(), [(0, 0), (7, 1)]);
        for status in all {
            assert_eq!(status.state, PortState::Up);
            assert_eq!(status.to_guest, numbers.to_guest);
            assert_eq!(status.drops, numbers.drops);
        }
    }

    #[test]
    fn what_is_wrong_has_its_field() {
        for (mirror, expected) in [
            (
                json!({"name": "x y", "to": "c"}),
                "mirrors[0].name: expected a name of 1 to 32",
            ),
            (
                json!({"name": "m", "to": "d"}),
                "mirrors[0].to: expected the name of a port, found \"d\"",
            ),
            (
                json!({"name": "m", "to": "c"}),
                "mirrors[0].ports: expected ports, segments or a filter",
            ),
            (
                json!({"name": "m", "to": "c", "ports": ["a", "d"]}),
                "mirrors[0].ports[1]: expected the name of a port",
            ),
            (
                json!({"name": "m", "to": "c", "ports": ["a", "a"]}),
                "mirrors[0].ports[1]: expected each port once",
            ),
            (
                json!({"name": "m", "to": "c", "ports": ["c"]}),
                "mirrors[0].ports[0]: expected another port",
            ),
            (
                json!({"name": "m", "to": "c", "segments": ["red"]}),
                "mirrors[0].segments[0]: expected the name of a segment (default)",
            ),
            (
                json!({"name": "m", "to": "c", "filter": "tcp prot 80"}),
                "mirrors[0].filter: column 5:",
            ),
            (
                json!({"name": "m", "to": "c", "filter": "arp", "direction": "out"}),
                "mirrors[0].direction: expected ports",
            ),
        ] {
            let got = wrong(json!([mirror])).unwrap_or_default();
            assert!(got.starts_with(expected), "{got}");
        }
    }

    #[test]
    fn there_are_no_doubles_and_no_circles() {
        let one = json!({"name": "m", "to": "c", "ports": ["a"]});
        let got = wrong(json!([one.clone(), one.clone()])).unwrap();
        assert!(
            got.starts_with("mirrors[1].name: expected a name that no other"),
            "{got}"
        );
        let back = json!({"name": "n", "to": "a", "ports": ["b"]});
        let got = wrong(json!([one, back])).unwrap();
        let expected = "mirrors[0].ports[0]: expected ports that get no copies, found \"a\", \
                        which gets the copies of mirror \"n\"";
        assert_eq!(got, expected);
    }
}
