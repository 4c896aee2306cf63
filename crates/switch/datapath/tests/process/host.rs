//! The switch process in a thread, with a supervisor and a control around it.
//!
//! Control answers every upcall with `policy`: port `n` is an access port of one segment, and test
//! guest `n` is behind it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ipc::driving::{BackEnd, InterfaceStart};
use ipc::keeping::{CRASH_RECORD_LEN, SOCKET};
use ipc::link::{self, Link, LinkEvent};
use ipc::records::{Answer, SourceRole, StaleFlows, Upcall};
use ipc::shared::{self, Region};
use ipc::supervision::{EventToSwitch, SessionRequest, SwitchRequest, SwitchSettings};
use ipc::switching::{
    Clients, Iommu, PortConfig, PortPhase, PortState, Request, Role, StationUse, SwitchCommand,
    SwitchEvent, SwitchFigures,
};
use policy::{Model, PortMode, Program, Segment, SegmentId, decide};
use port::PortId;
use port::counters::{Counters, PortCounts, SIZE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{SendFlags, Shutdown};
use sys::foreign::ForeignFd;
use tempfile::TempDir;
use testkit::{FakeGuest, GuestConfig};
use wire::MacAddr;

pub(crate) use testkit::wait::{LIMIT, wait_until as wait_for};

const LAN: SegmentId = SegmentId(1);

/// The neighbour lookup of control: test guest `n` is behind port `n`.
fn neighbour(_: SegmentId, mac: MacAddr) -> Option<PortId> {
    let n = (1..=200u8).find(|n| testkit::packets::mac(*n) == mac.0)?;
    Some(PortId(u32::from(n)))
}

/// The thread that answers upcalls.
struct Answering {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    fn start(
        mut upcalls: shared::Receiver,
        answers: Arc<Mutex<shared::Sender>>,
        program: Arc<Mutex<Program>>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(SeqCst) {
                while let Some(upcall) = upcalls.recv::<Upcall>().expect("a sound ring") {
                    let program = program.lock().expect("no panic").clone();
                    let mut answers = answers.lock().expect("no panic");
                    assert!(
                        answers.send(&answer(&program, &upcall)),
                        "room for an answer"
                    );
                    answers.ring_bell();
                }
                if upcalls.prepare_sleep() {
                    readable(&upcalls, Duration::from_millis(20));
                    upcalls.rang();
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn answer(program: &Program, upcall: &Upcall) -> Answer {
    let key = upcall.flow_key();
    let decision = decide(program, &neighbour, &key);
    Answer::Install {
        upcall: Some(upcall.id),
        key: *key.masked(&decision.mask).words(),
        mask: *decision.mask.words(),
        action: decision.action,
        segment: decision.segment,
        source: match decision.learn {
            Some(_) => SourceRole::Holder,
            None => SourceRole::Unlearned,
        },
        class: decision.class,
        connection: decision.connection,
        except: decision.excluded().collect(),
        rules: Vec::new(),
        epoch: program.epoch(),
    }
}

fn readable(fd: impl AsFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let limit = Timespec::try_from(timeout).expect("a short time");
    poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
}

/// Control's side: the link, and the thread that decides upcalls.
struct Control {
    link: Link<Request, SwitchEvent>,
    answers: Arc<Mutex<shared::Sender>>,
    _answering: Answering,
}

/// The switch process under test, with its supervisor and control.
pub(crate) struct Host {
    pub(crate) dir: TempDir,
    supervisor: Link<EventToSwitch, SwitchRequest>,
    control: Option<Control>,
    counters: Counters,
    program: Arc<Mutex<Program>>,
    ports: BTreeMap<u32, PortConfig>,
    number: u64,
    /// Phases that the switch reported by itself.
    pub(crate) phases: Vec<(PortId, PortPhase, Option<String>)>,
    uses: Vec<StationUse>,
    states: Vec<PortState>,
    figures: SwitchFigures,
    switch: Option<JoinHandle<io::Result<()>>>,
    dialer: Option<JoinHandle<()>>,
    /// The supervisor delays dropping saved sessions.
    pub(crate) slow: Arc<AtomicBool>,
    /// The sockets that the supervisor dials, by port.
    dials: Dials,
    /// Interfaces that are the answers to dials instead.
    interfaces: Interfaces,
}

type Dials = Arc<Mutex<BTreeMap<PortId, String>>>;

/// Interfaces of ports, as the supervisor has them, and the requests about them; also the
/// milestones of a hand-over.
#[derive(Default)]
pub(crate) struct InterfaceTable {
    /// By port: the next answer, and all that follow until it is replaced. One descriptor for each
    /// queue pair.
    pub(crate) queues: BTreeMap<PortId, Vec<OwnedFd>>,
    pub(crate) requests: Vec<SwitchRequest>,
}

type Interfaces = Arc<Mutex<InterfaceTable>>;

impl Host {
    /// Starts a switch without ports. It has several workers, to test their interaction; the
    /// end-to-end tests run with one worker.
    pub(crate) fn new() -> Self {
        Self::with_settings(SwitchSettings {
            workers: Some(3),
            ..SwitchSettings::default()
        })
    }

    /// Starts a switch with other settings.
    pub(crate) fn with_settings(settings: SwitchSettings) -> Self {
        let mut host = Self::without_control(settings);
        host.start_control();
        host
    }

    /// Starts a switch that succeeds another one, which still runs if it `waits`. Control comes
    /// later.
    pub(crate) fn successor(waits: bool) -> Self {
        Self::without_control(SwitchSettings {
            workers: Some(3),
            successor: true,
            waits,
            ..SwitchSettings::default()
        })
    }

    fn without_control(settings: SwitchSettings) -> Self {
        let counters = rustix::fs::memfd_create("counters", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&counters, SIZE).expect("room");
        let marks = rustix::fs::memfd_create("marks", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&marks, CRASH_RECORD_LEN).expect("room");
        let (ours, theirs) = link::pair().expect("sockets");
        let supervisor = Link::new(ours.try_clone().expect("a descriptor"));
        supervisor
            .send(
                &EventToSwitch::Start(settings),
                &[counters.as_fd(), marks.as_fd()],
            )
            .expect("a listening switch");
        let dir = tempfile::tempdir().expect("a folder");
        let (slow, dials) = (Arc::default(), Dials::default());
        let interfaces = Interfaces::default();
        Self {
            supervisor,
            control: None,
            counters: Counters::map(&counters).expect("a map"),
            program: Arc::default(),
            ports: BTreeMap::new(),
            number: 0,
            phases: Vec::new(),
            uses: Vec::new(),
            states: Vec::new(),
            figures: SwitchFigures::default(),
            switch: Some(std::thread::spawn(move || {
                datapath::process::run(theirs, || Ok(()))
            })),
            dialer: Some(supervise(
                ours,
                Arc::clone(&slow),
                Arc::clone(&dials),
                Arc::clone(&interfaces),
            )),
            interfaces,
            slow,
            dials,
            dir,
        }
    }

    /// Starts a switch with these server ports, one queue pair each.
    pub(crate) fn with_ports(ids: impl IntoIterator<Item = u32>) -> Self {
        let mut host = Self::new();
        ids.into_iter().for_each(|id| host.add_port(id, 1));
        host
    }

    /// Starts a control process; the one before must have ended.
    pub(crate) fn start_control(&mut self) {
        let (ours, theirs) = link::pair().expect("sockets");
        self.supervisor
            .send(&EventToSwitch::ControlLink, &[theirs.as_fd()])
            .expect("a listening switch");
        drop(theirs);
        let mut link: Link<Request, SwitchEvent> = Link::new(ours);
        let order = SwitchCommand::Adopt;
        link.send(&Request { number: 0, order }, &[])
            .expect("a switch");
        let Ok(LinkEvent::Message(SwitchEvent::Adopted { ports, .. }, fds)) = link.recv() else {
            panic!("no answer to Adopt");
        };
        assert_eq!(ports.len(), self.ports.len(), "ports that the switch kept");
        let fds = <[ForeignFd; 3]>::try_from(fds).expect("three descriptors");
        let [memory, upcall_bell, answer_bell] = fds.map(ForeignFd::vouch);
        let region = Region {
            memory,
            upcall_bell,
            answer_bell,
        };
        let (answers, upcalls) = region.control_ends().expect("a sound region");
        while !matches!(
            link.recv(),
            Ok(LinkEvent::Message(SwitchEvent::Done { number: 0, .. }, _))
        ) {}
        let answers = Arc::new(Mutex::new(answers));
        let program = Arc::clone(&self.program);
        self.control = Some(Control {
            link,
            _answering: Answering::start(upcalls, Arc::clone(&answers), program),
            answers,
        });
    }

    /// Ends control as a crash does.
    pub(crate) fn kill_control(&mut self) {
        self.control = None;
    }

    /// Sends the file of a table of connections as the supervisor.
    pub(crate) fn send_table(&self, file: &OwnedFd) {
        self.send_table_with(&[file]);
    }

    /// Sends it with the filter of connections behind it.
    pub(crate) fn send_table_with(&self, files: &[&OwnedFd]) {
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.supervisor
            .send(&EventToSwitch::ConnectionTable, &fds)
            .expect("a listening switch");
    }

    /// Sends a command to the switch, does something else, and waits until the command is done.
    pub(crate) fn order_and(
        &mut self,
        order: SwitchCommand,
        then: impl FnOnce(&Self),
    ) -> Result<(), String> {
        self.begin(order, &[]);
        then(self);
        self.finish()
    }

    /// Sends a command to the switch and waits until it is done.
    pub(crate) fn order(&mut self, order: SwitchCommand, fds: &[OwnedFd]) -> Result<(), String> {
        self.begin(order, fds);
        self.finish()
    }

    fn begin(&mut self, order: SwitchCommand, fds: &[OwnedFd]) {
        self.number += 1;
        let number = self.number;
        let link = &mut self.control.as_mut().expect("a control").link;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        link.send(&Request { number, order }, &fds)
            .expect("a switch");
        self.states.clear();
        self.uses.clear();
    }

    fn finish(&mut self) -> Result<(), String> {
        let number = self.number;
        loop {
            let link = &mut self.control.as_mut().expect("a control").link;
            let Ok(LinkEvent::Message(report, _)) = link.recv() else {
                panic!("the switch is gone");
            };
            match report {
                SwitchEvent::Done { number: n, error } if n == number => {
                    return error.map_or(Ok(()), Err);
                }
                SwitchEvent::Phases(reports) => {
                    let reports = reports.into_iter();
                    self.phases
                        .extend(reports.map(|r| (r.port, r.phase, r.reason)));
                }
                SwitchEvent::PortStates(states, figures, _) => {
                    self.states.extend(states);
                    self.figures = figures;
                }
                SwitchEvent::Stations(uses) => self.uses.extend(uses),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Sends a rule as control.
    pub(crate) fn forget(&self, rule: StaleFlows) {
        let answers = &self.control.as_ref().expect("a control").answers;
        let mut answers = answers.lock().expect("no panic");
        assert!(answers.send(&Answer::Forget(rule)), "room for a rule");
        answers.ring_bell();
    }

    /// Publishes a program that knows all ports.
    pub(crate) fn publish(&mut self) {
        let segment = Segment {
            name: "lan".into(),
            vlan: None,
        };
        let ports = self
            .ports
            .keys()
            .map(|id| (PortId(*id), PortMode::Access(LAN)));
        let model = Model {
            segments: BTreeMap::from([(LAN, segment)]),
            ports: ports.collect(),
        };
        let program = Program::compile(&model, self.number + 1).expect("a sound model");
        *self.program.lock().expect("no panic") = program.clone();
        self.order(
            SwitchCommand::Program {
                program,
                outdated: None,
            },
            &[],
        )
        .expect("a program");
    }

    pub(crate) fn config(&self, id: u32, queues: u16, role: Role) -> PortConfig {
        PortConfig {
            id: PortId(id),
            name: format!("vm{id}"),
            socket: self.socket(id).to_string_lossy().into_owned(),
            role,
            queues,
            mtu: None,
            weight: ipc::switching::WEIGHT,
            mac: None,
            clients: Clients::default(),
            iommu: Iommu::default(),
        }
    }

    /// Adds a port that listens.
    pub(crate) fn add_port(&mut self, id: u32, queues: u16) {
        let config = self.config(id, queues, Role::Server);
        self.add(config);
    }

    /// Adds a port of any configuration.
    pub(crate) fn add(&mut self, config: PortConfig) {
        self.register(config);
        self.publish();
    }

    /// Adds a port that the program does not know yet.
    pub(crate) fn register(&mut self, config: PortConfig) {
        let id = config.id.0;
        let listener = (config.role == Role::Server)
            .then(|| OwnedFd::from(UnixListener::bind(self.socket(id)).expect("a free path")));
        if config.role == Role::Client {
            let mut dials = self.dials.lock().expect("no panic");
            dials.insert(config.id, config.socket.clone());
        }
        self.order(SwitchCommand::AddPort(config.clone()), listener.as_slice())
            .expect("a port");
        self.ports.insert(id, config);
    }

    /// Adds a port with an interface, with a descriptor for each queue pair.
    pub(crate) fn add_interface(&mut self, id: u32, queues: Vec<OwnedFd>) {
        let config = self.config(id, queues.len() as u16, Role::Client);
        self.set_interface(id, queues);
        self.add(config);
    }

    /// Gives a new switch the interface that the one before had for port `id`; that was the port
    /// with the socket of port `of`.
    pub(crate) fn give_interface(&self, id: u32, of: u32, queues: &[OwnedFd]) {
        let path = self.socket(of).to_string_lossy().into_owned();
        answer_with_interface(&self.supervisor, (PortId(id), path), queues);
    }

    /// Replaces the interface that the next dial is answered with.
    pub(crate) fn set_interface(&self, id: u32, queues: Vec<OwnedFd>) {
        let mut interfaces = self.interfaces.lock().expect("no panic");
        interfaces.queues.insert(PortId(id), queues);
    }

    /// Sends an event as the supervisor.
    pub(crate) fn send_event(&self, event: &EventToSwitch) {
        self.supervisor
            .send(event, &[])
            .expect("a listening switch");
    }

    /// Returns the requests about interfaces, and milestones of a hand-over, since the last call.
    pub(crate) fn interface_requests(&self) -> Vec<SwitchRequest> {
        let mut interfaces = self.interfaces.lock().expect("no panic");
        std::mem::take(&mut interfaces.requests)
    }

    pub(crate) fn remove_port(&mut self, id: u32) {
        self.ports.remove(&id).expect("a port");
        self.order(SwitchCommand::RemovePort(PortId(id)), &[])
            .expect("gone");
        let _ = std::fs::remove_file(self.socket(id));
        self.publish();
    }

    pub(crate) fn socket(&self, id: u32) -> PathBuf {
        self.dir.path().join(format!("{id}.sock"))
    }

    /// Connects test guest `id` to port `id`, and waits until it is up.
    #[track_caller]
    pub(crate) fn guest(&self, id: u32, config: GuestConfig) -> FakeGuest {
        let config = config.guest(id as u8);
        let mut guest = FakeGuest::connect(&self.socket(id), config).expect("a session");
        guest.wait_link().expect("a link");
        guest
    }

    pub(crate) fn counts(&self, id: u32) -> PortCounts {
        self.counters.read(PortId(id))
    }

    /// Returns from-guest packets, to-guest packets and drops of all ports.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let all = self.ports.keys().map(|id| self.counts(*id));
        all.fold((0, 0, 0), |(from, to, drops), c| {
            (
                from + c.from_guest.packets,
                to + c.to_guest.packets,
                drops + c.drops.iter().sum::<u64>(),
            )
        })
    }

    pub(crate) fn figures(&mut self) -> SwitchFigures {
        self.order(SwitchCommand::PortStates, &[]).expect("states");
        self.figures
    }

    pub(crate) fn flows(&mut self) -> usize {
        self.figures().flows as usize
    }

    /// Returns the stations whose flows were used within a time, in order.
    pub(crate) fn stations(&mut self, within: Duration) -> Vec<StationUse> {
        let within_ms = within.as_millis() as u32;
        self.order(SwitchCommand::Stations { within_ms }, &[])
            .expect("stations");
        self.uses.sort_by_key(|used| used.station);
        self.uses.clone()
    }

    pub(crate) fn state(&mut self, id: u32) -> PortState {
        self.order(SwitchCommand::PortStates, &[]).expect("states");
        let state = self.states.iter().find(|s| s.config.id.0 == id);
        state.expect("a port").clone()
    }

    /// Lets guests go, and waits until the ports 1 to `ports` are free.
    pub(crate) fn gone<T>(&mut self, guests: T, ports: u32) {
        drop(guests);
        (1..=ports).for_each(|id| drop(self.wait_phase(id, PortPhase::Waiting)));
    }

    /// Waits for the port's phase; returns its state then.
    #[track_caller]
    pub(crate) fn wait_phase(&mut self, id: u32, phase: PortPhase) -> PortState {
        wait_for(&format!("port {id} to be {phase:?}"), || {
            self.state(id).phase == phase
        });
        self.state(id)
    }

    /// Returns the reason for which queue `index` of the port was stopped.
    #[track_caller]
    pub(crate) fn wait_fault(&mut self, id: u32, index: u16) -> String {
        let state = self.wait_phase(id, PortPhase::Faulted);
        let queue = state.queues.iter().find(|q| q.index == index);
        queue
            .and_then(|q| q.fault.clone())
            .unwrap_or_else(|| panic!("queue {index} runs: {state:?}"))
    }

    /// Sends bytes that are no message as control.
    pub(crate) fn talk_nonsense(&mut self) {
        let control = self.control.as_ref().expect("a control");
        rustix::net::send(&control.link, &[0xff; 40], SendFlags::empty()).expect("a switch");
    }

    /// Closes the supervisor's link without a message; returns the result of the switch.
    pub(crate) fn lose_supervisor(&mut self) -> io::Result<()> {
        rustix::net::shutdown(&self.supervisor, Shutdown::Both).expect("a socket");
        self.switch
            .take()
            .expect("a switch")
            .join()
            .expect("no panic")
    }

    /// Ends the switch as the supervisor does.
    pub(crate) fn stop(&mut self) {
        let _ = self.supervisor.send(&EventToSwitch::Stop, &[]);
        if let Some(switch) = self.switch.take() {
            switch.join().expect("no panic").expect("a clean end");
        }
        let _ = self.dialer.take().map(JoinHandle::join);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.control = None;
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// Runs the supervisor's side: dials for client ports on request, and keeps the sockets of
/// connections; while it is `slow`, also those of dropped sessions.
fn supervise(
    fd: OwnedFd,
    slow: Arc<AtomicBool>,
    dials: Dials,
    interfaces: Interfaces,
) -> JoinHandle<()> {
    let mut link: Link<EventToSwitch, SwitchRequest> = Link::new(fd);
    let mut kept = BTreeMap::new();
    std::thread::spawn(move || {
        while let Ok(LinkEvent::Message(ask, fds)) = link.recv() {
            let (port, path) = match ask {
                SwitchRequest::Dial { port } => {
                    (port, dials.lock().expect("no panic")[&port].clone())
                }
                SwitchRequest::Sessions(SessionRequest::StoreDescriptor { port, number })
                    if number == SOCKET =>
                {
                    kept.insert(port, fds);
                    continue;
                }
                SwitchRequest::Sessions(SessionRequest::DropSession { port })
                    if !slow.load(SeqCst) =>
                {
                    kept.remove(&port);
                    continue;
                }
                // This switch has no successor.
                SwitchRequest::Sessions(SessionRequest::StoreDescriptor { .. })
                | SwitchRequest::Sessions(SessionRequest::StoreSession { .. })
                | SwitchRequest::Sessions(SessionRequest::DropSession { .. })
                | SwitchRequest::Heartbeat => continue,
                SwitchRequest::InterfaceLost { .. }
                | SwitchRequest::InterfaceCounters { .. }
                | SwitchRequest::Prepared
                | SwitchRequest::Quiesced { .. }
                | SwitchRequest::Serving { .. } => {
                    interfaces.lock().expect("no panic").requests.push(ask);
                    continue;
                }
            };
            if let Some(queues) = interfaces.lock().expect("no panic").queues.get(&port) {
                answer_with_interface(&link, (port, path), queues);
                continue;
            }
            let (socket, error) = match UnixStream::connect(&path) {
                Ok(socket) => (Some(socket), None),
                Err(e) => (None, Some(e.to_string())),
            };
            let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
            let sent = link.send(&EventToSwitch::Dialed { port, path, error }, &fds);
            if sent.is_err() {
                return;
            }
        }
    })
}

/// Sends an interface, in two messages if it has several queues.
fn answer_with_interface(
    link: &Link<EventToSwitch, SwitchRequest>,
    (port, path): (PortId, String),
    queues: &[OwnedFd],
) {
    let (last, before) = queues.split_last().expect("a queue");
    if !before.is_empty() {
        let fds: Vec<_> = before.iter().map(AsFd::as_fd).collect();
        let _ = link.send(&EventToSwitch::InterfaceQueues { port }, &fds);
    }
    let interface = InterfaceStart {
        back_end: BackEnd::Tap,
        uso: true,
    };
    let event = EventToSwitch::Interface {
        port,
        path,
        interface,
    };
    let _ = link.send(&event, &[last.as_fd()]);
}
