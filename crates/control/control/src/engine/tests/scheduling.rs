//! Scheduled ports: orders to the switch, numbers of classes, restarts.

use std::collections::BTreeMap;

use api::v1::{DesiredState, EgressSpec, PortKind, PortSpec, QosClassSpec};
use config::desired::Change;
use config::desired::qos::QosChange;
use ipc::egress::{EgressUse, OutputConfig, SenderQos};
use ipc::link::Link;
use ipc::switching::{Request, SwitchEvent};
use port::PortId;
use serde_json::json;

use super::world::{World, port};
use crate::engine::Engine;

/// The scheduling of a switch.
#[derive(Default)]
pub(super) struct Scheduling {
    pub(super) classes: Vec<Option<u8>>,
    pub(super) senders: BTreeMap<PortId, SenderQos>,
    pub(super) outputs: BTreeMap<PortId, OutputConfig>,
}

impl Scheduling {
    pub(super) fn remove(&mut self, id: PortId) {
        self.senders.remove(&id);
        self.outputs.remove(&id);
        for output in self.outputs.values_mut() {
            output.senders.retain(|sender| sender.port != id.0);
        }
    }

    /// Reports 1000 bits of class 1 for each sender.
    pub(super) fn report(&self, link: &Link<SwitchEvent, Request>) {
        for (id, output) in &self.outputs {
            let uses = output.senders.iter().map(|sender| EgressUse {
                sender: PortId(sender.port),
                class: 1,
                bits: 1000,
                held_ns: 2500,
                dropped_frames: 3,
                waiting_bits: 512,
            });
            let event = SwitchEvent::EgressUse(*id, uses.collect());
            link.send(&event, &[]).unwrap();
        }
    }
}

fn class(name: &str, priority: u8, pcp: Option<u8>) -> QosClassSpec {
    QosClassSpec {
        priority,
        pcp,
        ..QosClassSpec::new(name)
    }
}

/// Two guests and a scheduled one, with a class `storage`.
fn desired() -> DesiredState {
    let mut state = DesiredState {
        ports: vec![
            port("vm0", "blue"),
            port("vm1", "blue"),
            port("out", "blue"),
        ]
        .into(),
        qos_classes: vec![class("storage", 6, Some(4))],
        ..DesiredState::default()
    };
    state.ports[0].qos = serde_json::from_value(json!({
        "min": 1_000_000, "priority": 3, "class_by_pair": ["default", "storage"],
        "classes": {"storage": {"min": 500_000}},
    }))
    .unwrap();
    state.ports[2].egress = Some(EgressSpec {
        rate: Some(10_000_000),
        ..EgressSpec::default()
    });
    state
}

fn world() -> (World, Engine) {
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("out", "blue"),
    ]);
    let engine = world.start().unwrap();
    world.orders();
    (world, engine)
}

fn scheduled() -> (World, Engine) {
    let (world, mut engine) = world();
    let mut new = engine.desired().state;
    let wanted = desired();
    new.qos_classes = wanted.qos_classes;
    for (port, wanted) in new.ports.iter_mut().zip(wanted.ports) {
        (port.qos, port.egress) = (wanted.qos, wanted.egress);
    }
    engine.change_to(Change::State(Box::new(new))).unwrap();
    (world, engine)
}

#[test]
fn classes_senders_and_outputs_are_sent_once_and_in_this_order() {
    let (world, mut engine) = scheduled();
    assert_eq!(
        world.orders(),
        ["classes [None, Some(4)]", "qos 0", "egress 2 of 2 senders"]
    );
    {
        let switch = world.switch();
        let output = &switch.scheduling.outputs[&PortId(2)];
        assert_eq!(output.rate, Some(10_000_000));
        assert_eq!(output.priorities, [0, 6, 0, 0, 0, 0, 0, 0]);
        let vm0 = &output.senders[0];
        assert_eq!((vm0.port, vm0.rates.min, vm0.priority), (0, 1_000_000, 3));
        assert_eq!((vm0.classes[0].0, vm0.classes[0].1.min), (1, 500_000));
        let by_pair = &switch.scheduling.senders[&PortId(0)].class_by_pair;
        assert_eq!(by_pair, &[Some(0), Some(1)]);
    }
    let change = json!({"qos": {"weight": 200}});
    engine.set_port("vm1", &change).unwrap();
    assert_eq!(world.orders(), ["egress 2 of 2 senders"]);
    engine.set_port("vm1", &change).unwrap();
    assert_eq!(world.orders(), [""; 0], "nothing differs");
    engine.set_port("out", &json!({"egress": null})).unwrap();
    assert_eq!(world.orders(), ["no egress 2"]);
    assert!(
        world.saved().scheduled,
        "there still are settings of senders"
    );
}

#[test]
fn a_port_that_comes_or_goes_changes_the_outputs_that_it_reaches() {
    let (world, mut engine) = scheduled();
    world.orders();
    engine.add_port(port("vm2", "blue")).unwrap();
    assert_eq!(
        world.orders(),
        ["add 3 vm2", "egress 2 of 3 senders", "program 2"]
    );
    engine.add_port(port("vm3", "red")).unwrap();
    assert_eq!(world.orders(), ["add 4 vm3", "program 3"]);
    engine.remove_port("vm2").unwrap();
    assert_eq!(
        world.orders(),
        ["remove 3", "egress 2 of 2 senders", "program 4"]
    );
    // Another socket makes the port anew, with all that it had.
    engine
        .set_port("vm0", &json!({"socket": "new.sock"}))
        .unwrap();
    assert_eq!(
        world.orders(),
        ["remove 0", "add 0 vm0", "qos 0", "egress 2 of 2 senders"]
    );
}

#[test]
fn a_port_that_goes_together_with_the_schedule_of_an_output_leaves_none_in_the_switch() {
    let (world, mut engine) = scheduled();
    world.orders();
    let mut new = engine.desired().state;
    new.ports.retain(|port| port.name != "vm1");
    for port in &mut new.ports {
        port.egress = None;
    }
    engine.change_to(Change::State(Box::new(new))).unwrap();
    assert!(world.switch().scheduling.outputs.is_empty());
}

#[test]
fn a_class_keeps_its_number_and_one_of_a_removed_class_comes_last() {
    let (world, mut engine) = scheduled();
    let mut change = |change| engine.change_to(Change::Qos(change)).map(drop);
    change(QosChange::AddClass(class("voice", 7, Some(5)))).unwrap();
    change(QosChange::AddClass(class("bulk", 1, None))).unwrap();
    change(QosChange::RemoveClass("voice".to_owned())).unwrap();
    change(QosChange::AddClass(class("video", 5, None))).unwrap();
    let refused = change(QosChange::RemoveClass("storage".to_owned())).unwrap_err();
    assert_eq!(refused.status, 422);
    assert!(refused.detail.contains("port `vm0` names it"), "{refused}");
    let numbers = world.saved().numbers.classes;
    let expected = [("bulk", 3), ("storage", 1), ("video", 4)];
    let expected = expected.map(|(name, number)| (name.to_owned(), number));
    assert_eq!(numbers, BTreeMap::from(expected));
    let switch = world.switch();
    assert_eq!(switch.scheduling.classes, [None, Some(4)]);
    let output = &switch.scheduling.outputs[&PortId(2)];
    assert_eq!(output.priorities, [0, 6, 0, 1, 5, 0, 0, 0]);
}

#[test]
fn frames_have_the_class_of_a_rule_or_of_their_dscp_where_the_port_is_trusted() {
    let (world, mut engine) = scheduled();
    let state = json!({
        "qos_classes": [{"name": "storage"}, {"name": "voice", "dscp": [46]}],
        "access": {"lists": [{"name": "out", "direction": "from-guest", "ports": ["vm1"],
            "rules": [{"name": "r", "action": "allow", "protocol": "tcp", "class": "storage"}]}]},
    });
    engine.patch_state(state.clone()).unwrap();
    engine
        .set_port("vm0", &json!({"qos": {"trust_dscp": true}}))
        .unwrap();
    {
        let switch = world.switch();
        let trusted = policy::DscpClasses::new([(46, 2)], [PortId(0)]);
        assert_eq!(switch.program.dscp_classes(), &trusted);
    }
    let class = |engine: &mut Engine, name: &str| {
        let remove = Change::Qos(QosChange::RemoveClass(name.to_owned()));
        engine.change_to(remove).map(drop).unwrap_err()
    };
    let refused = class(&mut engine, "storage");
    assert!(
        refused
            .detail
            .contains("rule `r` of access list `out` names it"),
        "{refused}"
    );
    let mut without = state;
    without["qos_classes"] = json!([{"name": "voice"}]);
    let refused = engine.patch_state(without).unwrap_err();
    assert_eq!((refused.status, refused.field.is_some()), (422, true));
}

#[test]
fn what_cannot_be_promised_changes_nothing() {
    let (world, mut engine) = scheduled();
    world.orders();
    let before = engine.desired().state;
    let refused = engine.set_port("vm1", &json!({"qos": {"min": 9_400_000}}));
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (422, Some("qos.min"))
    );
    let expected = "port \"vm1\": 10.4M of the 10M of \"out\" would be promised";
    assert_eq!(refused.detail, expected);
    assert_eq!(engine.desired().state, before);
    assert_eq!(world.orders(), [""; 0]);
}

#[test]
fn an_output_that_the_switch_refuses_is_taken_back() {
    let (world, mut engine) = scheduled();
    world.orders();
    world.switch().refuse = Some(("egress", "no memory"));
    let refused = engine.set_port("vm1", &json!({"qos": {"priority": 2}}));
    assert_eq!(refused.unwrap_err().status, 503);
    assert_eq!(world.orders(), ["qos 1", "egress 2 of 2 senders", "qos 1"]);
    assert_eq!(
        world.switch().scheduling.senders[&PortId(1)],
        SenderQos::default()
    );
}

#[test]
fn after_a_restart_scheduling_is_sent_anew_where_there_may_be_any() {
    let (mut world, engine) = world();
    drop(engine);
    let engine = world.start().unwrap();
    assert_eq!(world.orders(), ["adopt"], "there never was any");
    drop(engine);
    let (mut world, engine) = scheduled();
    world.orders();
    drop(engine);
    // The order of a change that was interrupted.
    world.switch().scheduling.senders.insert(
        PortId(1),
        SenderQos {
            priority: 7,
            class_by_pair: Vec::new(),
        },
    );
    let mut engine = world.start().unwrap();
    assert_eq!(
        world.orders(),
        [
            "adopt",
            "classes [None, Some(4)]",
            "qos 0",
            "qos 1",
            "qos 2",
            "no egress 0",
            "no egress 1",
            "egress 2 of 2 senders",
        ]
    );
    assert_eq!(
        world.switch().scheduling.senders[&PortId(1)],
        SenderQos::default()
    );
    assert_eq!(world.saved().numbers.classes["storage"], 1);
    // Without any it is not sent again.
    let mut new = engine.desired().state;
    new.qos_classes.clear();
    new.ports.iter_mut().for_each(|port| {
        (port.egress, port.qos) = (None, Default::default());
    });
    engine.change_to(Change::State(Box::new(new))).unwrap();
    assert!(!world.saved().scheduled);
    drop(engine);
    world.orders();
    world.start().unwrap();
    assert_eq!(world.orders(), ["adopt"]);
}

#[test]
fn an_uplink_without_a_rate_promises_nothing_while_its_speed_is_unknown() {
    let (world, mut engine) = world();
    let uplink = PortSpec {
        interface: Some("eth0".to_owned()),
        egress: Some(EgressSpec::default()),
        segment: Some("blue".to_owned()),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    engine.add_port(uplink).unwrap();
    world.orders();
    let min = json!({"qos": {"min": 1_000_000}});
    let refused = engine.set_port("vm1", &min).unwrap_err();
    assert_eq!(refused.status, 422);
    assert!(refused.detail.contains("is not known"), "{refused}");
    world.supervisor().speeds = vec![("up".to_owned(), 1_000_000)];
    engine.set_port("vm1", &min).unwrap();
    let rate = |world: &World| world.switch().scheduling.outputs[&PortId(3)].rate;
    assert_eq!(rate(&world), Some(1_000_000));
    let more = json!({"qos": {"min": 1_000_001}});
    let refused = engine.set_port("vm1", &more).unwrap_err();
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (422, Some("qos.min"))
    );
}

#[test]
fn a_link_that_comes_up_slower_scales_guarantees_down_and_says_so() {
    let (mut world, mut engine) = world();
    world.supervisor().speeds = vec![("up".to_owned(), 10_000_000)];
    let uplink = PortSpec {
        interface: Some("eth0".to_owned()),
        egress: Some(EgressSpec::default()),
        segment: Some("blue".to_owned()),
        ..PortSpec::new("up", PortKind::Uplink)
    };
    engine.add_port(uplink).unwrap();
    assert_eq!(world.supervisor().rooms, [("up".to_owned(), 128_000)]);
    let min = json!({"qos": {"min": 4_000_000}});
    engine.set_port("vm0", &min).unwrap();
    world.orders();
    engine.follow_speeds().unwrap();
    assert_eq!(world.orders(), [""; 0], "nothing differs");
    world.supervisor().speeds = vec![("up".to_owned(), 1_000_000)];
    engine.follow_speeds().unwrap();
    assert_eq!(world.orders(), ["egress 3 of 3 senders"]);
    let of_vm0 = |world: &World| {
        let switch = world.switch();
        let output = &switch.scheduling.outputs[&PortId(3)];
        (output.rate, output.senders[0].rates.min)
    };
    assert_eq!(of_vm0(&world), (Some(1_000_000), 1_000_000));
    let status = |engine: &mut Engine| {
        let ports = engine.status().unwrap().ports;
        let up = ports.into_iter().find(|port| port.name == "up");
        let egress = up.unwrap().egress.unwrap();
        (egress.link, egress.promised, egress.scaled)
    };
    assert_eq!(status(&mut engine), (Some(1_000_000), 4_000_000, true));
    // What is in effect is not refused after a restart either.
    drop(engine);
    let mut engine = world.start().unwrap();
    assert!(status(&mut engine).2);
    world.supervisor().speeds = vec![("up".to_owned(), 10_000_000)];
    engine.follow_speeds().unwrap();
    assert_eq!(of_vm0(&world), (Some(10_000_000), 4_000_000));
    assert!(!status(&mut engine).2);
}

#[test]
fn the_use_of_a_scheduled_port_is_shown_by_sender_and_class() {
    let (_world, mut engine) = scheduled();
    let [document] = &engine.egress().unwrap().ports[..] else {
        panic!()
    };
    assert_eq!(
        (document.output.rate, document.output.promised),
        (Some(10_000_000), 1_000_000)
    );
    let shares = document.shares.iter();
    let shares: Vec<_> = shares
        .map(|of| (&*of.sender, &*of.class, of.priority, of.min, of.bits))
        .collect();
    assert_eq!(
        shares,
        [
            ("vm0", "", 3, 1_000_000, 1000),
            ("vm0", "storage", 6, 500_000, 1000),
            ("vm1", "", 0, 0, 1000),
            ("vm1", "storage", 6, 0, 1000),
        ]
    );
    assert_eq!(document.shares[1].held_us, 2);
    // Frames of a class that is removed are of no class that could be named.
    engine.set_port("vm0", &json!({"qos": null})).unwrap();
    let remove = QosChange::RemoveClass("storage".to_owned());
    engine.change_to(Change::Qos(remove)).unwrap();
    let document = engine.egress().unwrap();
    let shares = document.ports[0].shares.iter();
    let shares: Vec<_> = shares.map(|of| (&*of.sender, &*of.class)).collect();
    assert_eq!(shares, [("vm0", ""), ("vm1", "")]);
}
