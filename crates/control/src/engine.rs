//! The engine: one task that owns the desired state and the forwarding database. The flow cache is
//! the switch's.
//!
//! ```text
//!  API commands --+                    +--> commands to the switch (ports, programs)
//!  upcalls -------+--> Engine::serve ---+--> decisions of upcalls, stale flows
//!  switch events -+                    +--> the state file
//!  a clock tick --+
//! ```
//!
//! A first start and a restart are the same: load the state file, adopt the ports of the switch,
//! change what differs from the desired state, publish the program, report ready. See
//! [`Engine::start`].

mod access;
mod api_gate;
mod captures;
mod change;
mod documents;
mod events;
mod flush;
mod guests;
mod log;
mod metrics;
mod mirrors;
mod neighbour_proxy;
mod numbers;
mod peers;
mod plan;
mod port_security;
mod queries;
mod rule_counts;
mod saved;
mod sockets;
mod start;
mod switch_events;
#[cfg(test)]
mod tests;
mod upcall_queue;

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
use channel::supervision::{SupervisorEvent, SupervisorRequest};
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
use channel::sockets::Reach;

use access::Access;
use api_gate::ApiGate;
use captures::Captures;
use log::AccessLog;
use metrics::MetricsSocket;
use neighbour_proxy::Owners;
use peers::{PEER_TIMEOUT, SupervisorPeer, SwitchPeer};
pub use plan::{Basis, Plan};
use queries::Queries;
use rule_counts::{RuleCountRequests, deciding};
pub use saved::{Saved, SavedStation};
use start::{adopt, receive_start};
use upcall_queue::UpcallQueue;

/// Events and log lines that one port's guest can cause, per interval: the same limit as that of
/// the switch.
const PORT_EVENTS: (u32, Duration) = (30, Duration::from_secs(30));
/// Interval, 1 s, between two passes over the ages of entries, and between two saves of learned
/// entries.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two requests for the FDB entries in use.
const TICKS_PER_REPORT: u64 = 5;
/// Ticks between two checks of all flows.
const TICKS_PER_CHECK: u64 = 60;
/// Upcalls handled in a row before the API has its turn.
const UPCALLS_PER_TURN: usize = 256;
/// Interval, 1 ms, after which sending to a full ring is tried again.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Shortest interval, 100 ms, between two saves because of MAC moves: guests that claim
/// addresses in a loop cost no more than that.
const SAVE_INTERVAL: Duration = Duration::from_millis(100);
/// API requests that may be queued.
const MAX_COMMANDS: usize = 64;

/// Clock: returns the time since a fixed moment. Tests pass their own.
type Clock = Box<dyn Fn() -> Duration>;

/// The engine; see the module documentation.
pub struct Engine {
    /// Directories in which sockets may be.
    reach: Reach,
    clock: Clock,
    supervisor: SupervisorPeer,
    switch: SwitchPeer,
    counters: Counters,
    file: StateFile,
    saved: Saved,
    /// Ports of the switch.
    ports: BTreeMap<PortId, PortConfig>,
    /// Ports with a guest or a driver, and their phases.
    connected: BTreeMap<PortId, PortPhase>,
    owners: Owners,
    /// Users that alone may connect, by port; a port without an entry has no such restriction.
    peers: BTreeMap<PortId, u32>,
    /// Listening sockets of the supervisor by path: the owner, and the user that alone may connect.
    sockets: BTreeMap<String, (SocketOwner, Option<u32>)>,
    /// Rate limits of the ports that have any.
    limits: BTreeMap<PortId, limits::Limits>,
    /// Mirrors of the switch.
    mirrors: Vec<Mirror>,
    program: Program,
    fdb: Fdb,
    upcalls: shared::Receiver,
    upcall_queue: UpcallQueue,
    answers: shared::Sender,
    /// Answers for which the ring had no room, in order.
    backlog: VecDeque<Answer>,
    upcall_count: u64,
    ticks: u64,
    /// Number and time of the open request for FDB entries in use.
    stations_request: Option<(u64, Duration)>,
    /// Time of the last such request that was completed.
    last_stations_request: Duration,
    /// An FDB entry has moved since the state file was written. A control that started from that
    /// file would send its frames to the wrong port, and the flows that say otherwise may be gone,
    /// too.
    unsaved_move: bool,
    /// A binding is not in the state file yet. Answers wait until it is: one of them may allow
    /// frames that only this binding makes valid.
    unsaved_bindings: bool,
    saved_at: Duration,
    access: Access,
    /// Access lists compiled for the change under way.
    precompiled: Option<Access>,
    access_log: AccessLog,
    events: Events,
    /// Limiters of the events that each port's guest can cause.
    event_limiters: BTreeMap<PortId, EventLimiter>,
    /// Phases of ports whose events are held back by a limiter.
    pending_phases: BTreeMap<PortId, (PortPhase, Option<String>)>,
    api_gate: ApiGate,
    captures: Captures,
    /// Socket on which metrics are served.
    metrics: Option<MetricsSocket>,
    queries: Queries,
    rule_count_requests: RuleCountRequests,
    /// Another control changes and saves the desired state; see `api_gate`.
    frozen: bool,
}

/// Runs control until the supervisor stops it or is gone. `link` is the supervision link. `close`
/// is called once everything is set up, before the first client is served.
///
/// # Errors
/// A failed start, or the loss of the switch.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (mut engine, api) = Engine::start(Link::new(link))?;
    let (handle, commands) = engine_channel(MAX_COMMANDS, engine.events.clone());
    let (api_gate, api_starter) = api_gate::install(!engine.frozen);
    engine.api_gate = api_gate;
    let metrics = engine.metrics.as_ref();
    engine
        .api_gate
        .serve_metrics(metrics.map(|metrics| Arc::clone(&metrics.socket)));
    let api_thread = api_starter.start(api, handle)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        close()?;
        api_thread.begin();
        engine.supervisor.ready()?;
        engine.supervisor.request_events(false)?;
        let served = engine.serve(commands).await;
        if served
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        {
            engine.supervisor.report_switch_gone();
        }
        served
    })
}

impl Engine {
    /// Takes over the state file's desired state, and the switch's ports and FDB entries. Returns
    /// the API's socket.
    ///
    /// # Errors
    /// A peer that is gone or sends a malformed message, or a desired port that cannot be created.
    pub fn start(link: Link<SupervisorRequest, SupervisorEvent>) -> io::Result<(Self, OwnedFd)> {
        Self::start_with(link, Box::new(sys::time::monotonic), PEER_TIMEOUT)
    }

    fn start_with(
        mut link: Link<SupervisorRequest, SupervisorEvent>,
        clock: Clock,
        timeout: Duration,
    ) -> io::Result<(Self, OwnedFd)> {
        let start = receive_start(&mut link)?;
        let file = StateFile::from_fd(start.state);
        let saved = Saved::load(&file)?;
        let mut switch = SwitchPeer::new(start.switch, timeout)?;
        let adopted = adopt(&mut switch)?;
        let (answers, upcalls) = adopted.region.control_ends()?;
        let mut supervisor = SupervisorPeer::new(link, timeout)?;
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
            upcall_queue: UpcallQueue::default(),
            answers,
            backlog: VecDeque::new(),
            upcall_count: 0,
            ticks: 0,
            stations_request: None,
            last_stations_request: clock(),
            unsaved_move: false,
            unsaved_bindings: false,
            saved_at: Duration::ZERO,
            clock,
            saved,
            access: Access::default(),
            precompiled: None,
            access_log: AccessLog::default(),
            events: Events::default(),
            event_limiters: BTreeMap::new(),
            pending_phases: BTreeMap::new(),
            api_gate: ApiGate::default(),
            captures: Captures::default(),
            metrics: None,
            queries: Queries::default(),
            rule_count_requests: RuleCountRequests::default(),
            frozen: start.frozen,
        };
        engine.adopt_program(adopted.epoch);
        engine.adopt_bindings(&adopted.stations, adopted.epoch == 0)?;
        engine.adopt_pins();
        engine.restore_rule_counts();
        engine.adopt_learned(&adopted.stations);
        engine.reconcile().map_err(io::Error::other)?;
        engine.check_flows()?;
        engine.answers.ring_bell();
        Ok((engine, start.api))
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Restores the FDB after a restart: first the saved entries, then those that flows show.
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
            self.invalidate_barred(station);
        }
    }

    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) -> io::Result<()> {
        let upcalls = watch(&self.upcalls)?;
        let switch = watch(&self.switch)?;
        let supervisor = watch(&self.supervisor)?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut gate_changes = self.api_gate.changes();
        loop {
            // A guest can cause upcalls without end: everything else has its turn after each batch.
            let busy = self.handle_upcalls()? || !self.upcalls.prepare_sleep();
            self.handle_switch_events()?;
            tokio::select! {
                biased;
                event = supervisor.readable() => {
                    let mut event = event?;
                    self.supervisor.handle_events();
                    event.clear_ready();
                    self.publish_supervisor_events()?;
                }
                _ = ticks.tick() => self.tick()?,
                report = switch.readable() => {
                    let mut report = report?;
                    self.handle_switch_events()?;
                    report.clear_ready();
                }
                // An engine without an API gate has nothing to wait for here.
                Ok(()) = gate_changes.changed() => {}
                command = commands.recv() => match command {
                    Some(command) => self.execute(command),
                    None => return Ok(()),
                },
                bell = upcalls.readable(), if !busy => {
                    self.upcalls.woke();
                    bell?.clear_ready();
                }
                () = tokio::task::yield_now(), if busy => {}
                // The switch does not notify when it has made room in the ring.
                () = sleep(SEND_RETRY_INTERVAL), if !self.backlog.is_empty() => {}
                () = sleep(SAVE_INTERVAL), if self.unsaved_move => {}
            }
            self.upcalls.woke();
            if self.supervisor.is_stopping() {
                return Ok(());
            }
            self.freeze_or_thaw()?;
            self.switch.check()?;
        }
    }

    /// Decides one upcall and learns from it.
    fn decide(&mut self, upcall: &Upcall) {
        self.upcall_count += 1;
        let now = self.now();
        let key = self.key_of(upcall);
        let Some((decision, alone)) = self.decide_and_learn(upcall, &key, now) else {
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

    fn apply_effects(&mut self, effects: Vec<Effect>) {
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
                    self.emit_mac_moved((segment, mac), from, to);
                }
                Effect::Barred {
                    segment, mac, port, ..
                } => self.emit_mac_spoofed((segment, mac), port),
                Effect::Learned { .. } | Effect::Forgotten { .. } | Effect::Refused { .. } => {
                    tracing::debug!(?effect);
                }
            }
        }
    }

    fn port_name(&self, id: PortId) -> &str {
        self.ports.get(&id).map_or("?", |p| p.name.as_str())
    }

    /// Sends an answer, or queues it when the ring is full.
    fn send(&mut self, answer: Answer) {
        if self.unsaved_bindings || !self.backlog.is_empty() || !self.answers.send(&answer) {
            self.backlog.push_back(answer);
        }
    }

    fn send_backlog(&mut self) {
        if self.unsaved_bindings {
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
        self.apply_effects(effects);
        if self.ticks.is_multiple_of(TICKS_PER_REPORT) {
            if self.stations_request.is_none() {
                self.request_stations()?;
            }
            self.request_rule_counts()?;
        }
        self.end_orphaned_captures()?;
        self.emit_pending_phases();
        self.publish_supervisor_events()?;
        if self.ticks.is_multiple_of(TICKS_PER_CHECK) {
            self.check_flows()?;
        }
        self.answers.ring_bell();
        self.save()
    }

    /// Writes the state file after a MAC move, at most once per [`SAVE_INTERVAL`], and always after
    /// a new binding. A guest causes at most four bindings a connection, and those of one batch of
    /// upcalls are written together.
    fn save_moves(&mut self) -> io::Result<()> {
        let is_due = self.unsaved_move && self.now() >= self.saved_at + SAVE_INTERVAL;
        if is_due || self.unsaved_bindings {
            self.save()?;
        }
        if self.unsaved_bindings {
            self.unsaved_bindings = false;
            self.send_backlog();
        }
        Ok(())
    }

    /// Writes the state file, unless another control writes it.
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

    fn execute(&mut self, command: Command) {
        if self.frozen && !matches!(command, Command::EndCapture(..)) {
            // A connection that outlived the closing of the gate: its client gets the error that
            // control is shutting down.
            return;
        }
        // Sending fails when the client is gone; nothing is to be done then.
        match command {
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Ports(reply) => drop(reply.send(self.port_list())),
            Command::Metrics(reply) => drop(reply.send(self.facts())),
            Command::Desired(reply) => drop(reply.send(Ok(self.desired()))),
            Command::Basis(reply) => drop(reply.send(Ok(self.basis()))),
            Command::Change(planned, reply) => drop(reply.send(self.execute_plan(planned))),
            Command::Stats(reply) => drop(reply.send(self.stats())),
            Command::Fdb(filter, reply) => drop(reply.send(self.fdb_document(&filter))),
            Command::FlushFdb(filter, reply) => drop(reply.send(self.flush_fdb(&filter))),
            Command::PurgeFlows(port, reply) => {
                drop(reply.send(self.purge_flows(port.as_deref())));
            }
            Command::Trace(request, reply) => drop(reply.send(self.trace(&request))),
            Command::RuleCounts(reply) => self.queue_rule_counts(reply),
            Command::Flows(filter, reply) => self.queue_flow_dump(&filter, reply),
            Command::Capture(port, query, reply) => {
                drop(reply.send(self.capture(&port, &query)));
            }
            Command::EndCapture(id, reply) => drop(reply.send(self.end_capture(id))),
        }
        self.answers.ring_bell();
    }
}

/// Returns a descriptor that the runtime can wait for until it is readable.
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
