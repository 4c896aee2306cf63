//! Traces: the decision that frames would get, without effect.

use std::time::Duration;

use api::v1::{
    FlowsFilter, PortKind, PortSpec, Problem, SegmentSpec, Trace, TraceFrame, TraceRequest,
};
use config::desired::Change;
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

/// Returns the frame of a key of these tests.
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

/// Returns a trace as an operator reads it.
fn lines(trace: &Trace) -> Vec<String> {
    let filled = trace.filled.iter().map(|note| format!("filled  {note}"));
    let steps = trace.steps.iter();
    let steps = steps.map(|step| format!("{}  {}", step.stage.as_str(), step.text));
    let flows = trace.flows.iter().map(|result| {
        let wrong = result.disagrees.as_ref().map(|why| format!("; {why}"));
        format!(
            "flow  {}: {}{}",
            result.flow.matches,
            result.flow.action,
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
fn a_trace_to_a_known_address_shows_its_flow() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.pass(Duration::from_secs(4));
    world.ask(&mut engine, key(1, 2, 1));
    assert_eq!(
        lines(&traced(&mut engine, &key(1, 2, 1))),
        [
            "ether 52:54:00:00:00:02 > 52:54:00:00:00:01 type 0x88b5, 60 bytes",
            "segment  blue, as untagged from vm1",
            "source  52:54:00:00:00:02 is known here, last seen 0 ms ago",
            "policy  no access lists apply in this segment",
            "station  52:54:00:00:00:01 is behind vm0, last seen 4 s ago",
            "outcome  to vm0 (which is waiting: dropped there)",
            "flow  from vm1, untagged, 52:54:00:00:00:02 > 52:54:00:00:00:01: to vm0, untagged",
        ]
    );
    let result = &traced(&mut engine, &key(1, 2, 1)).flows[0];
    assert_eq!(
        (result.worker, result.flow.packets, result.flow.age_ms),
        (1, 17, 90_000)
    );
    assert_eq!(
        (result.flow.from.as_deref(), result.flow.to.as_deref()),
        (Some("vm1"), Some("vm0"))
    );
    assert_eq!(result.flow.rate(), 1.5);
}

#[test]
fn a_trace_gives_the_reasons_of_floods_and_drops() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    let result = traced(&mut engine, &key(1, 2, 9));
    assert_eq!(
        lines(&result)[2..],
        [
            "source  52:54:00:00:00:02 is new, and would be learned",
            "policy  no access lists apply in this segment",
            "station  52:54:00:00:00:09 is not known",
            "outcome  flooded to vm0 (which is waiting: dropped there), \
             vm2 (which is waiting: dropped there), \
             trunk with VLAN 10 (which is waiting: dropped there)",
        ]
    );
    let result = traced(&mut engine, &key(0, 1, 1));
    assert_eq!(
        lines(&result)[4],
        "station  52:54:00:00:00:01 is the sender itself"
    );
    assert_eq!(result.steps[3].drop.as_deref(), Some("reflection"));
    let reflection = "outcome  dropped, reflection: the destination MAC address is behind the port \
        at which the frame arrived";
    assert_eq!(lines(&result)[5], reflection);
    let result = traced(&mut engine, &key(0, 7, 1));
    let station = "station  52:54:00:00:00:01 is behind vm0, last seen 0 ms ago: the port that \
        the frame comes from";
    assert_eq!(lines(&result)[4..], [station, reflection]);
    let result = traced(&mut engine, &key(0, 1, 2).with_vlan(Some(20)));
    assert_eq!(
        lines(&result)[1..],
        [
            "segment  none, as VLAN 20 from vm0: vlan-not-allowed: a tagged frame arrived at an \
             access port",
            "outcome  dropped, vlan-not-allowed: a tagged frame arrived at an access port",
        ]
    );
    let result = traced(&mut engine, &key(4, 8, 255).with_vlan(Some(20)));
    assert_eq!(lines(&result)[1], "segment  red, as VLAN 20 from trunk");
    assert_eq!(
        lines(&result)[5],
        "outcome  flooded to vm3 (which is waiting: dropped there)"
    );
    let result = traced(&mut engine, &key(0, 255, 2));
    assert_eq!(
        lines(&result)[1],
        "frame  bad-source: the source MAC address is a group address or zero"
    );
}

#[test]
fn a_trace_lists_limits_without_predicting_them() {
    let (world, mut engine) = world();
    let limit = |port: &str, limits: serde_json::Value| {
        let patch = serde_json::json!({"limits": limits});
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
    let from = "vm1 may send 1000 packets/s: more frames wait in its queue";
    let to = [
        "vm0, vm2 may be sent 5 packets/s and 7 bit/s each: more is dropped, rate-limited",
        "trunk may be sent 9 bit/s: more is dropped, rate-limited",
    ];
    let unknown =
        "vm1 may send 3 frames for unknown addresses a second: more are dropped, storm-control";
    assert_eq!(met(&key(1, 2, 9)), [from, unknown, to[0], to[1]]);
    let broadcast = "vm1 may send 1 broadcasts a second: more are dropped, storm-control";
    assert_eq!(met(&key(1, 2, 255)), [from, broadcast, to[0], to[1]]);
    // A dropped frame has consumed tokens, too.
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
fn a_trace_shows_the_copies_of_mirrors() {
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
    // The guest of vm0 is not connected.
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
    // The mirror's target gets no copies of frames that it sent itself.
    assert_eq!(copies(&tagged), [red("red", "vm2"), red("all", "vm3")]);
    // A dropped frame is copied as sent.
    assert_eq!(copies(&key(1, 2, 2)), [ports, only_sent, blue, all]);
    assert_eq!(
        copies(&key(3, 4, 4)),
        ["red copies it to vm2, as vm3 sends it"]
    );
}

#[test]
fn missing_addresses_of_an_expression_are_filled_in_if_known() {
    let (world, mut engine) = world();
    let ip = |port, from, to| {
        let key: FlowKey = key(port, from, to).with_ethertype(wire::EtherType::IPV4);
        key.with_src_ip(0x0a00_0000 | u128::from(from))
    };
    let hint = "give both addresses: `ether SOURCE > DESTINATION` in front";
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
        format!("no MAC address is learned on vm0; {hint}")
    );
    world.ask(&mut engine, ip(0, 1, 255));
    assert_eq!(
        refused(&mut engine, text),
        format!("no MAC address is known for 10.0.0.2; {hint}")
    );
    world.ask(&mut engine, ip(1, 2, 255));
    world.pass(Duration::from_secs(5));
    let result = expression(&mut engine, "vm0", text).unwrap();
    assert_eq!(
        lines(&result)[..3],
        [
            "ether 52:54:00:00:00:01 > 52:54:00:00:00:02 icmp 10.0.0.1 > 10.0.0.2, 42 bytes",
            "filled  source 52:54:00:00:00:01: seen with 10.0.0.1 5 s ago",
            "filled  destination 52:54:00:00:00:02: seen with 10.0.0.2 5 s ago",
        ]
    );
    assert_eq!(result.outcome.receivers[0].port, "vm1");
    let result = expression(&mut engine, "vm0", "arp who-has 10.0.0.2 tell 10.0.0.7").unwrap();
    assert_eq!(
        result.filled,
        ["source 52:54:00:00:00:01: the only MAC address learned on vm0"]
    );
    world.ask(&mut engine, ip(0, 3, 255));
    let several = format!("2 MAC addresses are learned on vm0; {hint}");
    assert_eq!(refused(&mut engine, "udp 10.0.0.9:1 > 10.0.0.2:1"), several);
    // No host in the other segment has the address.
    let red = expression(
        &mut engine,
        "trunk",
        "vlan 20 arp who-has 10.0.0.2 tell 10.0.0.1",
    );
    assert_eq!(
        red.unwrap_err().detail,
        format!("no MAC address is learned on trunk; {hint}")
    );
    // The frame is dropped anyway, so its address does not matter.
    let result = expression(&mut engine, "vm0", "vlan 9 icmp 10.0.0.1 > 10.0.0.2").unwrap();
    assert_eq!(result.outcome.reason.as_deref(), Some("vlan-not-allowed"));
    // A given source is not looked up.
    let given = "ether 02:00:00:00:00:01 > 02:00:00:00:00:02 tcp 10.0.0.9:1 > 10.0.0.8:80 syn";
    let result = expression(&mut engine, "vm3", given).unwrap();
    assert_eq!(
        (result.frame, result.filled),
        (format!("{given}, 54 bytes"), Vec::new())
    );
    // A configured address has precedence over one that was seen.
    let patch = serde_json::json!({"mac": "52:54:00:00:00:0a"});
    engine.set_port("vm0", &patch).unwrap();
    let result = expression(&mut engine, "vm0", text).unwrap();
    assert_eq!(
        result.filled[0],
        "source 52:54:00:00:00:0a: configured for vm0"
    );
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
    let none = "expression: an expression or frames are required";
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
fn a_trace_marks_a_flow_that_would_be_decided_differently_now() {
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
        let result = traced(&mut engine, &key(1, 2, 1));
        assert_eq!(result.flows[0].disagrees.as_deref(), Some(why));
        assert_eq!(
            result.outcome.receivers[0].port, "vm0",
            "what is decided now"
        );
    }
    let mut switch = world.switch();
    let flow = switch.flows.get_mut(&words).unwrap();
    (flow.action, flow.segment) = (super::world::to(0), Some(SegmentId(2)));
    drop(switch);
    let result = traced(&mut engine, &key(1, 2, 1));
    assert_eq!(
        result.flows[0].disagrees.as_deref(),
        Some("it was decided for another segment")
    );
}

#[test]
fn the_busiest_flows_are_sent_to_all_clients() {
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
        engine.queue_flow_dump(&filter, reply);
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
        assert_eq!(refused.to_string(), "limit: must be from 1 to 1024");
    }
    for mut answer in busy {
        assert_eq!(answer.try_recv().unwrap().unwrap_err().status, 503);
    }
    // Each answer causes the next upcall.
    for _ in 0..9 {
        world.settle(&mut engine);
    }
    for answer in &mut all {
        let result = answer.try_recv().unwrap().unwrap();
        assert_eq!(result.flows.len(), 3, "{result:?}");
    }
    for mut answer in others {
        assert!(answer.try_recv().unwrap().is_ok());
    }
    let result = { one }.try_recv().unwrap().unwrap();
    assert_eq!(result.flows.len(), 1);
    let flow = &result.flows[0];
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
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A trace predicts the decision of the next such frame, whatever was before, and nothing is
    /// learned by it.
    #[test]
    fn a_trace_predicts_the_decision(
        history in prop::collection::vec((any_key(), 0..1500u64), 1..60)
    ) {
        let (world, mut engine) = world();
        for (key, pause) in history {
            world.pass(Duration::from_millis(pause));
            let before = engine.fdb_document(&Default::default()).unwrap();
            let result = traced(&mut engine, &key);
            prop_assert_eq!(before, engine.fdb_document(&Default::default()).unwrap());
            prop_assert_eq!(world.answers(), vec![]);
            let action = world.ask(&mut engine, key);
            let (text, reason) = (&result.outcome.text, result.outcome.reason);
            match action {
                Action::Drop(why) => prop_assert_eq!(reason.as_deref(), Some(why.name())),
                Action::Unicast { .. } => {
                    prop_assert!(text.starts_with("to "), "{}", text);
                    prop_assert_eq!(result.outcome.receivers.len(), 1);
                }
                Action::Flood { .. } => prop_assert!(text.starts_with("flooded "), "{}", text),
            }
            let learned = result.steps.iter().any(|step| step.text.contains("would be learned"));
            let new = engine.fdb_document(&Default::default()).unwrap();
            let mac = key.smac().to_string();
            let known = |of: &api::v1::FdbDocument| of.entries.iter().any(|e| e.mac == mac);
            prop_assert!(!learned || known(&new));
        }
    }
}

#[test]
fn times_have_one_unit() {
    let result = |ms| crate::trace::time(Duration::from_millis(ms));
    assert_eq!(
        [0, 999, 1000, 119_999, 120_000, 7_199_999, 7_200_000].map(result),
        ["0 ms", "999 ms", "1 s", "119 s", "2 min", "119 min", "2 h"]
    );
}

#[test]
fn addresses_outside_are_reached_by_the_gateway_of_a_user_port() {
    let (world, mut engine) = world();
    engine
        .add_port(PortSpec {
            segment: Some("blue".to_owned()),
            network6: Some("fd00:1::/64".to_owned()),
            ..PortSpec::new("out", PortKind::User)
        })
        .unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    let filled = |engine: &mut Engine, text: &str| {
        let trace = expression(engine, "vm0", text)?;
        Ok::<_, Problem>(trace.filled.last().cloned().unwrap_or_default())
    };
    for to in ["10.99.0.2", "10.0.2.2", "10.0.2.3", "0.0.0.1"] {
        let text = format!("icmp 10.0.2.126 > {to}");
        let expected = format!(
            "destination 52:55:0a:00:02:02: of the gateway of out, by which {to} is reached"
        );
        assert_eq!(filled(&mut engine, &text).unwrap(), expected);
    }
    let text = "icmp6 fd00:1::9 > 2001:db8::1";
    assert!(
        filled(&mut engine, text)
            .unwrap()
            .contains("gateway of out")
    );
    // A guest of the network that is not known is none of the gateway's.
    for text in [
        "icmp 10.0.2.126 > 10.0.2.99",
        "icmp6 fd00:1::9 > fe80::1234",
    ] {
        let refused = filled(&mut engine, text).unwrap_err().detail;
        assert!(refused.starts_with("no MAC address is known"), "{refused}");
    }
    // It is that of its segment alone, and one that is configured.
    world.ask(&mut engine, key(3, 1, 255));
    let other = expression(&mut engine, "vm3", "icmp 10.0.2.126 > 10.99.0.2").unwrap_err();
    assert!(
        other
            .detail
            .starts_with("no MAC address is known for 10.99.0.2")
    );
    let patch = serde_json::json!({"mac": "02:00:00:00:00:99"});
    engine.set_port("out", &patch).unwrap();
    let own = filled(&mut engine, "icmp 10.0.2.126 > 10.99.0.2").unwrap();
    assert!(own.starts_with("destination 02:00:00:00:00:99: "), "{own}");
}

#[test]
fn an_address_that_is_known_in_a_vlan_of_a_trunk_is_found_there() {
    let (world, mut engine) = world();
    let ip = |port, from, to| {
        let key: FlowKey = key(port, from, to).with_ethertype(wire::EtherType::IPV4);
        key.with_src_ip(0x0a00_0000 | u128::from(from))
    };
    world.ask(&mut engine, ip(1, 2, 255));
    let text = "icmp 10.0.0.1 > 10.0.0.2";
    let note = "destination: 10.0.0.2 is known in blue: vlan 10";
    let trace = expression(&mut engine, "trunk", text).unwrap();
    assert_eq!(trace.filled, [note]);
    // With a segment for frames without a tag, too.
    let untagged = SegmentSpec {
        name: "native".to_owned(),
        vlan: None,
        neighbour_suppression: false,
    };
    engine.change_to(Change::AddSegment(untagged)).unwrap();
    let all = ["native", "red", "blue"].map(str::to_owned);
    let patch = serde_json::json!({"trunk": all});
    engine.set_port("trunk", &patch).unwrap();
    let refused = |engine: &mut Engine, text: &str| {
        let refused = expression(engine, "trunk", text).unwrap_err();
        assert_eq!(refused.status, 422);
        refused.detail
    };
    // A station behind the trunk, in a VLAN.
    let hint = "no MAC address is learned on trunk; give both addresses";
    assert!(refused(&mut engine, text).starts_with(hint));
    world.ask(&mut engine, ip(4, 1, 255).with_vlan(Some(20)));
    let expected = "no MAC address is learned on trunk without a tag, but in red: vlan 20";
    assert_eq!(refused(&mut engine, text), expected);
    world.ask(&mut engine, ip(4, 3, 255));
    assert_eq!(
        refused(&mut engine, text),
        "10.0.0.2 is known in blue: vlan 10"
    );
    let text = "vlan 10 icmp 10.0.0.1 > 10.0.0.2";
    assert!(refused(&mut engine, text).starts_with("no MAC address is learned on trunk"));
}
