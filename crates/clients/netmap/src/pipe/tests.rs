//! Both ends of a pipe in one process, at a server of crate `pipes`.

use std::thread::JoinHandle;

use rustix::event::epoll::CreateFlags;

use super::*;
use crate::ring::SyncResult;

#[path = "../../tests/support/meeting.rs"]
mod meeting;
use meeting::serve;

struct Rig {
    folder: tempfile::TempDir,
    /// Memories of two processes.
    memories: [Memories; 2],
    /// That of the ports of the first, if it has the port of the pipe open.
    port: Option<Arc<Region>>,
}

impl Rig {
    fn new() -> (Self, JoinHandle<()>) {
        let rig = Self {
            folder: tempfile::tempdir().unwrap(),
            memories: Default::default(),
            port: None,
        };
        let server = serve(&rig.path());
        (rig, server)
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("p.pipes")
    }

    /// Opens an end as one of the processes.
    fn open(&self, text: &str, process: usize) -> Result<Arc<PipeEnd>, Errno> {
        self.open_in(text, process, 0)
    }

    /// Opens an end whose rings are in the memory with this number.
    fn open_in(&self, text: &str, process: usize, mem_id: u16) -> Result<Arc<PipeEnd>, Errno> {
        let name = Name::read(text.as_bytes()).unwrap();
        let shape = Shape {
            send_slots: 64,
            ..Shape::default()
        };
        let port = self.port.as_ref().filter(|_| process == 0);
        let memories = (port, &self.memories[process]);
        PipeEnd::open_at(&name, &self.path(), memories, mem_id, shape)
    }
}

/// A program's work: it puts the number of a frame into its length.
fn send(ring: &Ring, lens: &[u16]) {
    for len in lens {
        let (head, _, tail) = ring.program();
        assert_ne!(head, tail, "there is room");
        ring.program_slot(head).len = *len;
        ring.program_moves((head + 1) % u32::from(ring.slots()));
    }
    ring.sync().unwrap();
}

fn receive(ring: &Ring) -> Vec<u16> {
    ring.sync().unwrap();
    let (mut head, _, tail) = ring.program();
    let mut found = Vec::new();
    while head != tail {
        found.push(ring.program_slot(head).len);
        head = (head + 1) % u32::from(ring.slots());
    }
    ring.program_moves(head);
    ring.sync().unwrap();
    found
}

#[test]
fn frames_go_both_ways_and_nothing_is_copied() {
    let (rig, server) = Rig::new();
    let master = rig.open("p{1", 0).unwrap();
    // Before the other end is there, frames wait.
    send(master.ring(true), &[1, 2, 3]);
    let slave = rig.open("p}1", 1).unwrap();
    assert!(!Arc::ptr_eq(slave.region(), master.region()));
    assert_eq!(receive(slave.ring(false)), [1, 2, 3]);
    send(slave.ring(true), &[4]);
    assert_eq!(receive(master.ring(false)), [4]);
    let address = |ring: &Ring| ring.program_slot(0) as *const _ as usize;
    assert_ne!(address(master.ring(true)), address(slave.ring(false)));
    master.ring(true).program_slot(7).ptr = 0x1234;
    assert_eq!(slave.ring(false).program_slot(7).ptr, 0x1234, "one memory");
    drop((master, slave));
    server.join().unwrap();
}

#[test]
fn a_process_may_have_both_ends() {
    let (rig, server) = Rig::new();
    let slave = rig.open("p}0", 0).unwrap();
    let master = rig.open("p{0", 0).unwrap();
    assert!(
        Arc::ptr_eq(slave.region(), master.region()),
        "it is mapped once"
    );
    assert_ne!(slave.region().mem_id, OWN_MEMORY, "and no memory of ports");
    send(master.ring(true), &[9]);
    assert_eq!(receive(slave.ring(false)), [9]);
    drop((master, slave));
    server.join().unwrap();
}

#[test]
fn an_end_that_was_killed_is_replaced_and_the_rings_go_on() {
    let (rig, server) = Rig::new();
    let master = rig.open("p{5", 0).unwrap();
    let slave = rig.open("p}5", 1).unwrap();
    send(master.ring(true), &[1, 2]);
    assert_eq!(receive(slave.ring(false)), [1, 2]);
    send(master.ring(true), &[3]);
    assert_eq!(
        rig.open("p}5", 1).unwrap_err(),
        Errno::BUSY,
        "one at a time"
    );
    drop(slave);
    let slave = loop {
        // The server may not have seen the end yet.
        if let Ok(slave) = rig.open("p}5", 1) {
            break slave;
        }
    };
    assert_eq!(receive(slave.ring(false)), [3]);
    // And the one that made the memory.
    drop(master);
    let master = loop {
        if let Ok(master) = rig.open("p{5", 1) {
            break master;
        }
    };
    send(master.ring(true), &[4]);
    assert_eq!(receive(slave.ring(false)), [4]);
    drop((master, slave));
    server.join().unwrap();
}

#[test]
fn a_sleeper_is_woken_by_the_other_end() {
    let (rig, server) = Rig::new();
    let master = rig.open("p{2", 0).unwrap();
    let slave = rig.open("p}2", 1).unwrap();
    let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    slave
        .watch(&epoll, [slave.ring(false)].into_iter())
        .unwrap();
    let marks = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4];
        let limit = Some(Duration::ZERO);
        sys::wait::events(&*epoll, &mut buffer, limit)
            .unwrap()
            .len()
    };
    send(master.ring(true), &[1]);
    assert_eq!(marks(), 0, "nobody sleeps");
    assert_eq!(receive(slave.ring(false)), [1]);
    assert_eq!(slave.ring(false).request(false), Some(1));
    send(master.ring(true), &[2, 3]);
    assert_eq!(marks(), 1);
    assert_eq!(slave.ring(false).sync(), Ok(SyncResult::Ready));
    send(master.ring(true), &[4]);
    assert_eq!(marks(), 0, "it is awake");
    drop((master, slave));
    server.join().unwrap();
}

#[test]
fn a_pipe_that_is_not_there_is_enxio() {
    let folder = tempfile::tempdir().unwrap();
    let name = Name::read(b"none{1").unwrap();
    let path = folder.path().join("none.pipes");
    let memories = Memories::default();
    let refused = PipeEnd::open_at(&name, &path, (None, &memories), 0, Shape::default());
    assert_eq!(refused.unwrap_err(), Errno::NXIO);
}

#[test]
fn memory_that_is_not_as_it_says_is_refused() {
    let memories = Memories::default();
    let rings = Rings {
        slots: 64,
        file_size: 1 << 20,
        pool: 1 << 16,
        buffer_size: 2048,
        buffers: 16,
        blocks: [0, 8192].map(|slots| Block {
            slots,
            lines: slots + 4096,
        }),
    };
    let offer = |rings| Offer { instance: 1, rings };
    let event = || sys::event::create().unwrap();
    let file = |size| sys::file::fixed("test", size).unwrap();
    let join = |rings, size| {
        join(
            (None, &memories),
            offer(rings),
            [file(size), event(), event()],
        )
    };
    assert!(join(rings, 1 << 20).is_ok());
    assert!(join(rings, 1 << 19).is_err(), "the file is shorter");
    let mut odd = rings;
    odd.blocks[1].slots = 64;
    assert!(join(odd, 1 << 20).is_err(), "slots within a page");
}

/// The other end of a pipe has a copy of its file: what a program has in the rings of its ports,
/// and in its other pipes, is not in it.
#[test]
fn the_other_end_of_a_pipe_maps_nothing_else() {
    let secret = [0x5a; 64];
    let (rig, server) = Rig::new();
    let master = rig.open("p{1", 0).unwrap();
    let beside = rig.open("p{2", 0).unwrap();
    let slave = rig.open("p}1", 1).unwrap();
    let ports = Region::own().unwrap();
    let fill = |region: &Region| {
        let index = region.take_buffer().unwrap();
        let buffer = region.buffer(index).unwrap();
        // SAFETY: a buffer is longer, and it was taken for this alone.
        unsafe { buffer.cast::<[u8; 64]>().write(secret) };
    };
    let sees = |region: &Region| {
        let len = region.geometry.file_size;
        let all = region.view.shared(0, len);
        // SAFETY: the whole file is mapped, and nothing writes to it meanwhile.
        let all = unsafe { std::slice::from_raw_parts(all.as_ptr(), len as usize) };
        all.chunks_exact(64).any(|bytes| *bytes == secret)
    };
    fill(ports);
    fill(beside.region());
    assert!(sees(ports) && sees(beside.region()));
    assert!(!sees(slave.region()), "rings of a port, or of another pipe");
    fill(master.region());
    assert!(sees(slave.region()), "what is in the pipe");
    for other in [ports, beside.region()] {
        assert!(!other.is_file(slave.region().file()));
    }
    drop((master, beside, slave));
    server.join().unwrap();
}

#[test]
fn a_pipe_of_a_port_is_in_the_memory_of_its_client() {
    let (mut rig, server) = Rig::new();
    let own = Region::own().unwrap();
    rig.port = Some(Arc::clone(own));
    let master = rig.open("p{3", 0).unwrap();
    assert!(Arc::ptr_eq(master.region(), own), "buffers can be swapped");
    let slave = rig.open("p}3", 1).unwrap();
    send(master.ring(true), &[7]);
    assert_eq!(receive(slave.ring(false)), [7]);
    drop((master, slave));
    server.join().unwrap();
}

/// The work of `lb` with a frame of a port: its buffer goes into a slot of the pipe.
fn swap_in(ring: &Ring, region: &Region, text: &[u8]) {
    let fresh = region.take_buffer().unwrap();
    let buffer = region.buffer(fresh).unwrap();
    // SAFETY: a buffer is longer than the text, and it was taken for this alone.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.as_ptr(), text.len()) };
    let (head, _, tail) = ring.program();
    assert_ne!(head, tail, "there is room");
    let slot = ring.program_slot(head);
    region.give_buffer(std::mem::replace(&mut slot.buf_idx, fresh));
    slot.len = text.len() as u16;
    ring.program_moves((head + 1) % u32::from(ring.slots()));
    ring.sync().unwrap();
}

/// The bytes of the frames that have arrived.
fn texts(ring: &Ring, region: &Region) -> Vec<Vec<u8>> {
    ring.sync().unwrap();
    let (mut head, _, tail) = ring.program();
    let mut found = Vec::new();
    while head != tail {
        let slot = ring.program_slot(head);
        let buffer = region.buffer(slot.buf_idx).unwrap();
        // SAFETY: the buffer is mapped, and nothing writes to it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), usize::from(slot.len)) };
        found.push(bytes.to_vec());
        head = (head + 1) % u32::from(ring.slots());
    }
    ring.program_moves(head);
    ring.sync().unwrap();
    found
}

/// Opens an end whose last program has just been killed.
fn reopened(rig: &Rig, text: &str, process: usize, mem_id: u16) -> Arc<PipeEnd> {
    loop {
        // The server may not have seen the end yet.
        match rig.open_in(text, process, mem_id) {
            Err(Errno::BUSY) => {}
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_balancer_whose_reader_came_first_has_its_slots_in_its_own_memory() {
    let (mut rig, server) = Rig::new();
    let own = Arc::clone(Region::own().unwrap());
    rig.port = Some(Arc::clone(&own));
    let reader = rig.open("p}3", 1).unwrap();
    let balancer = rig.open_in("p{3", 0, OWN_MEMORY).unwrap();
    assert!(
        Arc::ptr_eq(balancer.region(), &own),
        "buffers can be swapped"
    );
    assert!(!Arc::ptr_eq(reader.region(), &own));
    swap_in(balancer.ring(true), &own, b"one");
    swap_in(balancer.ring(true), &own, b"two");
    assert_eq!(texts(reader.ring(false), reader.region()), [b"one", b"two"]);
    swap_in(reader.ring(true), reader.region(), b"back");
    assert_eq!(texts(balancer.ring(false), &own), [b"back"]);

    // The balancer is killed with frames in the pipe, and started again.
    swap_in(balancer.ring(true), &own, b"three");
    swap_in(reader.ring(true), reader.region(), b"again");
    drop(balancer);
    let balancer = reopened(&rig, "p{3", 0, OWN_MEMORY);
    assert_eq!(texts(balancer.ring(false), &own), [b"again"]);
    swap_in(balancer.ring(true), &own, b"four");
    // And the reader, which had looked at nothing.
    drop(reader);
    let reader = reopened(&rig, "p}3", 1, 0);
    assert_eq!(
        texts(reader.ring(false), reader.region()),
        [b"three".as_slice(), b"four"]
    );
    drop((balancer, reader));
    server.join().unwrap();
}

#[test]
fn a_ring_with_slots_apart_goes_round_and_never_overtakes_its_reader() {
    let (rig, server) = Rig::new();
    let reader = rig.open("p}4", 1).unwrap();
    let sender = rig.open_in("p{4", 0, OWN_MEMORY).unwrap();
    let own = sender.region();
    let mut next = 0u32;
    for round in 0..20 {
        let (_, _, _) = sender.ring(true).program();
        let mut sent = Vec::new();
        sender.ring(true).sync().unwrap();
        while sender.ring(true).program().0 != sender.ring(true).program().2 {
            sent.push(next.to_le_bytes().to_vec());
            swap_in(sender.ring(true), own, &next.to_le_bytes());
            next += 1;
        }
        assert_eq!(
            sent.len(),
            63,
            "round {round}: a slot is never the program's"
        );
        assert_eq!(texts(reader.ring(false), reader.region()), sent);
    }
    drop((sender, reader));
    server.join().unwrap();
}

#[test]
fn frames_of_several_slots_are_copied_whole_and_lies_of_the_other_end_have_no_bytes() {
    let (rig, server) = Rig::new();
    let reader = rig.open("p}5", 1).unwrap();
    let sender = rig.open_in("p{5", 0, OWN_MEMORY).unwrap();
    let ring = sender.ring(true);
    for (at, flags) in [(0, crate::abi::NS_MOREFRAG), (1, 0)] {
        let slot = ring.program_slot(at);
        (slot.len, slot.flags) = (100, flags | crate::abi::NS_BUF_CHANGED);
        ring.program_moves(at + 1);
        ring.sync().unwrap();
        let seen = texts_left(reader.ring(false));
        assert_eq!(seen, if at == 0 { 0 } else { 2 }, "whole frames only");
    }
    assert_eq!(
        reader.ring(false).program_slot(0).flags,
        crate::abi::NS_MOREFRAG
    );
    // The other way: numbers that the reader makes up.
    let ring = reader.ring(true);
    for (at, (buf_idx, len)) in [(u32::MAX, 60), (5, u16::MAX)].into_iter().enumerate() {
        let slot = ring.program_slot(at as u32);
        (slot.buf_idx, slot.len) = (buf_idx, len);
        ring.program_moves(at as u32 + 1);
    }
    ring.sync().unwrap();
    let lens: Vec<usize> = texts(sender.ring(false), sender.region())
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(lens, [0, 2048]);
    drop((sender, reader));
    server.join().unwrap();
}

/// Frames between `head` and `tail` after a sync.
fn texts_left(ring: &Ring) -> u32 {
    ring.sync().unwrap();
    let (head, _, tail) = ring.program();
    (tail + u32::from(ring.slots()) - head) % u32::from(ring.slots())
}

#[test]
fn a_memory_that_is_not_there_is_refused() {
    let (rig, server) = Rig::new();
    let one = rig.open("p{6", 0).unwrap();
    assert_eq!(rig.open_in("p{7", 0, 999).unwrap_err(), Errno::INVAL);
    // That of the other pipe is there, and this pipe has its own.
    let free = one.region().free();
    let two = rig.open_in("p{7", 0, one.region().mem_id).unwrap();
    assert!(Arc::ptr_eq(two.region(), one.region()));
    let reader = rig.open("p}7", 1).unwrap();
    swap_in(two.ring(true), two.region(), b"x");
    assert_eq!(texts(reader.ring(false), reader.region()), [b"x"]);
    // A memory of another process has no room for rings of ours.
    let refused = rig.open_in("p{8", 1, reader.region().mem_id);
    assert_eq!(refused.unwrap_err(), Errno::INVAL);
    drop((two, reader));
    assert_eq!(one.region().free(), free, "what it had is returned");
    drop(one);
    server.join().unwrap();
}
