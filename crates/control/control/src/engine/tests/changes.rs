//! Ports that are added, changed and removed at run time.

use ::port::{DropReason, PortId};
use api::v1::{
    AdminState, DesiredState, Iommu, MirrorSpec, PortKind, PortSpec, PortState, Role, SegmentSpec,
};

use ipc::driving::Choice;
use policy::{Action, SegmentId};
use serde_json::json;

use super::world::{World, asked, flood, interface_of, key, port, to};
use crate::command::Condition;
use crate::engine::Engine;
use crate::plan::Plan;
use config::desired::{Change, MirrorChange};

fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let engine = world.start().unwrap();
    world.orders();
    (world, engine)
}

#[test]
fn a_first_start_makes_everything_and_is_ready() {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "red")]);
    let mut engine = world.start().unwrap();
    assert_eq!(
        world.orders(),
        ["adopt", "add 0 vm0", "add 1 vm1", "program 1"]
    );
    let listening = world.listening(&mut engine);
    assert_eq!(listening, ["vm0.sock", "vm1.sock"]);
    assert_eq!(world.saved().epoch, 1);
    engine.links.supervisor.ready().unwrap();
    let status = engine.status().unwrap();
    assert_eq!(status.uptime_seconds, 61);
    assert_eq!(status.switch.epoch, 1);
    assert_eq!(status.ports.len(), 2);
    let states: Vec<_> = status.processes.iter().map(|p| p.pid).collect();
    assert_eq!(states, [Some(10), Some(11), None]);
    let spent = status.processes.iter().map(|p| p.usage);
    let spent = spent.map(|usage| Some((usage?.cpu_ms, usage?.wake_ups)));
    assert_eq!(spent.collect::<Vec<_>>(), [None, Some((1500, 70)), None]);
    assert_eq!(world.supervisor().ready, 1);
    let stats = engine.stats().unwrap();
    assert_eq!(stats.ports[1].state, PortState::Waiting);
}

#[test]
fn a_port_is_added_and_removed() {
    let (world, mut engine) = world();
    let mut spec = port("vm2", "blue");
    spec.role = Role::Client;
    let status = engine.add_port(spec).unwrap();
    assert_eq!(status.state, PortState::Dialing);
    assert_eq!(world.orders(), ["add 2 vm2", "program 2"]);
    assert_eq!(world.listening(&mut engine).len(), 2, "it dials");
    world.ask(&mut engine, key(2, 3, 255));
    world.ask(&mut engine, key(0, 1, 3));
    world.ask(&mut engine, key(0, 1, 255));
    world.removed();

    engine.remove_port("vm2").unwrap();
    assert_eq!(world.orders(), ["remove 2", "program 3"]);
    assert_eq!(world.removed(), ["0: 1 > 3", "2: 3 > 255"]);
    assert_eq!(world.frame(&mut engine, key(0, 1, 3)), flood(1));
    assert!(world.saved().desired.port("vm2").is_none());
    let problem = engine.remove_port("vm2").unwrap_err();
    assert_eq!(problem.status, 404);

    engine.remove_port("vm1").unwrap();
    let listening = world.listening(&mut engine);
    assert_eq!(listening, ["vm0.sock"]);
}

#[test]
fn a_socket_that_is_taken_is_409_and_nothing_changed() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.supervisor().taken.insert("vm2.sock".to_owned());
    let problem = engine.add_port(port("vm2", "blue")).unwrap_err();
    assert_eq!(problem.status, 409);
    assert_eq!(problem.field.as_deref(), Some("socket"));
    assert!(problem.detail.contains("vm2.sock"), "{problem}");
    let to_taken = json!({"socket": "vm2.sock"});
    let problem = engine.set_port("vm1", &to_taken).unwrap_err();
    assert_eq!(problem.status, 409);
    assert_eq!(world.orders(), [""; 0], "not even for a moment");
    assert_eq!(world.removed(), [""; 0]);
    assert_eq!(world.listening(&mut engine).len(), 2);
    assert_eq!(
        world.saved().desired.port("vm1").unwrap().socket,
        "vm1.sock"
    );
    assert_eq!(world.saved().epoch, 1);
}

#[test]
fn a_port_that_the_switch_refuses_is_not_there() {
    let (world, mut engine) = world();
    world.switch().refuse = Some(("add", "out of descriptors"));
    let problem = engine.add_port(port("vm2", "blue")).unwrap_err();
    assert!(problem.detail.contains("out of descriptors"), "{problem}");
    assert_eq!(world.orders(), ["add 2 vm2"]);
    assert_eq!(world.listening(&mut engine).len(), 2, "its socket is gone");
    engine.add_port(port("vm2", "blue")).unwrap();
    assert_eq!(world.orders(), ["add 3 vm2", "program 2"]);
}

/// Messages on their way may still refer to the number's former owner.
#[test]
fn a_number_that_was_given_back_is_not_the_next_one_not_even_for_a_new_control() {
    let (mut world, mut engine) = world();
    engine.add_port(port("vm2", "blue")).unwrap();
    engine.remove_port("vm2").unwrap();
    engine.add_port(port("vm3", "blue")).unwrap();
    engine.remove_port("vm3").unwrap();
    drop(engine);
    let mut engine = world.start().unwrap();
    world.orders();
    engine.add_port(port("vm4", "blue")).unwrap();
    assert_eq!(world.orders()[0], "add 4 vm4");
}

#[test]
fn another_segment_takes_back_the_flows_of_that_port_alone() {
    let (world, mut engine) = world();
    engine.add_port(port("vm2", "blue")).unwrap();
    for (from, n) in [(0, 1), (1, 2), (2, 3)] {
        world.ask(&mut engine, key(from, n, 255));
    }
    world.ask(&mut engine, key(0, 1, 2));
    world.ask(&mut engine, key(0, 1, 3));
    world.ask(&mut engine, key(2, 3, 1));
    world.orders();
    world.removed();
    let red = json!({"segment": "red"});
    engine.set_port("vm2", &red).unwrap();
    assert_eq!(world.orders(), ["program 3"], "the guest stays connected");
    assert_eq!(world.removed(), ["0: 1 > 3", "2: 3 > 1", "2: 3 > 255"]);
    assert_eq!(world.cached(), ["0: 1 > 2", "0: 1 > 255", "1: 2 > 255"]);
    assert_eq!(world.frame(&mut engine, key(0, 1, 3)), flood(1));
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), flood(2));

    let trunk = json!({"trunk": ["blue", "red"]});
    engine.set_port("vm2", &trunk).unwrap();
    let tagged = key(2, 3, 1).with_vlan(Some(10));
    assert_eq!(world.frame(&mut engine, tagged), to(0));
}

#[test]
fn mirrors_change_live_and_need_what_they_name() {
    let (mut world, mut engine) = world();
    let mirror = |to: &str| {
        let one = json!(
            {"name": "m", "to": to, "ports": ["vm0"], "segments": ["blue"]}
        );
        json!({"mirrors": [one]})
    };
    engine.patch_state(mirror("vm1")).unwrap();
    assert_eq!(world.orders(), ["mirrors 1"]);
    engine.patch_state(mirror("vm1")).unwrap();
    assert!(world.orders().is_empty(), "it is so already");
    let problem = engine.patch_state(mirror("vm9")).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("mirrors[0].to"));
    for port in ["vm0", "vm1"] {
        let problem = engine.remove_port(port).unwrap_err();
        let needed = format!("port `{port}` cannot be removed: mirror `m` ");
        assert!(problem.detail.starts_with(&needed), "{problem}");
    }
    assert!(world.orders().is_empty(), "nothing has changed");
    drop(engine);
    let mut engine = world.start().unwrap();
    let all = world.orders();
    let again = all.iter().any(|order| order.starts_with("mirrors"));
    assert!(!again, "a new control knows them: {all:?}");
    engine.patch_state(json!({"mirrors": null})).unwrap();
    assert_eq!(world.orders(), ["mirrors 0"]);
    engine.remove_port("vm1").unwrap();
}

#[test]
fn a_mirror_keeps_its_counts_until_it_goes() {
    let (mut world, mut engine) = world();
    engine.add_port(port("vm2", "blue")).unwrap();
    let mirrors = |names: &[&str], to: &str| {
        let one = |name: &&str| json!({"name": name, "to": to, "ports": ["vm0"]});
        let all: Vec<_> = names.iter().map(one).collect();
        json!({"mirrors": all})
    };
    let numbers = |engine: &Engine| -> Vec<u8> {
        let mirrors = engine.ports.mirrors.iter();
        mirrors.map(|mirror| mirror.number).collect()
    };
    let copied = |engine: &Engine| -> Vec<u64> {
        let all = engine.mirror_stats();
        all.iter().map(|one| one.copied.packets).collect()
    };
    engine.patch_state(mirrors(&["a", "b"], "vm1")).unwrap();
    assert_eq!(numbers(&engine), [0, 1]);
    for number in [0, 1, 1] {
        engine.counters.add_copy(number, 60, None);
    }
    engine
        .counters
        .add_copy(1, 60, Some(policy::DropReason::ReceiverFull));
    let lost = engine.mirror_stats()[1].lost.clone();
    assert_eq!(lost, [("receiver-full".to_owned(), 1)].into());
    // Another receiver, another order, a new control.
    engine.patch_state(mirrors(&["b", "a"], "vm2")).unwrap();
    assert_eq!(
        (numbers(&engine), copied(&engine)),
        (vec![1, 0], vec![2, 1])
    );
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(
        (numbers(&engine), copied(&engine)),
        (vec![1, 0], vec![2, 1])
    );
    // A port that comes back gets another number.
    engine.patch_state(mirrors(&["a"], "vm2")).unwrap();
    engine.patch_state(mirrors(&["b", "a"], "vm2")).unwrap();
    assert_eq!(
        (numbers(&engine), copied(&engine)),
        (vec![2, 0], vec![0, 1])
    );
    for number in 3..=64 {
        engine.patch_state(mirrors(&["a"], "vm2")).unwrap();
        engine.patch_state(mirrors(&["c", "a"], "vm2")).unwrap();
        assert_eq!(copied(&engine), [0, 1], "{number}");
        let c = engine.ports.mirrors[0].number;
        engine.counters.add_copy(c, 60, None);
    }
}

#[test]
fn one_mirror_comes_changes_and_goes_live() {
    let (mut world, mut engine) = world();
    let mirror = |name: &str, filter: &str| MirrorSpec {
        name: name.to_owned(),
        to: "vm1".to_owned(),
        ports: vec!["vm0".to_owned()],
        filter: Some(filter.to_owned()),
        ..MirrorSpec::default()
    };
    let look = asked(Change::Mirror(MirrorChange::Add(mirror("m", "arp"))));
    let before = engine.desired();
    let seen = Plan::new(&engine.store.basis(), &look).unwrap();
    assert_eq!(seen.after().mirrors.len(), 1);
    assert_eq!(engine.desired(), before);
    assert!(world.orders().is_empty(), "it was only looked at");
    let remove = |name: &str| MirrorChange::Remove(name.to_owned());
    for (change, orders) in [
        (MirrorChange::Add(mirror("m", "arp")), &["mirrors 1"][..]),
        (MirrorChange::Put(mirror("m", "arp")), &[]),
        (MirrorChange::Put(mirror("m", "icmp")), &["mirrors 1"]),
        (MirrorChange::Put(mirror("n", "arp")), &["mirrors 2"]),
        (remove("m"), &["mirrors 1"]),
    ] {
        engine.change_to(Change::Mirror(change)).unwrap();
        assert_eq!(world.orders(), orders);
    }
    let problem = engine.change_to(Change::Mirror(remove("m"))).unwrap_err();
    assert_eq!(problem.status, 404);
    let wrong = Change::Mirror(MirrorChange::Put(mirror("n", "arq")));
    assert_eq!(engine.change_to(wrong).unwrap_err().status, 422);
    assert!(world.orders().is_empty(), "nothing has changed");
    drop(engine);
    let engine = world.start().unwrap();
    assert_eq!(engine.desired().state.mirrors, [mirror("n", "arp")]);
}

#[test]
fn limits_change_live_and_a_new_control_knows_them() {
    let (mut world, mut engine) = world();
    let limits = json!({"from_guest": {"packets_per_second": 1000}});
    let limited = json!({"limits": limits});
    let status = engine.set_port("vm0", &limited).unwrap();
    let rate = status.limits.from_guest.unwrap();
    assert_eq!(rate.packets_per_second, Some(1000));
    assert_eq!(world.orders(), ["limit 0"]);
    engine.set_port("vm0", &limited).unwrap();
    assert!(world.orders().is_empty(), "it is so already");
    // A merge patch keeps the fields that it does not name.
    let more = json!({"from_guest": {"bits_per_second": 8000}, "to_guest": null});
    let status = engine.set_port("vm0", &json!({"limits": more})).unwrap();
    let rate = status.limits.from_guest.unwrap();
    assert_eq!(
        (rate.packets_per_second, rate.bits_per_second),
        (Some(1000), Some(8000))
    );
    for (wrong, field) in [
        (
            json!({"from_guest": {"bits_per_second": 0}}),
            "limits.from_guest.bits_per_second",
        ),
        (json!({"from_guest": {"bits": 1}}), "limits.from_guest.bits"),
        (json!("none"), "limits"),
    ] {
        let refused = engine
            .set_port("vm0", &json!({"limits": wrong}))
            .unwrap_err();
        assert_eq!(refused.field.as_deref(), Some(field), "{refused:?}");
    }
    assert_eq!(world.orders(), ["limit 0"]);
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt"], "the switch has them");
    let none = json!({"limits": null});
    assert!(engine.set_port("vm0", &none).unwrap().limits.is_nothing());
    assert_eq!(world.orders(), ["limit 0"]);
    assert!(world.switch().limits[&PortId(0)].is_nothing());
}

#[test]
fn another_weight_leaves_the_guest_connected() {
    let (world, mut engine) = world();
    let weight = json!({"weight": 300});
    let status = engine.set_port("vm0", &weight).unwrap();
    assert_eq!(
        (status.weight, world.orders()),
        (300, vec!["set 0 vm0".to_owned()])
    );
    engine.set_port("vm0", &weight).unwrap();
    assert_eq!(world.orders(), [""; 0], "nothing changes");
    assert_eq!(world.removed(), [""; 0]);
}

#[test]
fn another_iommu_leaves_the_guest_connected_and_waits_for_the_next_connection() {
    let (world, mut engine) = world();
    let set = |engine: &mut Engine, iommu| {
        let status = engine.set_port("vm0", &json!({"iommu": iommu}));
        let status = status.unwrap();
        (status.iommu, status.iommu_of_connection)
    };
    let waiting = set(&mut engine, Iommu::Off);
    assert_eq!(waiting, (Some(Iommu::Off), None), "no guest is connected");
    assert_eq!(world.orders(), ["set 0 vm0"]);
    world.switch().guests_are_there = true;
    let required = set(&mut engine, Iommu::Required);
    assert_eq!(required, (Some(Iommu::Required), Some(Iommu::Offered)));
    assert_eq!(world.orders(), ["set 0 vm0"]);
    assert_eq!(world.switch().ports[&PortId(0)].iommu, Iommu::Required);
    let offered = set(&mut engine, Iommu::Offered);
    assert_eq!(offered, (Some(Iommu::Offered), None));
    assert_eq!(world.removed(), [""; 0]);
}

#[test]
fn another_mtu_leaves_the_guest_connected() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    engine.set_port("vm0", &json!({"mtu": 9000})).unwrap();
    assert_eq!(world.orders(), ["set 0 vm0"]);
    assert_eq!(world.removed(), [""; 0]);
    engine.set_port("vm0", &json!({"mtu": 9000})).unwrap();
    assert_eq!(world.orders(), [""; 0], "nothing changes");
}

#[test]
fn another_socket_role_or_queue_count_makes_the_port_anew() {
    let (world, mut engine) = world();
    let again = ["remove 0", "add 0 vm0"];
    engine.set_port("vm0", &json!({"queues": 4})).unwrap();
    assert_eq!(world.orders(), again);
    engine
        .set_port("vm0", &json!({"socket": "new.sock"}))
        .unwrap();
    assert_eq!(world.orders(), again);
    let listening = world.listening(&mut engine);
    assert_eq!(listening, ["new.sock", "vm1.sock"]);
    engine.set_port("vm0", &json!({"role": "client"})).unwrap();
    assert_eq!(world.orders(), again);
    assert_eq!(world.listening(&mut engine).len(), 1);
    engine.set_port("vm0", &json!({"role": "server"})).unwrap();
    assert_eq!(world.orders(), again);
    assert_eq!(world.listening(&mut engine).len(), 2);
}

#[test]
fn a_malformed_request_changes_nothing() {
    let (world, mut engine) = world();
    let table = [
        (port("vm0", "blue"), 409),
        (port("vm2", "green"), 422),
        (port("a/b", "blue"), 422),
    ];
    for (spec, status) in table {
        assert_eq!(engine.add_port(spec).unwrap_err().status, status);
    }
    let green = json!({"segment": "green"});
    assert_eq!(engine.set_port("vm0", &green).unwrap_err().status, 422);
    assert_eq!(engine.set_port("vm9", &green).unwrap_err().status, 404);
    assert_eq!(world.orders(), [""; 0]);
}

#[test]
fn a_port_with_a_driver_is_opened_dialed_and_shown() {
    let (world, mut engine) = world();
    let up = PortSpec {
        interface: Some("eth0".to_owned()),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    world.supervisor().taken.insert("eth0".to_owned());
    let problem = engine.add_port(up.clone()).unwrap_err();
    assert_eq!(
        (problem.status, problem.field.as_deref()),
        (409, Some("interface"))
    );
    assert!(problem.detail.contains("eth0: busy"), "{problem}");
    assert_eq!(world.orders(), [""; 0], "not even for a moment");
    assert!(world.supervisor().drivers.is_empty());

    world.supervisor().taken.clear();
    let status = engine.add_port(up).unwrap();
    assert_eq!(world.orders(), ["add 3 up", "program 2"]);
    assert_eq!(world.listening(&mut engine).len(), 2, "it has no socket");
    assert_eq!(status.state, PortState::Dialing);
    let driver = status.driver_status.expect("how its driver is");
    assert_eq!(driver.back_end.as_deref(), Some("packet"));
    assert_eq!((driver.pid, driver.restarts), (Some(20), 1));
    assert_eq!(
        (driver.rejected_by_interface, driver.oversized_frames),
        (3, 4)
    );
    assert_eq!((driver.received_frames, driver.receive_calls), (640, 10));
    assert_eq!((driver.sent_frames, driver.send_calls), (128, 2));
    assert_eq!(driver.dropped_by_kernel, Some(5));
    let desired = world.supervisor().drivers.clone();
    assert_eq!((desired[0].port, desired.len()), (PortId(3), 1));
    {
        let switch = world.switch();
        let config = &switch.ports[&PortId(3)];
        assert_eq!(config.socket, ipc::driving::address("up"));
    }
    assert!(
        engine.status().unwrap().ports[0].driver_status.is_none(),
        "a guest's"
    );

    engine.remove_port("up").unwrap();
    assert!(world.supervisor().drivers.is_empty());
}

#[test]
fn a_port_gets_another_interface_and_keeps_its_number() {
    let (world, mut engine) = world();
    let up = PortSpec {
        interface: Some("eth0".to_owned()),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    engine.add_port(up).unwrap();
    world.orders();
    let interface = |name: Option<&str>| json!({"interface": name});
    let has = |world: &World| {
        let supervisor = world.supervisor();
        let driver = &supervisor.drivers[0];
        (driver.port, interface_of(driver))
    };
    let status = engine.set_port("up", &interface(Some("eth1"))).unwrap();
    assert_eq!(status.interface.as_deref(), Some("eth1"));
    assert_eq!(has(&world), (PortId(2), "eth1".to_owned()));
    assert_eq!(world.orders(), [""; 0], "the switch notices nothing");
    let moved = json!({"driver": "packet", "netns": "blue"});
    let status = engine.set_port("up", &moved).unwrap();
    assert_eq!(status.netns.as_deref(), Some("blue"));
    let kind = world.supervisor().drivers[0].kind.clone();
    let device = kind.interface().unwrap();
    assert_eq!(
        (device.choice, device.netns.as_deref()),
        (Choice::Packet, Some("blue"))
    );
    let back = json!({"driver": null, "netns": null});
    engine.set_port("up", &back).unwrap();
    assert_eq!(world.supervisor().drivers[0].kind.netns(), None);
    assert_eq!(world.orders(), [""; 0]);
    world.supervisor().taken.insert("eth2".to_owned());
    let refused = engine.set_port("up", &interface(Some("eth2"))).unwrap_err();
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (409, Some("interface"))
    );
    let refused = engine.set_port("up", &interface(None)).unwrap_err();
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (422, Some("interface"))
    );
    assert_eq!(has(&world), (PortId(2), "eth1".to_owned()));
    assert_eq!(world.orders(), [""; 0]);
}

#[test]
fn cpu_weights_are_sent_when_they_change() {
    let (mut world, mut engine) = world();
    let up = PortSpec {
        interface: Some("eth0".to_owned()),
        driver_process: Some(true),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    engine.add_port(up).unwrap();
    let sent = |world: &World| world.supervisor().drivers[0].cpu_weight;
    assert_eq!(sent(&world), None, "it has none");
    world.orders();
    let weight = |weight: Option<u16>| json!({"cpu_weight": weight});
    let error = "not delegated by the service manager".to_owned();
    world.supervisor().cpu_weight_errors = [("up".to_owned(), error.clone())].into();
    let status = engine.set_port("up", &weight(Some(200))).unwrap();
    assert_eq!(status.cpu_weight, Some(200));
    assert_eq!(status.driver_status.unwrap().cpu_weight_error, Some(error));
    assert_eq!(world.orders(), [""; 0], "nothing for the switch");
    assert_eq!(sent(&world), Some(200));
    world.supervisor().drivers.clear();
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(sent(&world), Some(200), "the next control sends it, too");
    engine.set_port("up", &weight(None)).unwrap();
    assert_eq!(sent(&world), None);
}

/// Returns the desired state with a change.
fn whole(engine: &Engine, change: impl FnOnce(&mut DesiredState)) -> Change {
    let mut state = engine.desired().state;
    change(&mut state);
    Change::State(Box::new(state))
}

#[test]
fn a_whole_state_is_one_program_and_affects_only_the_ports_that_change() {
    let (world, mut engine) = world();
    engine.add_port(port("vm2", "blue")).unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 255));
    world.ask(&mut engine, key(2, 3, 255));
    world.ask(&mut engine, key(0, 1, 2));
    world.orders();
    world.removed();
    let change = whole(&engine, |state| {
        state.segments.push(SegmentSpec {
            name: "green".to_owned(),
            vlan: Some(30),
            neighbour_suppression: false,
        });
        state.ports.retain(|p| p.name != "vm2");
        state.ports.push(port("vm3", "green"));
        state.ports.push(port("vm4", "green"));
        state.ports[0].weight = 7;
    });
    let done = engine.try_change(&asked(change.clone())).unwrap();
    assert_eq!(
        world.orders(),
        [
            "remove 2",
            "set 0 vm0",
            "add 3 vm3",
            "add 4 vm4",
            "program 3"
        ]
    );
    assert_eq!(world.cached(), ["0: 1 > 2", "0: 1 > 255", "1: 2 > 255"]);
    assert_eq!(world.removed(), ["2: 3 > 255"]);
    assert_eq!(engine.desired(), done);
    assert_eq!(world.saved().desired, done.state);

    let again = engine.try_change(&asked(change)).unwrap();
    assert_eq!(again.version, done.version);
    assert_eq!(world.orders(), [""; 0], "idempotent");
}

/// Ports that the failed change would have removed keep their numbers, flows and connections, too.
#[test]
fn a_whole_state_that_fails_changes_nothing() {
    let (world, mut engine) = world();
    // The switch has done the commands of the start by then.
    engine.status().unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    world.removed();
    let before = (engine.desired(), world.saved().numbers.ports);
    world.supervisor().taken.insert("vm3.sock".to_owned());
    let change = whole(&engine, |state| {
        state.ports.clear();
        state.ports.push(port("vm2", "blue"));
        state.ports.push(port("vm3", "blue"));
    });
    let problem = engine.try_change(&asked(change)).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("socket"));
    assert_eq!(world.orders(), [""; 0], "not even for a moment");
    assert_eq!(world.removed(), [""; 0]);
    assert_eq!((engine.desired(), world.saved().numbers.ports), before);
    assert_eq!(world.listening(&mut engine), ["vm0.sock", "vm1.sock"]);

    let mut tap = PortSpec::new("tap0", PortKind::Tap);
    tap.segment = Some("blue".to_owned());
    world.supervisor().taken.insert("tap0".to_owned());
    let change = whole(&engine, |state| {
        state.ports = vec![port("vm2", "blue"), tap].into()
    });
    let problem = engine.try_change(&asked(change)).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("interface"));
    assert_eq!(world.orders(), [""; 0]);
    assert_eq!(world.listening(&mut engine), ["vm0.sock", "vm1.sock"]);
    assert_eq!(engine.desired(), before.0);
}

#[test]
fn an_outdated_change_and_one_that_is_only_looked_at_change_nothing() {
    let (world, mut engine) = world();
    let change = whole(&engine, |state| drop(state.ports.pop()));
    let before = engine.desired();
    let mut request = asked(change);
    let look = Plan::new(&engine.store.basis(), &request).unwrap();
    assert_eq!(look.after().ports.len(), 1);
    assert_eq!(engine.desired(), before);
    request.condition = Condition::OneOf(vec!["0".repeat(16)]);
    let problem = engine.try_change(&request).unwrap_err();
    assert_eq!(problem.status, 412);
    assert_eq!(engine.desired(), before);
    assert_eq!(world.orders(), [""; 0]);
    request.condition = Condition::OneOf(vec![before.version]);
    engine.try_change(&request).unwrap();
    assert_eq!(world.orders(), ["remove 1", "program 2"]);
}

#[test]
fn a_plan_does_not_undo_a_change_made_since() {
    let (world, mut engine) = world();
    let mut request = asked(Change::RemovePort("vm1".to_owned()));
    let plan = Plan::new(&engine.store.basis(), &request).unwrap();
    engine.add_port(port("vm2", "blue")).unwrap();
    engine.change(&request, plan).unwrap();
    let names = |state: &DesiredState| -> Vec<_> {
        let ports = state.ports.iter();
        ports.map(|port| port.name.clone()).collect()
    };
    assert_eq!(names(&engine.desired().state), ["vm0", "vm2"]);
    assert_eq!(world.listening(&mut engine), ["vm0.sock", "vm2.sock"]);
    // A failed condition is reported, even if it held when the change was planned.
    request.change = Change::RemovePort("vm2".to_owned());
    request.condition = Condition::OneOf(vec![engine.desired().version]);
    let plan = Plan::new(&engine.store.basis(), &request).unwrap();
    engine.add_port(port("vm3", "blue")).unwrap();
    let problem = engine.change(&request, plan).unwrap_err();
    assert_eq!(problem.status, 412);
    assert_eq!(names(&engine.desired().state), ["vm0", "vm2", "vm3"]);
    // A port that another change has removed cannot be removed again.
    request.condition = Condition::Any;
    let plan = Plan::new(&engine.store.basis(), &request).unwrap();
    engine.remove_port("vm2").unwrap();
    let problem = engine.change(&request, plan).unwrap_err();
    assert_eq!(problem.status, 404);
}

#[test]
fn a_segment_gets_another_tag_under_running_ports() {
    let (world, mut engine) = world();
    let mut trunk = port("up", "blue");
    (trunk.segment, trunk.trunk) = (None, Some(vec!["blue".to_owned(), "red".to_owned()]));
    engine.add_port(trunk).unwrap();
    world.ask(&mut engine, key(2, 3, 255).with_vlan(Some(10)));
    world.ask(&mut engine, key(0, 1, 3));
    world.ask(&mut engine, key(1, 2, 255));
    world.orders();
    world.removed();
    let change = Change::SetSegment("blue".to_owned(), json!({"vlan": 77}));
    engine.try_change(&asked(change)).unwrap();
    assert_eq!(world.orders(), ["program 3"]);
    // Frames to the trunk or from it have the old tag.
    assert_eq!(world.cached(), ["1: 2 > 255"]);
}

#[test]
fn a_port_that_is_down_keeps_its_guest_and_is_in_no_segment() {
    let (world, mut engine) = world();
    world.frame(&mut engine, key(0, 1, 2));
    world.frame(&mut engine, key(1, 2, 1));
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    let set = |engine: &mut Engine, state| {
        let change = json!({"admin_state": state});
        let status = engine.set_port("vm1", &change).unwrap();
        assert_eq!(status.admin_state, state);
    };
    set(&mut engine, AdminState::Down);
    // The port is neither removed nor created again.
    assert_eq!(world.orders(), ["program 2"]);
    world.settle(&mut engine);
    assert!(world.cached().is_empty(), "{:?}", world.cached());
    world.removed();
    let dropped = Action::Drop(DropReason::PortDown);
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), dropped);
    // Its addresses are forgotten, and floods exclude it.
    let blue = world.frame(&mut engine, key(0, 1, 2));
    assert!(matches!(blue, Action::Flood { .. }), "{blue:?}");
    let segment = SegmentId(1);
    assert!(
        engine
            .forwarding
            .program
            .member(segment, PortId(1))
            .is_none()
    );
    assert!(
        engine
            .forwarding
            .program
            .member(segment, PortId(0))
            .is_some()
    );

    set(&mut engine, AdminState::Up);
    assert_eq!(world.orders(), ["program 3"]);
    world.settle(&mut engine);
    // Flows with action drop are decided again.
    let removed = world.removed();
    assert!(removed.contains(&"1: 2 > 1".to_owned()), "{removed:?}");
    assert!(
        engine
            .forwarding
            .program
            .member(segment, PortId(1))
            .is_some()
    );
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
}

#[test]
fn a_port_that_is_down_gets_no_copies() {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let mut engine = world.start().unwrap();
    let mirror = MirrorSpec {
        name: "m".to_owned(),
        to: "vm1".to_owned(),
        ports: vec!["vm0".to_owned()],
        ..MirrorSpec::default()
    };
    engine
        .change_to(Change::Mirror(MirrorChange::Add(mirror)))
        .unwrap();
    let mirrors = |engine: &Engine| engine.ports.mirrors.len();
    assert_eq!(mirrors(&engine), 1);
    for (state, copies) in [(AdminState::Down, 0), (AdminState::Up, 1)] {
        let change = json!({"admin_state": state});
        engine.set_port("vm1", &change).unwrap();
        assert_eq!(mirrors(&engine), copies);
    }
}

#[test]
fn sockets_that_several_users_reach_are_in_the_status() {
    let (world, mut engine) = world();
    assert_eq!(engine.status().unwrap().warnings, []);
    let users = vec!["vm1".to_owned(), "vm2".to_owned()];
    world.supervisor().shared = vec![("vm0.sock".to_owned(), users)];
    let warnings = engine.status().unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let text = "port vm0: users vm1, vm2 can connect to its socket; \
                name the one of its program: peer_user = \"vm1\"";
    assert_eq!(
        (&*warnings[0].text, &*warnings[0].ports),
        (text, &["vm0".to_owned()][..])
    );
}
