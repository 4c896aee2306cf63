//! Descriptors whose close waits, sent to every socket of Lasthop: their author waits alone. No
//! process is restarted, and other clients are answered before such a descriptor is closed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use rustix::process::Signal;
use testkit::frontend::FrontEnd;
use testkit::lasthop::{Place, Running, port};
use testkit::memif::Dialog;
use testkit::pipe_end::{MASTER, PipeEnd};
use testkit::skip::skipped;
use testkit::traps::{Lingering, Stuck};
use testkit::wait::{timed, wait_until};

/// Time in which an answer must come: less than the minute that a trap lingers.
const ANSWER: Duration = Duration::from_secs(20);
/// A user that is not the owner of a port.
const STRANGER: u32 = 60_001;
/// `VHOST_USER_GET_FEATURES` and `VHOST_USER_SET_BACKEND_REQ_FD`.
const GET_FEATURES: u32 = 1;
const SET_BACKEND_REQ_FD: u32 = 21;

fn config() -> String {
    let head = "[metrics]\nlisten = \"unix:m.sock\"\n[switch]\nname = \"host1\"\nworkers = 1\n";
    let ports = ["free", "held", "other"].map(|name| port(name, ""));
    let owned = port("owned", "peer_user = \"root\"\nmode = \"0666\"");
    let memif = "[[port]]\nname = \"mem\"\nkind = \"memif\"\n";
    let netmap = "[[port]]\nname = \"net\"\nkind = \"netmap\"\n";
    let pipe = "[[pipe]]\nname = \"p\"\n";
    format!("{head}{}{owned}{memif}{netmap}{pipe}", ports.concat())
}

/// A socket of Lasthop that some process may connect to.
#[derive(Clone, Debug)]
struct Door {
    path: PathBuf,
    of: SocketType,
}

impl Door {
    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, self.of, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        Ok(socket)
    }
}

/// Sends bytes with a descriptor. Returns whether the system has taken both: a socket may refuse
/// descriptors at the sender.
fn send(socket: &OwnedFd, bytes: &[u8], fd: BorrowedFd<'_>) -> bool {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [io::IoSlice::new(bytes)];
    sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// Runs something as another user: only this thread, as each has credentials of its own.
fn as_user<T: Send>(user: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            // SAFETY: the call changes the credentials of this thread only, and no memory.
            let failed = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
            assert_eq!(failed, 0, "root may be any user");
            run()
        });
        run.join().expect("no panic")
    })
}

/// Only one test runs at a time: a child of another one would get copies of the traps, and wait
/// when its exec(2) closes them.
static TURN: Mutex<()> = Mutex::new(());

/// A running Lasthop, with an honest front end, and what its hostile clients keep open.
struct World {
    lasthop: Running,
    honest: FrontEnd,
    pids: Vec<(String, u64)>,
    open: Vec<OwnedFd>,
    _place: Place,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn start(environment: &[(&str, &str)]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Place::new();
        // Strangers may reach the sockets.
        let root = place.path("");
        rustix::fs::chmod(&root, Mode::from_raw_mode(0o755)).expect("the test's folder");
        let mut command = place.command(&config());
        command.envs(environment.iter().copied());
        let mut lasthop = place.spawn(command);
        lasthop.wait_ready();
        let mode = Mode::from_raw_mode(0o777);
        rustix::fs::chmod(place.run_dir(), mode).expect("the runtime directory");
        for file in std::fs::read_dir(place.run_dir()).expect("the runtime directory") {
            let path = file.expect("a file").path();
            rustix::fs::chmod(&path, mode).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        }
        let honest = FrontEnd::connect(&place.run_dir().join("held.sock"), ANSWER).unwrap();
        let pids = pids(&lasthop);
        Self {
            lasthop,
            honest,
            pids,
            open: Vec::new(),
            _place: place,
            _turn: turn,
        }
    }

    fn door(&self, name: &str) -> Door {
        let (path, of) = (self.lasthop.socket(name), SocketType::STREAM);
        Door { path, of }
    }

    /// All sockets, with the beginning of what each expects.
    fn doors(&self) -> Vec<(Door, Vec<u8>)> {
        let features = [GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
        let http = b"GET /metrics HTTP/1.1\r\nhost: x\r\n".to_vec();
        let mut all = vec![
            (self.door("free.sock"), features.clone()),
            (self.door("held.sock"), features.clone()),
            (self.door("owned.sock"), features.clone()),
            (self.door("api.sock"), http.clone()),
            (self.door("m.sock"), http),
            (self.door("supervisor.sock"), b"{\"up".to_vec()),
        ];
        let netmap = Door {
            of: SocketType::STREAM,
            ..self.found("net")
        };
        all.push((netmap, features));
        for (name, len) in [("mem", 128), ("p", 40)] {
            all.push((self.found(name), vec![0; len]));
        }
        all
    }

    /// The socket of a port or pipe, by what `lasthop` says.
    fn found(&self, name: &str) -> Door {
        let names = std::fs::read_dir(self.lasthop.folder()).expect("the runtime directory");
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let name = names.find(|file| file.starts_with(&format!("{name}.")) && file != "m.sock");
        let of = SocketType::SEQPACKET;
        let path = self.lasthop.socket(&name.expect("its socket"));
        Door { path, of }
    }

    /// Connects to every socket, twice as root and twice as a user who may not connect everywhere.
    /// Returns the messages to send: the first of a connection, another one, and one of a second
    /// connection.
    fn connect(&mut self) -> Vec<(OwnedFd, Vec<u8>)> {
        let mut all = Vec::new();
        for (door, bytes) in self.doors() {
            for user in [0, STRANGER] {
                let connect = || [door.connect(), door.connect()];
                for (at, socket) in as_user(user, connect).into_iter().enumerate() {
                    let Ok(socket) = socket else { continue };
                    let copy = socket.try_clone().expect("a descriptor");
                    all.push((copy, bytes.clone()));
                    if at == 0 {
                        let copy = socket.try_clone().expect("a descriptor");
                        all.push((copy, b"more".to_vec()));
                    }
                    self.open.push(socket);
                }
            }
        }
        all
    }

    /// Has a descriptor sent with each of these messages. Lasthop is stopped meanwhile, so that it
    /// has the last copies of those that `send` has closed. Returns how many the system took.
    fn attack(&mut self, mut send: impl FnMut(&OwnedFd, &[u8]) -> bool) -> usize {
        let stopped = Stopped::new(&self.lasthop);
        let messages = self.connect();
        let sent = messages
            .iter()
            .filter(|(socket, bytes)| send(socket, bytes));
        let taken = sent.count();
        drop(stopped);
        taken
    }

    /// Fails unless everybody else is served, by the processes that were there in the beginning.
    #[track_caller]
    fn check(&mut self) {
        timed("the connected front end", || self.honest.get_features()).expect("an answer");
        let path = |name: &str| self.lasthop.socket(name);
        let new = || FrontEnd::connect(&path("other.sock"), ANSWER)?.get_features();
        timed("a new front end", new).expect("an answer");
        let page = timed("metrics", || scrape(&path("m.sock"))).expect("metrics");
        assert!(page.contains("lasthop_"), "{page}");
        let memif = || Dialog::connect(&self.found("mem").path, ANSWER)?.receive();
        let said = timed("a memif client", memif).expect("an answer");
        assert!(said.is_some());
        let end = || PipeEnd::register(&self.found("p").path, (0, MASTER), 0)?.answer();
        timed("an end of a pipe", end).expect("an answer");
        let now = timed("status", || pids(&self.lasthop));
        assert_eq!(now, self.pids, "{}", self.lasthop.log());
    }
}

/// All processes of Lasthop, stopped until this is dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn new(lasthop: &Running) -> Self {
        let mut all = vec![lasthop.supervisor()];
        all.extend(lasthop.children());
        let stopped = Self(all);
        stopped.signal(Signal::STOP);
        // A thread that runs stops at its next return to the program.
        wait_until("all threads stop", || {
            stopped.0.iter().all(|pid| has_stopped(*pid))
        });
        stopped
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            let pid = rustix::process::Pid::from_raw(*pid as i32).expect("a process id");
            rustix::process::kill_process(pid, signal).expect("it runs");
        }
    }
}

/// Returns whether all threads of a process are stopped (state `T`, proc_pid_stat(5)).
fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let stat = |thread: io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.expect("a thread").path().join("stat"))
    };
    let mut stats = threads.map(stat);
    stats.all(|stat| stat.is_ok_and(|stat| stat.contains(") T ")))
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The supervisor last: it would miss heartbeats.
        self.0.reverse();
        self.signal(Signal::CONT);
    }
}

/// Sends a trap, and closes this process's copy of it. What must stay open goes to `peers`.
fn spring(trap: Lingering, socket: &OwnedFd, bytes: &[u8], peers: &mut Vec<OwnedFd>) -> bool {
    let sent = send(socket, bytes, trap.fd());
    if sent {
        peers.extend(trap.into_peers());
    } else {
        trap.defuse();
    }
    sent
}

/// The processes with their numbers of restarts.
#[track_caller]
fn pids(lasthop: &Running) -> Vec<(String, u64)> {
    let status = lasthop.json("status");
    let all = status["processes"].as_array().expect("processes");
    let one = |process: &serde_json::Value| {
        assert_eq!(process["restarts"], 0, "{status}");
        let name = process["name"].as_str().expect("a name").to_owned();
        (name, process["pid"].as_u64().expect("a process id"))
    };
    all.iter().map(one).collect()
}

fn scrape(path: &Path) -> io::Result<String> {
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    socket.read_to_string(&mut page)?;
    Ok(page)
}

/// Whether this machine lets tests be several users and mount file systems.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("several users take root");
    }
    is_root
}

/// Whether the system knows `SO_PASSRIGHTS` (Linux 6.16).
fn refuses_rights() -> bool {
    let (socket, _) = UnixStream::pair().unwrap();
    let (number, no, len) = (std::os::fd::AsRawFd::as_raw_fd(&socket), 0_i32, 4);
    // SAFETY: the kernel reads four bytes.
    let failed =
        unsafe { libc::setsockopt(number, libc::SOL_SOCKET, 83, (&raw const no).cast(), len) };
    failed == 0
}

/// Sends many traps, of which Lasthop has the last copies. Returns their peers.
fn lingering(world: &mut World, doors: usize) -> Vec<OwnedFd> {
    let mut peers = Vec::new();
    let mut number = 0;
    let taken = world.attack(|socket, bytes| {
        number += 1;
        let trap = Lingering::new().unwrap();
        let trap = match number % 2 {
            0 => trap,
            _ => trap.queued().unwrap(),
        };
        spring(trap, socket, bytes, &mut peers)
    });
    assert_eq!(taken, doors * 2 * 3, "doors, users, messages");
    world.check();
    peers
}

#[test]
fn descriptors_that_linger_delay_nobody() {
    if !is_root() {
        return;
    }
    let mut world = World::start(&[]);
    // The API, metrics and the supervisor refuse descriptors at the sender.
    let doors = if refuses_rights() { 6 } else { 9 };
    let _peers = lingering(&mut world, doors);
    world.open.clear();
    world.check();
    world.lasthop.terminate();
}

#[test]
fn descriptors_that_linger_delay_nobody_where_no_socket_refuses_them() {
    if !is_root() {
        return;
    }
    let mut world = World::start(&[("LASTHOP_TEST_PASSES_RIGHTS", "1")]);
    let client = world.door("api.sock").connect().unwrap();
    let mut peers = Vec::new();
    let stopped = Stopped::new(&world.lasthop);
    let sent = spring(Lingering::new().unwrap(), &client, b"GET", &mut peers);
    assert!(sent, "as before Linux 6.16");
    drop(stopped);
    let _more = lingering(&mut world, 9);
    world.open.clear();
    world.check();
    world.lasthop.terminate();
}

/// S1: the supervisor has the last copy of a back-end channel that is replaced.
#[test]
fn a_backend_channel_that_holds_a_descriptor_delays_nobody() {
    if !is_root() {
        return;
    }
    let mut world = World::start(&[]);
    let path = world.lasthop.socket("free.sock");
    let front = FrontEnd::connect(&path, ANSWER).unwrap();
    let set = |channel: BorrowedFd<'_>| {
        let sent = front.send_raw(SET_BACKEND_REQ_FD, 9, 0, &[], &[channel]);
        sent.expect("a connection");
        let answer = front.receive().expect("an answer");
        answer.body.first().copied()
    };
    let mut peers = Vec::new();
    negotiate(&front);
    let full = Lingering::new().unwrap().queued().unwrap();
    let refused = set(full.fd());
    assert_ne!(refused, Some(0), "it holds something already");
    full.defuse();
    for _ in 0..3 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(set(theirs.as_fd()), Some(0));
        drop(theirs);
        assert!(spring(
            Lingering::new().unwrap(),
            &ours.into(),
            b"x",
            &mut peers
        ));
        world.check();
    }
    drop(front);
    world.check();
    world.lasthop.terminate();
}

/// Agrees on a back-end channel and acknowledgements.
fn negotiate(front: &FrontEnd) {
    let message = |code: u32, value: u64| {
        let body = value.to_le_bytes();
        front
            .send_raw(code, 1, 8, &body, &[])
            .expect("a connection");
    };
    // SET_FEATURES with PROTOCOL_FEATURES and VERSION_1; SET_PROTOCOL_FEATURES with REPLY_ACK and
    // BACKEND_REQ.
    message(2, 1 << 30 | 1 << 32);
    message(16, 1 << 3 | 1 << 5);
}

/// A file system whose daemon does not answer: each close of its file waits.
#[test]
fn a_file_system_that_does_not_answer_delays_nobody_and_a_killed_switch_is_given_up() {
    if !is_root() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return skipped("no /dev/fuse");
    }
    let mut world = World::start(&[]);
    let messages = world.connect();
    let borrowed = messages.iter();
    let borrowed = borrowed.map(|(socket, bytes)| (socket.as_fd(), &bytes[..]));
    let (stuck, sent) = match Stuck::send(&borrowed.collect::<Vec<_>>()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return skipped(format!("no file system can be mounted: {error}"));
        }
        mounted => mounted.expect("a file system"),
    };
    assert!(sent > 0);
    wait_until("closes that wait", || stuck.waiting() > 0);
    world.check();
    let clients = || {
        let log = world.lasthop.log();
        let lines = log.lines().filter(|line| line.contains("does not close"));
        let lines = lines.map(str::to_owned).collect::<Vec<_>>();
        [0, STRANGER].map(|user| {
            let user = format!(" user={user} ");
            lines.iter().any(|line| line.contains(&user))
        })
    };
    wait_until("lines that name the users", || clients() == [true; 2]);
    let first = world.lasthop.pid("switch");
    world.lasthop.kill_switch(Signal::KILL);
    let lasthop = &world.lasthop;
    // The end of a client's connection to the killed control is not seen before that is reaped.
    timed("another switch and control", || {
        wait_until("another switch and control", || {
            let log = lasthop.log();
            log.contains("switch restarted") && log.contains("control restarted")
        });
    });
    assert_ne!(lasthop.pid("switch"), first);
    let given_up = lasthop
        .try_process("switch (given up)")
        .expect("it is named");
    assert_eq!(given_up["pid"], first);
    assert!(
        lasthop
            .log()
            .contains("killed switch waits in the kernel: given up")
    );
    world
        .honest
        .get_features()
        .expect("its connection continues");
    // The processes that can be reaped end; the other is named.
    timed("SIGTERM", || {
        world.lasthop.signal(Signal::TERM);
        world.lasthop.wait();
    });
    let log = world.lasthop.log();
    assert!(log.contains("cannot be reaped: left behind"), "{log}");
    assert!(stuck.waiting() > 0, "no close was answered until here");
    stuck.release();
    // Its parent is now the init process, which may take a while to reap it.
    wait_until("the end of the first switch", || {
        let stat = std::fs::read_to_string(format!("/proc/{first}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
}
