//! Connections: what answers say about them, and the segments that are tracked.

use api::v1::{AccessModel, Problem, TraceRequest};
use conntrack::table::Layout;
use conntrack::{Table, Timeout};
use ipc::records::{Answer, Connection, Upcall};
use policy::{Action, ConnectionChange, PortId, SegmentId};
use wire::FlowKey;
use wire::flow::{Ct, CtState};

use super::world::{World, asked, key, port, to, upcall};
use crate::command::DesiredSnapshot;
use crate::engine::Engine;
use config::desired::{AccessChange, Change};

const BLUE: SegmentId = SegmentId(1);

/// Three ports in blue, two in red; MAC addresses 1 to 3 are learned. `vm2` is reached with state.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("vm2", "blue"),
        port("vm3", "red"),
        port("vm4", "red"),
    ]);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    for (port, station) in [(0, 1), (1, 2), (2, 3)] {
        world.ask(&mut engine, key(port, station, 255));
    }
    set(&mut engine, &[("vm2", "allow-stateful"), ("vm4", "allow")]);
    (world, engine)
}

/// Sets a list to guests for each of these ports, with one rule of this action.
fn set(engine: &mut Engine, lists: &[(&str, &str)]) {
    try_set(engine, lists).unwrap();
}

/// As [`set`].
fn try_set(engine: &mut Engine, lists: &[(&str, &str)]) -> Result<DesiredSnapshot, Problem> {
    let list = |(port, action): &(&str, &str)| {
        format!(
            r#"{{"name": "in-{port}", "direction": "to-guest", "ports": ["{port}"],
                "rules": [{{"name": "all", "action": "{action}"}}]}}"#
        )
    };
    let lists: Vec<_> = lists.iter().map(list).collect();
    let access = format!(r#"{{"lists": [{}]}}"#, lists.join(","));
    let access: AccessModel = serde_json::from_str(&access).unwrap();
    let change = AccessChange::All(Box::new(access));
    engine.try_change(&asked(Change::Access(change)))
}

/// Returns the action of an answer, and its effect on the connection.
pub(super) fn answered(
    world: &World,
    engine: &mut Engine,
    upcall: &Upcall,
) -> (Action, ConnectionChange) {
    match world.ask_with(engine, upcall) {
        Answer::Install {
            action, connection, ..
        }
        | Answer::Once {
            action, connection, ..
        } => (action, connection),
        other => panic!("{other:?}"),
    }
}

fn of(key: FlowKey, state: CtState) -> Upcall {
    upcall(7, key.with_ct(Ct::new(CtState::TRACKED | state, 0)))
}

/// Returns the rules epochs of blue and red in the switch's program.
fn epochs(world: &World) -> [Option<u16>; 2] {
    let switch = world.switch();
    [BLUE, SegmentId(2)].map(|segment| switch.program.tracks(segment))
}

#[test]
fn answers_say_what_becomes_of_the_connection() {
    let (world, mut engine) = world();
    let mut ask = |upcall: &Upcall| answered(&world, &mut engine, upcall);
    let committed = ConnectionChange::Commit {
        mark: 0,
        reply: false,
    };
    assert_eq!(ask(&of(key(0, 1, 3), CtState::NEW)), (to(2), committed));
    let none = ConnectionChange::None;
    assert_eq!(ask(&of(key(0, 1, 2), CtState::NEW)), (to(1), none));
    let reply = CtState::ESTABLISHED | CtState::REPLY;
    assert_eq!(ask(&of(key(2, 3, 1), reply)), (to(0), none));
    // The station is not known, but its port is.
    let connection = Connection {
        far: Some(PortId(1)),
        epoch: 1,
        age_ms: 5,
    };
    let lost = of(key(2, 3, 9), reply);
    let lost = Upcall {
        connection: Some(connection),
        ..lost
    };
    assert_eq!(ask(&lost), (to(1), none));
}

#[test]
fn a_trace_says_how_the_connection_counts() {
    let (_world, mut engine) = world();
    let mut steps = |frame: &str| {
        let request = TraceRequest {
            port: "vm0".to_owned(),
            expression: Some(format!(
                "ether 52:54:00:00:00:01 > 52:54:00:00:00:03 {frame}"
            )),
            ..TraceRequest::default()
        };
        let trace = engine.trace(&request).unwrap().traces.remove(0);
        let steps = trace.steps.into_iter();
        let steps = steps.map(|step| format!("{}  {}", step.stage.as_str(), step.text));
        steps.skip(2).collect::<Vec<_>>()
    };
    let allowed = [
        "policy  from vm0: allowed by default, no rule matches (no lists)",
        "station  52:54:00:00:00:03 is behind vm2, last seen 0 ms ago",
        "policy  to vm2: allowed with its connection by rule all of list in-vm2 (lists: in-vm2)",
    ];
    let connection = |why: &str| {
        let first = format!("connection  not tracked{why}: stateful rules allow it as others do");
        let rest = allowed.iter().map(|step| (*step).to_owned());
        [first].into_iter().chain(rest).collect::<Vec<_>>()
    };
    assert_eq!(
        steps("tcp 10.0.0.1:1 > 10.0.0.3:80 syn"),
        connection(", as there is no table of connections")
    );
    assert_eq!(
        steps("arp who-has 10.0.0.3 tell 10.0.0.1"),
        connection(", as it is no IP packet")
    );
}

#[test]
fn the_switch_knows_the_tracked_segments_and_their_epochs() {
    let (mut world, mut engine) = world();
    let ports = |world: &World| {
        let switch = world.switch();
        let ports = switch.program.tracked_ports();
        ports.map(|port| port.0).collect::<Vec<_>>()
    };
    let first = epochs(&world);
    assert_eq!(
        (ports(&world), first[0].is_some(), first[1]),
        (vec![0, 1, 2], true, None)
    );
    set(&mut engine, &[("vm2", "allow-stateful"), ("vm4", "drop")]);
    assert_eq!(epochs(&world), first, "nothing has changed in blue");
    set(&mut engine, &[("vm2", "allow-stateful"), ("vm0", "drop")]);
    let second = epochs(&world);
    assert!(second[0].is_some() && second[0] != first[0]);
    engine.add_port(port("vm5", "blue")).unwrap();
    assert_eq!(epochs(&world), second, "a new port has no connections");
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(epochs(&world), second, "control starts anew");
    let red = [("vm2", "allow-stateful"), ("vm0", "drop"), ("vm3", "drop")];
    set(&mut engine, &red);
    assert_eq!(epochs(&world), second, "it knows the epochs of before");
    set(&mut engine, &[]);
    assert_eq!((epochs(&world), ports(&world)), ([None; 2], vec![]));
}

const STATEFUL: &[(&str, &str)] = &[("vm0", "allow"), ("vm1", "allow-stateful")];
const WHY: &str = "acl \"in-vm1\", rule \"all\": \"allow-stateful\" needs the table of connections, \
                   which there cannot be: ";

fn untracked() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let engine = world.start().unwrap();
    world.orders();
    (world, engine)
}

/// A segment is tracked from its next program on.
const FLUSH: &str = "flush Segment(SegmentId(1))";

#[test]
fn the_first_stateful_rule_has_the_table_made_before_its_program() {
    let (world, mut engine) = untracked();
    set(&mut engine, &[("vm1", "allow")]);
    assert!(!engine.connections.is_there() && world.supervisor().table.is_none());
    world.orders();
    set(&mut engine, STATEFUL);
    assert_eq!(world.orders(), ["track 262144", FLUSH, "program 3"]);
    assert!(
        engine.connections.reader().is_none(),
        "the switch has not made it"
    );
    let file = world
        .supervisor()
        .table
        .as_ref()
        .unwrap()
        .try_clone()
        .unwrap();
    let layout = Layout::new(262_144);
    let (_table, adopted) = Table::map(&file, layout, 7, 0).unwrap();
    assert!(adopted.is_new && engine.connections.reader().is_some());
    // The table stays, and a later rule needs no other.
    set(&mut engine, &[]);
    set(&mut engine, STATEFUL);
    assert_eq!(world.orders(), ["program 4", FLUSH, "program 5"]);
}

#[test]
fn without_memory_for_the_table_nothing_changes() {
    let (world, mut engine) = untracked();
    let before = engine.desired().state;
    world.supervisor().no_table = Some("it needs 8 bytes of memory, and there are 7");
    let problem = try_set(&mut engine, STATEFUL).unwrap_err();
    let reason = format!("{WHY}it needs 8 bytes of memory, and there are 7");
    assert_eq!(
        (problem.status, problem.field.as_deref(), &*problem.detail),
        (422, Some("access.lists[1].rules[0].action"), &*reason)
    );
    assert_eq!(world.orders(), [""; 0]);
    assert_eq!(engine.desired().state, before);
    // There is memory now.
    world.supervisor().no_table = None;
    world.switch().refuse = Some(("track", "too many threads"));
    let problem = try_set(&mut engine, STATEFUL).unwrap_err();
    assert_eq!(problem.detail, format!("{WHY}too many threads"));
    assert_eq!(engine.desired().state, before);
    set(&mut engine, STATEFUL);
    assert!(engine.connections.is_there());
}

#[test]
fn settings_take_effect_live_and_a_new_control_sends_them_again() {
    let (mut world, mut engine) = untracked();
    let patch = serde_json::json!({"switch": {"connections": {"strict": false}}});
    engine.patch_state(patch).unwrap();
    assert_eq!(world.orders(), [""; 0], "there is no table");
    set(&mut engine, STATEFUL);
    assert_eq!(world.orders(), ["track 262144", FLUSH, "program 2"]);
    let patch = serde_json::json!({"switch": {"connections": {"timeouts": {"udp": "7s"}}}});
    engine.patch_state(patch).unwrap();
    assert_eq!(world.orders(), ["track 262144"]);
    let settings = world.switch().tracking.clone().unwrap();
    assert!(!settings.strict && settings.timeouts_ms[Timeout::Udp as usize] == 7000);
    assert_eq!(
        engine.connections.settings().timeouts.get(Timeout::Udp),
        7000
    );
    drop(engine);
    let engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt", "track 262144"]);
    assert!(engine.connections.is_there());
    assert_eq!(world.switch().tracking.as_ref(), Some(&settings));
}
