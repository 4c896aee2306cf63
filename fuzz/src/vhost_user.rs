//! A vhost-user front end that sends any message in any order with any descriptor, over the socket
//! or past it, a guest that writes into its rings meanwhile, and a VMM that cuts its memory files
//! off: no panic, no descriptor left behind, no queue on memory that is gone, and session and back
//! end agree on which queues run. Queues with translations use none that was revoked, and every
//! question ends.

pub(crate) mod data_path;
mod steps;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use memory::iotlb::{Access, Miss, Need};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use virtio::vhost_user::{Connection, MAX_FDS, Message, Offer, Session};
use wire::virtio::features::Features;

use data_path::DataPath;
use steps::{Kind, MEM, Step, pair};
use wire::virtio::vhost_user::{FLAG_REPLY, HEADER_LEN, Header, ProtocolFeatures, VERSION};
use wire::virtio::vhost_user::{backend_code, code};

struct Rig {
    session: Session,
    backend: DataPath,
    /// With a socket: our end and theirs. Without: messages are handed over directly.
    socket: Option<(OwnedFd, Connection)>,
    over_socket: bool,
    /// The VMM's own descriptors of the files that it passed last.
    files: VecDeque<OwnedFd>,
    /// Its end of the back-end channel that it passed last.
    channel: Option<OwnedFd>,
    now: Instant,
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
    assert!(rig.backend.running.is_empty() && rig.backend.memory.is_none());
    drop(rig);
    assert_eq!(open_fds(), before, "descriptors left behind");
}

/// Ignores SIGPIPE, as Rust does before `main`, and a fuzzer's `main` does not: the error
/// descriptor of a queue may be a pipe without a reader. And handles SIGBUS as the switch does, for
/// truncated files.
pub(crate) fn set_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: no handler is installed, and no other code changes this signal's action.
    ONCE.call_once(|| unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        mapping::survive_truncation().expect("a handler");
    });
}

pub(crate) fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

impl Rig {
    fn new(over_socket: bool) -> Self {
        let features = Features::VERSION_1
            | Features::RING_PACKED
            | Features::RING_EVENT_IDX
            | Features::RING_INDIRECT_DESC
            | Features::ACCESS_PLATFORM
            | Features::NET_MQ
            | Features::NET_MTU;
        let mut rig = Self {
            session: Session::new(Offer::new(features, 2)),
            backend: DataPath::default(),
            socket: None,
            over_socket,
            files: VecDeque::new(),
            channel: None,
            now: Instant::now(),
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
                let fds: Vec<OwnedFd> = self.make(&fds);
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
                let fds: Vec<OwnedFd> = self.make(&fds);
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
            Step::Truncate(which, pages) => {
                if let Some(file) = self.files.get(usize::from(which % 4)) {
                    // A sealed file stays as it is.
                    let _ = rustix::fs::ftruncate(file, u64::from(pages) << 12);
                }
            }
            Step::Miss(page, access) => {
                if let Some(table) = self.session.iotlb() {
                    let is_ahead = access & 0x80 != 0;
                    let access = Access::from_bits(u64::from(access % 3) + 1).expect("an access");
                    let miss = Miss::new(u64::from(page) << 12, access);
                    let need = if is_ahead { Need::Ahead } else { Need::Now };
                    table.ask(miss, need);
                    let _ = table.take_denial(miss);
                }
                self.session.ask(self.now, &mut self.backend);
            }
            Step::Answer(value) => {
                let header = Header {
                    code: backend_code::IOTLB_MSG,
                    flags: VERSION | FLAG_REPLY,
                    size: 8,
                };
                let value = u64::from(value).to_ne_bytes();
                self.speak(&[&header.to_bytes()[..], &value].concat());
            }
            Step::Channel(bytes) => self.speak(&bytes),
            Step::Time(ms) => {
                if ms % 2 == 0
                    && let Some(channel) = &self.channel
                {
                    swallow(channel);
                }
                self.now += Duration::from_millis(ms.into());
                self.session.ask(self.now, &mut self.backend);
                let next = self.session.next_deadline();
                assert!(next.is_none_or(|at| at > self.now));
            }
            Step::Again => self.again(),
        }
    }

    /// Sends bytes on the back-end channel.
    fn speak(&mut self, bytes: &[u8]) {
        if let Some(channel) = &self.channel {
            // A closed end is the front end's own trouble.
            let _ = rustix::net::send(channel, bytes, SendFlags::NOSIGNAL);
        }
        self.session.read_answers(self.now, &mut self.backend);
    }

    fn make_one(&mut self, kind: Kind) -> OwnedFd {
        if !matches!(kind, Kind::Socket) {
            return kind.make();
        }
        let (ours, theirs) = pair();
        self.channel = Some(ours);
        theirs
    }

    /// Makes descriptors to pass on, and keeps the files among them.
    fn make(&mut self, kinds: &[Kind]) -> Vec<OwnedFd> {
        let fds: Vec<OwnedFd> = kinds.iter().map(|kind| self.make_one(*kind)).collect();
        for (kind, fd) in kinds.iter().zip(&fds) {
            if matches!(kind, Kind::Memory | Kind::Page) {
                self.keep(fd);
            }
        }
        fds
    }

    fn keep(&mut self, file: &OwnedFd) {
        self.files.truncate(3);
        self.files
            .push_front(file.try_clone().expect("a descriptor"));
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

    fn handle(&mut self, message: Message, fds: Vec<impl Into<sys::foreign::ForeignFd>>) {
        let (number, need_reply) = (message.code, message.need_reply);
        if number == code::IOTLB_MSG {
            self.backend.note(&message.payload);
        }
        match self.session.handle(message, fds, &mut self.backend) {
            Ok(Some(reply)) => {
                assert_eq!(reply.code, number);
                if let Some(fd) = &reply.fd {
                    self.keep(fd);
                }
                if let Some((_, connection)) = &mut self.socket
                    && connection.send(reply).is_err()
                {
                    self.again();
                }
            }
            Ok(None) => assert!(!need_reply || !self.acknowledges(), "no answer"),
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                // Behind the socket the session must bear a further request.
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
                // SAFETY: `translate` found two bytes mapped in a memory that the back end holds;
                // one thread.
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
