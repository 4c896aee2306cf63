//! The table of connections: lists, counts, flushes, ports and traces.

use std::path::Path;

use api::v1::{
    AccessModel, ConnectionLimit, ConnectionsFilter, ConnectionsFlush, ConnectionsSelection,
    ConnectionsSpec, EventKind, Problem, Requester, TraceRequest,
};
use config::desired::{AccessChange, Change, connection_settings};
use conntrack::packet::read;
use conntrack::table::{ConnectionId, Layout, MIN_CAPACITY, PortLimits, Rule, Worker};
use conntrack::tracker::CommitResult;
use conntrack::{Ingress, Judgement, Millis, Settings, Table, Tracker};
use ipc::switching::ConnectionFlush;
use policy::acl::RuleId;
use policy::{Action, ConnectionChange, SegmentId};
use tokio::sync::oneshot;
use wire::build::{PacketBuilder, TcpFields};
use wire::{FlowKey, ParsedHeaders};

use super::connections::answered;
use super::world::{World, asked, key, mac, port, upcall};
use crate::connections::{ConnectionTable, now};
use crate::engine::Engine;
use crate::engine::queries::connections;

const SYN: u16 = wire::tcp::SYN;
const ACK: u16 = wire::tcp::ACK;

/// A table of connections, as a switch has it.
pub(super) struct TestTable {
    table: Table,
    tracker: Tracker,
    walker: Worker,
    settings: Settings,
    now: Millis,
}

impl TestTable {
    /// Makes a table in a file, and gives the engine its view.
    fn new(engine: &mut Engine) -> Self {
        let layout = Layout::new(MIN_CAPACITY);
        let file = sys::file::fixed("connections", layout.bytes()).unwrap();
        let (table, _) = Table::map(&file, layout, 9, now()).unwrap();
        let spec = ConnectionsSpec {
            max: MIN_CAPACITY.into(),
            ..ConnectionsSpec::default()
        };
        engine.connections = ConnectionTable::default();
        engine
            .connections
            .set(Some(file), connection_settings(&spec));
        Self {
            tracker: Tracker::new(&table).unwrap(),
            walker: table.walker().unwrap(),
            table,
            settings: Settings::default(),
            now: now(),
        }
    }

    /// Judges a frame in blue by rules of this epoch. Returns the judgement, and the frame's key.
    fn judge(&mut self, frame: &[u8], from: u16, epoch: u16) -> (Judgement, FlowKey) {
        let parsed = ParsedHeaders::parse(frame, frame.len());
        let (read, from) = (read(1, &parsed, frame, true), home(from));
        let mut batch = self.tracker.begin(&self.settings, self.now);
        let probe = batch.probe(&read);
        let judged = batch.judge(&read, probe, from, epoch);
        if let Some(place) = judged.place {
            batch.count(place, 1, frame.len() as u64);
        }
        let key = FlowKey::new(from.port.into(), &parsed);
        (judged.judgement, key.with_ct(judged.ct()))
    }

    /// Opens the connection of a frame.
    fn commit(&mut self, frame: &[u8], (from, far): (u16, u16), (epoch, number): (u16, u32)) {
        let read = read(1, &ParsedHeaders::parse(frame, frame.len()), frame, true);
        let mut batch = self.tracker.begin(&self.settings, self.now);
        let probe = batch.probe(&read);
        let rule = Rule {
            epoch,
            number,
            mark: 0,
        };
        let committed = batch.commit(&read, probe, (home(from), Some(far)), rule);
        if let CommitResult::Opened(place) = committed {
            batch.count(place, 1, frame.len() as u64);
        }
    }

    /// Judges a frame in blue, and lets it in if it is new.
    fn take(&mut self, frame: &[u8], ports: (u16, u16), rule: u32) -> Judgement {
        let (judgement, _) = self.judge(frame, ports.0, 1);
        if judgement == Judgement::New {
            self.commit(frame, ports, (1, rule));
        }
        judgement
    }

    /// Opens connections of UDP from this port number on.
    fn open(&mut self, ports: (u16, u16), sources: std::ops::Range<u16>) {
        for source in sources {
            let frame = PacketBuilder::new(mac(1), mac(2));
            let frame = frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(source, 53);
            assert_eq!(self.take(&frame.build(), ports, 0), Judgement::New);
        }
    }

    /// Follows a flush of control.
    pub(super) fn flush(&mut self, flush: &ConnectionFlush) {
        match flush {
            ConnectionFlush::All => self.table.flush(),
            ConnectionFlush::Segment(segment) => self.table.flush_zone(segment.0),
            ConnectionFlush::Named(names) => {
                let mut names = names
                    .iter()
                    .copied()
                    .map(ConnectionId::from_bits)
                    .peekable();
                while names.peek().is_some() {
                    self.walker.remove(&mut names, (&self.settings, self.now));
                }
            }
        }
    }
}

/// A port, as the home of the frame's station.
fn home(port: u16) -> Ingress {
    Ingress {
        port,
        is_home: true,
        ..Ingress::default()
    }
}

fn tcp(back: bool, flags: u16) -> Vec<u8> {
    let (from, to, ports) = match back {
        false => (1, 2, (40_000, 80)),
        true => (2, 1, (80, 40_000)),
    };
    let (seq, ack) = if back { (500, 101) } else { (100, 501) };
    let fields = TcpFields {
        src_port: ports.0,
        dst_port: ports.1,
        seq: if flags & SYN == 0 { seq + 1 } else { seq },
        ack: if flags & ACK == 0 { 0 } else { ack },
        flags,
        ..TcpFields::default()
    };
    let frame = PacketBuilder::new(mac(from), mac(to));
    frame
        .ipv4([10, 0, 0, from], [10, 0, 0, to])
        .tcp(fields)
        .build()
}

/// Two ports in blue with a stateful rule, and one in red. The switch has a table.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("vm2", "red"),
    ]);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    for (port, station) in [(0, 1), (1, 2)] {
        world.ask(&mut engine, key(port, station, 255));
    }
    let access = r#"{"lists": [{"name": "in", "direction": "to-guest", "ports": ["vm1"],
        "rules": [{"name": "web", "action": "allow-stateful"}]}]}"#;
    let access: AccessModel = serde_json::from_str(access).unwrap();
    let change = AccessChange::All(Box::new(access));
    engine.try_change(&asked(Change::Access(change))).unwrap();
    let table = TestTable::new(&mut engine);
    world.switch().tracked = Some(table);
    (world, engine)
}

/// Opens a TCP connection of three frames.
fn establish(world: &World) {
    let rule = RuleId::of("in", "web").number();
    let mut switch = world.switch();
    let table = switch.tracked.as_mut().unwrap();
    table.take(&tcp(false, SYN), (0, 1), rule);
    table.take(&tcp(true, SYN | ACK), (1, 0), 0);
    table.take(&tcp(false, ACK), (0, 1), 0);
}

fn filter(text: &str) -> ConnectionsSelection {
    ConnectionsSelection {
        filter: Some(text.to_owned()),
        ..ConnectionsSelection::default()
    }
}

fn of_port(name: &str) -> ConnectionsSelection {
    ConnectionsSelection {
        port: Some(name.to_owned()),
        ..ConnectionsSelection::default()
    }
}

fn of_segment(name: &str) -> ConnectionsSelection {
    ConnectionsSelection {
        segment: Some(name.to_owned()),
        ..ConnectionsSelection::default()
    }
}

fn count(engine: &mut Engine, of: &ConnectionsSelection) -> Result<u64, Problem> {
    let counted = engine.complete(async |e| connections::count(e, of).await)?;
    Ok(counted.count)
}

fn flush(engine: &mut Engine, of: &ConnectionsSelection) -> Result<ConnectionsFlush, Problem> {
    let by = Some(Requester { uid: 7, pid: None });
    let (reply, mut answer) = oneshot::channel();
    engine.complete(async |e| connections::flush(e, of, by, reply).await);
    answer.try_recv().unwrap()
}

/// The events of flushes and bounds so far.
fn events(engine: &Engine) -> Vec<EventKind> {
    let all = engine.events().kept().into_iter().map(|event| event.what);
    all.filter(|what| what.name().starts_with("connections_"))
        .collect()
}

#[test]
fn a_connection_has_both_directions_its_rule_and_its_times() {
    let (world, mut engine) = world();
    establish(&world);
    let all = ConnectionsFilter::default();
    let list = |engine: &mut Engine, filter: &ConnectionsFilter| {
        engine.complete(async |e| connections::list(e, filter).await)
    };
    let document = list(&mut engine, &all).unwrap();
    assert!(!document.more);
    assert_eq!(document.table.unwrap().max, 1024);
    let [one] = &document.connections[..] else {
        panic!("{document:?}");
    };
    assert_eq!(
        (&*one.protocol, one.state.as_deref()),
        ("tcp", Some("ESTABLISHED"))
    );
    assert_eq!(one.segment, "blue");
    let direction = |of: &api::v1::ConnectionDirection| {
        let port = of.port.clone().unwrap_or_default();
        format!(
            "{} > {} {port} {}",
            of.source, of.destination, of.traffic.packets
        )
    };
    assert_eq!(
        direction(&one.original),
        "10.0.0.1:40000 > 10.0.0.2:80 vm0 2"
    );
    assert_eq!(direction(&one.reply), "10.0.0.2:80 > 10.0.0.1:40000 vm1 1");
    let rule = (one.list.as_deref(), one.rule.as_deref());
    assert_eq!(rule, (Some("in"), Some("web")));
    assert_eq!(one.flags, [api::v1::ConnectionFlag::Assured]);
    assert!(
        one.expires_ms > 86_000_000 && one.age_ms < 1_000_000,
        "{one:?}"
    );
    let limited = |limit| ConnectionsFilter {
        limit: Some(limit),
        ..all.clone()
    };
    for limit in [0, 1025] {
        let refused = list(&mut engine, &limited(limit)).unwrap_err();
        assert_eq!(refused.to_string(), "limit: must be from 1 to 1024");
    }
    world.switch().tracked.as_mut().unwrap().open((0, 1), 1..4);
    let document = list(&mut engine, &limited(2)).unwrap();
    assert!(document.more && document.connections.len() == 2);
    assert!(!list(&mut engine, &limited(4)).unwrap().more);
}

#[test]
fn connections_are_selected_by_port_segment_and_filter() {
    let (world, mut engine) = world();
    establish(&world);
    world.switch().tracked.as_mut().unwrap().open((1, 0), 1..60);
    for (of, number) in [
        (ConnectionsSelection::default(), 60),
        (of_port("vm0"), 60),
        (of_port("vm2"), 0),
        (of_segment("blue"), 60),
        (of_segment("red"), 0),
        (filter("tcp and dst port 80"), 1),
        (filter("udp"), 59),
        (filter("src portrange 1-9"), 9),
    ] {
        assert_eq!(count(&mut engine, &of).unwrap(), number, "{of:?}");
    }
    for (of, problem) in [
        (of_port("vm9"), "port: there is no port `vm9`"),
        (of_segment("green"), "segment: there is no segment `green`"),
        (
            filter("vlan 5"),
            "filter: column 1: a frame has this, a connection has addresses, a protocol and ports",
        ),
    ] {
        assert_eq!(count(&mut engine, &of).unwrap_err().to_string(), problem);
        assert_eq!(flush(&mut engine, &of).unwrap_err().to_string(), problem);
    }
    assert_eq!(count(&mut engine, &of_port("vm0")).unwrap(), 60);
    assert_eq!(events(&engine), []);
}

#[test]
fn a_segment_is_flushed_at_once_and_others_in_parts() {
    let (world, mut engine) = world();
    let open = |world: &World| {
        let mut switch = world.switch();
        let table = switch.tracked.as_mut().unwrap();
        table.open((0, 1), 1..50);
    };
    establish(&world);
    open(&world);
    world.orders();
    let parts = ConnectionsFlush { done: false };
    assert_eq!(flush(&mut engine, &filter("udp")), Ok(parts));
    assert_eq!(world.orders(), ["flush 49 connections"]);
    assert_eq!(count(&mut engine, &of_port("vm0")), Ok(1));
    assert_eq!(flush(&mut engine, &of_port("vm1")), Ok(parts));
    assert_eq!(flush(&mut engine, &of_port("vm1")), Ok(parts));
    open(&world);
    let whole = ConnectionsFlush { done: true };
    assert_eq!(flush(&mut engine, &of_segment("red")), Ok(whole));
    assert_eq!(count(&mut engine, &of_port("vm0")), Ok(49));
    assert_eq!(flush(&mut engine, &of_segment("blue")), Ok(whole));
    assert_eq!(count(&mut engine, &of_port("vm0")), Ok(0));
    assert_eq!(
        flush(&mut engine, &ConnectionsSelection::default()),
        Ok(whole)
    );
    let flushed = |of: ConnectionsSelection, count| EventKind::ConnectionsFlushed {
        by: Some(Requester { uid: 7, pid: None }),
        segment: of.segment,
        port: of.port,
        filter: of.filter,
        count,
        reason: None,
    };
    let expected = [
        flushed(filter("udp"), Some(49)),
        flushed(of_port("vm1"), Some(1)),
        flushed(of_port("vm1"), Some(0)),
        flushed(of_segment("red"), None),
        flushed(of_segment("blue"), None),
        flushed(ConnectionsSelection::default(), None),
    ];
    assert_eq!(events(&engine), expected);
}

/// They have gone on without the tracker meanwhile.
#[test]
fn a_segment_that_is_tracked_again_has_forgotten_its_connections() {
    let (world, mut engine) = world();
    let mut change = |action: &str, world: &World| {
        let access = format!(
            r#"{{"lists": [{{"name": "in", "direction": "to-guest", "ports": ["vm1"],
            "rules": [{{"name": "web", "action": "{action}"}}]}}]}}"#
        );
        let access: AccessModel = serde_json::from_str(&access).unwrap();
        let change = AccessChange::All(Box::new(access));
        engine.try_change(&asked(Change::Access(change))).unwrap();
        let orders = world.orders();
        orders
            .iter()
            .filter(|order| order.starts_with("flush"))
            .count()
    };
    world.orders();
    establish(&world);
    assert_eq!(change("allow", &world), 0);
    assert_eq!(change("allow-stateful", &world), 1);
    establish(&world);
    assert_eq!(change("drop", &world), 0);
}

#[test]
fn a_flush_that_fails_says_so() {
    let (world, mut engine) = world();
    establish(&world);
    for of in [of_port("vm0"), of_segment("blue")] {
        world.switch().refuse = Some(("flush", "no"));
        let flushed = flush(&mut engine, &of);
        assert_eq!(flushed.is_ok(), of.port.is_some());
    }
    let reasons = events(&engine).into_iter().map(|what| match what {
        EventKind::ConnectionsFlushed { count, reason, .. } => (count, reason),
        other => panic!("{other:?}"),
    });
    let [parts, whole] = reasons.collect::<Vec<_>>().try_into().unwrap();
    assert!(parts.0 == Some(0) && parts.1.is_some());
    assert!(whole.0.is_none() && whole.1.is_some());
    assert_eq!(count(&mut engine, &of_port("vm0")), Ok(1));
}

#[test]
fn without_a_table_there_are_no_connections() {
    let (world, mut engine) = world();
    engine.connections = ConnectionTable::default();
    let all = ConnectionsFilter::default();
    let document = engine.complete(async |e| connections::list(e, &all).await);
    assert_eq!(document, Ok(api::v1::ConnectionsDocument::default()));
    assert_eq!(count(&mut engine, &filter("tcp")), Ok(0));
    assert_eq!(
        flush(&mut engine, &filter("tcp")),
        Ok(ConnectionsFlush { done: false })
    );
    let status = engine.status().unwrap();
    assert!(status.ports.iter().all(|port| port.connections.is_none()));
    world.seconds(&mut engine, 2);
}

#[test]
fn a_port_that_reaches_its_bound_has_one_event_until_it_was_below() {
    let (world, mut engine) = world();
    let limited = |connections| PortLimits {
        guest: true,
        connections,
    };
    world
        .switch()
        .tracked
        .as_mut()
        .unwrap()
        .table
        .set_limits(0, limited(Some(16)));
    let open = |sources| {
        world
            .switch()
            .tracked
            .as_mut()
            .unwrap()
            .open((0, 1), sources)
    };
    open(0..15);
    world.seconds(&mut engine, 3);
    assert_eq!(events(&engine), []);
    open(15..16);
    world.seconds(&mut engine, 3);
    let full = EventKind::ConnectionsFull {
        port: "vm0".to_owned(),
        opener: api::v1::ConnectionOpener::Opened,
        bound: ConnectionLimit::Limit,
        limit: 16,
    };
    assert_eq!(events(&engine), std::slice::from_ref(&full));
    assert_eq!(
        api::v1::event_text::message(&full),
        "connections opened by port vm0 have reached 16, its limit"
    );
    let status = engine.status().unwrap().ports.remove(0);
    let opened = status.connections.unwrap().opened;
    assert_eq!(
        (opened.connections, opened.unreplied, opened.limit),
        (16, 16, 16)
    );
    assert_eq!(opened.reached(), Some((ConnectionLimit::Limit, 16)));
    // Further ones take the places of unanswered ones, so it stays at the bound.
    open(16..40);
    world.seconds(&mut engine, 3);
    assert_eq!(events(&engine).len(), 1);
    let facts = engine.facts().unwrap();
    let page = crate::metrics::page(&facts, crate::metrics::Format::accepted(""));
    for line in [
        "lasthop_connection_table_max 1024\n",
        "lasthop_connection_table_used 16\n",
        "lasthop_connections{port=\"vm0\",direction=\"opened\",state=\"unreplied\"} 16\n",
        "lasthop_connections_limit{port=\"vm0\",direction=\"opened\"} 16\n",
        "lasthop_connections_full{port=\"vm0\",direction=\"opened\"} 1\n",
        "lasthop_connections_new_total{port=\"vm0\"} 40\n",
        "lasthop_connections_evicted_total{port=\"vm0\",reason=\"unreplied\"} 24\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    flush(&mut engine, &filter("udp")).unwrap();
    world.seconds(&mut engine, 2);
    assert_eq!(events(&engine).len(), 2, "and the flush");
    open(40..43);
    world.seconds(&mut engine, 2);
    open(43..80);
    world.seconds(&mut engine, 2);
    assert_eq!(events(&engine)[2..], [full]);
}

#[test]
fn a_trace_looks_the_connection_up_and_changes_nothing() {
    let (world, mut engine) = world();
    establish(&world);
    let mut said = |port: &str, frame: &str| {
        let request = TraceRequest {
            port: port.to_owned(),
            expression: Some(frame.to_owned()),
            ..TraceRequest::default()
        };
        let trace = engine.trace(&request).unwrap().traces.remove(0);
        let step = trace
            .steps
            .into_iter()
            .find(|step| step.stage.as_str() == "connection");
        step.unwrap().text
    };
    let there = "ether 52:54:00:00:00:01 > 52:54:00:00:00:02";
    let back = "ether 52:54:00:00:00:02 > 52:54:00:00:00:01";
    let known = said(
        "vm0",
        &format!("{there} tcp 10.0.0.1:40000 > 10.0.0.2:80 ack"),
    );
    assert!(
        known.starts_with("known (ESTABLISHED, let in by rule web of list in "),
        "{known}"
    );
    // The program has another epoch than the connection.
    let anew = "from the side that opened it, and decided as its first frame would be now: the \
                rules have changed since it was let in";
    assert!(known.ends_with(anew), "{known}");
    let known = said(
        "vm1",
        &format!("{back} tcp 10.0.0.2:80 > 10.0.0.1:40000 ack"),
    );
    assert!(known.contains("from the answering side"), "{known}");
    let new = said("vm0", &format!("{there} udp 10.0.0.1:9 > 10.0.0.2:53"));
    assert_eq!(new, "new");
    let invalid = said(
        "vm0",
        &format!("{there} tcp 10.0.0.1:41000 > 10.0.0.2:80 syn fin"),
    );
    assert!(
        invalid.starts_with("invalid, as no stack sends these TCP flags"),
        "{invalid}"
    );
    let arp = said(
        "vm0",
        &format!("{there} arp who-has 10.0.0.2 tell 10.0.0.1"),
    );
    assert!(
        arp.starts_with("not tracked, as it is no IP packet"),
        "{arp}"
    );
    assert_eq!(count(&mut engine, &ConnectionsSelection::default()), Ok(1));
}

/// The access lists of a section of the page about them.
fn recipe(heading: &str) -> AccessModel {
    let page = include_str!("../../../../../../docs/user/access-lists.md");
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, text) = section.split_once("```toml\n").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    let head = "[switch]\nname = \"host1\"\n";
    let parsed = config::parse(
        &format!("{head}{text}"),
        Path::new("web.toml"),
        Path::new("/run"),
    )
    .unwrap();
    AccessModel::clone(&parsed.access)
}

#[test]
fn a_web_server_by_the_recipe_is_reached_by_its_ports_and_gets_its_answers() {
    let mut world = World::new(vec![port("vm1", "blue"), port("vm2", "blue")]);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    for (port, station) in [(0, 1), (1, 2)] {
        world.ask(&mut engine, key(port, station, 255));
    }
    let access = AccessChange::All(Box::new(recipe("Recipe: a web server with state")));
    engine.try_change(&asked(Change::Access(access))).unwrap();
    let mut table = TestTable::new(&mut engine);
    let epoch = world.switch().program.tracks(SegmentId(1)).unwrap();
    let mut passes = |to_server: bool, frame: PacketBuilder| {
        let ports = if to_server { (0, 1) } else { (1, 0) };
        let frame = frame.build();
        let (_, key) = table.judge(&frame, ports.0, epoch);
        let (action, change) = answered(&world, &mut engine, &upcall(7, key));
        if let ConnectionChange::Commit { .. } = change {
            table.commit(&frame, ports, (epoch, 0));
        }
        !matches!(action, Action::Drop(_))
    };
    let to_server = || PacketBuilder::new(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let from_server = || PacketBuilder::new(mac(2), mac(1)).ipv4([10, 0, 0, 2], [10, 0, 0, 1]);
    let segment = |src_port, dst_port, flags, (seq, ack)| TcpFields {
        src_port,
        dst_port,
        seq,
        ack,
        flags,
        ..TcpFields::default()
    };
    // In by 80 and 443, with what follows in both directions.
    for server in [80, 443] {
        let back = segment(server, 4000, SYN | ACK, (500, 101));
        assert!(!passes(
            true,
            to_server().tcp(segment(4000, 22, SYN, (100, 0)))
        ));
        assert!(passes(
            true,
            to_server().tcp(segment(4000, server, SYN, (100, 0)))
        ));
        assert!(passes(false, from_server().tcp(back)));
        assert!(passes(
            true,
            to_server().tcp(segment(4000, server, ACK, (101, 501)))
        ));
    }
    // Out all, answers back.
    assert!(passes(
        false,
        from_server().tcp(segment(5000, 25, SYN, (100, 0)))
    ));
    assert!(passes(
        true,
        to_server().tcp(segment(25, 5000, SYN | ACK, (500, 101)))
    ));
    assert!(passes(false, from_server().udp(5000, 53)));
    assert!(passes(true, to_server().udp(53, 5000)));
    assert!(passes(false, from_server().echo_request(7, 1)));
    assert!(passes(true, to_server().icmp(0, 0, [0, 7, 0, 1])));
    // Nothing else, and no answer to what was not asked.
    assert!(!passes(true, to_server().udp(53, 5001)));
    assert!(!passes(
        true,
        to_server().tcp(segment(25, 5001, SYN | ACK, (500, 101)))
    ));
    assert!(!passes(true, to_server().echo_request(8, 1)));
    assert!(!passes(true, to_server().icmp(0, 0, [0, 9, 0, 1])));
    assert!(passes(
        true,
        PacketBuilder::new(mac(1), mac(2)).arp_request([10, 0, 0, 1], [10, 0, 0, 2])
    ));
}
