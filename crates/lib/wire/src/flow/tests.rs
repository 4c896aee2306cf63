use super::*;
use crate::{
    VlanTci,
    build::{PacketBuilder, TcpFields},
};
use proptest::prelude::*;
use std::collections::HashSet;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn key(b: &PacketBuilder) -> FlowKey {
    let frame = b.build();
    FlowKey::new(7, &ParsedHeaders::parse(&frame, frame.len()))
}

fn tcp4() -> PacketBuilder {
    let tcp = TcpFields {
        src_port: 1000,
        dst_port: 80,
        flags: 0x12,
        ..TcpFields::default()
    };
    PacketBuilder::new(A, B)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tos(0x28)
        .tcp(tcp)
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    any::<[u64; 8]>().prop_map(FlowKey)
}

#[test]
fn fields_come_back() {
    let k = key(&tcp4().vlan(VlanTci {
        pcp: 7,
        dei: true,
        vid: 0xfff,
    }));
    assert_eq!(
        (k.in_port(), k.vlan(), k.ethertype()),
        (7, Some(0xfff), EtherType::IPV4)
    );
    assert_eq!((k.smac(), k.dmac(), k.ip_proto(), k.tos()), (A, B, 6, 0x28));
    assert_eq!(
        (k.l4_src(), k.l4_dst(), k.l4_flags(), k.state()),
        (1000, 80, 0x12, KeyState::empty())
    );
    assert_eq!((k.src_ip(), k.dst_ip()), (0x0a00_0001, 0x0a00_0002));
}

#[test]
fn a_key_can_be_put_together_by_hand() {
    let k = FlowKey::default()
        .with_in_port(7)
        .with_smac(A)
        .with_dmac(B)
        .with_ethertype(EtherType::IPV4)
        .with_src_ip(0x0a00_0001)
        .with_dst_ip(0x0a00_0002)
        .with_ip_proto(6)
        .with_l4_flags(0x12)
        .with_l4_ports(1000, 80);
    let parsed = key(&tcp4().tos(0));
    assert_eq!(k, parsed);
    let later = k.with_state(KeyState::LATER_FRAGMENT);
    assert_eq!(later.state(), KeyState::LATER_FRAGMENT);
    assert_eq!(later.with_state(KeyState::empty()), k);
}

#[test]
fn bits_of_a_field_add_up_and_touch_no_other() {
    let some = FlowMask::NONE
        .with_l4_dst_bits(0xff00)
        .with_l4_dst_bits(0xf0);
    assert_eq!(FlowKey(*some.words()).l4_dst(), 0xfff0);
    assert_eq!(
        FlowKey(*some.words()).with_l4_ports(0, 0),
        FlowKey::default()
    );
    assert_eq!(some.with_l4_dst_bits(0xf), FlowMask::NONE.with_l4_dst());
    let source = FlowMask::NONE.with_l4_src_bits(u16::MAX);
    assert_eq!(source, FlowMask::NONE.with_l4_src());
    let flags = FlowMask::NONE.with_l4_flags_bits(0x12);
    assert_eq!(
        FlowKey(*flags.words()),
        FlowKey::default().with_l4_flags(0x12)
    );
}

#[test]
fn priority_is_no_part_of_a_flow_but_a_priority_tag_is() {
    let tagged = |pcp| {
        key(&tcp4().vlan(VlanTci {
            pcp,
            dei: false,
            vid: 5,
        }))
    };
    assert_eq!(tagged(0), tagged(7));
    let priority_tag = key(&tcp4().vlan(VlanTci::new(0)));
    assert_eq!((priority_tag.vlan(), key(&tcp4()).vlan()), (Some(0), None));
    assert_ne!(priority_tag, key(&tcp4()));
}

#[test]
fn ipv6_addresses_fill_both_words() {
    let (src, dst) = (
        "fe80::1".parse::<std::net::Ipv6Addr>().unwrap(),
        "ff02::2".parse::<std::net::Ipv6Addr>().unwrap(),
    );
    let k = key(&PacketBuilder::new(A, B).ipv6(src, dst).udp(1, 2));
    assert_eq!((k.src_ip(), k.dst_ip()), (src.to_bits(), dst.to_bits()));
    assert_eq!((k.words()[4], k.words()[5]), (1, 0xfe80 << 48));
}

#[test]
fn states_tell_zero_from_unknown() {
    let v4 = || PacketBuilder::new(A, B).ipv4([1, 1, 1, 1], [2, 2, 2, 2]);
    let known = key(&v4().udp(0, 0));
    let unknown = key(&v4().protocol(17).payload(&[0; 4]));
    let later = key(&v4().fragment(1, false).udp(9, 9));
    assert_eq!(known.state(), KeyState::empty());
    assert_eq!(unknown.state(), KeyState::L4_UNKNOWN);
    assert_eq!(later.state(), KeyState::FRAGMENT | KeyState::LATER_FRAGMENT);
    assert_eq!(
        key(&v4().fragment(0, true).udp(9, 9)).state(),
        KeyState::FRAGMENT
    );
    let malformed = key(&PacketBuilder::new(A, B)
        .ethertype(EtherType::IPV4)
        .payload(&[0; 40]));
    assert_eq!(
        (malformed.state(), malformed.src_ip()),
        (KeyState::L3_MALFORMED, 0)
    );
}

#[test]
fn arp_shows_its_addresses() {
    let k =
        key(&PacketBuilder::new(A, MacAddr::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 2]));
    assert_eq!(
        (k.ip_proto(), k.src_ip(), k.dst_ip()),
        (1, 0x0a00_0001, 0x0a00_0002)
    );
}

#[test]
fn text_is_for_people() {
    let text = format!("{:?}", key(&tcp4().vlan(VlanTci::new(5))));
    for part in [
        "in_port: 7",
        "vlan: 5",
        "ethertype: ipv4",
        "smac: 02:00:00:00:00:01",
        "src_ip: 10.0.0.1",
        "l4_dst: 80",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let mask = FlowMask::NONE
        .with_in_port()
        .with_dmac()
        .with_src_ip_bits(0xffff_ff00);
    assert_eq!(format!("{mask:?}"), "{in_port, dmac, src_ip&0xffffff00}");
    assert_eq!(format!("{:?}", FlowMask::EXACT), "FlowMask(exact)");
}

#[test]
fn the_connection_state_lies_beside_the_ingress_port_and_touches_nothing_else() {
    let state = CtState::TRACKED | CtState::ESTABLISHED | CtState::REPLY;
    let ct = Ct::new(state, 0xa5);
    assert_eq!((ct.state(), ct.mark()), (state, 0xa5));
    assert_eq!(Ct::from_bits(ct.bits()), ct);
    let plain = key(&tcp4().vlan(VlanTci::new(5)));
    let tracked = plain.with_ct(ct);
    assert_eq!((plain.ct(), tracked.ct()), (Ct::UNTRACKED, ct));
    assert_eq!((tracked.in_port(), tracked.vlan()), (7, Some(5)));
    assert_eq!(tracked.with_ct(Ct::UNTRACKED), plain);
    // No number of a port reaches the state.
    let high = tracked.with_in_port(u32::MAX);
    assert_eq!((high.in_port() as usize, high.ct()), (PORTS - 1, ct));
    let frame = tcp4().build();
    let parsed = ParsedHeaders::parse(&frame, frame.len());
    let keys = [
        FlowKey::new(u32::MAX, &parsed),
        FlowKey::of_ethernet(u32::MAX, &frame).expect("an Ethernet header"),
        FlowKey::of_plain_ipv4(u32::MAX, &frame, frame.len()).expect("plain"),
    ];
    assert!(keys.iter().all(|key| key.ct() == Ct::UNTRACKED));
}

#[test]
fn flows_of_established_frames_stay_short() {
    let mask = FlowMask::NONE.with_in_port().with_ct().with_dmac();
    assert!(!mask.is_long() && FlowMask::ETHERNET.covers(&mask));
    assert_eq!(PlainMask::new(&mask.with_ct()), PlainMask::new(&mask));
    let (new, known) = (Ct::new(CtState::NEW, 0), Ct::new(CtState::ESTABLISHED, 0));
    let hash = MaskedHash::new(&mask, 42);
    let base = key(&tcp4());
    assert_ne!(
        base.with_ct(new).masked(&mask),
        base.with_ct(known).masked(&mask)
    );
    assert_ne!(
        hash.hash(&base.with_ct(new)),
        hash.hash(&base.with_ct(known))
    );
}

#[test]
fn a_connection_state_is_shown_where_there_is_one() {
    let base = key(&tcp4());
    assert!(!format!("{base:?}").contains("ct"), "{base:?}");
    let ct = |state, mark| format!("{:?}", base.with_ct(Ct::new(state, mark)));
    let text = ct(CtState::TRACKED | CtState::ESTABLISHED | CtState::REPLY, 0);
    assert!(text.contains("in_port: 7, ct: trk|est|rpl, vlan"), "{text}");
    let text = ct(CtState::all(), 3);
    let all = "ct: trk|new|est|rel|rpl|inv|stale|moved mark 3, ";
    assert!(text.contains(all), "{text}");
    assert!(ct(CtState::empty(), 3).contains("ct: mark 3, "));
    let mask = FlowMask::NONE.with_in_port().with_ct();
    assert_eq!(format!("{mask:?}"), "{in_port, ct}");
}

#[test]
fn all_fields_together_leave_only_the_reserved_bits() {
    let all = FlowMask::NONE
        .with_in_port()
        .with_ct()
        .with_vlan()
        .with_frame_class()
        .with_ethertype()
        .with_dmac()
        .with_smac()
        .with_ip_proto()
        .with_tos()
        .with_l4_flags()
        .with_l4_src()
        .with_l4_dst()
        .with_state()
        .with_src_ip()
        .with_dst_ip();
    let mut expected = [u64::MAX; 8];
    expected[3] >>= 16;
    assert_eq!(*all.words(), expected);
}

#[test]
fn hash_spreads_keys_that_differ_in_one_field() {
    let base = key(&tcp4());
    let mut low = HashSet::new();
    for port in 0..4096 {
        low.insert(base.with_in_port(port).hash(1) & 0xffff);
    }
    // 4096 balls in 65536 bins leave about 3970 bins hit.
    assert!(low.len() > 3900, "{}", low.len());
}

#[test]
fn hash_does_not_leave_a_word_out() {
    for seed in [0, 1, u64::MAX] {
        for word in 0..8 {
            let hashes: HashSet<u64> = (0..64)
                .map(|bit| {
                    let mut w = [0; 8];
                    w[word] = 1u64 << bit;
                    FlowKey(w).hash(seed)
                })
                .collect();
            assert_eq!(hashes.len(), 64, "seed {seed} word {word}");
        }
    }
}

#[test]
fn hash_flips_half_of_its_bits() {
    let base = key(&tcp4());
    let mut flipped = 0u32;
    for bit in 0..512 {
        let mut w = base.0;
        w[bit / 64] ^= 1 << (bit % 64);
        flipped += (FlowKey(w).hash(42) ^ base.hash(42)).count_ones();
    }
    let mean = f64::from(flipped) / 512.0;
    assert!((30.0..34.0).contains(&mean), "{mean}");
}

proptest! {
    #[test]
    fn words_round_trip(k in any_key()) {
        prop_assert_eq!(FlowKey::from_words(*k.words()), k);
        prop_assert_eq!(k.words()[0] as u16, k.in_port() as u16);
        let mask = FlowMask::from_words(*k.words());
        prop_assert_eq!(mask.words(), k.words());
    }

    #[test]
    fn masking(k in any_key(), m in any_key(), n in any_key()) {
        let (m, n) = (FlowMask::from_words(*m.words()), FlowMask::from_words(*n.words()));
        prop_assert_eq!(k.masked(&FlowMask::EXACT), k);
        prop_assert_eq!(k.masked(&FlowMask::NONE), FlowKey::default());
        prop_assert_eq!(k.masked(&m).masked(&m), k.masked(&m));
        prop_assert!(m.union(&n).covers(&m) && m.union(&n).covers(&n));
        prop_assert_eq!(k.masked(&m.union(&n)).masked(&m), k.masked(&m));
    }

    #[test]
    fn the_seed_matters(k in any_key(), a: u64, b: u64) {
        prop_assume!(a != b);
        prop_assert_ne!(k.hash(a), k.hash(b));
    }
}

proptest! {
    #[test]
    fn the_short_way_to_an_ethernet_key_is_the_long_one(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..40),
        tagged in any::<bool>(),
        port in any::<u32>(),
    ) {
        if tagged && bytes.len() > 13 {
            bytes[12..14].copy_from_slice(&[0x81, 0]);
        }
        let parsed = ParsedHeaders::parse(&bytes, bytes.len());
        let long = FlowKey::new(port, &parsed).masked(&FlowMask::ETHERNET);
        prop_assert_eq!(
            FlowKey::of_ethernet(port, &bytes),
            parsed.has_ethernet().then_some(long)
        );
    }
}

#[test]
fn a_masked_hash_spreads_what_its_mask_counts() {
    let ethernet = MaskedHash::new(&FlowMask::ETHERNET, 42);
    let exact = MaskedHash::new(&FlowMask::EXACT, 42);
    assert!(!ethernet.is_long() && exact.is_long());
    let base = key(&tcp4());
    let (mut flipped, mut low) = (0u32, HashSet::new());
    for bit in 0..512 {
        let mut w = base.0;
        w[bit / 64] ^= 1 << (bit % 64);
        flipped += (exact.hash(&FlowKey(w)) ^ exact.hash(&base)).count_ones();
    }
    let mean = f64::from(flipped) / 512.0;
    assert!((30.0..34.0).contains(&mean), "{mean}");
    for port in 0..4096 {
        low.insert(ethernet.hash(&base.with_in_port(port)) & 0xffff);
    }
    assert!(low.len() > 3900, "{}", low.len());
}

proptest! {
    #[test]
    fn a_masked_hash_sees_its_mask_and_nothing_else(
        k in any_key(), l in any_key(), m in any_key(), seed: u64,
    ) {
        let mask = FlowMask::from_words(*m.words());
        let hash = MaskedHash::new(&mask, seed);
        prop_assert_eq!(hash.hash(&k), hash.hash(&k.masked(&mask)));
        prop_assert_eq!(hash.hash(&k) == hash.hash(&l), k.masked(&mask) == l.masked(&mask));
        prop_assert_ne!(hash.hash(&k), MaskedHash::new(&mask, seed ^ 1).hash(&k));
        prop_assert_eq!(FlowKey::from_words(*k.words()), k);
    }

    #[test]
    fn a_frame_class_comes_back_from_a_key(bits in 0u8..8, words: [u64; 8]) {
        let frame_class = FrameClass::from_bits(bits);
        let key = FlowKey::from_words(words);
        let with = key.with_frame_class(frame_class);
        prop_assert_eq!(with.frame_class(), frame_class);
        let fields = |key: &FlowKey| (key.vlan(), key.ethertype(), key.in_port());
        prop_assert_eq!(fields(&with), fields(&key));
        prop_assert_eq!(with.with_vlan(Some(9)).frame_class(), frame_class);
    }
}

#[test]
fn keys_are_printed_by_field() {
    let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let of = |frame: crate::build::PacketBuilder| {
        let frame = frame.build();
        let key = FlowKey::new(1, &ParsedHeaders::parse(&frame, frame.len()));
        key.in_words().to_string()
    };
    let from = || crate::build::PacketBuilder::new(a, b);
    let v4 = || from().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = || from().ipv6(std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    assert_eq!(of(v4().udp(5, 53)), "udp 10.0.0.1:5 > 10.0.0.2:53");
    assert_eq!(of(v6().udp(5, 53)), "udp [::1]:5 > [::1]:53");
    assert_eq!(
        of(v4().echo_request(1, 1)),
        "icmp type 8 10.0.0.1 > 10.0.0.2"
    );
    assert_eq!(of(v4().protocol(47)), "ip protocol 47 10.0.0.1 > 10.0.0.2");
    assert_eq!(
        of(from().arp_request([10, 0, 0, 1], [10, 0, 0, 2])),
        "arp 10.0.0.1 > 10.0.0.2"
    );
    assert!(of(from()).ends_with("02:00:00:00:00:01 > 02:00:00:00:00:02"));
}

#[test]
fn a_known_connection_is_tracked_and_stands() {
    let known = CtState::ESTABLISHED | CtState::RELATED;
    let asked = CtState::STALE | CtState::MOVED | CtState::INVALID;
    for bits in 0..=u8::MAX {
        let state = CtState::from_bits_retain(bits);
        let stands = state.intersects(known) && !state.intersects(asked);
        let tracked = state.contains(CtState::TRACKED);
        assert_eq!(state.is_known(), tracked && stands, "{state:?}");
    }
}
