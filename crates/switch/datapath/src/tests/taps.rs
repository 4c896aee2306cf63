//! Captures: all frames that a port sends and gets, with their results, and no effect on
//! forwarding.

use std::sync::Arc;

use filter::Filter;
use ipc::capture::{MIN_RING, Reader, Region, Way};
use policy::Action;
use port::{DropReason, MAX_FRAME, Offload, PortId};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, tcp_super, udp, vlan_tagged};

use super::bench::{BLUE, Bench, Move::*};
use crate::forward::pending_upcalls::UPCALL_TIMEOUT_MS;
use crate::forward::tap::Tap;

/// Frame of a capture.
type Got = (Way, Option<DropReason>, Vec<u8>);

/// Settings of a capture.
struct Capture<'a> {
    id: u32,
    port: u32,
    filter: &'a str,
    snaplen: u32,
    way: Option<Way>,
    only_drops: bool,
}

const ALL: Capture<'_> = Capture {
    id: 1,
    port: 1,
    filter: "",
    snaplen: 65_535,
    way: None,
    only_drops: false,
};

fn start(bench: &mut Bench, capture: &Capture<'_>) -> Reader {
    let (region, file) = Region::create(1, 16 * MIN_RING).unwrap();
    bench.switch.add_tap(Tap {
        id: capture.id,
        port: PortId(capture.port),
        filter: Arc::new(Filter::parse(capture.filter).unwrap()),
        snaplen: capture.snaplen,
        way: capture.way,
        only_drops: capture.only_drops,
        writer: region.writer(0).unwrap(),
    });
    Region::map(&file, 1, 16 * MIN_RING)
        .unwrap()
        .reader()
        .unwrap()
}

fn all(reader: &mut Reader) -> Vec<Got> {
    let mut next = || reader.take(|seen, bytes| (seen.way, seen.dropped, bytes.to_vec()));
    std::iter::from_fn(|| next().unwrap()).collect()
}

fn frame(a: u8, b: u8, n: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[n; 200])
}

/// Returns a bench with guests 1, 2 and 3 in the FDB and flows between 1 and 2.
fn known() -> Bench {
    let mut bench = Bench::new();
    for port in 1..=3 {
        bench.learn(BLUE, mac(port as u8), port);
    }
    bench.send_and_decide(1, &frame(1, 2, 0));
    bench.send_and_decide(2, &frame(2, 1, 0));
    bench
}

#[test]
fn both_ways_are_seen_and_nothing_else_changes() {
    let mut bench = known();
    let mut seen = start(&mut bench, &ALL);
    let moves = [From(1, 5, 5 * 242), To(2, 5, 5 * 242), Hits(5)];
    bench.port(2).frames();
    bench.step(&moves, |b| {
        (0..5).for_each(|n| b.port(1).push(&frame(1, 2, n), Offload::default()));
        b.serve(1);
    });
    let desired: Vec<_> = (0..5).map(|n| frame(1, 2, n)).collect();
    assert_eq!(bench.port(2).frames(), desired);
    bench.send(2, &frame(2, 1, 9));
    bench.send_and_decide(2, &frame(2, 3, 9));
    let mut expected: Vec<Got> = desired.into_iter().map(|f| (Way::In, None, f)).collect();
    expected.push((Way::Out, None, frame(2, 1, 9)));
    assert_eq!(all(&mut seen), expected);

    bench.switch.remove_tap(1);
    bench.send(1, &frame(1, 2, 0));
    assert_eq!(all(&mut seen), []);
}

#[test]
fn a_filter_a_direction_and_a_length_are_kept_to() {
    let mut bench = known();
    let filter = "udp and greater 100";
    let some = Capture {
        filter,
        snaplen: 60,
        way: Some(Way::Out),
        ..ALL
    };
    let mut seen = start(&mut bench, &some);
    // A second capture with another filter.
    let mut none = start(
        &mut bench,
        &Capture {
            id: 2,
            filter: "arp",
            ..ALL
        },
    );
    bench.send(1, &frame(1, 2, 0));
    bench.send(2, &frame(2, 1, 7));
    assert_eq!(
        all(&mut seen),
        [(Way::Out, None, frame(2, 1, 7)[..60].to_vec())]
    );
    assert_eq!(all(&mut none), []);
    assert_eq!(seen.counts().meant, 1);
}

#[test]
fn dropped_frames_are_captured_with_their_reason() {
    let mut bench = known();
    let mut seen = start(
        &mut bench,
        &Capture {
            only_drops: true,
            ..ALL
        },
    );
    // Dropped for lack of a receive buffer.
    bench.port(1).frames();
    bench.port(1).set_room(0);
    bench.send(2, &frame(2, 1, 1));
    // Dropped by the policy: by an upcall's answer, then by the flow.
    let group = ethernet(mac(2), [0x01, 0, 0, 0, 0, 9], 0x0800, &[0; 60]);
    bench.send_and_decide(1, &group);
    bench.send(1, &group);
    // Dropped after the upcall's timeout.
    bench.send(1, &frame(1, 3, 3));
    bench.now += UPCALL_TIMEOUT_MS + 1;
    bench.switch.expire(bench.now);
    // Forwarded frames are not captured.
    bench.send(1, &frame(1, 2, 4));
    let expected = [
        (Way::Out, Some(DropReason::ReceiverFull), frame(2, 1, 1)),
        (Way::In, Some(DropReason::BadSource), group.clone()),
        (Way::In, Some(DropReason::BadSource), group),
        (Way::In, Some(DropReason::UpcallTimeout), frame(1, 3, 3)),
    ];
    assert_eq!(all(&mut seen), expected);
}

#[test]
fn a_frame_without_receivers_and_an_invalid_offload_are_captured_as_they_came() {
    let mut bench = known();
    bench.learn(BLUE, mac(4), 4);
    let mut seen = start(&mut bench, &ALL);
    let arp = ethernet(BROADCAST, mac(1), 0x0806, &[0; 86]);
    bench.send(1, &arp);
    bench.answer_once(Action::Drop(DropReason::NoReceiver));
    let (super_frame, mut header) = tcp_super(&Flow::v4(1, 2), 0, &[0; 3000], 1000);
    header.csum_start = 60_000;
    bench.send_with(1, &super_frame, &header);
    let got = all(&mut seen);
    assert_eq!(got[0], (Way::In, Some(DropReason::NoReceiver), arp));
    let (way, reason, bytes) = &got[1];
    assert_eq!((*way, *reason), (Way::In, Some(DropReason::BadOffload)));
    assert_eq!(*bytes, super_frame);
}

#[test]
fn tags_and_offloads_are_seen_as_each_side_has_them() {
    let mut bench = known();
    bench.learn(BLUE, mac(4), 4);
    let mut sent = start(&mut bench, &ALL);
    let mut got = start(
        &mut bench,
        &Capture {
            id: 2,
            port: 4,
            ..ALL
        },
    );
    let (super_frame, header) = tcp_super(&Flow::v4(1, 4), 0, &[7; 3000], 1000);
    bench.send_with(1, &super_frame, &header);
    bench.decide();
    let offload = |reader: &mut Reader| {
        let taken = reader.take(|seen, bytes| (seen.offload, bytes.to_vec()));
        taken.unwrap().expect("a frame")
    };
    let (plain, bytes) = offload(&mut sent);
    assert_eq!(bytes, super_frame);
    let (tagged, bytes) = offload(&mut got);
    assert_eq!(bytes, vlan_tagged(&super_frame, 10));
    let start = |offload: Offload| offload.checksum.expect("a checksum").start;
    assert_eq!(start(tagged), start(plain) + 4);
    assert_eq!(tagged.gso.map(|gso| gso.size), Some(1000));
}

#[test]
fn a_flood_is_captured_per_receiver_until_the_port_is_removed() {
    let mut bench = known();
    let mut three = start(
        &mut bench,
        &Capture {
            id: 2,
            port: 3,
            ..ALL
        },
    );
    let mut trunk = start(
        &mut bench,
        &Capture {
            id: 3,
            port: 4,
            ..ALL
        },
    );
    let arp = ethernet(BROADCAST, mac(1), 0x0806, &[0; 86]);
    bench.send_and_decide(1, &arp);
    assert_eq!(all(&mut three), [(Way::Out, None, arp.clone())]);
    assert_eq!(all(&mut trunk), [(Way::Out, None, vlan_tagged(&arp, 10))]);
    let now = bench.now;
    bench.switch.remove_port(PortId(3), now);
    bench.send(1, &arp);
    assert_eq!(all(&mut three), [], "the port has gone");
    assert_eq!(all(&mut trunk).len(), 1);
}

#[test]
fn a_full_ring_affects_only_the_capture() {
    let mut bench = known();
    let mut seen = start(&mut bench, &ALL);
    let moves = [From(1, 400, 400 * 242), To(2, 400, 400 * 242), Hits(400)];
    bench.step(&moves, |b| {
        (0..400).for_each(|n| b.port(1).push(&frame(1, 2, n as u8), Offload::default()));
        b.serve(1);
    });
    let got = all(&mut seen).len() as u64;
    let counts = seen.counts();
    assert_eq!((counts.meant, counts.lost), (400, 400 - got));
    assert!(counts.lost > 0 && got > 100);
}

/// A dropped frame with the tag pushed is longer than any received one.
#[test]
fn the_longest_frame_with_a_tag_that_it_came_without_ends_no_capture() {
    let mut bench = known();
    let trunk = Capture {
        port: 4,
        snaplen: 2000,
        ..ALL
    };
    let mut seen = start(&mut bench, &trunk);
    let longest = ethernet(BROADCAST, mac(1), 0x0806, &vec![0; MAX_FRAME as usize - 14]);
    bench.send_and_decide(1, &longest);
    let short = ethernet(BROADCAST, mac(1), 0x0806, &[0; 86]);
    bench.send_and_decide(1, &short);
    let got = all(&mut seen);
    let tagged = vlan_tagged(&longest, 10)[..2000].to_vec();
    let expected = [
        (Way::Out, Some(DropReason::ExceedsMtu), tagged),
        (Way::Out, None, vlan_tagged(&short, 10)),
    ];
    assert_eq!(got, expected);
}
