//! Frames whose copies end some time later and in any order: the guests see what they would see if the processor had
//! copied them, and no buffer is theirs again before it was read or written.

mod near;

use std::sync::Arc;

use channel::records::Answer;
use datapath::guest::{GuestPort, GuestQueue};
use datapath::switch::Switch;
use memory::DirtyLog;
use memory::engine::{Copier, Engines, LEAST};
use near::{NoUpcalls, guest_at};
use policy::Action;
use port::PortId;
use port::counters::Counters;
use proptest::prelude::*;
use testkit::features::{IN_ORDER, MRG_RXBUF, RING_PACKED, VERSION_1};
use testkit::guest_ram::GuestRam;
use testkit::net::{NetHeader, NetOptions, NetPair};
use wire::flow::{FlowKey, FlowMask};

const MEMORY: u64 = 24 << 20;
const FROM: PortId = PortId(0);
const TO: PortId = PortId(1);

/// A switch, two guests, and an engine that copies when it is told to.
struct Bench {
    switch: Switch<GuestPort>,
    engines: Arc<Engines>,
    counters: Counters,
    rams: [Option<GuestRam>; 2],
    from: NetPair,
    to: NetPair,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    reclaimed: usize,
}

fn options(bits: u8, size: u16) -> NetOptions {
    let has = |bit: u8, feature| if bits & bit != 0 { feature } else { 0 };
    // A legacy driver has neither packed rings nor IN_ORDER.
    let legacy = bits & 8 != 0 && bits & 3 == 0;
    let modern = if legacy { 0 } else { VERSION_1 };
    NetOptions::new(
        modern | has(1, RING_PACKED) | has(2, IN_ORDER) | has(4, MRG_RXBUF),
        size,
    )
}

impl Bench {
    fn new(from: NetOptions, to: NetOptions) -> Self {
        Self::with(Engines::by_hand(1), from, to)
    }

    fn with(engines: Arc<Engines>, from: NetOptions, to: NetOptions) -> Self {
        let counters = Counters::heap();
        let mut switch = Switch::new(counters.clone(), 5);
        let answer = Answer::Install {
            upcall: None,
            key: *FlowKey::default().with_in_port(FROM.0).words(),
            mask: *FlowMask::NONE.with_in_port().words(),
            action: Action::Unicast {
                port: TO,
                tag: None,
            },
            segment: None,
            learned: false,
            except: Vec::new(),
            rules: Vec::new(),
            epoch: 0,
        };
        switch.answer(answer, 0);
        let copier = Copier::new(&engines, 0);
        let port = || GuestPort::new(None).copying_by(Some(copier.clone()));
        let (from_ram, from, port_from) = guest_at(from, MEMORY, port());
        let (to_ram, to, port_to) = guest_at(to, MEMORY, port());
        switch.add_port(FROM, port_from);
        switch.add_port(TO, port_to);
        Self {
            switch,
            engines,
            counters,
            rams: [Some(from_ram), Some(to_ram)],
            from,
            to,
            sent: Vec::new(),
            received: Vec::new(),
            reclaimed: 0,
        }
    }

    /// Has frames of these lengths switched, as far as the sender has room. How many it had.
    fn send(&mut self, lens: &[usize]) -> usize {
        let mut staged = 0;
        self.reclaim();
        for len in lens {
            let n = self.sent.len();
            let mut frame: Vec<u8> = (0..*len).map(|i| (i * 7 + i / 251 + n) as u8).collect();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, n as u8]);
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            let header = NetHeader::default();
            if !self.from.stage(&frame, &header).expect("a correct device") {
                break;
            }
            self.sent.push(frame);
            staged += 1;
        }
        self.from.tx.publish();
        while self.switch.serve(FROM, 0, 0, &mut NoUpcalls) {}
        staged
    }

    /// Lets the switch look at what the engine has done, and the guests at what the switch has.
    fn look(&mut self) {
        while self.switch.has_to_do() && self.engines.under_way() == 0 {
            self.switch.go_on(0);
        }
        self.switch.go_on(0);
        self.reclaim();
        while let Some(got) = self.to.receive().expect("a correct device") {
            self.received.push(got.frame);
        }
    }

    fn reclaim(&mut self) {
        self.reclaimed += usize::from(self.from.reclaim().expect("a correct device"));
    }

    fn finish_all(&mut self) {
        while self.engines.finish_one(0) {}
        self.look();
    }

    fn port(&mut self, id: PortId) -> &mut GuestPort {
        self.switch.port_mut(id).expect("the port is there")
    }

    fn end(&mut self, port: PortId, index: u16) {
        let mut queue = self.port(port).stop(index).expect("the queue runs");
        queue.with(GuestQueue::end);
    }
}

/// Lengths on both sides of where an engine begins, and pieces of a frame on both sides.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 14..200usize,
        2 => (LEAST + 50)..(LEAST + 90),
        4 => 1100..4000usize,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the processor, whose outcome is what was sent.
    #[test]
    fn whatever_ends_first_frames_arrive_whole_once_and_in_order(
        sender in 0..4u8,
        receiver in 0..16u8,
        rounds in prop::collection::vec((prop::collection::vec(lengths(), 0..20), prop::collection::vec(any::<usize>(), 0..30)), 1..12),
    ) {
        let mut bench = Bench::new(options(sender, 64), options(receiver, 256));
        for (lens, picks) in rounds {
            bench.send(&lens);
            for pick in picks {
                bench.engines.finish_one(pick);
                bench.look();
                // What a guest has is whole, in order, and its sender's buffer is not free before.
                prop_assert!(bench.received.len() <= bench.sent.len());
                prop_assert_eq!(&bench.received[..], &bench.sent[..bench.received.len()]);
                prop_assert!(bench.reclaimed <= bench.received.len());
            }
            bench.to.offer();
        }
        bench.finish_all();
        prop_assert!(!bench.switch.has_to_do());
        prop_assert_eq!(bench.reclaimed, bench.sent.len());
        let lost = bench.counters.read(TO).drops.iter().sum::<u64>() as usize;
        prop_assert_eq!(bench.received.len() + lost, bench.sent.len());
        if lost == 0 {
            prop_assert_eq!(&bench.received, &bench.sent);
        }
        prop_assert_eq!(bench.switch.take_faults(), Vec::new());
    }

    #[test]
    fn what_finds_no_buffer_is_lost_alone(
        receiver in 0..16u8,
        rounds in prop::collection::vec((prop::collection::vec(lengths(), 1..20), prop::collection::vec(any::<usize>(), 0..10), any::<bool>()), 1..16),
    ) {
        let mut bench = Bench::new(options(0, 64), options(receiver, 16));
        for (lens, picks, offer) in rounds {
            bench.send(&lens);
            for pick in picks {
                bench.engines.finish_one(pick);
            }
            bench.look();
            if offer {
                bench.to.offer();
            }
        }
        bench.finish_all();
        let lost = bench.counters.read(TO).drops.iter().sum::<u64>() as usize;
        prop_assert_eq!(bench.received.len() + lost, bench.sent.len());
        prop_assert_eq!(bench.reclaimed, bench.sent.len());
        // Those that arrived are whole, and in the order in which they were sent.
        let mut sent = bench.sent.iter();
        for got in &bench.received {
            prop_assert!(sent.any(|frame| frame == got));
        }
        prop_assert_eq!(bench.switch.take_faults(), Vec::new());
    }
}

#[test]
fn a_small_frame_waits_for_the_long_one_before_it() {
    let mut bench = Bench::new(options(0, 64), options(0, 64));
    bench.send(&[60, 1500, 60]);
    bench.look();
    assert_eq!((bench.received.len(), bench.engines.under_way()), (1, 1));
    bench.send(&[60]);
    bench.look();
    assert_eq!((bench.received.len(), bench.reclaimed), (1, 0));
    bench.finish_all();
    assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 4));
}

#[test]
fn a_long_frame_that_ends_first_waits_for_the_one_before_it() {
    let mut bench = Bench::new(options(1, 64), options(1, 64));
    bench.send(&[1500, 1400, 1300]);
    assert_eq!(bench.engines.under_way(), 3);
    for left in [2, 1] {
        assert!(bench.engines.finish_one(left));
        bench.look();
        assert_eq!((bench.received.len(), bench.reclaimed), (0, 0));
    }
    bench.finish_all();
    assert_eq!(bench.received, bench.sent);
}

#[test]
fn a_receivers_queue_that_ends_gets_what_was_delivered_and_its_sender_the_buffers() {
    for bits in [0, 1] {
        let mut bench = Bench::new(options(bits, 64), options(bits, 64));
        bench.send(&[1500; 9]);
        bench.end(TO, 0);
        assert_eq!(bench.engines.under_way(), 0, "whoever ends waits");
        bench.look();
        assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 9));
        assert!(!bench.switch.has_to_do());
    }
}

#[test]
fn a_senders_queue_that_ends_has_all_its_buffers() {
    for bits in [0, 1] {
        let mut bench = Bench::new(options(bits, 64), options(bits, 64));
        bench.send(&[1500; 9]);
        bench.end(FROM, 1);
        assert_eq!(bench.engines.under_way(), 0);
        assert_eq!(bench.from.reclaim().expect("a correct device"), 9);
        bench.look();
        assert_eq!(bench.received, bench.sent);
    }
}

#[test]
fn a_change_of_memory_waits_for_copies_in_the_one_before() {
    for port in [FROM, TO] {
        let mut bench = Bench::new(options(0, 64), options(0, 64));
        bench.send(&[1500; 5]);
        let memory = bench.rams[port.0 as usize]
            .as_ref()
            .expect("it is there")
            .memory();
        bench.port(port).set_memory(&memory);
        assert_eq!(bench.engines.under_way(), 0);
        bench.look();
        assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 5));
        bench.send(&[1500; 5]);
        assert_eq!(bench.engines.under_way(), 5, "and then it goes on");
        bench.finish_all();
        assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 10));
    }
}

/// What is written some time later could not be logged then.
#[test]
fn the_processor_copies_to_a_guest_that_is_migrated() {
    let mut bench = Bench::new(options(0, 64), options(4, 64));
    bench.send(&[1500; 3]);
    let log = Arc::new(DirtyLog::heap(2048));
    let memory = bench.rams[1].as_ref().expect("it is there").memory();
    bench
        .port(TO)
        .set_memory(&Arc::new(memory.with_log(Some(log))));
    bench.look();
    assert_eq!(bench.received.len(), 3);
    bench.send(&[1500, 60, 3000]);
    assert_eq!(bench.engines.under_way(), 0);
    bench.look();
    assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 6));
}

#[test]
fn memory_goes_only_when_nothing_copies_there_any_more() {
    for gone in [FROM, TO] {
        let mut bench = Bench::new(options(0, 64), options(0, 64));
        bench.send(&[3000; 7]);
        drop(bench.switch.remove_port(gone, 0));
        assert_eq!(bench.engines.under_way(), 0);
        bench.rams[gone.0 as usize] = None;
        bench.switch.go_on(0);
        assert!(!bench.switch.has_to_do());
    }
}

#[test]
fn more_than_an_engine_takes_is_copied_by_the_processor() {
    let mut bench = Bench::new(options(4, 512), options(4, 512));
    bench.send(&[1500; 400]);
    assert_eq!(bench.engines.under_way(), memory::engine::SLOTS);
    bench.look();
    assert_eq!(bench.received.len(), 0);
    bench.finish_all();
    assert_eq!((&bench.received, bench.reclaimed), (&bench.sent, 400));
}

#[test]
fn the_thread_copies_for_two_guests() {
    let engines = Engines::thread(1, 0x7eed);
    let mut bench = Bench::with(engines, options(2, 64), options(4, 256));
    for round in 0..200 {
        bench.send(&[1500 + round, 60, 3900, 700, 2048]);
        bench.look();
        bench.to.offer();
    }
    while bench.reclaimed < bench.sent.len() {
        bench.look();
        std::thread::yield_now();
    }
    bench.look();
    assert_eq!(bench.received, bench.sent);
}
