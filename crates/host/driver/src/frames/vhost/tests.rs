//! A worker between a switch and a vhost device that are played here, on shared memory.

use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vhost_frontend::queue::device::Device as Other;
use wire::MacAddr;
use wire::build::PacketBuilder;
use wire::virtio::net;

use super::*;
use crate::frames::Interface;
use crate::worker::{Phase, Worker, WorkerError, WorkerStatus};

const LIMIT: Duration = Duration::from_secs(20);
/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u16 = 1;

/// The kernel's side of a device.
struct Kernel {
    rings: Arc<Region>,
    receive: Other,
    send: Other,
    call: OwnedFd,
    /// Of the receive ring, and of the send ring.
    kicks: [OwnedFd; 2],
    error: OwnedFd,
    /// The other end of the TAP device.
    tap: OwnedFd,
}

struct World {
    region: Arc<Region>,
    from_switch: Other,
    to_switch: Other,
    calls: [OwnedFd; 2],
    kernel: Kernel,
    status: Arc<WorkerStatus>,
}

fn at_rest() -> (World, Worker) {
    let region = Arc::new(Region::new("test", 1).expect("memory"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (tap, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let vhost = VhostNet::new(nothing.into(), tap, &region, 0, true).unwrap();
    let rings = vhost.received.region();
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    let kernel = Kernel {
        receive: Other::new(&rings, vhost::RECEIVE as u16),
        send: Other::new(&rings, vhost::SEND as u16),
        rings,
        call: copy(&vhost.call),
        kicks: vhost.kicks.each_ref().map(copy),
        error: copy(&vhost.error),
        tap: other,
    };
    let interface = Interface::VhostNet(Box::new(vhost));
    let worker = Worker::new(&region, (0, interface), Duration::ZERO).unwrap();
    let calls = worker.rings().unwrap();
    let calls = calls.each_ref().map(|ring| {
        let call = ring.queue().call;
        call.try_clone_to_owned().unwrap()
    });
    let world = World {
        from_switch: Other::new(&region, 0),
        to_switch: Other::new(&region, 1),
        calls,
        kernel,
        status: worker.status(),
        region,
    };
    (world, worker)
}

fn run(worker: Worker) -> JoinHandle<Result<(), WorkerError>> {
    std::thread::spawn(move || worker.run(|| ()))
}

impl World {
    fn bytes(&self, address: u64, len: u32) -> Vec<u8> {
        let start = self.region.pointer(address, len.into());
        // SAFETY: `pointer` checked the bounds; the buffer is available to us, so there is no other
        // writer.
        unsafe { std::slice::from_raw_parts(start, len as usize) }.to_vec()
    }

    fn write(&self, address: u64, room: u32, bytes: &[u8]) {
        assert!(bytes.len() <= room as usize);
        let start = self.region.pointer(address, room.into());
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) }.copy_from_slice(bytes);
    }

    fn switch_gives(&mut self, frame: &[u8]) -> bool {
        let Some((id, address, len, _)) = self.from_switch.take() else {
            return false;
        };
        self.write(address, len, frame);
        self.from_switch.give(id.into(), frame.len() as u32);
        event::ring(&self.calls[0]).unwrap();
        true
    }

    fn switch_takes(&mut self) -> Option<Vec<u8>> {
        let (id, address, len, _) = self.to_switch.take()?;
        let bytes = self.bytes(address, len);
        self.to_switch.give(id.into(), 0);
        event::ring(&self.calls[1]).unwrap();
        Some(bytes)
    }

    /// The kernel has a frame of the interface; `false` when there is no buffer for it.
    fn kernel_gives(&mut self, frame: &[u8]) -> bool {
        let Some((id, address, len, flags)) = self.kernel.receive.take() else {
            return false;
        };
        assert_eq!(flags, 2, "for writing");
        assert_eq!(address % 64, 0, "the header is at the start of a line");
        self.write(address, len, frame);
        self.kernel.receive.give(id.into(), frame.len() as u32);
        event::ring(&self.kernel.call).unwrap();
        true
    }

    /// The kernel takes a frame for the interface: the number of its chain, and its bytes.
    fn kernel_takes(&mut self) -> Option<(u16, Vec<u8>)> {
        let (first, mut address, mut len, mut flags) = self.kernel.send.take()?;
        let (mut bytes, mut id) = (Vec::new(), first);
        loop {
            bytes.extend(self.bytes(address, len));
            assert_eq!(flags & !NEXT, 0, "for reading");
            if flags & NEXT == 0 {
                return Some((first, bytes));
            }
            let rings = &self.kernel.rings;
            let table = rings.place(vhost::SEND as u16).descriptors;
            let load = |at: u64| rings.u16(at).load(std::sync::atomic::Ordering::Relaxed);
            id = load(table + 16 * u64::from(id) + 14);
            let at = table + 16 * u64::from(id);
            address = rings.u64(at).load(std::sync::atomic::Ordering::Relaxed);
            len = rings.u32(at + 8).load(std::sync::atomic::Ordering::Relaxed);
            flags = load(at + 12);
        }
    }

    fn kernel_has_sent(&mut self, id: u16) {
        self.kernel.send.give(id.into(), 0);
        event::ring(&self.kernel.call).unwrap();
    }
}

/// Frame number `n`, with its header.
fn frame(n: u32) -> Vec<u8> {
    let len = HEADER as usize + 14 + (n as usize).wrapping_mul(7919) % 3000;
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ n ^ n >> 8) as u8).collect();
    bytes[..HEADER as usize].fill(0);
    bytes
}

/// Datagram number `n` of a flow, with its header.
fn datagram(n: u16) -> Vec<u8> {
    let packet = PacketBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let packet = packet.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
    let frame = packet.ip_id(n).payload(&n.to_be_bytes()).build();
    [&[0; HEADER as usize][..], &frame].concat()
}

fn until(mut turn: impl FnMut() -> bool) {
    let start = Instant::now();
    while !turn() {
        assert!(start.elapsed() < LIMIT, "no progress");
        std::thread::yield_now();
    }
}

#[test]
fn every_frame_crosses_once_and_in_order_both_ways() {
    const FRAMES: u32 = 5000;
    let (mut world, worker) = at_rest();
    let thread = run(worker);
    // In, out: frames given and frames taken. Each end is now ahead, now behind.
    let (mut given, mut taken) = ([0; 2], [0; 2]);
    let mut turn = 0u32;
    until(|| {
        turn = turn.wrapping_add(1);
        let slow = turn / 512 % 5;
        if slow != 0 && given[0] < FRAMES && world.kernel_gives(&frame(given[0])) {
            given[0] += 1;
        }
        if slow != 1 && given[1] < FRAMES && world.switch_gives(&frame(given[1])) {
            given[1] += 1;
        }
        if slow != 2
            && let Some(got) = world.switch_takes()
        {
            assert!(got == frame(taken[0]), "to the switch: frame {}", taken[0]);
            taken[0] += 1;
        }
        if slow != 3
            && let Some((id, got)) = world.kernel_takes()
        {
            assert!(
                got == frame(taken[1]),
                "to the interface: frame {}",
                taken[1]
            );
            taken[1] += 1;
            world.kernel_has_sent(id);
        }
        taken == [FRAMES; 2]
    });
    until(|| {
        world.status.ping();
        let counters = world.status.counters();
        // One kick, as none was requested later, and batches of the other ring.
        let all = u64::from(FRAMES);
        assert!(counters.sent.calls <= 1 && counters.received.calls <= all);
        counters.received.frames == all && counters.sent.frames == all
    });
    drop(world.kernel.tap);
    world.status.ping();
    let error = thread.join().unwrap().unwrap_err();
    assert!(error.device_lost(), "{error}");
}

#[test]
fn datagrams_of_a_batch_leave_as_one_chain_and_their_buffers_come_back() {
    const FRAMES: u16 = 64;
    let (mut world, worker) = at_rest();
    let all = world.from_switch.waiting();
    for n in 0..FRAMES {
        assert!(world.switch_gives(&datagram(n)));
    }
    let thread = run(worker);
    let mut chain = None;
    until(|| {
        chain = world.kernel_takes();
        chain.is_some()
    });
    let (id, bytes) = chain.unwrap();
    let (head, payloads) = bytes.split_at(HEADER as usize + 42);
    assert_eq!(head[1], net::GSO_UDP_L4);
    let expected: Vec<u8> = (0..FRAMES).flat_map(u16::to_be_bytes).collect();
    assert!(payloads == expected, "the payloads of all, in order");
    assert_eq!(world.kernel_takes().map(|taken| taken.0), None);
    assert_eq!(world.from_switch.waiting(), all - FRAMES);
    world.kernel_has_sent(id);
    until(|| world.from_switch.waiting() == all);
    world.status.ping();
    until(|| world.status.is_alive());
    let sent = world.status.counters().sent;
    assert_eq!((sent.frames, sent.calls), (u64::from(FRAMES), 1));
    // The buffers are used again.
    for n in 0..FRAMES {
        assert!(world.switch_gives(&frame(n.into())));
    }
    for n in 0..FRAMES {
        let mut taken = None;
        until(|| {
            taken = world.kernel_takes();
            taken.is_some()
        });
        assert!(taken.unwrap().1 == frame(n.into()));
    }
    drop(world);
    drop(thread);
}

#[test]
fn an_end_completes_what_has_come_and_what_is_on_its_way() {
    let (mut world, worker) = at_rest();
    let thread = run(worker);
    until(|| world.kernel_gives(&frame(1)));
    assert!(world.switch_gives(&frame(2)));
    let mut taken = None;
    until(|| {
        taken = world.kernel_takes();
        taken.is_some()
    });
    world.status.request(Phase::Drained);
    assert!(
        !world.status.has_reached(Phase::Drained),
        "a frame is at the switch"
    );
    until(|| world.switch_takes().is_some_and(|got| got == frame(1)));
    until(|| world.status.has_reached(Phase::Drained));
    assert!(world.switch_takes().is_none(), "nothing follows");
    world.status.request(Phase::Stopped);
    world.status.ping();
    until(|| world.status.is_alive());
    assert!(
        !world.status.has_reached(Phase::Stopped),
        "a frame is at the device"
    );
    let (id, bytes) = taken.unwrap();
    assert!(bytes == frame(2));
    world.kernel_has_sent(id);
    thread.join().unwrap().expect("a good end");
}

#[test]
fn a_device_that_breaks_a_rule_ends_the_worker() {
    for (ring, id, expected) in [
        (
            vhost::RECEIVE,
            300,
            "vhost-net returned buffer 300, which it did not have",
        ),
        (
            vhost::SEND,
            0,
            "vhost-net returned 1 buffers, 0 were submitted",
        ),
    ] {
        let (mut world, worker) = at_rest();
        let thread = run(worker);
        until(|| world.kernel.receive.waiting() > 0);
        match ring {
            vhost::RECEIVE => world.kernel.receive.give(id, 100),
            _ => world.kernel.send.give(id, 0),
        }
        event::ring(&world.kernel.call).unwrap();
        let error = thread.join().unwrap().unwrap_err();
        assert!(error.to_string().ends_with(expected), "{error}");
        assert!(!error.device_lost());
    }
}

#[test]
fn an_error_of_the_device_is_seen_with_the_heartbeat() {
    let (world, worker) = at_rest();
    let thread = run(worker);
    event::ring(&world.kernel.error).unwrap();
    world.status.ping();
    let error = thread.join().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("vhost-net finds a ring malformed"),
        "{error}"
    );
}

#[test]
fn a_refill_is_one_kick() {
    let (world, worker) = at_rest();
    let thread = run(worker);
    until(|| world.kernel.receive.waiting() == QUEUE_SIZE);
    let mut count = [0; 8];
    until(|| rustix::io::read(&world.kernel.kicks[0], &mut count).is_ok());
    assert_eq!(u64::from_ne_bytes(count), 1);
    drop(world.kernel);
    world.status.ping();
    assert!(thread.join().unwrap().unwrap_err().device_lost());
}
