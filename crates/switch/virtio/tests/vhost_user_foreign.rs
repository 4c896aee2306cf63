//! The `vhost` crate's front end, which others wrote, against our session over a real socket.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use memory::GuestMemory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use virtio::vhost_user::{Backend, Connection, Fault, Offer, QueueSetup, Session};
use wire::virtio::features::Features;

const GPA: u64 = 0x4000_0000;
const UVA: u64 = 0x7f12_3400_0000;
const SIZE: u64 = 1 << 20;
const PROTOCOL: u64 = 1 << 30;
const LOG_ALL: u64 = 1 << 26;

#[derive(Default)]
struct Seen {
    running: BTreeMap<u16, QueueSetup>,
    memory: Option<Arc<GuestMemory>>,
    resets: u32,
}

/// A back end that shows what it got to the test's thread.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Seen>>);

impl Backend for Recorder {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        self.0.lock().unwrap().memory = mem;
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        self.0.lock().unwrap().running.insert(index, setup);
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        let setup = self.0.lock().unwrap().running.remove(&index)?;
        Some(setup.position + 3)
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        let mut seen = self.0.lock().unwrap();
        seen.running.get_mut(&index).unwrap().enabled = on;
    }

    fn set_call(&mut self, index: u16, call: Option<sys::foreign::ForeignFd>) {
        let mut seen = self.0.lock().unwrap();
        seen.running.get_mut(&index).unwrap().call = call;
    }

    fn reset(&mut self) {
        self.0.lock().unwrap().resets += 1;
    }
}

/// The offer of a port before it could offer `ACCESS_PLATFORM`.
const BEFORE: Features = Features::VERSION_1
    .union(Features::RING_PACKED)
    .union(Features::RING_EVENT_IDX);

/// Serves one connection until its end, and says why it ended.
fn serve(socket: UnixStream, features: Features, mut backend: Recorder) -> Fault {
    let mut connection = Connection::new(socket).unwrap();
    let mut session = Session::new(Offer::new(features, 1));
    let fault = loop {
        let step = connection.recv().and_then(|received| match received {
            Some((message, fds)) => {
                if let Some(reply) = session.handle(message, fds, &mut backend)? {
                    connection.send(reply)?;
                }
                Ok(true)
            }
            None => Ok(false),
        });
        match step {
            Ok(true) => {}
            Ok(false) => {
                let mut fds = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
                poll(&mut fds, None).unwrap();
            }
            Err(fault) => break fault,
        }
    };
    session.close(&mut backend);
    fault
}

struct Rig {
    front: Frontend,
    backend: Recorder,
    server: JoinHandle<Fault>,
    memory: OwnedFd,
}

impl Rig {
    /// Connected and negotiated, with every message acknowledged, and with memory.
    fn new(features: u64) -> Self {
        Self::offered(BEFORE | Features::ACCESS_PLATFORM, features)
    }

    /// The same, at a port that offers no more than `offer`.
    fn offered(offer: Features, features: u64) -> Self {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let backend = Recorder::default();
        let server = std::thread::spawn({
            let backend = backend.clone();
            move || serve(ours, offer, backend)
        });
        let mut front = Frontend::from_stream(theirs, 2);
        front.set_owner().unwrap();
        let offered = front.get_features().unwrap();
        assert_eq!(offered, offer.bits() | PROTOCOL | LOG_ALL);
        assert_eq!(features & !offered, 0);
        let protocol = front.get_protocol_features().unwrap();
        assert_eq!(protocol.bits(), 0x1_b23f);
        front.set_protocol_features(protocol).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(front.get_queue_num().unwrap(), 2);
        front.set_features(features).unwrap();
        let memory = memfd(SIZE);
        front.set_mem_table(&[region(&memory, GPA, UVA)]).unwrap();
        Rig {
            front,
            backend,
            server,
            memory,
        }
    }

    fn start(&mut self, index: usize, base: u16) -> (OwnedFd, OwnedFd) {
        let (kick, call) = (event(), event());
        let at = UVA + 0x1_0000 * index as u64;
        let config = VringConfigData {
            queue_max_size: 256,
            queue_size: 256,
            flags: 0,
            desc_table_addr: at,
            used_ring_addr: at + 0x2000,
            avail_ring_addr: at + 0x1000,
            log_addr: None,
        };
        self.front.set_vring_num(index, 256).unwrap();
        self.front.set_vring_base(index, base).unwrap();
        self.front.set_vring_addr(index, &config).unwrap();
        self.front.set_vring_call(index, &foreign(&call)).unwrap();
        self.front.set_vring_kick(index, &foreign(&kick)).unwrap();
        self.front.set_vring_enable(index, true).unwrap();
        (kick, call)
    }

    fn with<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.backend.0.lock().unwrap())
    }

    /// Hangs up; everything has to be let go.
    fn end(self) {
        drop(self.front);
        assert!(self.server.join().unwrap().is_close());
        let seen = self.backend.0.lock().unwrap();
        assert!(seen.running.is_empty() && seen.memory.is_none());
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// A copy in the event type of the foreign crate, whose name is not ours to use.
fn foreign<T: FromRawFd>(fd: &OwnedFd) -> T {
    let copy = fd.try_clone().unwrap().into_raw_fd();
    // SAFETY: the copy is open and has no other owner.
    unsafe { T::from_raw_fd(copy) }
}

fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

fn region(fd: &OwnedFd, gpa: u64, uva: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: gpa,
        memory_size: SIZE,
        userspace_addr: uva,
        mmap_offset: 0,
        mmap_handle: fd.as_raw_fd(),
    }
}

#[test]
fn split_queues_start_notify_and_stop() {
    let mut rig = Rig::new(Features::VERSION_1.bits() | PROTOCOL);
    for index in 0..2 {
        let (kick, call) = rig.start(index, 40);
        rig.with(|seen| {
            let setup = &seen.running[&(index as u16)];
            let base = GPA + 0x1_0000 * index as u64;
            let layout = setup.layout;
            assert_eq!((layout.size, layout.desc), (256, base));
            assert_eq!(
                (layout.driver, layout.device),
                (base + 0x1000, base + 0x2000)
            );
            assert_eq!((setup.position, setup.enabled), (40, true));
            assert!(setup.features == Features::VERSION_1);
            rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
            let mut count = [0; 8];
            assert_eq!(rustix::io::read(&setup.kick, &mut count), Ok(8));
            rustix::io::write(setup.call.as_ref().unwrap(), &1u64.to_ne_bytes()).unwrap();
        });
        let mut count = [0; 8];
        rustix::io::read(&call, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
    assert_eq!(rig.front.get_vring_base(1).unwrap(), 43);
    rig.with(|seen| assert_eq!(seen.running.len(), 1));
    rig.end();
}

/// A front end that does not know `ACCESS_PLATFORM` has the same features and queues as before.
#[test]
fn a_front_end_without_an_iommu_negotiates_as_before() {
    let chosen = BEFORE.bits() | PROTOCOL;
    let started = [BEFORE, BEFORE | Features::ACCESS_PLATFORM].map(|offer| {
        let mut rig = Rig::offered(offer, chosen);
        rig.start(0, 0x8000);
        let started = rig.with(|seen| {
            let setup = &seen.running[&0];
            (setup.features, setup.layout, setup.position)
        });
        rig.end();
        started
    });
    assert_eq!(started[0], started[1]);
    assert_eq!(started[0].0, BEFORE);
}

#[test]
fn packed_queues_with_an_inflight_area() {
    let features = Features::VERSION_1 | Features::RING_PACKED;
    let mut rig = Rig::new(features.bits() | PROTOCOL);
    let desired = VhostUserInflight::new(0, 0, 2, 256);
    let (area, file) = rig.front.get_inflight_fd(&desired).unwrap();
    assert!(area.mmap_size >= 2 * 256 * 32);
    rig.front.set_inflight_fd(&area, file.as_raw_fd()).unwrap();
    rig.start(0, 0x8000);
    rig.with(|seen| {
        let setup = &seen.running[&0];
        assert!(setup.features.contains(Features::RING_PACKED));
        assert!(setup.inflight.is_some());
        assert_eq!(setup.position, 0x8000);
    });
    rig.front.reset_device().unwrap();
    rig.with(|seen| assert_eq!((seen.running.len(), seen.resets), (0, 1)));
    rig.end();
}

#[test]
fn memory_slots_log_and_configuration() {
    let features = Features::VERSION_1.bits() | PROTOCOL;
    let mut rig = Rig::new(features);
    rig.start(0, 0);
    assert_eq!(rig.front.get_max_mem_slots().unwrap(), 509);
    let more = region(&rig.memory, GPA + SIZE, UVA + SIZE);
    rig.front.add_mem_region(&more).unwrap();
    rig.with(|seen| assert_eq!(seen.memory.as_ref().unwrap().regions().len(), 2));
    rig.front.remove_mem_region(&more).unwrap();
    rig.front.remove_mem_region(&more).unwrap();
    rig.with(|seen| assert_eq!(seen.memory.as_ref().unwrap().regions().len(), 1));

    let log = memfd(1 << 17);
    let log_region = VhostUserDirtyLogRegion {
        mmap_size: 1 << 17,
        mmap_offset: 0,
        mmap_handle: log.as_raw_fd(),
    };
    rig.front.set_log_base(0, Some(log_region)).unwrap();
    rig.front.set_features(features | LOG_ALL).unwrap();
    rig.with(|seen| {
        assert!(seen.memory.as_ref().unwrap().log().is_some());
        assert_eq!(seen.running.len(), 1, "the session continues");
    });

    let flags = VhostUserConfigFlags::empty();
    let (_, config) = rig.front.get_config(10, 2, flags, &[0; 2]).unwrap();
    assert_eq!(config, 1500u16.to_le_bytes(), "the MTU");
    assert!(
        rig.front.set_config(0, flags, &[0; 6]).is_err(),
        "read-only"
    );
    rig.end();
}

#[test]
fn what_is_refused_comes_back_as_an_error_and_the_session_goes_on() {
    let mut rig = Rig::new(Features::VERSION_1.bits() | PROTOCOL);
    assert!(rig.front.set_vring_num(0, 0).is_err());
    assert!(rig.front.set_features(1 << 22 | PROTOCOL).is_err());
    rig.start(0, 0);
    rig.with(|seen| assert_eq!(seen.running.len(), 1));
    rig.end();
}

#[test]
fn a_legacy_guest_is_served() {
    let mut rig = Rig::new(PROTOCOL);
    rig.start(0, 0);
    rig.with(|seen| assert_eq!(seen.running[&0].features, Features::empty()));
    rig.end();
}
