//! Fragments of tracked datagrams, in both directions.

use std::ops::Range;

use e2e::beside;
use e2e::lasthop::{Lasthop, guest_ports};
use testkit::FakeGuest;
use testkit::packets::{Flow, UDP, parse, udp};

use super::frames::{SERVERS, builder, connect, is_denied, pass_once};
use super::{count, list};

/// Cuts of a datagram of three fragments.
const CUTS: [Range<usize>; 3] = [0..64, 64..128, 128..158];

/// A datagram, in fragments.
struct Datagram {
    flow: Flow,
    id: u16,
    bytes: Vec<u8>,
}

impl Datagram {
    fn new(flow: Flow, id: u16) -> Self {
        let frame = udp(&flow, &[7; 150]);
        let start = parse(&frame).expect("a datagram").l4;
        Self {
            flow,
            id,
            bytes: frame[start..].to_vec(),
        }
    }

    /// The fragment with these bytes.
    fn cut(&self, bytes: Range<usize>) -> Vec<u8> {
        let more = bytes.end < self.bytes.len();
        let frame = builder(&self.flow)
            .ip_id(self.id)
            .fragment(bytes.start as u16 / 8, more);
        frame.protocol(UDP).payload(&self.bytes[bytes]).build()
    }

    fn pieces(&self) -> [Vec<u8>; 3] {
        CUTS.map(|bytes| self.cut(bytes))
    }
}

/// Datagrams of one pair of guests, with an identification each.
struct Scene<'a> {
    lasthop: &'a Lasthop,
    id: u16,
}

impl Scene<'_> {
    fn next(&mut self, flow: Flow) -> Datagram {
        self.id += 1;
        Datagram::new(flow, self.id)
    }

    /// All three fragments arrive.
    fn arrives(&mut self, from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow) {
        for piece in self.next(flow).pieces() {
            pass_once(from, to, &piece);
        }
    }

    /// Later fragments wait for none: the datagram passes from its first fragment on.
    fn in_another_order(&mut self, from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow) {
        let early = self.lasthop.stats().get("drops.fragment-early");
        let whole = udp(&flow, b"whole");
        let [first, second, third] = self.next(flow).pieces();
        assert!(is_denied(from, to, &second, &whole));
        assert!(self.lasthop.stats().get("drops.fragment-early") > early);
        for piece in [first, third, second] {
            pass_once(from, to, &piece);
        }
    }

    /// RFC 1858, RFC 5722: what overlaps the first fragment, or has no whole header in it, makes
    /// the datagram invalid.
    fn forged(&mut self, from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow) {
        let whole = udp(&flow, b"whole");
        let right = self.next(flow);
        let [first, second, _] = right.pieces();
        pass_once(from, to, &first);
        assert!(is_denied(from, to, &right.cut(32..96), &whole));
        assert!(is_denied(from, to, &second, &whole));

        // A second first one, to a port that is not open.
        let right = self.next(flow);
        let [first, second, _] = right.pieces();
        pass_once(from, to, &first);
        let other = Datagram::new(flow.ports(flow.src_port, 22), right.id);
        assert!(is_denied(from, to, &other.cut(0..64), &whole));
        assert!(is_denied(from, to, &second, &whole));

        // Four bytes of the header would fit fragments that are no multiple of eight bytes long.
        let right = self.next(flow);
        assert!(is_denied(from, to, &right.cut(0..4), &whole));
        assert!(is_denied(from, to, &right.pieces()[1], &whole));
    }
}

#[test]
fn fragments_are_what_their_first_one_is() {
    let turn = beside();
    let keys = "[switch.connections]\nrecovery = 0\n";
    let lasthop = Lasthop::start(&(guest_ports(keys, &["vm1", "vm2", "vm3"]) + SERVERS));
    let [mut a, mut b, mut third] = connect(&lasthop, [1, 2, 3]);
    let (a, b) = (&mut a, &mut b);
    for (version, flow) in [("IPv4", Flow::v4(1, 2)), ("IPv6", Flow::v6(1, 2))] {
        turn.step(version);
        let question = flow.ports(4000, 80);
        let answer = question.reversed();
        let mut scene = Scene {
            lasthop: &lasthop,
            id: 0,
        };
        // The connection is opened by a fragment, and answered by one.
        scene.arrives(a, b, question);
        scene.arrives(b, a, answer);
        let open = format!("udp and host {}", question.src);
        assert_eq!(count(&lasthop, &open), 1);
        scene.in_another_order(a, b, question);
        scene.in_another_order(b, a, answer);
        scene.forged(a, b, question);
        scene.forged(b, a, answer);

        turn.step("those of a datagram that is denied, and of another port");
        let whole = udp(&question, b"whole");
        let denied = scene.next(flow.ports(4001, 22));
        for piece in denied.pieces() {
            assert!(is_denied(a, b, &piece, &whole));
        }
        let right = scene.next(question);
        pass_once(a, b, &right.cut(CUTS[0].clone()));
        let mut stolen = right.cut(CUTS[1].clone());
        stolen[6..12].copy_from_slice(&third.mac());
        let own = udp(&Flow::v4(3, 2).ports(4000, 80), b"own");
        assert!(is_denied(&mut third, b, &stolen, &own));
        pass_once(a, b, &right.cut(CUTS[1].clone()));
        assert_eq!(count(&lasthop, &open), 1, "{:?}", list(&lasthop, &open));
    }
    lasthop.stop();
}
