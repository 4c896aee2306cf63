//! Rows of the threat table about parsers in the data path. Without access lists and port security
//! decisions depend on the ingress port, VLAN and Ethernet addresses; so no frame may make a flow
//! with a wider match, and no frame gets a reply. With them, no frame may make a flow that matches
//! one with another decision.

use policy::DECISION_MASK;
use policy::port_security::{Macs, PortSecurity};
use testkit::packets::{Flow, mac, rarp, tcp, udp};
use wire::MacAddr;
use wire::build::PacketBuilder;

use super::bench::{Bench, Move::*};

const IPV6: u16 = 0x86dd;

/// Sends `odd` first, so that it makes a flow, and then `plain`, which has another destination or
/// none. Both arrive unchanged, and flows depend on the fields of decisions only.
#[track_caller]
fn matches_only_its_own(odd: &[u8], plain: &[(&[u8], u32)]) {
    let mut bench = Bench::with_stations();
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
    for flow in bench.switch.lookup.flows.records(bench.now) {
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

/// Rules that look as deep into a frame as possible.
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

fn host() -> PortSecurity {
    PortSecurity {
        macs: Macs::Only(vec![mac(1)]),
        no_dhcp_server: true,
        no_router: true,
        ..PortSecurity::default()
    }
}

/// Frame of port 1, and whether lists and port security pass it.
struct Case {
    frame: Vec<u8>,
    by_lists: bool,
    by_port_security: bool,
}

fn passes(frame: Vec<u8>) -> Case {
    let (by_lists, by_port_security) = (true, true);
    Case {
        frame,
        by_lists,
        by_port_security,
    }
}

fn lists_drop(frame: Vec<u8>) -> Case {
    Case {
        by_lists: false,
        ..passes(frame)
    }
}

fn port_security_drops(frame: Vec<u8>) -> Case {
    Case {
        by_port_security: false,
        ..passes(frame)
    }
}

fn both_drop(frame: Vec<u8>) -> Case {
    Case {
        by_lists: false,
        ..port_security_drops(frame)
    }
}

/// Checks that each frame has its own decision, in any order and with any cached flows.
#[track_caller]
fn each_is_decided_by_itself(cases: &[Case]) {
    for (lists, secured) in [("", true), (LISTS, false), (LISTS, true)] {
        for (first, second) in pairs(cases) {
            let mut bench = Bench::with_stations();
            bench.set_access(lists);
            if secured {
                bench.set_port_security(1, host());
            }
            for (round, case) in [first, second, first, second].into_iter().enumerate() {
                bench.send_and_decide(1, &case.frame);
                let arrived: usize = (1..=7).map(|id| bench.port(id).frames().len()).sum();
                let listed = lists.is_empty() || case.by_lists;
                let right = listed && (!secured || case.by_port_security);
                let frame = &case.frame;
                assert_eq!(
                    arrived > 0,
                    right,
                    "{round}: {lists} {secured} {frame:02x?} after {:02x?}",
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

/// Returns a DHCP server's offer.
fn offer() -> Vec<u8> {
    udp(&Flow::v4(1, 2).ports(67, 68), &[2; 40])
}

fn dns() -> Vec<u8> {
    udp(&Flow::v4(1, 2).ports(5, 53), &[2; 40])
}

/// Returns a neighbour discovery message of this type and code from the host to guest 2.
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
        lists_drop(pad(dns())),
        lists_drop(dns()),
        port_security_drops(pad(offer())),
        port_security_drops(offer()),
        passes(pad(to_3.clone())),
        passes(to_3),
    ]);
}

/// Without a rule above Ethernet the frame is forwarded. With one it is unparseable.
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
            lists_drop(odd),
            lists_drop(with_total(dns(), total)),
            both_drop(with_total(offer(), total)),
            passes(plain.clone()),
            passes(to_3.clone()),
            lists_drop(dns()),
        ]);
    }
    // The whole header and no port, or half of one.
    for total in [20, 21, 27] {
        each_is_decided_by_itself(&[
            lists_drop(with_total(plain.clone(), total)),
            lists_drop(with_total(dns(), total)),
            passes(plain.clone()),
            lists_drop(dns()),
            port_security_drops(offer()),
        ]);
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
        lists_drop(dns()),
        port_security_drops(offer()),
    ]);
}

#[test]
fn cve_2023_5366_a_neighbour_advertisement_makes_no_flow_for_others() {
    // ICMPv6 136 with a code that is not 0, and a truncated target option.
    let mut odd = udp(&Flow::v6(1, 2), &[3; 40]);
    assert_eq!(odd[12..14], IPV6.to_be_bytes());
    odd[14 + 6] = 58;
    odd[14 + 40..14 + 44].copy_from_slice(&[136, 7, 0, 0]);
    let (plain, to_3) = (udp(&Flow::v6(1, 2), &[4; 40]), honest());
    matches_only_its_own(&odd, &[(&plain, 2), (&to_3, 3)]);
    let cut_off = |kind| discovery(kind, 0)[..14 + 40 + 3].to_vec();
    let query = udp(&Flow::v6(1, 2).ports(5, 53), &[4; 40]);
    each_is_decided_by_itself(&[
        port_security_drops(discovery(136, 7)),
        lists_drop(discovery(136, 0)),
        passes(discovery(135, 0)),
        port_security_drops(discovery(135, 7)),
        port_security_drops(discovery(134, 0)),
        passes(discovery(128, 0)),
        both_drop(cut_off(136)),
        passes(plain),
        lists_drop(query),
    ]);
}

/// Frames that the switch generates on behalf of a guest pass its port security and lists, and
/// those of their receivers (OVN's CVE-2025-0650 and CVE-2024-2182: frames that a logical switch
/// generates or takes for its own passed no list).
#[test]
fn announcements_for_a_guest_pass_its_own_rules() {
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
    let announced = |lists: &str, secured: bool, station: u8| {
        let mut bench = Bench::with_stations();
        bench.set_access(lists);
        if secured {
            bench.set_port_security(1, host());
        }
        // Decided by an upcall, and then by the cache.
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

/// The switch sends replies to rejected frames past the lists of the sender's port, but only for
/// frames that the sender was allowed to send.
#[test]
fn a_forbidden_sender_gets_no_reply_to_rejected_frames() {
    let rejects = LISTS.replace("'drop'", "'reject'");
    let mut bench = Bench::with_stations();
    bench.set_access(&rejects);
    bench.set_port_security(1, host());
    let spoofed = [&mac(2)[..], &mac(9), &dns()[12..]].concat();
    for _ in 0..2 {
        let frame = spoofed.clone();
        bench.send_and_decide(1, &frame);
        assert_eq!(bench.port(1).frames().len(), 0, "spoofed");
        bench.send_and_decide(1, &dns());
        assert_eq!(bench.port(1).frames().len(), 1, "its own");
    }
}
