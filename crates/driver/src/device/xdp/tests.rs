//! With an interface of the test's own, where the machine lets us make one.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use channel::driving::{Choice, DriverCounters};
use front::queue::{Direction, Queue};
use front::region::Region;
use rustix::thread::UnshareFlags;
use wire::virtio::net;

use super::*;
use crate::frames::{self, Coalescer, Interface, Outgoing, Scratch, Stop};
use crate::free_buffers::FreeBuffers;

/// Runs in a network namespace of its own, with a veth pair that is up; prints a note where that is
/// impossible.
fn with_veth(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the flag is not `FILES`.
            let own = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
            let ip = |words: &str| {
                let done = Command::new("ip").args(words.split(' ')).status();
                done.is_ok_and(|status| status.success())
            };
            let made = own.is_ok()
                && ip("link add up0 type veth peer name wire0")
                && ip("link set up0 up")
                && ip("link set wire0 up");
            if made {
                test()
            } else {
                eprintln!("skipped: no network namespaces here")
            }
        });
    });
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        choice: Choice::Xdp,
        own: false,
        interface: "up0".parse().unwrap(),
        netns: None,
        address: None,
        mac: None,
        mtu: None,
        queues: 1,
    }
}

#[test]
fn a_foreign_program_stays() {
    with_veth(|| {
        let index = Control::new().unwrap().index("up0").unwrap() as u32;
        let theirs = Map::new(1).unwrap().attach(index).unwrap();
        let error = open(&spec(), true).unwrap_err().to_string();
        assert_eq!(error, "another XDP program is attached to it");
        drop(theirs);
        open(&spec(), true).expect("nothing of the first attempt is left");
    });
}

#[test]
fn each_process_has_sockets_of_its_own_and_the_program_stays() {
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        assert_eq!(device.back_end(), BackEnd::Xdp { zero_copy: false });
        for _ in 0..3 {
            assert_eq!(device.check(), Ok(()));
            let given = device.hand_over(Choice::Xdp).unwrap();
            let (memory, start) = given.xdp.expect("memory");
            assert_eq!(given.queues.len(), 1);
            assert_eq!((start.longest, start.unfinished), (1518, true));
            let size = rustix::fs::fstat(&memory).unwrap().st_size;
            assert_eq!(size as u64, SHAPE.size(1));
            assert!(open(&spec(), true).is_err(), "it is in use");
        }
    });
}

#[test]
fn what_is_kept_can_be_passed_on_while_a_process_works() {
    with_veth(|| {
        let control = Control::new().unwrap();
        let taken_off = || control.takes_tags_off("up0").unwrap();
        let mut device = open(&spec(), true).unwrap();
        let first = device.hand_over(Choice::Xdp).unwrap();
        let copies = device.parts(|fd| fd.try_clone_to_owned().unwrap());
        // As it goes with the program that it is of: nothing is undone.
        std::mem::forget(device);
        let mut device = Device::of(copies, Ok::<_, io::Error>).unwrap();
        assert_eq!(device.check(), Ok(()));
        assert_eq!(device.back_end(), BackEnd::Xdp { zero_copy: false });
        assert!(
            device.hand_over(Choice::Xdp).is_err(),
            "the sockets of the process are there"
        );
        drop(first);
        let second = device.hand_over(Choice::Xdp).unwrap();
        assert!(second.xdp.is_some() && !taken_off());
        drop((second, device));
        assert!(taken_off());
    });
}

#[test]
fn tags_are_left_in_frames_only_meanwhile() {
    with_veth(|| {
        let control = Control::new().unwrap();
        let taken_off = || control.takes_tags_off("up0").unwrap();
        assert!(taken_off());
        let device = open(&spec(), true).unwrap();
        assert!(!taken_off());
        drop(device);
        assert!(taken_off());
    });
}

#[test]
fn another_mtu_is_for_another_process() {
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        assert!(!device.has_changed(), "there is no process");
        device.hand_over(Choice::Xdp).unwrap();
        for mtu in [3000, 1400] {
            assert!(!device.has_changed());
            device.set_mtu(Some(mtu)).unwrap();
            assert!(device.has_changed());
            let (_, start) = device.hand_over(Choice::Xdp).unwrap().xdp.expect("memory");
            assert_eq!(start.longest, u32::from(mtu) + 18);
        }
        assert!(!device.has_changed());
    });
}

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
        choice: Choice::Packet,
        interface: "wire0".parse().unwrap(),
        ..spec()
    };
    let mut device = Device::open(&spec).unwrap();
    let socket = device.hand_over(Choice::Xdp).unwrap().queues.pop();
    Interface::new(BackEnd::Packet, socket.unwrap())
}

/// A driver of the pair's end, with its memory.
fn driver(device: &mut Device) -> (Arc<Region>, Interface) {
    let given = device.hand_over(Choice::Xdp).unwrap();
    let (memory, start) = given.xdp.expect("memory");
    let region = Arc::new(Region::over(memory, SHAPE, 1).unwrap());
    let socket = given.queues.into_iter().next().unwrap();
    let xdp = frames::Xdp::new(socket, &region, 0, start).unwrap();
    (region, Interface::Xdp(Box::new(xdp)))
}

#[test]
fn a_call_sends_many_frames() {
    const FRAMES: u16 = 64;
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        let (region, mut interface) = driver(&mut device);
        let queue = Queue::new(region, 0, Direction::Inbound);
        let bytes = frame(60);
        let mut frames: Vec<Outgoing> = (0..FRAMES)
            .map(|id| {
                let (buffer, len) = (queue.buffer(id), bytes.len() as u32);
                // SAFETY: the buffer is longer, and has no other user.
                unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Outgoing { id, buffer, len }
            })
            .collect();
        let (mut back, mut counters) = (Vec::new(), DriverCounters::default());
        let mut coalescer = Coalescer::new(false);
        let sent = interface
            .send(&mut frames, &mut back, &mut coalescer, &mut counters)
            .unwrap();
        assert_eq!(sent, (FRAMES.into(), Stop::Done));
        let (sent, rejected) = (counters.sent, counters.rejected_by_interface);
        assert_eq!(sent.frames + rejected, u64::from(FRAMES));
        assert!((1..=4).contains(&sent.calls), "{counters:?}");
    });
}

#[test]
fn a_frame_lies_as_in_a_buffer_of_linux() {
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        let (region, mut interface) = driver(&mut device);
        let queue = Queue::new(region, 1, Direction::Outbound);
        let mut free = FreeBuffers::all_of(SHAPE.entries);
        let (mut scratch, mut counters) = (Scratch::default(), DriverCounters::default());
        let mut receive = || {
            let mut arrived = Vec::new();
            let done =
                interface.receive(&queue, &mut free, &mut arrived, &mut scratch, &mut counters);
            done.unwrap();
            arrived
        };
        receive();
        let mut bytes = frame(1000);
        let out = Outgoing {
            id: 0,
            buffer: bytes.as_mut_ptr(),
            len: bytes.len() as u32,
        };
        let mut of_peer = DriverCounters::default();
        let (mut back, mut coalescer) = (Vec::new(), Coalescer::new(false));
        peer()
            .send(&mut [out], &mut back, &mut coalescer, &mut of_peer)
            .unwrap();
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
