//! The engine: one task that owns the wanted state and the forwarding database. It keeps no flows.
//!
//! ```text
//!  API commands --+                    +--> orders to the switch (ports, programs)
//!  upcalls -------+--> Engine::turn ---+--> answers to upcalls, stale flows
//!  reports -------+                    +--> the state file
//!  a clock tick --+
//! ```
//!
//! A first start and a restart are the same: load the state file, adopt what the switch has, change what
//! differs from the wanted state, publish the program, say ready. See [`Engine::start`].

mod access;
mod answers;
mod captures;
mod change;
mod documents;
mod doors;
mod events;
mod forgetting;
mod guards;
mod guests;
mod inquiries;
mod log;
mod metrics;
mod mirrors;
mod numbers;
mod peers;
mod plan;
mod questions;
mod reports;
mod rule_counts;
mod saved;
mod sockets;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use api::v1::Problem;
use channel::limits;
use channel::link::Link;
use channel::mirrors::Mirror;
use channel::owners::SocketOwner;
use channel::records::{Answer, Stale, Upcall};
use channel::shared;
use channel::state::StateFile;
use channel::supervision::{Ask, Tell};
use channel::switching::{PortConfig, PortPhase, StationUse};
use policy::{Lookup, Program};
use port::counters::Counters;
use port::{EventLimiter, PortId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use wire::MacAddr;

use crate::command::{Command, engine_channel};
use crate::events::Events;
use crate::learning::{Effect, Fdb, Limits};
use crate::wanted::Reach;

use access::Access;
use answers::Owners;
use captures::Captures;
use doors::Doors;
use inquiries::Inquiries;
use log::AccessLog;
use metrics::MetricsDoor;
use peers::{PATIENCE, SupervisorPeer, SwitchPeer};
pub use plan::{Basis, Plan};
use questions::Questions;
use rule_counts::{RuleQuestions, deciding};
pub use saved::{Saved, SavedStation};
use start::{adopt, receive_start};

/// Events, and lines of the log, about what one port's guest does: as many lines as the switch has about it.
const PORT_EVENTS: (u32, Duration) = (30, Duration::from_secs(30));
/// Between two looks at ages, and two saves of what was learned.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two questions which stations are in use.
const TICKS_PER_REPORT: u64 = 5;
/// Ticks between two checks of all flows.
const TICKS_PER_CHECK: u64 = 60;
/// Upcalls answered in a row, before the API has its turn.
const UPCALLS_PER_TURN: usize = 256;
/// Until the switch has taken some answers out of a full ring.
const ROOM: Duration = Duration::from_millis(1);
/// Between two saves because stations have moved: guests that claim addresses without end cost no more than that.
const SAVE_PAUSE: Duration = Duration::from_millis(100);
/// API requests that may wait.
const COMMANDS: usize = 64;

/// The time since a fixed moment; tests bring their own.
type Clock = Box<dyn Fn() -> Duration>;

/// Time on the machine's monotonic clock: the same for this process and the one before it.
fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// See the module.
pub struct Engine {
    /// Where sockets may be.
    reach: Reach,
    clock: Clock,
    supervisor: SupervisorPeer,
    switch: SwitchPeer,
    counters: Counters,
    file: StateFile,
    saved: Saved,
    /// What the switch has.
    ports: BTreeMap<PortId, PortConfig>,
    /// Those with a guest or a driver, and how far that is.
    connected: BTreeMap<PortId, PortPhase>,
    owners: Owners,
    /// The only users whose processes may connect to them, where there is one.
    peers: BTreeMap<PortId, u32>,
    /// What the supervisor has made sockets, by their paths; and that number.
    sockets: BTreeMap<String, (SocketOwner, Option<u32>)>,
    /// Of those of them that have any.
    limits: BTreeMap<PortId, limits::Limits>,
    /// Mirrors that the switch has.
    mirrors: Vec<Mirror>,
    program: Program,
    fdb: Fdb,
    upcalls: shared::Receiver,
    questions: Questions,
    answers: shared::Sender,
    /// Answers for which the ring had no room, in order.
    backlog: VecDeque<Answer>,
    upcall_count: u64,
    ticks: u64,
    /// The question for stations in use that has no answer yet, and when it was asked.
    asked: Option<(u64, Duration)>,
    /// When the last one was asked that has its answer.
    heard: Duration,
    /// The state file has a station where it is no more. Who would start from that sends its frames to nobody, and
    /// its flows may be gone, too.
    unsaved_move: bool,
    /// The state file has not what is bound by now. Until it has, no answer is sent: one may let by what is only right with it.
    unsaved_bound: bool,
    saved_at: Duration,
    access: Access,
    /// What was compiled for the change under way.
    ahead: Option<Access>,
    access_log: AccessLog,
    events: Events,
    /// Events about each port that its guest can cause.
    ports_told: BTreeMap<PortId, EventLimiter>,
    /// How far ports are of which that is to be told.
    phases_untold: BTreeMap<PortId, (PortPhase, Option<String>)>,
    doors: Doors,
    captures: Captures,
    /// Where metrics are served.
    metrics: Option<MetricsDoor>,
    inquiries: Inquiries,
    rule_questions: RuleQuestions,
    /// Another control changes and saves what is wanted; see `doors`.
    frozen: bool,
}

/// Runs control until the supervisor ends it or is gone. `link` is the supervision link. `close` is called once everything
/// is set up, before a client is heard.
///
/// # Errors
/// What keeps it from starting, or the loss of the switch.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (mut engine, api) = Engine::start(Link::new(link))?;
    let (handle, commands) = engine_channel(COMMANDS, engine.events.clone());
    let (doors, porter) = doors::hang(!engine.frozen);
    engine.doors = doors;
    let metrics = engine.metrics.as_ref();
    engine
        .doors
        .serve_metrics(metrics.map(|door| Arc::clone(&door.socket)));
    let at_work = porter.start(api, handle)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        close()?;
        at_work.begin();
        engine.supervisor.ready()?;
        engine.supervisor.ask_for_events(false)?;
        let served = engine.serve(commands).await;
        if served
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        {
            engine.supervisor.bereft();
        }
        served
    })
}

impl Engine {
    /// Takes over: the state file's wanted state, the switch's ports and stations. Returns the API's socket.
    ///
    /// # Errors
    /// A peer that is gone or makes no sense, or a wanted port that cannot be made.
    pub fn start(link: Link<Ask, Tell>) -> io::Result<(Self, OwnedFd)> {
        Self::start_with(link, Box::new(monotonic), PATIENCE)
    }

    fn start_with(
        mut link: Link<Ask, Tell>,
        clock: Clock,
        patience: Duration,
    ) -> io::Result<(Self, OwnedFd)> {
        let start = receive_start(&mut link)?;
        let file = StateFile::from_fd(start.state);
        let saved = Saved::load(&file)?;
        let mut switch = SwitchPeer::new(start.switch, patience)?;
        let adopted = adopt(&mut switch)?;
        let (answers, upcalls) = adopted.region.control_ends()?;
        let mut supervisor = SupervisorPeer::new(link, patience)?;
        supervisor.start_frozen(start.frozen);
        let reach = Reach::new(&start.runtime_dir, supervisor.socket_dirs()?);
        let mut engine = Self {
            reach,
            supervisor,
            switch,
            counters: Counters::map(&start.counters).map_err(io::Error::other)?,
            file,
            ports: adopted.ports.into_iter().map(|p| (p.id, p)).collect(),
            connected: BTreeMap::new(),
            owners: Owners::default(),
            peers: adopted.peers.into_iter().collect(),
            sockets: BTreeMap::new(),
            limits: adopted.limits.into_iter().collect(),
            mirrors: adopted.mirrors,
            program: Program::default(),
            fdb: Fdb::new(Limits::default()),
            upcalls,
            questions: Questions::default(),
            answers,
            backlog: VecDeque::new(),
            upcall_count: 0,
            ticks: 0,
            asked: None,
            heard: clock(),
            unsaved_move: false,
            unsaved_bound: false,
            saved_at: Duration::ZERO,
            clock,
            saved,
            access: Access::default(),
            ahead: None,
            access_log: AccessLog::default(),
            events: Events::default(),
            ports_told: BTreeMap::new(),
            phases_untold: BTreeMap::new(),
            doors: Doors::default(),
            captures: Captures::default(),
            metrics: None,
            inquiries: Inquiries::default(),
            rule_questions: RuleQuestions::default(),
            frozen: start.frozen,
        };
        engine.adopt_program(adopted.epoch);
        engine.adopt_bound(&adopted.stations, adopted.epoch == 0)?;
        engine.adopt_pins();
        engine.adopt_rule_counts();
        engine.adopt_learned(&adopted.stations);
        engine.reconcile().map_err(io::Error::other)?;
        engine.check_flows()?;
        engine.answers.ring_bell();
        Ok((engine, start.api))
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Learns again what was known before the restart: first what was saved, then what flows tell.
    fn adopt_learned(&mut self, uses: &[StationUse]) {
        let now = self.now();
        for station in std::mem::take(&mut self.saved.stations) {
            let mac = station.mac();
            self.fdb
                .adopt(station.seen, station.segment, mac, station.port);
        }
        for StationUse { station, idle_ms } in uses {
            let seen = now.saturating_sub(Duration::from_millis((*idle_ms).into()));
            let mac = MacAddr(station.mac);
            self.fdb.adopt(seen, station.segment, mac, station.port);
            self.forget_pretender(station);
        }
    }

    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) -> io::Result<()> {
        let upcalls = watch(&self.upcalls)?;
        let switch = watch(&self.switch)?;
        let supervisor = watch(&self.supervisor)?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closed = self.doors.closed();
        loop {
            // Upcalls never end when a guest wants it so: everything else has its turn after each lot.
            let busy = self.answer_upcalls()? || !self.upcalls.prepare_sleep();
            self.hear_switch()?;
            tokio::select! {
                biased;
                told = supervisor.readable() => {
                    let mut told = told?;
                    self.supervisor.hear();
                    told.clear_ready();
                    self.tell_supervisors_events()?;
                }
                _ = ticks.tick() => self.tick()?,
                report = switch.readable() => {
                    let mut report = report?;
                    self.hear_switch()?;
                    report.clear_ready();
                }
                // Where there are no doors, there is nothing to wait for.
                Ok(()) = closed.changed() => {}
                command = commands.recv() => match command {
                    Some(command) => self.follow(command),
                    None => return Ok(()),
                },
                bell = upcalls.readable(), if !busy => {
                    self.upcalls.woke();
                    bell?.clear_ready();
                }
                () = tokio::task::yield_now(), if busy => {}
                // Nothing tells when the switch has made room in the ring.
                () = sleep(ROOM), if !self.backlog.is_empty() => {}
                () = sleep(SAVE_PAUSE), if self.unsaved_move => {}
            }
            self.upcalls.woke();
            if self.supervisor.wants_stop() {
                return Ok(());
            }
            self.freeze_or_thaw()?;
            self.switch.check()?;
        }
    }

    /// Decides about one upcall and learns from it.
    fn decide(&mut self, upcall: &Upcall) {
        self.upcall_count += 1;
        let now = self.now();
        let key = self.key_of(upcall);
        let Some((decision, alone)) = self.judge(upcall, &key, now) else {
            return;
        };
        self.log_access(now, &key, &decision);
        if alone {
            if let Some(reply) = self.reply_to_upcall(upcall, &key, &decision) {
                let (upcall, frame) = (upcall.id, reply.frame);
                return self.send(Answer::Reply { upcall, frame });
            }
            let (upcall, action) = (upcall.id, decision.action);
            let except = decision.excluded().collect();
            return self.send(Answer::Once {
                upcall,
                action,
                except,
                rules: deciding(&decision),
                epoch: self.program.epoch(),
            });
        }
        let masked = *key.masked(&decision.mask).words();
        let mask = *decision.mask.words();
        let (action, segment) = (decision.action, decision.segment);
        let port_of = |(segment, mac)| self.fdb.at(now).port_of(segment, mac);
        let learned = decision.learn.and_then(port_of) == Some(PortId(key.in_port()));
        self.send(Answer::Install {
            upcall: Some(upcall.id),
            key: masked,
            mask,
            action,
            segment,
            learned,
            except: decision.excluded().collect(),
            rules: deciding(&decision),
            epoch: self.program.epoch(),
        });
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Invalidate { segment, mac } => {
                    let mac = mac.0;
                    self.send(Answer::Forget(Stale::Station { segment, mac }));
                }
                Effect::Moved {
                    segment,
                    mac,
                    from,
                    to,
                } => {
                    self.unsaved_move = true;
                    self.tell_moved((segment, mac), from, to);
                }
                Effect::Barred {
                    segment, mac, port, ..
                } => self.tell_claimed((segment, mac), port),
                Effect::Learned { .. } | Effect::Forgotten { .. } | Effect::Refused { .. } => {
                    tracing::debug!(?effect);
                }
            }
        }
    }

    fn port_name(&self, id: PortId) -> &str {
        self.ports.get(&id).map_or("?", |p| p.name.as_str())
    }

    /// Sends an answer now, or in its turn when the ring is full.
    fn send(&mut self, answer: Answer) {
        if self.unsaved_bound || !self.backlog.is_empty() || !self.answers.send(&answer) {
            self.backlog.push_back(answer);
        }
    }

    fn send_backlog(&mut self) {
        if self.unsaved_bound {
            return;
        }
        while let Some(answer) = self.backlog.front() {
            if !self.answers.send(answer) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn tick(&mut self) -> io::Result<()> {
        self.ticks += 1;
        let effects = self.fdb.expire(self.now());
        self.carry_out(effects);
        if self.ticks.is_multiple_of(TICKS_PER_REPORT) {
            if self.asked.is_none() {
                self.ask_for_stations()?;
            }
            self.count_rules()?;
        }
        self.end_unwanted_captures()?;
        self.tell_phases();
        self.tell_supervisors_events()?;
        if self.ticks.is_multiple_of(TICKS_PER_CHECK) {
            self.check_flows()?;
        }
        self.answers.ring_bell();
        self.save()
    }

    /// Writes the state file where a station has moved since, unless that was done just now; and always where something was
    /// bound. A guest has that done four times a connection at most, and what many bind in one lot is written once.
    fn save_moves(&mut self) -> io::Result<()> {
        let is_due = self.unsaved_move && self.now() >= self.saved_at + SAVE_PAUSE;
        if is_due || self.unsaved_bound {
            self.save()?;
        }
        if self.unsaved_bound {
            self.unsaved_bound = false;
            self.send_backlog();
        }
        Ok(())
    }

    /// Writes the state file, if that is ours now.
    fn save(&mut self) -> io::Result<()> {
        if self.frozen {
            return Ok(());
        }
        let now = self.now();
        (self.unsaved_move, self.saved_at) = (false, now);
        let stations = self.fdb.list(now).into_iter();
        self.saved.stations = stations
            .map(|s| SavedStation {
                segment: s.segment,
                mac: s.mac.0,
                port: s.port,
                seen: now.saturating_sub(s.age),
            })
            .collect();
        self.saved.store(&self.file)
    }

    fn follow(&mut self, command: Command) {
        if self.frozen && !matches!(command, Command::EndCapture(..)) {
            // Of a connection that outlived the closing of the doors: its client is told that nobody answers.
            return;
        }
        // A client that has gone away does not want its answer.
        match command {
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Ports(reply) => drop(reply.send(self.port_list())),
            Command::Metrics(reply) => drop(reply.send(self.facts())),
            Command::Wanted(reply) => drop(reply.send(Ok(self.wanted()))),
            Command::Basis(reply) => drop(reply.send(Ok(self.basis()))),
            Command::Change(planned, reply) => drop(reply.send(self.follow_plan(planned))),
            Command::Stats(reply) => drop(reply.send(self.stats())),
            Command::Fdb(filter, reply) => drop(reply.send(self.fdb_document(&filter))),
            Command::FlushFdb(filter, reply) => drop(reply.send(self.flush_fdb(&filter))),
            Command::PurgeFlows(port, reply) => {
                drop(reply.send(self.purge_flows(port.as_deref())));
            }
            Command::Trace(request, reply) => drop(reply.send(self.trace(&request))),
            Command::RuleCounts(reply) => self.ask_for_rule_counts(reply),
            Command::Flows(filter, reply) => self.ask_for_flows(&filter, reply),
            Command::Capture(port, query, reply) => {
                drop(reply.send(self.capture(&port, &query)));
            }
            Command::EndCapture(id, reply) => drop(reply.send(self.end_capture(id))),
        }
        self.answers.ring_bell();
    }
}

/// Waits for a descriptor to become readable.
#[expect(
    deprecated,
    reason = "the successor is unsafe for the sake of borrowed descriptors; this one is owned"
)]
fn watch(fd: &impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let copy = fd.as_fd().try_clone_to_owned()?;
    AsyncFd::with_interest(copy, Interest::READABLE)
}

fn unavailable(error: io::Error) -> Problem {
    Problem::unavailable(error.to_string())
}
