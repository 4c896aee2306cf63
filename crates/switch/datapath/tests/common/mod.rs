//! Guests in this process: a driver's NIC over heap memory, and the port that serves it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use datapath::forward::switch::UpcallSink;
use datapath::ports::calls::PendingCalls;
use datapath::ports::guest::{GuestPort, GuestQueue};
use datapath::ports::queue_lock::QueueLock;
use ipc::records::Upcall;
use rustix::event::{EventfdFlags, eventfd};
use testkit::driver::DriverQueue;
use testkit::features::RING_PACKED;
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::net::{NetOptions, NetPair};
use virtio::queue::{Journal, JournalRegion, Layout, Queue, QueueMemory};
use wire::virtio::features::Features;

/// Sink for tests in which all flows are installed beforehand.
pub(crate) struct NoUpcalls;

impl UpcallSink for NoUpcalls {
    fn send(&mut self, upcall: &Upcall) -> bool {
        panic!("an upcall: {upcall:?}");
    }
}

/// Returns the device's half of a driver's queue that was never used.
pub(crate) fn queue(ram: &GuestRam, driver: &DriverQueue, features: u64) -> GuestQueue {
    let packed = features & RING_PACKED != 0;
    queue_at(ram, driver, features, if packed { 0x8000_8000 } else { 0 })
}

/// Returns the device's half of a driver's queue, at this position.
pub(crate) fn queue_at(
    ram: &GuestRam,
    driver: &DriverQueue,
    features: u64,
    position: u32,
) -> GuestQueue {
    queue_in(ram, ram.memory(), driver, features, position)
}

/// Returns the device's half of a driver's queue, which reaches it by `memory`.
pub(crate) fn queue_in(
    ram: &GuestRam,
    memory: impl Into<QueueMemory>,
    driver: &DriverQueue,
    features: u64,
    position: u32,
) -> GuestQueue {
    let addrs = driver.addrs();
    let layout = Layout {
        size: driver.options().size,
        desc: ram.device_address(addrs.desc),
        driver: ram.device_address(addrs.driver),
        device: ram.device_address(addrs.device),
        slots: None,
    };
    let features = Features::from_bits_truncate(features);
    let queue = Queue::new(memory, layout, features, position);
    let mut queue = queue.expect("a sound queue");
    // As in the switch: packed queues store their position.
    queue.set_journal(Journal::new(Arc::new(JournalRegion::heap(1)), 0, 1));
    GuestQueue::new(queue, features, event(), Some(event().into()), true)
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// Returns a guest with `memory` bytes of RAM, its receive buffers offered.
#[allow(dead_code)] // some tests bring their own port
pub(crate) fn guest(options: NetOptions, memory: u64) -> (GuestRam, NetPair, GuestPort) {
    guest_at(options, memory, GuestPort::new(None))
}

/// Returns a guest behind this port, which has no queues yet.
pub(crate) fn guest_at(
    options: NetOptions,
    memory: u64,
    mut port: GuestPort,
) -> (GuestRam, NetPair, GuestPort) {
    let features = options.features;
    let ram = GuestRam::heap(&[RegionSpec::at(0x10_0000, memory)]);
    let mut nic = NetPair::new(&ram, options);
    nic.offer();
    for (index, driver) in [(0u16, &nic.rx), (1, &nic.tx)] {
        let negotiated = Features::from_bits_truncate(features);
        let mut queue = QueueLock::new(queue(&ram, driver, features));
        queue.with(|queue| queue.begin(index.is_multiple_of(2), &mut PendingCalls::default()));
        port.start(index, queue, negotiated);
    }
    (ram, nic, port)
}
