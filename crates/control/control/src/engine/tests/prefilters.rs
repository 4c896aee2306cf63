//! Prefilters: frames of a wire meet the table as in the kernel, and the switch counts the others.

use std::os::fd::AsFd;
use std::time::Duration;

use api::v1::{
    AccessModel, EventKind, PortKind, PortSpec, PrefilterChange, PrefilterMode, TraceFrame,
    TraceRequest, UplinkDriver,
};
use config::desired::{AccessChange, Change};
use ipc::supervision::EventToControl;
use mapping::SharedWords;
use offload::Page;
use offload::layout::SIZE;
use port::counters::Counters;
use port::{DropReason, PortId};
use wire::{EtherType, FlowKey, MacAddr};

use super::world::{World, asked, key, port};
use crate::engine::Engine;
use crate::engine::queries::prefilters;

/// The uplink, by its number.
const UP: PortId = PortId(1);

struct Wire {
    world: World,
    engine: Engine,
    counters: Counters,
    page: Page<SharedWords<SIZE>>,
}

fn lists(rules: &str) -> AccessModel {
    let text = format!(
        r#"{{"lists": [{{"name": "in", "direction": "to-guest", "ports": ["vm0"],
            "rules": [{rules}]}}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Frames to `vm0` are denied.
fn closed() -> AccessModel {
    lists(r#"{"name": "all", "action": "drop"}"#)
}

fn frame(source: u32) -> FlowKey {
    FlowKey::default()
        .with_ethertype(EtherType::IPV4)
        .with_smac(MacAddr([2, 0, 0, 0, 0, 9]))
        .with_dmac(MacAddr([2, 0, 0, 0, 0, 1]))
        .with_ip_proto(17)
        .with_src_ip(source.into())
        .with_l4_ports(1, 2)
}

impl Wire {
    fn new() -> Self {
        let uplink = PortSpec {
            driver: Some(UplinkDriver::Packet),
            interface: Some("eth0".to_owned()),
            segment: Some("blue".to_owned()),
            ..PortSpec::new("up", PortKind::Uplink)
        };
        let mut world = World::new(vec![port("vm0", "blue"), uplink]);
        let mut engine = world.start().unwrap();
        world.settle(&mut engine);
        // The station of `vm0`.
        world.ask(&mut engine, key(0, 1, 255));
        let counters = engine.counters.clone();
        let page = Self::page(&world);
        let mut wire = Self {
            world,
            engine,
            counters,
            page,
        };
        wire.set(closed());
        wire
    }

    fn page(world: &World) -> Page<SharedWords<SIZE>> {
        let mut supervisor = world.supervisor();
        let table = supervisor.prefilter("up");
        Page::new(SharedWords::map(table.as_fd(), true).unwrap())
    }

    fn set(&mut self, access: AccessModel) {
        let change = Change::Access(AccessChange::All(Box::new(access)));
        self.engine.try_change(&asked(change)).unwrap();
    }

    fn set_mode(&mut self, mode: PrefilterMode) {
        let patch = serde_json::json!({ "prefilter": mode });
        let patch = serde_json::from_value(patch).unwrap();
        self.engine.set_port("up", &patch).unwrap();
    }

    /// Frames arrive: returns how many end at the wire. The switch denies the others.
    fn receive(&self, frames: impl Iterator<Item = FlowKey>) -> u64 {
        let now = self.engine.now().as_nanos() as u64;
        let (mut ended, mut denied) = (0, 0);
        for frame in frames {
            match self.page.receive(&frame, 0, 60, now) {
                true => ended += 1,
                false => denied += 1,
            }
        }
        self.counters.add_drops(UP, DropReason::AclDenied, denied);
        ended
    }

    /// A flood of some seconds. Returns how many of its last 500 frames end at the wire.
    fn flood(&mut self, seconds: u32) -> u64 {
        let mut ended = 0;
        for tenth in 0..10 * seconds {
            ended = self.receive((0..500).map(|n| frame(n % 7)));
            self.world.pass(Duration::from_millis(100));
            self.engine.tick_prefilters();
            if tenth % 10 == 9 {
                self.engine.tick().unwrap();
            }
        }
        ended
    }
}

#[test]
fn a_flood_ends_at_the_wire_and_counts_as_frames_of_the_port_and_hits_of_the_rule() {
    let mut wire = Wire::new();
    assert_eq!(wire.flood(4), 500);
    let status = wire.engine.status().unwrap();
    let port = status.ports.iter().find(|port| port.name == "up").unwrap();
    let prefilter = port.prefilter.clone().unwrap();
    assert_eq!(prefilter.back_end.as_deref(), Some("socket"));
    assert!(prefilter.frames >= 5000 && prefilter.entries >= 1);
    let stats = wire.engine.stats().unwrap();
    let stats = stats.ports.iter().find(|port| port.name == "up").unwrap();
    assert_eq!(stats.drops["acl-denied"], 20_000, "of switch and wire");
    assert_eq!(stats.from_guest.packets, prefilter.frames);
    assert_eq!(stats.from_guest.bytes, 60 * prefilter.frames);
    let document = prefilters::document(&wire.engine, "up").unwrap();
    let entry = &document.entries[0];
    assert_eq!(entry.rules, ["in/all"]);
    assert!(
        entry.matches.contains("02:00:00:00:00:01"),
        "{}",
        entry.matches
    );
    let of_entries: u64 = document.entries.iter().map(|entry| entry.frames).sum();
    assert_eq!(of_entries, prefilter.frames);
    assert!(prefilters::document(&wire.engine, "vm9").is_err());
}

fn traced(wire: &mut Wire, frame: &[u8]) -> api::v1::Trace {
    let headers = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = TraceRequest {
        port: "up".to_owned(),
        expression: None,
        frames: vec![TraceFrame {
            headers,
            length: None,
        }],
    };
    wire.engine.trace(&request).unwrap().traces.remove(0)
}

#[test]
fn events_report_that_frames_end_at_the_wire_and_traces_name_the_entry() {
    let mut wire = Wire::new();
    let flow = testkit::packets::Flow {
        dst_mac: [2, 0, 0, 0, 0, 1],
        ..testkit::packets::Flow::v4(9, 8)
    };
    let packet = testkit::packets::udp(&flow, &[0; 18]);
    assert_eq!(traced(&mut wire, &packet).prefilter, None);
    assert_eq!(wire.flood(4), 500);
    let trace = traced(&mut wire, &packet);
    let entry = trace.prefilter.expect("an entry");
    assert_eq!(entry.rules, ["in/all"]);
    assert_eq!(trace.outcome.reason.as_deref(), Some("acl-denied"));
    // A fragment of the same flow reaches the switch.
    let mut fragment = packet;
    fragment[20] |= 0x20;
    assert_eq!(traced(&mut wire, &fragment).prefilter, None);
    let turns = |wire: &Wire| {
        let all = wire.engine.events().kept().into_iter();
        let all = all.map(|event| event.what);
        let all = all.filter(|what| what.name() == "prefilter");
        all.collect::<Vec<_>>()
    };
    let began = EventKind::Prefilter {
        port: "up".to_owned(),
        state: PrefilterChange::Began,
        rules: vec!["in/all".to_owned()],
        frames: None,
    };
    assert_eq!(turns(&wire), std::slice::from_ref(&began));
    assert_eq!(
        api::v1::event_text::message(&began),
        "denied frames of port up end at the wire (in/all)"
    );
    let frames = wire.engine.forwarding.prefilters.total(UP).frames;
    for _ in 0..150 {
        wire.world.pass(Duration::from_millis(100));
        wire.engine.tick_prefilters();
    }
    let [_, ended] = &turns(&wire)[..] else {
        panic!("{:?}", turns(&wire))
    };
    assert_eq!(
        api::v1::event_text::message(ended),
        format!("no denied frames of port up end at the wire any more (in/all); {frames} frames")
    );
}

#[test]
fn the_first_frame_after_a_change_meets_no_entry_of_the_lists_before() {
    let mut wire = Wire::new();
    assert_eq!(wire.flood(3), 500);
    let open = r#"{"name": "some", "action": "allow", "priority": 9, "source": ["0.0.0.3/32"]},
        {"name": "all", "action": "drop"}"#;
    wire.set(lists(open));
    assert_eq!(wire.receive([frame(3)].into_iter()), 0);
    // The others find entries again, and it does not.
    for _ in 0..3 {
        let now = wire.engine.now().as_nanos() as u64;
        assert!(!wire.page.receive(&frame(3), 0, 60, now));
        for _ in 0..10 {
            wire.receive((0..500).map(|n| frame(10 + n % 7)));
            wire.world.pass(Duration::from_millis(100));
            wire.engine.tick_prefilters();
        }
        wire.engine.tick().unwrap();
    }
    assert_eq!(wire.receive([frame(11), frame(3)].into_iter()), 1);
    wire.set(AccessModel::default());
    assert_eq!(wire.receive((0..20).map(frame)), 0);
}

#[test]
fn a_control_that_starts_empties_the_table_and_counters_stay() {
    let mut wire = Wire::new();
    wire.flood(3);
    let before = prefilters::counts_of(&wire.engine, UP);
    drop(wire.engine);
    wire.engine = wire.world.start().unwrap();
    assert_eq!(prefilters::counts_of(&wire.engine, UP), before);
    assert_eq!(wire.receive((0..20).map(frame)), 0);
    wire.counters = wire.engine.counters.clone();
    assert_eq!(wire.flood(4), 500);
}

#[test]
fn a_captured_port_a_frozen_control_and_a_port_without_it_let_all_pass() {
    let mut wire = Wire::new();
    assert_eq!(wire.flood(3), 500);
    let capture = wire.engine.capture("up", &Default::default()).unwrap();
    assert_eq!(wire.receive((0..20).map(frame)), 0, "captured");
    assert_eq!(wire.flood(3), 0, "captured");
    drop(capture);
    wire.engine.tick().unwrap();
    assert_eq!(wire.flood(4), 500);
    let query = api::v1::CaptureQuery {
        keep_prefilter: true,
        ..Default::default()
    };
    let capture = wire.engine.capture("up", &query).unwrap();
    assert_eq!(wire.flood(1), 500, "captured, but for those that end");
    drop(capture);
    wire.set_mode(PrefilterMode::Off);
    assert_eq!(wire.receive((0..20).map(frame)), 0, "off");
    wire.set_mode(PrefilterMode::Auto);
    assert_eq!(wire.flood(4), 500);
    wire.world.tell(&EventToControl::Freeze);
    wire.world.settle(&mut wire.engine);
    wire.engine.freeze_or_thaw(false).unwrap();
    assert_eq!(
        wire.receive((0..20).map(frame)),
        0,
        "another control takes over"
    );
}

#[test]
fn a_table_that_was_refused_is_asked_for_again_with_the_next_change() {
    let mut wire = Wire::new();
    wire.set_mode(PrefilterMode::Off);
    wire.world.supervisor().no_prefilter = Some("not with the driver xdp");
    wire.set_mode(PrefilterMode::Socket);
    assert_eq!(wire.flood(5), 0);
    wire.world.supervisor().no_prefilter = None;
    wire.set_mode(PrefilterMode::Auto);
    assert!(wire.flood(5) > 0);
}
