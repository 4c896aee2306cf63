//! Chunks, which are executed entirely or not at all.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use channel::capture::{MIN_RING, Region, Way};
use channel::records::{Answer, Upcall};
use common::{NoUpcalls, guest};
use filter::Filter;
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::features::{CSUM, VERSION_1};
use testkit::net::{NEEDS_CSUM, NetHeader, NetOptions};
use testkit::packets::{Flow, mac, udp};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

use crate::forward::switch::{Chunk, RecentUpcalls, Switch, UpcallSink};
use crate::forward::tap::Tap;

const SENDER: PortId = PortId(1);
const RECEIVER: PortId = PortId(2);

/// Number of upcalls.
#[derive(Default)]
struct UpcallCount(usize);

impl UpcallSink for UpcallCount {
    fn send(&mut self, _upcall: &Upcall) -> bool {
        self.0 += 1;
        true
    }
}

/// Returns a flow to guest 2.
fn flow() -> Answer {
    let mask = FlowMask::NONE.with_in_port().with_dmac();
    let key = FlowKey::default()
        .with_in_port(SENDER.0)
        .with_dmac(MacAddr(mac(2)));
    Answer::unicast(&key, &mask, RECEIVER)
}

/// A malformed frame next to one without a flow: both stay in the queue and are taken again.
#[test]
fn a_malformed_frame_is_emitted_once_its_chunk_is_executed() {
    let counters = Counters::heap();
    let mut switch = Switch::new(counters.clone(), 5);
    let mut plug = |id| {
        let (ram, nic, port) = guest(NetOptions::new(VERSION_1 | CSUM, 64), 24 << 20);
        switch.add_port(id, port);
        (ram, nic)
    };
    let (_memory, mut sender) = plug(SENDER);
    let (_other, mut receiver) = plug(RECEIVER);
    let (region, file) = Region::create(1, 16 * MIN_RING).expect("a region");
    switch.add_tap(Tap {
        id: 1,
        port: SENDER,
        filter: Arc::new(Filter::parse("").expect("a filter")),
        snaplen: 65_535,
        way: None,
        only_drops: false,
        writer: region.writer(0).expect("a writer"),
    });
    let seen = Region::map(&file, 1, 16 * MIN_RING).expect("a region");
    let mut seen = seen.reader().expect("a reader");
    let mut take = || seen.take(|seen, bytes| (seen.way, seen.dropped, bytes.to_vec()));

    let frame = udp(&Flow::v4(1, 2), &[7; 58]);
    let beyond = NetHeader {
        flags: NEEDS_CSUM,
        csum_start: 99,
        csum_offset: 6,
        ..NetHeader::default()
    };
    for header in [beyond, NetHeader::default()] {
        assert!(sender.stage(&frame, &header).expect("sound"));
    }
    sender.tx.publish();
    let (mut recent, mut upcalls) = (RecentUpcalls::default(), UpcallCount::default());
    for _ in 0..3 {
        let chunk = switch.serve_chunk((SENDER, 0), 1, &mut recent, &mut upcalls);
        assert_eq!(chunk, Chunk::Unknown);
        assert_eq!(take().expect("a record"), None, "nothing was done");
    }
    assert_eq!(upcalls.0, 1);
    assert_eq!(counters.read(SENDER).from_guest.packets, 0);

    switch.answer(flow(), 1);
    switch.continue_work(1);
    let chunk = switch.serve_chunk((SENDER, 0), 1, &mut recent, &mut NoUpcalls);
    assert_eq!(chunk, Chunk::Done(2));
    let malformed = (Way::In, Some(DropReason::BadOffload), frame.clone());
    assert_eq!(take().expect("a record"), Some(malformed));
    assert_eq!(
        take().expect("a record"),
        Some((Way::In, None, frame.clone()))
    );
    assert_eq!(take().expect("a record"), None);
    let counts = counters.read(SENDER);
    assert_eq!(counts.from_guest.packets, 2);
    assert_eq!(counts.dropped(DropReason::BadOffload), 1);
    // The drop is counted at the queue of the frame.
    let drops: Vec<_> = switch
        .port_mut(SENDER)
        .expect("the sender")
        .drops()
        .collect();
    assert_eq!(drops, [(1, DropReason::BadOffload, 1)]);
    let arrived = receiver.receive().expect("sound").expect("a frame");
    assert_eq!(arrived.frame, frame);
}
