//! The server with real sockets. The tests are the ends.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use config::desired::Place;
use ipc::owners::SocketOwner;
use pipes::{Answer, Block, MAX_WAITING, Offer, Register, Rings};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::*;

/// Time for anything to happen: twenty seconds, far more than it takes.
const SOON: Duration = Duration::from_secs(20);

struct World {
    dir: tempfile::TempDir,
    server: PipeServer,
    events: Events,
    listeners: Vec<PipeListener>,
}

fn bind(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 4096).unwrap();
    socket
}

impl World {
    fn new(names: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = |name: &&str| {
            let path = dir.path().join(format!("{name}.pipes"));
            PipeListener {
                pipe: PipeSocket {
                    name: (*name).to_owned(),
                    path: path.display().to_string(),
                    owner: SocketOwner::default(),
                    slots: Some(256),
                    place: Place::Top,
                },
                peer: None,
                socket: Arc::new(bind(&path).into()),
            }
        };
        let listeners: Vec<PipeListener> = names.iter().map(listener).collect();
        let server = PipeServer::new().unwrap();
        let events = Events::default();
        server.start(events.clone()).unwrap();
        server.serve(listeners.clone());
        server.set_open(true);
        Self {
            dir,
            server,
            events,
            listeners,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.pipes"))
    }

    fn dial(&self, name: &str) -> Client {
        Client(dial(&self.path(name)))
    }

    /// Returns the ends of the only pipe of a name.
    fn ends(&self, name: &str) -> Vec<String> {
        let document = self.server.document();
        let pipe = document.pipes.iter().find(|pipe| pipe.name == name);
        let open = &pipe.expect("the pipe").open;
        let ends = open.iter().flat_map(|open| &open.ends);
        ends.map(|end| format!("{} {} {}", end.end, end.program, end.pid))
            .collect()
    }

    fn wait_for_ends(&self, name: &str, ends: &[String]) {
        self.wait_until(name, |_| self.ends(name) == ends);
    }

    /// The thread brings the document up to date after it has answered.
    fn wait_until(&self, name: &str, reached: impl Fn(&[OpenPipe]) -> bool) {
        let until = Instant::now() + SOON;
        loop {
            let pipes = self.server.document().pipes;
            let pipe = pipes.iter().find(|pipe| pipe.name == name);
            let open = &pipe.expect("the pipe").open;
            if reached(open) {
                return;
            }
            assert!(Instant::now() < until, "{open:?}");
            std::thread::yield_now();
        }
    }
}

fn dial(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// An end, or something that is none.
struct Client(OwnedFd);

impl Client {
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        // One that was closed meanwhile takes nothing.
        let _ = sys::descriptors::send(&self.0, bytes, fds, SendFlags::empty());
    }

    fn register(&self, id: u16, end: End, instance: u128) {
        let register = Register {
            id,
            end,
            instance,
            slots: 0,
            program: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
        };
        self.send(&register.to_bytes(), &[]);
    }

    /// Returns the next answer, or `None` at the end of the connection.
    fn answer(&self) -> Option<(Answer, Vec<OwnedFd>)> {
        let until = Some(Instant::now() + SOON);
        let ready = sys::wait::ready(&self.0, PollFlags::IN, until).unwrap();
        assert!(!ready.is_empty(), "no answer");
        let (mut bytes, mut fds) = ([0; 256], Vec::new());
        let flags = RecvFlags::DONTWAIT;
        let into = (&mut fds, sys::foreign::Author::new(None));
        let got = sys::descriptors::receive(&self.0, &mut bytes, into, flags).unwrap()?;
        let answer = Answer::from_bytes(bytes.get(..got.bytes).filter(|b| !b.is_empty())?);
        let fds = fds.into_iter().map(sys::foreign::ForeignFd::vouch);
        Some((answer.unwrap(), fds.collect()))
    }

    fn refusal(&self) -> String {
        match self.answer() {
            Some((Answer::Refused(reason), _)) => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// Memory of an end.
struct Memory {
    file: OwnedFd,
    events: [OwnedFd; 2],
    offer: Offer,
}

impl Memory {
    fn new(instance: u128) -> Self {
        let block = |slots| Block {
            slots,
            lines: slots + 0x1000,
        };
        let rings = Rings {
            slots: 256,
            file_size: 1 << 20,
            pool: 0x1_0000,
            buffer_size: 2048,
            buffers: 100,
            blocks: [block(0), block(0x2000)],
        };
        let event = || sys::event::create().unwrap();
        Self {
            file: sys::file::fixed("pipe", rings.file_size).unwrap(),
            events: [event(), event()],
            offer: Offer { instance, rings },
        }
    }

    fn offer(&self, client: &Client) {
        let [master, slave] = &self.events;
        let fds = [self.file.as_fd(), master.as_fd(), slave.as_fd()];
        client.send(&self.offer.to_bytes(), &fds);
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn own(end: &str) -> String {
    format!("{end} test {}", std::process::id())
}

#[test]
fn two_ends_get_the_same_memory() {
    let world = World::new(&["p0"]);
    let (master, slave) = (world.dial("p0"), world.dial("p0"));
    master.register(1, End::Master, 0);
    let Some((Answer::Create(create), _)) = master.answer() else {
        panic!("no request for memory")
    };
    assert_eq!(create.slots, 256, "as configured");
    slave.register(1, End::Slave, 0);
    let memory = Memory::new(7);
    memory.offer(&master);
    for client in [&master, &slave] {
        let (answer, fds) = client.answer().unwrap();
        assert_eq!(answer, Answer::Join(memory.offer));
        assert_eq!(fds.len(), 3);
        assert_eq!(inode(&fds[0]), inode(&memory.file));
    }
    world.wait_for_ends("p0", &[own("master"), own("slave")]);
    world.wait_until("p0", |open| {
        let [open] = open else { return false };
        (open.id, open.slots, open.memory_bytes) == (1, Some(256), Some(1 << 20))
    });
    drop(master);
    world.wait_for_ends("p0", &[own("slave")]);
    drop(slave);
    world.wait_for_ends("p0", &[]);
    let events = world.events.kept();
    let of = |event: &api::v1::Event| match &event.what {
        api::v1::EventKind::Pipe { end, state, .. } => format!("{end} {}", state.as_str()),
        other => panic!("{other:?}"),
    };
    let events: Vec<String> = events.iter().map(of).collect();
    let expected = ["master connected", "slave connected", "master disconnected"];
    assert_eq!(events[..3], expected);
}

#[test]
fn ends_come_back_to_another_server() {
    let world = World::new(&["p0"]);
    let memory = Memory::new(9);
    let client = world.dial("p0");
    client.register(3, End::Slave, 9);
    assert!(matches!(client.answer(), Some((Answer::Create(_), _))));
    memory.offer(&client);
    assert_eq!(client.answer().unwrap().0, Answer::Join(memory.offer));
    // Another control serves the same socket; this one ends.
    world.server.serve(Vec::new());
    assert!(client.answer().is_none());
    let next = PipeServer::new().unwrap();
    next.start(Events::default()).unwrap();
    next.serve(world.listeners.clone());
    next.set_open(true);
    let master = world.dial("p0");
    master.register(3, End::Master, 0);
    assert!(matches!(master.answer(), Some((Answer::Create(_), _))));
    let client = world.dial("p0");
    client.register(3, End::Slave, 9);
    assert!(matches!(client.answer(), Some((Answer::Create(_), _))));
    // What the new end has made gives way.
    Memory::new(10).offer(&master);
    memory.offer(&client);
    assert_eq!(client.answer().unwrap().0, Answer::Join(memory.offer));
    assert_eq!(master.answer().unwrap().0, Answer::Join(memory.offer));
}

#[test]
fn memory_that_can_be_cut_off_is_refused() {
    let world = World::new(&["p0"]);
    let memory = Memory::new(7);
    let unsealed = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let plain: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    for (file, event) in [
        (&unsealed, &memory.events[0]),
        (&plain, &memory.events[0]),
        (&memory.file, &memory.file),
    ] {
        let client = world.dial("p0");
        client.register(1, End::Master, 0);
        assert!(matches!(client.answer(), Some((Answer::Create(_), _))));
        let fds = [file.as_fd(), event.as_fd(), memory.events[1].as_fd()];
        client.send(&memory.offer.to_bytes(), &fds);
        assert_eq!(client.refusal(), "the message has other descriptors");
        assert!(client.answer().is_none());
        world.wait_for_ends("p0", &[]);
    }
}

#[test]
fn a_flood_takes_nothing_from_others() {
    let world = World::new(&["flooded", "p0"]);
    let silent: Vec<Client> = (0..MAX_WAITING).map(|_| world.dial("flooded")).collect();
    let garbage = [0xaa; 256];
    for _ in 0..1000 {
        // The backlog takes them; the server takes its share of them.
        let client = world.dial("flooded");
        client.send(&garbage, &[]);
    }
    let client = world.dial("p0");
    client.register(1, End::Master, 0);
    assert!(matches!(client.answer(), Some((Answer::Create(_), _))));
    drop(silent);
}

#[test]
fn only_processes_of_the_peer_may_connect() {
    let mut world = World::new(&["p0"]);
    let user = rustix::process::geteuid().as_raw();
    world.listeners[0].peer = Some(user + 1);
    world.server.serve(world.listeners.clone());
    let stranger = world.dial("p0");
    stranger.register(1, End::Master, 0);
    assert!(stranger.answer().is_none());
    world.listeners[0].peer = Some(user);
    world.server.serve(world.listeners.clone());
    let own = world.dial("p0");
    own.register(1, End::Master, 0);
    assert!(matches!(own.answer(), Some((Answer::Create(_), _))));
    world.listeners[0].peer = Some(user + 1);
    world.server.serve(world.listeners.clone());
    assert!(own.answer().is_none(), "it may not stay");
}

#[test]
fn a_closed_server_leaves_connections_waiting() {
    let world = World::new(&["p0"]);
    world.server.set_open(false);
    // The change is taken before the next event.
    world.wait_for_ends("p0", &[]);
    let client = world.dial("p0");
    client.register(1, End::Master, 0);
    world.server.set_open(true);
    assert!(matches!(client.answer(), Some((Answer::Create(_), _))));
}
