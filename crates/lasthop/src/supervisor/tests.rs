//! A supervisor whose control and switch do nothing; what they would ask, if somebody had taken them over, is asked here.

use std::os::unix::net::{UnixListener, UnixStream};

use api::v1::WantedState;
use channel::files;
use channel::keeping::MARKS;
use channel::link::{Link, Received};
use control::wanted::{ADMIN_SOCKET, API_SOCKET};
use port::PortId;

use super::paths::Paths;
use super::*;

const SOON: Duration = Duration::from_secs(20);

struct World {
    supervisor: Supervisor,
    /// Their ends of their links.
    control: Link<Ask, Tell>,
    switch: Link<Ask, Tell>,
    /// The last that is dropped.
    root: tempfile::TempDir,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().canonicalize().unwrap();
    let paths = Paths::of(&dir, &dir, &WantedState::default());
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
        config: None,
        reload: Reload::default(),
        sockets,
        drivers: Drivers::default(),
        api,
        state: StateFile::create().unwrap(),
        counters: files::fixed("test", 4096).unwrap(),
        marks: files::fixed("test", MARKS).unwrap(),
        deposits: Deposits::default(),
        guests: Guests::default(),
        events: Untold::default(),
        settings: SwitchSettings::default(),
        control,
        switch,
        started: Instant::now(),
        ready: true,
        admin,
        upgrade: None,
        next: None,
        handed: None,
        lock: Lock::take(&dir).unwrap(),
        runtime_dir: dir,
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

    /// The switch asks; the answer, with its descriptors.
    fn switch_asks(&mut self, ask: &Ask) -> (Tell, Vec<OwnedFd>) {
        self.switch.send(ask, &[]).unwrap();
        self.supervisor.hear(SWITCH, MESSAGES).unwrap();
        answer(&mut self.switch)
    }

    /// Control asks.
    fn control_asks(&mut self, ask: &Ask) -> (Tell, Vec<OwnedFd>) {
        self.control.send(ask, &[]).unwrap();
        self.supervisor.hear(CONTROL, MESSAGES).unwrap();
        answer(&mut self.control)
    }

    /// Why a dial for a port comes to nothing.
    fn undialled(&mut self, ask: &Ask) -> String {
        let (tell, fds) = self.switch_asks(ask);
        assert!(fds.is_empty(), "{tell:?}");
        match tell {
            Tell::Dialed { error, .. } => error.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the death of a child.
    fn dies(&mut self, who: Who) {
        let child = self.supervisor.child(who).unwrap();
        assert!(child.dies_by(Instant::now() + SOON), "it lives");
    }
}

fn answer(link: &mut Link<Ask, Tell>) -> (Tell, Vec<OwnedFd>) {
    match link.recv().unwrap() {
        Received::Message(tell, fds) => (tell, fds),
        other => panic!("{other:?}"),
    }
}

fn listener(path: &str) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

#[test]
fn the_switch_is_connected_where_control_has_said_and_nowhere_else() {
    let mut world = world();
    let (port, path) = (PortId(1), world.path("vm.sock"));
    let vm = listener(&path);
    let admin = world.path(ADMIN_SOCKET);
    assert!(world.undialled(&Ask::Dial { port }).contains("registered"));
    for path in [
        path.clone(),
        "../x".to_owned(),
        "api.sock".to_owned(),
        admin,
    ] {
        let ask = Ask::DialPath { port, path };
        assert!(world.undialled(&ask).contains("not registered"), "{ask:?}");
    }
    assert!(vm.accept().is_err(), "nobody has connected");
    let dials = Ask::Dials(vec![(port, "vm.sock".to_owned())]);
    let (told, _) = world.control_asks(&dials);
    assert_eq!(told, Tell::Dials { error: None });
    assert!(
        world
            .undialled(&Ask::Dial { port: PortId(2) })
            .contains("registered")
    );
    assert!(vm.accept().is_err(), "nobody has connected");
    for ask in [
        Ask::Dial { port },
        Ask::DialPath {
            port,
            path: "vm.sock".to_owned(),
        },
    ] {
        let (told, fds) = world.switch_asks(&ask);
        let path = "vm.sock".to_owned();
        let error = None;
        assert_eq!((told, fds.len()), (Tell::Dialed { port, path, error }, 1));
        vm.accept().unwrap();
    }
    // What may not be registered leaves all as it was.
    for path in ["../x", "/run/docker.sock", API_SOCKET, ADMIN_SOCKET] {
        let (told, _) = world.control_asks(&Ask::Dials(vec![(port, path.to_owned())]));
        assert!(matches!(told, Tell::Dials { error: Some(_) }), "{path}");
    }
    assert_eq!(world.supervisor.sockets.dialled(port), Some("vm.sock"));
}

#[test]
fn who_asks_for_what_is_not_its_own_is_ended() {
    let mut world = world();
    let dials = Ask::Dials(vec![(PortId(1), "vm.sock".to_owned())]);
    world.switch.send(&dials, &[]).unwrap();
    world.supervisor.hear(SWITCH, MESSAGES).unwrap();
    world.dies(SWITCH);
    assert_eq!(world.supervisor.sockets.dialled(PortId(1)), None);
}

#[test]
fn control_gets_none_of_our_own_sockets() {
    let mut world = world();
    for name in [API_SOCKET, ADMIN_SOCKET] {
        for path in [name.to_owned(), format!("./{name}"), world.path(name)] {
            let (told, fds) = world.control_asks(&Ask::Listen { path: path.clone() });
            assert!(fds.is_empty(), "{path}");
            assert!(
                matches!(told, Tell::Listening { error: Some(_), .. }),
                "{path}"
            );
            world.control.send(&Ask::Unlisten { path }, &[]).unwrap();
            world.supervisor.hear(CONTROL, MESSAGES).unwrap();
        }
    }
    let stream = UnixStream::connect(world.path(ADMIN_SOCKET)).unwrap();
    assert!(world.supervisor.admin.hear().is_empty());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut line).unwrap();
    assert!(line.contains("no process of Lasthop"), "it answers: {line}");
    assert!(UnixStream::connect(world.path(API_SOCKET)).is_ok());
}

#[test]
fn who_does_not_listen_is_killed_and_not_waited_for() {
    let mut world = world();
    let ask = Ask::Dial { port: PortId(1) };
    let deadline = Instant::now() + SOON;
    // Nobody reads the answers.
    while world.supervisor.switch.has_died().is_none() {
        assert!(Instant::now() < deadline, "it lives");
        // One that is killed has no link any more.
        let _ = world.switch.send(&ask, &[]);
        world.supervisor.hear(SWITCH, MESSAGES).unwrap();
    }
    let told = world.supervisor.switch.tell(&Tell::Stop, &[]);
    assert_eq!(told.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn who_asks_at_length_is_ended_before_it_is_understood() {
    let mut world = world();
    let path = "x".repeat(100_000);
    world.control.send(&Ask::Listen { path }, &[]).unwrap();
    world.supervisor.hear(CONTROL, MESSAGES).unwrap();
    world.dies(CONTROL);
    let port = PortId(1);
    let ask = Ask::KeepRecord {
        port,
        record: Vec::new(),
        numbers: vec![0; 8 << 20],
    };
    world.switch.send(&ask, &[]).unwrap();
    world.supervisor.hear(SWITCH, MESSAGES).unwrap();
    world.dies(SWITCH);
    assert_eq!(world.supervisor.deposits.turnover(), 0);
}

#[test]
fn who_never_stops_is_heard_for_a_turn_only() {
    let mut world = world();
    for _ in 0..MESSAGES + 3 {
        world.switch.send(&Ask::Alive, &[]).unwrap();
    }
    world.supervisor.hear(SWITCH, MESSAGES).unwrap();
    let rest = std::iter::from_fn(|| world.supervisor.switch.hear());
    assert_eq!(rest.count(), 3);
}
