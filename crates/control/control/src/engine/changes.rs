//! Changes of the desired state: makes the switch and the supervisor match a target, then puts it
//! into effect. One change is made at a time; it waits for the peers, and upcalls and reads are
//! answered meanwhile, under the desired state and the program in effect. The order of effects:
//! table of connections, sockets and interfaces, ports, limits, scheduling, mirrors, program, state
//! file. A change that
//! fails is undone by making the previous state the target.

mod claims;
mod connections;
pub(super) mod prefilters;
mod scheduling;
mod target;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::Arc;

use api::v1::{DesiredState, PortSpec, Problem, ProblemKind, Warning};
use ipc::driving;
use ipc::state::PARTS_MAX;
use ipc::switching::{self, PortConfig, SwitchCommand};
use policy::{Model, Program};
use port::PortId;
use sys::foreign::ForeignFd;

use super::forwarding::wire_tables::revalidate;
use super::ports::MetricsSocket;
use super::queries::status::port_status_now;
use super::{Engine, SharedEngine, unavailable};
use crate::command::{ChangeOutcome, DesiredSnapshot};
use crate::pipes::PipeListener;
use crate::plan::{Plan, Request};
use crate::saved::{EncodedChunks, Numbers};
use claims::Claims;
use config::desired;
pub(super) use scheduling::{follow_speeds, has_speeds};
pub(super) use target::Target;

/// Maximum number of requests that are under way at a time: the supervisor ends a process whose
/// link has no room for a reply.
const REQUESTS_AHEAD: usize = 128;

/// Returns the switch's configuration of a desired port.
fn config_of(spec: &PortSpec, id: PortId) -> PortConfig {
    let (socket, role) = if spec.kind.has_driver() {
        // The switch connects, and the supervisor connects a driver to the other side.
        (driving::address(&spec.name), switching::Role::Client)
    } else if desired::dials(spec) {
        (spec.socket.clone(), switching::Role::Client)
    } else {
        (spec.socket.clone(), switching::Role::Server)
    };
    PortConfig {
        id,
        name: spec.name.clone(),
        socket,
        role,
        queues: spec.queues,
        mtu: spec.mtu,
        weight: spec.weight,
        mac: spec.mac.as_deref().and_then(api::v1::parse_mac),
        clients: desired::clients_of(spec),
        iommu: desired::iommu_of(spec),
    }
}

/// Returns the problem of a desired state that could not be saved.
fn save_problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            let most = PARTS_MAX >> 20;
            let detail = format!("access lists are limited to {most} MiB as JSON");
            Problem::new(ProblemKind::TooLarge, detail)
        }
        _ => unavailable(error),
    }
}

/// Makes the ports, limits, scheduling, mirrors and program of the switch match a target, and puts
/// it into effect.
///
/// # Errors
/// The first port that cannot be created; earlier steps are not undone.
pub(super) async fn reconcile(
    engine: &SharedEngine<'_>,
    target: &mut Target,
) -> Result<(), Problem> {
    let model = target.model();
    engine.with(|e| target.compile_access(&model, &e.store.access))?;
    connections::admit(engine, target).await?;
    let metrics = claims::metrics(engine, &target.desired).await?;
    let mut claims = match claims::sockets(engine, &target.desired.ports).await {
        Ok(claims) => claims,
        Err(problem) => {
            engine.with(|e| e.release_metrics(metrics.as_ref()))?;
            return Err(problem);
        }
    };
    let mut pipes = Vec::new();
    let done = match claims::pipes(engine, &target.desired, &mut pipes).await {
        Ok(()) => reconcile_switch(engine, target, &mut claims).await,
        Err(problem) => Err(problem),
    };
    engine.with(|e| e.release_sockets(claims))?;
    if let Err(problem) = done {
        engine.with(|e| e.release_metrics(metrics.as_ref()))?;
        engine.with(|e| e.release_pipes(&pipes))?;
        return Err(problem);
    }
    engine.with(|e| e.serve_metrics(metrics))?;
    engine.with(|e| e.serve_pipes(pipes))?;
    let threads = target.thread_names();
    engine
        .with(|e| e.links.supervisor.watch_guests(threads))
        .map_err(unavailable)?;
    let published = publish(engine, target, &model).await;
    let committed = published.and_then(|program| {
        let committed = engine.with(|e| e.commit(target, program));
        committed.map_err(save_problem)
    });
    engine.with(|e| e.forwarding.prefilters.release());
    committed?;
    // The change is made, with or without them.
    if let Err(problem) = prefilters::follow(engine).await {
        tracing::warn!("prefilters: {problem}");
    }
    Ok(())
}

/// Makes interfaces, ports, limits, scheduling and mirrors match a target whose sockets are open.
async fn reconcile_switch(
    engine: &SharedEngine<'_>,
    target: &mut Target,
    claims: &mut Claims,
) -> Result<(), Problem> {
    claims::dials(engine, target).await?;
    // It closes the interfaces that are no longer desired, so all other claims come first.
    claims::interfaces(engine, target).await?;
    scheduling::admit(engine, target).await?;
    scheduling::rooms(engine, target)?;
    reconcile_ports(engine, target, claims).await?;
    reconcile_limits(engine, target).await?;
    scheduling::reconcile(engine, target).await?;
    // Before the program, with which a new switch starts to forward: no frame is forwarded
    // without its copies.
    let mirrors = engine.with(|e| target.mirrors(&e.counters));
    if engine.with(|e| e.ports.mirrors == mirrors) {
        return Ok(());
    }
    engine
        .order(SwitchCommand::SetMirrors(mirrors.clone()))
        .await?;
    engine.with(|e| e.ports.mirrors = mirrors);
    Ok(())
}

async fn reconcile_ports(
    engine: &SharedEngine<'_>,
    target: &mut Target,
    claims: &mut Claims,
) -> Result<(), Problem> {
    let mut configs = BTreeMap::new();
    for spec in &target.desired.ports {
        let id = target.numbers.port_id(&spec.name);
        configs.insert(id, (config_of(spec, id), spec));
    }
    let is_removed = |(id, old): &(&PortId, &PortConfig)| {
        let new = configs.get(id);
        new.is_none_or(|(new, _)| !old.keeps_connection(new))
    };
    let removed: Vec<PortId> = engine.with(|e| {
        let removed = e.ports.configs.iter().filter(is_removed);
        removed.map(|(id, _)| *id).collect()
    });
    for id in removed {
        engine.order(SwitchCommand::RemovePort(id)).await?;
        engine.with(|e| e.port_removed(id, claims))?;
    }
    let (mut made, mut deaf) = (Vec::new(), Vec::new());
    for (id, (new, spec)) in configs {
        match engine.with(|e| e.ports.configs.get(&id).cloned()) {
            None => {
                let socket = match new.role {
                    switching::Role::Server => Some(claims.take(engine, spec).await?),
                    switching::Role::Client => None,
                };
                // Before the first client can connect.
                reconcile_peer(engine, &new).await?;
                made.push((new, socket));
            }
            Some(old) => {
                reconcile_peer(engine, &new).await?;
                if engine.with(|e| e.ports.lacks_listener(id)) {
                    deaf.push((id, claims.take(engine, spec).await?));
                }
                if old != new {
                    engine.order(SwitchCommand::SetPort(new.clone())).await?;
                    engine.with(|e| e.ports.configs.insert(id, new));
                }
            }
        }
    }
    let make = |(config, socket)| make_port(engine, config, socket);
    pipelined(made, make, |()| {}).await?;
    give_sockets(engine, deaf).await
}

/// Gives ports of the switch their listening sockets.
async fn give_sockets(
    engine: &SharedEngine<'_>,
    deaf: Vec<(PortId, ForeignFd)>,
) -> Result<(), Problem> {
    let listen = |(id, socket)| {
        let order = SwitchCommand::Listen(id);
        let reply = engine.with(|e| e.links.switch.request(order, vec![socket]));
        async move { reply.await.map(|_| id).map_err(unavailable) }
    };
    let done = |id| {
        engine.with(|e| e.ports.without_listener.remove(&id));
    };
    pipelined(deaf, listen, done).await
}

/// Gives the ports of a dead switch's connections their listening sockets.
///
/// # Errors
/// The first socket that cannot be opened; the next change tries again. The others are given.
pub(super) async fn listen_again(engine: &SharedEngine<'_>) -> Result<(), Problem> {
    let mut target = engine.with(|e| e.target());
    let mut deaf = Vec::new();
    for spec in &target.desired.ports {
        let id = target.numbers.port_id(&spec.name);
        if engine.with(|e| e.ports.lacks_listener(id)) {
            deaf.push((config_of(spec, id), spec));
        }
    }
    let open = |(config, spec)| {
        let socket = claims::listen(engine, spec);
        async move { Ok((config, socket.await)) }
    };
    let (mut opened, mut failed) = (Vec::new(), Vec::new());
    pipelined(deaf, open, |(config, socket)| match socket {
        Ok(socket) => opened.push((config, socket)),
        Err(problem) => failed.push(problem),
    })
    .await?;
    let mut sockets = Vec::new();
    for (config, socket) in opened {
        // Before the first client can connect.
        reconcile_peer(engine, &config).await?;
        sockets.push((config.id, socket));
    }
    give_sockets(engine, sockets).await?;
    failed.into_iter().next().map_or(Ok(()), Err)
}

/// Sends the switch a new port, with its socket if it listens. The future completes when it is
/// there.
fn make_port<'a>(
    engine: &'a SharedEngine<'_>,
    config: PortConfig,
    socket: Option<ForeignFd>,
) -> impl Future<Output = Result<(), Problem>> + 'a {
    let id = config.id;
    // Events and upcalls of the port may arrive before the reply.
    engine.with(|e| {
        e.ports.configs.insert(id, config.clone());
        e.forwarding.upcalls.hold(id);
    });
    let order = SwitchCommand::AddPort(config);
    let fds = socket.into_iter().collect();
    let reply = engine.with(|e| e.links.switch.request(order, fds));
    async move {
        let made = reply.await;
        if made.is_err() {
            engine.with(|e| e.ports.configs.remove(&id));
        }
        made.map(drop).map_err(unavailable)
    }
}

/// Makes requests to a peer, each before those before it have completed: a change of many ports
/// does not wait for each. `done` gets the results in order. After a failure no further request is
/// made, and those under way complete.
///
/// # Errors
/// The first failure.
async fn pipelined<T, R, F: Future<Output = Result<R, Problem>>>(
    all: impl IntoIterator<Item = T>,
    mut request: impl FnMut(T) -> F,
    mut done: impl FnMut(R),
) -> Result<(), Problem> {
    let (mut all, mut sent) = (all.into_iter(), VecDeque::new());
    let mut failed = None;
    loop {
        while failed.is_none() && sent.len() < REQUESTS_AHEAD {
            let Some(next) = all.next() else { break };
            sent.push_back(Box::pin(request(next)));
        }
        let Some(first) = sent.pop_front() else {
            return failed.map_or(Ok(()), Err);
        };
        match first.await {
            Ok(result) => done(result),
            Err(problem) => failed = failed.or(Some(problem)),
        }
    }
}

/// Sends the switch the user that alone may connect to a port.
async fn reconcile_peer(engine: &SharedEngine<'_>, config: &PortConfig) -> Result<(), Problem> {
    let id = config.id;
    let listens = config.role == switching::Role::Server;
    let (had, desired) = engine.with(|e| {
        let of = e.ports.sockets.get(&config.socket).filter(|_| listens);
        (
            e.ports.peers.get(&id).copied(),
            of.and_then(|(_, peer)| *peer),
        )
    });
    if had == desired {
        return Ok(());
    }
    engine.order(SwitchCommand::SetPeer(id, desired)).await?;
    engine.with(|e| {
        e.ports.peers.remove(&id);
        e.ports.peers.extend(desired.map(|user| (id, user)));
    });
    Ok(())
}

/// Sends the switch the rate limits that differ.
async fn reconcile_limits(engine: &SharedEngine<'_>, target: &mut Target) -> Result<(), Problem> {
    for spec in &target.desired.ports {
        let id = target.numbers.port_id(&spec.name);
        let desired = desired::limits_of(&spec.limits);
        if engine.with(|e| e.ports.limits.get(&id).copied().unwrap_or_default()) != desired {
            engine.order(SwitchCommand::SetLimits(id, desired)).await?;
            engine.with(|e| e.ports.limits.insert(id, desired));
        }
    }
    Ok(())
}

/// Compiles the program and sends it to the switch if it differs. Returns it then.
async fn publish(
    engine: &SharedEngine<'_>,
    target: &mut Target,
    model: &Model,
) -> Result<Option<Program>, Problem> {
    let epoch = engine.with(|e| e.store.saved.epoch);
    let same = target.program(model, epoch)?;
    let same = engine.with(|e| same.succeeding(&e.forwarding.program));
    if epoch != 0 && engine.with(|e| same == e.forwarding.program) {
        return Ok(None);
    }
    let program = same.with_rules(target.access.rules(), epoch + 1);
    let (program, outdated) = engine.with(|e| {
        let old = &e.forwarding.program;
        let program = program.succeeding(old);
        let outdated = (old.epoch() != 0).then(|| program.outdated(old));
        (program, outdated)
    });
    connections::forget_untracked(engine, &program).await?;
    engine.with(|e| revalidate(&mut e.forwarding, &program));
    let order = SwitchCommand::Program {
        outdated,
        program: program.without_rules(),
    };
    engine.order(order).await?;
    Ok(Some(program))
}

/// Applies a planned change, if its basis is still the current state.
///
/// # Errors
/// The refusal of the switch or the system; nothing has changed then.
pub(super) async fn execute(
    engine: &SharedEngine<'_>,
    mut planned: Box<(Request, Plan)>,
) -> Result<ChangeOutcome, Problem> {
    let basis = engine.with(|e| e.store.basis());
    let desired = if planned.1.is_based_on(&basis) {
        let target = Target {
            desired: planned.1.after.clone(),
            numbers: basis.numbers.clone(),
            access: planned.1.access.clone(),
            encoded: std::mem::take(&mut planned.1.encoded),
            is_new: true,
        };
        apply(engine, target).await?;
        Some(outcome(engine, &planned.0).await?)
    } else {
        None
    };
    Ok(ChangeOutcome {
        desired,
        basis,
        planned,
    })
}

/// Makes a target the state in effect; if that fails, restores the one that was.
async fn apply(engine: &SharedEngine<'_>, mut target: Target) -> Result<(), Problem> {
    let before = engine.with(|e| e.target());
    let done = reconcile(engine, &mut target).await;
    let done = match done {
        Ok(()) => {
            log_shared_macs(&before.desired, &target.desired);
            Ok(())
        }
        Err(problem) => {
            roll_back(engine, before, target.numbers).await;
            Err(problem)
        }
    };
    engine.with(|e| e.forwarding.upcalls.release());
    await_unlistened(engine).await;
    done
}

/// Waits until the sockets that a change has closed are gone, for a client that uses their paths
/// next. The change is made anyway.
async fn await_unlistened(engine: &SharedEngine<'_>) {
    let Some(gone) = engine.with(|e| e.links.supervisor.unlistened()) else {
        return;
    };
    if let Err(error) = gone.await {
        tracing::warn!("sockets that were closed may still exist: {error}");
    }
}

/// Restores the state before a change that failed. Ports and segments that stay keep their numbers,
/// also those that the failed change would have removed.
async fn roll_back(engine: &SharedEngine<'_>, mut before: Target, mut numbers: Numbers) {
    numbers.restore(before.numbers);
    before.numbers = numbers;
    engine.with(|e| {
        e.store.saved.desired = before.desired.clone();
        e.store.saved.numbers = before.numbers.clone();
    });
    if let Err(second) = reconcile(engine, &mut before).await {
        tracing::error!("rollback of a change failed: {second}");
    }
}

/// Returns the desired state after a change, with the port that the change was about.
async fn outcome(engine: &SharedEngine<'_>, request: &Request) -> Result<DesiredSnapshot, Problem> {
    let port = match request.change.port() {
        Some(name) => Some(port_status_now(engine, name).await?),
        None => None,
    };
    Ok(DesiredSnapshot {
        port,
        ..engine.with(|e| e.desired())
    })
}

/// Logs the warnings that a change has caused.
fn log_shared_macs(before: &DesiredState, after: &DesiredState) {
    let known: Vec<Warning> = desired::shared_macs(before).collect();
    let new = desired::shared_macs(after);
    for warning in new.filter(|warning| !known.contains(warning)) {
        tracing::warn!("{}", warning.text);
    }
}

impl Engine {
    /// Returns the state in effect as a target.
    pub(super) fn target(&self) -> Target {
        Target {
            desired: self.store.saved.desired.clone(),
            numbers: self.store.saved.numbers.clone(),
            access: self.store.access.clone(),
            encoded: EncodedChunks::default(),
            is_new: false,
        }
    }

    /// Returns the desired state.
    pub(super) fn desired(&self) -> DesiredSnapshot {
        let state = self.store.saved.desired.clone();
        let version = desired::version(&state);
        DesiredSnapshot {
            state,
            version,
            port: None,
            changes: None,
        }
    }

    /// Adopts the program that the switch runs under this epoch. If that is the epoch of the state
    /// file, it is the program of the state file, and is not published again.
    pub(super) fn adopt_program(&mut self, running: u64) {
        let mut target = self.target();
        let model = target.model();
        if running == self.store.saved.epoch
            && target.compile_access(&model, &self.store.access).is_ok()
            && let Ok(program) = target.program(&model, running)
        {
            let epochs = &self.store.saved.rules_epochs;
            self.forwarding.program = program.with_rules_epochs(epochs);
            self.store.access = target.access;
        }
        self.store.saved.numbers = target.numbers;
        self.store.saved.epoch = self.store.saved.epoch.max(running);
    }

    /// Puts a target into effect that the peers match, with its program if that is a new one.
    fn commit(&mut self, target: &mut Target, program: Option<Program>) -> io::Result<()> {
        self.store.commit(target);
        self.store.saved.scheduled = !self.ports.qos.is_nothing();
        if let Some(program) = program {
            self.store.saved.epoch = program.epoch();
            self.store.saved.rules_epochs = program.rules_epochs().to_vec();
            self.forwarding.publish(program, &self.ports);
        }
        self.own_stations();
        self.emit_notices()?;
        self.forwarding.answers.ring_bell();
        self.save()
    }

    /// Forgets a port that the switch has removed. Its socket stays open if it is claimed for
    /// another port.
    fn port_removed(&mut self, id: PortId, claims: &Claims) -> Result<(), Problem> {
        self.events.forget(id);
        let Some(config) = self.ports.remove(id) else {
            return Ok(());
        };
        if config.role == switching::Role::Server && !claims.has(&config.socket) {
            self.unlisten(&config.socket)?;
        }
        self.forwarding.forget_port(id).map_err(unavailable)?;
        self.forwarding.answers.ring_bell();
        Ok(())
    }

    /// Closes a socket of the supervisor.
    fn unlisten(&mut self, path: &str) -> Result<(), Problem> {
        self.ports.sockets.remove(path);
        self.links.supervisor.unlisten(path).map_err(unavailable)
    }

    /// Closes the claimed sockets that no port of the switch has.
    fn release_sockets(&mut self, claims: Claims) -> Result<(), Problem> {
        for path in claims.into_paths() {
            if !self.ports.listens(&path) {
                self.unlisten(&path)?;
            }
        }
        Ok(())
    }

    /// Closes a metrics socket, unless it is the one in use.
    fn release_metrics(&mut self, listener: Option<&MetricsSocket>) -> Result<(), Problem> {
        match (listener, &self.ports.metrics) {
            (None, _) => Ok(()),
            (Some(listener), Some(have)) if have.path == listener.path => Ok(()),
            (Some(listener), _) => self
                .links
                .supervisor
                .unlisten(&listener.path)
                .map_err(unavailable),
        }
    }

    /// Closes the claimed sockets of pipes that are not in use.
    fn release_pipes(&mut self, claimed: &[PipeListener]) -> Result<(), Problem> {
        let used = self.pipes.listeners();
        let is_used = |path: &str| used.iter().any(|own| own.pipe.path == path);
        let paths = claimed.iter().map(|one| &one.pipe.path);
        let mut new = paths.filter(|path| !is_used(path));
        new.try_for_each(|path| self.unlisten(path))
    }

    /// Serves pipes on these sockets only.
    fn serve_pipes(&mut self, listeners: Vec<PipeListener>) -> Result<(), Problem> {
        let old = self.pipes.listeners();
        let is_kept = |path: &str| listeners.iter().any(|one| one.pipe.path == path);
        let gone: Vec<String> = old
            .into_iter()
            .map(|one| one.pipe.path)
            .filter(|path| !is_kept(path) && !self.ports.listens(path))
            .collect();
        self.pipes.serve(listeners);
        gone.iter().try_for_each(|path| self.unlisten(path))
    }

    /// Serves metrics on this socket only.
    fn serve_metrics(&mut self, listener: Option<MetricsSocket>) -> Result<(), Problem> {
        let path = |listener: &Option<MetricsSocket>| {
            listener.as_ref().map(|listener| listener.path.clone())
        };
        if path(&listener) == path(&self.ports.metrics) {
            return Ok(());
        }
        let socket = listener.as_ref().map(|l| Arc::clone(&l.socket));
        self.api_gate.serve_metrics(socket);
        match std::mem::replace(&mut self.ports.metrics, listener) {
            Some(old) => self
                .links
                .supervisor
                .unlisten(&old.path)
                .map_err(unavailable),
            None => Ok(()),
        }
    }
}
