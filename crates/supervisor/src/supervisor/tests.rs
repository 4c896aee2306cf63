//! Supervisor with idle control and switch; the tests send the requests of compromised ones.

use std::os::unix::net::{UnixListener, UnixStream};

use channel::keeping::CRASH_RECORD_LEN;
use channel::link::{Link, Received};
use channel::sockets::{ADMIN_SOCKET, API_SOCKET};
use channel::supervision::SocketDir;
use port::PortId;
use testkit::wait::LIMIT;

use super::*;
use crate::paths::Paths;

struct World {
    supervisor: Supervisor,
    /// Ends of the links of control and switch.
    control: Link<SupervisorRequest, SupervisorEvent>,
    switch: Link<SupervisorRequest, SupervisorEvent>,
    /// Dropped last.
    root: tempfile::TempDir,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().canonicalize().unwrap();
    let dirs = vec![SocketDir {
        path: dir.display().to_string(),
        below: true,
    }];
    let paths = Paths::of(&dir, dirs);
    let mut sockets = Sockets::new(paths);
    let api = sockets.listen_for_owner(API_SOCKET).unwrap();
    let admin = Admin::new(sockets.listen_for_owner(ADMIN_SOCKET).unwrap()).unwrap();
    sockets.settled();
    let [(control, of_control), (switch, of_switch)] =
        [Kind::Control, Kind::Switch].map(Child::idle);
    for link in [&of_control, &of_switch] {
        link.set_nonblocking().unwrap();
    }
    let supervisor = Supervisor {
        binaries: Binaries::of_nothing(),
        reload: Reload::default(),
        sockets,
        drivers: Drivers::default(),
        saved_sessions: SavedSessions::default(),
        guests: Guests::default(),
        events: PendingEvents::default(),
        setup: Setup {
            settings: SwitchSettings::default(),
            state: StateFile::create().unwrap(),
            counters: sys::file::fixed("test", 4096).unwrap(),
            thread_slots: sys::file::fixed("test", CRASH_RECORD_LEN).unwrap(),
        },
        pair: Pair { control, switch },
        started: Instant::now(),
        ready: true,
        admin,
        upgrade: None,
        hand_over: HandOvers::default(),
        home: Home {
            lock: Lock::take(&dir).unwrap(),
            api,
            dir,
        },
    };
    World {
        supervisor,
        control: of_control,
        switch: of_switch,
        root,
    }
}

impl World {
    fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    /// Sends a request of the switch; returns the reply with its descriptors.
    fn switch_requests(&mut self, request: &SupervisorRequest) -> (SupervisorEvent, Vec<OwnedFd>) {
        self.switch.send(request, &[]).unwrap();
        self.supervisor.receive(SWITCH, MAX_MESSAGES).unwrap();
        answer(&mut self.switch)
    }

    /// Sends a request of control.
    fn control_requests(&mut self, request: &SupervisorRequest) -> (SupervisorEvent, Vec<OwnedFd>) {
        self.control.send(request, &[]).unwrap();
        self.supervisor.receive(CONTROL, MAX_MESSAGES).unwrap();
        answer(&mut self.control)
    }

    /// Returns the error of a dial for a port.
    fn dial_error(&mut self, request: &SupervisorRequest) -> String {
        let (event, fds) = self.switch_requests(request);
        assert!(fds.is_empty(), "{event:?}");
        match event {
            SupervisorEvent::Dialed { error, .. } => error.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the death of a child.
    fn dies(&mut self, process: ProcessRef) {
        let child = self.supervisor.child(process).unwrap();
        assert!(child.dies_by(Instant::now() + LIMIT), "it lives");
    }
}

fn answer(link: &mut Link<SupervisorRequest, SupervisorEvent>) -> (SupervisorEvent, Vec<OwnedFd>) {
    match link.recv().unwrap() {
        Received::Message(event, fds) => {
            let fds = fds.into_iter().map(sys::foreign::ForeignFd::vouch);
            (event, fds.collect())
        }
        other => panic!("{other:?}"),
    }
}

fn listener(path: &str) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

#[test]
fn the_switch_dials_registered_paths_only() {
    let mut world = world();
    let (port, path) = (PortId(1), world.path("vm.sock"));
    let vm = listener(&path);
    assert!(
        world
            .dial_error(&SupervisorRequest::Dial { port })
            .contains("registered")
    );
    assert!(vm.accept().is_err(), "no connection");
    let dials = SupervisorRequest::Dials(vec![(port, "vm.sock".to_owned())]);
    let (sent, _) = world.control_requests(&dials);
    assert_eq!(sent, SupervisorEvent::Dials { error: None });
    assert!(
        world
            .dial_error(&SupervisorRequest::Dial { port: PortId(2) })
            .contains("registered")
    );
    assert!(vm.accept().is_err(), "no connection");
    let (sent, fds) = world.switch_requests(&SupervisorRequest::Dial { port });
    let path = "vm.sock".to_owned();
    let error = None;
    assert_eq!(
        (sent, fds.len()),
        (SupervisorEvent::Dialed { port, path, error }, 1)
    );
    vm.accept().unwrap();
    // A path that is not permitted changes nothing.
    for path in ["../x", "/run/docker.sock", API_SOCKET, ADMIN_SOCKET] {
        let (sent, _) =
            world.control_requests(&SupervisorRequest::Dials(vec![(port, path.to_owned())]));
        assert!(
            matches!(sent, SupervisorEvent::Dials { error: Some(_) }),
            "{path}"
        );
    }
    assert_eq!(world.supervisor.sockets.dialled(port), Some("vm.sock"));
}

#[test]
fn a_request_of_another_kind_kills_the_process() {
    let mut world = world();
    let dials = SupervisorRequest::Dials(vec![(PortId(1), "vm.sock".to_owned())]);
    world.switch.send(&dials, &[]).unwrap();
    world.supervisor.receive(SWITCH, MAX_MESSAGES).unwrap();
    world.dies(SWITCH);
    assert_eq!(world.supervisor.sockets.dialled(PortId(1)), None);
}

#[test]
fn control_gets_none_of_our_own_sockets() {
    let mut world = world();
    for name in [API_SOCKET, ADMIN_SOCKET] {
        for path in [name.to_owned(), format!("./{name}"), world.path(name)] {
            let (sent, fds) =
                world.control_requests(&SupervisorRequest::Listen { path: path.clone() });
            assert!(fds.is_empty(), "{path}");
            assert!(
                matches!(sent, SupervisorEvent::Listening { error: Some(_), .. }),
                "{path}"
            );
            world
                .control
                .send(&SupervisorRequest::Unlisten { path }, &[])
                .unwrap();
            world.supervisor.receive(CONTROL, MAX_MESSAGES).unwrap();
        }
    }
    let stream = UnixStream::connect(world.path(ADMIN_SOCKET)).unwrap();
    assert!(world.supervisor.admin.receive().is_empty());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut line).unwrap();
    assert!(
        line.contains("permission denied for processes of Lasthop"),
        "it answers: {line}"
    );
    assert!(UnixStream::connect(world.path(API_SOCKET)).is_ok());
}

#[test]
fn a_process_with_a_full_link_is_killed_without_waiting() {
    let mut world = world();
    let request = SupervisorRequest::Dial { port: PortId(1) };
    let deadline = Instant::now() + LIMIT;
    // The replies are not read.
    while world.supervisor.pair.switch.has_died().is_none() {
        assert!(Instant::now() < deadline, "it lives");
        // A killed process has no link any longer.
        let _ = world.switch.send(&request, &[]);
        world.supervisor.receive(SWITCH, MAX_MESSAGES).unwrap();
    }
    let sent = world
        .supervisor
        .pair
        .switch
        .send(&SupervisorEvent::Stop, &[]);
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_oversized_request_kills_the_process_before_it_is_parsed() {
    let mut world = world();
    let path = "x".repeat(100_000);
    world
        .control
        .send(&SupervisorRequest::Listen { path }, &[])
        .unwrap();
    world.supervisor.receive(CONTROL, MAX_MESSAGES).unwrap();
    world.dies(CONTROL);
    let port = PortId(1);
    let request = SupervisorRequest::StoreSession {
        port,
        record: Vec::new(),
        numbers: vec![0; 8 << 20],
    };
    world.switch.send(&request, &[]).unwrap();
    world.supervisor.receive(SWITCH, MAX_MESSAGES).unwrap();
    world.dies(SWITCH);
    assert_eq!(world.supervisor.saved_sessions.generation(), 0);
}

#[test]
fn a_flooding_process_gets_one_turn() {
    let mut world = world();
    for _ in 0..MAX_MESSAGES + 3 {
        world
            .switch
            .send(&SupervisorRequest::Heartbeat, &[])
            .unwrap();
    }
    world.supervisor.receive(SWITCH, MAX_MESSAGES).unwrap();
    let rest = std::iter::from_fn(|| world.supervisor.pair.switch.receive());
    assert_eq!(rest.count(), 3);
}
