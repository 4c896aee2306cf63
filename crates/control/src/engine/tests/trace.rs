//! What is told of frames: the decision that they would get, and nothing comes of the telling.

use std::time::Duration;

use api::v1::{FlowsFilter, Problem, Trace, TraceFrame, TraceRequest};
use policy::{Action, DropReason, SegmentId};
use port::PortId;
use proptest::prelude::*;
use tokio::sync::oneshot;
use wire::build::PacketBuilder;
use wire::{FlowKey, VlanTci};

use super::world::{World, key, port};
use crate::engine::Engine;

/// Three ports in blue, one in red, and a trunk of both.
fn world() -> (World, Engine) {
    let mut trunk = port("trunk", "blue");
    trunk.segment = None;
    trunk.trunk = Some(vec!["blue".to_owned(), "red".to_owned()]);
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("vm2", "blue"),
        port("vm3", "red"),
        trunk,
    ]);
    let mut engine = world.start().unwrap();
    // The check of all flows at the start is over.
    world.settle(&mut engine);
    (world, engine)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The frame of a key of these tests.
fn frame(key: &FlowKey) -> TraceFrame {
    let mut frame = PacketBuilder::new(key.smac(), key.dmac());
    if let Some(vid) = key.vlan() {
        frame = frame.vlan(VlanTci::new(vid));
    }
    TraceFrame {
        headers: hex(&frame.build()),
        length: Some(60),
    }
}

fn name(port: u32) -> String {
    let names = ["vm0", "vm1", "vm2", "vm3", "trunk"];
    names[port as usize].to_owned()
}

fn traced(engine: &mut Engine, key: &FlowKey) -> Trace {
    let request = TraceRequest {
        port: name(key.in_port()),
        frames: vec![frame(key)],
        ..TraceRequest::default()
    };
    let mut document = engine.trace(&request).expect("a trace");
    assert_eq!((document.port, document.traces.len()), (request.port, 1));
    document.traces.remove(0)
}

fn expression(engine: &mut Engine, port: &str, text: &str) -> Result<Trace, Problem> {
    let request = TraceRequest {
        port: port.to_owned(),
        expression: Some(text.to_owned()),
        ..TraceRequest::default()
    };
    engine
        .trace(&request)
        .map(|mut document| document.traces.remove(0))
}

/// A trace as an operator reads it.
fn lines(trace: &Trace) -> Vec<String> {
    let filled = trace.filled.iter().map(|note| format!("filled  {note}"));
    let steps = trace.steps.iter();
    let steps = steps.map(|step| format!("{}  {}", step.stage.as_str(), step.text));
    let flows = trace.flows.iter().map(|told| {
        let wrong = told.disagrees.as_ref().map(|why| format!("; {why}"));
        format!(
            "flow  {}: {}{}",
            told.flow.matches,
            told.flow.action,
            wrong.unwrap_or_default()
        )
    });
    let outcome = [format!("outcome  {}", trace.outcome.text)].into_iter();
    let first = [trace.frame.clone()].into_iter();
    first
        .chain(filled)
        .chain(steps)
        .chain(outcome)
        .chain(flows)
        .collect()
}

#[test]
fn a_frame_to_a_known_station_is_told_with_its_flow() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.pass(Duration::from_secs(4));
    world.ask(&mut engine, key(1, 2, 1));
    assert_eq!(
        lines(&traced(&mut engine, &key(1, 2, 1))),
        [
            "ether 52:54:00:00:00:02 > 52:54:00:00:00:01 type 0x88b5, 60 bytes",
            "segment  blue, as untagged from vm1",
            "source  52:54:00:00:00:02 is known here, heard 0 ms ago",
            "policy  no access lists are asked in this segment",
            "station  52:54:00:00:00:01 is behind vm0, heard 4 s ago",
            "outcome  to vm0 (which is waiting: dropped there)",
            "flow  from vm1, untagged, 52:54:00:00:00:02 > 52:54:00:00:00:01: to vm0, untagged",
        ]
    );
    let told = &traced(&mut engine, &key(1, 2, 1)).flows[0];
    assert_eq!(
        (told.worker, told.flow.packets, told.flow.age_ms),
        (1, 17, 90_000)
    );
    assert_eq!(
        (told.flow.from.as_deref(), told.flow.to.as_deref()),
        (Some("vm1"), Some("vm0"))
    );
    assert_eq!(told.flow.rate(), 1.5);
}

#[test]
fn floods_and_drops_are_told_with_their_reasons() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    let told = traced(&mut engine, &key(1, 2, 9));
    assert_eq!(
        lines(&told)[2..],
        [
            "source  52:54:00:00:00:02 is new, and would be learned",
            "policy  no access lists are asked in this segment",
            "station  52:54:00:00:00:09 is not known",
            "outcome  flooded to vm0 (which is waiting: dropped there), vm2 (which is waiting: dropped there), \
             trunk with VLAN 10 (which is waiting: dropped there)",
        ]
    );
    let told = traced(&mut engine, &key(0, 1, 1));
    assert_eq!(
        lines(&told)[4],
        "station  52:54:00:00:00:01 is the sender itself"
    );
    assert_eq!(told.steps[3].drop.as_deref(), Some("reflection"));
    let reflection = "outcome  dropped, reflection: the destination lies behind the port that the frame came from";
    assert_eq!(lines(&told)[5], reflection);
    let told = traced(&mut engine, &key(0, 7, 1));
    let station = "station  52:54:00:00:00:01 is behind vm0, heard 0 ms ago: the port that the frame comes from";
    assert_eq!(lines(&told)[4..], [station, reflection]);
    let told = traced(&mut engine, &key(0, 1, 2).with_vlan(Some(20)));
    assert_eq!(
        lines(&told)[1..],
        [
            "segment  none, as VLAN 20 from vm0: vlan-not-allowed: a tagged frame came from an access port",
            "outcome  dropped, vlan-not-allowed: a tagged frame came from an access port",
        ]
    );
    let told = traced(&mut engine, &key(4, 8, 255).with_vlan(Some(20)));
    assert_eq!(lines(&told)[1], "segment  red, as VLAN 20 from trunk");
    assert_eq!(
        lines(&told)[5],
        "outcome  flooded to vm3 (which is waiting: dropped there)"
    );
    let told = traced(&mut engine, &key(0, 255, 2));
    assert_eq!(
        lines(&told)[1],
        "frame  bad-source: the source address is a group address or zero"
    );
}

#[test]
fn limits_that_a_frame_meets_are_told_and_not_foretold() {
    let (world, mut engine) = world();
    let limit = |port: &str, limits: serde_json::Value| {
        let patch = api::v1::PortPatch {
            limits: Some(limits),
            ..Default::default()
        };
        (port.to_owned(), patch)
    };
    let to_guest = serde_json::json!({"to_guest": {"packets_per_second": 5, "bits_per_second": 7}});
    let sender = serde_json::json!({
        "from_guest": {"packets_per_second": 1000},
        "broadcast": {"packets_per_second": 1},
        "multicast": {"packets_per_second": 2},
        "unknown_unicast": {"packets_per_second": 3},
    });
    let other = serde_json::json!({"to_guest": {"bits_per_second": 9}});
    for (port, patch) in [
        limit("vm0", to_guest.clone()),
        limit("vm1", sender),
        limit("vm2", to_guest),
        limit("trunk", other),
    ] {
        engine.set_port(&port, &patch).unwrap();
    }
    let mut met = |key: &FlowKey| {
        let limits = traced(&mut engine, key).limits;
        limits
            .into_iter()
            .map(|limit| limit.text)
            .collect::<Vec<_>>()
    };
    let from = "vm1 may send 1000 packets/s: more waits there";
    let to = [
        "vm0, vm2 may be sent 5 packets/s and 7 bit/s each: more is dropped, rate-limited",
        "trunk may be sent 9 bit/s: more is dropped, rate-limited",
    ];
    let unknown = "vm1 may send 3 frames for unknown stations a second: more are dropped, storm";
    assert_eq!(met(&key(1, 2, 9)), [from, unknown, to[0], to[1]]);
    let broadcast = "vm1 may send 1 broadcasts a second: more are dropped, storm";
    assert_eq!(met(&key(1, 2, 255)), [from, broadcast, to[0], to[1]]);
    // What is dropped has been taken all the same.
    assert_eq!(met(&key(1, 255, 1)), [from]);
    world.ask(&mut engine, key(0, 1, 255));
    let mut met = |key: &FlowKey| traced(&mut engine, key).limits;
    let known = met(&key(1, 2, 1));
    assert_eq!(known.len(), 2, "{known:?}");
    assert_eq!(
        (&*known[1].limit, &*known[1].ports),
        ("to_guest", &["vm0".to_owned()][..])
    );
    assert_eq!(
        (known[0].drop.as_deref(), known[1].drop.as_deref()),
        (None, Some("rate-limited"))
    );
    assert_eq!(met(&key(3, 4, 255)).len(), 1, "of the trunk");
}

#[test]
fn copies_that_mirrors_make_are_told() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    let mirrors = serde_json::json!({"mirrors": [
        {"name": "ports", "to": "vm2", "ports": ["vm0", "vm1"]},
        {"name": "sent", "to": "vm2", "ports": ["vm0", "vm1"], "direction": "in"},
        {"name": "got", "to": "vm2", "ports": ["vm1", "trunk"], "direction": "out"},
        {"name": "blue", "to": "vm3", "segments": ["blue"]},
        {"name": "red", "to": "vm2", "segments": ["red"]},
        {"name": "tagged", "to": "vm2", "ports": ["vm0", "trunk"], "filter": "vlan 10"},
        {"name": "arp", "to": "vm2", "filter": "arp"},
        {"name": "all", "to": "vm3", "filter": "not arp"},
    ]});
    engine.patch_state(mirrors).unwrap();
    let mut copies = |key: &FlowKey| {
        let mirrors = traced(&mut engine, key).mirrors;
        let text = |mirror: api::v1::TraceMirror| mirror.text;
        mirrors.into_iter().map(text).collect::<Vec<_>>()
    };
    let sent = |port: &str| {
        [("ports", "vm2"), ("sent", "vm2")]
            .map(|(name, to)| format!("{name} copies it to {to}, as {port} sends it"))
    };
    let [ports, only_sent] = sent("vm1");
    let blue = "blue copies it to vm3, as vm1 sends it".to_owned();
    let all = "all copies it to vm3, as vm1 sends it".to_owned();
    // vm0 is not there to get it.
    let expected = [ports.clone(), only_sent.clone(), blue.clone(), all.clone()];
    assert_eq!(copies(&key(1, 2, 1)), expected);
    world.switch().guests_are_there = true;
    let got = "ports copies it to vm2, as it is delivered to vm0".to_owned();
    let expected = [
        ports.clone(),
        got.clone(),
        only_sent.clone(),
        blue.clone(),
        all.clone(),
    ];
    assert_eq!(copies(&key(1, 2, 1)), expected);
    // The tag is the one that it is delivered with.
    let trunk = |name: &str| format!("{name} copies it to vm2, as it is delivered to trunk");
    let flooded = [
        ports.clone(),
        got,
        only_sent.clone(),
        trunk("got"),
        blue.clone(),
        trunk("tagged"),
        all.clone(),
    ];
    assert_eq!(copies(&key(1, 2, 9)), flooded);
    let red = |name: &str, to: &str| format!("{name} copies it to {to}, as trunk sends it");
    let tagged = key(4, 8, 255).with_vlan(Some(20));
    // vm3 gets what it would copy as sent by itself.
    assert_eq!(copies(&tagged), [red("red", "vm2"), red("all", "vm3")]);
    // What is dropped was sent.
    assert_eq!(copies(&key(1, 2, 2)), [ports, only_sent, blue, all]);
    assert_eq!(
        copies(&key(3, 4, 4)),
        ["red copies it to vm2, as vm3 sends it"]
    );
}

#[test]
fn what_an_expression_leaves_out_is_filled_in_if_it_is_known() {
    let (world, mut engine) = world();
    let ip = |port, from, to| {
        let key: FlowKey = key(port, from, to).with_ethertype(wire::EtherType::IPV4);
        key.with_src_ip(0x0a00_0000 | u128::from(from))
    };
    let asked = "say both addresses: `ether SOURCE > DESTINATION` in front";
    let refused = |engine: &mut Engine, text: &str| {
        let problem = expression(engine, "vm0", text).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some("expression"))
        );
        problem.detail
    };
    let text = "icmp 10.0.0.1 > 10.0.0.2";
    assert_eq!(
        refused(&mut engine, text),
        format!("no station is known behind vm0; {asked}")
    );
    world.ask(&mut engine, ip(0, 1, 255));
    assert_eq!(
        refused(&mut engine, text),
        format!("nobody is known to have 10.0.0.2; {asked}")
    );
    world.ask(&mut engine, ip(1, 2, 255));
    world.pass(Duration::from_secs(5));
    let told = expression(&mut engine, "vm0", text).unwrap();
    assert_eq!(
        lines(&told)[..3],
        [
            "ether 52:54:00:00:00:01 > 52:54:00:00:00:02 icmp 10.0.0.1 > 10.0.0.2, 42 bytes",
            "filled  source 52:54:00:00:00:01: seen with 10.0.0.1 5 s ago",
            "filled  destination 52:54:00:00:00:02: seen with 10.0.0.2 5 s ago",
        ]
    );
    assert_eq!(told.outcome.receivers[0].port, "vm1");
    let told = expression(&mut engine, "vm0", "arp who-has 10.0.0.2 tell 10.0.0.7").unwrap();
    assert_eq!(
        told.filled,
        ["source 52:54:00:00:00:01: the only station behind vm0"]
    );
    world.ask(&mut engine, ip(0, 3, 255));
    let several = format!("2 stations are known behind vm0; {asked}");
    assert_eq!(refused(&mut engine, "udp 10.0.0.9:1 > 10.0.0.2:1"), several);
    // In another segment nobody has it.
    let red = expression(
        &mut engine,
        "trunk",
        "vlan 20 arp who-has 10.0.0.2 tell 10.0.0.1",
    );
    assert_eq!(
        red.unwrap_err().detail,
        format!("no station is known behind trunk; {asked}")
    );
    // Where it is dropped anyway, it does not matter.
    let told = expression(&mut engine, "vm0", "vlan 9 icmp 10.0.0.1 > 10.0.0.2").unwrap();
    assert_eq!(told.outcome.reason.as_deref(), Some("vlan-not-allowed"));
    // A given source is not looked for.
    let given = "ether 02:00:00:00:00:01 > 02:00:00:00:00:02 tcp 10.0.0.9:1 > 10.0.0.8:80 syn";
    let told = expression(&mut engine, "vm3", given).unwrap();
    assert_eq!(
        (told.frame, told.filled),
        (format!("{given}, 54 bytes"), Vec::new())
    );
    // What is configured is taken before what was seen.
    let patch = api::v1::PortPatch {
        mac: Some(Some("52:54:00:00:00:0a".to_owned())),
        ..Default::default()
    };
    engine.set_port("vm0", &patch).unwrap();
    let told = expression(&mut engine, "vm0", text).unwrap();
    assert_eq!(told.filled[0], "source 52:54:00:00:00:0a: that of vm0");
}

#[test]
fn garbage_is_refused_with_its_field_and_column() {
    let (_world, mut engine) = world();
    let problem = expression(&mut engine, "vm0", "icmp 10.0.0.1 > ::1").unwrap_err();
    assert_eq!((problem.status, problem.column), (422, Some(17)));
    assert_eq!(
        problem.to_string(),
        "expression: column 17: expected an IPv4 address, found `::1`"
    );
    let problem = expression(&mut engine, "vm9", "icmp 10.0.0.1 > 10.0.0.2").unwrap_err();
    assert_eq!(problem.to_string(), "port: there is no port `vm9`");
    let mut refused = |expression: Option<&str>, frames: Vec<TraceFrame>| {
        let request = TraceRequest {
            port: "vm0".to_owned(),
            expression: expression.map(str::to_owned),
            frames,
        };
        engine.trace(&request).unwrap_err().to_string()
    };
    let frame = |headers: &str, length| TraceFrame {
        headers: headers.to_owned(),
        length,
    };
    let none = "expression: an expression or frames are to be given";
    assert_eq!(refused(None, vec![]), none);
    let both = "frames: either an expression or frames, not both";
    assert_eq!(refused(Some(""), vec![frame("", None)]), both);
    assert_eq!(
        refused(None, vec![frame("00", None); 17]),
        "frames: 16 frames at most"
    );
    let digits = "frames[1].headers: pairs of hexadecimal digits are expected";
    for headers in ["0", "0x", "zz", "ää", " 0"] {
        assert_eq!(
            refused(None, vec![frame("", None), frame(headers, None)]),
            digits
        );
    }
    let length = "frames[0].length: 2 to 65553 is expected";
    for wrong in [0, 1, 65_554, u32::MAX] {
        assert_eq!(refused(None, vec![frame("abCD", Some(wrong))]), length);
    }
}

#[test]
fn short_frames_are_runts() {
    let (_world, mut engine) = world();
    let frames = ["", "52", &"00".repeat(13)].map(|headers| TraceFrame {
        headers: headers.to_owned(),
        length: None,
    });
    let request = TraceRequest {
        port: "vm0".to_owned(),
        expression: None,
        frames: frames.to_vec(),
    };
    for (trace, length) in engine
        .trace(&request)
        .unwrap()
        .traces
        .iter()
        .zip([0, 1, 13])
    {
        assert_eq!(
            lines(trace),
            [
                format!("{length} bytes"),
                "frame  runt: the frame is shorter than an Ethernet header".to_owned(),
                "outcome  dropped, runt: the frame is shorter than an Ethernet header".to_owned(),
            ]
        );
    }
}

#[test]
fn a_flow_that_control_would_not_make_now_is_told_as_such() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    let words = *key(1, 2, 1).words();
    let wrong = [
        (
            Action::Drop(DropReason::Reflection),
            "its frames are dropped: reflection; now they would be to vm0, untagged",
        ),
        (
            Action::Unicast {
                port: PortId(9),
                tag: Some(3),
            },
            "its frames are to port 9, VLAN 3; now they would be to vm0, untagged",
        ),
    ];
    for (action, why) in wrong {
        world.switch().flows.get_mut(&words).unwrap().action = action;
        let told = traced(&mut engine, &key(1, 2, 1));
        assert_eq!(told.flows[0].disagrees.as_deref(), Some(why));
        assert_eq!(told.outcome.receivers[0].port, "vm0", "what is decided now");
    }
    let mut switch = world.switch();
    let flow = switch.flows.get_mut(&words).unwrap();
    (flow.action, flow.segment) = (super::world::to(0), Some(SegmentId(2)));
    drop(switch);
    let told = traced(&mut engine, &key(1, 2, 1));
    assert_eq!(
        told.flows[0].disagrees.as_deref(),
        Some("it was decided in another segment")
    );
}

#[test]
fn the_busiest_flows_are_told_to_all_who_ask() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    world.ask(&mut engine, key(0, 1, 2));
    let ask = |engine: &mut Engine, port: Option<&str>, limit| {
        let (reply, answer) = oneshot::channel();
        let filter = FlowsFilter {
            port: port.map(str::to_owned),
            limit,
        };
        engine.ask_for_flows(&filter, reply);
        answer
    };
    let mut all: Vec<_> = (0..20).map(|_| ask(&mut engine, None, None)).collect();
    let one = ask(&mut engine, Some("vm1"), Some(1));
    let mut others: Vec<_> = (2..20).map(|n| ask(&mut engine, None, Some(n))).collect();
    let busy = others.split_off(6);
    let none = ask(&mut engine, Some("vm9"), None)
        .try_recv()
        .unwrap()
        .unwrap_err();
    assert_eq!(none.to_string(), "port: there is no port `vm9`");
    for limit in [0, 1025, u16::MAX] {
        let refused = ask(&mut engine, None, Some(limit))
            .try_recv()
            .unwrap()
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "limit: 1 to 1024 flows can be asked for"
        );
    }
    for mut answer in busy {
        assert_eq!(answer.try_recv().unwrap().unwrap_err().status, 503);
    }
    // Each answer brings the next question.
    for _ in 0..9 {
        world.settle(&mut engine);
    }
    for answer in &mut all {
        let told = answer.try_recv().unwrap().unwrap();
        assert_eq!(told.flows.len(), 3, "{told:?}");
    }
    for mut answer in others {
        assert!(answer.try_recv().unwrap().is_ok());
    }
    let told = { one }.try_recv().unwrap().unwrap();
    assert_eq!(told.flows.len(), 1);
    let flow = &told.flows[0];
    assert_eq!(
        flow.matches,
        "from vm0, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02"
    );
    assert_eq!((flow.packets_per_1000_s, flow.idle_ms), (1500, 0));
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    let station = || prop_oneof![8 => 1..5u8, 1 => Just(255)];
    let vlan = prop::option::weighted(0.3, prop_oneof![Just(0), Just(10), Just(20), Just(30)]);
    (0..5u32, station(), station(), vlan)
        .prop_map(|(port, from, to, vlan)| key(port, from, to).with_vlan(vlan))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What is told is what the next such frame gets, whatever was before, and nothing is learned by telling it.
    #[test]
    fn what_is_told_is_what_happens(history in prop::collection::vec((any_key(), 0..1500u64), 1..60)) {
        let (world, mut engine) = world();
        for (key, pause) in history {
            world.pass(Duration::from_millis(pause));
            let before = engine.fdb_document(&Default::default()).unwrap();
            let told = traced(&mut engine, &key);
            prop_assert_eq!(before, engine.fdb_document(&Default::default()).unwrap());
            prop_assert_eq!(world.answers(), vec![]);
            let action = world.ask(&mut engine, key);
            let (text, reason) = (&told.outcome.text, told.outcome.reason);
            match action {
                Action::Drop(why) => prop_assert_eq!(reason.as_deref(), Some(why.name())),
                Action::Unicast { .. } => {
                    prop_assert!(text.starts_with("to "), "{}", text);
                    prop_assert_eq!(told.outcome.receivers.len(), 1);
                }
                Action::Flood { .. } => prop_assert!(text.starts_with("flooded "), "{}", text),
            }
            let learned = told.steps.iter().any(|step| step.text.contains("would be learned"));
            let new = engine.fdb_document(&Default::default()).unwrap();
            let known = |of: &api::v1::FdbDocument| of.entries.iter().any(|e| e.mac == key.smac().to_string());
            prop_assert!(!learned || known(&new));
        }
    }
}

#[test]
fn times_are_told_in_one_unit() {
    let told = |ms| crate::trace::time(Duration::from_millis(ms));
    assert_eq!(
        [0, 999, 1000, 119_999, 120_000, 7_199_999, 7_200_000].map(told),
        ["0 ms", "999 ms", "1 s", "119 s", "2 min", "119 min", "2 h"]
    );
}
