//! The switch process: the thread that speaks with supervisor, control and front ends.
//!
//! One `epoll` waits for all of them. Whatever changes a queue goes to the worker as a message.

mod captures;
mod connections;
mod errands;
mod flows;
mod hand_over;
mod kept;
mod life;
mod mirrors;
mod ports;
mod token;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::keeping::Marks;
use channel::link::{Link, Received};
use channel::mirrors::Mirror;
use channel::shared;
use channel::supervision::{Ask, CopyEngine, Tell};
use channel::switching::{Order, PortConfig, Report, Request};
use memory::engine::Engines;
use port::PortId;
use port::counters::Counters;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::attach::{Attachment, LeftBehind};
use crate::batching::Rules;
use crate::culprit;
use crate::guest::GuestPort;
use crate::keeper::Deposits;
use crate::worker::{Help, Notice, Notices};
use crate::workers::Workers;
use captures::Captures;
use connections::unwatch;
use errands::{OpenErrands, Progress};
use kept::KeptConnections;
use life::Life;
use token::Token;

// Each port has a part of what all may map.
const _: () = assert!(memory::PORTS == port::counters::MAX_PORTS as u64);

/// Between two looks at the workers' loads.
const BALANCE: Duration = Duration::from_secs(1);
/// Orders of control that are followed in a row.
const ORDERS: usize = 64;

type SupervisorLink = Link<Ask, Tell>;
type ControlLink = Link<Report, Request>;

/// See the module.
struct Process {
    epoll: OwnedFd,
    supervisor: SupervisorLink,
    control: Option<ControlLink>,
    notices: Notices,
    workers: Workers,
    /// When the workers' loads were looked at last.
    balanced: Instant,
    ports: BTreeMap<PortId, Attachment>,
    /// The only users who may connect to ports, where there is one; said before the port comes.
    peers: BTreeMap<PortId, u32>,
    errands: OpenErrands,
    captures: Captures,
    mirrors: Vec<Mirror>,
    deposits: Deposits,
    left: LeftBehind,
    /// What the switch before this one has left, until control has said what is wanted.
    kept: KeptConnections,
    /// When guests are notified.
    rules: Rules,
    /// The supervisor's question whether all threads are alive.
    life: Life,
    stop: bool,
    /// The next switch takes over: nobody is served.
    resting: bool,
}

/// Runs the switch until the supervisor ends it or is gone. `link` is the supervision link. `close` is called once all
/// threads run, before a front end is heard.
///
/// # Errors
/// What keeps the process from starting or from waiting for events.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut supervisor = SupervisorLink::new(link);
    let Received::Message(Tell::StartSwitch(settings), fds) = supervisor.recv()? else {
        return Err(io::Error::other("the supervisor did not say how to start"));
    };
    let [counters, marks] = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|_| io::Error::other("the supervisor sent no counters and marks"))?;
    let counters = Counters::map(&counters).map_err(io::Error::other)?;
    let marks = Marks::map(&marks).map_err(io::Error::other)?;
    supervisor.set_nonblocking()?;
    culprit::name_on_death()?;
    memory::survive_truncation()?;
    let help = Help::new(settings.offload, settings.cores);
    let seed = random_seed()?;
    let (workers, notices) =
        Workers::start_with(settings.workers, settings.poll, &counters, seed, help)?;
    workers.set_marks(&marks);
    culprit::set_own(marks.of(0));
    if settings.copy_engine == CopyEngine::Thread {
        workers.copy_by(&Engines::thread(workers.count(), random_seed()?));
    }
    // Each answers once it runs.
    workers.each(|_| ());
    let deposits = Deposits::new(supervisor.as_fd().try_clone_to_owned()?);
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &supervisor,
        Token::Supervisor.encode(),
        EventFlags::IN,
    )?;
    epoll::add(&epoll, &notices, Token::Notices.encode(), EventFlags::IN)?;
    close()?;
    let mut process = Process {
        epoll,
        supervisor,
        control: None,
        notices,
        workers,
        balanced: Instant::now(),
        ports: BTreeMap::new(),
        peers: BTreeMap::new(),
        errands: OpenErrands::default(),
        captures: Captures::default(),
        mirrors: Vec::new(),
        deposits,
        left: LeftBehind::default(),
        rules: Rules::of(settings.batching),
        kept: KeptConnections::new(settings.successor, settings.waits),
        life: Life::default(),
        stop: false,
        resting: false,
    };
    while !process.stop {
        match process.resting {
            true => process.wait_for_supervisor()?,
            false => process.turn()?,
        }
    }
    process.close_all();
    Ok(())
}

fn random_seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(seed))
}

impl Process {
    fn turn(&mut self) -> io::Result<()> {
        self.pauses_due();
        self.warnings_due();
        self.dial_due();
        self.balance_due();
        self.go_on_due();
        let next = [
            self.next_pause_end(),
            self.next_warning(),
            self.next_dial(),
            self.next_balance(),
            self.next_to_go_on(),
        ];
        let timeout = next.into_iter().flatten().min().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 32];
        let count = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            match Token::decode(event.data) {
                Token::Supervisor => self.hear_supervisor()?,
                Token::Control => self.hear_control(),
                Token::Notices => self.hear_worker(),
                Token::Listener(id) => self.accept(id),
                Token::Connection(id) => self.pump(id),
            }
        }
        Ok(())
    }

    fn hear_supervisor(&mut self) -> io::Result<()> {
        loop {
            match self.supervisor.recv()? {
                Received::Nothing => return Ok(()),
                Received::Closed | Received::Message(Tell::Stop, _) => {
                    self.stop = true;
                    return Ok(());
                }
                Received::Message(Tell::ControlLink, mut fds) => {
                    if let Some(fd) = fds.pop() {
                        self.set_control(fd)?;
                    }
                }
                Received::Message(Tell::Dialed { port, path, error }, mut fds) => {
                    self.dialed(port, &path, fds.pop(), error);
                }
                Received::Message(Tell::Kept { port, numbers }, fds) => {
                    self.kept.add_files(port, numbers, fds);
                }
                Received::Message(
                    Tell::KeptRecord {
                        port,
                        record,
                        condemned,
                    },
                    _,
                ) => self.kept.add_record(port, &record, condemned),
                Received::Message(Tell::Rest, _) => self.rest()?,
                Received::Message(Tell::Unrest, _) => self.unrest(),
                Received::Message(Tell::GoOn, _) => self.take_over()?,
                Received::Message(Tell::Ping, _) => self.ask_for_life(),
                Received::Message(Tell::GuestStates, fds) => self.workers.watch(fds),
                Received::Message(Tell::GuestThreads { port, slots }, _) => {
                    self.workers.set_guest_threads(port, &slots);
                }
                Received::Message(..) => {}
            }
        }
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
            self.errands.control_is_gone();
            self.end_captures(None);
            self.workers.first(|w| w.drop_control());
        }
    }

    /// Sends a report; a control that is gone will ask again when it is back.
    fn report(&mut self, report: &Report, fds: &[BorrowedFd<'_>]) {
        let failed = match &self.control {
            Some(link) => link.send(report, fds).err(),
            None => return,
        };
        if let Some(error) = failed {
            tracing::warn!("control does not listen: {error}");
            self.drop_control();
        }
    }

    /// Follows what control wants, some of it in a row: others have their turn then.
    fn hear_control(&mut self) {
        for _ in 0..ORDERS {
            let Some(link) = &mut self.control else {
                return;
            };
            match link.recv() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(request, fds)) => {
                    let number = request.number;
                    match self.follow(number, request.order, fds) {
                        Ok(Progress::Done) => self.done(number, None),
                        Ok(Progress::Begun) => {}
                        Err(error) => self.done(number, Some(error)),
                    }
                }
                Ok(Received::Closed) => return self.drop_control(),
                Err(error) => {
                    tracing::error!("control makes no sense: {error}");
                    return self.drop_control();
                }
            }
        }
    }

    /// Tells control that an order is done.
    fn done(&mut self, number: u64, error: Option<String>) {
        self.report(&Report::Done { number, error }, &[]);
    }

    fn follow(
        &mut self,
        number: u64,
        order: Order,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Progress, String> {
        match order {
            Order::Adopt => {
                self.adopt().map_err(|e| e.to_string())?;
                return Ok(self.find_stations(number, u32::MAX));
            }
            Order::RemovePort(id) => {
                self.remove_port(id)?;
                return Ok(self.take_out(number, id));
            }
            Order::CountRules => return Ok(self.count_rules(number)),
            Order::Stations { within_ms } => return Ok(self.find_stations(number, within_ms)),
            Order::Check(stations, bound) => {
                return Ok(self.check_flows(number, &stations, &bound));
            }
            Order::Program { program, outdated } => {
                return Ok(self.change_program(number, program, outdated));
            }
            Order::AddPort(config) => self.add_port(config, fds.pop())?,
            Order::SetPort(config) => {
                let port = self.ports.get_mut(&config.id).ok_or("no such port")?;
                if port.config().mtu != config.mtu {
                    port.set_mtu(config.mtu, &self.workers);
                }
                port.set_weight(config.weight, &self.workers);
            }
            Order::SetLimits(id, limits) => self.set_limits(id, limits)?,
            Order::SetPeer(id, user) => self.set_peer(id, user)?,
            Order::SetMirrors(mirrors) => self.set_mirrors(mirrors)?,
            Order::PortStates => self.report_ports(),
            Order::FindFlows(keys) => self.find_flows(keys)?,
            Order::Flows(wanted) => return Ok(self.busiest_flows(number, wanted)),
            Order::Capture(order) => self.capture(&order)?,
            Order::EndCapture(id) => self.end_capture(id),
        }
        Ok(Progress::Done)
    }

    /// Hands the state over to a new control process, and opens its rings.
    fn adopt(&mut self) -> io::Result<()> {
        let region = shared::Region::create()?;
        let copy = region.try_clone()?;
        let (upcalls, answers) = region.switch_ends()?;
        let epoch = self.workers.first(|w| w.switch.program().epoch());
        let adopted = Report::Adopted {
            epoch,
            ports: self.ports.values().map(|p| p.config().clone()).collect(),
            limits: self.limits(),
            mirrors: self.mirrors.clone(),
            peers: self.peers.iter().map(|(id, user)| (*id, *user)).collect(),
        };
        let fds = [
            copy.memory.as_fd(),
            copy.upcall_bell.as_fd(),
            copy.answer_bell.as_fd(),
        ];
        self.report(&adopted, &fds);
        self.workers
            .first(move |w| w.set_control(upcalls, answers))?;
        self.workers.each(|w| w.ask_again());
        Ok(())
    }

    fn report_ports(&mut self) {
        let (figures, workers, counts) = self.count_all();
        let state = |port: &Attachment| {
            let counts = counts.get(&port.config().id);
            port.state(counts.unwrap_or(&BTreeMap::new()))
        };
        let states = self.ports.values().map(state).collect();
        self.report(&Report::PortStates(states, figures, workers), &[]);
    }

    fn add_port(&mut self, config: PortConfig, listener: Option<OwnedFd>) -> Result<(), String> {
        let id = config.id;
        let taken = self.ports.contains_key(&id) || self.errands.is_leaving(id);
        if id.0 as usize >= port::counters::MAX_PORTS || taken {
            return Err(format!("port number {} cannot be used", id.0));
        }
        if let Some(listener) = &listener {
            rustix::io::ioctl_fionbio(listener, true).map_err(|e| e.to_string())?;
        }
        let (mtu, weight) = (config.mtu, config.weight);
        let known = self.kept.is_taking_over();
        let rules = self.rules;
        self.workers.each(move |w| {
            w.set_weight(id, weight);
            let rules = if w.helps() { Rules::OFF } else { rules };
            let copier = w.switch.fabric.copier.clone();
            let port = GuestPort::new(mtu).with_rules(rules).copying_by(copier);
            match known {
                true => w.switch.take_over_port(id, port),
                false => w.switch.add_port(id, port),
            }
            w.watch_guest(id);
        });
        let kept = self.kept.claim(&config);
        let keeper = self.deposits.of(id);
        let left = self.left.clone();
        let port = Attachment::new(config, listener, keeper, left, kept);
        if !self.kept.waits() && !port.is_to_revive() {
            self.watch_listener(id, &port)?;
        }
        self.ports.insert(id, port);
        Ok(())
    }

    fn remove_port(&mut self, id: PortId) -> Result<(), String> {
        self.forget_mirrors_of(id)?;
        self.peers.remove(&id);
        let mut port = self.ports.remove(&id).ok_or("no such port")?;
        unwatch(&self.epoll, &port);
        if let Some(listener) = port.listener() {
            let _ = epoll::delete(&self.epoll, listener);
        }
        self.end_captures(Some(id));
        let _served = culprit::serve(Some(id));
        port.close(None, &self.workers);
        Ok(())
    }

    fn hear_worker(&mut self) {
        self.notices.woke();
        while let Some(notice) = self.notices.next() {
            match notice {
                Notice::QueueFault(id, queue, fault) => {
                    let _served = culprit::serve(Some(id));
                    if let Some(port) = self.ports.get_mut(&id) {
                        port.queue_failed(queue, &fault.to_string(), &self.workers);
                    }
                    self.part_with_who_blocks(id);
                    self.report_phase(id);
                }
                Notice::MemoryLost(id) => {
                    let _served = culprit::serve(Some(id));
                    // Every worker that finds out says so, and the next connection is another one.
                    let port = self.ports.get_mut(&id);
                    if let Some(port) = port.filter(|port| port.memory_is_lost()) {
                        unwatch(&self.epoll, port);
                        port.disconnect(
                            "guest memory was taken away (its file was cut off)",
                            &self.workers,
                        );
                    }
                    self.report_phase(id);
                }
                Notice::Finished(errand) => self.errand_finished(errand),
                Notice::Alive => self.worker_lives(),
            }
        }
    }

    fn report_phase(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        if let Some(phase) = port.phase_change() {
            let reason = port.reason();
            let report = Report::Phase {
                port: id,
                phase,
                reason,
            };
            self.report(&report, &[]);
        }
    }

    /// When the load is to be looked at; `None` where there is nothing to balance.
    fn next_balance(&self) -> Option<Instant> {
        (self.workers.count() > 1 && self.ports.len() > 1).then(|| self.balanced + BALANCE)
    }

    fn balance_due(&mut self) {
        let now = Instant::now();
        if self.next_balance().is_some_and(|at| at <= now) {
            self.balanced = now;
            self.workers.balance();
        }
    }

    fn close_all(&mut self) {
        if self.resting {
            // They are the next switch's.
            return;
        }
        for port in self.ports.values_mut() {
            port.close(None, &self.workers);
        }
    }
}
