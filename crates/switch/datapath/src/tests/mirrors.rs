//! Mirrors: copies go to one more port, and nothing else changes.

use std::sync::Arc;

use filter::Filter;
use ipc::capture::{MIN_RING, Region, Way};
use ipc::mirrors::Mirror as SwitchCommand;
use policy::SegmentId;
use port::counters::Traffic;
use port::{Offload, PortId};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, tcp_super, udp, vlan_tagged};

use super::bench::{BLUE, Bench, Move::*, PLAIN, RED};
use crate::forward::mirror::Mirror;
use crate::forward::pending_upcalls::UPCALL_TIMEOUT_MS;
use crate::forward::tap::Tap;
use crate::ports::port::Accepts;

/// Destination of all copies, in a segment of its own.
const PROBE: u32 = 7;

fn of_ports(ports: &[u32], way: Option<Way>) -> SwitchCommand {
    SwitchCommand {
        number: 0,
        to: PortId(PROBE),
        ports: ports.iter().copied().map(PortId).collect(),
        way,
        segments: Vec::new(),
        everything: false,
        filter: String::new(),
    }
}

fn of_segment(segment: SegmentId) -> SwitchCommand {
    SwitchCommand {
        segments: vec![segment],
        ..of_ports(&[], None)
    }
}

fn mirror(bench: &mut Bench, configs: &[SwitchCommand]) {
    let mirrors = configs
        .iter()
        .map(|order| Mirror::new(order.clone()).unwrap());
    bench.switch.set_mirrors(mirrors.collect());
}

fn frame(a: u8, b: u8, n: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[n; 200])
}

/// Returns a bench with guests 1 to 4 in the FDB and flows between 1 and 2.
fn known() -> Bench {
    let mut bench = Bench::new();
    for port in 1..=4 {
        bench.learn(BLUE, mac(port as u8), port);
    }
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.send_and_decide(2, &frame(2, 1, 0));
    bench.port(1).frames();
    bench.port(2).frames();
    bench
}

#[test]
fn both_ways_of_a_port_are_copied_until_the_mirror_goes() {
    let mut bench = known();
    mirror(&mut bench, &[of_ports(&[1], None)]);
    let moves = [
        From(1, 5, 5 * 242),
        To(2, 5, 5 * 242),
        From(2, 1, 242),
        To(1, 1, 242),
        To(PROBE, 6, 6 * 242),
        Hits(6),
    ];
    bench.step(&moves, |b| {
        (0..5).for_each(|n| b.port(1).push(&frame(1, 2, n), Offload::default()));
        b.serve(1);
        b.send(2, &frame(2, 1, 9));
    });
    let sent: Vec<_> = (0..5).map(|n| frame(1, 2, n)).collect();
    assert_eq!(bench.port(2).frames(), sent);
    let all: Vec<_> = sent.into_iter().chain([frame(2, 1, 9)]).collect();
    assert_eq!(bench.port(PROBE).frames(), all);

    mirror(&mut bench, &[]);
    assert!(
        bench.switch.fabric.taps.is_none(),
        "the tap state is removed"
    );
    bench.step(&[From(1, 1, 242), To(2, 1, 242), Hits(1)], |b| {
        b.send(1, &frame(1, 2, 0));
    });
}

#[test]
fn a_way_and_a_filter_are_kept_to() {
    let mut bench = known();
    let some = SwitchCommand {
        filter: "greater 243".to_owned(),
        ..of_ports(&[1, 2], Some(Way::Out))
    };
    mirror(&mut bench, &[some]);
    bench.send(1, &frame(1, 2, 0));
    let long = udp(&Flow::v4(1, 2), &[1; 300]);
    bench.send(1, &long);
    // A dropped frame is not a frame that the port got.
    bench.port(2).set_room(0);
    bench.send(1, &long);
    assert_eq!(bench.port(PROBE).frames(), [long]);
}

#[test]
fn sent_frames_are_copied_even_if_dropped() {
    let mut bench = known();
    mirror(&mut bench, &[of_ports(&[1], Some(Way::In))]);
    // Dropped by the policy, first by an upcall's answer, then by its flow.
    let group = ethernet(mac(2), [0x01, 0, 0, 0, 0, 9], 0x0800, &[0; 60]);
    bench.send_and_decide(1, &group);
    bench.send(1, &group);
    // Dropped after the upcall's timeout.
    bench.send(1, &frame(1, 3, 3));
    bench.now += UPCALL_TIMEOUT_MS + 1;
    bench.switch.expire(bench.now);
    let expected = [group.clone(), group, frame(1, 3, 3)];
    assert_eq!(bench.port(PROBE).frames(), expected);
    // Dropped for an invalid offload, which the copy does not have.
    let (long, mut header) = tcp_super(&Flow::v4(1, 2), 0, &[0; 3000], 1000);
    header.csum_start = 60_000;
    bench.send_with(1, &long, &header);
    assert_eq!(bench.port(PROBE).frames(), [long]);
}

#[test]
fn a_frame_of_a_segment_is_copied_once_as_it_was_sent() {
    let mut bench = known();
    mirror(&mut bench, &[of_segment(BLUE)]);
    let arp = ethernet(BROADCAST, mac(1), 0x0806, &[0; 86]);
    bench.send_and_decide(1, &arp);
    let of_trunk = vlan_tagged(&frame(4, 1, 2), 10);
    bench.send_and_decide(4, &of_trunk);
    // Frames of another segment, from the same trunk and from an access port, and of none.
    bench.send_and_decide(4, &vlan_tagged(&frame(4, 1, 3), 20));
    bench.send_and_decide(5, &frame(5, 9, 0));
    bench.send_and_decide(4, &vlan_tagged(&frame(4, 1, 3), 30));
    assert_eq!(bench.port(PROBE).frames(), [arp, of_trunk.clone()]);

    let tagged = SwitchCommand {
        everything: true,
        filter: "vlan".to_owned(),
        ..of_ports(&[], None)
    };
    mirror(&mut bench, &[of_segment(RED), tagged]);
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.send(4, &of_trunk);
    assert_eq!(bench.port(PROBE).frames(), [of_trunk], "by the filter");
}

#[test]
fn tags_and_offloads_are_those_of_the_mirrored_port() {
    let mut bench = known();
    mirror(
        &mut bench,
        &[
            of_ports(&[1], Some(Way::In)),
            of_ports(&[4], Some(Way::Out)),
        ],
    );
    let (long, header) = tcp_super(&Flow::v4(1, 4), 0, &[7; 3000], 1000);
    bench.send_with(1, &long, &header);
    bench.decide();
    let mut got = bench.port(PROBE).delivered();
    got.sort_by_key(|(bytes, _)| bytes.len());
    assert_eq!(got[0].0, long);
    assert_eq!(got[1].0, vlan_tagged(&long, 10));
    let start = |offload: Offload| offload.checksum.expect("a checksum").start;
    assert_eq!(start(got[1].1), start(got[0].1) + 4);
    let trunk = bench.port(4).delivered();
    assert_eq!(trunk[0], got[1], "the receiver has what it always has");

    // A probe that does not accept TSO frames gets their segments.
    bench.port(PROBE).set_accepts(Accepts::default());
    bench.send_with(1, &long, &header);
    let frames = bench.port(PROBE).frames();
    assert_eq!(frames.len(), 6);
    assert_eq!(bench.port(4).delivered(), trunk);
}

#[test]
fn a_full_probe_costs_other_ports_no_frame() {
    let mut bench = known();
    mirror(&mut bench, &[of_ports(&[1], None)]);
    bench.port(PROBE).set_room(3);
    let full = port::DropReason::ReceiverFull;
    let moves = [
        From(1, 64, 64 * 242),
        To(2, 64, 64 * 242),
        To(PROBE, 3, 3 * 242),
        Drop(PROBE, full, 61),
        Hits(64),
    ];
    bench.step(&moves, |b| {
        (0..64).for_each(|n| b.port(1).push(&frame(1, 2, n), Offload::default()));
        b.serve(1);
    });
    assert_eq!(bench.port(2).frames().len(), 64);
}

#[test]
fn copies_are_counted_per_mirror_and_result() {
    let mut bench = known();
    let by = |number, order| SwitchCommand { number, ..order };
    let sent = by(5, of_ports(&[1], Some(Way::In)));
    let nowhere = SwitchCommand {
        to: PortId(900),
        ..by(9, of_ports(&[2], None))
    };
    mirror(&mut bench, &[sent, by(63, of_segment(BLUE)), nowhere]);
    bench.port(PROBE).set_room(3);
    for n in 0..4 {
        bench.send(1, &frame(1, 2, n));
    }
    // The mirror that is named last is first.
    let counts = |bench: &Bench, number| {
        let counts = bench.switch.fabric.counters.read_mirror(number);
        let Traffic { packets, bytes } = counts.copied;
        (packets, bytes, counts.lost[0], counts.lost[1])
    };
    let all = [5, 63].map(|number| counts(&bench, number));
    assert_eq!(all[0].0 + all[1].0, 3, "{all:?}");
    for (packets, bytes, full, down) in all {
        assert_eq!((packets + full, bytes, down), (4, packets * 242, 0));
    }
    // A copy of what port 2 got goes to a port that does not exist.
    assert_eq!(counts(&bench, 9), (0, 0, 0, 4));
    assert_eq!(counts(&bench, 0), (0, 0, 0, 0));
}

#[test]
fn copies_are_captured_and_never_copied_again() {
    let mut bench = known();
    // A control without errors does not send this.
    let back = SwitchCommand {
        to: PortId(1),
        ..of_ports(&[PROBE], None)
    };
    let plain = of_segment(PLAIN);
    mirror(&mut bench, &[of_ports(&[1], None), back, plain]);
    let (region, file) = Region::create(1, 16 * MIN_RING).unwrap();
    bench.switch.add_tap(Tap {
        id: 1,
        port: PortId(PROBE),
        filter: Arc::new(Filter::parse("").unwrap()),
        snaplen: 65_535,
        way: None,
        only_drops: false,
        writer: region.writer(0).unwrap(),
    });
    let mut reader = Region::map(&file, 1, 16 * MIN_RING)
        .unwrap()
        .reader()
        .unwrap();
    bench.send(1, &frame(1, 2, 5));
    assert_eq!(bench.port(PROBE).frames(), [frame(1, 2, 5)]);
    assert!(bench.port(1).frames().is_empty());
    let seen = reader
        .take(|seen, bytes| (seen.way, bytes.to_vec()))
        .unwrap();
    assert_eq!(seen, Some((Way::Out, frame(1, 2, 5))));

    // Frames that the probe itself sends are not mirrored to it.
    bench.send_and_decide(PROBE, &ethernet(BROADCAST, mac(7), 0x0806, &[0; 86]));
    assert!(bench.port(PROBE).frames().is_empty());
    bench.switch.remove_tap(1);
    assert!(bench.switch.fabric.taps.is_some(), "the mirrors stay");
}
