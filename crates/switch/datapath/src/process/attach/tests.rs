//! Messages about translations on an open connection: what they deposit, and what a process leaves
//! that dies at any moment while it serves one.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use ipc::keeping::IOTLB;
use ipc::link::{Link, LinkEvent, pair};
use ipc::supervision::{EventToSwitch, Poll, SessionRequest, SwitchRequest};
use ipc::switching::{Clients, Iommu, PortConfig, Role, WEIGHT};
use memory::iotlb::{Access, AnsweredMessage, Miss, Need};
use port::PortId;
use port::counters::Counters;
use rustix::event::epoll::{self, CreateFlags};
use sys::foreign::ForeignFd;
use virtio::vhost_user::{Connection, Offer, PeekResult, Session};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{
    FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, IotlbMessage, ProtocolFeatures, VERSION, code,
    iotlb_type,
};

use super::*;
use crate::process::Token;
use crate::process::session_store::SessionStore;

const UVA: u64 = 0x7f00_0000_0000;
const MEM: u64 = 0x20_0000;
const FEATURES: Features = Features::VERSION_1.union(Features::ACCESS_PLATFORM);

fn config() -> PortConfig {
    PortConfig {
        id: PortId(0),
        name: "vm1".into(),
        socket: "vm1.sock".into(),
        role: Role::Server,
        queues: 1,
        mtu: None,
        weight: WEIGHT,
        mac: None,
        clients: Clients::VhostUser,
        iommu: Iommu::Offered,
    }
}

fn offer() -> Offer {
    Offer::new(FEATURES, 1)
}

/// Files and record of a connection that the supervisor holds.
#[derive(Default)]
struct Stored {
    files: BTreeMap<u64, ForeignFd>,
    record: Vec<u8>,
}

/// An open connection with its front end and the supervisor's end of the link.
struct Rig {
    workers: Workers,
    context: Context,
    open: OpenConnection,
    front_end: UnixStream,
    supervisor: Link<EventToSwitch, SwitchRequest>,
    stored: Stored,
    _notices: crate::worker::Notices,
}

impl Rig {
    fn new() -> Self {
        let (front_end, socket) = UnixStream::pair().unwrap();
        front_end.set_nonblocking(true).unwrap();
        let pipe = AnswerPipe::new().unwrap();
        let ends = pipe.ends().map(|end| end.try_clone_to_owned().unwrap());
        let client = Client::VhostUser {
            connection: Connection::with_pipe(socket.try_clone().unwrap(), pipe).unwrap(),
            session: Box::new(Session::new(offer())),
        };
        let mut rig = Self::over(client, Positions::new(1), front_end);
        let [from, to] = ends;
        let pipe = AnswerPipe::again(from, to).unwrap();
        store_descriptors(&socket, &pipe, &mut rig.context.store);
        rig.open.record(&mut rig.context);
        rig.set_up();
        rig
    }

    fn over(client: Client, positions: Positions, front_end: UnixStream) -> Self {
        let poll = Poll::Adaptive;
        let started = Workers::start(1, poll, &Counters::heap(), 7);
        let (workers, notices) = started.unwrap();
        let (link, supervisor) = pair().unwrap();
        let supervisor = Link::new(supervisor);
        supervisor.set_nonblocking().unwrap();
        Self {
            workers,
            context: Context {
                config: config(),
                store: SessionStore::new(link).for_port(PortId(0)),
                connections: 1,
                event_limits: EventLimits::default(),
                invalidate_waits: Waits::default(),
            },
            open: OpenConnection {
                client,
                positions,
                doorbells: Doorbells::default(),
                features_chosen: false,
                missing_memory: MissingMemory::default(),
                answered: None,
                torn: false,
                has_more: false,
                watches: Watches::default(),
            },
            front_end,
            supervisor,
            stored: Stored::default(),
            _notices: notices,
        }
    }

    fn set_up(&mut self) {
        let protocol = ProtocolFeatures::all().bits();
        self.tell(code::SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), None);
        let acked = FEATURES.bits() | Features::VHOST_PROTOCOL_FEATURES.bits();
        self.tell(code::SET_FEATURES, &acked.to_ne_bytes(), None);
        let region = [1u64, 0x1000, MEM, UVA, 0].map(u64::to_ne_bytes);
        let file = sys::file::fixed("guest", MEM).unwrap();
        self.tell(code::SET_MEM_TABLE, region.as_flattened(), Some(&file));
        assert!(self.deposits() > 0);
    }

    /// Sends a message, is served, and returns the value of the answer.
    fn tell(&mut self, code: u32, payload: &[u8], file: Option<&OwnedFd>) -> u64 {
        self.send(code, payload, file);
        self.serve();
        let answers = self.answers();
        assert_eq!(answers.len(), 1);
        answers[0]
    }

    fn send(&mut self, code: u32, payload: &[u8], file: Option<&OwnedFd>) {
        let (flags, size) = (VERSION | FLAG_NEED_REPLY, payload.len() as u32);
        let bytes = [&Header { code, flags, size }.to_bytes()[..], payload].concat();
        let fds: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
        let none = rustix::net::SendFlags::empty();
        let sent = sys::descriptors::send(&self.front_end, &bytes, &fds, none);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    fn serve(&mut self) {
        self.open.serve(&mut self.context, &self.workers).unwrap();
        self.open.ask(&mut self.context, &self.workers);
    }

    /// Serves all messages that wait; returns the values of the answers.
    fn serve_all(&mut self) -> Vec<u64> {
        let mut all = Vec::new();
        self.open.has_more = true;
        while self.open.has_more {
            self.serve();
            all.extend(self.answers());
        }
        all
    }

    /// Returns the values of the answers that have come.
    fn answers(&mut self) -> Vec<u64> {
        let mut all = Vec::new();
        let mut bytes = [0; HEADER_LEN + 8];
        loop {
            match self.front_end.read(&mut bytes) {
                Ok(read) => assert_eq!(read, bytes.len()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return all;
                }
            }
            let value = bytes.last_chunk().unwrap();
            all.push(u64::from_ne_bytes(*value));
        }
    }

    /// Takes what was deposited with the supervisor; returns the number of messages.
    fn deposits(&mut self) -> usize {
        let mut count = 0;
        while let LinkEvent::Message(request, mut fds) = self.supervisor.recv().unwrap() {
            count += 1;
            match request {
                SwitchRequest::Sessions(SessionRequest::StoreDescriptor { number, .. }) => {
                    self.stored.files.insert(number, fds.pop().unwrap());
                }
                SwitchRequest::Sessions(SessionRequest::StoreSession {
                    record, numbers, ..
                }) => {
                    self.stored
                        .files
                        .retain(|number, _| numbers.contains(number));
                    assert_eq!(self.stored.files.len(), numbers.len());
                    self.stored.record = record;
                }
                other => panic!("{other:?}"),
            }
        }
        count
    }

    /// The process dies, and its successor continues the connection.
    fn succeed(mut self) -> Self {
        self.deposits();
        let Self {
            open,
            context,
            stored,
            front_end,
            ..
        } = self;
        drop((open, context));
        let mut saved = SavedConnection {
            bytes: Vec::new(),
            numbers: Vec::new(),
            prepared: None,
            record: ipc::keeping::ConnectionRecord::from_bytes(&stored.record).unwrap(),
            files: stored.files,
            quarantined: false,
        };
        let kept = saved
            .files
            .iter()
            .map(|(n, fd)| (*n, fd.try_clone().unwrap()));
        let stored = Stored {
            files: kept.collect(),
            record: stored.record.clone(),
        };
        let client::Link::VhostUser(connection) = saved.take_connection(&config()).unwrap() else {
            unreachable!()
        };
        let mut positions = saved.take_positions(&config()).unwrap();
        let mut backend = Kept(positions.iotlb.take());
        let (record, files) = (saved.record.session, saved.files);
        let session = Session::restore(offer(), &record, files, &mut backend).unwrap();
        let client = Client::VhostUser {
            connection,
            session: Box::new(session),
        };
        let mut rig = Self::over(client, positions, front_end);
        rig.stored = stored;
        rig.open.record(&mut rig.context);
        rig
    }

    fn session(&self) -> &Session {
        match &self.open.client {
            Client::VhostUser { session, .. } => session,
            Client::Memif { .. } => unreachable!(),
        }
    }

    /// Gives the session a back-end channel; returns the front end's end of it.
    fn connect_channel(&mut self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.tell(code::SET_BACKEND_REQ_FD, &[], Some(&theirs.into()));
        ours
    }

    /// Watches what the session waits for; returns the number of descriptors in the set.
    fn watch(&mut self, epoll: &Rc<OwnedFd>) -> usize {
        let tokens = [Token::Misses(PortId(0)), Token::Channel(PortId(0))];
        let tokens = tokens.map(|token| token.encode().u64());
        self.open.watch(epoll, tokens, &mut self.context);
        watched(epoll)
    }

    fn entries(&self) -> u64 {
        self.open.client.info().iotlb.unwrap().counts.entries
    }
}

/// A back end that has nothing but the file of translations.
struct Kept(Option<ForeignFd>);

impl virtio::vhost_user::Backend for Kept {
    fn set_memory(&mut self, _: Option<std::sync::Arc<memory::GuestMemory>>) {}

    fn start_queue(&mut self, _: u16, _: virtio::vhost_user::QueueSetup) -> Result<(), String> {
        Err("no queue".into())
    }

    fn stop_queue(&mut self, _: u16) -> Option<u32> {
        None
    }

    fn enable_queue(&mut self, _: u16, _: bool) {}

    fn set_call(&mut self, _: u16, _: Option<ForeignFd>) {}

    fn kept_iotlb(&mut self) -> Option<ForeignFd> {
        self.0.take()
    }
}

/// Returns the number of descriptors in an epoll set.
fn watched(epoll: &OwnedFd) -> usize {
    let info = format!("/proc/self/fdinfo/{}", epoll.as_raw_fd());
    let info = std::fs::read_to_string(info).unwrap();
    info.lines().filter(|line| line.starts_with("tfd:")).count()
}

/// Returns what is ready in the set.
fn ready(epoll: &OwnedFd) -> Vec<Token> {
    let mut events = [MaybeUninit::uninit(); 8];
    let events = sys::wait::events(epoll, &mut events, Some(Duration::ZERO)).unwrap();
    let tokens = events.iter().map(|event| Token::decode(event.data));
    tokens.collect()
}

fn message(kind: u8, iova: u64) -> [u8; IotlbMessage::LEN] {
    let message = IotlbMessage {
        iova,
        size: 0x1000,
        user_addr: UVA,
        permission: 3,
        kind,
    };
    message.to_bytes()
}

#[test]
fn messages_about_translations_deposit_nothing() {
    let mut rig = Rig::new();
    for at in 0..200 {
        let kind = [iotlb_type::UPDATE, iotlb_type::INVALIDATE][at % 2];
        rig.send(code::IOTLB_MSG, &message(kind, 0x10_0000), None);
        if at % 10 == 9 {
            assert_eq!(rig.serve_all(), [0; 10]);
        }
    }
    assert_ne!(rig.tell(code::IOTLB_MSG, &message(1, 0), None), 0);
    assert_eq!(rig.deposits(), 0);
    let waits = rig.context.invalidate_waits;
    assert_eq!(waits.within.iter().sum::<u64>() + waits.longer, 100);
}

#[test]
fn a_turn_ends_after_64_messages_about_translations() {
    let mut rig = Rig::new();
    for _ in 0..100 {
        rig.send(code::IOTLB_MSG, &message(iotlb_type::INVALIDATE, 0), None);
    }
    rig.serve();
    let first = rig.answers().len();
    assert!((1..=64).contains(&first) && rig.open.has_more);
    assert_eq!(rig.serve_all().len(), 100 - first);
}

/// The moments at which a process may die, in the order of `OpenConnection::handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Died {
    BeforeServing,
    Served,
    Noted,
    Answered,
    Consumed,
    NotedTaken,
    Sent,
}

const ALL: [Died; 7] = [
    Died::BeforeServing,
    Died::Served,
    Died::Noted,
    Died::Answered,
    Died::Consumed,
    Died::NotedTaken,
    Died::Sent,
];

/// Serves the message in the socket up to this moment, as `OpenConnection::handle` does.
fn serve_until(rig: &mut Rig, died: Died) {
    let PeekResult::Whole(message, fds) = rig.open.client.peek().unwrap() else {
        panic!("a message");
    };
    if died < Died::Served {
        return;
    }
    let content = message.payload.as_slice().try_into().unwrap();
    let mut backend = Kept(None);
    let reply = rig.open.client.handle(message.clone(), fds, &mut backend);
    let reply = reply.unwrap().unwrap();
    let client = &mut rig.open.client;
    if died >= Died::Noted {
        client.set_answered(AnsweredMessage::Waits(content));
    }
    if died >= Died::Answered {
        client.stage(reply).unwrap();
    }
    if died >= Died::Consumed {
        client.consume(&message, 0).unwrap();
    }
    if died >= Died::NotedTaken {
        client.set_answered(AnsweredMessage::Taken);
    }
    if died >= Died::Sent {
        assert!(client.flush().unwrap());
    }
}

#[test]
fn a_message_is_answered_once_wherever_the_process_dies() {
    for kind in [iotlb_type::UPDATE, iotlb_type::INVALIDATE] {
        for died in ALL {
            let mut rig = Rig::new();
            let first = [iotlb_type::INVALIDATE, iotlb_type::UPDATE][usize::from(kind == 3)];
            rig.tell(code::IOTLB_MSG, &message(first, 0x10_0000), None);
            rig.send(code::IOTLB_MSG, &message(kind, 0x10_0000), None);
            serve_until(&mut rig, died);
            let mut rig = rig.succeed();
            assert_eq!(rig.serve_all(), [0], "{kind} {died:?}");
            assert_eq!(rig.entries(), u64::from(kind == iotlb_type::UPDATE));
            // And so is the next one, be it the same.
            for other in [kind, first] {
                let value = rig.tell(code::IOTLB_MSG, &message(other, 0x10_0000), None);
                assert_eq!(value, 0, "{kind} {died:?}");
            }
            assert_eq!(
                rig.tell(code::GET_FEATURES, &[], None) & FEATURES.bits(),
                FEATURES.bits()
            );
        }
    }
}

#[test]
fn the_same_message_behind_one_that_was_taken_is_served() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        let same = message(iotlb_type::INVALIDATE, 0x10_0000);
        rig.send(code::IOTLB_MSG, &same, None);
    }
    serve_until(&mut rig, Died::NotedTaken);
    let mut rig = rig.succeed().succeed();
    assert_eq!(rig.serve_all(), [0, 0]);
}

#[test]
fn an_answer_to_another_message_is_not_taken_for_one_about_translations() {
    let mut rig = Rig::new();
    let same = message(iotlb_type::INVALIDATE, 0x10_0000);
    rig.tell(code::IOTLB_MSG, &same, None);
    // The answer to GET_FEATURES is in the pipe when the process dies, and the next message is the
    // same as the one before.
    rig.tell(code::GET_FEATURES, &[], None);
    rig.send(code::IOTLB_MSG, &same, None);
    let reply = virtio::vhost_user::Reply::new(code::GET_FEATURES, vec![7; 8]);
    rig.open.client.stage(reply).unwrap();
    let mut rig = rig.succeed();
    assert_eq!(rig.serve_all(), [u64::from_ne_bytes([7; 8]), 0]);
}

#[test]
fn a_table_that_cannot_be_read_is_replaced() {
    let mut rig = Rig::new();
    rig.tell(
        code::IOTLB_MSG,
        &message(iotlb_type::UPDATE, 0x10_0000),
        None,
    );
    assert_eq!(rig.entries(), 1);
    rig.deposits();
    let mut file = std::fs::File::from(rig.stored.files[&IOTLB].try_clone().unwrap().vouch());
    file.write_all(&[0xff; 8]).unwrap();
    let rig = rig.succeed();
    assert_eq!(rig.entries(), 0);
}

#[test]
fn misses_and_answers_wake_the_session_as_long_as_it_lasts() {
    let mut rig = Rig::new();
    let epoll = Rc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    assert_eq!(rig.watch(&epoll), 1);
    let mut channel = rig.connect_channel();
    assert_eq!((rig.watch(&epoll), rig.watch(&epoll)), (2, 2));
    assert_eq!(ready(&epoll), []);
    let table = rig.session().iotlb().unwrap().clone();
    let miss = Miss::new(0x10_0000, Access::READ);
    table.ask(miss, Need::Now);
    assert_eq!(ready(&epoll), [Token::Misses(PortId(0))]);
    sys::event::clear(table.asked().unwrap());
    rig.open.ask(&mut rig.context, &rig.workers);
    assert_eq!(ready(&epoll), []);
    let header = Header {
        code: 1,
        flags: VERSION | FLAG_REPLY,
        size: 8,
    };
    channel.write_all(&header.to_bytes()).unwrap();
    channel.write_all(&1u64.to_ne_bytes()).unwrap();
    assert_eq!(ready(&epoll), [Token::Channel(PortId(0))]);
    rig.open.read_answers(&mut rig.context, &rig.workers);
    assert_eq!(ready(&epoll), []);
    assert!(table.take_denial(miss));
    // The supervisor has the former channel open, until it has the next record.
    let other = rig.connect_channel();
    assert_eq!(rig.watch(&epoll), 2);
    drop(channel);
    assert_eq!(ready(&epoll), []);
    // Queues may have the table for a moment longer than the session.
    drop(rig.open);
    assert_eq!(watched(&epoll), 0);
    drop((other, table));
}

#[test]
fn a_guest_whose_translations_cannot_be_watched_fills_no_log() {
    let mut rig = Rig::new();
    let no_epoll = Rc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    for _ in 0..1000 {
        rig.open.watch(&no_epoll, [1, 2], &mut rig.context);
    }
    let suppressed = rig.context.event_limits.suppressed_log_lines();
    assert!((900..1000).contains(&suppressed), "{suppressed}");
    // It is watched as soon as that is possible.
    let epoll = Rc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    assert_eq!(rig.watch(&epoll), 1);
}
