//! A receiver that stops reading costs its senders only the frames to it: no buffers, no batches,
//! and no repeated search for buffers.

use crate::common::{NoUpcalls, guest};
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use ipc::records::Answer;
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::features::{INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetOptions, NetPair};
use wire::flow::{FlowKey, FlowMask};

const MEMORY: u64 = 24 << 20;
const SENDER: PortId = PortId(0);
const DEAD: PortId = PortId(1);
const LIVE: PortId = PortId(2);
const BATCH: usize = 64;
const BUFFERS: u16 = 128;

struct Scene {
    switch: Switch<AttachedPort>,
    counters: Counters,
    sender: NetPair,
    dead: NetPair,
    live: NetPair,
}

/// Returns a frame to the station with this number.
fn frame(to: u8, n: usize) -> Vec<u8> {
    let mut frame = vec![n as u8; 100];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

impl Scene {
    fn new(features: u64) -> Self {
        let counters = Counters::heap();
        let mut switch = Switch::new(counters.clone(), 5);
        let mut plug = |id| {
            let options = NetOptions::new(features, BUFFERS);
            let (_ram, nic, port) = guest(options, MEMORY);
            switch.add_port(id, port.into());
            nic
        };
        let [sender, dead, live] = [SENDER, DEAD, LIVE].map(&mut plug);
        for to in [DEAD, LIVE] {
            let mask = FlowMask::NONE.with_in_port().with_dmac();
            let key = frame(to.0 as u8, 0);
            let key = wire::packet::ParsedHeaders::parse(&key, key.len());
            switch.answer(Answer::unicast(&FlowKey::new(SENDER.0, &key), &mask, to), 0);
            switch.continue_work(0);
        }
        Self {
            switch,
            counters,
            sender,
            dead,
            live,
        }
    }

    /// Sends a batch of which every `nth` frame is for the dead receiver; the live one takes its
    /// frames. Returns the number of frames that the live one got.
    fn batch(&mut self, nth: usize) -> usize {
        for n in 0..BATCH {
            let to = if n % nth == 0 { DEAD } else { LIVE };
            let frame = frame(to.0 as u8, n);
            assert!(
                self.sender
                    .stage(&frame, &NetHeader::default())
                    .expect("sound"),
                "room"
            );
        }
        self.sender.tx.publish();
        while self.switch.serve(SENDER, 0, 0, &mut NoUpcalls) {}
        let back = self.sender.reclaim().expect("a correct device");
        assert_eq!(back as usize, BATCH, "the sender has all its buffers back");
        received(&mut self.live)
    }

    fn dropped(&self) -> u64 {
        self.counters.read(DEAD).dropped(DropReason::ReceiverFull)
    }

    fn masked(&self) -> u64 {
        self.counters.read(DEAD).masked
    }
}

/// Takes the frames that arrived, and offers the buffers again. Returns their number.
fn received(nic: &mut NetPair) -> usize {
    let mut count = 0;
    while nic.receive().expect("a correct device").is_some() {
        count += 1;
    }
    nic.offer();
    count
}

#[test]
fn a_receiver_that_stops_reading_is_masked_until_it_reads() {
    for layout in [0, RING_PACKED] {
        let mut scene = Scene::new(VERSION_1 | MRG_RXBUF | INDIRECT_DESC | layout);
        let for_dead = BATCH / 2;
        // Frames arrive while there are buffers, and then each is dropped and counted.
        let full = usize::from(BUFFERS) / for_dead;
        for _ in 0..full {
            assert_eq!(scene.batch(2), BATCH / 2);
        }
        assert_eq!((scene.dropped(), scene.masked()), (0, 0));
        let batches = 50;
        for _ in 0..batches {
            assert_eq!(
                scene.batch(2),
                BATCH / 2,
                "the other receiver misses nothing"
            );
        }
        assert_eq!(scene.dropped(), (batches * for_dead) as u64);
        // After a few batches it is masked.
        let masked = scene.masked();
        assert!((40..50).contains(&masked), "{masked}");
        // It reads again: the earlier frames are there, in order, and the next batch arrives
        // completely.
        assert_eq!(received(&mut scene.dead), usize::from(BUFFERS));
        scene.batch(2);
        assert_eq!(received(&mut scene.dead), for_dead);
        assert_eq!(scene.dropped(), (batches * for_dead) as u64);
        assert_eq!(scene.masked(), masked);
        assert_eq!(scene.switch.take_faults(), (Vec::new(), true));
    }
}

#[test]
fn a_receiver_that_is_only_slow_is_tried_in_every_batch() {
    let mut scene = Scene::new(VERSION_1 | MRG_RXBUF);
    for _ in 0..100 {
        scene.batch(1);
        assert!(received(&mut scene.dead) > 0);
    }
    assert_eq!(scene.masked(), 0);
}
