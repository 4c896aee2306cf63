//! A malicious guest whose rings, descriptors and headers are random and change between any two
//! steps of the switch. The switch does not panic, it delivers no more than it took, and the
//! traffic of two other guests continues.

use crate::common::{NoUpcalls, guest};
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use datapath::ports::batch::Batch;
use datapath::ports::calls::PendingCalls;
use datapath::ports::faults::faults;
use datapath::ports::guest::GuestFault;
use datapath::ports::port::Port;
use ipc::records::Answer;
use port::PortId;
use port::counters::Counters;
use proptest::prelude::*;
use testkit::driver::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Piece, RawDesc, Shape};
use testkit::features::*;
use testkit::guest_ram::GuestRam;
use testkit::net::{NetHeader, NetOptions, NetPair, RxBuffers};
use testkit::packets::{Flow, udp};
use wire::flow::{FlowKey, FlowMask};

const EVIL: PortId = PortId(0);
const GOOD: [PortId; 2] = [PortId(1), PortId(2)];
const SIZE: u16 = 16;
const MEMORY: u64 = 1 << 20;
const BASE: u64 = 0x10_0000;

/// Action of the guest between two steps.
#[derive(Clone, Debug)]
enum Poke {
    /// Chain of these descriptors: address, length, flags.
    Chain(Vec<(u32, u32, u8)>),
    /// Frame with a random header.
    Frame([u8; 12], usize),
    /// Bytes in an area of a queue: queue, area, offset, value.
    Ring(bool, u8, u16, u64),
    /// Bytes anywhere in memory.
    Memory(u32, u64),
}

fn a_poke() -> impl Strategy<Value = Poke> {
    let len = prop_oneof![0..20u32, 60..3000u32, any::<u32>()];
    let desc = (0..MEMORY as u32 + 64, len, any::<u8>());
    prop_oneof![
        3 => prop::collection::vec(desc, 1..5).prop_map(Poke::Chain),
        3 => (any::<[u8; 12]>(), 0..2000usize).prop_map(|(h, n)| Poke::Frame(h, n)),
        3 => (any::<bool>(), 0..3u8, 0..260u16, any::<u64>())
            .prop_map(|(q, a, o, v)| Poke::Ring(q, a, o, v)),
        1 => (0..MEMORY as u32 - 8, any::<u64>()).prop_map(|(at, v)| Poke::Memory(at, v)),
    ]
}

fn poke(ram: &GuestRam, nic: &mut NetPair, poke: &Poke) {
    match poke {
        Poke::Chain(descs) => {
            let last = descs.len() - 1;
            let raw = |(i, (at, len, bits)): (usize, &(u32, u32, u8))| {
                // Mostly valid flags, so that more than the first check is reached.
                let next = (i < last) != (bits & 0x70 == 0x70);
                let mut flags = if next { DESC_NEXT } else { 0 };
                flags |= if bits & 7 == 7 { DESC_WRITE } else { 0 };
                flags |= if bits & 0x0f == 0x0a {
                    DESC_INDIRECT
                } else {
                    0
                };
                let gpa = if bits & 0x80 != 0 {
                    BASE + u64::from(*at) / 2
                } else {
                    BASE + u64::from(*at)
                };
                RawDesc {
                    gpa,
                    len: *len,
                    flags,
                }
            };
            let raw: Vec<_> = descs.iter().enumerate().map(raw).collect();
            let queue = if descs[0].2 & 1 == 0 {
                &mut nic.tx
            } else {
                &mut nic.rx
            };
            if queue.add_raw(&raw, 0).is_some() {
                queue.publish();
            }
        }
        Poke::Frame(header, len) => {
            let header = NetHeader::from_bytes(*header);
            let _ = nic.send(&udp(&Flow::v4(1, 2), &vec![7; *len]), &header);
        }
        Poke::Ring(rx, area, at, value) => {
            let addrs = if *rx { nic.rx.addrs() } else { nic.tx.addrs() };
            let start = [addrs.desc, addrs.driver, addrs.device][usize::from(*area)];
            ram.write(start + u64::from(*at), &value.to_le_bytes()[..2]);
        }
        Poke::Memory(at, value) => ram.write(BASE + u64::from(*at), &value.to_le_bytes()),
    }
}

fn options(features: u64) -> NetOptions {
    NetOptions {
        shape: Shape::Direct,
        ..NetOptions::new(VERSION_1 | MRG_RXBUF | features, SIZE)
    }
}

fn legacy(features: u64) -> NetOptions {
    NetOptions {
        rx_buffers: RxBuffers::Of(2048),
        ..NetOptions::new(features, SIZE)
    }
}

fn send_to(switch: &mut Switch<AttachedPort>, from: PortId, to: PortId) {
    let key = FlowKey::default().with_in_port(from.0);
    let mask = FlowMask::NONE.with_in_port();
    switch.answer(Answer::unicast(&key, &mask, to), 0);
}

fn run(mut evil: NetOptions, pokes: &[Poke]) {
    evil.features |= ALL_OFFLOADS | INDIRECT_DESC | EVENT_IDX;
    let counters = Counters::heap();
    let mut switch = Switch::new(counters.clone(), 5);
    let (ram, mut evil, port) = guest(evil, MEMORY);
    switch.add_port(EVIL, port.into());
    let mut good = GOOD.map(|id| {
        let (_, nic, port) = guest(options(0), MEMORY);
        switch.add_port(id, port.into());
        nic
    });
    evil.auto_refill = false;
    let frame = udp(&Flow::v4(2, 3), &[9; 100]);
    let mut arrived = 0;
    for (n, p) in pokes.iter().enumerate() {
        poke(&ram, &mut evil, p);
        // The malicious guest sends to one neighbour and receives from the other; the two exchange
        // frames in between.
        send_to(&mut switch, EVIL, GOOD[n % 2]);
        switch.serve(EVIL, 0, 0, &mut NoUpcalls);
        while good[n % 2].receive().expect("a correct device").is_some() {
            arrived += 1;
        }
        for (to, mine) in [(EVIL, false), (GOOD[1], true)] {
            send_to(&mut switch, GOOD[0], to);
            assert!(good[0].send(&frame, &NetHeader::default()).expect("sound"));
            assert!(switch.serve(GOOD[0], 0, 0, &mut NoUpcalls));
            assert_eq!(good[0].reclaim().expect("sound"), 1);
            if mine {
                let got = good[1]
                    .receive()
                    .expect("a correct device")
                    .expect("a frame");
                assert_eq!(got.frame, frame);
            }
        }
        for nic in &mut good {
            nic.offer();
        }
    }
    let taken = counters.read(EVIL);
    let to_good: u64 = GOOD
        .iter()
        .map(|id| counters.read(*id).to_guest.packets)
        .sum();
    assert_eq!(to_good, arrived + pokes.len() as u64);
    assert!(
        taken.from_guest.packets <= pokes.len() as u64 * u64::from(SIZE) + 64 * pokes.len() as u64
    );
    let (faults, all) = switch.take_faults();
    assert!(all);
    assert!(faults.iter().all(|(id, ..)| *id == EVIL), "{faults:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn garbage_harms_only_its_own_queue(
        layout in 0..4u8,
        pokes in prop::collection::vec(a_poke(), 1..80),
    ) {
        let evil = match layout {
            0 => options(RING_PACKED),
            1 => options(0),
            // Legacy, with the longer header and the shorter one.
            2 => legacy(MRG_RXBUF),
            _ => legacy(0),
        };
        run(evil, &pokes);
    }
}

#[test]
fn frames_behind_a_malformed_chain_stay_the_guests() {
    for packed in [0, RING_PACKED] {
        let (_ram, mut nic, mut port) = guest(options(packed), MEMORY);
        let frame = udp(&Flow::v4(1, 2), &[7; 64]);
        let send = |nic: &mut NetPair| assert!(nic.stage(&frame, &NetHeader::default()).unwrap());
        (0..2).for_each(|_| send(&mut nic));
        nic.tx.add(&[Piece::new(BASE, 5)], &[], Shape::Direct, 0);
        (0..3).for_each(|_| send(&mut nic));
        nic.tx.publish();
        let before = faults();
        let mut batch = Batch::new();
        port.take(0, &mut batch);
        assert_eq!(batch.frames().len(), 2, "those before it are taken");
        batch.clear();
        port.release(0, &mut PendingCalls::default());
        assert!(faults() > before, "the worker is to look for it");
        let mut all = true;
        let fault = port.take_fault(&mut all);
        assert_eq!((fault, all), (Some((1, GuestFault::NoRoomForHeader)), true));
        let used = std::iter::from_fn(|| nic.tx.poll().unwrap()).count();
        assert_eq!(used, 2, "what was not delivered was not taken either");
        let mut queue = port.stop(1).unwrap();
        let (position, _) = queue.with(|queue| queue.end(&mut PendingCalls::default()));
        assert_eq!(
            position & 0x7fff,
            2,
            "the next back end sees the malformed chain"
        );
    }
}
