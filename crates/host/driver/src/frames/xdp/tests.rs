//! A socket whose rings are on the heap, with the system played here. Its calls go to a socket of
//! another kind, which takes them and does nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use interfaces::umem::{COPY_HEADROOM, SYSTEM_HEADROOM};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vhost_frontend::queue::Direction;

use super::ring::tests::Shared;
use super::*;

const ENTRIES: u16 = SHAPE.entries;
const START: XdpStart = XdpStart {
    longest: 1518,
    unfinished: false,
};

/// The system's ends of the rings, and what it has in its hands.
struct System {
    fill: Consumer<u64>,
    received: Producer<Frame>,
    transmit: Consumer<Frame>,
    completed: Producer<u64>,
    free: VecDeque<u64>,
    _memory: [Shared; 4],
}

struct World {
    region: Arc<Region>,
    xdp: Xdp,
    system: System,
    queue: Queue,
    counters: DriverCounters,
}

fn world(start: XdpStart) -> World {
    let region = Arc::new(
        Region::over(
            vhost_frontend::region::file("test", SHAPE, 1).expect("memory"),
            SHAPE,
            1,
        )
        .expect("memory"),
    );
    let mut memory = [
        Shared::new::<u64>(ENTRIES),
        Shared::new::<Frame>(ENTRIES),
        Shared::new::<Frame>(ENTRIES),
        Shared::new::<u64>(ENTRIES),
    ];
    let [fill, received, transmit, completed] = &mut memory;
    let rings = Rings {
        fill: fill.producer(ENTRIES),
        received: received.consumer(ENTRIES),
        transmit: transmit.producer(ENTRIES),
        completed: completed.consumer(ENTRIES),
    };
    let system = System {
        fill: fill.consumer(ENTRIES),
        received: received.producer(ENTRIES),
        transmit: transmit.consumer(ENTRIES),
        completed: completed.producer(ENTRIES),
        free: VecDeque::new(),
        _memory: memory,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
    let xdp = Xdp::with(socket, rings, &region, 0, start);
    World {
        queue: Queue::new(region.clone(), 1, Direction::Outbound),
        region,
        xdp,
        system,
        counters: DriverCounters::default(),
    }
}

impl World {
    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let place = self.region.pointer(at, len as u64);
        // SAFETY: `pointer` checked the bounds, and there is no writer meanwhile.
        unsafe { std::slice::from_raw_parts(place, len) }.to_vec()
    }

    /// The system receives a frame; `false` when it has no buffer.
    fn arrives(&mut self, frame: &[u8]) -> bool {
        while let Some(address) = self.system.fill.pop() {
            self.system.free.push_back(address);
        }
        self.system.fill.release();
        let Some(chunk) = self.system.free.pop_front() else {
            return false;
        };
        let address = chunk + u64::from(SYSTEM_HEADROOM + COPY_HEADROOM);
        let place = self.region.pointer(address, frame.len() as u64);
        // SAFETY: `pointer` checked the bounds, and the buffer is the system's.
        unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), place, frame.len()) };
        self.gives(address, frame.len() as u32);
        true
    }

    fn gives(&mut self, address: u64, len: u32) {
        self.system.received.push(Frame {
            addr: address,
            len,
            options: XdpDescOptions::empty(),
        });
        self.system.received.publish();
    }

    fn receive(&mut self, free: &mut FreeBuffers) -> io::Result<Vec<IncomingFrame>> {
        let mut arrived = Vec::new();
        let (xdp, counters) = (&mut self.xdp, &mut self.counters);
        xdp.receive(&self.queue, free, &mut arrived, counters)?;
        Ok(arrived)
    }

    fn send(&mut self, frames: &[(u16, u32)]) -> Vec<u16> {
        let frames: Vec<OutgoingFrame> = frames
            .iter()
            .map(|(id, len)| OutgoingFrame {
                id: *id,
                buffer: ptr::null_mut(),
                len: *len,
            })
            .collect();
        let mut back = Vec::new();
        self.xdp
            .send(&frames, &mut back, &mut self.counters)
            .unwrap();
        back
    }
}

#[test]
fn frames_arrive_where_they_are_with_a_header_in_front() {
    let mut world = world(START);
    let mut free = FreeBuffers::all_of(ENTRIES);
    // Twice through all buffers, with up to 100 in the hands of the switch.
    let mut submitted = VecDeque::new();
    for n in 0..2 * u32::from(ENTRIES) {
        let frame: Vec<u8> = (0..60 + n % 1400).map(|at| (at ^ n) as u8).collect();
        if n == 0 {
            assert!(world.receive(&mut free).unwrap().is_empty());
            assert_eq!(free.len(), 0, "the system has them all");
            assert!(
                world.system.free.iter().is_sorted(),
                "in the order of addresses"
            );
        }
        assert!(world.arrives(&frame));
        let arrived = world.receive(&mut free).unwrap();
        assert_eq!(arrived.len(), 1);
        let IncomingFrame { id, start, len } = arrived[0];
        let at = world.region.place(1).buffer(id) + u64::from(start);
        assert_eq!(world.bytes(at, 12), [0; 12]);
        assert_eq!(world.bytes(at + 12, frame.len()), frame);
        assert_eq!(len as usize, frame.len() + 12);
        assert!(!submitted.contains(&id), "buffer {id} is the switch's");
        submitted.push_back(id);
        if submitted.len() == 100 {
            submitted.drain(..50).for_each(|id| free.put(id));
        }
    }
}

#[test]
fn without_free_buffers_it_requests_notification() {
    let mut world = world(START);
    let mut free = FreeBuffers::all_of(LOW);
    assert!(world.xdp.is_short());
    world.receive(&mut free).unwrap();
    assert!(!world.xdp.is_short());
    assert!(world.arrives(&[1; 60]));
    assert_eq!(world.receive(&mut free).unwrap().len(), 1);
    assert!(world.xdp.is_short());
}

#[test]
fn a_frame_that_is_none_goes_back_and_one_from_elsewhere_is_the_end() {
    let mut world = world(START);
    let mut free = FreeBuffers::none_of(ENTRIES);
    free.put(8);
    free.put(7);
    world.receive(&mut free).unwrap();
    let chunk = world.region.place(1).buffer(7);
    // Too short, too long for its buffer, without room for the header.
    for (start, len) in [(256, 13), (256, 3841), (11, 60), (256, u32::MAX)] {
        world.gives(chunk + start, len);
        assert_eq!(world.receive(&mut free).unwrap(), []);
        assert!(free.iter().eq([7]));
        world.receive(&mut free).unwrap();
    }
    for address in [
        0,
        chunk - 4096 * 9,
        u64::MAX,
        world.region.place(0).buffer(0),
    ] {
        world.gives(address, 60);
        assert!(world.receive(&mut free).is_err(), "{address}");
    }
}

#[test]
fn a_buffer_is_free_again_when_its_frame_has_left() {
    let mut world = world(START);
    let all: Vec<u16> = (0..ENTRIES).collect();
    for round in 0..3 {
        for ids in all.chunks(64) {
            let frames: Vec<(u16, u32)> = ids.iter().map(|id| (*id, 12 + 60)).collect();
            assert_eq!(world.send(&frames), [0_u16; 0], "round {round}");
        }
        assert_eq!(
            world.xdp.sleep_limit(),
            Some(POLL_INTERVAL),
            "no other wake-up"
        );
        for id in &all {
            let frame = world.system.transmit.pop().expect("it was sent");
            let buffer = world.region.place(0).buffer(*id);
            assert_eq!((frame.addr, frame.len), (buffer + 12, 60));
            // As the system does, which gives back the start of the buffer or of the frame.
            let address = if id % 2 == 0 { buffer } else { frame.addr };
            world.system.completed.push(address);
        }
        world.system.transmit.release();
        world.system.completed.publish();
        assert_eq!(world.send(&[]), all, "round {round}");
        assert_eq!(world.xdp.sleep_limit(), None);
    }
}

#[test]
fn what_the_interface_cannot_send_is_counted() {
    let mut world = world(START);
    let back = world.send(&[
        (1, 12 + 13),
        (2, 12 + 14),
        (3, 12 + 1518),
        (4, 12 + 1519),
        (5, 4),
    ]);
    assert_eq!(back, [1, 4, 5]);
    assert_eq!(world.counters.rejected_by_interface, 3);
    let sent: Vec<u32> = std::iter::from_fn(|| world.system.transmit.pop())
        .map(|frame| frame.len)
        .collect();
    assert_eq!(sent, [14, 1518]);
}

#[test]
fn unfinished_checksums_are_reported_to_the_switch() {
    // Ethernet, IPv4, UDP with 4 bytes, its checksum that of the pseudo-header.
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 1, 0, 2, 0, 12, 0x14, 0x20, 1, 2, 3, 4]);
    for (unfinished, flags) in [(true, net::FLAG_NEEDS_CSUM), (false, 0)] {
        let mut world = world(XdpStart {
            unfinished,
            ..START
        });
        world.receive(&mut FreeBuffers::all_of(1)).unwrap();
        world.arrives(&frame);
        let arrived = world.receive(&mut FreeBuffers::none_of(1)).unwrap()[0];
        let at = world.region.place(1).buffer(arrived.id) + u64::from(arrived.start);
        let header = NetHeader::decode(&world.bytes(at, 12).try_into().unwrap());
        assert_eq!(header.flags, flags);
        if unfinished {
            assert_eq!((header.csum_start, header.csum_offset), (34, 6));
        }
    }
}
