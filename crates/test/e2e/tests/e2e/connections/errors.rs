//! ICMP errors of routers about the connections of a guest that gets nothing but answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use e2e::beside;
use e2e::lasthop::{Lasthop, guest_ports};
use testkit::packets::{Flow, udp};

use super::frames::{Tcp, builder, connect, is_denied, pass_once};

/// `vm1` opens connections, and gets nothing but answers. Those of `vm2`, a router, and of `vm3`
/// get what opens one of these connections.
const LISTS: &str = r#"
[[acl]]
name = "out"
direction = "from-guest"
ports = ["vm1"]
[[acl.rule]]
name = "all"
action = "allow-stateful"
[[acl]]
name = "answers"
direction = "to-guest"
ports = ["vm1"]
[[acl.rule]]
name = "rest"
action = "drop"
[[acl]]
name = "router"
direction = "to-guest"
ports = ["vm2"]
[[acl.rule]]
name = "udp"
action = "allow-stateful"
protocol = "udp"
[[acl.rule]]
name = "tcp"
action = "allow-stateful"
protocol = "tcp"
[[acl.rule]]
name = "echo"
action = "allow-stateful"
protocol = "icmp"
icmp_type = 8
[[acl.rule]]
name = "echo6"
action = "allow-stateful"
protocol = "icmpv6"
icmp_type = 128
[[acl.rule]]
name = "rest"
action = "drop"
"#;

/// Length of the Ethernet header.
const ETHERNET: usize = 14;

/// A packet of a connection of `vm1` behind the router, and one that answers it.
struct Case {
    name: &'static str,
    sent: Vec<u8>,
    answer: Vec<u8>,
    /// Another one of the same guest, of no connection.
    foreign: Vec<u8>,
}

fn far(mut flow: Flow) -> Flow {
    flow.dst = match flow.dst {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 9).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9).into(),
    };
    flow
}

fn cases(flow: Flow) -> [Case; 3] {
    let flow = far(flow);
    let to = |port| flow.ports(33000, port);
    let echo = |identifier| builder(&flow).echo_request(identifier, 1).payload(&[5; 40]);
    let asks = echo(7).build();
    let back = flow.reversed();
    let answers = if flow.src.is_ipv4() { 0 } else { 129 };
    [
        Case {
            name: "UDP",
            sent: udp(&to(33434), &[1; 32]),
            answer: udp(&to(33434).reversed(), &[2; 32]),
            foreign: udp(&to(33435), &[1; 32]),
        },
        Case {
            name: "TCP",
            sent: Tcp(to(80)).syn(),
            answer: Tcp(to(80)).syn_ack(),
            foreign: Tcp(to(81)).syn(),
        },
        Case {
            name: "echo",
            sent: asks,
            answer: builder(&back)
                .icmp(answers, 0, [0, 7, 0, 1])
                .payload(&[5; 40])
                .build(),
            foreign: echo(8).build(),
        },
    ]
}

/// An ICMP error.
fn error(flow: &Flow, (kind, code): (u8, u8), quoted: &[u8]) -> Vec<u8> {
    let frame = builder(flow).icmp(kind, code, [0; 4]);
    frame.payload(quoted).build()
}

/// Errors by type and code: time exceeded, unreachable, too big, a bad parameter.
fn kinds(is_v4: bool) -> [(u8, u8); 4] {
    if is_v4 {
        [(11, 0), (3, 3), (3, 4), (12, 0)]
    } else {
        [(3, 0), (1, 4), (2, 0), (4, 0)]
    }
}

/// Quotations of no connection: cut, of another place, turned round, of another connection or
/// protocol.
fn damaged(case: &Case) -> Vec<(&'static str, Vec<u8>)> {
    let packet = &case.sent[ETHERNET..];
    let is_v4 = case.sent[12..14] == [8, 0];
    let header = if is_v4 { 20 } else { 40 };
    let changed = |at: usize, bytes: &[u8]| {
        let mut packet = packet.to_vec();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    let mut all = vec![
        ("no packet", Vec::new()),
        ("half a header", packet[..header / 2].to_vec()),
        ("no transport header", packet[..header].to_vec()),
        ("half of the ports", packet[..header + 2].to_vec()),
        ("another version", changed(0, &[0x50])),
        (
            "another protocol",
            changed(if is_v4 { 9 } else { 6 }, &[132]),
        ),
        (
            "the answer, as if the guest had sent that",
            case.answer[ETHERNET..].to_vec(),
        ),
        (
            "a connection that there is not",
            case.foreign[ETHERNET..].to_vec(),
        ),
        ("another sender", changed(if is_v4 { 15 } else { 23 }, &[3])),
    ];
    if is_v4 {
        all.push(("a later fragment", changed(6, &[0, 9])));
    }
    all
}

#[test]
fn errors_about_a_connection_reach_a_guest_that_gets_answers_alone() {
    let turn = beside();
    let keys = "[switch.connections]\nrecovery = 0\n";
    let lasthop = Lasthop::start(&(guest_ports(keys, &["vm1", "vm2", "vm3"]) + LISTS));
    let [mut guest, mut router, mut third] = connect(&lasthop, [1, 2, 3]);
    let (guest, router) = (&mut guest, &mut router);
    let to_third = udp(&Flow::v4(1, 3), b"question");
    let of_third = udp(&Flow::v4(1, 3).reversed(), b"answer");
    pass_once(guest, &mut third, &to_third);
    pass_once(&mut third, guest, &of_third);
    let families = [Flow::v4 as fn(u8, u8) -> Flow, Flow::v6];
    for (family, is_v4) in families.into_iter().zip([true, false]) {
        for (case, other) in cases(family(1, 2)).iter().zip(&cases(family(3, 2))) {
            turn.step(&format!("{}, {:?}", case.name, family(1, 2).src));
            let packet = &case.sent[ETHERNET..];
            // Eight bytes of the transport header (RFC 792), or all of the packet.
            let quotations = [&packet[..if is_v4 { 28 } else { 48 }], packet];
            let time_exceeded = kinds(is_v4)[0];
            pass_once(guest, router, &case.sent);
            for (kind, quoted) in kinds(is_v4)
                .iter()
                .flat_map(|k| quotations.map(|q| (*k, q)))
            {
                pass_once(router, guest, &error(&family(2, 1), kind, quoted));
            }
            pass_once(router, guest, &case.answer);
            for (what, quoted) in damaged(case) {
                let error = error(&family(2, 1), time_exceeded, &quoted);
                assert!(is_denied(router, guest, &error, &case.answer), "{what}");
            }

            // Of another guest's connection, and by another port of this one.
            pass_once(&mut third, router, &other.sent);
            let foreign = error(&family(2, 1), time_exceeded, &other.sent[ETHERNET..]);
            assert!(is_denied(router, guest, &foreign, &case.answer));
            let forged = error(&family(3, 1), time_exceeded, packet);
            assert!(is_denied(&mut third, guest, &forged, &of_third));

            // The guest's own errors: about an answer, and about what is none.
            let own = |quoted| error(&far(family(1, 2)), kinds(is_v4)[1], quoted);
            pass_once(guest, router, &own(&case.answer[ETHERNET..]));
            assert!(is_denied(guest, router, &own(packet), &case.sent));
        }
    }
    lasthop.stop();
}
