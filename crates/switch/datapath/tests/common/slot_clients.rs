//! Processes with slot queues in this process.

use datapath::ports::calls::PendingCalls;
use datapath::ports::guest::{GuestPort, GuestQueue};
use datapath::ports::queue_lock::QueueLock;
use testkit::guest_ram::GuestRam;
use testkit::slots::{self, SlotNic, SlotOptions};
use virtio::queue::{Layout, Queue, SlotFormat};
use wire::virtio::features::Features;

use super::common::event;

/// Returns a client with slot queues, its memory, and its port. It negotiates `features`.
pub(crate) fn slot_client(options: SlotOptions, features: u64) -> (GuestRam, SlotNic, GuestPort) {
    let ram = GuestRam::heap(&[options.region()]);
    let nic = SlotNic::new(&ram, options);
    let mut port = GuestPort::new(None);
    for (index, ring) in [(0u16, &nic.rx), (1, &nic.tx)] {
        let addrs = ring.addrs();
        let to_client = index.is_multiple_of(2);
        let format = match options.format {
            slots::SlotFormat::Netmap { .. } => SlotFormat::Netmap,
            slots::SlotFormat::Memif => SlotFormat::Memif { to_client },
        };
        let layout = Layout {
            size: options.size,
            desc: addrs.desc,
            driver: addrs.driver,
            device: addrs.device,
            slots: Some(format),
        };
        let features = Features::from_bits_truncate(features);
        let queue = Queue::new(ram.memory(), layout, features, 0).expect("a sound queue");
        let queue = GuestQueue::new(queue, features, event(), Some(event().into()), true);
        let mut queue = QueueLock::new(queue);
        queue.with(|queue| queue.begin(to_client, &mut PendingCalls::default()));
        port.start(index, queue, features);
    }
    (ram, nic, port)
}
