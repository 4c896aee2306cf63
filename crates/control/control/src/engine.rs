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
//! The engine never waits for a peer. Commands that need one are futures (`work::Work`), which
//! have the engine only between two waits (`SharedEngine`); upcalls, events and ticks are handled
//! meanwhile. Changes of the desired state are made one after the other.
//!
//! A first start and a restart are the same: load the state file, adopt the ports of the switch,
//! change what differs from the desired state, publish the program, report ready. See
//! `Engine::start`.

mod changes;
mod event_log;
mod forwarding;
mod links;
mod ports;
mod queries;
mod start;
mod stations;
mod store;
#[cfg(test)]
mod tests;
mod work;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use api::v1::{DesiredState, Problem};
use config::desired;
use ipc::driving::UserNetwork;
use ipc::link::Link;
use ipc::sockets::Reach;
use ipc::state::StateFile;
use ipc::supervision::{ControlRequest, EventToControl};
use ipc::switching::{Station, SwitchCommand, SwitchEvent};
use port::counters::Counters;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::command::Command;
use crate::connections::ConnectionTable;
use crate::events::Events;
use crate::gate::{self, ApiGate, ServerGate};
use crate::pipes::PipeServer;
use crate::rule_counts::CountSnapshot;
use crate::saved::SavedState;

use event_log::EventLog;
use forwarding::{Directory, Forwarding, Notice, wire_tables};
use links::loss::SwitchLoss;
use links::{Links, PEER_TIMEOUT, watch};
use ports::Ports;
use queries::captures::Captures;
use queries::connections;
use queries::flow_dumps::FlowDumpQueue;
use queries::prefilters as documents;
use queries::rule_counts::{self, RuleCountRequests};
use start::{AdoptedState, adopt};
pub(crate) use start::{Start, receive_start};
use stations::StationReports;
use store::{SAVE_INTERVAL, Store};
use work::Work;

/// Interval, 1 s, between two passes over the ages of entries, and between two saves of learned
/// entries.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two requests for the FDB entries in use.
const TICKS_PER_REPORT: u64 = 5;
/// Ticks between two checks of all flows.
const TICKS_PER_CHECK: u64 = 60;
/// Interval, 1 ms, after which sending to a full ring or link is tried again.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Clock: returns the time since a fixed moment. Tests pass their own.
type Clock = Rc<dyn Fn() -> Duration>;

/// The engine; see the module documentation.
pub struct Engine {
    clock: Clock,
    counters: Counters,
    connections: ConnectionTable,
    links: Links,
    forwarding: Forwarding,
    store: Store,
    ports: Ports,
    events: EventLog,
    api_gate: ApiGate,
    pipes: PipeServer,
    captures: Captures,
    flow_dumps: FlowDumpQueue,
    rule_counts: RuleCountRequests,
    stations: StationReports,
    ticks: u64,
}

/// The parts of an engine that need no switch: the threads of the API and of pipes share them, and
/// are started while the switch gets what its predecessor had.
pub(crate) struct EngineParts {
    events: EventLog,
    api_gate: ApiGate,
    pub(crate) pipes: PipeServer,
}

impl EngineParts {
    /// Returns the parts, with the server's side of the API gate.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(frozen: bool) -> io::Result<(Self, ServerGate)> {
        let (api_gate, server_gate) = gate::install(!frozen);
        let parts = Self {
            events: EventLog::default(),
            api_gate,
            pipes: PipeServer::new()?,
        };
        Ok((parts, server_gate))
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> Events {
        self.events.events.clone()
    }
}

/// The engine as its commands share it: each has it between two waits, never during one.
struct SharedEngine<'a>(RefCell<&'a mut Engine>);

impl<'a> SharedEngine<'a> {
    fn new(engine: &'a mut Engine) -> Self {
        Self(RefCell::new(engine))
    }

    /// Runs a function on the engine.
    fn with<T>(&self, work: impl FnOnce(&mut Engine) -> T) -> T {
        work(&mut self.0.borrow_mut())
    }

    /// Sends the switch a command and waits until it is done.
    async fn order(&self, order: SwitchCommand) -> Result<(), Problem> {
        let done = self.with(|e| e.links.switch.request(order, Vec::new()));
        done.await.map(drop).map_err(unavailable)
    }
}

/// Conditions for the loop's waits, beside messages.
struct Waits {
    /// There may be more upcalls.
    busy: bool,
    /// A ring or a link had no room. Peers do not notify when they have made some.
    is_full: bool,
    /// An FDB entry has moved since the last save.
    unsaved_move: bool,
    supervisor_is_gone: bool,
}

impl Engine {
    /// Takes over the state file's desired state, and the switch's ports and FDB entries. Returns
    /// the API's socket.
    ///
    /// # Errors
    /// A peer that is gone or sends a malformed message, or a desired port that cannot be created.
    pub(crate) async fn start(
        start: Start,
        link: Link<ControlRequest, EventToControl>,
        parts: EngineParts,
    ) -> io::Result<Self> {
        let clock = Rc::new(sys::time::monotonic);
        Self::start_with(start, link, parts, (clock, PEER_TIMEOUT)).await
    }

    async fn start_with(
        start: Start,
        link: Link<ControlRequest, EventToControl>,
        parts: EngineParts,
        clock: (Clock, Duration),
    ) -> io::Result<Self> {
        let loss = SwitchLoss::new(&start.switch, &link)?;
        loss.reported(Self::start_over(start, link, parts, clock).await)
    }

    async fn start_over(
        start: Start,
        link: Link<ControlRequest, EventToControl>,
        parts: EngineParts,
        (clock, timeout): (Clock, Duration),
    ) -> io::Result<Self> {
        let file = StateFile::from_fd(start.state);
        let saved = SavedState::load(&file)?;
        let mut links = Links::new(start.switch, link, timeout)?;
        links.supervisor.start_frozen(start.frozen);
        let watch = links.watch()?;
        // A successor of a switch that died replies when it has all of that. What the supervisor is
        // asked for comes meanwhile.
        let adoption = adopt(&mut links.switch);
        let states = links.switch.port_states();
        let dirs = links.supervisor.socket_dirs();
        let forwards = links.supervisor.forward_reach();
        let dirs = watch.complete(|| links.receive(), dirs).await??;
        let forwards = watch.complete(|| links.receive(), forwards).await??;
        let reach = Reach::new(&start.runtime_dir, dirs).with_forwards(forwards);
        let adopted = watch.complete(|| links.receive(), adoption).await??;
        let (states, _) = watch.complete(|| links.receive(), states).await??;
        let (answers, upcalls) = adopted.region.try_clone()?.control_ends()?;
        let mut engine = Self {
            counters: Counters::map(&start.counters).map_err(io::Error::other)?,
            connections: ConnectionTable::default(),
            links,
            forwarding: Forwarding::new(Rc::clone(&clock), answers, upcalls),
            store: Store::new(file, saved, reach, start.frozen),
            ports: Ports::default(),
            events: parts.events,
            api_gate: parts.api_gate,
            pipes: parts.pipes,
            captures: Captures::default(),
            flow_dumps: FlowDumpQueue::default(),
            rule_counts: RuleCountRequests::default(),
            stations: StationReports::new(clock()),
            ticks: 0,
            clock,
        };
        engine.adopt(adopted, &states);
        let mut target = engine.target();
        let shared = SharedEngine::new(&mut engine);
        let reconciled = changes::reconcile(&shared, &mut target);
        let receive = || shared.with(|e| e.links.receive());
        let reconciled = watch.complete(receive, reconciled).await?;
        reconciled.map_err(io::Error::other)?;
        engine.ports.postpones = false;
        engine.forwarding.upcalls.release();
        engine.check_flows()?;
        engine.forwarding.answers.ring_bell();
        Ok(engine)
    }

    /// Adopts the state of the switch, and restores the FDB and the bindings: first the saved
    /// entries, then those that flows show.
    fn adopt(&mut self, adopted: AdoptedState, states: &[ipc::switching::PortState]) {
        let (epoch, stations) = (adopted.epoch, adopted.stations);
        self.ports.configs = adopted.ports.into_iter().map(|p| (p.id, p)).collect();
        self.ports.peers = adopted.peers.into_iter().collect();
        self.ports.postpone(adopted.without_listener);
        self.ports.limits = adopted.limits.into_iter().collect();
        self.ports.mirrors = adopted.mirrors;
        if self.store.saved.scheduled {
            self.ports.qos.adopt(self.ports.configs.keys().copied());
        }
        self.adopt_program(epoch);
        let (saved, forwarding) = (&mut self.store.saved, &mut self.forwarding);
        forwarding.bound = std::mem::take(&mut saved.bound);
        forwarding.adopt_bindings(states, &stations, epoch == 0);
        let saved_stations = std::mem::take(&mut saved.stations);
        self.rule_counts.restore(&saved.rule_counts);
        forwarding.adopt_owners(Directory::new(&self.ports, &self.store));
        for station in saved_stations {
            let mac = station.mac();
            let (seen, segment, port) = (station.seen, station.segment, station.port);
            forwarding.fdb.adopt(seen, segment, mac, port);
        }
        forwarding.adopt_stations(&stations);
    }

    /// Returns the events.
    fn events(&self) -> Events {
        self.events.events.clone()
    }

    /// Reports ready and serves until the supervisor stops control or is gone.
    ///
    /// # Errors
    /// The loss of the switch.
    pub async fn run(&mut self, commands: mpsc::Receiver<Command>) -> io::Result<()> {
        self.links.supervisor.ready()?;
        self.links.supervisor.request_events(false)?;
        let loss = SwitchLoss::new(&self.links.switch, &self.links.supervisor)?;
        loss.reported(self.serve(commands).await)
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) -> io::Result<()> {
        let upcalls = watch(&self.forwarding.upcalls)?;
        let links = self.links.watch()?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut gate_changes = self.api_gate.changes();
        let engine = SharedEngine::new(self);
        let mut work = Work::new(&engine);
        work.listen_again();
        loop {
            // A guest can cause upcalls without end: everything else has its turn after each batch.
            let waits = engine.with(Engine::turn)?;
            let due = work.until_prefilters();
            tokio::select! {
                biased;
                ready = links.supervisor.readable(), if !waits.supervisor_is_gone => {
                    let mut ready = ready?;
                    engine.with(|e| e.links.supervisor.receive());
                    ready.clear_ready();
                    engine.with(Engine::publish_supervisor_events)?;
                }
                _ = ticks.tick() => {
                    engine.with(Engine::tick)?;
                    work.follow_speeds();
                    work.take_prefilters();
                }
                ready = links.switch.readable() => {
                    let mut ready = ready?;
                    engine.with(Engine::handle_switch_events)?;
                    ready.clear_ready();
                }
                // An engine without an API gate has nothing to wait for here.
                Ok(()) = gate_changes.changed() => {}
                () = work.progress(), if !work.is_empty() => {}
                command = commands.recv(), if work.takes_commands() => match command {
                    Some(command) => work.execute(command),
                    None => return Ok(()),
                },
                bell = upcalls.readable(), if !waits.busy => {
                    engine.with(|e| e.forwarding.upcalls.woke());
                    bell?.clear_ready();
                }
                () = tokio::task::yield_now(), if waits.busy => {}
                () = sleep(SEND_RETRY_INTERVAL), if waits.is_full => {}
                () = sleep(SAVE_INTERVAL), if waits.unsaved_move => {}
                () = sleep(due.unwrap_or_default()), if due.is_some() => {
                    engine.with(Engine::tick_prefilters);
                }
            }
            engine.with(|e| e.forwarding.upcalls.woke());
            if engine.with(|e| e.links.supervisor.is_stopping()) {
                work.finish();
                if !work.is_changing() {
                    return Ok(());
                }
            }
            engine.with(|e| e.freeze_or_thaw(work.is_changing()))?;
            if !work.is_changing() {
                engine.with(|e| e.links.switch.check())?;
            }
        }
    }

    /// Handles what can be handled at once.
    fn turn(&mut self) -> io::Result<Waits> {
        self.links.flush()?;
        self.handle_switch_events()?;
        let more = self.handle_upcalls()?;
        Ok(Waits {
            busy: more || !self.forwarding.upcalls.prepare_sleep(),
            is_full: self.forwarding.answers.queued() > 0 || self.links.has_unsent(),
            unsaved_move: self.forwarding.unsaved_move,
            supervisor_is_gone: self.links.supervisor.is_gone(),
        })
    }

    /// Handles queued upcalls. Returns `true` when there may be more.
    fn handle_upcalls(&mut self) -> io::Result<bool> {
        let directory = Directory::new(&self.ports, &self.store);
        let more = self.forwarding.handle_upcalls(directory)?;
        self.emit_notices()?;
        self.store.save_moves(&mut self.forwarding)?;
        self.forwarding.answers.ring_bell();
        Ok(more)
    }

    fn emit_notices(&mut self) -> io::Result<()> {
        let now = self.now();
        let notices = self.forwarding.take_notices();
        for notice in &notices {
            let directory = Directory::new(&self.ports, &self.store);
            self.events.emit(now, notice, directory);
        }
        let mut notices = notices.iter();
        let is_bound = notices.any(|notice| matches!(notice, Notice::Bound(..)));
        if is_bound && !self.ports.user_networks.is_empty() {
            let networks = self.user_networks(&self.store.saved.desired);
            if networks != self.ports.user_networks {
                self.set_user_networks(networks)?;
            }
        }
        Ok(())
    }

    fn set_user_networks(&mut self, networks: Vec<(String, UserNetwork)>) -> io::Result<()> {
        self.ports.user_networks.clone_from(&networks);
        self.links.supervisor.set_user_networks(networks)
    }

    /// Returns the networks of the user ports of a state, with the stations that port security has
    /// bound to ports.
    fn user_networks(&self, desired: &DesiredState) -> Vec<(String, UserNetwork)> {
        let bound = self.forwarding.bound.iter();
        let bound = bound.filter_map(|(port, bound)| Some((self.ports.name(*port), bound.mac?)));
        let bound: BTreeMap<&str, [u8; 6]> = bound.collect();
        desired::user_networks(desired, |name| bound.get(name).copied())
    }

    fn own_stations(&mut self) {
        let directory = Directory::new(&self.ports, &self.store);
        self.forwarding.own_stations(directory);
    }

    /// Handles the events that the switch has sent.
    fn handle_switch_events(&mut self) -> io::Result<()> {
        self.links.receive_from_switch()?;
        while let Some(event) = self.links.switch.next_event() {
            match event {
                SwitchEvent::Stations(uses) => self.forwarding.refresh_stations(&uses),
                SwitchEvent::Done { number, error } => self.command_done(number, error)?,
                SwitchEvent::Phases(reports) => {
                    let (now, directory) = (self.now(), Directory::new(&self.ports, &self.store));
                    self.forwarding.record_phases(&reports, directory)?;
                    self.events.phases_changed(now, reports, directory);
                }
                SwitchEvent::Rules(uses) => self.rule_counts.add(&uses, self.now()),
                SwitchEvent::Flows(number, part) => self.flow_dumps.add(number, part),
                SwitchEvent::Adopted { .. }
                | SwitchEvent::PortStates(..)
                | SwitchEvent::Found(_)
                | SwitchEvent::EgressUse(..)
                | SwitchEvent::Capture { .. } => {}
            }
        }
        self.emit_notices()?;
        Ok(())
    }

    /// Completes the periodic request or the query of this number.
    fn command_done(&mut self, number: u64, error: Option<String>) -> io::Result<()> {
        if self.stations.finish(number) {
            self.forwarding.settle_stations();
        }
        self.finish_rule_counts(number, error.as_deref())?;
        let numbers = &self.store.saved.numbers;
        self.flow_dumps
            .finish(number, error, numbers, &mut self.links.switch);
        Ok(())
    }

    fn finish_rule_counts(&mut self, number: u64, error: Option<&str>) -> io::Result<()> {
        let Some(replies) = self.rule_counts.take_done(number) else {
            return Ok(());
        };
        let access = &self.store.saved.desired.access;
        if let Some(counts) = self.rule_counts.take_new(access) {
            self.store.saved.rule_counts = counts;
            // The switch sends each difference once.
            self.save()?;
        }
        rule_counts::reply_all(replies, error, || self.counted());
        self.rule_counts.request(false, &mut self.links.switch)
    }

    /// Returns the counters of rules as of the last reply of the switch.
    fn counted(&self) -> CountSnapshot {
        let access = &self.store.saved.desired.access;
        self.rule_counts.counted(access, self.now())
    }

    /// Makes the switch remove the flows that would be decided differently now. That repairs flows
    /// whose invalidation was lost, also by a predecessor.
    fn check_flows(&mut self) -> io::Result<()> {
        let stations = self.forwarding.fdb.list(self.now()).into_iter();
        let stations = stations.map(|s| Station {
            segment: s.segment,
            mac: s.mac.0,
            port: s.port,
        });
        let bound = self.forwarding.bound.iter();
        let bound = bound.map(|(port, bound)| (*port, *bound));
        let order = SwitchCommand::Check(stations.collect(), bound.collect());
        self.links.switch.send(order).map(drop)
    }

    /// Publishes the supervisor's events and requests more.
    fn publish_supervisor_events(&mut self) -> io::Result<()> {
        let documents = self.links.supervisor.take_events();
        if documents.is_empty() {
            return Ok(());
        }
        self.events.publish_documents(documents);
        self.links.supervisor.request_events(true)
    }

    fn tick(&mut self) -> io::Result<()> {
        self.ticks += 1;
        let now = self.now();
        let effects = self.forwarding.fdb.expire(now);
        self.forwarding.apply_effects(effects);
        let switch = &mut self.links.switch;
        if self.ticks.is_multiple_of(TICKS_PER_REPORT) {
            self.stations.request(now, switch)?;
            let any_rules = !self.forwarding.program.rules().is_empty();
            self.rule_counts.request(any_rules, switch)?;
        }
        self.captures.end_orphans(switch)?;
        let (captures, ports) = (&self.captures, &self.ports);
        let is_watched = |port| captures.needs_all(port) || ports.is_mirrored(port);
        wire_tables::look(&mut self.forwarding, &self.counters, is_watched);
        connections::ports::report_full(self);
        self.emit_notices()?;
        let directory = Directory::new(&self.ports, &self.store);
        self.events.emit_pending(now, directory);
        self.publish_supervisor_events()?;
        if self.ticks.is_multiple_of(TICKS_PER_CHECK) {
            self.check_flows()?;
        }
        self.forwarding.answers.ring_bell();
        self.store.save_stations(&mut self.forwarding)
    }

    /// Changes the tables of active prefilters.
    fn tick_prefilters(&mut self) {
        let (captures, ports) = (&self.captures, &self.ports);
        let is_watched = |port| captures.needs_all(port) || ports.is_mirrored(port);
        wire_tables::tick(&mut self.forwarding, &self.counters, is_watched);
        let uses = self.forwarding.prefilters.take_uses();
        self.rule_counts.add(&uses, self.now());
        documents::report_turns(self);
    }

    fn save(&mut self) -> io::Result<()> {
        self.store.save(&mut self.forwarding)
    }

    /// Follows the supervisor's last freeze or thaw request. A change under way is made first.
    fn freeze_or_thaw(&mut self, is_changing: bool) -> io::Result<()> {
        let freeze = self.links.supervisor.is_freezing();
        self.api_gate.set(!freeze);
        self.pipes.set_open(!freeze);
        if !freeze {
            self.store.frozen = false;
            return Ok(());
        }
        // The table has one writer: the next control.
        let now = self.now();
        self.forwarding.prefilters.retain(now, |_| false);
        self.forwarding.prefilters.were_asked_for = false;
        // Streams to their clients would keep the gate open.
        self.captures.end_all(&mut self.links.switch)?;
        self.events.events.end_clients();
        if !self.store.frozen && !is_changing && !self.api_gate.is_open() {
            self.save()?;
            self.store.frozen = true;
            self.links.supervisor.report_frozen()?;
        }
        Ok(())
    }
}

fn unavailable(error: io::Error) -> Problem {
    Problem::unavailable(error.to_string())
}
