//! The two ports of a connection: no other one gets its frames, and no other one changes it.

use conntrack::Millis;
use ipc::egress::SenderQos;
use policy::acl::RuleId;

use super::*;
use crate::tests::bench::CLASSES;

/// Port 1 may open connections to port 2 alone; nothing else is let in.
const TO_TWO: &str = "
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
class = 'voice'
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p1', 'p3']
[[acl.rule]]
name = 'rest'
action = 'drop'
";

const REPLY: CtState = EST.union(CtState::REPLY);
const MOVED: CtState = CtState::MOVED;
const GRACE: Millis = 60_000;

/// The frame with another destination.
fn towards(frame: &[u8], station: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&mac(station));
    frame
}

fn connections(workers: &Workers) -> Vec<conntrack::table::Connection> {
    let mut all = Vec::new();
    let mut walker = workers.table.walker().expect("few threads");
    let time = (&Settings::default(), workers.benches[0].now as u32);
    walker.walk(&mut Walk::default(), usize::MAX, time, |connection| {
        all.push(*connection);
        true
    });
    all
}

#[test]
fn a_frame_of_a_connection_reaches_no_other_station_by_its_address() {
    for known_flow in [false, true] {
        let mut workers = Workers::new(TO_TWO);
        handshake(&mut workers, &Flow::v4(1, 2));
        let question = segment(&Flow::v4(1, 2), (101, 501), ACK, &[1]);
        let answer = segment(&Flow::v4(1, 2).reversed(), (501, 101), ACK, &[1]);
        assert_eq!(workers.send(2, &answer), (REPLY, [1, 0, 0]));
        if known_flow {
            // A connection to station 3 has a flow for frames like these.
            workers.set_access(OUT);
            let other = Flow::v4(1, 3).ports(5, 6);
            assert_eq!(workers.send(1, &udp(&other, &[7; 58])).1, [0, 0, 1]);
            assert_eq!(workers.send(1, &udp(&other, &[7; 58])), (EST, [0, 0, 1]));
            workers.set_access(TO_TWO);
            assert_eq!(workers.send(1, &question).1, [0, 1, 0]);
            assert_eq!(workers.send(2, &answer).1, [1, 0, 0]);
        }
        let before = connections(&workers);
        // The answering side says nothing about the ports.
        for _ in 0..3 {
            assert_eq!(workers.send(2, &towards(&answer, 3)).1, [0; 3]);
        }
        let after = connections(&workers);
        assert!(before.len() - after.len() <= 1);
        // Its own frames with that address are as those of a new connection: denied.
        for _ in 0..3 {
            assert_eq!(workers.send(1, &towards(&question, 3)).1, [0; 3]);
        }
    }
}

#[test]
fn a_frame_of_a_connection_is_not_flooded() {
    let mut workers = Workers::new(OUT);
    handshake(&mut workers, &Flow::v4(1, 2));
    let question = segment(&Flow::v4(1, 2), (101, 501), ACK, &[1]);
    // To a station that is not known, and to one that is known no longer.
    for frame in [towards(&question, 9), question] {
        for bench in &mut workers.benches {
            bench.unlearn(BLUE, mac(2));
            let station = StaleFlows::Station {
                segment: BLUE,
                mac: mac(2),
            };
            bench.switch.answer(Answer::Forget(station), bench.now);
            bench.finish();
        }
        for _ in 0..2 {
            assert_eq!(workers.send(1, &frame), (EST, [0, 1, 0]));
        }
    }
}

#[test]
fn connections_of_one_flow_go_to_their_own_far_ports() {
    let mut workers = Workers::new(OUT);
    let flows = [5, 6].map(|port| Flow::v4(1, 9).ports(port, 53));
    for (flow, station) in flows.iter().zip([2, 3]) {
        workers
            .benches
            .iter_mut()
            .for_each(|bench| bench.learn(BLUE, mac(9), station));
        let moved = StaleFlows::Station {
            segment: BLUE,
            mac: mac(9),
        };
        for bench in &mut workers.benches {
            bench.switch.answer(Answer::Forget(moved), bench.now);
            bench.finish();
        }
        let mut expected = [0; 3];
        expected[station as usize - 1] = 1;
        assert_eq!(workers.send(1, &udp(flow, &[7; 58])), (NEW, expected));
    }
    let forgotten = StaleFlows::Station {
        segment: BLUE,
        mac: mac(9),
    };
    for bench in &mut workers.benches {
        bench.unlearn(BLUE, mac(9));
        bench.switch.answer(Answer::Forget(forgotten), bench.now);
        bench.finish();
    }
    for _ in 0..2 {
        let bench = workers.of(1);
        for flow in flows.iter().chain(&flows) {
            bench.port(1).push(&udp(flow, &[7; 58]), Offload::default());
        }
        bench.serve(1);
        while bench.decide() > 0 {
            let (switch, ring) = (&mut bench.switch, &mut bench.ring);
            switch.send_unsent_upcalls(ring);
        }
        let delivered = [2, 3].map(|port| bench.port(port).delivered());
        for (frames, flow) in delivered.iter().zip(&flows) {
            assert_eq!(frames.len(), 2);
            let port = flow.src_port.to_be_bytes();
            assert!(frames.iter().all(|(frame, _)| frame[34..36] == port));
        }
    }
    let far = connections(&workers);
    let mut far: Vec<_> = far.iter().map(|connection| connection.far()).collect();
    far.sort_unstable();
    assert_eq!(far, [Some(2), Some(3)]);
}

#[test]
fn a_flooded_connection_is_bound_by_an_answer_that_rules_let_in() {
    let mut workers = Workers::new(TO_TWO);
    for bench in &mut workers.benches {
        bench.unlearn(BLUE, mac(2));
    }
    let syn = segment(&Flow::v4(1, 2), (100, 0), SYN, &[]);
    assert_eq!(workers.send(1, &syn), (NEW, [0, 1, 0]));
    for _ in 0..2 {
        assert_eq!(workers.send(1, &syn), (EST | MOVED, [0, 1, 0]));
    }
    let answer = segment(&Flow::v4(1, 2).reversed(), (500, 101), SYN | ACK, &[]);
    let refusal = segment(&Flow::v4(1, 2).reversed(), (0, 101), RST | ACK, &[]);
    // Another guest neither answers nor refuses it.
    for frame in [&answer, &refusal] {
        for _ in 0..2 {
            assert_eq!(workers.send(3, frame), (REPLY | MOVED, [0; 3]));
        }
    }
    let [connection] = connections(&workers)[..] else {
        panic!("one connection")
    };
    assert!(!connection.progress.is_replied());
    assert_eq!(connection.far(), None);
    for bench in &mut workers.benches {
        bench.learn(BLUE, mac(2), 2);
    }
    assert_eq!(workers.send(2, &answer), (REPLY | MOVED, [1, 0, 0]));
    assert_eq!(workers.send(2, &answer), (REPLY, [1, 0, 0]));
    let [connection] = connections(&workers)[..] else {
        panic!("one connection")
    };
    assert!(connection.progress.is_replied());
    assert_eq!((connection.opener(), connection.far()), (1, Some(2)));
    assert_eq!(workers.send(3, &answer), (INVALID, [0; 3]));
    let last = segment(&Flow::v4(1, 2), (101, 501), ACK, &[]);
    assert_eq!(workers.send(1, &last), (EST, [0, 1, 0]));
}

/// It cannot say where it is before it gets something.
#[test]
fn a_silent_station_gets_its_download_while_the_table_is_new() {
    let table = Table::heap(Layout::new(MIN_CAPACITY), 7);
    let mut workers = Workers::over(table, IN, GRACE);
    let flow = Flow::v4(9, 2).ports(4000, 80);
    let data = segment(&flow.reversed(), (500, 100), ACK, &[1; 20]);
    let may_be = NEW | CtState::REPLY;
    for _ in 0..2 {
        assert_eq!(workers.send(2, &data), (may_be, [1, 0, 1]));
    }
    assert_eq!(connections(&workers).len(), 0);
    let ack = segment(&flow, (100, 520), ACK, &[]);
    assert_eq!(workers.send(1, &ack), (may_be, [0, 1, 0]));
    assert_eq!(workers.send(2, &data), (EST | CtState::REPLY, [1, 0, 0]));
    // Later its rules alone decide.
    workers.wait(u64::from(GRACE) + 1000);
    let other = segment(&Flow::v4(2, 8).ports(80, 4000), (500, 100), ACK, &[1; 20]);
    assert_eq!(workers.send(2, &other), (NEW, [0, 0, 1]));
}

#[test]
fn a_segment_from_the_middle_may_be_an_answer_while_one_of_its_ports_is_new() {
    let mut workers = Workers::over(Table::heap(Layout::new(MIN_CAPACITY), 7), OUT, GRACE);
    let middle = |flow: Flow| segment(&flow, (500, 100), ACK, &[1; 20]);
    let may_be = NEW | CtState::REPLY;
    // The table is new.
    for n in [1, 2] {
        let flow = Flow::v4(2, 1).ports(80, n);
        assert_eq!(workers.send(2, &middle(flow)), (may_be, [1, 0, 0]));
        assert_eq!(workers.send(2, &middle(flow)), (REPLY, [1, 0, 0]));
        let back = segment(&flow.reversed(), (100, 520), ACK, &[1; 20]);
        assert_eq!(workers.send(1, &back), (EST, [0, 1, 0]));
    }
    for connection in connections(&workers) {
        assert_eq!((connection.opener(), connection.far()), (1, Some(2)));
    }
    // Not what its rules would not let out.
    let flow = Flow::v4(1, 3).ports(80, 3);
    assert_eq!(workers.send(3, &middle(Flow::v4(3, 2))), (may_be, [0; 3]));
    workers.wait(u64::from(GRACE) + 1000);
    assert_eq!(workers.send(3, &middle(flow.reversed())), (NEW, [0; 3]));
    // Another guest is new, and that counts for its frames alone.
    let now = workers.benches[0].now as Millis;
    workers.table.greet(2, now);
    assert_eq!(workers.send(3, &middle(flow.reversed())), (may_be, [0; 3]));
    let theirs = Flow::v4(2, 1).ports(80, 4);
    assert_eq!(workers.send(2, &middle(theirs)), (may_be, [1, 0, 0]));
    assert_eq!(connections(&workers).len(), 3);
}

#[test]
fn a_connection_keeps_the_rule_and_the_class_that_let_it_in() {
    let mut workers = Workers::new(TO_TWO);
    let qos = SenderQos {
        class_by_pair: vec![Some(1)],
        ..SenderQos::default()
    };
    workers.of(1).switch.set_qos(PortId(1), qos);
    // By an answer of control, and by a flow.
    for port in [1000, 1001] {
        let flow = Flow::v4(1, 2).ports(port, 53);
        assert_eq!(workers.send(1, &udp(&flow, &[7; 58])), (NEW, [0, 1, 0]));
    }
    let all = connections(&workers);
    assert_eq!(all.len(), 2);
    let (_, voice) = CLASSES[1];
    for connection in all {
        assert_eq!(connection.rule, RuleId::of("out", "all").number());
        assert_eq!(connection.mark(), u32::from(voice) + 1);
    }
}
