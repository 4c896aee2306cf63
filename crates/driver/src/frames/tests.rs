//! A packet socket on a TAP device in a network namespace of the test's own: what is written to the
//! device comes in at the socket.

use std::os::fd::OwnedFd;

use channel::driving::{Choice, DeviceSpec};
use front::queue::{Direction, Queue};
use front::region::Region;
use rustix::thread::UnshareFlags;

use super::*;
use crate::device::{Device, NotReady};

struct World {
    _tap: Device,
    wire: OwnedFd,
    device: Device,
    socket: Interface,
    queue: Queue,
    counters: DriverCounters,
}

fn spec(choice: Choice, own: bool) -> DeviceSpec {
    DeviceSpec {
        choice,
        own,
        interface: "up0".parse().unwrap(),
        netns: None,
        address: None,
        mac: None,
        mtu: None,
        queues: 1,
    }
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
    let wire = tap.hand_over(Choice::Tap).unwrap().queues.pop()?;
    let mut device = Device::open(&spec(Choice::Packet, false)).unwrap();
    let socket = device.hand_over(Choice::Tap).unwrap().queues.pop()?;
    let region = std::sync::Arc::new(Region::new("test", 1).expect("memory"));
    let mut world = World {
        _tap: tap,
        wire,
        device,
        socket: Interface::new(BackEnd::Packet, socket),
        queue: Queue::new(region, 1, Direction::Outbound),
        counters: DriverCounters::default(),
    };
    // Frames that the system has sent to the new interface by itself.
    while world.receive().unwrap().1 == Stop::Done {}
    Some(world)
}

impl World {
    /// Receives up to a batch; the last byte of each frame.
    fn receive(&mut self) -> io::Result<(Vec<u8>, Stop)> {
        let buffers: Vec<_> = (0..BATCH as u16).map(|id| self.queue.buffer(id)).collect();
        let mut received = Vec::new();
        let stop = self
            .socket
            .receive_into(&buffers, &mut received, &mut self.counters)?;
        let last = received.iter().zip(&buffers).map(|(frame, buffer)| {
            let at = (frame.start + frame.len - 1) as usize;
            // SAFETY: the byte is inside the buffer, which has no other user.
            unsafe { buffer.add(at).read() }
        });
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
        assert_eq!(rustix::io::write(&self.wire, &bytes), Ok(bytes.len()));
    }
}

#[test]
fn a_packet_that_no_header_can_describe_costs_itself_alone() {
    let Some(mut world) = world() else { return };
    world.counters = DriverCounters::default();
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
            world.counters.rejected_by_interface,
            world.counters.oversized_frames
        ),
        (9, 0)
    );
}

#[test]
fn a_frame_that_traffic_control_refuses_is_tried_again_while_room_is_bounded() {
    let Some(mut world) = world() else { return };
    let retries = |world: &mut World, now| match &mut world.socket {
        Interface::Packet(packets) => packets.is_worth_a_retry(now),
        other => panic!("{other:?}"),
    };
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
    let ip = |words: &str| {
        let done = std::process::Command::new("ip")
            .args(words.split(' '))
            .status();
        assert!(done.is_ok_and(|status| status.success()), "ip {words}");
    };
    ip("link set up0 down");
    let down = NotReady::Down("up0".to_owned());
    assert_eq!(world.device.check(), Err(down.clone()));
    assert_eq!(world.device.check(), Err(down));
    ip("link set up0 up");
    assert_eq!(world.device.check(), Ok(()));
    world.arrives(9, net::GSO_NONE);
    let got = world.receive().expect("nothing is left of the pause").0;
    assert!(got.contains(&9), "{got:?}");
    ip("link delete up0");
    assert_eq!(world.device.check(), Err(NotReady::Gone));
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
        segments(frame.as_ptr(), frame.len() as u32)
    };
    assert_eq!(of(net::GSO_NONE, 100, 1000, 0), 1);
    assert_eq!(of(net::GSO_UDP_L4, 0, 1000, 0), 1);
    assert_eq!(of(net::GSO_UDP_L4, 100, 1000, 0), 10);
    assert_eq!(of(net::GSO_UDP_L4, 100, 1001, 0), 11);
    assert_eq!(of(net::GSO_TCPV4, 100, 1000, 8), 10);
    assert_eq!(of(net::GSO_TCPV6 | net::GSO_ECN, 100, 901, 15), 10);
    // Headers of nothing.
    assert_eq!(segments([0xff; net::LEN].as_ptr(), HEADER), 1);
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
    let folder = std::fs::File::open("/").unwrap();
    let mut interface = Interface::new(BackEnd::Tap, folder.into());
    let mut buffer = vec![0u8; BUFFER as usize];
    let (mut received, mut counters) = (Vec::new(), DriverCounters::default());
    let error = interface
        .receive_into(&[buffer.as_mut_ptr()], &mut received, &mut counters)
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    assert!(!is_lost(&error));
    assert_eq!((received.len(), counters.rejected_by_interface), (0, 0));
}

#[test]
fn frames_that_find_no_room_in_the_socket_are_counted() {
    const FRAMES: u64 = 200;
    let Some(mut world) = world() else { return };
    // The system makes that the least that it allows.
    rustix::net::sockopt::set_socket_recv_buffer_size(&world.socket, 1).unwrap();
    for _ in 0..FRAMES {
        world.arrives(0, net::GSO_NONE);
    }
    world.counters = DriverCounters::default();
    let start = Instant::now();
    let mut dropped = 0;
    while dropped <= FRAMES / 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "none is dropped");
        world.socket.count_drops(&mut world.counters);
        dropped = world.counters.dropped_by_kernel.unwrap();
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
