//! The switch process: the session thread, which serves supervisor, control and front ends.
//!
//! One `epoll` set waits for all of them. Every change of a queue goes to its worker as a message.

pub mod attach;
mod captures;
mod connections;
mod counts;
mod flows;
mod hand_over;
mod mirrors;
mod saved_connections;
pub mod session_store;
mod sweeps;
#[cfg(test)]
mod tests;
mod timers;
mod tracking;

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::capture::CaptureCommand;
use ipc::driving;
use ipc::egress::OutputConfig;
use ipc::keeping::ThreadSlots;
use ipc::limits::Limits;
use ipc::link::{Link, LinkEvent};
use ipc::shared;
use ipc::supervision::{EventToSwitch, SwitchRequest, SwitchSettings};
use ipc::switching::{ConnectionFlush, PortConfig, Request, SwitchCommand, SwitchEvent};
use policy::{MAX_SEGMENTS, OutdatedFlows, Program, SegmentId};
use port::PortId;
use port::counters::Counters;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sys::closer;
use sys::foreign::ForeignFd;

use crate::forward::egress::{Output, check as check_output};
use crate::forward::limits::PortLimits;
use crate::forward::revalidator::{ControlState, FlowSweep};
use crate::ports::attached::AttachedPort;
use crate::ports::coalescing::Rules;
use crate::ports::crash_record;
use crate::ports::guest::GuestPort;
use crate::process::attach::{Attachment, QueueSnapshots};
use crate::process::session_store::SessionStore;
use crate::worker::workers::Workers;
use crate::worker::{Notices, shorten_timer_slack};
use captures::Captures;
use connections::{own_listener, unwatch};
use mirrors::Mirrors;
use saved_connections::SavedConnections;
use sweeps::{PendingSweeps, Progress};
use timers::{TIMER_INTERVAL, Timers};
use tracking::{Around, ConnectionTable};

// The memory quota of the process is divided by the number of ports.
const _: () = assert!(mapping::PORTS == port::counters::MAX_PORTS as u64);

/// Interval between two checks of the workers' loads, seconds.
const BALANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Commands of control that are executed in a row.
const COMMANDS_PER_TURN: usize = 64;

type SupervisorLink = Link<SwitchRequest, EventToSwitch>;
type ControlLink = Link<SwitchEvent, Request>;

/// The state of the session thread.
struct Process {
    epoll: Rc<OwnedFd>,
    supervisor: SupervisorLink,
    control: Option<ControlLink>,
    notices: Notices,
    workers: Workers,
    timers: Timers,
    ports: BTreeMap<PortId, Attachment>,
    /// The only user who may connect to a port, where one is configured. Control sends it before
    /// the port.
    peers: BTreeMap<PortId, u32>,
    sweeps: PendingSweeps,
    observers: Observers,
    sessions: Sessions,
    /// Interrupt coalescing of guests.
    rules: Rules,
    /// Workers that have not acknowledged the supervisor's last liveness probe.
    pending_acks: usize,
    stop: bool,
    /// The next switch process takes over: no queue is served.
    quiesced: bool,
}

/// Copies of frames that are requested.
#[derive(Default)]
struct Observers {
    captures: Captures,
    mirrors: Mirrors,
}

/// The parts of connections that outlive them, and the table of tracked connections, which
/// outlives this process.
struct Sessions {
    tracked: ConnectionTable,
    store: SessionStore,
    snapshots: QueueSnapshots,
    /// Connections of the previous switch process, until control has added its ports.
    saved: SavedConnections,
}

/// Runs the switch until the supervisor ends it or exits. `link` is the supervision link. `close`
/// is called when all threads run, before the first message of a front end is read.
///
/// # Errors
/// A malformed start message, or a system error at start or in `epoll_wait`.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    start(link, close)?.run()
}

/// Starts all threads but this one, and returns the state of this one.
fn start(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<Process> {
    let mut supervisor = SupervisorLink::new(link);
    let (settings, counters, slots) = receive_start(&mut supervisor)?;
    supervisor.set_nonblocking()?;
    crash_record::install_handlers()?;
    mapping::survive_truncation()?;
    let prefetches = memory::copy::prefetches_buffers();
    tracing::info!(
        prefetches,
        "prefetch of receive buffers, by the vendor of the CPU"
    );
    // INVALIDATE waits for batches on this thread.
    shorten_timer_slack();
    let seed = random_seed()?;
    let count = settings.worker_count();
    let (workers, notices) = Workers::start(count, settings.poll, &counters, seed)?;
    if let Some(longest) = settings.poll_us {
        workers.limit_looks(Duration::from_micros(longest.into()));
    }
    workers.set_thread_slots(&slots);
    crash_record::set_thread_slot(slots.of(0));
    let closers = slots.clone();
    let note: closer::Watcher = Arc::new(move |thread, label: Option<u32>| {
        closers.note_closing(thread, label.map(PortId));
    });
    closer::start(process::log::closers::logger(), Some(note))?;
    // Each worker replies when it runs.
    workers.each(|_| ());
    let store = SessionStore::new(supervisor.as_fd().try_clone_to_owned()?);
    let epoll = Rc::new(epoll::create(CreateFlags::CLOEXEC)?);
    epoll::add(
        &epoll,
        &supervisor,
        Token::Supervisor.encode(),
        EventFlags::IN,
    )?;
    epoll::add(&epoll, &notices, Token::Notices.encode(), EventFlags::IN)?;
    close()?;
    Ok(Process {
        epoll,
        supervisor,
        control: None,
        notices,
        workers,
        timers: Timers::start(),
        ports: BTreeMap::new(),
        peers: BTreeMap::new(),
        sweeps: PendingSweeps::default(),
        observers: Observers::default(),
        sessions: Sessions {
            tracked: ConnectionTable::default(),
            store,
            snapshots: QueueSnapshots::default(),
            saved: SavedConnections::new(settings.successor, settings.waits),
        },
        rules: Rules::of(settings.coalescing),
        pending_acks: 0,
        stop: false,
        quiesced: false,
    })
}

/// Receives the first message of the supervisor.
fn receive_start(
    supervisor: &mut SupervisorLink,
) -> io::Result<(SwitchSettings, Counters, ThreadSlots)> {
    let (settings, fds) = match supervisor.recv()? {
        LinkEvent::Message(EventToSwitch::Start(settings), fds) => (settings, fds),
        LinkEvent::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
        _ => return Err(io::Error::other("the first message is not Start")),
    };
    let [counters, slots] = <[ForeignFd; 2]>::try_from(fds)
        .map_err(|_| io::Error::other("Start without counters and thread slots"))?;
    let counters = Counters::map(&counters).map_err(io::Error::other)?;
    let slots = ThreadSlots::map(&slots).map_err(io::Error::other)?;
    Ok((settings, counters, slots))
}

fn random_seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(seed))
}

impl Process {
    /// Serves until the supervisor requests the end.
    fn run(&mut self) -> io::Result<()> {
        while !self.stop {
            if self.quiesced {
                self.wait_for_supervisor()?
            } else {
                self.run_once()?
            }
        }
        self.close_all();
        Ok(())
    }

    fn run_once(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.restore_due();
        if now >= self.timers.look_at {
            self.look_at_timers(now);
        }
        let next = self.timers.next.into_iter().chain(self.next_restore());
        let limit = next.min().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            left.max(Duration::from_millis(1))
        });
        let mut events = [MaybeUninit::uninit(); 32];
        for event in sys::wait::events(&self.epoll, &mut events, limit)? {
            if self.quiesced || self.stop {
                // The next process serves the connections: a message that this one still answered,
                // or an answer that it took out of the pipe, would be unknown there. Events are
                // levels, and come again after `Resume`.
                break;
            }
            // It may change what is due.
            self.timers.next = Some(self.timers.look_at);
            match Token::decode(event.data) {
                Token::Supervisor => self.handle_supervisor()?,
                Token::Control => self.handle_control(),
                Token::Notices => self.handle_notices(),
                Token::Listener(id) => self.accept(id),
                Token::Connection(id) => self.serve_connection(id),
                Token::Misses(id) => self.serve_misses(id),
                Token::Channel(id) => self.serve_channel(id),
            }
        }
        Ok(())
    }

    /// Does what is due at a port, and finds out when something is due next. That looks at all
    /// ports, so it is not done for each of many messages that come together.
    fn look_at_timers(&mut self, now: Instant) {
        self.pauses_due();
        self.warnings_due();
        self.dial_due();
        self.balance_due();
        self.questions_due();
        let next = [
            self.next_pause_end(),
            self.next_warning(),
            self.next_dial(),
            self.next_balance(),
            self.next_question(),
        ];
        self.timers.next = next.into_iter().flatten().min();
        self.timers.look_at = now + TIMER_INTERVAL;
    }

    fn handle_supervisor(&mut self) -> io::Result<()> {
        loop {
            let (event, mut fds) = match self.supervisor.recv()? {
                LinkEvent::Message(event, fds) => (event, fds),
                LinkEvent::Closed => (EventToSwitch::Stop, Vec::new()),
                LinkEvent::Nothing => return Ok(()),
            };
            match event {
                EventToSwitch::Stop => {
                    self.stop = true;
                    return Ok(());
                }
                EventToSwitch::ControlLink => {
                    if let Some(fd) = fds.pop() {
                        self.set_control(fd.vouch())?;
                    }
                }
                EventToSwitch::Dialed { port, path, error } => {
                    self.dialed(port, &path, fds.pop(), error);
                }
                EventToSwitch::SavedSessions(parts) => self.add_saved(parts, fds),
                EventToSwitch::Prepare => self.send(&SwitchRequest::Prepared),
                EventToSwitch::Quiesce => self.quiesce()?,
                EventToSwitch::Resume => self.resume(),
                EventToSwitch::TakeOver => self.take_over()?,
                EventToSwitch::Ping => self.probe(),
                EventToSwitch::GuestStates => {
                    let fds = fds.into_iter().map(ForeignFd::vouch);
                    self.workers.watch(fds.collect());
                }
                EventToSwitch::GuestThreads { port, slots } => {
                    self.workers.set_guest_threads(port, &slots);
                }
                EventToSwitch::ConnectionTable => {
                    let (tracked, around) = self.tracked();
                    if let Some((number, done)) = tracked.set_files(fds, &around) {
                        self.done(number, done.err());
                    }
                }
                EventToSwitch::InterfaceQueues { port } => self.interface_queues(port, fds),
                EventToSwitch::Interface {
                    port,
                    path,
                    interface,
                } => self.interface_dialed(port, &path, interface, fds),
                EventToSwitch::CloseInterface { port, reason } => {
                    self.close_interface(port, &reason);
                }
                // It is the first message.
                EventToSwitch::Start(_) => {}
            }
        }
    }

    /// Returns the table of connections, and what is around it.
    fn tracked(&mut self) -> (&mut ConnectionTable, Around<'_>) {
        let around = Around {
            workers: &self.workers,
            ports: &self.ports,
            waits: self.sessions.saved.waits,
        };
        (&mut self.sessions.tracked, around)
    }

    fn set_control(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.drop_control();
        let link = ControlLink::new(fd);
        link.set_nonblocking()?;
        epoll::add(&self.epoll, &link, Token::Control.encode(), EventFlags::IN)?;
        self.control = Some(link);
        Ok(())
    }

    fn drop_control(&mut self) {
        if let Some(link) = self.control.take() {
            let _ = epoll::delete(&self.epoll, &link);
            self.sweeps.control_disconnected();
            self.sessions.tracked.control_disconnected();
            self.observers.captures.end_all(None, &self.workers);
            self.workers.first(|w| w.drop_control());
        }
    }

    /// Sends an event to control. A failed control process requests the state again after its
    /// restart.
    fn report(&mut self, report: &SwitchEvent, fds: &[BorrowedFd<'_>]) {
        let failed = match &self.control {
            Some(link) => link.send(report, fds).err(),
            None => return,
        };
        if let Some(error) = failed {
            // The end of control is the supervisor's to report.
            if error.kind() != io::ErrorKind::BrokenPipe {
                tracing::warn!("sending to control failed: {error}");
            }
            self.drop_control();
        }
    }

    /// Executes commands of control, a bounded number in a row, so that other descriptors are
    /// served.
    fn handle_control(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            let Some(link) = &mut self.control else {
                return;
            };
            match link.recv() {
                Ok(LinkEvent::Nothing) => return,
                Ok(LinkEvent::Message(request, fds)) => {
                    let number = request.number;
                    match self.execute(number, request.order, fds) {
                        Ok(Progress::Done) => self.done(number, None),
                        Ok(Progress::Started) => {}
                        Err(error) => self.done(number, Some(error)),
                    }
                }
                Ok(LinkEvent::Closed) => return self.drop_control(),
                Err(error) => {
                    tracing::error!("malformed message from control: {error}");
                    return self.drop_control();
                }
            }
        }
    }

    /// Handles a ping of the supervisor, which ends a process that does not reply. The session
    /// thread replies when every worker has acknowledged a probe, that is, has done its earlier
    /// jobs; it does not block on a worker.
    fn probe(&mut self) {
        if self.quiesced {
            // Notices of workers are not read while the switch is quiesced.
            return self.send_heartbeat();
        }
        self.pending_acks = self.workers.count();
        self.workers.probe();
    }

    fn send_heartbeat(&self) {
        self.send(&SwitchRequest::Heartbeat);
    }

    fn send(&self, request: &SwitchRequest) {
        if let Err(error) = self.supervisor.send(request, &[]) {
            tracing::warn!("sending to the supervisor failed: {error}");
        }
    }

    fn begin(&mut self, number: u64, leaving: Option<PortId>, sweep: FlowSweep) -> Progress {
        self.sweeps.begin(number, leaving, sweep, &self.workers)
    }

    /// Sends a program to all workers, and removes the flows that it may decide differently.
    fn change_program(
        &mut self,
        number: u64,
        program: Program,
        outdated: Option<OutdatedFlows>,
    ) -> Progress {
        let outdated = outdated.unwrap_or_else(|| self.all_with_access_lists(&program));
        let forgets = !outdated.is_empty();
        self.workers.each(move |w| {
            let now = w.now();
            w.switch
                .change_program(program.clone(), outdated.clone(), now);
        });
        self.restore_connections();
        if forgets {
            self.begin(number, None, FlowSweep::Settle)
        } else {
            Progress::Done
        }
    }

    /// Returns all ports and segments, if the old or the new program has access lists.
    fn all_with_access_lists(&self, program: &Program) -> OutdatedFlows {
        let asked = self
            .workers
            .first(|w| w.switch.program().filters_anywhere());
        if asked || program.filters_anywhere() {
            OutdatedFlows {
                ports: self.ports.keys().copied().collect(),
                segments: (0..MAX_SEGMENTS as u16).map(SegmentId).collect(),
            }
        } else {
            OutdatedFlows::default()
        }
    }

    /// Returns the limits of all ports that have any.
    fn limits(&self) -> Vec<(PortId, Limits)> {
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        self.workers.first(move |w| {
            let limits = |id| (id, w.switch.limits(id));
            let all = ports.into_iter().map(limits);
            all.filter(|(_, limits)| !limits.is_nothing()).collect()
        })
    }

    /// Sets a port's limits, which its workers share. Equal limits keep their state.
    fn set_limits(&mut self, id: PortId, limits: Limits) -> Result<(), String> {
        if !self.ports.contains_key(&id) {
            return Err("no such port".into());
        }
        if self.workers.first(move |w| w.switch.limits(id)) == limits {
            return Ok(());
        }
        let shared = PortLimits::new(limits);
        self.workers.each(move |w| w.set_limits(id, shared.clone()));
        if let Some(port) = self.ports.get(&id) {
            self.sessions.tracked.limit(port.config(), &self.workers);
        }
        Ok(())
    }

    /// Schedules what leaves by a port, or no longer; its workers share the output. Equal settings
    /// keep it as it is.
    fn set_egress(&mut self, id: PortId, config: Option<OutputConfig>) -> Result<(), String> {
        self.known(id)?;
        if let Some(config) = &config {
            check_output(config)?;
        }
        let old = self.workers.first(move |w| w.switch.output_of(id));
        if old.as_ref().map(|old| old.config()) == config.as_ref() {
            return Ok(());
        }
        let output = config.map(|config| Arc::new(Output::new(config, old.as_deref())));
        self.workers.each(move |w| w.set_output(id, output.clone()));
        Ok(())
    }

    /// Reports the use of all scheduled ports to control.
    fn report_egress(&mut self) {
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        let outputs = self.workers.first(move |w| {
            let output = |id| Some((id, w.switch.output_of(id)?));
            ports.into_iter().filter_map(output).collect::<Vec<_>>()
        });
        for (id, output) in outputs {
            self.report(&SwitchEvent::EgressUse(id, output.uses()), &[]);
        }
    }

    /// Refuses a port that does not exist.
    fn known(&self, id: PortId) -> Result<(), String> {
        self.ports
            .get(&id)
            .map(drop)
            .ok_or_else(|| "no such port".into())
    }

    /// Reports to control that a command is done.
    fn done(&mut self, number: u64, error: Option<String>) {
        self.report(&SwitchEvent::Done { number, error }, &[]);
    }

    fn execute(
        &mut self,
        number: u64,
        order: SwitchCommand,
        mut fds: Vec<ForeignFd>,
    ) -> Result<Progress, String> {
        let begin = |process: &mut Self, sweep| Ok(process.begin(number, None, sweep));
        match order {
            SwitchCommand::Adopt => {
                self.adopt().map_err(|e| e.to_string())?;
                let within_ms = u32::MAX;
                return begin(self, FlowSweep::Stations { within_ms });
            }
            SwitchCommand::CountRules => return begin(self, FlowSweep::CountRules),
            SwitchCommand::Stations { within_ms } => {
                return begin(self, FlowSweep::Stations { within_ms });
            }
            SwitchCommand::Check(stations, bound) => {
                let known = Arc::new(ControlState::new(&stations, &bound));
                return begin(self, FlowSweep::Check(known));
            }
            SwitchCommand::Flows(desired) => return begin(self, FlowSweep::TopFlows(desired)),
            SwitchCommand::RemovePort(id) => return self.remove_port(number, id),
            SwitchCommand::Program { program, outdated } => {
                return Ok(self.change_program(number, program, outdated));
            }
            SwitchCommand::AddPort(config) => self.add_port(config, fds.pop())?,
            SwitchCommand::Listen(id) => self.set_listener(id, fds.pop())?,
            SwitchCommand::SetPort(config) => self.set_port(&config)?,
            SwitchCommand::SetLimits(id, limits) => self.set_limits(id, limits)?,
            SwitchCommand::SetClasses(priorities) => {
                self.workers
                    .each(move |w| w.switch.set_priorities(priorities.clone()));
            }
            SwitchCommand::SetQos(id, qos) => {
                self.known(id)?;
                self.workers.each(move |w| w.set_qos(id, qos.clone()));
            }
            SwitchCommand::SetEgress(id, config) => self.set_egress(id, config)?,
            SwitchCommand::EgressUse => self.report_egress(),
            SwitchCommand::SetPeer(id, user) => self.set_peer(id, user)?,
            SwitchCommand::SetMirrors(mirrors) => {
                let known = |port: &PortId| self.ports.contains_key(port);
                self.observers.mirrors.set(mirrors, known, &self.workers)?;
            }
            SwitchCommand::PortStates => self.report_ports(),
            SwitchCommand::FindFlows(keys) => {
                let report = flows::find_flows(&self.workers, &keys)?;
                self.report(&report, &[]);
            }
            SwitchCommand::FlushConnections(flush) => self.flush_connections(&flush)?,
            SwitchCommand::Capture(order) => self.start_capture(&order)?,
            SwitchCommand::EndCapture(id) => self.observers.captures.end(id, &self.workers),
            SwitchCommand::Track(settings) => {
                let (tracked, around) = self.tracked();
                return tracked.track(number, settings, &around);
            }
        }
        Ok(Progress::Done)
    }

    /// Changes a port; its connection stays.
    fn set_port(&mut self, config: &PortConfig) -> Result<(), String> {
        let port = self.ports.get_mut(&config.id).ok_or("no such port")?;
        if port.config().mtu != config.mtu {
            port.set_mtu(config.mtu, &self.workers);
        }
        port.set_weight(config.weight, &self.workers);
        port.set_iommu(config.iommu);
        Ok(())
    }

    /// Forgets connections, on this thread.
    fn flush_connections(&mut self, flush: &ConnectionFlush) -> Result<(), String> {
        match self.workers.first(|worker| worker.switch.tracking()) {
            Some((tracking, now)) => tracking.flush(flush, now),
            None => Ok(()),
        }
    }

    fn start_capture(&mut self, order: &CaptureCommand) -> Result<(), String> {
        self.known(order.port)?;
        let started = self.observers.captures.start(order, &self.workers);
        let (report, file) = started?;
        self.report(&report, &[file.as_fd()]);
        Ok(())
    }

    /// Sends the state to a new control process and opens its rings.
    fn adopt(&mut self) -> io::Result<()> {
        let region = shared::Region::create()?;
        let copy = region.try_clone()?;
        let (upcalls, answers) = region.switch_ends()?;
        let epoch = self.workers.first(|w| w.switch.program().epoch());
        let adopted = SwitchEvent::Adopted {
            epoch,
            ports: self.ports.values().map(|p| p.config().clone()).collect(),
            limits: self.limits(),
            mirrors: self.observers.mirrors.configs().to_vec(),
            peers: self.peers.iter().map(|(id, user)| (*id, *user)).collect(),
            without_listener: self.ports_without_listener(),
        };
        let fds = [
            copy.memory.as_fd(),
            copy.upcall_bell.as_fd(),
            copy.answer_bell.as_fd(),
        ];
        self.report(&adopted, &fds);
        self.workers
            .first(move |w| w.set_control(upcalls, answers))?;
        self.workers.each(|w| w.resend_upcalls());
        Ok(())
    }

    fn report_ports(&mut self) {
        let ports = self.ports.keys().copied().collect();
        let (figures, workers, counts) = counts::count_all(&self.workers, ports);
        let state = |port: &Attachment| {
            let counts = counts.get(&port.config().id);
            port.state(counts.unwrap_or(&BTreeMap::new()))
        };
        let states = self.ports.values().map(state).collect();
        self.report(&SwitchEvent::PortStates(states, figures, workers), &[]);
    }

    fn add_port(&mut self, config: PortConfig, listener: Option<ForeignFd>) -> Result<(), String> {
        let id = config.id;
        let taken = self.ports.contains_key(&id) || self.sweeps.is_leaving(id);
        if id.0 as usize >= port::counters::MAX_PORTS || taken {
            return Err(format!("port number {} cannot be used", id.0));
        }
        let listener = listener.map(own_listener).transpose()?;
        let (mtu, weight) = (config.mtu, config.weight);
        let known = self.sessions.saved.taking_over;
        let rules = if config.socket == driving::address(&config.name) {
            // A driver gathers frames itself.
            self.rules.without_kick_window()
        } else {
            self.rules
        };
        // What comes later for the port is queued after this.
        self.workers.post_each(move |w| {
            w.set_weight(id, weight);
            let port = AttachedPort::from(GuestPort::new(mtu).with_rules(rules));
            if known {
                w.switch.take_over_port(id, port)
            } else {
                w.switch.add_port(id, port)
            }
            w.watch_guest(id);
        });
        let saved = self.sessions.saved.claim(&config);
        let port_store = self.sessions.store.for_port(id);
        let snapshots = self.sessions.snapshots.clone();
        let port = Attachment::new(config, listener, port_store, snapshots, saved);
        if !self.sessions.saved.waits && !port.awaits_restore() {
            self.watch_listener(id, &port)?;
        }
        if !known {
            self.sessions.tracked.clear(id);
        }
        self.sessions.tracked.limit(port.config(), &self.workers);
        self.ports.insert(id, port);
        Ok(())
    }

    /// Removes a port, from all workers too, with all flows from and to it.
    fn remove_port(&mut self, number: u64, id: PortId) -> Result<Progress, String> {
        let known = |port: &PortId| self.ports.contains_key(port);
        self.observers.mirrors.forget(id, known, &self.workers)?;
        self.peers.remove(&id);
        self.detach_interface(id, None);
        let mut port = self.ports.remove(&id).ok_or("no such port")?;
        unwatch(&self.epoll, &port);
        if let Some(listener) = port.listener() {
            let _ = epoll::delete(&self.epoll, listener);
        }
        self.observers.captures.end_all(Some(id), &self.workers);
        let served = crash_record::serve(Some(id));
        port.close(None, &self.workers);
        drop(served);
        self.workers.each(move |w| {
            let now = w.now();
            w.switch.remove_port(id, now);
        });
        Ok(self.begin(number, Some(id), FlowSweep::Settle))
    }

    /// The time of the next load check; `None` where there is nothing to balance.
    fn next_balance(&self) -> Option<Instant> {
        (self.workers.count() > 1 && self.ports.len() > 1)
            .then(|| self.timers.balanced + BALANCE_INTERVAL)
    }

    fn balance_due(&mut self) {
        let now = Instant::now();
        if self.next_balance().is_some_and(|at| at <= now) {
            self.timers.balanced = now;
            self.workers.balance();
        }
    }

    fn close_all(&mut self) {
        if self.quiesced {
            // The connections belong to the next switch process.
            return;
        }
        for port in self.ports.values_mut() {
            port.close(None, &self.workers);
        }
    }
}

/// The meaning of a descriptor in the epoll set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Supervisor,
    Control,
    Notices,
    Listener(PortId),
    Connection(PortId),
    /// Translations that queues of a port lack.
    Misses(PortId),
    /// The back-end channel of a port.
    Channel(PortId),
}

impl Token {
    fn encode(self) -> EventData {
        EventData::new_u64(match self {
            Token::Supervisor => 0,
            Token::Control => 1,
            Token::Notices => 2,
            Token::Listener(id) => 3 | u64::from(id.0) << 8,
            Token::Connection(id) => 4 | u64::from(id.0) << 8,
            Token::Misses(id) => 5 | u64::from(id.0) << 8,
            Token::Channel(id) => 6 | u64::from(id.0) << 8,
        })
    }

    fn decode(data: EventData) -> Self {
        let id = PortId((data.u64() >> 8) as u32);
        match data.u64() & 0xff {
            0 => Token::Supervisor,
            1 => Token::Control,
            2 => Token::Notices,
            3 => Token::Listener(id),
            4 => Token::Connection(id),
            5 => Token::Misses(id),
            _ => Token::Channel(id),
        }
    }
}
