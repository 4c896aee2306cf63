//! Differences between two desired states, for answers and for the log.
//!
//! The order of segments and ports is no difference: it has no effect.

mod access;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use api::v1::{Action, FieldChange, Step, Subject};
use api::v1::{
    DesiredState, MirrorSpec, PipeSpec, PortSpec, QosClassSpec, QosGroupSpec, Secret, SegmentSpec,
    StaticEntry,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::user::{automatic_network6, has_other_network};
use crate::json;

/// Maximum number of rules and address sets of a change with an event each.
const REPORTED_MAX: usize = 200;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// The steps from one state to the other.
    pub changes: Vec<Step>,
}

/// The fields of a spec.
type Fields = BTreeMap<String, Value>;

impl Difference {
    /// Returns the difference between two normalised states.
    #[must_use]
    pub fn between(old: &DesiredState, new: &DesiredState) -> Self {
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
                    next_connection: Vec::new(),
                });
            }
        }
        each(&old.segments, &new.segments, &mut changes);
        each(&old.qos_classes, &new.qos_classes, &mut changes);
        each(&old.qos_groups, &new.qos_groups, &mut changes);
        each(&old.ports, &new.ports, &mut changes);
        readdress(old, new, &mut changes);
        if !Arc::ptr_eq(&old.access, &new.access) {
            access::between(&old.access, &new.access, &mut changes);
        }
        each(&old.mirrors, &new.mirrors, &mut changes);
        each(&old.pipes, &new.pipes, &mut changes);
        each(&old.fdb, &new.fdb, &mut changes);
        Self { changes }
    }

    /// Returns whether there is no difference.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the difference as reported by events, and the number of rules and address sets that
    /// are left out because they are many: to compare all of them would take long.
    pub fn to_report(old: &DesiredState, new: &DesiredState) -> (Self, u64) {
        let rules = access::count(&old.access, &new.access);
        if rules <= REPORTED_MAX {
            return (Self::between(old, new), 0);
        }
        let rest = DesiredState {
            access: Arc::clone(&old.access),
            ..new.clone()
        };
        (Self::between(old, &rest), rules as u64)
    }
}

/// Objects that are compared one by one.
trait Object: Serialize + PartialEq {
    /// Their kind.
    const SUBJECT: Subject;

    /// Returns the name, which is unique.
    fn name(&self) -> String;

    /// Returns whether the change closes the connection of a port's guest or driver. All other
    /// changes are made while it is connected.
    fn disconnects(&self, _new: &Self) -> bool {
        false
    }

    /// Returns the changed fields that hold from the guest's next connection.
    fn next_connection(&self, _new: &Self) -> Vec<String> {
        Vec::new()
    }
}

impl Object for PortSpec {
    const SUBJECT: Subject = Subject::Port;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn disconnects(&self, new: &Self) -> bool {
        let socket = |port: &PortSpec| (port.kind, port.socket.clone(), port.role, port.queues);
        let interface = |port: &PortSpec| {
            let (name, namespace) = (port.interface.clone(), port.netns.clone());
            let driver = (port.driver, port.driver_process);
            (driver, name, namespace, port.address.clone())
        };
        let rings = |port: &PortSpec| (port.slots, port.id, port.secret.clone());
        socket(self) != socket(new)
            || interface(self) != interface(new)
            || rings(self) != rings(new)
            || has_other_network(self, new)
    }

    fn next_connection(&self, new: &Self) -> Vec<String> {
        let waits = self.iommu != new.iommu && !self.disconnects(new);
        waits.then(|| "iommu".to_owned()).into_iter().collect()
    }
}

/// Makes other types objects: the type, its kind, and the name of one.
macro_rules! objects {
    ($($type:ty, $subject:ident, $of:ident => $name:expr;)*) => {$(
        impl Object for $type {
            const SUBJECT: Subject = Subject::$subject;

            fn name(&self) -> String {
                let $of = self;
                $name
            }
        }
    )*};
}
use objects;

objects! {
    SegmentSpec, Segment, segment => segment.name.clone();
    QosClassSpec, QosClass, class => class.name.clone();
    QosGroupSpec, QosGroup, group => group.name.clone();
    MirrorSpec, Mirror, mirror => mirror.name.clone();
    PipeSpec, Pipe, pipe => pipe.name.clone();
    StaticEntry, Fdb, entry => format!("{} {}", entry.segment, entry.mac);
}

/// Appends the steps for named objects: removed, changed, added.
fn each<T: Object>(old: &[T], new: &[T], changes: &mut Vec<Step>) {
    let by_name = |all| -> BTreeMap<String, _> {
        let all: std::slice::Iter<'_, T> = all;
        all.map(|one| (one.name(), one)).collect()
    };
    let (before, after) = (by_name(old.iter()), by_name(new.iter()));
    let step = |action, of: &T, fields, disconnects| Step {
        action,
        subject: T::SUBJECT,
        name: Some(of.name()),
        fields,
        disconnects,
        next_connection: Vec::new(),
    };
    for old in old.iter().filter(|old| !after.contains_key(&old.name())) {
        let gone = compare(&fields(old), &Fields::new());
        changes.push(step(Action::Remove, old, gone, T::SUBJECT == Subject::Port));
    }
    for new in new {
        match before.get(&new.name()) {
            None => {
                let come = compare(&Fields::new(), &fields(new));
                changes.push(step(Action::Add, new, come, false));
            }
            Some(old) if **old == *new => {}
            Some(old) => {
                let changed = compare(&fields(*old), &fields(new));
                if !changed.is_empty() {
                    changes.push(Step {
                        next_connection: old.next_connection(new),
                        ..step(Action::Change, new, changed, old.disconnects(new))
                    });
                }
            }
        }
    }
}

/// Adds the networks that user ports get by another name of the switch.
fn readdress(old: &DesiredState, new: &DesiredState, changes: &mut Vec<Step>) {
    if old.switch.name == new.switch.name {
        return;
    }
    for port in &new.ports {
        let before = old.ports.iter().find(|old| old.name == port.name);
        let before = before.and_then(|before| automatic_network6(old, before));
        let (Some(from), Some(to)) = (before, automatic_network6(new, port)) else {
            continue;
        };
        let field = FieldChange {
            field: "network6".to_owned(),
            from: from.to_string().into(),
            to: to.to_string().into(),
        };
        let is_of = |step: &&mut Step| {
            step.subject == Subject::Port && step.name.as_deref() == Some(&port.name)
        };
        match changes.iter_mut().find(is_of) {
            Some(step) => {
                step.disconnects = true;
                step.fields.push(field);
            }
            None => changes.push(Step {
                action: Action::Change,
                subject: Subject::Port,
                name: Some(port.name.clone()),
                fields: vec![field],
                disconnects: true,
                next_connection: Vec::new(),
            }),
        }
    }
}

/// Returns the fields of a spec; those of nested tables have names with dots.
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

/// Returns the differing fields. The name of an added or removed object is left out.
fn compare(old: &Fields, new: &Fields) -> Vec<FieldChange> {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let is_whole = old.is_empty() || new.is_empty();
    keys.retain(|key| old.get(*key) != new.get(*key) && !(is_whole && *key == "name"));
    let value = |fields: &Fields, key: &String| match fields.get(key) {
        Some(_) if json::is_secret(key) => Secret::HIDDEN.into(),
        value => value.cloned().unwrap_or_default(),
    };
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
    use api::v1::{DesiredState, PortKind, SegmentSpec};
    use serde_json::json;

    use super::*;
    use crate::desired::normalise;

    fn state(change: impl FnOnce(&mut DesiredState)) -> DesiredState {
        let mut state = DesiredState {
            ports: vec![
                PortSpec::vhost_user("vm1", "vm1.sock"),
                PortSpec::vhost_user("vm2", "vm2.sock"),
            ]
            .into(),
            ..DesiredState::default()
        };
        change(&mut state);
        normalise(&mut state);
        state
    }

    fn steps(change: impl FnOnce(&mut DesiredState)) -> Vec<Step> {
        Difference::between(&state(|_| {}), &state(change)).changes
    }

    #[test]
    fn the_same_in_another_order_is_no_difference() {
        assert_eq!(steps(|s| s.ports.reverse()), []);
    }

    #[test]
    fn what_comes_goes_and_changes() {
        let all = steps(|s| {
            s.switch.coalescing.period_us = 7;
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
        let period = json!({"field": "coalescing.period_us", "from": 250, "to": 7});
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
        let described = steps(|s| s.ports[0].description = "web server".to_owned());
        assert!(!described[0].disconnects);
        let segment = steps(|s| s.ports[0].weight = 7);
        assert!(!segment[0].disconnects && segment[0].next_connection.is_empty());
    }

    #[test]
    fn another_network_of_a_user_port_ends_its_flows() {
        type Change = fn(&mut PortSpec);
        let user = |change: Change| {
            let mut port = PortSpec::new("out", PortKind::User);
            change(&mut port);
            state(|s| s.ports.push(port.clone()))
        };
        let changes: [(Change, bool); 10] = [
            (|port| port.network = Some("10.1.0.0/24".to_owned()), true),
            (|port| port.network6 = Some("off".to_owned()), true),
            (|port| port.mac = Some("02:00:00:00:00:01".to_owned()), true),
            (|port| port.mtu = Some(1400), true),
            (|port| port.network = Some("10.0.2.0/24".to_owned()), false),
            (
                |port| port.mac = Some("52:55:0a:00:02:02".to_owned()),
                false,
            ),
            (|port| port.network6 = Some("auto".to_owned()), false),
            (|port| port.mtu = Some(1500), false),
            (|port| port.dns = Some("off".to_owned()), false),
            (|port| port.description = "outside".to_owned(), false),
        ];
        for (change, disconnects) in changes {
            let steps = Difference::between(&user(|_| {}), &user(change)).changes;
            assert_eq!(steps[0].disconnects, disconnects, "{steps:?}");
        }
        // Another name of the switch, of which the IPv6 network is made.
        let renamed = |network6: &'static str| {
            let mut old = user(|_| {});
            old.ports[2].network6 = Some(network6.to_owned());
            let mut new = old.clone();
            new.switch.name = "other".to_owned();
            let changes = Difference::between(&old, &new).changes;
            changes.into_iter().filter(|step| step.disconnects)
        };
        let [step] = &renamed("auto").collect::<Vec<_>>()[..] else {
            panic!("one port");
        };
        assert_eq!(
            (step.name.as_deref(), &step.fields[0].field[..]),
            (Some("out"), "network6")
        );
        assert_ne!(step.fields[0].from, step.fields[0].to);
        assert_eq!(renamed("fd00:1::/64").count(), 0);
        // A guest with another MTU or MAC address keeps its connection.
        let guest = steps(|s| s.ports[0].mtu = Some(1400));
        assert!(!guest[0].disconnects);
    }

    #[test]
    fn another_iommu_waits_for_the_next_connection() {
        let required = |port: &mut PortSpec| port.iommu = api::v1::Iommu::Required;
        let alone = steps(|s| required(&mut s.ports[0]));
        assert!(!alone[0].disconnects);
        assert_eq!(alone[0].next_connection, ["iommu"]);
        let with_queues = steps(|s| {
            required(&mut s.ports[0]);
            s.ports[0].queues = 2;
        });
        assert!(with_queues[0].disconnects && with_queues[0].next_connection.is_empty());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let memif = |secret: Option<&str>| {
            let secret = secret.map(|secret| secret.to_owned().into());
            state(|s| {
                s.ports.push(PortSpec {
                    secret,
                    ..PortSpec::new("m", PortKind::Memif)
                });
            })
        };
        for (from, to, fields) in [
            (
                Some("a"),
                Some("b"),
                json!([{"from": "(hidden)", "to": "(hidden)"}]),
            ),
            (None, Some("b"), json!([{"from": null, "to": "(hidden)"}])),
        ] {
            let steps = Difference::between(&memif(from), &memif(to)).changes;
            let mut expected = fields;
            expected[0]["field"] = "secret".into();
            assert_eq!(serde_json::to_value(&steps[0].fields).unwrap(), expected);
            assert!(steps[0].disconnects);
        }
        let added = Difference::between(&state(|_| {}), &memif(Some("s3cret")));
        assert!(!format!("{added:?}").contains("s3cret"));
    }
}
