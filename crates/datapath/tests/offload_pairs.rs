//! Offloads between guests with different features: every legal set of a sender with every legal
//! set of a receiver, with frames of random sizes over split and packed rings, merged and big
//! buffers, and buffers in several segments. Arriving frames are compared with an independent model
//! of a NIC.

mod common;

use channel::records::Answer;
use common::{NoUpcalls, guest};
use datapath::forward::switch::Switch;
use datapath::ports::guest::GuestPort;
use port::counters::{Counters, PortCounts};
use port::{DropReason, PortId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::driver::Shape;
use testkit::features::*;
use testkit::net::{
    Cuts, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, NetHeader, NetOptions,
    NetPair, Received,
};
use testkit::packets::{
    Flow, on_the_wire, tcp, tcp_partial, tcp_super, udp, udp_partial, udp_super, verify_checksums,
    verify_partial,
};
use wire::flow::{FlowKey, FlowMask};

const SENDER: u32 = 1;
const RECEIVER: u32 = 100;
/// Layouts of senders, and of receivers.
const SENDERS: usize = 3;
const RECEIVERS: usize = 7;

/// Returns all subsets of `bits` that `legal` allows.
fn subsets(bits: &[u64], legal: impl Fn(u64) -> bool) -> Vec<u64> {
    let of = |n: usize| {
        let chosen = bits.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1);
        chosen.fold(0, |set, (_, bit)| set | bit)
    };
    (0..1 << bits.len()).map(of).filter(|s| legal(*s)).collect()
}

/// Returns the feature sets of senders (virtio 1.3 section 5.1.3.1): segmentation needs CSUM, ECN
/// needs TSO.
fn sender_sets() -> Vec<u64> {
    subsets(&[CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN, HOST_USO], |s| {
        (s & CSUM != 0 || s == 0) && (s & HOST_ECN == 0 || s & (HOST_TSO4 | HOST_TSO6) != 0)
    })
}

/// Returns the feature sets of receivers.
fn receiver_sets() -> Vec<u64> {
    let bits = [
        GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_ECN, GUEST_USO4, GUEST_USO6,
    ];
    subsets(&bits, |s| {
        (s & GUEST_CSUM != 0 || s == 0)
            && (s & GUEST_ECN == 0 || s & (GUEST_TSO4 | GUEST_TSO6) != 0)
    })
}

/// Sizes and layouts of one run over all pairs.
#[derive(Clone, Debug)]
struct Sample {
    lens: Vec<usize>,
    mss: Vec<u16>,
    piece: u32,
    rx_piece: u32,
}

fn a_sample() -> impl Strategy<Value = Sample> {
    let len = prop_oneof![2 => 0..3_000usize, 1 => 3_000..12_000usize, 1 => 60_000..65_400usize];
    (
        prop::collection::vec(len, 16),
        prop::collection::vec(1_000..9_000u16, 8),
        1_100..9_000u32,
        90..900u32,
    )
        .prop_map(|(lens, mss, piece, rx_piece)| Sample {
            lens,
            mss,
            piece,
            rx_piece,
        })
}

/// Returns the senders: split with direct segments, packed with an indirect table, legacy with a
/// separate short header.
fn senders(set: u64, sample: &Sample) -> [NetOptions; SENDERS] {
    let base = VERSION_1 | MRG_RXBUF | set;
    let split = NetOptions::new(base, 128);
    let packed = NetOptions::new(base | RING_PACKED | INDIRECT_DESC, 128);
    [
        NetOptions {
            tx_cuts: Cuts::Every(sample.piece),
            ..split
        },
        NetOptions {
            tx_cuts: Cuts::At(vec![5, 7, 14, 3, sample.rx_piece, 4000]),
            shape: Shape::Indirect,
            ..packed
        },
        NetOptions {
            tx_cuts: Cuts::At(vec![10, sample.piece]),
            ..NetOptions::new(set, 128)
        },
    ]
}

/// Returns the receivers: split and packed, merged and big buffers, in one segment and in several;
/// legacy ones.
fn receivers(set: u64, sample: &Sample) -> [NetOptions; RECEIVERS] {
    let base = VERSION_1 | set;
    let packed = base | RING_PACKED | INDIRECT_DESC;
    [
        NetOptions::new(base | MRG_RXBUF, 128),
        NetOptions::new(base, 128),
        NetOptions {
            rx_cuts: Cuts::At(vec![1, 11, sample.rx_piece]),
            shape: Shape::Indirect,
            ..NetOptions::new(packed | MRG_RXBUF, 128)
        },
        NetOptions {
            rx_cuts: Cuts::At(vec![12, sample.rx_piece, 3000]),
            shape: Shape::Indirect,
            ..NetOptions::new(packed, 128)
        },
        NetOptions::new(set | MRG_RXBUF, 128),
        NetOptions::new(set, 128),
        NetOptions {
            rx_cuts: Cuts::At(vec![10, sample.rx_piece]),
            shape: Shape::Indirect,
            ..NetOptions::new(set | INDIRECT_DESC, 128)
        },
    ]
}

/// Frame to send, the features that its sender must have negotiated, and those that a receiver
/// needs to take it unchanged.
struct Sent {
    frame: Vec<u8>,
    header: NetHeader,
    host: u64,
    guest: u64,
}

fn sent((frame, header): (Vec<u8>, NetHeader), host: u64, guest: u64) -> Sent {
    Sent {
        frame,
        header,
        host,
        guest,
    }
}

/// Returns a TCP TSO frame with CWR set, and the header with the ECN bit.
fn with_ecn((mut frame, mut header): (Vec<u8>, NetHeader)) -> (Vec<u8>, NetHeader) {
    frame[usize::from(header.csum_start) + 13] |= 0x80;
    header.gso_type |= GSO_ECN;
    (frame, header)
}

/// Returns one frame of each kind.
fn frames(sample: &Sample) -> Vec<Sent> {
    let (v4, v6) = (Flow::v4(1, 2), Flow::v6(1, 2));
    let tagged = v4.tagged(0);
    let bytes =
        |at: usize| -> Vec<u8> { (0..sample.lens[at]).map(|i| (i * 31 + at) as u8).collect() };
    let size = |at: usize| sample.mss[at];
    let seq = 0xffff_8000;
    let plain = |frame| (frame, NetHeader::default());
    let (tcp4, tcp6) = (CSUM | HOST_TSO4, CSUM | HOST_TSO6);
    let (to4, to6) = (GUEST_CSUM | GUEST_TSO4, GUEST_CSUM | GUEST_TSO6);
    let uso = CSUM | HOST_USO;
    vec![
        sent(plain(udp(&v4, &bytes(0))), 0, 0),
        sent(plain(tcp(&v6, seq, &bytes(1))), 0, 0),
        sent(udp_partial(&v4, &bytes(2)), CSUM, GUEST_CSUM),
        sent(udp_partial(&v6, &bytes(3)), CSUM, GUEST_CSUM),
        sent(tcp_partial(&v4, seq, &bytes(4)), CSUM, GUEST_CSUM),
        sent(tcp_partial(&v6, seq, &bytes(5)), CSUM, GUEST_CSUM),
        sent(udp_partial(&tagged, &bytes(6)), CSUM, GUEST_CSUM),
        sent(tcp_super(&v4, seq, &some(bytes(7)), size(0)), tcp4, to4),
        sent(tcp_super(&v6, seq, &some(bytes(8)), size(1)), tcp6, to6),
        sent(
            with_ecn(tcp_super(&v4, seq, &some(bytes(9)), size(2))),
            tcp4 | HOST_ECN,
            to4 | GUEST_ECN,
        ),
        sent(
            with_ecn(tcp_super(&v6, seq, &some(bytes(10)), size(3))),
            tcp6 | HOST_ECN,
            to6 | GUEST_ECN,
        ),
        sent(
            udp_super(&v4, &some(bytes(11)), size(4)),
            uso,
            GUEST_CSUM | GUEST_USO4,
        ),
        sent(
            udp_super(&v6, &some(bytes(12)), size(5)),
            uso,
            GUEST_CSUM | GUEST_USO6,
        ),
        sent(
            tcp_super(&tagged, seq, &some(bytes(13)), size(6)),
            tcp4,
            to4,
        ),
        // Length of the reported issue: 64 KiB.
        sent(tcp_super(&v4, seq, &[0x64; 65_495], 1460), tcp4, to4),
    ]
}

/// Returns non-empty payload.
fn some(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        bytes.push(1);
    }
    bytes
}

struct World {
    switch: Switch<GuestPort>,
    counters: Counters,
}

impl World {
    fn install(&mut self, from: u32, to: u32) {
        let key = FlowKey::default().with_in_port(from);
        let mask = FlowMask::NONE.with_in_port();
        self.switch
            .answer(Answer::unicast(&key, &mask, PortId(to)), 0);
        assert!(self.switch.continue_work(0), "it is cached");
    }

    fn counts(&self, port: u32) -> PortCounts {
        self.counters.read(PortId(port))
    }

    /// Sends one frame and serves it. Returns whether it was accepted as legal.
    fn send(&mut self, from: u32, nic: &mut NetPair, sent: &Sent) -> bool {
        let before = self.counts(from);
        assert!(
            nic.send(&sent.frame, &sent.header).expect("a sound ring"),
            "room"
        );
        assert!(self.switch.serve(PortId(from), 0, 0, &mut NoUpcalls));
        assert_eq!(
            nic.reclaim().expect("a sound ring"),
            1,
            "the buffer comes back"
        );
        let after = self.counts(from);
        assert_eq!(after.from_guest.packets, before.from_guest.packets + 1);
        let bad = after.dropped(DropReason::BadHeader) - before.dropped(DropReason::BadHeader);
        assert_eq!(
            after.drops.iter().sum::<u64>(),
            before.drops.iter().sum::<u64>() + bad
        );
        bad == 0
    }
}

/// Checks a header against virtio 1.3 section 5.1.6.4.1, for a driver with these features.
fn check_header(got: &Received, features: u64) -> Result<(), String> {
    let needs = match got.header.gso_type & !GSO_ECN {
        GSO_NONE => 0,
        GSO_TCPV4 => GUEST_TSO4,
        GSO_TCPV6 => GUEST_TSO6,
        GSO_UDP_L4 if got.frame[12] == 0x86 => GUEST_USO6,
        GSO_UDP_L4 => GUEST_USO4,
        other => return Err(format!("gso_type {other}")),
    };
    let ecn = if got.header.gso_type & GSO_ECN != 0 {
        GUEST_ECN
    } else {
        0
    };
    let checksum = if got.header.flags & NEEDS_CSUM != 0 {
        GUEST_CSUM
    } else {
        0
    };
    let missing = (needs | ecn | checksum) & !features;
    if missing != 0 {
        return Err(format!("{:?} without feature {missing:#x}", got.header));
    }
    verify_partial(&got.frame, &got.header).map_err(|e| e.to_string())
}

/// Returns the frame without its tag, as an access port delivers it.
fn untagged(sent: &Sent) -> (Vec<u8>, NetHeader) {
    let (frame, tag) = testkit::packets::vlan_stripped(&sent.frame);
    let mut header = sent.header;
    if tag.is_some() {
        header.csum_start -= 4;
        header.hdr_len -= 4;
    }
    (frame, header)
}

/// Returns whether the bytes are equal, except for the form of one checksum that is zero: 0x0000
/// and 0xffff are both correct (RFC 1071), except for UDP, where zero means that there is none,
/// which `verify_checksums` checks.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differing: Vec<(u8, u8)> = a
        .iter()
        .copied()
        .zip(b.iter().copied())
        .filter(|(a, b)| a != b)
        .collect();
    let zero = [[(0, 0xff); 2], [(0xff, 0); 2]];
    a.len() == b.len() && (differing.is_empty() || zero.iter().any(|zero| differing == zero))
}

fn check_arrival(sent: &Sent, receiver: u64, arrived: &[Received]) -> Result<(), String> {
    let (frame, header) = untagged(sent);
    let wire = on_the_wire(&frame, &header).map_err(|e| e.to_string())?;
    let mut there = Vec::new();
    for got in arrived {
        check_header(got, receiver)?;
        there.extend(on_the_wire(&got.frame, &got.header).map_err(|e| e.to_string())?);
    }
    let all = there.len() == wire.len() && there.iter().zip(&wire).all(|(a, b)| same(a, b));
    if !all {
        return Err(format!(
            "{} frames of {} came, or with other bytes",
            there.len(),
            wire.len()
        ));
    }
    for segment in &there {
        verify_checksums(segment).map_err(|e| e.to_string())?;
    }
    let whole = sent.guest & !receiver == 0;
    if !whole {
        let plain = arrived
            .iter()
            .all(|got| got.header.flags == 0 && got.header.gso_type == GSO_NONE);
        return if plain {
            Ok(())
        } else {
            Err("work was left to a receiver that takes none".into())
        };
    }
    let [one] = arrived else {
        return Err(format!("{} frames instead of the whole one", arrived.len()));
    };
    let hdr_len = if header.gso_type == GSO_NONE {
        0
    } else {
        header.hdr_len
    };
    let expected = NetHeader {
        num_buffers: one.buffers,
        hdr_len,
        ..header
    };
    if one.header != expected {
        return Err(format!("header {:?} instead of {expected:?}", one.header));
    }
    Ok(())
}

/// Runs all pairs with one sample; the layouts alternate, so that each pair uses all of them.
fn all_pairs(sample: &Sample) -> Result<(), String> {
    let counters = Counters::heap();
    let mut world = World {
        switch: Switch::new(counters.clone(), 1),
        counters,
    };
    let mut nics = Vec::new();
    for set in sender_sets() {
        for options in senders(set, sample) {
            let (_, nic, port) = guest(options, 12 << 20);
            let id = SENDER + nics.len() as u32;
            world.switch.add_port(PortId(id), port);
            nics.push((id, set, nic));
        }
    }
    let frames = frames(sample);
    let mut turn = 0;
    for receiver in receiver_sets() {
        let mut targets: Vec<NetPair> = Vec::new();
        for (options, id) in receivers(receiver, sample).into_iter().zip(RECEIVER..) {
            let (_, nic, port) = guest(options, 12 << 20);
            world.switch.add_port(PortId(id), port);
            targets.push(nic);
        }
        for pair in nics.chunks_mut(SENDERS) {
            for sent in &frames {
                turn += 1;
                let (id, sender, nic) = &mut pair[turn % SENDERS];
                let at = turn / SENDERS % RECEIVERS;
                world.install(*id, RECEIVER + at as u32);
                let legal = sent.host & !*sender == 0;
                let what = || {
                    format!(
                        "sender {sender:#x} receiver {receiver:#x} layout {at} {:?} of {} bytes",
                        sent.header,
                        sent.frame.len()
                    )
                };
                if world.send(*id, nic, sent) != legal {
                    return Err(format!("{}: legal is {legal}", what()));
                }
                let mut arrived = Vec::new();
                while let Some(got) = targets[at]
                    .receive()
                    .map_err(|e| format!("{}: {e}", what()))?
                {
                    arrived.push(got);
                }
                targets[at].offer();
                if legal {
                    check_arrival(sent, receiver, &arrived)
                        .map_err(|e| format!("{}: {e}", what()))?;
                } else if !arrived.is_empty() {
                    return Err(format!("{}: arrived", what()));
                }
            }
        }
        for id in RECEIVER..RECEIVER + RECEIVERS as u32 {
            let drops: u64 = world.counts(id).drops.iter().sum();
            if drops != 0 {
                return Err(format!(
                    "receiver {receiver:#x} lost {:?}",
                    world.counts(id)
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn sets_of_features_are_all_there() {
    assert_eq!((sender_sets().len(), receiver_sets().len()), (15, 29));
}

#[test]
fn every_pair_of_feature_sets_gets_the_right_bytes() {
    let config = Config {
        cases: 4,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&a_sample(), |sample| {
        all_pairs(&sample).map_err(TestCaseError::fail)
    });
    run.unwrap_or_else(|e| panic!("{e}"));
}

/// In this sample, the checksum of one segment is zero.
#[test]
fn a_checksum_of_zero_may_have_either_form() {
    let lens = [
        2478, 64924, 5934, 63649, 62055, 1423, 62133, 61168, 6495, 2365, 690, 824, 5602, 64436,
        232, 10291,
    ];
    let mss = [2980, 4961, 6440, 7314, 4152, 7125, 8164, 8674];
    let sample = Sample {
        lens: lens.to_vec(),
        mss: mss.to_vec(),
        piece: 2133,
        rx_piece: 270,
    };
    all_pairs(&sample).unwrap();
}
