//! Frames served in batches are forwarded as if served one by one.

use port::Offload;
use proptest::prelude::*;
use testkit::packets::{Flow, ethernet, mac, tcp_super, udp, udp_partial, vlan_tagged};

use super::bench::{BLUE, Bench, offload};
use crate::ports::port::Accepts;

/// Frame that a guest sends.
#[derive(Clone, Debug)]
struct Sent {
    to: u8,
    frame: Vec<u8>,
    offload: Offload,
    plain: bool,
}

fn plain(to: u8, frame: Vec<u8>) -> Sent {
    Sent {
        to,
        frame,
        offload: Offload::default(),
        plain: true,
    }
}

/// Returns a known guest (2, 3, 4) or an unknown one (9).
fn to() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(2u8), 4 => Just(3u8), 2 => Just(4u8), 1 => Just(9u8)]
}

fn sent() -> impl Strategy<Value = Sent> {
    let udp_frame = |(to, len, n): (u8, usize, u16)| {
        let payload: Vec<u8> = (0..len).map(|i| (i + usize::from(n)) as u8).collect();
        plain(to, udp(&Flow::v4(1, to).ports(n % 3, 80), &payload))
    };
    let odd = |(to, len, at, value): (u8, usize, usize, u8)| {
        let mut frame = udp(&Flow::v4(1, to).ports(1, 80), &vec![6; len]);
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        Sent {
            plain: false,
            ..plain(to, frame)
        }
    };
    let short = |(to, len, n): (u8, usize, u8)| {
        let bytes = ethernet(mac(to), mac(1), 0x88b5, &vec![n; len]);
        plain(to, bytes[..14 + len].to_vec())
    };
    let tagged = |(to, vid, n): (u8, u16, u8)| Sent {
        to,
        frame: vlan_tagged(&udp(&Flow::v4(1, to), &[n; 50]), vid),
        offload: Offload::default(),
        plain: false,
    };
    let left_undone = |(to, len, segmented): (u8, usize, bool)| {
        let flow = Flow::v4(1, to);
        let (frame, header) = if segmented {
            tcp_super(&flow, 7, &vec![3; len], 1000)
        } else {
            udp_partial(&flow, &vec![5; len])
        };
        Sent {
            to,
            frame,
            offload: offload(&header),
            plain: false,
        }
    };
    prop_oneof![
        8 => (to(), 0..200usize, any::<u16>()).prop_map(udp_frame),
        2 => (to(), 200..9000usize, any::<u16>()).prop_map(udp_frame),
        3 => (to(), 0..200usize, 12..50usize, any::<u8>()).prop_map(odd),
        3 => (to(), 0..50usize, any::<u8>()).prop_map(short),
        1 => (to(), prop_oneof![Just(0u16), Just(10), Just(20)], any::<u8>()).prop_map(tagged),
        1 => (to(), 1..3000usize, any::<bool>()).prop_map(left_undone),
    ]
}

/// Returns flow batches of equal frames, so that action batches have all lengths.
fn batch() -> impl Strategy<Value = Vec<Sent>> {
    let batch_of_flow = (sent(), prop_oneof![3 => Just(1usize), 1 => 2..40usize]);
    prop::collection::vec(batch_of_flow, 1..20).prop_map(|flow_batches| {
        let frames = flow_batches.into_iter().flat_map(|(f, n)| vec![f; n]);
        frames.take(200).collect()
    })
}

/// Rules that depend on Ethernet only, on addresses, and on ports and flags.
const RULES: [&str; 3] = [
    "",
    "
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2', 'p3']
[[acl.rule]]
name = 'elsewhere'
action = 'drop'
source = ['10.0.0.128/25', '172.16.0.0/12']
",
    "
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2', 'p3']
[[acl.rule]]
name = 'one'
action = 'reject'
protocol = 'udp'
source_ports = [1]
[[acl.rule]]
name = 'flags'
action = 'drop'
protocol = 'tcp'
tcp_flags = 'syn/syn'
",
];

fn bench(rules: &str, pairs: u16, mtu: u32, room: usize) -> Bench {
    let mut bench = Bench::new();
    bench.set_access(rules);
    for guest in [1, 2, 3, 4] {
        bench.learn(BLUE, mac(guest), u32::from(guest));
    }
    for (guest, port) in [(2, 0), (2, 1), (3, 0), (3, 2), (4, 1)] {
        bench.send_and_decide(1, &udp(&Flow::v4(1, guest).ports(port, 80), &[0; 20]));
        bench.port(1).delivered();
        bench.port(u32::from(guest)).delivered();
    }
    bench.port(2).set_pairs(pairs);
    for guest in [2, 4] {
        bench.port(guest).set_room(room);
    }
    bench.port(3).set_mtu(mtu);
    bench.port(3).set_accepts(Accepts::default());
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_batch_is_forwarded_as_its_frames_one_by_one(
        frames in batch(),
        rules in prop::sample::select(&RULES[..]),
        pairs in 1..4u16,
        mtu in prop_oneof![Just(1500u32), Just(9000), Just(65_535)],
        room in prop_oneof![0..30usize, Just(usize::MAX)],
    ) {
        let bench = || bench(rules, pairs, mtu, room);
        let (mut together, mut single) = (bench(), bench());
        for sent in &frames {
            together.port(1).push(&sent.frame, sent.offload);
            single.port(1).push(&sent.frame, sent.offload);
            single.serve(1);
        }
        together.serve(1);
        prop_assert_eq!(together.reading(), single.reading());
        // Pending frames are released in order with those of the same answer.
        prop_assert_eq!(together.decide(), single.decide());
        prop_assert_eq!(together.reading(), single.reading());
        for port in 1..8 {
            let (got, desired) = (together.port(port).delivered(), single.port(port).delivered());
            prop_assert_eq!(&got, &desired, "port {}", port);
            if port == 2 && room == usize::MAX && rules.is_empty() {
                // Independent of the switch: plain frames arrive once, unchanged, in order.
                let plain = frames.iter().filter(|f| f.plain && f.to == 2);
                let expected: Vec<_> = plain.map(|f| &f.frame).collect();
                let got: Vec<_> = got.iter().map(|(frame, _)| frame).collect();
                prop_assert!(is_subsequence(&expected, &got));
            }
        }
    }
}

/// Returns whether `all` has the members of `part` in their order, among others.
fn is_subsequence<T: PartialEq>(part: &[T], all: &[T]) -> bool {
    let mut all = all.iter();
    part.iter().all(|desired| all.any(|got| got == desired))
}
