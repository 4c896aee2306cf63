//! The calls of a program, in this process: ioctls, mappings, waits, on ports of a switch that is
//! played here.

use std::ffi::c_void;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use interpose::sets::Sets;
use interpose::{Library, Mask};
use libc::{POLLERR, POLLIN, POLLOUT, epoll_event, pollfd};
use netmap::abi::{
    self, Header, Interface, LegacyRequest, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC,
    Opt, PoolsInfo, PortHeader, PortInfo, Register, Ring, Slot, ValeList, flags, legacy, mode, req,
};
use netmap::ioctl::ioctl;
use netmap::{Errno, Netmap, device, wait};

#[path = "support/switch.rs"]
mod switch;
use switch::{Heard, session};

/// The runtime directory of all tests.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: every test comes here before it reads the environment, and waits meanwhile.
        unsafe { std::env::set_var("LASTHOP_RUNTIME_DIR", folder.path()) };
        folder
    });
    folder.path()
}

/// A port with two queue pairs of 512 slots.
struct Port {
    name: &'static str,
    listener: UnixListener,
}

impl Port {
    fn new(name: &'static str) -> Self {
        let path = folder().join(format!("{name}.netmap"));
        Self {
            name,
            listener: UnixListener::bind(path).unwrap(),
        }
    }

    /// Serves one session until all queues of so many pairs are on.
    fn serve(&self, pairs: usize) -> JoinHandle<(Heard, UnixStream)> {
        let listener = self.listener.try_clone().unwrap();
        std::thread::spawn(move || session(listener.accept().unwrap().0, 2 * pairs))
    }
}

/// A program's descriptor; closed when dropped.
struct Fd(RawFd);

impl Fd {
    fn open() -> Self {
        folder();
        Self(device::open().unwrap())
    }

    fn control<T>(&self, reqtype: u16, name: &str, body: &mut T) -> Result<String, Errno> {
        let mut header = header(reqtype, name, std::ptr::from_mut(body).cast());
        self.call(NIOCCTRL, &mut header)?;
        let end = header.name.iter().position(|byte| *byte == 0).unwrap();
        Ok(String::from_utf8(header.name[..end].to_vec()).unwrap())
    }

    fn call<T>(&self, request: u64, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the argument is the request's structure, and lives until the call returns.
        unsafe { ioctl(self.0, request, std::ptr::from_mut(argument).cast()) }
    }

    fn sync(&self, request: u64) -> Result<(), Errno> {
        self.call(request, &mut 0u64)
    }

    fn register(&self, name: &str, request: Register) -> Result<Bound, Errno> {
        let mut request = request;
        self.control(req::REGISTER, name, &mut request)?;
        let len = request.memsize as usize;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { device::map(self.0, (0, len), prot, libc::MAP_SHARED, 0)? };
        Ok(Bound { request, base })
    }

    fn poll(&self, events: i16, limit: u64) -> i16 {
        let mut fds = [of(self.0, events)];
        wait::poll(&mut fds, Some(Duration::from_millis(limit)), Mask::NONE).unwrap();
        fds[0].revents
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        device::closed(self.0);
        // SAFETY: the descriptor is the test's, and is not used again.
        drop(unsafe { OwnedFd::from_raw_fd(self.0) });
    }
}

fn of(fd: RawFd, events: i16) -> pollfd {
    pollfd {
        fd,
        events,
        revents: 0,
    }
}

fn header(reqtype: u16, name: &str, body: *mut c_void) -> Header {
    let mut header = Header {
        version: abi::API,
        reqtype,
        reserved: 0,
        name: [0; 64],
        options: 0,
        body: body as u64,
    };
    header.name[..name.len()].copy_from_slice(name.as_bytes());
    header
}

fn all_rings() -> Register {
    Register {
        mode: mode::ALL_NIC,
        ..Register::default()
    }
}

fn with_host(request: Register, send: u16, receive: u16) -> Register {
    Register {
        host_tx_rings: send,
        host_rx_rings: receive,
        ..request
    }
}

/// A registered port, as a program sees it.
struct Bound {
    request: Register,
    base: usize,
}

impl Bound {
    fn interface(&self) -> &Interface {
        // SAFETY: the registration says that an interface lies there.
        unsafe { &*((self.base + self.request.offset as usize) as *const Interface) }
    }

    /// Offsets of rings, those for transmission first.
    fn offsets(&self) -> Vec<i64> {
        let interface = self.interface();
        let count = interface.ni_tx_rings
            + interface.ni_rx_rings
            + interface.ni_host_tx_rings
            + interface.ni_host_rx_rings;
        let first = std::ptr::from_ref(interface).wrapping_add(1).cast::<i64>();
        // SAFETY: so many offsets follow the interface.
        (0..count as usize)
            .map(|at| unsafe { *first.add(at) })
            .collect()
    }

    fn rings(&self) -> Vec<*mut Ring> {
        let offsets = self.offsets().into_iter().filter(|offset| *offset != 0);
        let at = std::ptr::from_ref(self.interface()) as usize;
        offsets
            .map(|offset| at.wrapping_add_signed(offset as isize) as *mut Ring)
            .collect()
    }
}

/// `head`, `cur` and `tail`.
fn positions(ring: *mut Ring) -> (u32, u32, u32) {
    // SAFETY: the ring is mapped, and the test is the only program.
    unsafe { ((*ring).head, (*ring).cur, (*ring).tail) }
}

fn advance(ring: *mut Ring, to: u32) {
    // SAFETY: as in `positions`.
    unsafe { ((*ring).head, (*ring).cur) = (to, to) };
}

fn slot(ring: *mut Ring, at: usize) -> *mut Slot {
    ring.wrapping_add(1).cast::<Slot>().wrapping_add(at)
}

#[test]
fn all_rings_of_a_port_are_registered_and_used() {
    let port = Port::new("all");
    let switch = port.serve(2);
    let fd = Fd::open();
    assert_eq!(fd.sync(NIOCTXSYNC), Err(Errno::NXIO));
    assert_eq!(fd.poll(POLLIN, 0), POLLERR);
    let bound = fd.register(port.name, all_rings()).unwrap();
    let (heard, _socket) = switch.join().unwrap();
    let request = bound.request;
    assert_eq!((request.tx_rings, request.rx_rings), (2, 2));
    assert_eq!((request.tx_slots, request.rx_slots), (512, 512));
    assert_eq!((request.mem_id, request.host_tx_rings), (1, 1));
    assert_eq!(&bound.interface().ni_name[..4], b"all\0");
    let rings = bound.rings();
    assert_eq!(
        rings.len(),
        4,
        "host rings are not bound: {:?}",
        bound.offsets()
    );
    assert_eq!(
        fd.register(port.name, all_rings()).err(),
        Some(Errno::BUSY),
        "twice"
    );

    // Each ring i is queue pair i.
    for (queue, ring) in [(1, rings[0]), (3, rings[1])] {
        advance(ring, 2);
        fd.sync(NIOCTXSYNC).unwrap();
        assert_eq!(heard.head(queue), 2);
    }
    heard.set_tail(2, 4);
    fd.sync(NIOCRXSYNC).unwrap();
    assert_eq!([positions(rings[2]).2, positions(rings[3]).2], [0, 4]);
    // Buffers are where the macros of netmap look for them.
    // SAFETY: the slot and its buffer are mapped, and the switch of this test writes nothing.
    unsafe {
        let slot = *slot(rings[0], 5);
        let offset = (*rings[0]).buf_ofs as isize + slot.buf_idx as isize * 2048;
        let buffer = (rings[0] as usize).wrapping_add_signed(offset) as *mut u8;
        buffer.write(0x5a);
        let pool = heard.read::<8>(heard.queues[&1].client + 72);
        let at = u64::from_le_bytes(pool) + u64::from(slot.buf_idx) * 2048;
        assert_eq!(heard.read::<1>(at), [0x5a]);
    }
    // A rule that is broken is an error once, and the positions are set back.
    advance(rings[0], 512);
    assert_eq!(fd.sync(NIOCTXSYNC), Err(Errno::INVAL));
    assert_eq!(positions(rings[0]).0, 2);
    assert_eq!(fd.sync(NIOCTXSYNC), Ok(()));
}

#[test]
fn modes_and_flags_choose_rings() {
    let port = Port::new("modes");
    let switch = port.serve(2);
    let first = Fd::open();
    let shape = |mode, ringid, flags| Register {
        mode,
        ringid,
        flags,
        ..Register::default()
    };
    let bound = first
        .register("vale7:modes", shape(mode::ONE_NIC, 1, 0))
        .unwrap();
    switch.join().unwrap();
    let kinds = |bound: &Bound| {
        let rings = bound.rings().into_iter();
        // SAFETY: the rings are mapped.
        rings
            .map(|ring| unsafe { ((*ring).dir, (*ring).ringid) })
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&bound), [(0, 1), (1, 1)]);
    for (request, expected) in [
        (
            shape(mode::ALL_NIC, 0, flags::TX_RINGS_ONLY),
            vec![(0, 0), (0, 1)],
        ),
        (
            shape(mode::ALL_NIC, 0, flags::RX_RINGS_ONLY),
            vec![(1, 0), (1, 1)],
        ),
        (shape(mode::SW, 0, 0), vec![(0, 2), (1, 2)]),
        (shape(mode::ONE_SW, 0, 0), vec![(0, 2), (1, 2)]),
        (
            with_host(shape(mode::SW, 0, 0), 3, 1),
            vec![(0, 2), (0, 3), (0, 4), (1, 2)],
        ),
        (
            with_host(shape(mode::ONE_SW, 1, 0), 2, 2),
            vec![(0, 3), (1, 3)],
        ),
        (
            shape(mode::NIC_SW, 0, flags::TX_RINGS_ONLY),
            vec![(0, 0), (0, 1), (0, 2)],
        ),
        (shape(mode::NULL, 0, 0), vec![]),
    ] {
        let fd = Fd::open();
        let bound = fd.register(port.name, request).unwrap();
        assert_eq!(kinds(&bound), expected, "{request:?}");
    }
    for (request, errno) in [
        (shape(mode::ONE_NIC, 2, 0), Errno::INVAL),
        (shape(mode::ONE_SW, 1, 0), Errno::INVAL),
        (shape(0, 0, 0), Errno::INVAL),
        (shape(9, 0, 0), Errno::INVAL),
        (shape(mode::ALL_NIC, 0, flags::EXCLUSIVE), Errno::BUSY),
        (shape(mode::ALL_NIC, 0, flags::MONITOR_RX), Errno::OPNOTSUPP),
        (
            Register {
                mem_id: 7,
                ..all_rings()
            },
            Errno::INVAL,
        ),
    ] {
        let refused = Fd::open().register(port.name, request).err();
        assert_eq!(refused, Some(errno), "{request:?}");
    }
    let exclusive = Fd::open();
    exclusive
        .register(port.name, shape(mode::ONE_NIC, 0, flags::EXCLUSIVE))
        .unwrap();
    let again = Fd::open().register(port.name, shape(mode::ONE_NIC, 0, 0));
    assert_eq!(again.err(), Some(Errno::BUSY));
    drop(exclusive);
    Fd::open()
        .register(port.name, shape(mode::ONE_NIC, 0, 0))
        .unwrap();
    // Host rings take everything, and give nothing.
    let host = Fd::open();
    let bound = host.register(port.name, shape(mode::SW, 0, 0)).unwrap();
    advance(bound.rings()[0], 10);
    host.sync(NIOCTXSYNC).unwrap();
    assert_eq!(positions(bound.rings()[0]), (10, 10, 9));
    assert_eq!(host.poll(POLLIN, 1), 0);
}

#[test]
fn a_registration_without_a_port_answers_with_its_own_numbers() {
    let request = Register {
        tx_rings: 10,
        rx_rings: 5,
        tx_slots: 256,
        rx_slots: 100,
        mode: mode::NULL,
        ..Register::default()
    };
    let fd = Fd::open();
    let bound = fd.register("", request).unwrap();
    let got = bound.request;
    assert_eq!((got.tx_rings, got.rx_rings), (10, 5));
    assert_eq!((got.tx_slots, got.rx_slots), (256, 100));
    assert_eq!(bound.interface().ni_tx_rings, 0, "none is there");
    fd.sync(NIOCTXSYNC).unwrap();
}

#[test]
fn extra_buffers_come_and_go() {
    let port = Port::new("extra");
    let switch = port.serve(2);
    let fd = Fd::open();
    let request = Register {
        extra_bufs: 100,
        ..all_rings()
    };
    let bound = fd.register(port.name, request).unwrap();
    let (_heard, socket) = switch.join().unwrap();
    assert_eq!(bound.request.extra_bufs, 100);
    let ring = bound.rings()[0];
    let mut index = bound.interface().ni_bufs_head;
    let mut seen = std::collections::BTreeSet::new();
    while index != 0 {
        assert!(seen.insert(index), "a circle");
        // SAFETY: the buffer is mapped.
        index = unsafe {
            let offset = (*ring).buf_ofs as isize + index as isize * 2048;
            ((ring as usize).wrapping_add_signed(offset) as *const u32).read()
        };
    }
    assert_eq!(seen.len(), 100);
    // A list that leads to a buffer that does not exist ends there.
    let at = bound.base + bound.request.offset as usize + offset_of!(Interface, ni_bufs_head);
    // SAFETY: the field is mapped.
    unsafe { (at as *mut u32).write(u32::MAX) };
    drop(socket);
    drop(fd);
}

#[test]
fn information_and_headers() {
    let port = Port::new("info");
    let fd = Fd::open();
    let mut info = PortInfo::default();
    // A port that is not open is asked.
    let listener = port.listener.try_clone().unwrap();
    let asked = std::thread::spawn(move || {
        let socket = listener.accept().unwrap().0;
        let _ = std::panic::catch_unwind(|| session(socket, 2));
    });
    fd.control(req::PORT_INFO_GET, port.name, &mut info)
        .unwrap();
    asked.join().unwrap();
    assert_eq!((info.tx_rings, info.tx_slots, info.mem_id), (2, 512, 1));
    let mut pools = PoolsInfo::default();
    assert_eq!(
        fd.control(req::POOLS_INFO_GET, "", &mut pools),
        Err(Errno::NXIO)
    );
    let missing = fd.control(req::PORT_INFO_GET, "nowhere", &mut info);
    assert_eq!(missing, Err(Errno::NXIO));

    let mut header = PortHeader::default();
    fd.control(req::PORT_HDR_GET, port.name, &mut header)
        .unwrap();
    assert_eq!(header.hdr_len, 0);
    header.hdr_len = 11;
    assert_eq!(
        fd.control(req::PORT_HDR_SET, port.name, &mut header),
        Err(Errno::INVAL)
    );
    header.hdr_len = 12;
    fd.control(req::PORT_HDR_SET, port.name, &mut header)
        .unwrap();
    // The port wants programs that know of it.
    let switch = port.serve(2);
    assert_eq!(fd.register(port.name, all_rings()).err(), Some(Errno::IO));
    drop(switch.join().unwrap());
    let switch = port.serve(2);
    let request = Register {
        flags: flags::ACCEPT_VNET_HDR,
        ..all_rings()
    };
    fd.register(port.name, request).unwrap();
    let (heard, _socket) = switch.join().unwrap();
    assert_eq!(
        heard.read::<2>(heard.queues[&0].client + 70),
        12u16.to_le_bytes()
    );

    fd.control(req::POOLS_INFO_GET, port.name, &mut pools)
        .unwrap();
    assert_eq!(
        (pools.buf_pool_objtotal, pools.buf_pool_objsize),
        (65_536, 2048)
    );
    assert_eq!(pools.memsize, info.memsize);

    let mut list = ValeList::default();
    fd.control(req::VALE_LIST, "vale0:info", &mut list).unwrap();
    let mut names = Vec::new();
    let mut at = ValeList::default();
    while let Ok(name) = fd.control(req::VALE_LIST, "", &mut at) {
        names.push(name);
        at.port_idx += 1;
    }
    assert_eq!(names[list.port_idx as usize], "vale0:info");
}

#[test]
fn requests_of_old_programs() {
    let port = Port::new("old");
    let switch = port.serve(2);
    let fd = Fd::open();
    let mut request = LegacyRequest {
        version: 11,
        ringid: legacy::HW_RING | 1,
        arg3: 3,
        ..LegacyRequest::default()
    };
    request.name[..3].copy_from_slice(b"old");
    fd.call(NIOCREGIF, &mut request).unwrap();
    switch.join().unwrap();
    assert_eq!((request.version, request.arg2, request.arg3), (14, 1, 3));
    assert_eq!((request.tx_rings, request.rx_slots), (2, 512));
    assert!(request.memsize > 0);
    let mut info = LegacyRequest {
        version: 14,
        name: request.name,
        ..LegacyRequest::default()
    };
    Fd::open().call(NIOCGINFO, &mut info).unwrap();
    assert_eq!((info.tx_rings, info.tx_slots), (2, 512));
    info.version = 10;
    assert_eq!(Fd::open().call(NIOCGINFO, &mut info), Err(Errno::INVAL));
    assert_eq!(info.version, 14, "the version that is wanted");
}

#[test]
fn what_is_not_there_is_refused_by_netmaps_errors() {
    let fd = Fd::open();
    let mut body = [0u64; 16];
    for reqtype in [
        req::VALE_ATTACH,
        req::VALE_DETACH,
        req::VALE_NEWIF,
        req::VALE_DELIF,
        req::VALE_POLLING_ENABLE,
        req::SYNC_KLOOP_START,
        req::CSB_ENABLE,
    ] {
        let refused = fd.control(reqtype, "a", &mut body);
        assert_eq!(refused, Err(Errno::OPNOTSUPP), "{reqtype}");
    }
    assert_eq!(fd.control(99, "a", &mut body), Err(Errno::INVAL));
    let mut option = Opt {
        next: 0,
        reqtype: 1,
        status: 0,
        size: 0,
    };
    let mut request = all_rings();
    let mut header = header(req::REGISTER, "a", (&raw mut request).cast());
    header.options = &raw mut option as u64;
    assert_eq!(fd.call(NIOCCTRL, &mut header), Err(Errno::OPNOTSUPP));
    assert_eq!(option.status, Errno::OPNOTSUPP.raw_os_error() as u32);
    option.next = header.options;
    assert_eq!(fd.call(NIOCCTRL, &mut header), Err(Errno::INVAL), "twice");
    option.reqtype = 6;
    assert_eq!(
        fd.call(NIOCCTRL, &mut header),
        Err(Errno::MSGSIZE),
        "a circle"
    );
    assert_eq!(option.next, header.options);
    header.version = 13;
    assert_eq!(fd.call(NIOCCTRL, &mut header), Err(Errno::INVAL));
    assert_eq!(fd.call(0x5401, &mut 0u64), Err(Errno::NOTTY));
    // SAFETY: null is what the call is to refuse.
    let null = unsafe { ioctl(fd.0, NIOCCTRL, std::ptr::null_mut()) };
    assert_eq!(null, Err(Errno::FAULT));
}

#[test]
fn waits_of_all_kinds_see_frames_and_other_descriptors() {
    let port = Port::new("waits");
    let switch = port.serve(2);
    let fd = Fd::open();
    let bound = fd.register(port.name, all_rings()).unwrap();
    let (heard, _socket) = switch.join().unwrap();
    assert_eq!(fd.poll(POLLIN, 1), 0);
    assert_eq!(fd.poll(POLLIN | POLLOUT, 1), POLLOUT);
    // A wait sends what was queued.
    advance(bound.rings()[0], 1);
    fd.poll(POLLIN, 0);
    assert_eq!(heard.head(1), 1);

    let other = sys::event::create().unwrap();
    let mut fds = [of(other.as_raw_fd(), POLLIN), of(fd.0, POLLIN)];
    let soon = Some(Duration::from_millis(1));
    assert_eq!(wait::poll(&mut fds, soon, Mask::NONE), Ok(0));
    sys::event::ring(&other).unwrap();
    assert_eq!(wait::poll(&mut fds, None, Mask::NONE), Ok(1));
    assert_eq!((fds[0].revents, fds[1].revents), (POLLIN, 0));

    // The switch wakes a sleeper by its call descriptor.
    let call = heard.calls[&0].try_clone().unwrap();
    let memory = heard.memory.as_ref().unwrap().try_clone().unwrap();
    let at = heard.queues[&0].switch;
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        rustix::io::pwrite(&memory, &1u16.to_le_bytes(), at).unwrap();
        sys::event::ring(&call).unwrap();
    });
    assert_eq!(fd.poll(POLLIN, 20_000), POLLIN);
    waker.join().unwrap();

    // The frame is still there: select and epoll see it, too.
    // SAFETY: a set of zeros is empty.
    let mut read: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the set is the test's, and the descriptors are below its size.
    unsafe {
        libc::FD_SET(fd.0, &mut read);
        libc::FD_SET(other.as_raw_fd(), &mut read);
        let none = std::ptr::null_mut();
        let sets = Sets {
            read: &mut read,
            write: none,
            except: none,
        };
        let most = fd.0.max(other.as_raw_fd()) + 1;
        assert!(sets.concern(most, Netmap::is_ours));
        assert_eq!(
            sets.select(most, |fds| wait::poll(fds, None, Mask::NONE)),
            Ok(2)
        );
        assert!(libc::FD_ISSET(fd.0, &read));
    }
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let raw = epoll.as_raw_fd();
    let wanted = libc::EPOLLIN as u32;
    assert!(!Netmap::concerns(raw));
    assert_eq!(
        Netmap::epoll_control(raw, libc::EPOLL_CTL_MOD, fd.0, None),
        Err(Errno::NOENT)
    );
    let once = wanted | libc::EPOLLONESHOT as u32;
    Netmap::epoll_control(raw, libc::EPOLL_CTL_ADD, fd.0, Some((once, 7))).unwrap();
    let again = Netmap::epoll_control(raw, libc::EPOLL_CTL_ADD, fd.0, Some((wanted, 7)));
    assert_eq!(again, Err(Errno::EXIST));
    let data = rustix::event::epoll::EventData::new_u64(8);
    let flags = rustix::event::epoll::EventFlags::IN;
    rustix::event::epoll::add(&epoll, &other, data, flags).unwrap();
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    let mut found = |limit| {
        let count = Netmap::epoll_wait(raw, &mut events, limit, Mask::NONE).unwrap();
        events[..count]
            .iter()
            .map(|event| event.u64)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(None), [7, 8]);
    assert_eq!(found(None), [8], "it was to be reported once");
    Netmap::epoll_control(raw, libc::EPOLL_CTL_MOD, fd.0, Some((wanted, 9))).unwrap();
    assert_eq!(found(None), [9, 8]);

    // A thread that waits finds a device that another thread switches on meanwhile.
    sys::event::clear(&other);
    Netmap::epoll_control(raw, libc::EPOLL_CTL_MOD, fd.0, Some((0, 9))).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut events = [epoll_event { events: 0, u64: 0 }; 4];
            let limit = Some(Duration::from_secs(60));
            let count = Netmap::epoll_wait(raw, &mut events, limit, Mask::NONE).unwrap();
            (count, events[0].u64)
        });
        std::thread::sleep(Duration::from_millis(20));
        Netmap::epoll_control(raw, libc::EPOLL_CTL_MOD, fd.0, Some((wanted, 10))).unwrap();
        assert_eq!(waiting.join().unwrap(), (1, 10));
    });
    // A number that has become another file's ends a wait.
    sys::event::ring(&other).unwrap();
    let mut none = [epoll_event { events: 0, u64: 0 }];
    let gone = Netmap::epoll_wait(other.as_raw_fd(), &mut none, None, Mask::NONE);
    assert_eq!(gone, Err(Errno::INVAL));
    Netmap::epoll_control(raw, libc::EPOLL_CTL_DEL, fd.0, None).unwrap();
    assert!(!Netmap::concerns(raw));

    // A switch that has stopped a queue is an error, also for a sender that never sleeps.
    sys::event::ring(&heard.errors[&1]).unwrap();
    let found = (2..300).any(|head| {
        advance(bound.rings()[0], head);
        fd.poll(POLLOUT, 10) & POLLERR != 0
    });
    assert!(found);
    assert_eq!(fd.sync(NIOCTXSYNC), Err(Errno::INVAL));
}

#[test]
fn descriptors_are_duplicated_and_closed() {
    let port = Port::new("copies");
    let switch = port.serve(2);
    let fd = Fd::open();
    fd.register(port.name, all_rings()).unwrap();
    let (_heard, socket) = switch.join().unwrap();
    // SAFETY: the descriptor is open.
    let copy = Fd(unsafe { libc::dup(fd.0) });
    device::duplicated(fd.0, copy.0).unwrap();
    drop(fd);
    assert_eq!(copy.sync(NIOCRXSYNC), Ok(()));
    drop(socket);
    // Before it is closed: another thread may get its number then.
    device::closed(copy.0);
    assert!(!Netmap::is_ours(copy.0));
    drop(copy);
    // The same process may open the port again.
    let switch = port.serve(2);
    let fd = Fd::open();
    fd.register(port.name, all_rings()).unwrap();
    switch.join().unwrap();
}
