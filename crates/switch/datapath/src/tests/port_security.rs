//! Port security: forbidden frames are distinguished from others of their batch.

use filter::Filter;
use ipc::capture::{MIN_RING, Region, Way};
use ipc::records::Answer;
use policy::Action;
use policy::port_security::{Macs, PortSecurity};
use port::{DropReason, Offload, PortId};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, udp, vlan_tagged};
use wire::MacAddr;
use wire::build::PacketBuilder;

use super::bench::{BLUE, Bench, Move::*};
use crate::forward::pending_upcalls::{FRAMES_PER_PORT, UPCALLS_PER_PORT};
use crate::forward::tap::Tap;

/// An access list looks at ports for one address only, so that whole headers are parsed.
const DEEP: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'udp'
action = 'drop'
protocol = 'udp'
destination = ['10.0.0.9']
destination_ports = [9]
";

fn host() -> PortSecurity {
    PortSecurity {
        macs: Macs::Only(vec![mac(1)]),
        no_dhcp_server: true,
        no_router: true,
        ..PortSecurity::default()
    }
}

fn bench(access: &str) -> Bench {
    let mut bench = Bench::with_stations();
    if !access.is_empty() {
        bench.set_access(access);
    }
    bench.set_port_security(1, host());
    bench
}

fn honest(number: u8) -> Vec<u8> {
    udp(&Flow::v4(1, 2), &[number; 58])
}

/// Returns a DHCP offer with an honest Ethernet header.
fn offer() -> Vec<u8> {
    let flow = Flow {
        src_port: 67,
        dst_port: 68,
        ..Flow::v4(1, 2)
    };
    udp(&flow, &[2; 58])
}

/// Sends the frames in one batch.
fn send(bench: &mut Bench, frames: &[Vec<u8>]) {
    for frame in frames {
        bench.port(1).push(frame, Offload::default());
    }
    bench.serve(1);
}

fn goes_with_the_others(access: &str) {
    let mut bench = bench(access);
    bench.send_and_decide(1, &honest(0));
    bench.port(2).frames();
    let frames = [honest(1), honest(2), offer(), offer(), honest(3)];
    let passed = [honest(1), honest(2), honest(3)];
    send(&mut bench, &frames);
    assert_eq!(bench.port(2).frames(), passed, "{access}");
    let denied = Drop(1, DropReason::DhcpServer, 2);
    bench.step(&[denied], |b| assert_eq!(b.decide(), 1));
    let count = frames.len() as u64;
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
    bench.step(
        &[From(1, count, bytes), Hits(count), denied, To(2, 3, 300)],
        |b| {
            send(b, &frames);
        },
    );
    assert_eq!(bench.port(2).frames(), passed, "{access}, from the cache");
    // Without port security the same frame is forwarded.
    bench.set_port_security(3, host());
    send(&mut bench, &frames);
    bench.decide();
    assert_eq!(bench.port(2).frames().len(), frames.len());
}

#[test]
fn a_server_frame_among_others_has_its_own_decision() {
    goes_with_the_others("");
    goes_with_the_others(DEEP);
}

#[test]
fn frames_with_long_headers_are_classified_too() {
    let mut bench = bench("");
    // DHCP behind IPv4 options of maximum length.
    let mut packet = vec![
        0x4f, 0, 0, 100, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend([1; 40]);
    packet.extend([0, 67, 0, 68, 0, 40, 0, 0]);
    packet.extend([0; 32]);
    let hidden = ethernet(mac(2), mac(1), 0x0800, &packet);
    let harmless = [&packet[..60], &[0, 7, 0, 7], &packet[64..]].concat();
    let plain = ethernet(mac(2), mac(1), 0x0800, &harmless);
    bench.send_and_decide(1, &plain);
    assert_eq!(bench.port(2).frames(), std::slice::from_ref(&plain));
    let count = |bench: &mut Bench| {
        bench.send_and_decide(1, &hidden);
        bench.port(2).frames().len()
    };
    assert_eq!((count(&mut bench), count(&mut bench)), (0, 0));
    bench.send(1, &plain);
    assert_eq!(bench.port(2).frames(), [plain]);
}

#[test]
fn a_spoofed_source_makes_one_flow_of_nothing_above_ethernet() {
    let mut bench = bench("");
    let spoofed = |n: u8| ethernet(BROADCAST, mac(9), 0x0800, &[n; 60]);
    let denied = Drop(1, DropReason::SpoofedMac, 1);
    bench.step(&[From(1, 1, 74), Misses(1), Upcalls(1), denied], |b| {
        b.send_and_decide(1, &spoofed(1));
    });
    bench.step(&[From(1, 1, 74), Hits(1), denied], |b| {
        b.send(1, &spoofed(2))
    });
    assert_eq!(bench.switch.figures().flows, 1);
    assert!(!bench.switch.lookup.flows.looks_above_ethernet());
}

/// Returns a bench with a port in a segment with neighbour suppression.
fn proxied_at(port: u32) -> Bench {
    let mut bench = bench("");
    let answers = PortSecurity {
        answers: true,
        ..PortSecurity::default()
    };
    bench.set_port_security(port, answers);
    bench
}

fn proxied() -> Bench {
    proxied_at(1)
}

/// Lets control reply to the oldest upcall.
fn reply_with(bench: &mut Bench, frame: &[u8]) -> u64 {
    let upcall = bench.ring.upcalls.remove(0).id;
    let frame = frame.to_vec();
    bench
        .switch
        .answer(Answer::Reply { upcall, frame }, bench.now);
    upcall
}

fn request(last: u8) -> Vec<u8> {
    PacketBuilder::new(MacAddr(mac(1)), MacAddr::BROADCAST)
        .arp_request([10, 0, 0, 1], [10, 0, 0, last])
        .pad_to(60)
        .build()
}

#[test]
fn frames_that_are_decided_one_by_one_wait_each_for_its_own_answer() {
    let mut bench = proxied();
    // Frames that differ only outside of the key, in one batch and in two.
    send(&mut bench, &[request(2), request(2)]);
    bench.send(1, &request(3));
    assert_eq!(bench.ring.upcalls.len(), 3);
    bench.answer_once(Action::Drop(DropReason::AclDenied));
    assert!(bench.port(2).frames().is_empty());
    bench.answer_once(Action::flood(BLUE));
    assert_eq!(bench.port(2).frames(), [request(2)]);
    bench.answer_once(Action::flood(BLUE));
    assert_eq!(bench.port(2).frames(), [request(3)]);
    assert_eq!(bench.switch.figures().flows, 0);
}

#[test]
fn a_requester_gets_the_reply_and_the_request_is_not_flooded() {
    let mut bench = proxied();
    let reply = ethernet(mac(1), mac(2), 0x0806, &[2; 46]);
    let answered = Drop(1, DropReason::NeighbourReply, 1);
    let moves = [
        From(1, 1, 60),
        Misses(1),
        Upcalls(1),
        answered,
        To(1, 1, 60),
    ];
    bench.step(&moves, |b| {
        b.send(1, &request(2));
        reply_with(b, &reply);
    });
    assert_eq!(bench.port(1).frames(), std::slice::from_ref(&reply));
    assert!(bench.port(2).frames().is_empty() && bench.port(3).frames().is_empty());
    // A second reply to the same upcall, and one of excessive length.
    bench.send(1, &request(2));
    let upcall = reply_with(&mut bench, &[2; 9000]);
    let frame = reply.clone();
    let again = Answer::Reply { upcall, frame };
    bench.step(&[], |b| b.switch.answer(again, b.now));
    assert!(bench.port(1).frames().is_empty());
    bench.finish();
}

#[test]
fn a_reply_has_the_tag_of_its_request_and_no_offload() {
    let reply = ethernet(mac(1), mac(2), 0x0806, &[2; 28]);
    assert_eq!(reply.len(), 42, "as guests send it, without padding");
    // A trunk, with a priority that the reply does not have; a priority tag alone is no VLAN.
    let mut bench = proxied_at(4);
    for (tci, tagged) in [(0x600a, vlan_tagged(&reply, 10)), (0x6000, reply.clone())] {
        bench.send(4, &vlan_tagged(&request(2), tci));
        reply_with(&mut bench, &reply);
        assert_eq!(bench.port(4).delivered(), [(tagged, Offload::default())]);
    }
    for other in [1, 2, 3, 5, 6, 7] {
        assert!(bench.port(other).frames().is_empty(), "{other}");
    }
}

#[test]
fn a_request_and_its_reply_are_captured_at_the_requester() {
    let mut bench = proxied();
    let reply = ethernet(mac(1), mac(2), 0x0806, &[2; 28]);
    let (region, file) = Region::create(1, 16 * MIN_RING).unwrap();
    bench.switch.add_tap(Tap {
        id: 1,
        port: PortId(1),
        filter: std::sync::Arc::new(Filter::parse("arp").unwrap()),
        snaplen: 65_535,
        way: None,
        only_drops: false,
        writer: region.writer(0).unwrap(),
    });
    let region = Region::map(&file, 1, 16 * MIN_RING).unwrap();
    let mut seen = region.reader().unwrap();
    let mut take = || seen.take(|seen, bytes| (seen.way, seen.dropped, bytes.to_vec()));
    bench.send(1, &request(2));
    reply_with(&mut bench, &reply);
    let expected = (Way::In, Some(DropReason::NeighbourReply), request(2));
    assert_eq!(take().unwrap(), Some(expected));
    assert_eq!(take().unwrap(), Some((Way::Out, None, reply)));
    assert_eq!(take().unwrap(), None);
}

#[test]
fn a_requester_that_leaves_or_does_not_receive_delays_nothing() {
    let mut bench = proxied();
    let reply = ethernet(mac(1), mac(2), 0x0806, &[2; 28]);
    bench.port(1).set_room(0);
    bench.send(1, &request(2));
    let answered = [
        Drop(1, DropReason::NeighbourReply, 1),
        Drop(1, DropReason::ReceiverFull, 1),
    ];
    bench.step(&answered, |b| {
        reply_with(b, &reply);
    });
    bench.port(1).set_room(9);
    bench.send(1, &request(2));
    bench.switch.remove_port(PortId(1), bench.now);
    reply_with(&mut bench, &reply);
    assert!(bench.port(1).frames().is_empty());
    bench.finish();
}

#[test]
fn a_requester_that_floods_is_bounded_and_gets_one_reply_per_answer() {
    let mut bench = proxied();
    let reply = ethernet(mac(1), mac(2), 0x0806, &[2; 28]);
    let many = vec![request(2); 300];
    // Room for so many upcalls; just after a change of the program the others wait in the queue.
    let room = FRAMES_PER_PORT as u64;
    let expected = [
        From(1, room, room * 60),
        Misses(room),
        Upcalls(UPCALLS_PER_PORT as u64),
    ];
    bench.step(&expected, |b| send(b, &many));
    // An upcall of another port is sent at once.
    bench.send(3, &honest(1));
    assert_eq!(bench.ring.upcalls.len(), UPCALLS_PER_PORT + 1);
    let last = bench.ring.upcalls.pop().unwrap();
    assert_eq!(last.flow_key().in_port(), 3);
    for _ in 0..UPCALLS_PER_PORT {
        reply_with(&mut bench, &reply);
    }
    assert_eq!(bench.port(1).frames().len(), UPCALLS_PER_PORT);
    assert!(bench.port(2).frames().is_empty() && bench.port(3).frames().is_empty());
}
