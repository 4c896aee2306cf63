//! What tells one wanted state from another, for people and for the log.
//!
//! The order of segments and ports is not a difference: it means nothing to the switch.

mod access;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use api::v1::{Action, FieldChange, Step, Subject};
use api::v1::{PortSpec, WantedState};
use serde::Serialize;
use serde_json::{Map, Value};

/// Rules and address sets of one change that are told one by one when it was done.
const TOLD: usize = 200;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// What it takes to get from one to the other.
    pub changes: Vec<Step>,
}

/// The fields of a spec.
type Fields = BTreeMap<String, Value>;

impl Difference {
    /// What leads from one to another; both are normalised.
    #[must_use]
    pub fn between(old: &WantedState, new: &WantedState) -> Self {
        let mut changes = Vec::new();
        let switch = compare(&fields(&old.switch), &fields(&new.switch));
        let metrics = compare(&fields(&old.metrics), &fields(&new.metrics));
        for (subject, fields) in [(Subject::Switch, switch), (Subject::Metrics, metrics)] {
            if !fields.is_empty() {
                changes.push(Step {
                    action: Action::Change,
                    subject,
                    name: None,
                    fields,
                    disconnects: false,
                });
            }
        }
        let name = |segment: &api::v1::SegmentSpec| segment.name.clone();
        let (before, after) = (&old.segments, &new.segments);
        each(
            Subject::Segment,
            before,
            after,
            name,
            |_, _| false,
            &mut changes,
        );
        let name = |port: &PortSpec| port.name.clone();
        let (before, after) = (&old.ports, &new.ports);
        each(
            Subject::Port,
            before,
            after,
            name,
            disconnects,
            &mut changes,
        );
        if !Arc::ptr_eq(&old.access, &new.access) {
            access::between(&old.access, &new.access, &mut changes);
        }
        let name = |mirror: &api::v1::MirrorSpec| mirror.name.clone();
        let (before, after) = (&old.mirrors, &new.mirrors);
        let never = |_: &_, _: &_| false;
        each(Subject::Mirror, before, after, name, never, &mut changes);
        let name = |entry: &api::v1::StaticEntry| format!("{} {}", entry.segment, entry.mac);
        let (before, after) = (&old.fdb, &new.fdb);
        let never = |_: &_, _: &_| false;
        each(Subject::Fdb, before, after, name, never, &mut changes);
        Self { changes }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The same as far as it is told when it was done; and of how many rules and address sets it is not, because they are many: to find
    /// out more takes time, and nobody reads it.
    pub(crate) fn to_tell(old: &WantedState, new: &WantedState) -> (Self, u64) {
        let rules = access::count(&old.access, &new.access);
        if rules <= TOLD {
            return (Self::between(old, new), 0);
        }
        let rest = WantedState {
            access: Arc::clone(&old.access),
            ..new.clone()
        };
        (Self::between(old, &rest), rules as u64)
    }
}

/// Whether a port's guest or driver loses its connection.
fn disconnects(old: &PortSpec, new: &PortSpec) -> bool {
    let fixed = |port: &PortSpec| PortSpec {
        admin_state: api::v1::AdminState::Up,
        segment: None,
        trunk: None,
        mac: None,
        mtu: None,
        weight: 0,
        vcpu_threads: None,
        user: None,
        group: None,
        mode: None,
        peer_user: None,
        guard: api::v1::GuardSpec::default(),
        limits: api::v1::LimitsSpec::default(),
        ..port.clone()
    };
    fixed(old) != fixed(new)
}

/// Steps for things with names: what goes, what changes, what comes.
fn each<T: Serialize + PartialEq>(
    subject: Subject,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> String,
    disconnects: impl Fn(&T, &T) -> bool,
    changes: &mut Vec<Step>,
) {
    let by_name = |all| -> BTreeMap<String, _> {
        let all: std::slice::Iter<'_, T> = all;
        all.map(|one| (name(one), one)).collect()
    };
    let (before, after) = (by_name(old.iter()), by_name(new.iter()));
    let step = |action, of: &T, fields, disconnects| Step {
        action,
        subject,
        name: Some(name(of)),
        fields,
        disconnects,
    };
    for old in old.iter().filter(|old| !after.contains_key(&name(old))) {
        let gone = compare(&fields(old), &Fields::new());
        changes.push(step(Action::Remove, old, gone, subject == Subject::Port));
    }
    for new in new {
        match before.get(&name(new)) {
            None => {
                let come = compare(&Fields::new(), &fields(new));
                changes.push(step(Action::Add, new, come, false));
            }
            Some(old) if **old == *new => {}
            Some(old) => {
                let changed = compare(&fields(*old), &fields(new));
                if !changed.is_empty() {
                    changes.push(step(Action::Change, new, changed, disconnects(old, new)));
                }
            }
        }
    }
}

/// The fields of a spec but for its name, those of tables within it with dots.
fn fields(spec: &impl Serialize) -> Fields {
    let mut found = Fields::new();
    if let Ok(Value::Object(map)) = serde_json::to_value(spec) {
        flatten("", map, &mut found);
    }
    found
}

fn flatten(prefix: &str, map: Map<String, Value>, found: &mut Fields) {
    for (key, value) in map {
        let key = format!("{prefix}{key}");
        match value {
            Value::Object(inner) => flatten(&format!("{key}."), inner, found),
            Value::Null => {}
            value => drop(found.insert(key, value)),
        }
    }
}

/// What differs. A thing's name is not one of its fields where it comes or goes.
fn compare(old: &Fields, new: &Fields) -> Vec<FieldChange> {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let is_whole = old.is_empty() || new.is_empty();
    keys.retain(|key| old.get(*key) != new.get(*key) && !(is_whole && *key == "name"));
    let value = |fields: &Fields, key: &String| fields.get(key).cloned().unwrap_or_default();
    keys.into_iter()
        .map(|key| FieldChange {
            field: key.clone(),
            from: value(old, key),
            to: value(new, key),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use api::v1::{SegmentSpec, WantedState};
    use serde_json::json;

    use super::*;
    use crate::wanted::normalise;

    fn state(change: impl FnOnce(&mut WantedState)) -> WantedState {
        let mut state = WantedState {
            ports: vec![
                PortSpec::vhost_user("vm1", "vm1.sock"),
                PortSpec::vhost_user("vm2", "vm2.sock"),
            ],
            ..WantedState::default()
        };
        change(&mut state);
        normalise(&mut state);
        state
    }

    fn steps(change: impl FnOnce(&mut WantedState)) -> Vec<Step> {
        Difference::between(&state(|_| {}), &state(change)).changes
    }

    #[test]
    fn the_same_in_another_order_is_no_difference() {
        assert_eq!(steps(|s| s.ports.reverse()), []);
    }

    #[test]
    fn what_comes_goes_and_changes() {
        let all = steps(|s| {
            s.switch.batching.period_us = 7;
            s.segments.push(SegmentSpec {
                name: "blue".to_owned(),
                vlan: Some(10),
                neighbour_suppression: false,
            });
            s.ports.remove(0);
            s.ports[0].mtu = Some(9000);
            s.ports.push(PortSpec::vhost_user("vm3", "vm3.sock"));
        });
        let told: Vec<_> = all
            .iter()
            .map(|s| {
                (
                    s.action,
                    s.subject,
                    s.name.as_deref().unwrap_or("-"),
                    s.disconnects,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                (Action::Change, Subject::Switch, "-", false),
                (Action::Add, Subject::Segment, "blue", false),
                (Action::Remove, Subject::Port, "vm1", true),
                (Action::Change, Subject::Port, "vm2", false),
                (Action::Add, Subject::Port, "vm3", false),
            ]
        );
        let field = |step: &Step| serde_json::to_value(&step.fields[0]).unwrap();
        let period = json!({"field": "batching.period_us", "from": 125, "to": 7});
        assert_eq!(field(&all[0]), period);
        assert_eq!(
            field(&all[1]),
            json!({"field": "vlan", "from": null, "to": 10})
        );
        assert_eq!(
            field(&all[3]),
            json!({"field": "mtu", "from": null, "to": 9000})
        );
        assert!(all[4].fields.iter().all(|f| f.field != "name"));
    }

    #[test]
    fn another_socket_costs_the_guest_its_connection() {
        let socket = steps(|s| s.ports[0].socket = "other.sock".to_owned());
        assert!(socket[0].disconnects);
        let segment = steps(|s| s.ports[0].weight = 7);
        assert!(!segment[0].disconnects);
    }
}
