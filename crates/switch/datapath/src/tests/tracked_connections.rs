//! Connections of tracked ports: judged before the flow look-up, committed with the action.

use conntrack::reference;
use conntrack::table::{Account, Kind, Layout, MIN_CAPACITY, PortLimits, Walk};
use conntrack::{Ingress, Judgement, Settings, Table};
use ipc::limits::{Limit, Limits, Rate};
use ipc::records::{Answer, StaleFlows};
use ipc::switching::{ConnectionFlush, MAX_FLUSHED};
use policy::port_security::{Addresses, PortSecurity};
use policy::{Action, ConnectionChange, DEFAULT_CLASS};
use port::{DropReason, Offload, PortId};
use proptest::prelude::*;
use testkit::packets::{Flow, echo_reply, echo_request, mac, tcp_super, udp};
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};
use wire::flow::CtState;
use wire::packet::ParsedHeaders;
use wire::tcp::{ACK, FIN, RST, SYN};

use super::bench::{BLUE, Bench};
use crate::forward::tracking::Tracking;

mod plain_frames;
mod ports;

/// Port 1 may open connections, and gets nothing but their frames.
const OUT: &str = "
[[acl_default]]
segment = 'blue'
from_guest = 'deny'
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'all'
action = 'allow-stateful'
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p1']
[[acl.rule]]
name = 'rest'
action = 'drop'
";

/// Port 1 gets nothing but the frames of its connections; others send what they like.
const IN: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'all'
action = 'allow-stateful'
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p1']
[[acl.rule]]
name = 'rest'
action = 'drop'
";

/// Nothing may be sent by port 1 either.
const NEITHER: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'all'
action = 'drop'
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p1']
[[acl.rule]]
name = 'rest'
action = 'drop'
[[acl]]
name = 'other'
direction = 'from-guest'
ports = ['p3']
[[acl.rule]]
name = 'udp'
action = 'allow-stateful'
";

/// Ports 1 and 2 may open connections.
const BOTH_OUT: &str = "
[[acl_default]]
segment = 'blue'
from_guest = 'deny'
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1', 'p2']
[[acl.rule]]
name = 'all'
action = 'allow-stateful'
";

/// Port 2 alone may.
const SECOND_OUT: &str = "
[[acl_default]]
segment = 'blue'
from_guest = 'deny'
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p2']
[[acl.rule]]
name = 'all'
action = 'allow-stateful'
";

/// Ports 1 and 2 may send anything.
const PLAIN: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1', 'p2']
[[acl.rule]]
name = 'all'
action = 'allow'
";

/// Another port has a stateful rule.
const ELSEWHERE: &str = "
[[acl]]
name = 'elsewhere'
direction = 'from-guest'
ports = ['p3']
[[acl.rule]]
name = 'all'
action = 'allow-stateful'
";

/// Port 1 may open connections to one address, and all else that it did before is denied.
const OTHER_OUT: &str = "
[[acl_default]]
segment = 'blue'
from_guest = 'deny'
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'udp'
action = 'allow-stateful'
destination = ['10.0.0.2']
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p1']
[[acl.rule]]
name = 'rest'
action = 'drop'
";

const NEW: CtState = CtState::TRACKED.union(CtState::NEW);
const EST: CtState = CtState::TRACKED.union(CtState::ESTABLISHED);
const INVALID: CtState = CtState::TRACKED.union(CtState::INVALID);

/// Workers of one switch, a bench each: both have all ports, and share the table.
struct Workers {
    table: Table,
    benches: [Bench; 2],
    /// Whether the last frame waited for control.
    waited: bool,
}

impl Workers {
    fn new(lists: &str) -> Self {
        Self::over(Table::heap(Layout::new(MIN_CAPACITY), 7), lists, 0)
    }

    /// `grace`: time in which new tables and guests count as new, in milliseconds.
    fn over(table: Table, lists: &str, grace: u32) -> Self {
        for port in 1..=3 {
            let limits = PortLimits {
                guest: true,
                connections: None,
            };
            table.set_limits(port, limits);
        }
        let bench = || {
            let mut bench = Bench::with_stations();
            let tracking =
                Tracking::new(table.clone(), Settings::default(), grace).expect("few threads");
            assert!(bench.switch.set_tracking(Some(tracking)));
            bench.set_access(lists);
            bench
        };
        let benches = [bench(), bench()];
        Self {
            table,
            benches,
            waited: false,
        }
    }

    /// The worker of a port: each has one of its own as long as there are two.
    fn of(&mut self, port: u32) -> &mut Bench {
        &mut self.benches[usize::from(port != 1)]
    }

    /// Sends a frame with an offload, and lets control decide as long as it is asked. Returns its
    /// state, and how many frames each of ports 1 to 3 gets.
    fn send_with(&mut self, port: u32, frame: &[u8], offload: Offload) -> (CtState, [usize; 3]) {
        let bench = self.of(port);
        bench.port(port).push(frame, offload);
        bench.serve(port);
        let ct = bench.ct();
        let mut waited = false;
        while bench.decide() > 0 {
            waited = true;
            let (switch, ring) = (&mut bench.switch, &mut bench.ring);
            switch.send_unsent_upcalls(ring);
        }
        let delivered = [1, 2, 3].map(|id| bench.port(id).delivered().len());
        self.waited = waited;
        (ct, delivered)
    }

    fn send(&mut self, port: u32, frame: &[u8]) -> (CtState, [usize; 3]) {
        self.send_with(port, frame, Offload::default())
    }

    fn wait(&mut self, ms: u64) {
        self.benches.iter_mut().for_each(|bench| bench.now += ms);
    }

    fn set_access(&mut self, lists: &str) {
        self.benches
            .iter_mut()
            .for_each(|bench| bench.set_access(lists));
    }
}

impl Bench {
    /// Returns the state of the last frame that was looked up.
    fn ct(&self) -> CtState {
        let flow_batch = self.switch.lookup.flow_batches.last();
        flow_batch.map_or(CtState::empty(), |flow_batch| flow_batch.key.ct().state())
    }
}

/// Of one flow in both directions: the question is that of the lower number.
fn datagram(a: u8, b: u8) -> Vec<u8> {
    let flow = if a < b {
        Flow::v4(a, b)
    } else {
        Flow::v4(b, a).reversed()
    };
    udp(&flow, &[7; 58])
}

fn segment(flow: &Flow, (seq, ack): (u32, u32), flags: u16, payload: &[u8]) -> Vec<u8> {
    let fields = TcpFields {
        src_port: flow.src_port,
        dst_port: flow.dst_port,
        seq,
        ack,
        flags,
        options: Vec::new(),
    };
    let frame = PacketBuilder::new(MacAddr(flow.src_mac), MacAddr(flow.dst_mac));
    let frame = match (flow.src, flow.dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => frame.ipv4(src, dst),
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => frame.ipv6(src, dst),
        _ => unreachable!("one family"),
    };
    frame.tcp(fields).payload(payload).build()
}

/// Opens a TCP connection of port 1 to port 2; their next numbers are 101 and 501.
fn handshake(workers: &mut Workers, flow: &Flow) {
    let back = flow.reversed();
    assert_eq!(
        workers.send(1, &segment(flow, (100, 0), SYN, &[])),
        (NEW, [0, 1, 0])
    );
    let answer = segment(&back, (500, 101), SYN | ACK, &[]);
    assert_eq!(workers.send(2, &answer), (EST | CtState::REPLY, [1, 0, 0]));
    let last = segment(flow, (101, 501), ACK, &[]);
    assert_eq!(workers.send(1, &last), (EST, [0, 1, 0]));
}

#[test]
fn a_connection_passes_both_ways_and_nothing_else_does() {
    let mut workers = Workers::new(OUT);
    // An answer before its question.
    assert_eq!(workers.send(2, &datagram(2, 1)), (NEW, [0; 3]));
    assert_eq!(workers.table.len(), 0);
    assert_eq!(workers.send(1, &datagram(1, 2)), (NEW, [0, 1, 0]));
    assert_eq!(workers.table.len(), 1);
    assert_eq!(workers.send(1, &datagram(1, 2)), (EST, [0, 1, 0]));
    for _ in 0..2 {
        assert_eq!(
            workers.send(2, &datagram(2, 1)),
            (EST | CtState::REPLY, [1, 0, 0])
        );
    }
    let other = udp(&Flow::v4(2, 1).ports(5, 6), &[7; 58]);
    assert_eq!(workers.send(2, &other), (NEW, [0; 3]));
    // The tuple of the answer from another port.
    let stolen = Flow {
        src_mac: mac(3),
        ..Flow::v4(1, 2).reversed()
    };
    assert_eq!(workers.send(3, &udp(&stolen, &[7; 58])), (NEW, [0; 3]));
    assert_eq!(workers.table.len(), 1);
}

#[test]
fn control_flushes_connections_by_name_segment_or_all() {
    let (table, reader) = Table::heap_with_reader(Layout::new(MIN_CAPACITY), 7);
    let mut workers = Workers::over(table, OUT, 0);
    let flow = |n: u16| Flow::v4(1, 2).ports(1000 + n, 53);
    let open = |workers: &mut Workers| {
        for n in 0..50 {
            let sent = workers.send(1, &udp(&flow(n), &[7; 58]));
            assert_eq!(sent, (NEW, [0, 1, 0]), "{n}");
        }
    };
    open(&mut workers);
    let (settings, mut names) = (Settings::default(), Vec::new());
    let time = workers.of(1).switch.tracking().unwrap().1;
    let part = reader.read(
        &mut Walk::default(),
        10_000,
        (&settings, time),
        |name, one| {
            if one.tuple.src_port() < 1040 {
                names.push(name.bits());
            }
        },
    );
    assert!(part.finished && names.len() == 40);
    let flush = |workers: &mut Workers, flush| {
        let (tracking, now) = workers.of(1).switch.tracking().unwrap();
        tracking.flush(&flush, now)
    };
    assert_eq!(flush(&mut workers, ConnectionFlush::Named(names)), Ok(()));
    assert_eq!(workers.table.len(), 10);
    let answered = |workers: &mut Workers, n| {
        let (_, delivered) = workers.send(2, &udp(&flow(n).reversed(), &[7; 58]));
        delivered == [1, 0, 0]
    };
    for n in 0..50 {
        assert_eq!(answered(&mut workers, n), n >= 40, "{n}");
    }
    for whole in [ConnectionFlush::Segment(BLUE), ConnectionFlush::All] {
        assert!(answered(&mut workers, 49));
        assert_eq!(flush(&mut workers, whole), Ok(()));
        for n in 0..50 {
            assert!(!answered(&mut workers, n), "{n}");
        }
        open(&mut workers);
    }
    let other = ConnectionFlush::Segment(policy::SegmentId(99));
    assert_eq!(flush(&mut workers, other), Ok(()));
    assert!(answered(&mut workers, 49));
    let many = ConnectionFlush::Named(vec![0; MAX_FLUSHED + 1]);
    assert!(flush(&mut workers, many).is_err());
}

#[test]
fn further_connections_between_two_stations_cost_no_upcall() {
    let mut workers = Workers::new(OUT);
    let count = |workers: &Workers| {
        let upcalls = workers
            .benches
            .iter()
            .map(|bench| bench.switch.figures().upcalls);
        upcalls.sum::<u64>()
    };
    let exchange = |workers: &mut Workers, n: u16| {
        let flow = Flow::v4(1, 2).ports(1000 + n, 53);
        assert_eq!(workers.send(1, &udp(&flow, &[7; 58])), (NEW, [0, 1, 0]));
        let answer = udp(&flow.reversed(), &[7; 58]);
        assert_eq!(workers.send(2, &answer), (EST | CtState::REPLY, [1, 0, 0]));
    };
    exchange(&mut workers, 0);
    let before = count(&workers);
    (1..40).for_each(|n| exchange(&mut workers, n));
    assert_eq!((count(&workers), workers.table.len()), (before, 40));
}

#[test]
fn frames_of_different_connections_with_one_key_are_one_flow_batch() {
    let mut workers = Workers::new(OUT);
    let flows = [1, 2, 3].map(|n| Flow::v4(1, 2).ports(n, 53));
    for flow in &flows {
        workers.send(1, &udp(flow, &[7; 58]));
        workers.send(1, &udp(flow, &[7; 58]));
    }
    let bench = workers.of(1);
    for flow in flows.iter().chain(&flows) {
        bench.port(1).push(&udp(flow, &[7; 58]), Offload::default());
    }
    bench.serve(1);
    let batches = &bench.switch.lookup.flow_batches;
    assert_eq!((batches.len(), batches[0].frames.len()), (1, 6));
    let key = batches[0].key;
    assert_eq!((key.ip_proto(), key.src_ip(), key.l4_src()), (0, 0, 0));
    assert_eq!(bench.port(2).delivered().len(), 6);
}

#[test]
fn a_handshake_a_reset_and_a_close() {
    for flow in [Flow::v4(1, 2), Flow::v6(1, 2), Flow::v4(1, 2).ports(7, 80)] {
        let mut workers = Workers::new(OUT);
        let back = flow.reversed();
        handshake(&mut workers, &flow);
        // Beyond any window.
        let beyond = segment(&flow, (0x7000_0000, 501), ACK, &[1; 10]);
        assert_eq!(workers.send(1, &beyond), (INVALID, [0; 3]));
        assert_eq!(workers.of(1).dropped(1, DropReason::ConnectionInvalid), 1);
        // A guessed reset ends nothing.
        let guessed = segment(&back, (0x6000_0000, 0), RST, &[]);
        assert_eq!(workers.send(2, &guessed).1, [0; 3]);
        let data = segment(&flow, (101, 501), ACK, &[1; 10]);
        assert_eq!(workers.send(1, &data), (EST, [0, 1, 0]));
        // FINs of both sides, and their acknowledgements.
        let fin = segment(&flow, (111, 501), FIN | ACK, &[]);
        assert_eq!(workers.send(1, &fin), (EST, [0, 1, 0]));
        let fin = segment(&back, (501, 112), FIN | ACK, &[]);
        assert_eq!(workers.send(2, &fin), (EST | CtState::REPLY, [1, 0, 0]));
        let last = segment(&flow, (112, 502), ACK, &[]);
        assert_eq!(workers.send(1, &last), (EST, [0, 1, 0]));
        // The next one in its place.
        let syn = segment(&flow, (9_000, 0), SYN, &[]);
        assert_eq!(workers.send(1, &syn), (NEW, [0, 1, 0]));
        assert_eq!(workers.table.len(), 1);
    }
}

#[test]
fn a_refused_connection_is_forgotten_when_its_reset_is_delivered() {
    let mut workers = Workers::new(OUT);
    for n in 0..2 {
        let flow = Flow::v4(1, 2).ports(n, 80);
        assert_eq!(
            workers.send(1, &segment(&flow, (100, 0), SYN, &[])).1,
            [0, 1, 0]
        );
        let refusal = segment(&flow.reversed(), (0, 101), RST | ACK, &[]);
        // The first one waits for control, and is judged again.
        assert_eq!(workers.send(2, &refusal), (EST | CtState::REPLY, [1, 0, 0]));
        assert_eq!(workers.table.len(), 0);
        assert_eq!(workers.send(2, &refusal), (INVALID, [0; 3]));
    }
}

#[test]
fn a_change_of_rules_ends_what_they_no_longer_allow() {
    let mut workers = Workers::new(OUT);
    let far = Flow::v4(1, 3);
    for flow in [Flow::v4(1, 2), far] {
        let to = if flow == far { 3 } else { 2 };
        workers.send(1, &udp(&flow, &[7; 58]));
        assert_eq!(
            workers.send(to, &udp(&flow.reversed(), &[7; 58])).1,
            [1, 0, 0]
        );
    }
    workers.set_access(OTHER_OUT);
    // From the answering side, too.
    let stale = EST | CtState::STALE;
    assert_eq!(
        workers.send(2, &datagram(2, 1)),
        (stale | CtState::REPLY, [1, 0, 0])
    );
    assert_eq!(
        workers.send(2, &datagram(2, 1)),
        (EST | CtState::REPLY, [1, 0, 0])
    );
    assert_eq!(workers.send(1, &datagram(1, 2)), (EST, [0, 1, 0]));
    assert_eq!(
        workers.send(3, &datagram(3, 1)),
        (stale | CtState::REPLY, [0; 3])
    );
    workers.set_access(NEITHER);
    assert_eq!(workers.send(1, &datagram(1, 2)), (stale, [0; 3]));
    // They continue when they are let in again.
    workers.set_access(OUT);
    for port in [2, 3] {
        let answer = workers.send(port, &datagram(port as u8, 1));
        assert_eq!(answer, (stale | CtState::REPLY, [1, 0, 0]));
    }
    assert_eq!(workers.table.len(), 2);
}

/// Else a segment of the side that may open connections would open it anew.
#[test]
fn a_change_of_rules_ends_tcp_whichever_side_speaks() {
    let mut workers = Workers::new(BOTH_OUT);
    let (flow, stale) = (Flow::v4(1, 2).ports(9, 80), EST | CtState::STALE);
    handshake(&mut workers, &flow);
    let question = segment(&flow, (101, 501), ACK, &[1; 10]);
    let answer = segment(&flow.reversed(), (501, 111), ACK, &[1; 10]);
    assert_eq!(workers.send(1, &question), (EST, [0, 1, 0]));
    assert_eq!(workers.send(2, &answer), (EST | CtState::REPLY, [1, 0, 0]));
    workers.set_access(SECOND_OUT);
    for _ in 0..3 {
        assert_eq!(workers.send(1, &question), (stale, [0; 3]));
        assert_eq!(workers.send(2, &answer), (stale | CtState::REPLY, [0; 3]));
    }
    let syn = segment(&flow, (9_000, 0), SYN, &[]);
    assert_eq!(workers.send(1, &syn), (NEW, [0; 3]));
    // A reset that is dropped ends nothing: its receiver continues.
    let reset = segment(&flow, (111, 511), RST | ACK, &[]);
    assert_eq!(workers.send(1, &reset), (stale, [0; 3]));
    assert_eq!(workers.send(2, &answer), (stale | CtState::REPLY, [0; 3]));
    workers.set_access(BOTH_OUT);
    assert_eq!(
        workers.send(2, &answer),
        (stale | CtState::REPLY, [1, 0, 0])
    );
    assert_eq!(workers.send(1, &question), (EST, [0, 1, 0]));
    workers.set_access(SECOND_OUT);
    assert_eq!(workers.send(1, &question), (stale, [0; 3]));
    // A connection that rules allow opens between the same ends at once.
    let flow = flow.reversed();
    let syn = segment(&flow, (700, 0), SYN, &[]);
    assert_eq!(workers.send(2, &syn), (NEW, [1, 0, 0]));
    let accepted = segment(&flow.reversed(), (800, 701), SYN | ACK, &[]);
    assert_eq!(
        workers.send(1, &accepted),
        (EST | CtState::REPLY, [0, 1, 0])
    );
    assert_eq!(workers.table.len(), 1);
}

/// Both sides pass by rules without state meanwhile: the connection continues when a stateful rule
/// comes back.
#[test]
fn a_rule_that_becomes_stateless_ends_nothing() {
    let mut workers = Workers::new(BOTH_OUT);
    let (flow, stale) = (Flow::v4(1, 2).ports(9, 80), EST | CtState::STALE);
    handshake(&mut workers, &flow);
    workers.set_access(&format!("{PLAIN}{ELSEWHERE}"));
    let mut seq = (101, 501);
    let mut talk = |workers: &mut Workers, states: [CtState; 2]| {
        // Far beyond any window.
        for _ in 0..200 {
            let question = segment(&flow, seq, ACK, &[1; 1000]);
            assert_eq!(workers.send(1, &question), (states[0], [0, 1, 0]));
            seq.0 += 1000;
            let answer = segment(&flow.reversed(), (seq.1, seq.0), ACK, &[1; 10]);
            assert_eq!(workers.send(2, &answer), (states[1], [1, 0, 0]));
            seq.1 += 10;
        }
    };
    talk(&mut workers, [stale, stale | CtState::REPLY]);
    workers.set_access(BOTH_OUT);
    let again = segment(&flow, (101, 501), ACK, &[1; 10]);
    assert_eq!(workers.send(1, &again), (stale, [0, 1, 0]));
    talk(&mut workers, [EST, EST | CtState::REPLY]);
}

/// Such an answer would have the connection pass without rules from then on.
#[test]
fn an_answer_by_the_rules_before_lets_no_connection_in() {
    let mut workers = Workers::new(OUT);
    let bench = workers.of(1);
    bench.port(1).push(&datagram(1, 2), Offload::default());
    bench.serve(1);
    let (upcall, before) = (bench.ring.upcalls.remove(0).id, bench.program.epoch());
    bench.set_access(NEITHER);
    let answer = Answer::Once {
        upcall,
        action: Action::to(2),
        class: DEFAULT_CLASS,
        connection: ConnectionChange::Commit {
            mark: 0,
            reply: false,
        },
        except: Vec::new(),
        rules: Vec::new(),
        epoch: before,
    };
    bench.switch.answer(answer, bench.now);
    let (switch, ring) = (&mut bench.switch, &mut bench.ring);
    switch.send_unsent_upcalls(ring);
    assert_eq!(bench.decide(), 1, "control is asked again");
    assert_eq!(bench.port(2).delivered().len(), 0);
    assert_eq!(workers.table.len(), 0);
}

#[test]
fn frames_without_room_for_their_connection_are_dropped() {
    let mut workers = Workers::new(OUT);
    let limits = PortLimits {
        guest: true,
        connections: Some(2),
    };
    workers.table.set_limits(1, limits);
    let flows = [0, 1, 2, 3].map(|n| Flow::v4(1, 2).ports(n, 53));
    let all = |workers: &mut Workers| {
        flows.map(|flow| {
            let (_, [_, delivered, _]) = workers.send(1, &udp(&flow, &[7; 58]));
            delivered
        })
    };
    // By a pending frame's answer, then in batches of one, then in one batch.
    let delivered = all(&mut workers);
    let account = Account {
        port: 1,
        kind: Kind::Opened,
    };
    assert!(workers.table.counts(account).all <= 2);
    let lost = workers.of(1).dropped(1, DropReason::ConnectionFull);
    assert_eq!(delivered.iter().sum::<usize>() as u64 + lost, 4);
}

#[test]
fn a_batch_that_comes_again_is_judged_as_before() {
    let mut workers = Workers::new(OUT);
    let flow = Flow::v4(1, 2).ports(9, 80);
    handshake(&mut workers, &flow);
    let bench = workers.of(1);
    let data = |n: u32| segment(&flow, (101 + 10 * n, 501), ACK, &[1; 10]);
    for _ in 0..2 {
        (0..4).for_each(|n| bench.port(1).push(&data(n), Offload::default()));
        bench.serve(1);
        assert_eq!(bench.ct(), EST);
        assert_eq!(bench.switch.lookup.flow_batches.len(), 1);
    }
    assert_eq!(bench.port(2).delivered().len(), 8);
}

#[test]
fn offloaded_frames_tags_and_queries_are_tracked() {
    let mut workers = Workers::new(OUT);
    let flow = Flow::v4(1, 2).ports(9, 80);
    handshake(&mut workers, &flow);
    let (frame, header) = tcp_super(&flow, 101, &[1; 4000], 1000);
    let offload = super::bench::offload(&header);
    let accepts = crate::ports::port::Accepts::default();
    workers.of(1).port(2).set_accepts(accepts);
    // The segment counts with its whole payload: an acknowledgement of its end is legal. It is one
    // byte more than an unscaled window allows only if it is longer.
    let fields_ack = frame.len();
    assert!(fields_ack > 4000);
    let (state, _) = workers.send_with(1, &frame, offload);
    assert_eq!(state, EST);
    let ack = segment(&flow.reversed(), (501, 4101), ACK, &[]);
    assert_eq!(workers.send(2, &ack), (EST | CtState::REPLY, [1, 0, 0]));
    let early = segment(&flow.reversed(), (501, 4102), ACK, &[]);
    assert_eq!(workers.send(2, &early), (INVALID, [0; 3]));

    let request = echo_request(&Flow::v4(1, 2), 7, 1, &[1; 40]);
    assert_eq!(workers.send(1, &request), (NEW, [0, 1, 0]));
    let reply = echo_reply(&request).expect("a request");
    assert_eq!(workers.send(2, &reply), (EST | CtState::REPLY, [1, 0, 0]));
    assert_eq!(
        workers.send(2, &echo_request(&Flow::v4(2, 1), 7, 1, &[1; 40])),
        (NEW, [0; 3])
    );
}

#[test]
fn later_fragments_have_the_state_of_the_first_one() {
    let mut workers = Workers::new(OUT);
    let fragment = |offset: u16, more: bool, id: u16| {
        let frame = PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)));
        let frame = frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ip_id(id);
        let frame = frame.fragment(offset, more);
        match offset {
            0 => frame.udp(1000, 53).payload(&[1; 56]).build(),
            _ => frame.protocol(17).payload(&[1; 64]).build(),
        }
    };
    let (state, delivered) = workers.send(1, &fragment(8, false, 1));
    assert_eq!((state, delivered), (CtState::empty(), [0; 3]));
    assert_eq!(workers.of(1).dropped(1, DropReason::FragmentEarly), 1);
    assert_eq!(workers.send(1, &fragment(0, true, 2)), (NEW, [0, 1, 0]));
    assert_eq!(workers.send(1, &fragment(8, false, 2)), (EST, [0, 1, 0]));
    assert_eq!(workers.table.len(), 1);
}

#[test]
fn ports_with_restricted_addresses_are_looked_at_above_ethernet() {
    let mut workers = Workers::new(OUT);
    let security = PortSecurity {
        addresses: Addresses::Only(vec!["10.0.0.1/32".parse().expect("a network")]),
        ..PortSecurity::default()
    };
    for bench in &mut workers.benches {
        bench.set_port_security(1, security.clone());
    }
    workers.send(1, &datagram(1, 2));
    assert_eq!(workers.send(1, &datagram(1, 2)), (EST, [0, 1, 0]));
    let key = workers.of(1).switch.lookup.flow_batches[0].key;
    assert_eq!(
        (key.ip_proto(), key.l4_dst()),
        (17, Flow::v4(1, 2).dst_port)
    );
}

#[test]
fn an_idle_connection_is_over() {
    let mut workers = Workers::new(OUT);
    workers.send(1, &datagram(1, 2));
    workers.wait(31_000);
    assert_eq!(workers.send(2, &datagram(2, 1)), (NEW, [0; 3]));
}

fn random_frame() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let flags = prop_oneof![
        2 => Just(SYN), 2 => Just(SYN | ACK), 8 => Just(ACK), 2 => Just(FIN | ACK),
        1 => Just(RST), 1 => Just(RST | ACK), 1 => 0..0x40_u16,
    ];
    let near = || prop_oneof![8 => 1000..1004_u32, 1 => any::<u32>()];
    let form = (any::<bool>(), any::<bool>(), 0..2_u16, 0..4_u8);
    (form, flags, near(), near(), 0..20_usize).prop_map(
        |((back, v6, port, kind), flags, seq, ack, payload)| {
            let flow = if v6 { Flow::v6(1, 2) } else { Flow::v4(1, 2) };
            let flow = flow.ports(port, 80);
            let flow = if back { flow.reversed() } else { flow };
            let frame = match kind {
                0 => udp(&flow, &vec![1; payload]),
                _ => segment(&flow, (seq, ack), flags, &vec![1; payload]),
            };
            (back, frame)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn frames_have_the_state_that_the_slow_tracker_says(
        frames in prop::collection::vec((random_frame(), 0..3000_u64), 1..60),
    ) {
        let mut workers = Workers::new("
            [[acl]]
            name = 'out'
            direction = 'from-guest'
            ports = ['p1', 'p2']
            [[acl.rule]]
            name = 'all'
            action = 'allow-stateful'
        ");
        let mut slow = reference::Tracker::new(Settings::default());
        for ((back, frame), wait) in frames {
            workers.wait(wait + 1);
            let now = workers.benches[0].now as u32;
            let (port, far) = if back { (2, 1) } else { (1, 2) };
            let from = Ingress {
                port,
                is_home: true,
                ..Ingress::default()
            };
            let parsed = ParsedHeaders::parse(&frame, frame.len());
            let read = conntrack::packet::read(BLUE.0, &parsed, &frame, false);
            let expected = slow.judge(&read, from, now);
            let (state, _) = workers.send(port.into(), &frame);
            prop_assert_eq!(state.bits(), expected.state().bits(), "{:?}", read);
            match expected {
                Judgement::New => slow.commit(&read, from, Some(far), now),
                Judgement::Known { refused: true, .. } => slow.forget(&read, from, now),
                // FrameJudgement again, as a retransmission.
                _ if workers.waited => {
                    slow.judge(&read, from, now);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn what_a_cut_gives_back_is_neither_opened_nor_counted() {
    let mut workers = Workers::new(OUT);
    // The flow of new connections, and that of known ones.
    workers.send(1, &datagram(1, 2));
    workers.send(1, &datagram(1, 2));
    let bench = workers.of(1);
    let packets = Limit {
        packets: Some(Rate {
            per_second: 1,
            burst: 2,
        }),
        bits: None,
    };
    let limits = Limits {
        from_guest: packets,
        ..Limits::default()
    };
    let limits = crate::forward::limits::PortLimits::new(limits);
    bench.switch.set_limits(PortId(1), limits);
    for n in 0..4 {
        let flow = Flow::v4(1, 2).ports(2000 + n, 53);
        bench
            .port(1)
            .push(&udp(&flow, &[7; 58]), Offload::default());
    }
    bench.serve(1);
    assert_eq!(
        (bench.port(1).queued(), bench.port(2).delivered().len()),
        (2, 2)
    );
    assert_eq!(workers.table.len(), 3);
    assert_eq!(counted(&workers), [1, 1, 2]);
    let bench = workers.of(1);
    bench.switch.set_limits(PortId(1), None);
    bench.serve(1);
    assert_eq!(bench.port(2).delivered().len(), 2);
    assert_eq!(counted(&workers), [1, 1, 1, 1, 2]);
}

/// Returns the packets of the opening side of each connection, in ascending order.
fn counted(workers: &Workers) -> Vec<u64> {
    let mut all = Vec::new();
    let mut walker = workers.table.walker().expect("few threads");
    let time = (&Settings::default(), workers.benches[0].now as u32);
    walker.walk(&mut Walk::default(), usize::MAX, time, |connection| {
        all.push(connection.traffic[0].0);
        true
    });
    all.sort_unstable();
    all
}

#[test]
fn a_station_that_moves_keeps_its_connections_and_no_other_port_has_them() {
    let mut workers = Workers::new(IN);
    handshake(&mut workers, &Flow::v4(1, 2));
    let answer = segment(&Flow::v4(1, 2).reversed(), (501, 101), ACK, &[1; 4]);
    let reply = EST | CtState::REPLY;
    assert_eq!(workers.send(2, &answer), (reply, [1, 0, 0]));
    let station = StaleFlows::Station {
        segment: BLUE,
        mac: mac(2),
    };
    for bench in &mut workers.benches {
        bench.learn(BLUE, mac(2), 3);
        bench.switch.answer(Answer::Forget(station), bench.now);
        bench.finish();
    }
    // It is learned there with its first frame, and asked about again.
    assert_eq!(workers.send(3, &answer), (NEW, [1, 0, 0]));
    assert_eq!(workers.send(3, &answer), (reply, [1, 0, 0]));
    let question = segment(&Flow::v4(1, 2), (101, 505), ACK, &[1; 4]);
    assert_eq!(workers.send(1, &question), (EST, [0, 0, 1]));
    assert_eq!(workers.table.len(), 1);
}

/// Its own address is at home at its port, and it is not that of the connection.
#[test]
fn another_station_with_the_tuple_of_a_connection_has_no_part_in_it() {
    let mut workers = Workers::new(IN);
    handshake(&mut workers, &Flow::v4(1, 2));
    for bench in &mut workers.benches {
        bench.learn(BLUE, mac(3), 3);
    }
    let own = udp(&Flow::v4(3, 2), &[7; 58]);
    assert_eq!(workers.send(3, &own).1, [0, 1, 0]);
    let answer = |seq| segment(&Flow::v4(1, 2).reversed(), (seq, 101), ACK, &[1; 4]);
    let mut stolen = answer(501);
    stolen[6..12].copy_from_slice(&mac(3));
    for _ in 0..3 {
        assert_eq!(workers.send(3, &stolen), (NEW, [0; 3]));
    }
    let reply = EST | CtState::REPLY;
    assert_eq!(workers.send(2, &answer(501)), (reply, [1, 0, 0]));
    assert_eq!(workers.table.len(), 1);
}

#[test]
fn tagged_frames_are_of_their_segment() {
    let mut workers = Workers::new(OUT);
    for bench in &mut workers.benches {
        bench.learn(BLUE, mac(4), 4);
    }
    let flow = Flow::v4(1, 4);
    assert_eq!(workers.send(1, &udp(&flow, &[7; 58])).0, NEW);
    let back = flow.reversed();
    let answer = udp(&back.tagged(10), &[7; 58]);
    assert_eq!(workers.send(4, &answer), (EST | CtState::REPLY, [1, 0, 0]));
    // In a segment that is not tracked.
    let other = udp(&back.tagged(20), &[7; 58]);
    assert_eq!(workers.send(4, &other).0, CtState::empty());
    assert_eq!(workers.table.len(), 1);
}

#[test]
fn a_tick_removes_what_is_over_and_a_removed_port_leaves_nothing() {
    let mut workers = Workers::new(OUT);
    let open = |workers: &mut Workers, to: u8| {
        workers.send(1, &datagram(1, to));
    };
    open(&mut workers, 2);
    open(&mut workers, 3);
    assert_eq!(workers.table.len(), 2);
    workers.wait(31_000);
    let bench = workers.of(2);
    bench.switch.expire(bench.now);
    assert_eq!(workers.table.len(), 0);
    open(&mut workers, 2);
    open(&mut workers, 3);
    for bench in &mut workers.benches {
        bench.switch.remove_port(PortId(2), bench.now);
        bench.finish();
        assert!(!bench.switch.has_work());
    }
    assert_eq!(workers.table.len(), 1);
}

#[test]
fn a_port_that_is_removed_is_tracked_no_longer() {
    let mut workers = Workers::new(OUT);
    workers.send(1, &datagram(1, 2));
    let bench = workers.of(1);
    bench.switch.remove_port(PortId(1), bench.now);
    bench.finish();
    let port = bench.port(1);
    bench.plug(1, port);
    bench.send(1, &datagram(1, 2));
    assert_eq!(bench.ct(), CtState::empty());
    bench.ring.upcalls.clear();
}
