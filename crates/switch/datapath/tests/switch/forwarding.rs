//! Forwarding between two guests: each frame arrives once, complete and in order, and every buffer
//! is returned, with any negotiated features.

mod coalesced_kicks;
mod held;
mod interfaces;
mod moving;
mod notified;
mod order;
mod passing;
mod suppressed_kicks;

use crate::common::{NoUpcalls, guest};
use datapath::forward::switch::Switch;
use ipc::records::Answer;
use port::PortId;
use port::counters::Counters;
use proptest::prelude::*;
use testkit::driver::Shape;
use testkit::features::{IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetOptions, NetPair};
use wire::flow::{FlowKey, FlowMask};

const MEMORY: u64 = 24 << 20;
const FROM: PortId = PortId(0);
const TO: PortId = PortId(1);

/// Returns a switch on which all frames from `FROM` go to `TO`.
fn one_way(counters: Counters) -> Switch<datapath::ports::attached::AttachedPort> {
    let mut switch = Switch::new(counters, 5);
    let mask = FlowMask::NONE.with_in_port();
    switch.answer(
        Answer::unicast(&FlowKey::default().with_in_port(FROM.0), &mask, TO),
        0,
    );
    switch
}

/// Returns the `n`th frame of `len` bytes, as it is sent and as it arrives, of one of three
/// senders; tagged ones arrive without their tag.
fn frame(n: usize, len: usize, tagged: bool) -> (Vec<u8>, Vec<u8>) {
    let mut arrives: Vec<u8> = (0..len).map(|i| (i * 3 + n) as u8).collect();
    arrives[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, (n % 3) as u8]);
    arrives[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut sent = arrives.clone();
    if tagged {
        sent.splice(12..12, [0x81, 0, 0, 7]);
    }
    (sent, arrives)
}

fn all_received(nic: &mut NetPair) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| nic.receive().expect("a correct device"))
        .map(|got| got.frame)
        .collect()
}

fn options(bits: u8, size: u16) -> NetOptions {
    let has = |bit: u8, feature| if bits & bit != 0 { feature } else { 0 };
    let packed = bits & 1 != 0;
    // A legacy driver has neither packed rings nor IN_ORDER.
    let legacy = bits & 32 != 0 && bits & 3 == 0;
    let modern = if legacy { 0 } else { VERSION_1 };
    let features =
        has(1, RING_PACKED) | has(2, IN_ORDER) | has(4, MRG_RXBUF) | has(8, INDIRECT_DESC);
    let size = if packed {
        size
    } else {
        size.next_power_of_two()
    };
    NetOptions {
        shape: if bits & 16 != 0 {
            Shape::Indirect
        } else {
            Shape::Direct
        },
        ..NetOptions::new(modern | features, size)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn frames_arrive_once_whole_and_in_order(
        sender in 0..64u8,
        receiver in 0..64u8,
        sizes in (20..70u16, 90..130u16),
        batches in prop::collection::vec(
            prop::collection::vec(
                (
                    prop_oneof![4 => 14..70usize, 2 => 70..1600usize, 1 => 1600..4000usize],
                    prop::bool::weighted(0.1),
                ),
                0..20,
            ),
            1..20,
        ),
    ) {
        let counters = Counters::heap();
        let mut switch = one_way(counters.clone());
        let (_ram, mut from, port) = guest(options(sender, sizes.0), MEMORY);
        switch.add_port(FROM, port.into());
        let (_other, mut to, port) = guest(options(receiver, sizes.1), MEMORY);
        switch.add_port(TO, port.into());
        let (mut n, mut bytes) = (0, 0);
        for batch in batches {
            let mut desired = Vec::new();
            for (len, tagged) in batch {
                let (sent, arrives) = frame(n, len, tagged);
                prop_assert!(from.stage(&sent, &NetHeader::default()).expect("a correct device"));
                n += 1;
                bytes += arrives.len() as u64;
                desired.push(arrives);
            }
            from.tx.publish();
            while switch.serve(FROM, 0, 0, &mut NoUpcalls) {}
            prop_assert_eq!(from.reclaim().expect("a correct device") as usize, desired.len());
            prop_assert_eq!(all_received(&mut to), desired);
            to.offer();
        }
        let there = counters.read(TO);
        prop_assert_eq!((there.to_guest.packets, there.to_guest.bytes), (n as u64, bytes));
        prop_assert_eq!(there.drops.iter().sum::<u64>(), 0);
        prop_assert_eq!(counters.read(FROM).from_guest.packets, n as u64);
        prop_assert_eq!(switch.take_faults(), (Vec::new(), true));
    }
}
