//! Offloads between guests and processes with different features: every legal set of a sender with
//! every legal set of a receiver, with frames of random sizes over split and packed rings and slot
//! queues with and without headers, merged and big buffers, and buffers in several segments.
//! Arriving frames are compared with an independent model of a NIC.

use crate::common::{NoUpcalls, guest};
use crate::slot_clients::slot_client;
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use datapath::ports::guest::GuestPort;
use ipc::records::Answer;
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
use testkit::slots::{SlotFormat, SlotNic, SlotOptions};
use wire::flow::{FlowKey, FlowMask};

const SENDER: u32 = 1;
const RECEIVER: u32 = 200;

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

/// A port's other side, before it is there.
#[derive(Clone, Debug)]
enum Spec {
    Guest(NetOptions),
    /// A process; it negotiates these features.
    Client(SlotOptions, u64),
}

/// A port's other side.
enum Nic {
    Guest(Box<NetPair>),
    Client(SlotNic),
}

impl Spec {
    fn plug(self) -> (Nic, GuestPort) {
        match self {
            Self::Guest(options) => {
                let (_, nic, port) = guest(options, 12 << 20);
                (Nic::Guest(Box::new(nic)), port)
            }
            Self::Client(options, features) => {
                let (_, nic, port) = slot_client(options, features);
                (Nic::Client(nic), port)
            }
        }
    }
}

impl Nic {
    fn send(&mut self, sent: &Sent) {
        let room = match self {
            Self::Guest(nic) => nic.send(&sent.frame, &sent.header).expect("a sound ring"),
            Self::Client(nic) => {
                let room = nic.stage(&sent.frame, &sent.header);
                nic.tx.publish();
                room
            }
        };
        assert!(room, "room");
    }

    fn has_header(&self) -> bool {
        match self {
            Self::Guest(_) => true,
            Self::Client(nic) => nic.has_header(),
        }
    }

    /// Ensures that the buffers of the frame that was sent came back.
    fn reclaim(&mut self) {
        match self {
            Self::Guest(nic) => assert_eq!(nic.reclaim().expect("a sound ring"), 1),
            Self::Client(nic) => assert!(nic.tx.is_idle()),
        }
    }

    /// Takes everything that arrived.
    fn receive(&mut self) -> Result<Vec<Received>, String> {
        let mut arrived = Vec::new();
        match self {
            Self::Guest(nic) => {
                while let Some(got) = nic.receive().map_err(|e| e.to_string())? {
                    arrived.push(got);
                }
                nic.offer();
            }
            Self::Client(nic) => {
                while let Some(got) = nic.receive() {
                    // A header without the number of buffers does not contradict that of slots.
                    let header = NetHeader {
                        num_buffers: got.header.num_buffers.max(got.slots),
                        ..got.header
                    };
                    arrived.push(Received {
                        frame: got.frame,
                        header,
                        buffers: got.slots,
                    });
                }
                nic.offer();
            }
        }
        Ok(arrived)
    }
}

/// Returns processes that negotiate `set`: with headers, and without if they have no offloads.
fn clients(set: u64, piece: u32) -> impl Iterator<Item = Spec> {
    let netmap = |header| SlotFormat::Netmap { header };
    let formats = [netmap(12), netmap(10), netmap(0), SlotFormat::Memif];
    let count = if set == 0 { 4 } else { 2 };
    formats.into_iter().take(count).map(move |format| {
        let options = SlotOptions {
            piece,
            ..SlotOptions::new(format, 128)
        };
        Spec::Client(options, VERSION_1 | MRG_RXBUF | set)
    })
}

/// Returns the senders: split with direct segments, packed with an indirect table, legacy with a
/// separate short header; processes.
fn senders(set: u64, sample: &Sample) -> Vec<Spec> {
    let base = VERSION_1 | MRG_RXBUF | set;
    let split = NetOptions::new(base, 128);
    let packed = NetOptions::new(base | RING_PACKED | INDIRECT_DESC, 128);
    let guests = [
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
    ];
    // A frame has 64 slots at most.
    let clients = clients(set, sample.piece.clamp(1100, 2048));
    guests.into_iter().map(Spec::Guest).chain(clients).collect()
}

/// Returns the receivers: split and packed, merged and big buffers, in one segment and in several;
/// legacy ones; processes.
fn receivers(set: u64, sample: &Sample) -> Vec<Spec> {
    let base = VERSION_1 | set;
    let packed = base | RING_PACKED | INDIRECT_DESC;
    let guests = [
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
    ];
    let clients = clients(set, 2048);
    guests.into_iter().map(Spec::Guest).chain(clients).collect()
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
    switch: Switch<AttachedPort>,
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
    fn send(&mut self, from: u32, nic: &mut Nic, sent: &Sent) -> bool {
        let before = self.counts(from);
        nic.send(sent);
        assert!(self.switch.serve(PortId(from), 0, 0, &mut NoUpcalls));
        nic.reclaim();
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

/// Ports of one set of features.
struct Group {
    set: u64,
    nics: Vec<(u32, Nic)>,
}

impl World {
    fn new() -> Self {
        let counters = Counters::heap();
        Self {
            switch: Switch::new(counters.clone(), 1),
            counters,
        }
    }

    fn plug(&mut self, set: u64, specs: Vec<Spec>, first: u32) -> Group {
        let plug = |(spec, id): (Spec, u32)| {
            let (nic, port) = spec.plug();
            self.switch.add_port(PortId(id), port.into());
            (id, nic)
        };
        let nics = specs.into_iter().zip(first..).map(plug).collect();
        Group { set, nics }
    }

    /// Sends a frame from one port to another, and checks its arrival.
    fn exchange(
        &mut self,
        (from, at): (&mut Group, usize),
        (to, target): (&mut Group, usize),
        sent: &Sent,
    ) -> Result<(), String> {
        let (id, nic) = &mut from.nics[at];
        if sent.host != 0 && !nic.has_header() {
            // It cannot say that its frame is not complete.
            return Ok(());
        }
        let (receiver, target_nic) = &mut to.nics[target];
        self.install(*id, *receiver);
        let legal = sent.host & !from.set == 0;
        let fail = |why: String| {
            let (header, len) = (sent.header, sent.frame.len());
            Err(format!(
                "sender {:#x} layout {at} receiver {:#x} layout {target} {header:?} of {len} \
                 bytes: {why}",
                from.set, to.set
            ))
        };
        if self.send(*id, nic, sent) != legal {
            return fail(format!("legal is {legal}"));
        }
        let arrived = match target_nic.receive() {
            Ok(arrived) => arrived,
            Err(error) => return fail(error),
        };
        if legal {
            check_arrival(sent, to.set, &arrived).or_else(fail)
        } else if arrived.is_empty() {
            Ok(())
        } else {
            fail("arrived".into())
        }
    }

    fn check_nothing_lost(&self, receivers: &Group) -> Result<(), String> {
        for (id, _) in &receivers.nics {
            let counts = self.counts(*id);
            if counts.drops.iter().sum::<u64>() != 0 {
                return Err(format!("receiver {:#x} lost {counts:?}", receivers.set));
            }
        }
        Ok(())
    }
}

/// Runs all pairs of sets with one sample; the layouts alternate.
fn all_pairs(sample: &Sample) -> Result<(), String> {
    let mut world = World::new();
    let mut groups = Vec::new();
    let mut first = SENDER;
    for set in sender_sets() {
        let group = world.plug(set, senders(set, sample), first);
        first += group.nics.len() as u32;
        groups.push(group);
    }
    let frames = frames(sample);
    let mut turn = 0;
    for set in receiver_sets() {
        let mut targets = world.plug(set, receivers(set, sample), RECEIVER);
        for group in &mut groups {
            for sent in &frames {
                turn += 1;
                let at = turn % group.nics.len();
                let target = turn / group.nics.len() % targets.nics.len();
                world.exchange((group, at), (&mut targets, target), sent)?;
            }
        }
        world.check_nothing_lost(&targets)?;
    }
    Ok(())
}

/// Runs all pairs of layouts, with no offloads and with all of them on each side.
fn all_layouts(sample: &Sample) -> Result<(), String> {
    let all = |sets: Vec<u64>| [0, sets.into_iter().fold(0, |all, set| all | set)];
    let frames = frames(sample);
    for sender in all(sender_sets()) {
        for receiver in all(receiver_sets()) {
            let mut world = World::new();
            let mut from = world.plug(sender, senders(sender, sample), SENDER);
            let mut to = world.plug(receiver, receivers(receiver, sample), RECEIVER);
            for at in 0..from.nics.len() {
                for target in 0..to.nics.len() {
                    for sent in &frames {
                        world.exchange((&mut from, at), (&mut to, target), sent)?;
                    }
                }
            }
            world.check_nothing_lost(&to)?;
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

#[test]
fn every_pair_of_layouts_gets_the_right_bytes() {
    let sample = Sample {
        lens: (0..16).map(|n| 400 + n * n * 270).collect(),
        mss: (0..8).map(|n| 1460 + 900 * n).collect(),
        piece: 1400,
        rx_piece: 300,
    };
    all_layouts(&sample).unwrap();
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
