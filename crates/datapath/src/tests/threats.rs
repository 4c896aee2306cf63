//! Rows of the threat table that are about parsers inside the data path. Here decisions look at the ingress port, VLAN
//! and Ethernet addresses alone; so nothing in a frame may make a flow that matches more than them, and nothing is
//! answered.

use policy::DECISION_MASK;
use testkit::packets::{Flow, ethernet, mac, tcp, udp};

use super::bench::{BLUE, Bench, Move::*};

const IPV6: u16 = 0x86dd;
const LLDP: u16 = 0x88cc;

/// Guests 1 to 3 are known.
fn known() -> Bench {
    let mut bench = Bench::new();
    for port in [1, 2, 3] {
        bench.learn(BLUE, mac(port as u8), port);
    }
    bench
}

/// Sends `odd` first, so that a flow comes of it, and `plain`, which goes to another place or nowhere else. Both arrive
/// as they were sent, and flows look at what decisions look at.
#[track_caller]
fn matches_only_its_own(odd: &[u8], plain: &[(&[u8], u32)]) {
    let mut bench = known();
    bench.send_and_decide(1, odd);
    let arrived: Vec<_> = (1..=7).flat_map(|id| bench.port(id).delivered()).collect();
    for (frame, _) in &arrived {
        let untagged = frame.len() == odd.len();
        assert!(!untagged || frame == odd, "changed on its way");
    }
    for (frame, to) in plain {
        bench.send_and_decide(1, frame);
        assert_eq!(bench.port(*to).frames(), [frame.to_vec()], "to port {to}");
    }
    for flow in bench.switch.flows.records(bench.now) {
        assert_eq!(flow.mask, *DECISION_MASK.words());
    }
    bench.port(2).delivered();
    bench.step(
        &[From(2, 1, 100), Misses(1), Upcalls(1), To(1, 1, 100)],
        |b| {
            b.send_and_decide(2, &udp(&Flow::v4(2, 1), &[1; 58]));
        },
    );
}

fn honest() -> Vec<u8> {
    tcp(&Flow::v4(1, 3).ports(5, 80), 1, &[5; 40])
}

#[test]
fn cve_2020_35498_padding_behind_a_packet_is_no_part_of_the_decision() {
    let plain = udp(&Flow::v4(1, 2), &[3; 4]);
    let padded = [&plain[..], &[0xee; 300]].concat();
    let to_3 = honest();
    matches_only_its_own(&padded, &[(&plain, 2), (&to_3, 3)]);
}

#[test]
fn cve_2022_4337_and_cve_2022_4338_lldp_is_not_parsed() {
    // Organization-specific TLVs shorter than their own header, and lengths beyond the frame.
    for tlv in [
        &[0xfe, 0x00][..],
        &[0xfe, 0x03, 0, 0, 0],
        &[0xff, 0xff, 1],
        &[2, 0xff],
    ] {
        let payload = [tlv, &[0; 46]].concat();
        let odd = ethernet(mac(2), mac(1), LLDP, &payload);
        let to_3 = honest();
        matches_only_its_own(&odd, &[(&to_3, 3)]);
        // To the group address of LLDP it goes nowhere, by name.
        let mut bench = known();
        let group = ethernet([1, 0x80, 0xc2, 0, 0, 0x0e], mac(1), LLDP, &payload);
        let bytes = group.len() as u64;
        let dropped = Drop(1, port::DropReason::LinkLocal, 1);
        bench.step(&[From(1, 1, bytes), Misses(1), Upcalls(1), dropped], |b| {
            b.send_and_decide(1, &group);
        });
    }
}

#[test]
fn cve_2023_1668_a_packet_of_protocol_0_makes_no_flow_for_others() {
    let mut odd = udp(&Flow::v4(1, 2), &[3; 40]);
    odd[14 + 9] = 0;
    let (plain, to_3) = (udp(&Flow::v4(1, 2), &[4; 40]), honest());
    matches_only_its_own(&odd, &[(&plain, 2), (&to_3, 3)]);
}

#[test]
fn cve_2023_5366_a_neighbour_advertisement_makes_no_flow_for_others() {
    // ICMPv6 136 with a code that is not 0, and a target option that is cut off.
    let mut odd = udp(&Flow::v6(1, 2), &[3; 40]);
    assert_eq!(odd[12..14], IPV6.to_be_bytes());
    odd[14 + 6] = 58;
    odd[14 + 40..14 + 44].copy_from_slice(&[136, 7, 0, 0]);
    let (plain, to_3) = (udp(&Flow::v6(1, 2), &[4; 40]), honest());
    matches_only_its_own(&odd, &[(&plain, 2), (&to_3, 3)]);
}

#[test]
fn cve_2026_34956_nobody_reads_ftp() {
    for line in [
        &b"PORT 10,0,0,1,255,255,255\r\n"[..],
        b"227 (,,,,,)\r\n",
        b"EPRT |||||\r\n",
    ] {
        let odd = tcp(&Flow::v4(1, 2).ports(21, 21), 1, line);
        let to_3 = honest();
        matches_only_its_own(&odd, &[(&to_3, 3)]);
    }
}

/// A DHCPv6 solicitation whose option says that it is longer than the packet: it goes where its address says, and
/// nobody answers it.
#[test]
fn cve_2026_5367_dhcpv6_is_not_answered() {
    let option_too_long = [1, 0, 0, 7, 0, 1, 0xff, 0xff, 0, 1];
    let request = udp(&Flow::v6(1, 2).ports(546, 547), &option_too_long);
    let bytes = request.len() as u64;
    let mut bench = known();
    let moves = [From(1, 1, bytes), Misses(1), Upcalls(1), To(2, 1, bytes)];
    bench.step(&moves, |b| b.send_and_decide(1, &request));
    assert_eq!(bench.port(2).frames(), [request]);
    assert!(bench.port(1).frames().is_empty(), "no answer");
}
