//! Ports at a switch that is played here.

use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use super::*;
use crate::region::OWN_MEMORY;
use crate::ring::SyncResult;

#[path = "../../tests/support/switch.rs"]
mod switch;
use switch::{Heard, session};

struct Rig {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    region: Arc<Region>,
    listener: UnixListener,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netmap");
        Self {
            listener: UnixListener::bind(&path).unwrap(),
            region: Arc::new(Region::with_buffers(8192, OWN_MEMORY).unwrap()),
            _folder: folder,
            path,
        }
    }

    /// Accepts sessions, each until so many queues are on.
    fn accept(&self, queues: usize) -> JoinHandle<(Heard, UnixStream)> {
        let listener = self.listener.try_clone().unwrap();
        std::thread::spawn(move || session(listener.accept().unwrap().0, queues))
    }

    fn open(&self, shape: Shape, header: u16) -> (Arc<Port>, Heard, UnixStream) {
        let queues = if shape.pairs == 1 { 2 } else { 4 };
        let switch = self.accept(queues);
        let name = Name::read(b"a").unwrap();
        let port = Port::open_at(&name, &self.path, &self.region, shape, header).unwrap();
        let (heard, socket) = switch.join().unwrap();
        (port, heard, socket)
    }
}

const ONE: Shape = Shape {
    pairs: 1,
    send_slots: 64,
    receive_slots: 128,
};

#[test]
fn a_port_sets_up_slot_queues() {
    let rig = Rig::new();
    let (port, heard, _socket) = rig.open(Shape::default(), 12);
    assert_eq!((port.pairs(), port.slots()), (2, (512, 512)));
    let features = Features::from_bits_retain(heard.features);
    assert!(features.contains(Features::NET_MQ | Features::NET_MRG_RXBUF | Features::NET_CSUM));
    for (queue, place) in &heard.queues {
        let areas = [place.slots, place.client, place.switch];
        assert!(areas.iter().all(|area| area % 64 == 0), "{place:?}");
        let line = heard.read::<24>(place.client + 64);
        assert_eq!(&line[..8], b"LHSQ\x01\0\x0c\0", "queue {queue}");
        let pool = u64::from_le_bytes(line[8..16].try_into().unwrap());
        assert_eq!(pool, rig.region.geometry.pool);
        // Buffers wait in queues to the client.
        assert_eq!(heard.head(*queue), if queue % 2 == 0 { 511 } else { 0 });
    }
}

#[test]
fn frames_go_and_come() {
    let rig = Rig::new();
    let (port, heard, _socket) = rig.open(ONE, 0);
    let (send, receive) = (
        port.rings(true).next().unwrap(),
        port.rings(false).next().unwrap(),
    );
    assert_eq!((send.slots(), receive.slots()), (64, 128));
    send.program_slot(0).len = 60;
    send.program_moves(1);
    send.sync().unwrap();
    assert_eq!(heard.head(1), 1);
    let slot = heard.read::<16>(heard.queues[&1].slots);
    assert_eq!(slot[4..6], 60u16.to_le_bytes());
    heard.set_tail(0, 3);
    assert_eq!(receive.sync(), Ok(SyncResult::Ready));
    assert_eq!(receive.program().2, 3);
    // All buffers are different.
    let mut buffers: Vec<u32> = (0..64)
        .map(|slot| send.program_slot(slot).buf_idx)
        .collect();
    buffers.extend((0..128).map(|slot| receive.program_slot(slot).buf_idx));
    buffers.sort_unstable();
    buffers.dedup();
    assert_eq!(buffers.len(), 192);
}

#[test]
fn a_port_continues_at_its_slots_with_another_switch() {
    let rig = Rig::new();
    // The name leads elsewhere: the port dials the path that it was opened with.
    let (port, heard, socket) = rig.open(ONE, 0);
    let send = port.rings(true).next().unwrap();
    send.program_moves(7);
    send.sync().unwrap();
    heard.set_tail(1, 5);
    assert!(port.tend(), "it is connected");
    drop(socket);
    let switch = rig.accept(2);
    while !port.tend() {}
    let (again, _socket) = switch.join().unwrap();
    assert_eq!(again.head(1), 7, "two frames wait");
    assert_eq!(u16::from_le_bytes(again.read(again.queues[&1].switch)), 5);
    send.sync().unwrap();
    assert_eq!(send.program().2, (5 + 63) % 64);
}

#[test]
fn a_changed_header_stops_and_starts_the_queues() {
    let rig = Rig::new();
    let (port, _, socket) = rig.open(ONE, 0);
    let switch = std::thread::spawn(move || session(socket, 2));
    port.set_header(10).unwrap();
    let (heard, _socket) = switch.join().unwrap();
    assert_eq!((heard.stops, port.header()), (2, 10));
    assert_ne!(heard.features & Features::NET_GUEST_CSUM.bits(), 0);
}

#[test]
fn a_queue_that_the_switch_stops_is_an_error_for_the_program() {
    let rig = Rig::new();
    let (port, heard, _socket) = rig.open(ONE, 0);
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    port.watch(&epoll, port.rings(true)).unwrap();
    sys::event::ring(&heard.errors[&1]).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4];
    let events = sys::wait::events(&*epoll, &mut buffer, Some(Duration::ZERO)).unwrap();
    assert_eq!(events[0].data.u64(), MARK_ERROR);
    port.failed();
    assert_eq!(port.rings(true).next().unwrap().sync(), Err(Errno::INVAL));
}

#[test]
fn what_a_port_took_comes_back() {
    let rig = Rig::new();
    let all = rig.region.take_buffers(8190).unwrap();
    for buffer in all {
        rig.region.give_buffer(buffer);
    }
    let (port, _, _socket) = rig.open(ONE, 0);
    port.host_rings([2, 1]).unwrap();
    // The program has swapped a buffer for one that does not exist.
    port.rings(true).next().unwrap().program_slot(3).buf_idx = u32::MAX;
    drop(port);
    assert!(rig.region.take_buffers(8189).is_ok(), "all but one");
}

#[test]
fn no_port_is_enxio_and_no_answer_is_ebusy() {
    let rig = Rig::new();
    let name = Name::read(b"a").unwrap();
    let open = |path: &Path| Port::open_at(&name, path, &rig.region, ONE, 0).unwrap_err();
    assert_eq!(open(Path::new("/nowhere/a.netmap")), Errno::NXIO);
    for (kind, errno) in [
        (io::ErrorKind::ConnectionRefused, Errno::NXIO),
        (io::ErrorKind::PermissionDenied, Errno::ACCESS),
        (io::ErrorKind::TimedOut, Errno::BUSY),
        (io::ErrorKind::ConnectionReset, Errno::BUSY),
        (io::ErrorKind::InvalidData, Errno::IO),
    ] {
        assert_eq!(refusal(&name, &rig.path, &kind.into()), errno);
    }
}

#[test]
fn slots_are_powers_of_two_within_bounds() {
    for (requested, got) in [
        (0, 1024),
        (1, 64),
        (64, 64),
        (65, 128),
        (1000, 1024),
        (4095, 4096),
        (1 << 20, 4096),
    ] {
        assert_eq!(slots(requested, 1024), got, "{requested}");
    }
}
