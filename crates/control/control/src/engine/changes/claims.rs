//! Claims: sockets and interfaces that the supervisor opens before the switch is changed, so that a
//! failure is known before anything else is changed. The supervisor holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::sync::Arc;

use api::v1::{DesiredState, PortSpec, Problem, ProblemKind};
use ipc::owners::{NoSocket, SocketKey, SocketOwner};
use ipc::sockets::SocketType;
use sys::foreign::ForeignFd;

use super::{Target, pipelined};
use crate::engine::links::supervisor::Listening;
use crate::engine::ports::MetricsSocket;
use crate::engine::{SharedEngine, unavailable};
use crate::pipes::PipeListener;
use config::{desired, words};

/// Returns the problem of a refused socket.
fn refused(kind: &str, name: &str, no: &NoSocket) -> Problem {
    let detail = words::message(&no.expected, &no.found);
    match no.key {
        SocketKey::Socket => Problem::conflict("socket", detail),
        key => Problem::new(ProblemKind::Invalid, format!("{kind} `{name}`: {detail}"))
            .with_field(key.as_str()),
    }
}

/// The sockets that a change has claimed for ports: each is requested once, and handed to the
/// switch with the port. A socket that moves from one port to another stays open meanwhile.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Sockets that no port was made with yet, by path.
    open: BTreeMap<String, ForeignFd>,
    /// All paths that were claimed.
    paths: BTreeSet<String>,
}

impl Claims {
    /// Returns whether a socket is claimed.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Returns the socket for a port that is made: the claimed one, else a new one at the path of a
    /// port that was removed.
    pub(super) async fn take(
        &mut self,
        engine: &SharedEngine<'_>,
        spec: &PortSpec,
    ) -> Result<ForeignFd, Problem> {
        match self.open.remove(&spec.socket) {
            Some(socket) => Ok(socket),
            None => listen(engine, spec).await,
        }
    }

    /// Returns the claimed paths.
    pub(super) fn into_paths(self) -> BTreeSet<String> {
        self.paths
    }
}

/// Claims the sockets of ports that have none of their own now, and sets the owners of all.
pub(super) async fn sockets(
    engine: &SharedEngine<'_>,
    specs: &[PortSpec],
) -> Result<Claims, Problem> {
    let mut claims = Claims::default();
    let is_claimed = |spec: &&PortSpec| {
        let owner = desired::owner_of(spec);
        let path = &spec.socket;
        let is_there = engine.with(|e| e.ports.listens(path));
        let is_owned = || engine.with(|e| e.ports.is_owned(path, &owner));
        // One of another type is bound once its port is removed.
        let is_other = || !engine.with(|e| e.ports.has_type(path, desired::socket_type_of(spec)));
        let is_postponed = || engine.with(|e| e.ports.is_postponed(path));
        !(is_there && (is_owned() || is_other() || is_postponed()))
    };
    let listening = specs.iter().filter(|spec| desired::listens(spec));
    let claim = |spec| {
        let socket = listen(engine, spec);
        async move { Ok((spec.socket.clone(), socket.await?)) }
    };
    let claimed = pipelined(listening.filter(is_claimed), claim, |(path, socket)| {
        claims.paths.insert(path.clone());
        claims.open.insert(path, socket);
    });
    match claimed.await {
        Ok(()) => Ok(claims),
        Err(problem) => {
            engine.with(|e| e.release_sockets(claims))?;
            Err(problem)
        }
    }
}

/// Opens the socket of a port, or sets its owner if it is open.
pub(super) fn listen<'a>(
    engine: &'a SharedEngine<'_>,
    spec: &'a PortSpec,
) -> impl Future<Output = Result<ForeignFd, Problem>> + 'a {
    let path = spec.socket.as_str();
    let owned = (path, desired::owner_of(spec), desired::socket_type_of(spec));
    let listening = listen_as(engine, owned);
    async move {
        let listening = listening.await?;
        let (_, socket) = listening.map_err(|no| refused("port", &spec.name, &no))?;
        Ok(socket)
    }
}

/// Opens a socket, or sets its owner if it is open. The request is sent at once; the future returns
/// the only user that may connect, and the socket.
fn listen_as<'a>(
    engine: &'a SharedEngine<'_>,
    (path, owner, of): (&'a str, SocketOwner, SocketType),
) -> impl Future<Output = Result<Listening, Problem>> + 'a {
    let listening = engine.with(|e| {
        // Until this is done, the socket's owner is unknown.
        e.ports.sockets.remove(path);
        e.links.supervisor.listen_as(path, owner.clone(), of)
    });
    async move {
        let listening = listening.await.map_err(unavailable)?;
        if let Ok((peer, _)) = &listening {
            let known = (owner, *peer);
            engine.with(|e| e.ports.sockets.insert(path.to_owned(), known));
        }
        Ok(listening)
    }
}

/// Opens the sockets of new pipes, and sets the owners of all. The sockets of those that stay are
/// the ones in use. `listeners` gets all of them, after an error those before it.
pub(super) async fn pipes(
    engine: &SharedEngine<'_>,
    desired: &DesiredState,
    listeners: &mut Vec<PipeListener>,
) -> Result<(), Problem> {
    let old = engine.with(|e| e.pipes.listeners());
    for pipe in desired::pipe_sockets(desired) {
        let known = old.iter().find(|old| old.pipe.path == pipe.path);
        let is_owned = || engine.with(|e| e.ports.is_owned(&pipe.path, &pipe.owner));
        if let Some(known) = known.filter(|_| is_owned()) {
            let known = known.clone();
            listeners.push(PipeListener { pipe, ..known });
            continue;
        }
        if engine.with(|e| e.ports.listens(&pipe.path)) {
            let path = &pipe.path;
            let found = format!("{path:?}, the socket of a port until this change is made");
            let detail = words::message("a path that no port has now", &found);
            return Err(Problem::conflict("socket", detail));
        }
        let owner = pipe.owner.clone();
        let owned = (pipe.path.as_str(), owner, SocketType::SeqPacket);
        let listening = listen_as(engine, owned).await?;
        let (peer, socket) = listening.map_err(|no| refused("pipe", &pipe.name, &no))?;
        let socket = known.map_or_else(|| Arc::new(socket), |known| Arc::clone(&known.socket));
        listeners.push(PipeListener { pipe, peer, socket });
    }
    Ok(())
}

/// Opens the interfaces that are not open yet.
pub(super) async fn interfaces(
    engine: &SharedEngine<'_>,
    target: &mut Target,
) -> Result<(), Problem> {
    let mut drivers = Vec::new();
    for spec in &target.desired.ports {
        let id = target.numbers.port_id(&spec.name);
        drivers.extend(desired::driver_of(spec, id));
    }
    let had = engine.with(|e| {
        let networks = e.user_networks(&target.desired);
        e.set_user_networks(networks)?;
        Ok::<_, io::Error>(e.links.supervisor.drivers(drivers))
    });
    let had = had.map_err(unavailable)?.await;
    had.map_err(unavailable)?.map_err(|(port, reason)| {
        Problem::conflict("interface", format!("port `{port}`: {reason}"))
    })
}

/// Sends the supervisor the sockets to which the switch may connect.
pub(super) async fn dials(engine: &SharedEngine<'_>, target: &mut Target) -> Result<(), Problem> {
    let client = target
        .desired
        .ports
        .iter()
        .filter(|spec| desired::dials(spec));
    let numbers = &mut target.numbers;
    let all = client.map(|spec| (numbers.port_id(&spec.name), spec.socket.clone()));
    let all: Vec<_> = all.collect();
    if engine.with(|e| e.ports.dials.as_ref() == Some(&all)) {
        return Ok(());
    }
    let taken = engine.with(|e| {
        e.ports.dials = None;
        e.links.supervisor.dials(all.clone())
    });
    let taken = taken.await.map_err(unavailable)?;
    taken.map_err(|reason| Problem::conflict("socket", reason))?;
    engine.with(|e| e.ports.dials = Some(all));
    Ok(())
}

/// Returns the desired metrics socket: the open one, or a new one.
///
/// # Errors
/// 409 when it cannot be opened.
pub(super) async fn metrics(
    engine: &SharedEngine<'_>,
    desired: &DesiredState,
) -> Result<Option<MetricsSocket>, Problem> {
    let Some(path) = desired::metrics_socket(desired) else {
        return Ok(None);
    };
    let open = engine.with(|e| e.ports.metrics.clone());
    if let Some(open) = open.filter(|open| open.path == path) {
        return Ok(Some(open));
    }
    let socket = engine.with(|e| e.links.supervisor.listen(&path)).await;
    let conflict = |e: std::io::Error| Problem::conflict("metrics.listen", e.to_string());
    let socket = Arc::new(socket.map_err(conflict)?);
    Ok(Some(MetricsSocket { path, socket }))
}
