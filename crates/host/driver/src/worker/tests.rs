//! A worker between a socket in the place of a TAP device, which keeps frames apart as one does,
//! and a switch that is played here.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vhost_frontend::queue::device::Device;

use super::*;
use ipc::driving::BackEnd;
use wire::MacAddr;
use wire::build::PacketBuilder;
use wire::virtio::shape::{BUFFER, QUEUE_SIZE};

use crate::frames::HEADROOM;

const POLL_INTERVAL: Duration = Duration::from_secs(20);
const HEADER_BYTES: usize = HEADER as usize;

/// A worker that runs, and what is at its two ends.
struct World {
    region: Arc<Region>,
    wire: OwnedFd,
    /// The interface, as the supervisor keeps it.
    kept: OwnedFd,
    from_switch: Device,
    to_switch: Device,
    calls: [OwnedFd; 2],
    status: Arc<WorkerStatus>,
    thread: JoinHandle<Result<(), WorkerError>>,
}

fn world() -> World {
    let (region, [wire, kept], worker) = at_rest();
    let calls = worker.rings().unwrap().map(|ring| ring.call);
    World {
        from_switch: Device::new(&region, 0),
        to_switch: Device::new(&region, 1),
        wire,
        kept,
        calls,
        status: worker.status(),
        thread: std::thread::spawn(move || worker.run(|| ())),
        region,
    }
}

/// A worker that has not turned yet, with its memory, and both ends of its wire.
fn at_rest() -> (Arc<Region>, [OwnedFd; 2], Worker) {
    let region = Arc::new(Region::new("test", 1).expect("memory"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ends =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let kept = ends.0.try_clone().unwrap();
    let interface = Interface::new(BackEnd::Tap, ends.0, true);
    let worker = Worker::new(&region, (0, interface), Duration::ZERO).unwrap();
    (region, [ends.1, kept], worker)
}

/// Frame number `n`, with its header: its length and all its bytes depend on `n`.
fn frame(n: u32) -> Vec<u8> {
    let len = HEADER_BYTES + 14 + (n as usize).wrapping_mul(7919) % 3000;
    (0..len).map(|at| (at as u32 ^ n ^ n >> 8) as u8).collect()
}

impl World {
    fn bytes(&self, address: u64, len: u32) -> Vec<u8> {
        let start = self.region.pointer(address, len.into());
        // SAFETY: `pointer` checked the bounds; the buffer is available to us, so there is no other
        // writer.
        unsafe { std::slice::from_raw_parts(start, len as usize) }.to_vec()
    }

    /// Takes a frame that the worker has submitted to the switch, and returns the buffer.
    fn switch_takes(&mut self) -> Option<Vec<u8>> {
        let (id, address, len, flags) = self.to_switch.take()?;
        assert_eq!(flags, 0, "for reading");
        let first = self.region.place(1).buffer(id);
        assert_eq!(address, first + u64::from(HEADROOM));
        let bytes = self.bytes(address, len);
        self.to_switch.give(id.into(), 0);
        sys::event::ring(&self.calls[1]).unwrap();
        Some(bytes)
    }

    /// Gives the worker a frame of the switch; `false` when there is no buffer for it.
    fn switch_gives(&mut self, frame: &[u8]) -> bool {
        let Some((id, address, len, flags)) = self.from_switch.take() else {
            return false;
        };
        assert_eq!((flags, len), (2, BUFFER), "for writing");
        let start = self.region.pointer(address, len.into());
        // SAFETY: `pointer` checked the bounds, and the buffer is available to us.
        unsafe { std::slice::from_raw_parts_mut(start, frame.len()) }.copy_from_slice(frame);
        self.from_switch.give(id.into(), frame.len() as u32);
        sys::event::ring(&self.calls[0]).unwrap();
        true
    }

    fn wire_gives(&self, frame: &[u8]) -> bool {
        match rustix::io::write(&self.wire, frame) {
            Ok(len) => len == frame.len(),
            Err(Errno::AGAIN) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn wire_takes(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        match rustix::io::read(&self.wire, &mut bytes) {
            Ok(len) => Some(bytes[..len].to_vec()),
            Err(Errno::AGAIN) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn end(self) -> WorkerError {
        drop(self.wire);
        self.thread.join().unwrap().unwrap_err()
    }
}

/// Lets `turn` make progress until it returns that all is done.
fn until(mut turn: impl FnMut() -> bool) {
    let start = Instant::now();
    while !turn() {
        assert!(start.elapsed() < POLL_INTERVAL, "no progress");
        std::thread::yield_now();
    }
}

#[test]
fn every_frame_crosses_once_and_in_order_both_ways() {
    const FRAMES: u32 = 5000;
    let mut world = world();
    // In, out: frames given and frames taken. Each end is now ahead, now behind, so that all four
    // sides run full.
    let (mut given, mut taken) = ([0; 2], [0; 2]);
    let mut turn = 0u32;
    until(|| {
        turn = turn.wrapping_add(1);
        let sleep_limit = turn / 512 % 4;
        if sleep_limit != 0 && given[0] < FRAMES && world.wire_gives(&frame(given[0])) {
            given[0] += 1;
        }
        if sleep_limit != 1 && given[1] < FRAMES && world.switch_gives(&frame(given[1])) {
            given[1] += 1;
        }
        if sleep_limit != 2
            && let Some(got) = world.switch_takes()
        {
            assert!(got == frame(taken[0]), "to the switch: frame {}", taken[0]);
            taken[0] += 1;
        }
        if sleep_limit != 3
            && let Some(got) = world.wire_takes()
        {
            assert!(got == frame(taken[1]), "to the wire: frame {}", taken[1]);
            taken[1] += 1;
        }
        taken == [FRAMES; 2]
    });
    let counters = world.status.counters();
    assert_eq!(
        (counters.rejected_by_interface, counters.oversized_frames),
        (0, 0)
    );
    assert!(world.end().device_lost());
}

#[test]
fn a_wire_that_takes_nothing_holds_the_switch_back_and_loses_nothing() {
    let mut world = world();
    let mut given = 0;
    // Until the socket, the worker and all buffers are full.
    let mut idle = Instant::now();
    while idle.elapsed() < Duration::from_millis(50) {
        while world.switch_gives(&frame(given)) {
            given += 1;
            idle = Instant::now();
        }
    }
    assert!(given >= u32::from(QUEUE_SIZE));
    // The other direction continues.
    assert!(world.wire_gives(&frame(7)));
    until(|| world.switch_takes().is_some_and(|got| got == frame(7)));
    let mut taken = 0;
    until(|| {
        while let Some(got) = world.wire_takes() {
            assert!(got == frame(taken), "frame {taken}");
            taken += 1;
        }
        taken == given
    });
    world.end();
}

/// Datagram number `n` of a flow, with its virtio header.
fn datagram(flow: u8, n: u16) -> Vec<u8> {
    let packet = PacketBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let packet = packet.ipv4([10, 0, 0, 1], [10, 0, 0, flow]).udp(1, 2);
    let payload = [[flow, 0], n.to_be_bytes()].concat();
    let frame = packet.ip_id(n).payload(&payload).build();
    [&[0; HEADER_BYTES][..], &frame].concat()
}

#[test]
fn flows_stay_in_order_when_a_wire_that_was_full_takes_super_frames() {
    const FLOWS: u8 = 3;
    let mut world = world();
    let (mut given, mut taken) = (0, [0; FLOWS as usize]);
    // Until all is full; from then on the wire takes now and then.
    let mut idle = Instant::now();
    let mut give = |world: &mut World| {
        let (flow, n) = ((given % u16::from(FLOWS)) as u8, given / u16::from(FLOWS));
        let done = given < 6000 && world.switch_gives(&datagram(flow, n));
        given += u16::from(done);
        done
    };
    while idle.elapsed() < Duration::from_millis(50) {
        while give(&mut world) {
            idle = Instant::now();
        }
    }
    let mut super_frames = 0;
    until(|| {
        while give(&mut world) {}
        let Some(write) = world.wire_takes() else {
            return taken == [2000; FLOWS as usize];
        };
        // A super-frame is its headers, and the payloads of all.
        let (headers, payloads) = write.split_at(HEADER_BYTES + 42);
        super_frames += u32::from(headers[1] == wire::virtio::net::GSO_UDP_L4);
        for payload in payloads.chunks(4) {
            let flow = usize::from(payload[0]);
            assert_eq!(
                payload[2..],
                u16::to_be_bytes(taken[flow]),
                "of flow {flow}"
            );
            taken[flow] += 1;
        }
        false
    });
    assert!(super_frames > 0);
    until(|| {
        world.status.ping();
        let sent = world.status.counters().sent;
        sent.frames == 6000 && sent.calls < 6000
    });
    world.end();
}

#[test]
fn a_frame_that_was_cut_goes_nowhere_and_is_counted() {
    let mut world = world();
    let longest = vec![1; (BUFFER - HEADROOM) as usize - 1];
    assert!(world.wire_gives(&longest));
    until(|| world.switch_takes().is_some_and(|got| got == longest));
    for more in [1, 2, 1000] {
        until(|| world.wire_gives(&vec![2; longest.len() + more]));
    }
    until(|| world.wire_gives(&frame(7)));
    until(|| world.switch_takes().is_some_and(|got| got == frame(7)));
    until(|| {
        world.status.ping();
        world.status.counters().oversized_frames == 3
    });
    world.end();
}

#[test]
fn a_sign_of_life_is_given_even_at_rest() {
    let world = world();
    assert!(world.status.is_alive(), "no ping yet");
    for _ in 0..3 {
        world.status.ping();
        until(|| world.status.is_alive());
    }
    world.end();
}

#[test]
fn what_the_switch_may_not_do_ends_the_worker() {
    let mut world = world();
    let (id, ..) = world.from_switch.take().unwrap();
    world.from_switch.give(id.into(), HEADER);
    sys::event::ring(&world.calls[0]).unwrap();
    assert!(matches!(
        world.thread.join().unwrap(),
        Err(WorkerError::Short(HEADER))
    ));

    let mut world = self::world();
    world.to_switch.give(3, 0);
    sys::event::ring(&world.calls[1]).unwrap();
    // It looks when it has something to send.
    world.wire_gives(&frame(1));
    let error = world.thread.join().unwrap().unwrap_err();
    assert!(
        matches!(error, WorkerError::Switch(Fault::Ahead { .. })),
        "{error}"
    );
    assert!(!error.device_lost());
}

#[test]
fn a_stopping_worker_drains_its_frames_and_takes_no_more() {
    let mut world = world();
    const FRAMES: u32 = 30;
    for n in 0..FRAMES {
        until(|| world.wire_gives(&frame(n)));
    }
    // All are with the switch, which has not taken one of them.
    until(|| world.to_switch.waiting() == FRAMES as u16);
    world.status.request(Phase::Drained);
    // It has seen that when it answers.
    world.status.ping();
    until(|| world.status.is_alive());
    assert!(world.wire_gives(&frame(1000)), "for the next driver");
    for n in 0..FRAMES {
        assert!(
            !world.status.has_reached(Phase::Drained),
            "frame {n} is out"
        );
        assert!(world.switch_takes().unwrap() == frame(n), "frame {n}");
    }
    until(|| world.status.has_reached(Phase::Drained));
    for n in 0..FRAMES {
        assert!(world.switch_gives(&frame(n)));
    }
    world.status.request(Phase::Stopped);
    let mut taken = 0;
    until(|| {
        while let Some(got) = world.wire_takes() {
            assert!(got == frame(taken), "frame {taken}");
            taken += 1;
        }
        taken == FRAMES
    });
    world.thread.join().unwrap().expect("a good end");
    let mut left = vec![0; 70_000];
    let len = rustix::io::read(&world.kept, &mut left).unwrap();
    assert!(left[..len] == frame(1000), "it was left where it was");
}

#[test]
fn after_many_frames_it_looks_once_more_before_it_asks_for_a_call() {
    let (region, [wire, _], mut worker) = at_rest();
    let mut switch = Device::new(&region, 0);
    let mut used = 0;
    // Notifications that the worker requests after one turn and after two, when so many frames have
    // come from the switch. It is woken at once.
    let mut after_frames = |frames: u16, len| {
        for _ in 0..frames {
            let (id, ..) = switch.take().unwrap();
            switch.give(id.into(), len);
        }
        used += frames;
        let asked = [(); 2].map(|()| {
            worker.status.ping();
            worker.turn().unwrap();
            switch.call_wanted_at() == used
        });
        while rustix::io::read(&wire, &mut [0; 100]).is_ok() {}
        asked
    };
    let mut after = |frames| after_frames(frames, 100);
    // A turn that moved all there was is followed by another one, as there may be more.
    assert_eq!(after(3), [false, true], "few");
    assert_eq!(after(4), [false, false], "many: a pause");
    assert_eq!(after(0), [true, true], "it brought nothing");
    assert_eq!(after(64), [false, false]);
    assert_eq!(after(1), [false, true], "it brought little");
    assert_eq!(after_frames(8, 5000), [false, true], "super-frames");
}

#[test]
fn consecutive_frames_lie_at_ascending_addresses() {
    let (region, [wire, _], mut worker) = at_rest();
    let (mut to_switch, mut from_switch) = (Device::new(&region, 1), Device::new(&region, 0));
    let mut from_driver = Vec::new();
    for round in 0..20u16 {
        // Bursts of several lengths; the switch returns the buffers of each in the order of use.
        let burst = 1 + round * 7 % 50;
        for n in 0..burst {
            rustix::io::write(&wire, &frame(n.into())).unwrap();
        }
        while worker.receive().unwrap() {}
        let taken: Vec<u16> =
            std::iter::from_fn(|| to_switch.take().map(|taken| taken.0)).collect();
        let expected: Vec<u16> = (0..burst).collect();
        assert_eq!(
            taken, expected,
            "round {round}: the first buffers are used again"
        );
        taken.iter().for_each(|id| to_switch.give((*id).into(), 0));
        for n in 0..burst {
            let (id, ..) = from_switch.take().expect("a buffer");
            from_driver.push(id);
            from_switch.give(id.into(), frame(n.into()).len() as u32);
        }
        while worker.send().unwrap() {}
        while rustix::io::read(&wire, &mut [0; 70_000]).is_ok() {}
    }
    let expected = (0..QUEUE_SIZE).cycle().take(from_driver.len());
    assert!(
        expected.eq(from_driver),
        "buffers for frames of the switch stay in order"
    );
}
