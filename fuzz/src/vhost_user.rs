//! A vhost-user front end that sends any message in any order with any descriptor, over the socket or past it, and
//! a guest that writes into its rings meanwhile: no panic, no descriptor left behind, no queue on memory that is
//! gone, and session and back end agree on which queues run.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use memory::{GuestMemory, Segment};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use virtio::features::Features;
use virtio::queue::{Queue, QueueFault};
use virtio::vhost_user::{
    Backend, Connection, HEADER_LEN, Header, MAX_FDS, Message, Offer, ProtocolFeatures, QueueSetup,
    Session, code,
};

/// Bytes of the larger memory file.
const MEM: u64 = 0x2_0000;

/// What a descriptor is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Event,
    Memory,
    Page,
    Pipe,
    Socket,
}

impl Kind {
    fn of(n: u8) -> Self {
        match n % 8 {
            0..=2 => Self::Event,
            3 | 4 => Self::Memory,
            5 => Self::Page,
            6 => Self::Pipe,
            _ => Self::Socket,
        }
    }

    fn make(self) -> OwnedFd {
        match self {
            Self::Event => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            Self::Memory => file(MEM),
            Self::Page => file(0x1000),
            Self::Pipe => rustix::pipe::pipe().expect("a pipe").1,
            Self::Socket => pair().0,
        }
    }
}

fn file(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, len).expect("its size");
    fd
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets")
}

#[derive(Debug)]
enum Step {
    Message {
        code: u32,
        need_reply: bool,
        payload: Vec<u8>,
        fds: Vec<Kind>,
    },
    /// Bytes on the socket that need not be a message.
    Bytes(Vec<u8>, Vec<Kind>),
    /// The guest writes 16 bits at this offset of each region.
    Guest(u32, u16),
    /// The data path serves all queues.
    Serve,
    /// The owner changes the link or the MTU.
    Owner(bool, u16),
    /// The front end is gone, and another comes.
    Again,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0..=0xbf => message(u)?,
            0xc0..=0xc7 => wild(u)?,
            0xc8..=0xcb => {
                let len = usize::from(u.arbitrary::<u8>()? % 32).min(u.len());
                Self::Bytes(u.bytes(len)?.to_vec(), kinds(u)?)
            }
            0xcc..=0xdf => Self::Guest(u.arbitrary()?, u.arbitrary()?),
            0xe0..=0xf7 => Self::Serve,
            0xf8..=0xfb => Self::Owner(u.arbitrary()?, u.arbitrary()?),
            _ => Self::Again,
        })
    }
}

fn kinds(u: &mut Unstructured<'_>) -> Result<Vec<Kind>> {
    let count = u.arbitrary::<u8>()? % (MAX_FDS as u8 + 2);
    (0..count).map(|_| Ok(Kind::of(u.arbitrary()?))).collect()
}

/// A message of any code with any payload.
fn wild(u: &mut Unstructured<'_>) -> Result<Step> {
    let (code, need_reply) = (u32::from(u.arbitrary::<u8>()?), u.arbitrary()?);
    let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
    Ok(Step::Message {
        code,
        need_reply,
        payload: u.bytes(len)?.to_vec(),
        fds: kinds(u)?,
    })
}

/// A message of the right shape with numbers near what matters.
fn message(u: &mut Unstructured<'_>) -> Result<Step> {
    let which = u.arbitrary::<u8>()?;
    let how = u.arbitrary::<u8>()?;
    let mut words = Words(Vec::new());
    let code = u32::from(which % 44) + 1;
    let mut fds: Vec<Kind> = Vec::new();
    match code {
        code::SET_FEATURES => words.u64(features(u)?),
        code::SET_PROTOCOL_FEATURES => words.u64(match u.arbitrary::<u8>()? {
            0..=0xdf => ProtocolFeatures::all().bits(),
            _ => u.arbitrary()?,
        }),
        code::SET_MEM_TABLE => {
            let count = u.arbitrary::<u8>()? % 4;
            words.u64(u64::from(count));
            for _ in 0..count {
                words.region(u)?;
                fds.push(Kind::of(u.arbitrary::<u8>()? | 3));
            }
        }
        code::ADD_MEM_REG | code::REM_MEM_REG => {
            words.u64(0);
            words.region(u)?;
            if code == code::ADD_MEM_REG {
                fds.push(Kind::of(u.arbitrary::<u8>()? | 3));
            }
        }
        code::SET_VRING_ADDR => {
            words.index(u)?;
            words.u32(u32::from(u.arbitrary::<u8>()? % 4));
            let base = number(u)?;
            for _ in 0..4 {
                words.u64(base.wrapping_add(u64::from(u.arbitrary::<u8>()?) << 6));
            }
        }
        code::SET_VRING_NUM
        | code::SET_VRING_BASE
        | code::GET_VRING_BASE
        | code::SET_VRING_ENABLE => {
            words.index(u)?;
            words.u32(number(u)? as u32);
        }
        code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
            let n = u.arbitrary::<u8>()?;
            words.u64(u64::from(n % 5) | u64::from(n & 0x80) << 1);
            if n & 0x80 == 0 {
                fds.push(Kind::of(how >> 4));
            }
        }
        code::SET_LOG_BASE => {
            words.u64(number(u)?);
            words.u64(number(u)?);
            fds.push(Kind::of(how >> 4 | 3));
        }
        code::GET_INFLIGHT_FD | code::SET_INFLIGHT_FD => {
            words.u64(number(u)?);
            words.u64(number(u)?);
            words.u32(u32::from(u.arbitrary::<u8>()? % 6) | u32::from(u.arbitrary::<u8>()?) << 16);
            words.u32(0);
            if code == code::SET_INFLIGHT_FD {
                fds.push(Kind::of(how >> 4 | 3));
            }
        }
        code::GET_CONFIG | code::SET_CONFIG => {
            let size = u.arbitrary::<u8>()? % 70;
            words.u32(number(u)? as u32);
            words.u32(u32::from(size));
            words.u32(0);
            words.0.resize(12 + usize::from(size), 0);
        }
        code::SEND_RARP | code::NET_SET_MTU | code::SET_STATUS => words.u64(number(u)?),
        code::SET_BACKEND_REQ_FD | code::SET_LOG_FD => fds.push(Kind::of(how >> 4)),
        _ => {}
    }
    if how & 14 == 14 {
        fds = kinds(u)?;
    }
    Ok(Step::Message {
        code,
        need_reply: how & 1 != 0,
        payload: words.0,
        fds,
    })
}

fn features(u: &mut Unstructured<'_>) -> Result<u64> {
    let base = 1 << 32 | 1 << 30;
    Ok(match u.arbitrary::<u8>()? % 8 {
        0..=2 => base,
        3 => base | 1 << 26,
        4 => base | 1 << 34,
        5 => base | 1 << 29 | 1 << 28,
        6 => 1 << 32,
        _ => u.arbitrary()?,
    })
}

/// A number near what matters: small, a page of the memory used here, a power of two, or any.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    let n = u.arbitrary::<u8>()?;
    Ok(match n >> 6 {
        0 => u64::from(n),
        1 => u64::from(n & 63) << 12,
        2 => 1 << (n & 63),
        _ if n < 0xf0 => MEM,
        _ => u.arbitrary()?,
    })
}

/// A payload in the making.
struct Words(Vec<u8>);

impl Words {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    fn index(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let n = u.arbitrary::<u8>()?;
        let index = if n < 0xf8 {
            u32::from(n % 5)
        } else {
            u.arbitrary()?
        };
        self.u32(index);
        Ok(())
    }

    fn region(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let [gpa, size, uva, offset] = [number(u)?, number(u)?, number(u)?, number(u)?];
        [gpa, size, uva, offset]
            .into_iter()
            .for_each(|n| self.u64(n));
        Ok(())
    }
}

/// A data path that serves its queues on demand.
#[derive(Default)]
struct DataPath {
    running: BTreeMap<u16, (QueueSetup, Queue)>,
    memory: Option<Arc<GuestMemory>>,
}

impl Backend for DataPath {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        for (_, queue) in self.running.values_mut() {
            let mem = mem.clone().expect("queues run on memory");
            let went_on = queue.set_memory(mem);
            assert!(went_on.is_ok() || went_on.err() == queue.fault());
            assert_ne!(
                queue.fault(),
                Some(QueueFault::UnmappedRing),
                "an area that is gone"
            );
        }
        self.memory = mem;
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> std::result::Result<(), String> {
        assert_eq!(index, setup.index);
        assert!(setup.features.contains(Features::VERSION_1));
        assert!(setup.mem.regions().len() == self.memory.as_ref().map_or(0, |m| m.regions().len()));
        let (mem, at) = (setup.mem.clone(), setup.position);
        let queue = match setup.inflight.clone() {
            Some(part) => Queue::with_inflight(mem, setup.layout, setup.features, at, part),
            None => Queue::new(mem, setup.layout, setup.features, at),
        };
        let queue = queue.map_err(|fault| fault.to_string())?;
        let before = self.running.insert(index, (setup, queue));
        assert!(before.is_none(), "started twice");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        let (_, queue) = self.running.remove(&index).expect("it ran");
        Some(queue.position())
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.running.get_mut(&index).expect("it runs").0.enabled = on;
    }

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.running.get_mut(&index).expect("it runs").0.call = call;
    }

    fn queue_refused(&mut self, _: u16, reason: &str) {
        assert!(!reason.is_empty());
    }

    fn reset(&mut self) {
        assert!(self.running.is_empty());
    }

    fn set_mtu(&mut self, mtu: u16) -> std::result::Result<(), String> {
        if mtu > 9000 {
            Err("too large".into())
        } else {
            Ok(())
        }
    }
}

impl DataPath {
    /// Serves a few chains of each queue; those that fault are reported.
    fn serve(&mut self) -> Vec<(u16, QueueFault)> {
        let mut faults = Vec::new();
        for (index, (_, queue)) in &mut self.running {
            let mut segs: Vec<Segment> = Vec::new();
            for _ in 0..4 {
                let taken = if index % 2 == 0 {
                    queue.take_writable(&mut segs)
                } else {
                    queue.take_readable(&mut segs)
                };
                match taken {
                    Ok(Some(chain)) => queue.put(chain, 0),
                    Ok(None) => break,
                    Err(fault) => {
                        faults.push((*index, fault));
                        break;
                    }
                }
            }
            queue.publish();
            let _ = queue.needs_notify();
            queue.set_kicks(true);
        }
        faults
    }
}

struct Rig {
    session: Session,
    backend: DataPath,
    /// With a socket: our end and theirs. Without: messages are handed over directly.
    socket: Option<(OwnedFd, Connection)>,
    over_socket: bool,
}

/// One byte of options, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(options) = u.arbitrary::<u8>() else {
        return;
    };
    let before = open_fds();
    let mut rig = Rig::new(options & 1 != 0);
    while !u.is_empty() {
        let Ok(step) = u.arbitrary() else {
            break;
        };
        rig.step(step);
        rig.check();
    }
    rig.close();
    assert!(rig.backend.running.is_empty() && rig.backend.memory.is_none());
    drop(rig);
    assert_eq!(open_fds(), before, "descriptors left behind");
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

impl Rig {
    fn new(over_socket: bool) -> Self {
        let features = Features::VERSION_1
            | Features::RING_PACKED
            | Features::RING_EVENT_IDX
            | Features::RING_INDIRECT_DESC
            | Features::NET_MQ
            | Features::NET_MTU;
        let mut rig = Self {
            session: Session::new(Offer::new(features, 2)),
            backend: DataPath::default(),
            socket: None,
            over_socket,
        };
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        if self.over_socket {
            let (ours, theirs) = pair();
            let connection = Connection::new(theirs).expect("a socket");
            self.socket = Some((ours, connection));
        }
    }

    /// The end of a connection.
    fn close(&mut self) {
        self.session.close(&mut self.backend);
        self.socket = None;
    }

    fn again(&mut self) {
        self.close();
        assert!(self.backend.running.is_empty() && self.backend.memory.is_none());
        self.connect();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Message {
                code,
                need_reply,
                payload,
                fds,
            } => {
                let fds: Vec<OwnedFd> = fds.into_iter().map(Kind::make).collect();
                let flags = 1 | u32::from(need_reply) << 3;
                let header = Header {
                    code,
                    flags,
                    size: payload.len() as u32,
                };
                if self.socket.is_some() {
                    self.transmit(&[&header.to_bytes()[..], &payload].concat(), &fds);
                    self.receive();
                } else {
                    self.handle(
                        Message {
                            code,
                            need_reply,
                            payload,
                        },
                        fds,
                    );
                }
            }
            Step::Bytes(bytes, fds) => {
                let fds: Vec<OwnedFd> = fds.into_iter().map(Kind::make).collect();
                self.transmit(&bytes, &fds);
                self.receive();
            }
            Step::Guest(at, value) => self.guest_writes(u64::from(at) % MEM, value),
            Step::Serve => {
                for (index, fault) in self.backend.serve() {
                    self.session
                        .queue_failed(index, &fault.to_string(), &mut self.backend);
                }
            }
            Step::Owner(up, mtu) => {
                self.session.set_link(up);
                self.session.set_mtu(mtu);
            }
            Step::Again => self.again(),
        }
    }

    /// Sends bytes in two pieces, the descriptors with the first.
    fn transmit(&mut self, bytes: &[u8], fds: &[OwnedFd]) {
        let Some((ours, _)) = &self.socket else {
            return;
        };
        let (head, tail) = bytes.split_at(bytes.len().min(HEADER_LEN));
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        // A full buffer or a closed end is the front end's own trouble.
        let _ = sendmsg(
            ours,
            &[IoSlice::new(head)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        if !tail.is_empty() {
            let mut none = SendAncillaryBuffer::default();
            let _ = sendmsg(ours, &[IoSlice::new(tail)], &mut none, SendFlags::NOSIGNAL);
        }
    }

    /// Takes all messages from the socket, and reads the answers.
    fn receive(&mut self) {
        while let Some((ours, connection)) = &mut self.socket {
            match connection.recv() {
                Ok(Some((message, fds))) => {
                    assert!(fds.len() <= MAX_FDS);
                    self.handle(message, fds);
                }
                Ok(None) if connection.wants_write() => swallow(ours),
                Ok(None) => break,
                Err(fault) => {
                    assert!(!fault.to_string().is_empty());
                    self.again();
                }
            }
        }
        if let Some((ours, _)) = &self.socket {
            swallow(ours);
        }
    }

    fn handle(&mut self, message: Message, fds: Vec<OwnedFd>) {
        let (code, need_reply) = (message.code, message.need_reply);
        match self.session.handle(message, fds, &mut self.backend) {
            Ok(Some(reply)) => {
                assert_eq!(reply.code, code);
                if let Some((_, connection)) = &mut self.socket
                    && connection.send(reply).is_err()
                {
                    self.again();
                }
            }
            Ok(None) => assert!(!need_reply || !self.acknowledges(), "no answer"),
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                // Past the socket the session is asked to go on, which it must bear.
                if self.socket.is_some() {
                    self.again();
                }
            }
        }
    }

    fn acknowledges(&self) -> bool {
        let protocol = self.session.info().protocol;
        protocol.is_some_and(|p| p.contains(ProtocolFeatures::REPLY_ACK))
    }

    fn guest_writes(&self, at: u64, value: u16) {
        let Some(memory) = &self.backend.memory else {
            return;
        };
        for region in memory.regions() {
            if let Some(place) = memory.translate(region.gpa() + at % region.size(), 2) {
                // SAFETY: `translate` found two bytes mapped in a memory that the back end holds; one thread.
                unsafe { place.ptr.cast::<u16>().write_unaligned(value) };
            }
        }
    }

    fn check(&self) {
        let info = self.session.info();
        for queue in &info.queues {
            assert_eq!(
                queue.running,
                self.backend.running.contains_key(&queue.index)
            );
        }
        let bytes = self
            .backend
            .memory
            .as_ref()
            .map_or(0, |memory| memory.size());
        assert_eq!(info.memory_bytes, bytes);
    }
}

/// Reads and forgets what waits on a socket, descriptors included.
fn swallow(socket: &OwnedFd) {
    let mut bytes = [0; 4096];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC);
        let done = !got.is_ok_and(|got| got.bytes > 0);
        control.drain().for_each(drop);
        if done {
            return;
        }
    }
}
