//! Pieces, which are done entirely or not at all.

#[path = "../../tests/near/mod.rs"]
mod near;

use std::sync::Arc;

use channel::capture::{MIN_RING, Region, Way};
use channel::records::{Answer, Upcall};
use near::{NoUpcalls, guest};
use policy::Action;
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::features::{CSUM, VERSION_1};
use testkit::net::{NEEDS_CSUM, NetHeader, NetOptions};
use testkit::packets::{Flow, mac, udp};
use wire::MacAddr;
use wire::expression::Filter;
use wire::flow::{FlowKey, FlowMask};

use crate::switch::piece::{Asked, Piece};
use crate::switch::{Switch, UpcallSink};
use crate::watch::Tap;

const SENDER: PortId = PortId(1);
const RECEIVER: PortId = PortId(2);

/// How many questions were asked.
#[derive(Default)]
struct Questions(usize);

impl UpcallSink for Questions {
    fn send(&mut self, _upcall: &Upcall) -> bool {
        self.0 += 1;
        true
    }
}

/// What is sent to guest 2 goes there.
fn flow() -> Answer {
    let mask = FlowMask::NONE.with_in_port().with_dmac();
    let key = FlowKey::default()
        .with_in_port(SENDER.0)
        .with_dmac(MacAddr(mac(2)));
    Answer::Install {
        upcall: None,
        key: *key.words(),
        mask: *mask.words(),
        action: Action::Unicast {
            port: RECEIVER,
            tag: None,
        },
        segment: None,
        learned: false,
        except: Vec::new(),
        rules: Vec::new(),
        epoch: 0,
    }
}

/// A frame that is wrong in itself lies beside one without a flow: both wait with their sender, and both come again.
#[test]
fn a_refused_frame_of_a_piece_that_is_not_done_is_shown_when_it_is() {
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
    let (mut asked, mut questions) = (Asked::default(), Questions::default());
    for _ in 0..3 {
        let piece = switch.serve_piece((SENDER, 0), 1, &mut asked, &mut questions);
        assert_eq!(piece, Piece::Unknown);
        assert_eq!(take().expect("a record"), None, "nothing was done");
    }
    assert_eq!(questions.0, 1);
    assert_eq!(counters.read(SENDER).from_guest.packets, 0);

    switch.answer(flow(), 1);
    switch.go_on(1);
    let piece = switch.serve_piece((SENDER, 0), 1, &mut asked, &mut NoUpcalls);
    assert_eq!(piece, Piece::Done(2));
    let refused = (Way::In, Some(DropReason::BadOffload), frame.clone());
    assert_eq!(take().expect("a record"), Some(refused));
    assert_eq!(
        take().expect("a record"),
        Some((Way::In, None, frame.clone()))
    );
    assert_eq!(take().expect("a record"), None);
    let counts = counters.read(SENDER);
    assert_eq!(counts.from_guest.packets, 2);
    assert_eq!(counts.dropped(DropReason::BadOffload), 1);
    // It is counted at the queue that it came by.
    let drops: Vec<_> = switch
        .port_mut(SENDER)
        .expect("the sender")
        .drops()
        .collect();
    assert_eq!(drops, [(1, DropReason::BadOffload, 1)]);
    let arrived = receiver.receive().expect("sound").expect("a frame");
    assert_eq!(arrived.frame, frame);
}
