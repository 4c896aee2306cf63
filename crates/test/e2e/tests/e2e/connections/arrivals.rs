//! A guest that has migrated here: its connections are met in their middle.

use std::collections::BTreeSet;

use e2e::beside;
use e2e::lasthop::{Lasthop, guest_ports};
use testkit::FakeGuest;
use testkit::packets::{Flow, udp};
use testkit::wait::wait_until;
use wire::tcp::{ACK, FIN, PSH, RST, SYN, URG};

use super::frames::{Tcp, announce, connect, is_denied, pass, segment};
use super::{apply, list};

/// `vm3` serves port 80, and opens connections to port 5001; no other TCP.
const LISTS: &str = r#"
[[acl]]
name = "vm3-in"
direction = "to-guest"
ports = ["vm3"]
[[acl.rule]]
name = "web"
action = "allow-stateful"
protocol = "tcp"
destination_ports = [80]
[[acl.rule]]
name = "rest"
action = "drop"
protocol = "tcp"
[[acl]]
name = "vm3-out"
direction = "from-guest"
ports = ["vm3"]
[[acl.rule]]
name = "storage"
action = "allow-stateful"
protocol = "tcp"
destination_ports = [5001]
[[acl.rule]]
name = "rest"
action = "drop"
protocol = "tcp"
"#;

fn config(recovery: u16) -> String {
    let keys = format!("[switch.connections]\nrecovery = {recovery}\n");
    guest_ports(&keys, &["vm1", "vm2", "vm3"]) + LISTS
}

/// Flags that scanners send, but for SYN alone.
const SCANS: [u16; 8] = [
    SYN | ACK,
    ACK,
    ACK | PSH,
    FIN | ACK,
    FIN,
    RST | ACK,
    0,
    FIN | PSH | URG,
];

/// Source port, destination port, flags.
type Knock = (u16, u16, u16);

/// Segments that the rule of the server lets in, first or in the middle.
const BY_RULES: [Knock; 3] = [(443, 80, SYN), (443, 80, ACK), (443, 80, ACK | PSH)];
/// Segments that the guest gets as answers that it may wait for.
const ANSWERS: [Knock; 4] = [
    (5001, 22, ACK),
    (5001, 22, ACK | PSH),
    (5001, 5001, ACK),
    (5001, 5001, ACK | PSH),
];

/// A connection of each direction: to the guest's server, and by the guest.
fn pair(number: u16) -> [Tcp; 2] {
    [
        Tcp::new((1, 3), (4000 + number, 80)),
        Tcp::new((3, 1), (5000 + number, 5001)),
    ]
}

/// A datagram that is always allowed.
fn probe(from: &FakeGuest) -> Vec<u8> {
    let [.., number] = from.mac();
    let flow = match number {
        3 => Flow::v4(3, 1).ports(9, 9),
        _ => Flow::v4(number, 3).ports(9, 9),
    };
    udp(&flow, b"probe")
}

/// Tries all flags, from a port that the guest may connect to and from others. Returns which of
/// them arrive.
fn scan(from: &mut FakeGuest, to: &mut FakeGuest, first: u16) -> BTreeSet<Knock> {
    let mut sent = Vec::new();
    for (client, guest) in [(5001, 22), (5001, 5001), (443, 22), (443, 80)] {
        for (at, flags) in [SYN].into_iter().chain(SCANS).enumerate() {
            // Each segment is the first one of its tuple: the addresses differ.
            let mut flow = Flow::v4(1, 3).ports(client, guest);
            flow.src = [10, 1, first as u8, at as u8].into();
            let seq = 77_000 + u32::from(guest);
            let frame = segment(&flow, (seq, 500), flags, &[]);
            sent.push(((client, guest, flags), frame));
        }
    }
    let last = probe(from);
    let mut got = BTreeSet::new();
    // The first frames of each kind wait for control, and come again.
    for _ in 0..3 {
        got.remove(&last);
        wait_until("what the rules let in arrives", || {
            for (_, frame) in &sent {
                from.send(frame).expect("room");
            }
            from.send(&last).expect("room");
            let all = to.recv_all().expect("a correct device");
            got.extend(all.into_iter().map(|got| got.frame));
            let mut open = sent.iter().filter(|(what, _)| BY_RULES.contains(what));
            got.contains(&last) && open.all(|(_, frame)| got.contains(frame))
        });
    }
    let arrived = sent.into_iter().filter(|(_, frame)| got.contains(frame));
    arrived.map(|(what, _)| what).collect()
}

#[test]
fn a_guest_that_arrives_is_met_in_the_middle_of_its_connections_for_a_while() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lasthop = Lasthop::start(&config(0));
    let [mut a, _b] = connect(&lasthop, [1, 2]);
    let a = &mut a;
    let set = |recovery| apply(&lasthop, folder.path(), &config(recovery));

    turn.step("the table is not new, nor is another guest");
    let mut before = lasthop.connect("vm3", 3);
    announce(&lasthop, &mut [&mut before]);
    let [upload, download] = pair(0);
    let closed = |a: &mut FakeGuest, c: &mut FakeGuest, [upload, download]: [Tcp; 2]| {
        let (from_a, from_c) = (probe(a), probe(c));
        assert!(is_denied(c, a, &upload.answer(), &from_c));
        assert!(is_denied(a, c, &download.answer(), &from_a));
    };
    closed(a, &mut before, [upload, download]);
    set(3600);
    closed(a, &mut before, [upload, download]);
    assert_eq!(scan(a, &mut before, 0), BY_RULES.into());
    before.disconnect().expect("a good end");
    lasthop.wait_port("vm3", "waiting");

    turn.step("a guest arrives");
    let mut guest = lasthop.connect("vm3", 3);
    announce(&lasthop, &mut [&mut guest]);
    let c = &mut guest;
    // Whichever side speaks first.
    let [upload, download] = pair(1);
    pass(c, a, [upload.answer(), download.data()]);
    pass(a, c, [upload.data(), download.answer()]);
    let [other_upload, other_download] = pair(2);
    pass(a, c, [other_upload.data(), other_download.answer()]);
    pass(c, a, [other_upload.answer(), other_download.data()]);
    for (filter, rule) in [("dst port 80", "web"), ("dst port 5001", "storage")] {
        let all = list(&lasthop, filter);
        assert!(all.len() >= 2, "{all:?}");
        assert!(all.iter().all(|of| of["rule"] == rule), "{all:?}");
    }

    turn.step("a scan");
    let all = [&BY_RULES[..], &ANSWERS].concat();
    assert_eq!(scan(a, c, 1), all.into_iter().collect());

    turn.step("the time is over");
    set(0);
    closed(a, c, pair(3));
    pass(a, c, [upload.data(), other_download.answer()]);
    assert_eq!(scan(a, c, 2), BY_RULES.into());
    lasthop.stop();
}
