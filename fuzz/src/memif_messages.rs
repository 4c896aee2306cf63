//! A memif client that sends any message in any order with any descriptor, over the socket or past
//! it, writes into its rings meanwhile, and cuts its memory files off; and a server whose process
//! dies at any time: no panic, no descriptor left behind, no queue on memory that is gone, session
//! and back end agree on which queues run, and a record is always one that a successor accepts.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use memif::{Connection, MAX_REGIONS, Offer, Session};
use memory::GuestMemory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sys::foreign::ForeignFd;
use testkit::memif::{AddRing, COOKIE, Spec, add_region, code, name};
use virtio::vhost_user::{AnswerPipe, Backend, Fault, Message, QueueSetup};

use crate::vhost_user::data_path::DataPath;
use crate::vhost_user::{open_fds, set_signals};

/// Bytes of the larger memory file.
const MEM: u64 = 0x1_0080;
/// Where rings lie that have their cookie from the start.
const RINGS: [u32; 4] = [0, 0x800, 0x1000, 0x1800];
const SECRET: &str = "s";

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Event,
    Memory,
    Page,
    Pipe,
}

impl Kind {
    fn of(n: u8) -> Self {
        match n % 8 {
            0..=2 => Self::Event,
            3..=5 => Self::Memory,
            6 => Self::Page,
            _ => Self::Pipe,
        }
    }

    fn make(self) -> OwnedFd {
        match self {
            Self::Event => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            Self::Memory => file(MEM),
            Self::Page => file(0x1000),
            Self::Pipe => rustix::pipe::pipe().expect("a pipe").1,
        }
    }
}

fn file(len: u64) -> OwnedFd {
    let fd = memfd_create("client", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, len).expect("its size");
    for at in RINGS.into_iter().filter(|at| u64::from(*at) < len) {
        rustix::io::pwrite(&fd, &COOKIE.to_ne_bytes(), at.into()).expect("written");
    }
    fd
}

#[derive(Debug)]
enum Step {
    Message(u32, Vec<u8>, Vec<Kind>),
    /// Bytes on the socket that need not be a message.
    Bytes(Vec<u8>),
    /// The client writes 16 bits at this offset of its files.
    Client(u32, u16),
    /// The data path serves all queues; the messages to the client have left.
    Serve,
    /// The client cuts one of its memory files to this many pages.
    Truncate(u8, u8),
    /// The process of the server dies, and a successor restores the session.
    Die,
    /// The client is gone, and another comes.
    Again,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0..=0xb7 => message(u)?,
            0xb8..=0xbf => {
                let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
                let (code, payload) = (u.arbitrary::<u16>()?.into(), u.bytes(len)?.to_vec());
                Self::Message(code, payload, kinds(u)?)
            }
            0xc0..=0xc3 => {
                let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
                Self::Bytes(u.bytes(len)?.to_vec())
            }
            0xc4..=0xdf => Self::Client(u.arbitrary()?, u.arbitrary()?),
            0xe0..=0xf3 => Self::Serve,
            0xf4 | 0xf5 => Self::Truncate(u.arbitrary()?, u.arbitrary()?),
            0xf6..=0xfb => Self::Die,
            _ => Self::Again,
        })
    }
}

fn kinds(u: &mut Unstructured<'_>) -> Result<Vec<Kind>> {
    let count = u.arbitrary::<u8>()? % 4;
    (0..count).map(|_| Ok(Kind::of(u.arbitrary()?))).collect()
}

/// A message of the right shape with numbers near the limits.
fn message(u: &mut Unstructured<'_>) -> Result<Step> {
    let which = u.arbitrary::<u8>()?;
    let mut fds = Vec::new();
    let (code, payload) = match which % 8 {
        0 => {
            let id = u32::from(u.arbitrary::<u8>()? / 0xf0);
            let spec = Spec {
                id,
                secret: SECRET.into(),
                ..Spec::default()
            };
            (code::INIT, spec.init())
        }
        1 | 2 => {
            let (index, size) = (u.arbitrary::<u8>()? % 20, u.arbitrary::<u8>()?);
            let size = match size {
                0..=0xdf => MEM,
                0xe0..=0xef => 0x1000,
                _ => u64::from(size) << u32::from(size % 64),
            };
            fds.push(Kind::of(3 + u.arbitrary::<u8>()? / 0x60));
            (code::ADD_REGION, add_region(index.into(), size))
        }
        3..=5 => {
            let place = u.arbitrary::<u8>()?;
            let add = AddRing {
                flags: u16::from(u.arbitrary::<u8>()? % 2),
                index: u16::from(u.arbitrary::<u8>()? % 3),
                region: u16::from(u.arbitrary::<u8>()? / 0x60),
                offset: match place {
                    0..=0xdf => RINGS[usize::from(place % 4)],
                    _ => u.arbitrary()?,
                },
                log2_size: u.arbitrary::<u8>()? % 14,
                private_header: u16::from(place == 0xff),
            };
            fds.push(Kind::of(u.arbitrary::<u8>()? / 0x50));
            (code::ADD_RING, add.payload())
        }
        6 => (code::CONNECT, name("fuzz")),
        _ => match u.arbitrary::<u8>()? {
            0..=0x7f => (code::CONNECT, name("fuzz")),
            0x80..=0x8f => (code::DISCONNECT, vec![b'x'; 100]),
            other => (u32::from(other % 10), Vec::new()),
        },
    };
    Ok(Step::Message(code, payload, fds))
}

/// A data path, and the supervisor that keeps descriptors.
#[derive(Default)]
struct Back {
    path: DataPath,
    kept: BTreeMap<u64, ForeignFd>,
}

impl Backend for Back {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        self.path.set_memory(mem);
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        self.path.start_queue(index, setup)
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.path.stop_queue(index)
    }

    fn enable_queue(&mut self, _: u16, _: bool) {
        unreachable!("memif has no disabled queues");
    }

    fn set_call(&mut self, _: u16, _: Option<ForeignFd>) {
        unreachable!("memif does not change interrupts");
    }

    fn queue_refused(&mut self, _: u16, reason: &str) {
        assert!(!reason.is_empty());
    }

    fn keep(&mut self, number: u64, fd: BorrowedFd<'_>) {
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        assert!(
            self.kept.insert(number, fd.into()).is_none(),
            "a number twice"
        );
    }
}

struct Rig {
    session: Session,
    back: Back,
    /// With a socket: the client's end and ours. Without: messages are handed over directly.
    socket: Option<(OwnedFd, Connection)>,
    over_socket: bool,
    /// The client's own descriptors of the files that it passed last.
    files: VecDeque<OwnedFd>,
}

/// One byte of options, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(options) = u.arbitrary::<u8>() else {
        return;
    };
    set_signals();
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
    assert!(rig.back.path.running.is_empty() && rig.back.path.memory.is_none());
    drop(rig);
    assert_eq!(open_fds(), before, "descriptors left behind");
}

fn offer() -> Offer {
    Offer {
        program: "fuzz".into(),
        port: "port".into(),
        id: 0,
        secret: Some(SECRET.into()),
        queue_pairs: 2,
    }
}

impl Rig {
    fn new(over_socket: bool) -> Self {
        let mut rig = Self {
            session: Session::new(offer()),
            back: Back::default(),
            socket: None,
            over_socket,
            files: VecDeque::new(),
        };
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        if self.over_socket {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let (theirs, ours) = pair.expect("sockets");
            let pipe = AnswerPipe::new().expect("a pipe");
            let mut connection = Connection::new(ours, pipe).expect("a socket");
            connection.stage(&self.session.hello()).expect("room");
            self.socket = Some((theirs, connection));
        }
    }

    fn close(&mut self) {
        self.session.close(&mut self.back);
        self.back.kept.clear();
        if let Some((_, connection)) = self.socket.take() {
            connection.end(Some("the end"));
        }
    }

    fn again(&mut self) {
        self.close();
        assert!(self.back.path.running.is_empty() && self.back.path.memory.is_none());
        self.connect();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Message(code, payload, kinds) => {
                let fds = kinds.iter().map(|kind| self.make(*kind)).collect();
                self.message(code, payload, fds);
            }
            Step::Bytes(bytes) => self.transmit(&bytes, &[]),
            Step::Client(at, value) => self.client_writes(u64::from(at) % MEM, value),
            Step::Serve => {
                let nothing_left = match &mut self.socket {
                    Some((_, connection)) => connection.flush().unwrap_or(false),
                    None => true,
                };
                if nothing_left {
                    self.session.sent(&mut self.back);
                }
                for (index, fault) in self.back.path.serve() {
                    let reason = fault.to_string();
                    self.session.queue_failed(index, &reason, &mut self.back);
                }
            }
            Step::Truncate(which, pages) => {
                if let Some(file) = self.files.get(usize::from(which % 4)) {
                    ftruncate(file, u64::from(pages) << 12).expect("a size");
                }
            }
            Step::Die => self.die(),
            Step::Again => self.again(),
        }
        self.receive();
    }

    fn make(&mut self, kind: Kind) -> OwnedFd {
        let fd = kind.make();
        if matches!(kind, Kind::Memory | Kind::Page) {
            self.files.truncate(3);
            self.files.push_front(fd.try_clone().expect("a descriptor"));
        }
        fd
    }

    /// Writes to the files that the client has, which does not go through a mapping.
    fn client_writes(&self, at: u64, value: u16) {
        for file in &self.files {
            let len = rustix::fs::fstat(file).expect("a file").st_size as u64;
            if at + 2 <= len {
                rustix::io::pwrite(file, &value.to_ne_bytes(), at).expect("written");
            }
        }
    }

    fn message(&mut self, code: u32, mut payload: Vec<u8>, fds: Vec<OwnedFd>) {
        if self.socket.is_some() {
            let mut bytes = (code as u16).to_ne_bytes().to_vec();
            payload.resize(memif::PAYLOAD_LEN, 0);
            bytes.extend(payload);
            return self.transmit(&bytes, &fds);
        }
        if payload.len() < memif::PAYLOAD_LEN {
            payload.resize(memif::PAYLOAD_LEN, 0);
        }
        let message = Message {
            code,
            need_reply: false,
            payload,
        };
        // Past the socket the session must bear a further message.
        let _ = self.handle(message, fds);
    }

    fn transmit(&mut self, bytes: &[u8], fds: &[OwnedFd]) {
        if let Some((theirs, _)) = &self.socket {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // A full buffer or a closed end is the client's own trouble.
            let _ = sys::descriptors::send(theirs, bytes, &fds, rustix::net::SendFlags::DONTWAIT);
        }
    }

    /// Serves all messages in the socket, and reads the answers.
    fn receive(&mut self) {
        while let Some((_, connection)) = &mut self.socket {
            let served = match connection.peek() {
                Ok(Some((message, fds))) => self.serve(message, fds),
                Ok(None) => break,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = served {
                assert!(!fault.to_string().is_empty());
                self.again();
                break;
            }
            self.swallow();
        }
    }

    fn serve(&mut self, message: Message, fds: Vec<ForeignFd>) -> std::result::Result<(), Fault> {
        let reply = self.handle(message, fds)?;
        let Some((_, connection)) = &mut self.socket else {
            return Ok(());
        };
        connection.stage(&reply)?;
        connection.consume()?;
        if connection.flush()? {
            self.session.sent(&mut self.back);
        }
        Ok(())
    }

    fn swallow(&mut self) {
        if let Some((theirs, _)) = &self.socket {
            let mut bytes = [0; 129];
            let flags = rustix::net::RecvFlags::DONTWAIT;
            let mut receive = || {
                let into = (&mut Vec::new(), sys::foreign::Author::new(None));
                sys::descriptors::receive(theirs, &mut bytes, into, flags)
            };
            while let Ok(Some(got)) = receive() {
                assert!(got.bytes == 0 || got.bytes == memif::MESSAGE_LEN);
                if got.bytes == 0 {
                    break;
                }
            }
        }
    }

    fn handle(
        &mut self,
        message: Message,
        fds: Vec<impl Into<sys::foreign::ForeignFd>>,
    ) -> std::result::Result<virtio::vhost_user::Reply, Fault> {
        let reply = self.session.handle(message, fds, &mut self.back);
        self.session.settled();
        let reply = reply?.expect("every message is answered");
        assert!([code::ACK, code::CONNECTED].contains(&reply.code));
        Ok(reply)
    }

    /// The process dies; its successor has the record and the descriptors that it names.
    fn die(&mut self) {
        let (record, numbers) = self.session.record();
        let mut kept = std::mem::take(&mut self.back.kept);
        kept.retain(|number, _| numbers.contains(number));
        for (number, fd) in &kept {
            self.back.kept.insert(*number, fd.try_clone().expect("one"));
        }
        self.back.path = DataPath::default();
        match Session::restore(offer(), &record, kept, &mut self.back) {
            Ok(session) => {
                let had_faults = self.session.info().queues.iter().any(|q| q.fault.is_some());
                assert!(had_faults || session.record().1 == numbers);
                self.session = session;
            }
            // A file that was cut off meanwhile.
            Err(reason) => {
                assert!(reason.contains("of its file"), "{reason}");
                self.session = Session::new(offer());
                self.again();
            }
        }
    }

    fn check(&self) {
        let info = self.session.info();
        assert!(info.regions <= usize::from(MAX_REGIONS));
        let running = info.queues.iter().filter(|q| q.running).map(|q| q.index);
        assert!(running.eq(self.back.path.running.keys().copied()));
        assert!(self.back.path.running.is_empty() || self.session.is_connected());
    }
}
