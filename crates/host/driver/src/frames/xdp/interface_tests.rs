//! Frames over an interface of the test's own, where the machine lets us make one.

use std::sync::Arc;
use std::time::Instant;

use interfaces::device::Device;
use interfaces::testing::{spec, with_veth};
use ipc::driving::{BackEnd, Choice, DeviceSpec, DriverCounters};
use vhost_frontend::queue::{Direction, Queue};
use vhost_frontend::region::Region;
use wire::virtio::net;

use super::*;
use crate::frames::Interface;

/// Frames of the test's own, beside those that the hosts of the pair exchange.
const PROTOCOL: [u8; 2] = [0x88, 0xb5];

/// A frame with its virtio header, as long as `len` without that.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0; net::LEN + len];
    frame[net::LEN] = 2;
    frame[net::LEN + 12..][..2].copy_from_slice(&PROTOCOL);
    frame
}

/// The other end of the pair.
fn peer() -> Interface {
    let spec = DeviceSpec {
        interface: "wire0".parse().unwrap(),
        ..spec(Choice::Packet, false)
    };
    let mut device = Device::open(&spec).unwrap();
    let socket = device.hand_over(Choice::Xdp).unwrap().queues.pop();
    Interface::new(BackEnd::Packet, socket.unwrap(), false)
}

/// A driver of the pair's end, with its memory.
fn driver(device: &mut Device) -> (Arc<Region>, Interface) {
    let given = device.hand_over(Choice::Xdp).unwrap();
    let (memory, start) = given.xdp.expect("memory");
    let region = Arc::new(Region::over(memory, SHAPE, 1).unwrap());
    let socket = given.queues.into_iter().next().unwrap();
    let xdp = Xdp::new(socket, &region, 0, start).unwrap();
    (region, Interface::Xdp(Box::new(xdp)))
}

#[test]
fn a_call_sends_many_frames() {
    const FRAMES: u16 = 64;
    with_veth(|| {
        let mut device = Device::open(&spec(Choice::Xdp, false)).unwrap();
        let (region, mut interface) = driver(&mut device);
        let queue = Queue::new(region, 0, Direction::Inbound);
        let bytes = frame(60);
        let frames: Vec<OutgoingFrame> = (0..FRAMES)
            .map(|id| {
                let (buffer, len) = (queue.buffer(id), bytes.len() as u32);
                // SAFETY: the buffer is longer, and has no other user.
                unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                OutgoingFrame { id, buffer, len }
            })
            .collect();
        let (mut back, mut counters) = (Vec::new(), DriverCounters::default());
        let stop = interface.send(&frames, &mut back, &mut counters);
        assert_eq!(stop.unwrap(), Stop::Done);
        let (sent, rejected) = (counters.sent, counters.rejected_by_interface);
        assert_eq!(sent.frames + rejected, u64::from(FRAMES));
        assert!((1..=4).contains(&sent.calls), "{counters:?}");
    });
}

#[test]
fn a_frame_lies_as_in_a_buffer_of_linux() {
    with_veth(|| {
        let mut device = Device::open(&spec(Choice::Xdp, false)).unwrap();
        let (region, mut interface) = driver(&mut device);
        let queue = Queue::new(region, 1, Direction::Outbound);
        let mut free = FreeBuffers::all_of(SHAPE.entries);
        let mut counters = DriverCounters::default();
        let mut receive = || {
            let mut arrived = Vec::new();
            let done = interface.receive(&queue, &mut free, &mut arrived, &mut counters);
            done.unwrap();
            arrived
        };
        receive();
        let mut bytes = frame(1000);
        let out = OutgoingFrame {
            id: 0,
            buffer: bytes.as_mut_ptr(),
            len: bytes.len() as u32,
        };
        let mut of_peer = DriverCounters::default();
        peer().send(&[out], &mut Vec::new(), &mut of_peer).unwrap();
        let start = Instant::now();
        let found = loop {
            let arrived = receive();
            if let Some(frame) = arrived.iter().find(|frame| frame.len == out.len) {
                break *frame;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{of_peer:?}");
        };
        assert_eq!(found.start % 64, 0, "the header starts a cache line");
    });
}
