//! Frames to a guest with an IOMMU whose receive buffers are not translated yet: they wait, and are
//! delivered in order or dropped by name.

use std::sync::Arc;

use crate::common::{NoUpcalls, guest, queue_in};
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use datapath::ports::calls::PendingCalls;
use datapath::ports::guest::GuestPort;
use datapath::ports::queue_lock::QueueLock;
use ipc::records::Answer;
use memory::iotlb::{IotlbWriter, Update};
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::features::{MRG_RXBUF, RING_PACKED, VERSION_1};
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::iommu::{Access, Iommu, IommuConfig, Mode, PAGE};
use testkit::net::{NetHeader, NetOptions, NetPair};
use virtio::queue::QueueMemory;
use wire::flow::{FlowKey, FlowMask};
use wire::virtio::features::Features;

const MEMORY: u64 = 24 << 20;
const SENDER: PortId = PortId(0);
const RECEIVER: PortId = PortId(1);
const FEATURES: u64 = VERSION_1 | MRG_RXBUF;
const SECOND: u64 = 1_000_000_000;

struct Scene {
    switch: Switch<AttachedPort>,
    counters: Counters,
    sender: NetPair,
    receiver: NetPair,
    ram: GuestRam,
    region: RegionSpec,
    iotlb: IotlbWriter,
    now: u64,
}

fn frame(n: usize) -> Vec<u8> {
    let mut frame = vec![n as u8; 100];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

impl Scene {
    /// The rings of the receiver are translated, its buffers are not.
    fn new(layout: u64) -> Self {
        let features = FEATURES | layout;
        let counters = Counters::heap();
        let mut switch = Switch::new(counters.clone(), 5);
        let (_, sender, port) = guest(NetOptions::new(features, 128), MEMORY);
        switch.add_port(SENDER, port.into());
        let region = RegionSpec::at(0x10_0000, MEMORY);
        let ram = GuestRam::heap(&[region]);
        let iommu = Iommu::new(&ram, IommuConfig::new(Mode::OnDemand));
        let ram = ram.behind(&iommu);
        let receiver = NetPair::new(&ram, NetOptions::new(features, 128));
        let mut scene = Self {
            switch,
            counters,
            sender,
            receiver,
            ram,
            region,
            iotlb: IotlbWriter::heap(),
            now: 1,
        };
        // Rings are for both to write, receive buffers are not.
        scene.grant(|access| access == Access::Both);
        scene.start_receiver(features);
        scene.receiver.offer();
        let key = frame(0);
        let key = wire::packet::ParsedHeaders::parse(&key, key.len());
        let mask = FlowMask::NONE.with_in_port().with_dmac();
        let flow = FlowKey::new(SENDER.0, &key);
        let answer = Answer::unicast(&flow, &mask, RECEIVER);
        scene.switch.answer(answer, 0);
        scene.switch.continue_work(0);
        scene
    }

    fn start_receiver(&mut self, features: u64) {
        let mut port = GuestPort::new(None);
        let start = match features & RING_PACKED {
            0 => 0,
            _ => 0x8000_8000,
        };
        for (index, driver) in [(0u16, &self.receiver.rx), (1, &self.receiver.tx)] {
            let memory = QueueMemory {
                memory: self.ram.memory(),
                iotlb: Some(self.iotlb.table().clone()),
            };
            let queue = queue_in(&self.ram, memory, driver, features, start);
            let mut queue = QueueLock::new(queue);
            let mut calls = PendingCalls::default();
            queue.with(|queue| queue.begin(index.is_multiple_of(2), &mut calls));
            port.start(index, queue, Features::from_bits_truncate(features));
        }
        self.switch.add_port(RECEIVER, port.into());
    }

    /// Translates the pages that the receiver has mapped for such access.
    fn grant(&mut self, has: impl Fn(Access) -> bool) {
        let iommu = self.ram.iommu().expect("it has one");
        let granted = iommu.granted().into_iter();
        for (iova, gpa, access) in granted.filter(|(_, _, access)| has(*access)) {
            let update = Update {
                iova,
                size: PAGE,
                user_addr: self.region.uva + (gpa - self.region.gpa),
                permission: access as u8,
            };
            let entered = self.iotlb.update(&self.ram.memory(), &update, &[]);
            entered.expect("a page of the guest");
        }
    }

    /// Revokes the pages that the receiver has mapped for such access.
    fn revoke(&mut self, has: impl Fn(Access) -> bool) {
        let iommu = self.ram.iommu().expect("it has one");
        let granted = iommu.granted().into_iter();
        for (iova, ..) in granted.filter(|(_, _, access)| has(*access)) {
            self.iotlb.invalidate(iova, PAGE).expect("a page");
        }
    }

    /// Refuses all translations that the switch has asked for.
    fn deny(&mut self) {
        let table = Arc::clone(self.iotlb.table());
        table.misses().take_some(|miss, need| {
            self.iotlb.deny(miss, need);
            true
        });
    }

    fn send(&mut self, frames: std::ops::Range<usize>) {
        for n in frames {
            let staged = self.sender.stage(&frame(n), &NetHeader::default());
            assert!(staged.expect("a correct device"), "room");
        }
        self.sender.tx.publish();
        self.switch.set_clock(self.now);
        while self.switch.serve(SENDER, 0, 0, &mut NoUpcalls) {}
        self.sender.reclaim().expect("a correct device");
    }

    /// Looks at the queues again, as after an answer of the front end.
    fn retry(&mut self) {
        let port = self.switch.guest_mut(RECEIVER).expect("it is there");
        let settled = port.retry(self.now);
        self.switch.count_settled(RECEIVER, settled);
    }

    /// Takes the frames that have arrived. Returns their numbers.
    fn received(&mut self) -> Vec<usize> {
        let mut all = Vec::new();
        while let Some(got) = self.receiver.receive().expect("a correct device") {
            let n = usize::from(got.frame[50]);
            assert_eq!(got.frame, frame(n));
            all.push(n);
        }
        all
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.read(RECEIVER).dropped(reason)
    }

    /// Frames that were dropped for any reason.
    fn all_dropped(&self) -> u64 {
        self.counters.read(RECEIVER).drops.iter().sum()
    }
}

#[test]
fn frames_wait_for_the_translations_and_arrive_in_order() {
    for layout in [0, RING_PACKED] {
        let mut scene = Scene::new(layout);
        scene.send(0..3);
        scene.retry();
        assert_eq!(scene.received(), [0; 0]);
        scene.grant(|_| true);
        // The ones that wait are first.
        scene.send(3..5);
        scene.retry();
        assert_eq!(scene.received(), [0, 1, 2, 3, 4]);
        assert_eq!(scene.all_dropped(), 0);
        assert_eq!(scene.counters.read(RECEIVER).to_guest.packets, 5);
    }
}

#[test]
fn frames_that_wait_for_a_second_are_dropped() {
    let mut scene = Scene::new(0);
    scene.send(0..3);
    scene.now += SECOND;
    scene.retry();
    assert_eq!(scene.all_dropped(), 0);
    scene.now += 1;
    scene.retry();
    assert_eq!(scene.dropped(DropReason::ReceiverUntranslated), 3);
    assert_eq!(scene.all_dropped(), 3);
    scene.grant(|_| true);
    scene.send(3..4);
    scene.retry();
    assert_eq!(scene.received(), [3]);
}

#[test]
fn frames_that_wait_for_a_queue_that_is_disabled_are_dropped_and_its_ring_is_not_touched() {
    for layout in [0, RING_PACKED] {
        let mut scene = Scene::new(layout);
        scene.send(0..3);
        let port = scene.switch.guest_mut(RECEIVER).expect("it is there");
        port.enable(0, false);
        scene.grant(|_| true);
        scene.retry();
        assert_eq!(scene.received(), [0; 0]);
        assert_eq!(scene.dropped(DropReason::ReceiverDown), 3);
        assert_eq!(scene.all_dropped(), 3);
        let port = scene.switch.guest_mut(RECEIVER).expect("it is there");
        port.enable(0, true);
        scene.send(3..4);
        assert_eq!(scene.received(), [3]);
        assert_eq!(scene.all_dropped(), 3);
    }
}

/// A buffer that is not granted goes back to the guest. If that stayed unpublished, the rings would
/// count as in use, and be used after their revocation.
#[test]
fn rings_are_not_used_after_a_revocation_that_follows_a_buffer_given_back() {
    for layout in [0, RING_PACKED] {
        let mut scene = Scene::new(layout);
        scene.send(0..1);
        scene.deny();
        scene.retry();
        scene.revoke(|access| access == Access::Both);
        scene.grant(|access| access == Access::Write);
        scene.send(1..2);
        scene.retry();
        assert_eq!(scene.received(), [0; 0], "its rings are revoked");
        scene.grant(|_| true);
        scene.retry();
        assert_eq!(scene.received(), [0, 1]);
        assert_eq!(scene.all_dropped(), 0);
    }
}
