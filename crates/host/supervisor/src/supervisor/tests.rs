//! Supervisor with idle control and switch; the tests send the requests of compromised ones.

use std::fmt::Debug;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use ipc::keeping::CRASH_RECORD_LEN;
use ipc::link::{Link, LinkEvent};
use ipc::names::SocketPath;
use ipc::sockets::{ADMIN_SOCKET, API_SOCKET};
use ipc::supervision::{
    ControlRequest, PortDriverRequest, SessionRequest, SocketAnswer, SocketDir, SocketRequest,
    SwitchRequest,
};
use port::PortId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::wait::LIMIT;

use super::hand_over_state::{HandOver, HandOverResult, Stage};
use super::*;
use crate::child::{ControlChild, SwitchChild};
use crate::hand_over;
use crate::kind::{Driver, Role};
use crate::paths::Paths;

mod in_switch;

struct World {
    supervisor: Supervisor,
    /// Ends of the links of control and switch.
    control: Link<ControlRequest, EventToControl>,
    switch: Link<SwitchRequest, EventToSwitch>,
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
    let (control, of_control) = ControlChild::idle();
    let (switch, of_switch) = SwitchChild::idle();
    of_control.set_nonblocking().unwrap();
    of_switch.set_nonblocking().unwrap();
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
            table: None,
            thread_slots: sys::file::fixed("test", CRASH_RECORD_LEN).unwrap(),
        },
        pair: Pair::new(control, switch),
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
    fn switch_requests(&mut self, request: &SwitchRequest) -> (EventToSwitch, Vec<OwnedFd>) {
        self.switch.send(request, &[]).unwrap();
        self.receive::<Switch>();
        answer(&mut self.switch)
    }

    /// Sends a request of control about sockets.
    fn control_requests(&mut self, request: SocketRequest) -> (SocketAnswer, Vec<OwnedFd>) {
        self.control.send(&request.into(), &[]).unwrap();
        self.receive::<Control>();
        match answer(&mut self.control) {
            (EventToControl::Sockets(answer), fds) => (answer, fds),
            other => panic!("{other:?}"),
        }
    }

    /// Has the supervisor receive the messages of a process of the serving pair.
    fn receive<R: InPair>(&mut self) {
        self.supervisor.receive::<R>(PairRef::Serving, MAX_MESSAGES);
    }

    /// Returns the error of a dial for a port.
    fn dial_error(&mut self, port: PortId) -> String {
        let (event, fds) = self.switch_requests(&SwitchRequest::Dial { port });
        assert!(fds.is_empty(), "{event:?}");
        match event {
            EventToSwitch::Dialed { error, .. } => error.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the death of a process of the serving pair.
    fn dies<R: InPair>(&mut self) {
        let child = self.supervisor.child::<R>(PairRef::Serving).unwrap();
        assert!(child.dies_by(Instant::now() + LIMIT), "it lives");
    }
}

fn answer<Out, In>(link: &mut Link<Out, In>) -> (In, Vec<OwnedFd>)
where
    Out: Serialize,
    In: DeserializeOwned + Debug,
{
    match link.recv().unwrap() {
        LinkEvent::Message(event, fds) => {
            let fds = fds.into_iter().map(ForeignFd::vouch);
            (event, fds.collect())
        }
        other => panic!("{other:?}"),
    }
}

fn socket(path: &str) -> SocketPath {
    path.parse().unwrap()
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
    assert!(world.dial_error(port).contains("registered"));
    assert!(vm.accept().is_err(), "no connection");
    let dials = SocketRequest::Dials(vec![(port, socket("vm.sock"))]);
    let (sent, _) = world.control_requests(dials);
    assert_eq!(sent, SocketAnswer::Dials { error: None });
    assert!(world.dial_error(PortId(2)).contains("registered"));
    assert!(vm.accept().is_err(), "no connection");
    let (sent, fds) = world.switch_requests(&SwitchRequest::Dial { port });
    let path = "vm.sock".to_owned();
    let error = None;
    assert_eq!(
        (sent, fds.len()),
        (EventToSwitch::Dialed { port, path, error }, 1)
    );
    vm.accept().unwrap();
    // A path that is not permitted changes nothing.
    for path in ["../x", "/run/docker.sock", API_SOCKET, ADMIN_SOCKET] {
        let dials = SocketRequest::Dials(vec![(port, socket(path))]);
        let (sent, _) = world.control_requests(dials);
        assert!(
            matches!(sent, SocketAnswer::Dials { error: Some(_) }),
            "{path}"
        );
    }
    assert_eq!(world.supervisor.sockets.dialled(port), Some("vm.sock"));
}

/// The requests of another kind of process are no messages: their senders are killed.
#[test]
fn a_request_of_another_kind_is_malformed() {
    let dials = SocketRequest::Dials(vec![(PortId(1), socket("vm.sock"))]);
    let listen = SocketRequest::Listen {
        path: socket("vm.sock"),
    };
    let driver = PortDriverRequest::Set(Vec::new());
    for request in [
        ControlRequest::from(dials),
        listen.into(),
        driver.into(),
        ControlRequest::Processes,
    ] {
        let mut world = world();
        let copy = world.switch.as_fd().try_clone_to_owned().unwrap();
        let forger: Link<ControlRequest, EventToControl> = Link::new(copy);
        forger.send(&request, &[]).unwrap();
        world.receive::<Switch>();
        world.dies::<Switch>();
        assert_eq!(world.supervisor.sockets.dialled(PortId(1)), None);
        assert!(!world.root.path().join("vm.sock").exists());
    }
    let mut world = world();
    let copy = world.control.as_fd().try_clone_to_owned().unwrap();
    let forger: Link<SwitchRequest, EventToSwitch> = Link::new(copy);
    let request = SwitchRequest::Dial { port: PortId(1) };
    forger.send(&request, &[]).unwrap();
    world.receive::<Control>();
    world.dies::<Control>();
}

#[test]
fn control_gets_none_of_our_own_sockets() {
    let mut world = world();
    for name in [API_SOCKET, ADMIN_SOCKET] {
        for path in [name.to_owned(), format!("./{name}"), world.path(name)] {
            let listen = SocketRequest::Listen {
                path: socket(&path),
            };
            let (sent, fds) = world.control_requests(listen);
            assert!(fds.is_empty(), "{path}");
            assert!(
                matches!(sent, SocketAnswer::Listening { error: Some(_), .. }),
                "{path}"
            );
            let unlisten = SocketRequest::Unlisten {
                path: socket(&path),
            };
            world.control.send(&unlisten.into(), &[]).unwrap();
            world.receive::<Control>();
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
    let request = SwitchRequest::Dial { port: PortId(1) };
    let deadline = Instant::now() + LIMIT;
    // The replies are not read.
    while world.supervisor.pair.switch.has_died().is_none() {
        assert!(Instant::now() < deadline, "it lives");
        // A killed process has no link any longer.
        let _ = world.switch.send(&request, &[]);
        world.receive::<Switch>();
    }
    let sent = world.supervisor.pair.switch.send(&Switch::STOP, &[]);
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_oversized_request_kills_the_process_before_it_is_parsed() {
    let mut world = world();
    let port = PortId(1);
    let request = SwitchRequest::Sessions(SessionRequest::StoreSession {
        port,
        record: Vec::new(),
        numbers: vec![0; 8 << 20],
    });
    world.switch.send(&request, &[]).unwrap();
    world.receive::<Switch>();
    world.dies::<Switch>();
    assert_eq!(world.supervisor.saved_sessions.generation(), 0);
}

#[test]
fn a_flooding_process_gets_one_turn() {
    let mut world = world();
    for _ in 0..MAX_MESSAGES + 3 {
        world.switch.send(&SwitchRequest::Heartbeat, &[]).unwrap();
    }
    world.receive::<Switch>();
    let rest = std::iter::from_fn(|| world.supervisor.pair.switch.receive());
    assert_eq!(rest.count(), 3);
}

impl World {
    /// Has a process die, and the supervisor see it. Successors, which end at once here, are
    /// replaced by idle processes. Returns how often control and the switch count as restarted.
    fn sees_death_of<R: InPair>(&mut self) -> [u32; 2] {
        let child = self.supervisor.child::<R>(PairRef::Serving).unwrap();
        child.kill();
        self.dies::<R>();
        let before = self.pair().map(|child| child.pid);
        self.supervisor.restart_dead().unwrap();
        let [_, switch] = self.pair();
        if switch.pid != before[1] {
            self.switch = self.replace::<Switch>(switch.restarts);
        }
        if !self.supervisor.pair.control.is_alive() {
            // It was not started beside a switch that had ended.
            self.supervisor.restart_dead().unwrap();
        }
        let [control, _] = self.pair();
        if control.pid != before[0] {
            self.control = self.replace::<Control>(control.restarts);
        }
        [control.restarts, switch.restarts]
    }

    /// Replaces a process that ends by an idle one; returns the link of that.
    fn replace<R: InPair>(&mut self, restarts: u32) -> Link<R::Request, R::Event> {
        self.dies::<R>();
        let (idle, link) = Child::<R>::idle();
        let child = self.supervisor.child::<R>(PairRef::Serving).unwrap();
        *child = idle.restarted(restarts);
        link
    }

    fn pair(&self) -> [ProcessInfo; 2] {
        let pair = &self.supervisor.pair;
        [pair.control.info(), pair.switch.info()]
    }

    /// Closes the link of the switch, and the copies that processes of other tests have until they
    /// execute their programs.
    fn hang_up_switch(&self) {
        rustix::net::shutdown(&self.switch, rustix::net::Shutdown::Both).unwrap();
    }

    /// Has control report the loss of the switch, as its last message.
    fn control_reports_loss(&self) {
        let report = ControlRequest::SwitchGone;
        self.control.send(&report, &[]).unwrap();
    }
}

#[test]
fn a_death_of_the_switch_counts_there_in_whatever_order_the_ends_are_seen() {
    let mut world = world();
    world.control_reports_loss();
    assert_eq!(world.sees_death_of::<Control>(), [0, 0]);
    assert!(
        world.supervisor.pair.control.is_alive(),
        "it waits to be reaped"
    );
    assert_eq!(world.sees_death_of::<Switch>(), [0, 1]);
    assert_eq!(world.sees_death_of::<Control>(), [1, 1], "its own");

    let mut world = self::world();
    world.control_reports_loss();
    assert_eq!(world.sees_death_of::<Switch>(), [0, 1]);
    assert_eq!(world.sees_death_of::<Control>(), [0, 1]);
    assert_eq!(world.sees_death_of::<Control>(), [1, 1], "its own");
}

/// The sources of a wait, which returns at once while one of them is readable.
fn has_readable_source(pair: &Pair) -> bool {
    pair.sources().any(|source| {
        let now = Some(Instant::now());
        let ready = sys::wait::ready(source, rustix::event::PollFlags::IN, now);
        !ready.unwrap().is_empty()
    })
}

#[test]
fn a_loss_of_a_switch_that_does_not_end_is_a_failure_of_control() {
    let mut world = world();
    world.control_reports_loss();
    assert_eq!(world.sees_death_of::<Control>(), [0, 0]);
    let pair = &mut world.supervisor.pair;
    assert!(!has_readable_source(pair), "the supervisor sleeps");
    let until = pair.control.loss_due().unwrap();
    let end = pair.control.has_died();
    assert_eq!(pair.ended_first(end, until - Duration::from_nanos(1)), None);
    let (kind, _) = pair.ended_first(end, until).unwrap();
    assert_eq!(kind, Kind::Control);
    pair.control.reap().unwrap();
    assert_eq!(world.sees_death_of::<Switch>(), [1, 1]);
}

#[test]
fn an_end_of_control_counts_after_its_last_messages_only() {
    let mut world = world();
    let pair = &mut world.supervisor.pair;
    // It ends after the supervisor has looked for its end, with a report that nobody has received.
    let end = pair.control.has_died();
    assert_eq!(end, None);
    world.control_reports_loss();
    world.supervisor.pair.control.kill();
    world.dies::<Control>();
    assert_eq!(world.supervisor.pair.ended_first(end, Instant::now()), None);
    assert_eq!(world.sees_death_of::<Switch>(), [0, 1]);
}

#[test]
fn a_start_fails_because_of_the_switch_although_control_ends_first() {
    let mut world = world();
    world.supervisor.ready = false;
    world.control_reports_loss();
    assert_eq!(world.sees_death_of::<Control>(), [0, 0]);
    world.supervisor.pair.switch.kill();
    world.dies::<Switch>();
    let error = world.supervisor.restart_dead().unwrap_err().to_string();
    assert!(error.starts_with("switch ended (signal: 9"), "{error}");
}

/// Ends of the links of a pair.
type Links = (
    Link<ControlRequest, EventToControl>,
    Link<SwitchRequest, EventToSwitch>,
);

impl World {
    /// Begins a hand-over to an idle pair; returns its ends of the links.
    fn begin_hand_over(&mut self, stage: Stage) -> Links {
        let (control, of_control) = ControlChild::idle();
        let (switch, of_switch) = SwitchChild::idle();
        self.supervisor.hand_over.next = Some(HandOver {
            pair: Pair::new(control, switch),
            stage,
            deadline: Instant::now() + LIMIT,
            asked_to_prepare: false,
            quiesced_at_ns: 0,
            milestone: None,
            table: None,
        });
        (of_control, of_switch)
    }

    /// Has a process end, and the supervisor see it; returns the error of a hand-over that fails.
    fn hand_over_sees_death_of<R: InPair>(&mut self, pair: PairRef) -> Option<String> {
        let child = self.supervisor.child::<R>(pair).unwrap();
        child.kill();
        assert!(child.dies_by(Instant::now() + LIMIT), "it lives");
        hand_over::poll(&mut self.supervisor);
        match self.supervisor.hand_over.result.take()? {
            HandOverResult::Failed(error) => Some(error.to_string()),
            HandOverResult::Done { .. } => Some("done".to_owned()),
        }
    }
}

#[test]
fn a_hand_over_fails_because_of_the_switch_although_control_ends_first() {
    for stage in [Stage::Preparing, Stage::TakingOver] {
        let mut world = world();
        let (control, _switch) = world.begin_hand_over(stage);
        control.send(&ControlRequest::SwitchGone, &[]).unwrap();
        let early = world.hand_over_sees_death_of::<Control>(PairRef::Next);
        assert_eq!(early, None, "{stage:?}");
        let error = world.hand_over_sees_death_of::<Switch>(PairRef::Next);
        let expected = "the new switch ended (signal: 9 (SIGKILL))";
        assert_eq!(error.as_deref(), Some(expected), "{stage:?}");
    }
    let mut world = world();
    let _links = world.begin_hand_over(Stage::Preparing);
    world.control_reports_loss();
    let early = world.hand_over_sees_death_of::<Control>(PairRef::Serving);
    assert_eq!(early, None);
    let error = world.hand_over_sees_death_of::<Switch>(PairRef::Serving);
    let expected = "the old switch ended (signal: 9 (SIGKILL))";
    assert_eq!(error.as_deref(), Some(expected));
}

#[test]
fn a_hand_over_fails_because_of_a_control_that_ended_by_itself() {
    let mut world = world();
    let _links = world.begin_hand_over(Stage::Preparing);
    let error = world.hand_over_sees_death_of::<Control>(PairRef::Next);
    let expected = "the new control ended (signal: 9 (SIGKILL))";
    assert_eq!(error.as_deref(), Some(expected));
}

#[test]
fn an_old_switch_that_dies_when_it_quiesces_is_succeeded_although_control_ends_first() {
    let mut world = world();
    let _links = world.begin_hand_over(Stage::Quiescing);
    world.control_reports_loss();
    let early = world.hand_over_sees_death_of::<Control>(PairRef::Serving);
    assert_eq!(early, None);
    world.hand_over_sees_death_of::<Switch>(PairRef::Serving);
    assert!(world.supervisor.hand_over.is_at(Stage::TakingOver));
}

#[test]
fn a_control_that_died_by_itself_counts_although_the_switch_dies_then() {
    let mut world = world();
    assert_eq!(world.sees_death_of::<Control>(), [1, 0]);
    assert_eq!(world.sees_death_of::<Switch>(), [1, 1]);
}

#[test]
fn control_is_not_started_beside_a_switch_whose_descriptors_are_closed() {
    let mut world = world();
    assert!(world.supervisor.switch_runs());
    // The system closes them before the wait status is there.
    world.hang_up_switch();
    world
        .supervisor
        .receive::<Switch>(PairRef::Serving, MAX_MESSAGES);
    assert!(!world.supervisor.switch_runs());
}

#[test]
fn a_control_that_cannot_be_linked_with_a_dying_switch_counts_once() {
    let mut world = world();
    // That its link is closed is not seen yet.
    world.hang_up_switch();
    world.supervisor.pair.control.kill();
    world.dies::<Control>();
    world.supervisor.restart_dead().unwrap();
    assert_eq!(world.pair().map(|child| child.restarts), [1, 0]);
    world.dies::<Control>();
    assert_eq!(world.sees_death_of::<Switch>(), [1, 1]);
}

#[test]
fn a_replaced_process_passes_on_its_restarts_and_its_death() {
    let restarts = |child: &SwitchChild| child.info().restarts;
    for (excused, expected) in [(false, 3), (true, 2)] {
        let mut before = SwitchChild::idle().0.restarted(2);
        let mut next = SwitchChild::idle().0;
        next.take_place_of(&before);
        assert_eq!(restarts(&next), 2, "it lives");
        if excused {
            before.excuse_end();
        }
        before.kill();
        assert!(before.dies_by(Instant::now() + LIMIT));
        before.reap().unwrap();
        next.take_place_of(&before);
        assert_eq!(restarts(&next), expected);
    }
}

#[test]
fn a_driver_that_has_done_its_work_counts_as_no_death() {
    fn restarts_after_success<R: Role>() -> u32 {
        let nothing = Binaries::of_nothing();
        // It ends with status 0.
        let mut child = Child::<R>::start(&nothing).unwrap();
        assert!(child.dies_by(Instant::now() + LIMIT));
        child.reap().unwrap();
        assert!(child.restart_if_due(&nothing));
        assert!(child.dies_by(Instant::now() + LIMIT));
        child.info().restarts
    }
    assert_eq!(restarts_after_success::<Driver>(), 0);
    assert_eq!(restarts_after_success::<Control>(), 1);
}

/// Requests the table of connections; returns the answer, and the descriptors of control and the
/// switch.
fn table(world: &mut World, bytes: u64) -> Result<(OwnedFd, OwnedFd), String> {
    let request = ControlRequest::ConnectionTable { bytes };
    world.control.send(&request, &[]).unwrap();
    world.receive::<Control>();
    let (EventToControl::ConnectionTable(made), mut fds) = answer(&mut world.control) else {
        panic!("another answer");
    };
    made?;
    let (EventToSwitch::ConnectionTable, mut of_switch) = answer(&mut world.switch) else {
        panic!("another event");
    };
    Ok((fds.pop().unwrap(), of_switch.pop().unwrap()))
}

#[test]
fn the_table_is_made_once_for_the_switch_and_control_reads_it() {
    let mut world = world();
    let (reader, file) = table(&mut world, 1 << 20).unwrap();
    rustix::io::pwrite(&file, b"abc", 0).unwrap();
    assert!(rustix::io::pwrite(&reader, b"x", 0).is_err());
    // The next control, or the next switch, has the same.
    let (reader, file) = table(&mut world, 1 << 20).unwrap();
    for fd in [reader, file] {
        let mut found = [0; 3];
        rustix::io::pread(&fd, &mut found, 0).unwrap();
        assert_eq!(&found, b"abc");
    }
    let refused = table(&mut world, 1 << 21).unwrap_err();
    assert_eq!(
        refused,
        "there is one already, and it has not 2097152 bytes"
    );
}

#[test]
fn a_refused_table_leaves_none() {
    let mut world = world();
    let refused = table(&mut world, u64::MAX).unwrap_err();
    assert!(
        refused.ends_with("are more than any table has"),
        "{refused}"
    );
    assert!(world.supervisor.setup.table.is_none());
    table(&mut world, 1 << 20).unwrap();
}

#[test]
fn a_new_pair_with_another_layout_has_a_table_of_its_own() {
    let mut world = world();
    table(&mut world, 1 << 20).unwrap();
    let ((control, mut of_control), (switch, mut of_switch)) =
        (ControlChild::idle(), SwitchChild::idle());
    world.supervisor.hand_over.next = Some(hand_over_state::HandOver {
        pair: Pair::new(control, switch),
        table: None,
        stage: hand_over_state::Stage::Preparing,
        deadline: Instant::now(),
        asked_to_prepare: false,
        quiesced_at_ns: 0,
        milestone: None,
    });
    for (bytes, is_own) in [(1 << 20, false), (1 << 21, true), (1 << 21, true)] {
        let request = ControlRequest::ConnectionTable { bytes };
        of_control.send(&request, &[]).unwrap();
        world
            .supervisor
            .receive::<Control>(PairRef::Next, MAX_MESSAGES);
        let (event, _) = answer(&mut of_control);
        assert_eq!(event, EventToControl::ConnectionTable(Ok(())));
        let (_, fds) = answer(&mut of_switch);
        assert_eq!(sys::file::len(&fds[0]).unwrap(), bytes);
        let next = world.supervisor.hand_over.next.as_ref().unwrap();
        assert_eq!(next.table.is_some(), is_own);
    }
    assert!(world.supervisor.setup.table.as_ref().unwrap().has(1 << 20));
}
