//! A packet socket on a TAP device in a network namespace of the test's own: what is written to the
//! device comes in at the socket, and what is sent by the socket is read from the device.

mod faults;
mod offloads;
mod sending;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use interfaces::device::{Device, NotReadyError};
use interfaces::testing::spec;
use ipc::driving::{Choice, DriverCounters};
use rustix::thread::UnshareFlags;
use wire::virtio::net::NetHeader;

use super::*;
use crate::receive::after;

/// Addresses of the tests' frames: the system uses neither.
const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// A queue of an interface, with memory.
struct Queue {
    receiver: Receiver,
    sender: Sender,
    buffers: Vec<Vec<u8>>,
    counters: DriverCounters,
}

impl Queue {
    fn new(kind: Kind, queue: &Arc<OwnedFd>) -> Self {
        Self {
            receiver: Receiver::new(kind, queue.clone()),
            sender: Sender::new(kind, queue.clone()),
            buffers: vec![vec![0; BUFFER]; BATCH],
            counters: DriverCounters::default(),
        }
    }

    /// Receives up to a batch; each frame with its virtio header.
    fn receive(&mut self) -> io::Result<(Vec<Vec<u8>>, Stop)> {
        let buffers = self.buffers.iter_mut().map(|buffer| buffer.as_mut_ptr());
        let buffers: Vec<_> = buffers.collect();
        let mut received = Vec::new();
        let counters = &mut self.counters;
        // SAFETY: the buffers are as long, and have no other user.
        let stop = unsafe { self.receiver.receive(&buffers, &mut received, counters) }?;
        let frames = received.iter().zip(&self.buffers).map(|(frame, buffer)| {
            let ReceivedFrame { start, len } = *frame;
            buffer[start as usize..][..len as usize].to_vec()
        });
        Ok((frames.collect(), stop))
    }

    /// Receives the tests' frames until there are none.
    fn receive_all(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let (frames, stop) = self.receive().expect("frames");
            let is_ours = |of: &Vec<u8>| of[net::LEN..].starts_with(&ADDRESSES);
            all.extend(frames.into_iter().filter(is_ours));
            if stop == Stop::Wait {
                return all;
            }
        }
    }

    /// Sends what the outbox has; numbers that are done, and whether they were sent.
    fn send(&mut self, outbox: &mut Outbox) -> (Vec<(u16, bool)>, Stop) {
        let mut done = Vec::new();
        let sent = self.sender.send(outbox, &mut done, &mut self.counters);
        (done, sent.expect("an interface"))
    }
}

struct World {
    _tap: Device,
    device: Device,
    tap: Queue,
    socket: Queue,
}

/// The world of a test, on a thread that has left the host's network; none where that or TAP
/// devices are not allowed.
fn world() -> Option<World> {
    // SAFETY: the flag is not `FILES`; a thread of a test may have a network of its own.
    let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    let tap = alone
        .map_err(|e| e.to_string())
        .and_then(|()| Device::open(&spec(Choice::Tap, true)).map_err(|e| e.to_string()));
    let mut tap = match tap {
        Ok(tap) => tap,
        Err(error) => {
            eprintln!("skipped: no network namespace or TAP device here ({error})");
            return None;
        }
    };
    let wire = Arc::new(tap.hand_over(Choice::Tap).unwrap().queues.pop()?);
    let mut device = Device::open(&spec(Choice::Packet, false)).unwrap();
    let socket = Arc::new(device.hand_over(Choice::Tap).unwrap().queues.pop()?);
    let mut world = World {
        _tap: tap,
        device,
        tap: Queue::new(Kind::Tap, &wire),
        socket: Queue::new(Kind::Packet, &socket),
    };
    // Frames that the system has sent to the new interface by itself.
    while world.socket.receive().unwrap().1 == Stop::Done {}
    Some(world)
}

fn ip(words: &str) {
    let done = std::process::Command::new("ip")
        .args(words.split(' '))
        .status();
    assert!(done.is_ok_and(|status| status.success()), "ip {words}");
}

impl World {
    /// The last byte of each frame that the socket receives, up to a batch.
    fn receive(&mut self) -> io::Result<(Vec<u8>, Stop)> {
        let (frames, stop) = self.socket.receive()?;
        let last = frames.iter().filter_map(|frame| frame.last().copied());
        Ok((last.collect(), stop))
    }

    /// The interface gets a frame that is `n` over and over, with this kind of segmentation (virtio
    /// 1.3, 5.1.6).
    fn arrives(&self, n: u8, gso: u8) {
        let size = if gso == net::GSO_NONE { 0u16 } else { 100 };
        let mut header = [0; net::LEN];
        header[1] = gso;
        header[2..4].copy_from_slice(&42u16.to_le_bytes());
        header[4..6].copy_from_slice(&size.to_le_bytes());
        let mut frame = vec![n; 14 + 1000];
        frame[0] = 2;
        frame[12..14].copy_from_slice(&[8, 0]);
        let bytes = [&header[..], &frame].concat();
        assert_eq!(
            rustix::io::write(&self.tap.receiver, &bytes),
            Ok(bytes.len())
        );
    }
}

#[test]
fn a_packet_that_no_header_can_describe_costs_itself_alone() {
    let Some(mut world) = world() else { return };
    world.socket.counters = DriverCounters::default();
    // UDP fragmentation: Linux takes it and has no header to give it back with.
    world.arrives(0, net::GSO_UDP);
    for n in 1..5 {
        world.arrives(n, net::GSO_NONE);
        world.arrives(0, net::GSO_UDP);
        world.arrives(0, net::GSO_UDP);
    }
    // Until the socket is empty: only then is there a wake-up for the next frame.
    let mut got = Vec::new();
    for calls in 1.. {
        let (frames, stop) = world.receive().expect("the interface is as good as ever");
        got.extend(frames);
        if stop == Stop::Wait {
            break;
        }
        assert!(calls < 20, "endless");
    }
    assert_eq!(got, [1, 2, 3, 4]);
    assert_eq!(
        (
            world.socket.counters.rejected_by_interface,
            world.socket.counters.oversized_frames
        ),
        (9, 0)
    );
}

#[test]
fn a_frame_that_traffic_control_refuses_is_tried_again_while_room_is_bounded() {
    let Some(mut world) = world() else { return };
    let retries = |world: &mut World, now| world.socket.sender.is_worth_a_retry(now);
    let now = Instant::now();
    let later = |ms| now + Duration::from_millis(ms);
    assert!(!retries(&mut world, now), "without a schedule");
    world.device.set_room(Some(100_000)).unwrap();
    assert!(retries(&mut world, now) && retries(&mut world, later(50)));
    assert!(!retries(&mut world, later(51)), "the frame is lost");
    assert!(retries(&mut world, later(52)), "the next one");
    world.device.set_room(None).unwrap();
    assert!(!retries(&mut world, now));
}

#[test]
fn sockets_outlive_a_time_without_the_interface() {
    let Some(mut world) = world() else { return };
    assert_eq!(world.device.check(), Ok(()));
    ip("link set up0 down");
    let down = NotReadyError::Down("up0".to_owned());
    assert_eq!(world.device.check(), Err(down.clone()));
    assert_eq!(world.device.check(), Err(down));
    ip("link set up0 up");
    assert_eq!(world.device.check(), Ok(()));
    world.arrives(9, net::GSO_NONE);
    let got = world.receive().expect("nothing is left of the pause").0;
    assert!(got.contains(&9), "{got:?}");
    ip("link delete up0");
    assert_eq!(world.device.check(), Err(NotReadyError::Gone));
}

#[test]
fn a_super_frame_counts_as_the_frames_that_it_is_cut_into() {
    let of = |gso_type, gso_size, payload: usize, tcp_words: u8| {
        let header = NetHeader {
            flags: net::FLAG_NEEDS_CSUM,
            gso_type,
            gso_size,
            csum_start: 34,
            ..NetHeader::default()
        };
        let mut frame = [&header.encode()[..], &[0; 34 + 8][..]].concat();
        if tcp_words > 0 {
            frame.resize(net::LEN + 34 + 4 * usize::from(tcp_words), 0);
            frame[net::LEN + 34 + 12] = tcp_words << 4;
        }
        frame.resize(frame.len() + payload, 0);
        // SAFETY: the bytes are there.
        unsafe { frames_on_the_wire(frame.as_ptr(), frame.len() as u32) }
    };
    assert_eq!(of(net::GSO_NONE, 100, 1000, 0), 1);
    assert_eq!(of(net::GSO_UDP_L4, 0, 1000, 0), 1);
    assert_eq!(of(net::GSO_UDP_L4, 100, 1000, 0), 10);
    assert_eq!(of(net::GSO_UDP_L4, 100, 1001, 0), 11);
    assert_eq!(of(net::GSO_TCPV4, 100, 1000, 8), 10);
    assert_eq!(of(net::GSO_TCPV6 | net::GSO_ECN, 100, 901, 15), 10);
    // Headers of nothing.
    // SAFETY: as above.
    let cut = unsafe { frames_on_the_wire([0xff; net::LEN].as_ptr(), HEADER) };
    assert_eq!(cut, 1);
}

#[test]
fn an_error_costs_what_it_is_about() {
    let mut counters = DriverCounters::default();
    for (error, stop) in [
        (Errno::AGAIN, Stop::Wait),
        (Errno::INTR, Stop::Done),
        (Errno::NOMEM, Stop::Retry),
        (Errno::NOBUFS, Stop::Retry),
    ] {
        assert_eq!(after(error, &mut counters).unwrap(), stop);
        assert_eq!(counters.rejected_by_interface, 0, "no frame is lost");
    }
    assert_eq!(after(Errno::INVAL, &mut counters).unwrap(), Stop::Done);
    assert_eq!(counters.rejected_by_interface, 1);
    for (error, lost) in [
        (Errno::FAULT, false),
        (Errno::IO, false),
        (Errno::BADFD, true),
        (Errno::NETDOWN, true),
    ] {
        let error = after(error, &mut counters).unwrap_err();
        assert_eq!(is_lost(&error), lost, "{error}");
    }
    assert_eq!(counters.rejected_by_interface, 1);
}

#[test]
fn unexpected_results_of_an_interface_are_errors() {
    let folder: OwnedFd = std::fs::File::open("/").unwrap().into();
    let mut queue = Queue::new(Kind::Tap, &Arc::new(folder));
    let error = queue.receive().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    assert!(!is_lost(&error));
    assert_eq!(queue.counters, DriverCounters::default());
}

#[test]
fn frames_that_find_no_room_in_the_socket_are_counted() {
    const FRAMES: u64 = 200;
    let Some(mut world) = world() else { return };
    // The system makes that the least that it allows.
    rustix::net::sockopt::set_socket_recv_buffer_size(&world.socket.receiver, 1).unwrap();
    for _ in 0..FRAMES {
        world.arrives(0, net::GSO_NONE);
    }
    world.socket.counters = DriverCounters::default();
    let start = Instant::now();
    let mut dropped = 0;
    while dropped <= FRAMES / 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "none is dropped");
        let Queue {
            receiver, counters, ..
        } = &mut world.socket;
        receiver.count_drops(counters);
        dropped = counters.dropped_by_kernel.unwrap();
    }
    assert!(dropped <= FRAMES);
}

#[test]
fn frames_that_wait_when_the_interface_is_closed_are_counted() {
    let Some(world) = world() else { return };
    for n in 0..3 {
        world.arrives(n, net::GSO_NONE);
        // No header can describe it.
        world.arrives(n, net::GSO_UDP);
    }
    // The system sends frames, too.
    assert!(world.device.discard() >= Some(6));
    world.arrives(9, net::GSO_NONE);
    assert_eq!(world.device.discard(), Some(0), "it gets no more");
}
