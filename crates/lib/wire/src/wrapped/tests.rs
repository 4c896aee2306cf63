use proptest::{collection::vec, prelude::*};

use crate::SNAPSHOT;
use crate::flow::{FlowKey, KeyState};
use crate::packet::{L3, ParsedHeaders};

/// Encapsulation around a packet.
#[derive(Clone, Copy, Debug)]
enum Wrapping {
    /// A tag of this kind, and its contents.
    Tag(u16, u16),
    /// A length, LLC and SNAP.
    Snap([u8; 6]),
    /// A length and LLC, with the protocol that follows.
    Llc([u8; 3]),
}

impl Wrapping {
    fn around(self, (ethertype, packet): (u16, Vec<u8>)) -> (u16, Vec<u8>) {
        let within = [&ethertype.to_be_bytes()[..], &packet].concat();
        let length = |bytes: &[u8]| bytes.len().min(1500) as u16;
        match self {
            Self::Tag(kind, tci) => (kind, [&tci.to_be_bytes()[..], &within].concat()),
            Self::Snap(snap) => {
                let bytes = [&snap[..], &within].concat();
                (length(&bytes), bytes)
            }
            Self::Llc(llc) => {
                let bytes = [&llc[..], &packet].concat();
                (length(&bytes), bytes)
            }
        }
    }
}

fn wrapping() -> impl Strategy<Value = Wrapping> {
    let tci = prop_oneof![Just(0u16), Just(0xe000), Just(5), any::<u16>()];
    let kind = prop_oneof![Just(0x8100u16), Just(0x88a8), Just(0x9100)];
    let llc = prop_oneof![
        Just([0xaa, 0xaa, 3]),
        Just([0xab, 0xaa, 3]),
        Just([0xaa, 0xaa, 0x13]),
        Just([6, 6, 3]),
        Just([7, 6, 3]),
        Just([0x98, 0x98, 3]),
        Just([0x42, 0x42, 3]),
        any::<[u8; 3]>()
    ];
    let oui = prop_oneof![
        Just([0, 0, 0]),
        Just([0, 0, 0xf8]),
        Just([0, 0, 0xc]),
        any::<[u8; 3]>()
    ];
    prop_oneof![
        (kind, tci).prop_map(|(kind, tci)| Wrapping::Tag(kind, tci)),
        (llc.clone(), oui).prop_map(|([a, b, c], [d, e, f])| Wrapping::Snap([a, b, c, d, e, f])),
        llc.prop_map(Wrapping::Llc),
    ]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = prop_oneof![Just(0x0800u16), Just(0x0806), Just(0x86dd), any::<u16>()];
    let first = prop_oneof![Just(0x45u8), Just(0x60), any::<u8>()];
    let packet = (first, vec(any::<u8>(), 0..60)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    });
    let all = (ethertype, packet, vec(wrapping(), 0..4), 0usize..200);
    all.prop_map(|(ethertype, packet, wrappings, cut)| {
        let around = |within, wrapping: &Wrapping| wrapping.around(within);
        let (ethertype, packet) = wrappings.iter().fold((ethertype, packet), around);
        let addresses = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let mut frame = [&addresses[..], &ethertype.to_be_bytes(), &packet].concat();
        frame.truncate(frame.len().max(14).min(60 + cut));
        frame
    })
}

/// Returns the EtherType and depth of a packet for a receiver that removes all encapsulation that
/// any might: tags without a VLAN, and LLC and SNAP (RFC 1042, IEEE 802.1H) without parsing more of
/// it than necessary.
fn unwrapped(mut ethertype: u16, mut bytes: &[u8]) -> (u16, usize) {
    let mut layers = 0;
    loop {
        let (within, len) = match (ethertype, bytes) {
            (0x8100 | 0x88a8, [high, low, a, b, ..]) if (high & 0xf, *low) == (0, 0) => {
                ([*a, *b], 4)
            }
            (..0x600, [0xaa | 0xab, _, _, 0, 0, 0 | 0xf8, a, b, ..]) => ([*a, *b], 8),
            (..0x600, [6 | 7, _, _, first, ..]) if first >> 4 == 4 => ([8, 0], 3),
            (..0x600, [6 | 7, _, _, first, ..]) if first >> 4 == 6 => ([0x86, 0xdd], 3),
            (..0x600, [0x98 | 0x99, _, _, ..]) => ([8, 6], 3),
            _ => return (ethertype, layers),
        };
        // No receiver is known to parse LLC within SNAP.
        let snap = len == 8 && within[0] < 6;
        if snap {
            return (ethertype, layers);
        }
        (ethertype, bytes) = (u16::from_be_bytes(within), &bytes[len..]);
        layers += 1;
    }
}

fn parsed(frame: &[u8]) -> ParsedHeaders {
    ParsedHeaders::parse(&frame[..frame.len().min(SNAPSHOT)], frame.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_a_receiver_may_unwrap_is_known_to_be_hidden(frame in frame()) {
        let p = parsed(&frame);
        prop_assume!(p.has_ethernet());
        let behind = &frame[usize::from(p.l3_offset)..];
        let (ethertype, layers) = unwrapped(p.ethertype.0, behind);
        if layers > 0 && matches!(ethertype, 0x0800 | 0x0806 | 0x86dd) {
            prop_assert_eq!(p.l3, L3::Hidden);
        }
        let key = FlowKey::new(1, &p);
        prop_assert_eq!(key.state() == KeyState::HIDDEN, p.l3 == L3::Hidden);
    }
}

#[test]
fn frames_that_no_receiver_takes_for_ip_are_not_hidden() {
    let of = |ethertype: u16, behind: &[u8]| {
        let frame = [&[2; 12][..], &ethertype.to_be_bytes(), behind].concat();
        parsed(&frame).l3
    };
    let others: [(u16, &[u8]); 9] = [
        // Spanning tree, Cisco's discovery protocol, AppleTalk's ARP, IPX in three ways.
        (38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0]),
        (100, &[0xaa, 0xaa, 3, 0, 0, 0xc, 0x20, 0]),
        (100, &[0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0xf3]),
        (100, &[0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x37]),
        (100, &[0xe0, 0xe0, 3, 0xff, 0xff, 0, 0, 0]),
        (100, &[0xff, 0xff, 0, 0x22, 0, 0, 0, 0]),
        (0x88a8, &[0, 5, 8, 0, 0x45, 0, 0, 0]),
        (0x88cc, &[2, 7, 4, 0, 0, 0, 0, 0]),
        (100, &[]),
    ];
    for (ethertype, behind) in others {
        assert_eq!(
            of(ethertype, behind),
            L3::Other,
            "{ethertype:x} {behind:x?}"
        );
    }
    assert_eq!(of(0x88a8, &[0xe0, 0, 8, 0]), L3::Hidden);
    assert_eq!(of(0x88a8, &[]), L3::Hidden, "who knows");
}
