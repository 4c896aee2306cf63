//! Allocation test: with warm caches neither a frame nor a batch allocates.
//!
//! The global allocator of this binary counts the allocations of the measured thread.

mod common;

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;

use common::{NoUpcalls, guest};
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use ipc::records::{Answer, SourceRole};
use policy::{Action, Model, PortMode, Program, Segment, SegmentId};
use port::PortId;
use port::counters::Counters;
use testkit::driver::Shape;
use testkit::features::*;
use testkit::net::{Cuts, NetHeader, NetOptions, NetPair};
use testkit::packets::{Flow, tcp_super, udp, udp_partial, vlan_tagged};
use wire::flow::{FlowKey, FlowMask};

struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counters any more.
    let _ = COUNTS.try_with(|on| {
        if on.get() {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        }
    });
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments; counting
// touches thread-local cells without destructors, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `block` is passed on.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, block: Block) {
        // SAFETY: `ptr` came from `System` with this block, by the caller's promise.
        unsafe { System.dealloc(ptr, block) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, block: Block, size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(ptr, block, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of `act` on this thread.
fn allocations(act: impl FnOnce()) -> u64 {
    ALLOCATIONS.set(0);
    COUNTS.set(true);
    act();
    COUNTS.set(false);
    ALLOCATIONS.get()
}

/// Returns three guests; guest 0 sends.
fn scene(base: u64, receiver: u64) -> (Switch<AttachedPort>, Vec<NetPair>) {
    let mut switch = Switch::new(Counters::heap(), 3);
    let mut nics = Vec::new();
    for (id, extra) in [(0, HOST_OFFLOADS), (1, receiver), (2, receiver)] {
        let features = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | EVENT_IDX | base | extra;
        let options = NetOptions {
            tx_cuts: Cuts::At(vec![12, 100, 3000]),
            rx_cuts: Cuts::HeaderApart,
            shape: Shape::Indirect,
            ..NetOptions::new(features, 256)
        };
        let (_, nic, port) = guest(options, 24 << 20);
        switch.add_port(PortId(id), port.into());
        nics.push(nic);
    }
    let segment = |vlan| Segment {
        name: format!("{vlan:?}"),
        vlan,
    };
    let (plain, tagged) = (SegmentId(1), SegmentId(2));
    let model = Model {
        segments: [(plain, segment(None)), (tagged, segment(Some(5)))].into(),
        ports: [
            (PortId(0), PortMode::Access(tagged)),
            (PortId(1), PortMode::Access(tagged)),
            (PortId(2), PortMode::Trunk(vec![plain, tagged])),
        ]
        .into(),
    };
    switch.set_program(Program::compile(&model, 1).expect("a sound model"));
    (switch, nics)
}

fn install(switch: &mut Switch<AttachedPort>, action: Action) {
    let key = FlowKey::default();
    let mask = FlowMask::NONE.with_in_port();
    switch.answer(
        Answer::Install {
            upcall: None,
            key: *key.words(),
            mask: *mask.words(),
            action,
            segment: None,
            source: SourceRole::Unlearned,
            class: policy::DEFAULT_CLASS,
            connection: policy::ConnectionChange::None,
            except: Vec::new(),
            rules: Vec::new(),
            epoch: 1,
        },
        0,
    );
}

fn frames() -> Vec<(Vec<u8>, NetHeader)> {
    let flow = Flow::v4(1, 2);
    vec![
        (udp(&flow, &[1; 22]), NetHeader::default()),
        (udp(&flow, &[1; 1400]), NetHeader::default()),
        (vlan_tagged(&udp(&flow, &[1; 900]), 0), NetHeader::default()),
        udp_partial(&flow, &[2; 1000]),
        tcp_super(&flow, 1, &[3; 40_000], 1448),
    ]
}

#[test]
fn nothing_is_allocated_for_a_frame() {
    let actions = [
        Action::Unicast {
            port: PortId(1),
            tag: None,
        },
        Action::Unicast {
            port: PortId(2),
            tag: Some(7),
        },
        Action::flood(SegmentId(2)),
        Action::Drop(port::DropReason::SpoofedSource),
    ];
    for base in [0, RING_PACKED, IN_ORDER] {
        for receiver in [0, GUEST_CSUM, GUEST_OFFLOADS] {
            let (mut switch, mut nics) = scene(base, receiver);
            let mut received = 0;
            for round in 0..4 {
                for action in actions {
                    install(&mut switch, action);
                    let batch: Vec<_> = (0..3).flat_map(|_| frames()).collect();
                    for (frame, header) in &batch {
                        assert!(nics[0].stage(frame, header).expect("sound"), "room");
                    }
                    nics[0].tx.publish();
                    let allocated =
                        allocations(|| while switch.serve(PortId(0), 0, 1, &mut NoUpcalls) {});
                    // The arenas grow to their size in the first round.
                    assert!(
                        round == 0 || allocated == 0,
                        "{allocated} allocations: {action:?} {base:#x} {receiver:#x}"
                    );
                    for nic in &mut nics[1..] {
                        while nic.receive().expect("correct").is_some() {
                            received += 1;
                        }
                        nic.offer();
                    }
                }
            }
            assert_eq!(switch.figures().hits, 240);
            assert!(received >= 200, "{received}");
        }
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(
        allocations(|| drop(std::hint::black_box(vec![1u8; 100]))),
        1
    );
}
