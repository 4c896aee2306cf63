//! References to objects that are to be removed. The removal is refused, and the error has the
//! referring objects.

use api::v1::{
    AccessListSpec, AccessModel, DesiredState, MirrorSpec, PortSpec, Problem, ProblemKind, RuleSpec,
};

/// Maximum number of named references; of more only the number is reported.
const REPORTED_MAX: usize = 5;

/// Checks that nothing refers to the port.
///
/// # Errors
/// 409 with the referring objects; here and below.
pub(super) fn port(state: &DesiredState, name: &str) -> Result<(), Problem> {
    let mut users = Vec::new();
    for mirror in state.mirrors.iter().filter(|mirror| mirror.to == *name) {
        users.push(format!("mirror `{}` sends its copies there", mirror.name));
    }
    users.extend(mirrors_with(state, |mirror| has(&mirror.ports, name)));
    for group in state
        .access
        .groups
        .iter()
        .filter(|group| has(&group.ports, name))
    {
        users.push(format!("group `{}` has it", group.name));
    }
    users.extend(lists_with(&state.access, |list| has(&list.ports, name)));
    users.extend(rules_with(&state.access, |rule| {
        has(&rule.peer_ports, name)
    }));
    for entry in state.fdb.iter().filter(|entry| entry.port == *name) {
        users.push(format!("the static entry `{}` is behind it", entry.mac));
    }
    refuse("port", name, users)
}

/// Checks that nothing refers to the segment.
pub(super) fn segment(state: &DesiredState, name: &str) -> Result<(), Problem> {
    let mut users = Vec::new();
    for port in state
        .ports
        .iter()
        .filter(|port| port.segments().any(|segment| segment == name))
    {
        users.push(format!("port `{}` is in it", port.name));
    }
    users.extend(mirrors_with(state, |mirror| has(&mirror.segments, name)));
    users.extend(lists_with(&state.access, |list| has(&list.segments, name)));
    if state
        .access
        .defaults
        .iter()
        .any(|default| default.segment == *name)
    {
        users.push("it has defaults for its access lists".to_owned());
    }
    for entry in state.fdb.iter().filter(|entry| entry.segment == *name) {
        users.push(format!("the static entry `{}` is in it", entry.mac));
    }
    refuse("segment", name, users)
}

/// Checks that nothing refers to the group of ports.
pub(super) fn group(access: &AccessModel, name: &str) -> Result<(), Problem> {
    let lists = lists_with(access, |list| has(&list.groups, name));
    let rules = rules_with(access, |rule| has(&rule.peer_groups, name));
    refuse("group", name, lists.chain(rules).collect())
}

/// Checks that nothing refers to the address set.
pub(super) fn address_set(access: &AccessModel, name: &str) -> Result<(), Problem> {
    let is_it = |text: &String| text.strip_prefix('@') == Some(name);
    let rules = rules_with(access, |rule| {
        rule.source.iter().chain(&rule.destination).any(is_it)
    });
    refuse("address set", name, rules.collect())
}

/// Checks that nothing refers to the traffic class.
///
/// # Errors
/// 422 with the referring objects; here and below.
pub(super) fn qos_class(state: &DesiredState, name: &str) -> Result<(), Problem> {
    let ports = state.ports.iter().filter(|port| names_class(port, name));
    let ports = ports.map(|port| format!("port `{}` names it", port.name));
    let rules = rules_with(&state.access, |rule| rule.class.as_deref() == Some(name));
    invalid(refuse("class", name, ports.chain(rules).collect()))
}

/// Checks that nothing refers to the group of senders.
pub(super) fn qos_group(state: &DesiredState, name: &str) -> Result<(), Problem> {
    let ports = state.ports.iter();
    let members = ports.filter(|port| port.qos.group.as_deref() == Some(name));
    let members = members.map(|port| format!("port `{}` is in it", port.name));
    invalid(refuse("group", name, members.collect()))
}

/// Makes a refusal one of an invalid value.
fn invalid(refused: Result<(), Problem>) -> Result<(), Problem> {
    refused.map_err(|problem| Problem::new(ProblemKind::Invalid, problem.detail))
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|one| one == name)
}

fn mirrors_with(
    state: &DesiredState,
    names_it: impl Fn(&MirrorSpec) -> bool,
) -> impl Iterator<Item = String> {
    let users = state.mirrors.iter().filter(move |mirror| names_it(mirror));
    users.map(|mirror| format!("mirror `{}` copies its frames", mirror.name))
}

fn lists_with(
    access: &AccessModel,
    names_it: impl Fn(&AccessListSpec) -> bool,
) -> impl Iterator<Item = String> {
    let users = access.lists.iter().filter(move |list| names_it(list));
    users.map(|list| format!("access list `{}` is attached to it", list.name))
}

fn rules_with(
    access: &AccessModel,
    names_it: impl Fn(&RuleSpec) -> bool,
) -> impl Iterator<Item = String> {
    let lists = access.lists.iter();
    let all = lists.flat_map(|list| list.rules.iter().map(move |rule| (&list.name, rule)));
    let users = all.filter(move |(_, rule)| names_it(rule));
    users.map(|(list, rule)| format!("rule `{}` of access list `{list}` names it", rule.name))
}

/// Returns the error with the referring objects, if there are any.
fn refuse(what: &str, name: &str, mut users: Vec<String>) -> Result<(), Problem> {
    let first = match users.len() {
        0 => return Ok(()),
        1 => "that",
        _ => "these",
    };
    let more = users.len().saturating_sub(REPORTED_MAX);
    if more > 0 {
        users.truncate(REPORTED_MAX);
        users.push(format!("and {more} more"));
    }
    let users = users.join(", ");
    let detail =
        format!("{what} `{name}` cannot be removed: {users}; change or remove {first} first");
    Err(Problem::new(ProblemKind::Conflict, detail))
}

/// Returns whether a port's settings name a class.
fn names_class(port: &PortSpec, name: &str) -> bool {
    let by_pair = port.qos.class_by_pair.iter().any(|class| class == name);
    by_pair || port.qos.classes.contains_key(name)
}

#[cfg(test)]
mod tests {
    use api::v1::PortSpec;
    use serde_json::json;

    use super::*;

    fn state() -> DesiredState {
        let port = |name| PortSpec::vhost_user(name, name);
        let rule = |name: &str, key: &str, value: &str| json!({"name": name, "action": "allow", key: [value]});
        let access = json!({
            "address_sets": [{"name": "office", "addresses": ["10.0.0.0/8"]}],
            "groups": [{"name": "web", "ports": ["a", "b"]}],
            "defaults": [{"segment": "blue", "to_guest": "deny"}],
            "lists": [
                {"name": "in", "direction": "to-guest", "groups": ["web"], "ports": ["c"], "rules": [
                    rule("1", "peer_ports", "d"),
                    rule("2", "peer_groups", "web"),
                    rule("3", "source", "@office"),
                    rule("4", "destination", "@office"),
                ]},
                {"name": "out", "direction": "from-guest", "segments": ["blue"]},
            ],
        });
        let mirrors = json!([
            {"name": "m1", "to": "probe", "ports": ["a", "c"]},
            {"name": "m2", "to": "probe", "segments": ["blue"]},
        ]);
        DesiredState {
            segments: serde_json::from_value(json!([{"name": "blue"}, {"name": "red"}])).unwrap(),
            ports: ["a", "b", "c", "d", "e", "probe"].map(port).into(),
            access: std::sync::Arc::new(serde_json::from_value(access).unwrap()),
            mirrors: serde_json::from_value(mirrors).unwrap(),
            ..DesiredState::default()
        }
    }

    fn detail_of(done: Result<(), Problem>) -> String {
        match done {
            Ok(()) => String::new(),
            Err(problem) => {
                assert_eq!((problem.status, &problem.field), (409, &None));
                problem.detail
            }
        }
    }

    #[test]
    fn an_error_names_the_referring_objects() {
        let mut state = state();
        for (name, users) in [
            (
                "a",
                "mirror `m1` copies its frames, group `web` has it; change or remove these first",
            ),
            ("b", "group `web` has it; change or remove that first"),
            (
                "c",
                "mirror `m1` copies its frames, access list `in` is attached to it; change or \
                 remove these first",
            ),
            (
                "d",
                "rule `1` of access list `in` names it; change or remove that first",
            ),
            (
                "probe",
                "mirror `m1` sends its copies there, mirror `m2` sends its copies there; change \
                 or remove these first",
            ),
        ] {
            let expected = format!("port `{name}` cannot be removed: {users}");
            assert_eq!(detail_of(port(&state, name)), expected);
        }
        assert_eq!(detail_of(port(&state, "e")), "");
        let blue = "segment `blue` cannot be removed: mirror `m2` copies its frames, access list \
                    `out` is attached to it, \
            it has defaults for its access lists; change or remove these first";
        assert_eq!(detail_of(segment(&state, "blue")), blue);
        assert_eq!(detail_of(segment(&state, "red")), "");
        let web = "group `web` cannot be removed: access list `in` is attached to it, rule `2` of \
                   access list `in` names it; \
            change or remove these first";
        assert_eq!(detail_of(group(&state.access, "web")), web);
        let office = "address set `office` cannot be removed: rule `3` of access list `in` names \
                      it, rule `4` of access list `in` names it; \
            change or remove these first";
        assert_eq!(detail_of(address_set(&state.access, "office")), office);
        for port in &mut state.ports {
            port.segment = Some("red".to_owned());
        }
        let red = "segment `red` cannot be removed: port `a` is in it, port `b` is in it, port \
                   `c` is in it, port `d` is in it, \
            port `e` is in it, and 1 more; change or remove these first";
        assert_eq!(detail_of(segment(&state, "red")), red);
    }
}
