//! Rows of the threat table that are about parsers inside the data path. Without lists and guards decisions look at the ingress
//! port, VLAN and Ethernet addresses alone; so nothing in a frame may make a flow that matches more than them, and nothing
//! is answered. With them, no frame may make a flow that decides about one that differs in what they look at.

use policy::DECISION_MASK;
use policy::guard::{Guard, Macs};
use port::DropReason;
use testkit::packets::{Flow, ethernet, mac, rarp, tcp, udp};
use wire::MacAddr;
use wire::build::PacketBuilder;

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

/// Rules that look as far into a frame as rules do.
const LISTS: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'dns'
action = 'drop'
protocol = 'udp'
destination_ports = [53]
[[acl.rule]]
name = 'neighbour'
action = 'drop'
protocol = 'icmpv6'
icmp_type = 136
icmp_code = 0
";

fn host() -> Guard {
    Guard {
        macs: Macs::Only(vec![mac(1)]),
        no_dhcp_server: true,
        no_router: true,
        ..Guard::default()
    }
}

/// A frame of port 1, and whether lists and the guard let it pass.
struct Case {
    frame: Vec<u8>,
    by_lists: bool,
    by_guard: bool,
}

fn passes(frame: Vec<u8>) -> Case {
    let (by_lists, by_guard) = (true, true);
    Case {
        frame,
        by_lists,
        by_guard,
    }
}

fn no_list_passes(frame: Vec<u8>) -> Case {
    Case {
        by_lists: false,
        ..passes(frame)
    }
}

fn no_guard_passes(frame: Vec<u8>) -> Case {
    Case {
        by_guard: false,
        ..passes(frame)
    }
}

fn nobody_passes(frame: Vec<u8>) -> Case {
    Case {
        by_lists: false,
        ..no_guard_passes(frame)
    }
}

/// Whichever of two frames comes first, and whatever is cached of it: each has its own decision.
#[track_caller]
fn each_is_decided_by_itself(cases: &[Case]) {
    for (lists, guard) in [("", true), (LISTS, false), (LISTS, true)] {
        for (first, second) in pairs(cases) {
            let mut bench = known();
            bench.set_access(lists);
            if guard {
                bench.set_guard(1, host());
            }
            for (round, case) in [first, second, first, second].into_iter().enumerate() {
                bench.send_and_decide(1, &case.frame);
                let arrived: usize = (1..=7).map(|id| bench.port(id).frames().len()).sum();
                let right = (lists.is_empty() || case.by_lists) && (!guard || case.by_guard);
                let frame = &case.frame;
                assert_eq!(
                    arrived > 0,
                    right,
                    "{round}: {lists} {guard} {frame:02x?} after {:02x?}",
                    first.frame
                );
            }
        }
    }
}

fn pairs(cases: &[Case]) -> impl Iterator<Item = (&Case, &Case)> {
    cases
        .iter()
        .flat_map(move |first| cases.iter().map(move |second| (first, second)))
}

/// A DHCP server's offer.
fn offer() -> Vec<u8> {
    udp(&Flow::v4(1, 2).ports(67, 68), &[2; 40])
}

fn dns() -> Vec<u8> {
    udp(&Flow::v4(1, 2).ports(5, 53), &[2; 40])
}

/// Of this type and code, from the host to guest 2.
fn discovery(kind: u8, code: u8) -> Vec<u8> {
    let address = |n| [0xfe80, 0, 0, 0, 0, 0, 0, n];
    PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)))
        .ipv6(address(1), address(2))
        .ttl(255)
        .icmp(kind, code, [0; 4])
        .payload(&[2; 16])
        .build()
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
    let pad = |frame: Vec<u8>| [frame, vec![0xee; 300]].concat();
    each_is_decided_by_itself(&[
        passes(padded),
        passes(plain),
        no_list_passes(pad(dns())),
        no_list_passes(dns()),
        no_guard_passes(pad(offer())),
        no_guard_passes(offer()),
        passes(pad(to_3.clone())),
        passes(to_3),
    ]);
}

/// Where no rule looks above Ethernet it goes its way. Where one does, it is nothing that can be read.
#[test]
fn cve_2016_10377_a_total_length_below_the_header_passes_no_list() {
    let with_total = |frame: Vec<u8>, total: u16| {
        let mut frame = frame;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame
    };
    let plain = udp(&Flow::v4(1, 2), &[3; 40]);
    let to_3 = honest();
    for total in [0, 1, 19] {
        let odd = with_total(plain.clone(), total);
        matches_only_its_own(&odd, &[(&plain, 2), (&to_3, 3)]);
        each_is_decided_by_itself(&[
            no_list_passes(odd),
            no_list_passes(with_total(dns(), total)),
            nobody_passes(with_total(offer(), total)),
            passes(plain.clone()),
            passes(to_3.clone()),
            no_list_passes(dns()),
        ]);
    }
    // All of the header and no port, or half of one.
    for total in [20, 21, 27] {
        each_is_decided_by_itself(&[
            no_list_passes(with_total(plain.clone(), total)),
            no_list_passes(with_total(dns(), total)),
            passes(plain.clone()),
            no_list_passes(dns()),
            no_guard_passes(offer()),
        ]);
    }
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
        let dropped = Drop(1, DropReason::LinkLocal, 1);
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
    let of_none = |mut frame: Vec<u8>| {
        frame[14 + 9] = 0;
        frame
    };
    each_is_decided_by_itself(&[
        passes(odd),
        passes(of_none(dns())),
        passes(of_none(offer())),
        passes(plain),
        passes(to_3),
        no_list_passes(dns()),
        no_guard_passes(offer()),
    ]);
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
    let cut_off = |kind| discovery(kind, 0)[..14 + 40 + 3].to_vec();
    let query = udp(&Flow::v6(1, 2).ports(5, 53), &[4; 40]);
    each_is_decided_by_itself(&[
        no_guard_passes(discovery(136, 7)),
        no_list_passes(discovery(136, 0)),
        passes(discovery(135, 0)),
        no_guard_passes(discovery(135, 7)),
        no_guard_passes(discovery(134, 0)),
        passes(discovery(128, 0)),
        nobody_passes(cut_off(136)),
        passes(plain),
        no_list_passes(query),
    ]);
}

/// What the switch sends in a guest's name passes the guest's guard and lists, and those of whom it is for (OVN's CVE-2025-0650
/// and CVE-2024-2182: frames that a logical switch makes or takes for its own passed no list).
#[test]
fn what_is_announced_for_a_guest_is_what_it_might_send_itself() {
    let nothing = |direction, port| {
        format!(
            "
[[acl]]
name = 'none'
direction = '{direction}'
ports = ['{port}']
[[acl.rule]]
name = 'all'
action = 'drop'
"
        )
    };
    let announced = |lists: &str, guard: bool, station: u8| {
        let mut bench = known();
        bench.set_access(lists);
        if guard {
            bench.set_guard(1, host());
        }
        // Decided, and then from the cache.
        let mut got = [0, 0].map(|_| {
            let frame = rarp(mac(station));
            let port = port::PortId(1);
            bench
                .switch
                .inject(port, &frame, bench.now, &mut bench.ring);
            bench.decide();
            [2, 3].map(|id| bench.port(id).frames().len())
        });
        got.sort_unstable();
        assert_eq!(got[0], got[1]);
        got[0]
    };
    assert_eq!(announced("", false, 9), [1, 1]);
    assert_eq!(announced("", true, 1), [1, 1]);
    assert_eq!(announced("", true, 9), [0, 0], "another's address");
    assert_eq!(announced(&nothing("from-guest", "p1"), false, 1), [0, 0]);
    assert_eq!(announced(&nothing("to-guest", "p3"), false, 1), [1, 0]);
}

/// Who is rejected is told by the switch, past the lists of its own port: but only who might send what was rejected.
#[test]
fn who_may_not_send_is_not_told_that_it_is_rejected() {
    let rejects = LISTS.replace("'drop'", "'reject'");
    let mut bench = known();
    bench.set_access(&rejects);
    bench.set_guard(1, host());
    let spoofed = [&mac(2)[..], &mac(9), &dns()[12..]].concat();
    for _ in 0..2 {
        let frame = spoofed.clone();
        bench.send_and_decide(1, &frame);
        assert_eq!(bench.port(1).frames().len(), 0, "spoofed");
        bench.send_and_decide(1, &dns());
        assert_eq!(bench.port(1).frames().len(), 1, "its own");
    }
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
