//! Claims: sockets and interfaces that the supervisor opens before the switch is changed, so that a
//! failure is known before anything else is changed. The supervisor holds them.

use std::io;
use std::sync::Arc;

use api::v1::{DesiredState, PortSpec, Problem, ProblemKind};
use channel::owners::{NoSocket, SocketKey, SocketOwner};
use channel::sockets::SocketType;
use sys::foreign::ForeignFd;

use super::{Target, save_problem};
use crate::engine::links::supervisor::Listening;
use crate::engine::ports::MetricsSocket;
use crate::engine::{Shared, unavailable};
use crate::pipes::PipeListener;
use config::desired;

/// Returns the problem of a refused socket.
fn refused(kind: &str, name: &str, no: &NoSocket) -> Problem {
    let detail = desired::message(&no.expected, &no.found);
    match no.key {
        SocketKey::Socket => Problem::conflict("socket", detail),
        key => Problem::new(ProblemKind::Invalid, format!("{kind} `{name}`: {detail}"))
            .with_field(key.as_str()),
    }
}

/// Opens the sockets of new ports and sets the owners of all. Returns the paths of the new ones.
pub(super) async fn sockets(
    engine: &Shared<'_>,
    specs: &[PortSpec],
) -> Result<Vec<String>, Problem> {
    let mut claimed: Vec<String> = Vec::new();
    for spec in specs.iter().filter(|spec| desired::listens(spec)) {
        let owner = desired::owner_of(spec);
        let path = &spec.socket;
        let is_there = engine.with(|e| e.ports.listens(path));
        let is_owned = || engine.with(|e| e.ports.is_owned(path, &owner));
        // One of another type is bound once its port is removed.
        let is_other = || !engine.with(|e| e.ports.has_type(path, desired::socket_type_of(spec)));
        if is_there && (is_owned() || is_other()) {
            continue;
        }
        if let Err(problem) = listen(engine, spec, path).await {
            for path in claimed {
                engine.with(|e| e.unlisten(&path))?;
            }
            return Err(problem);
        }
        if !is_there {
            claimed.push(path.clone());
        }
    }
    Ok(claimed)
}

/// Opens the socket of a port, or sets its owner if it is open.
pub(super) async fn listen(
    engine: &Shared<'_>,
    spec: &PortSpec,
    path: &str,
) -> Result<ForeignFd, Problem> {
    let owned = (path, desired::owner_of(spec), desired::socket_type_of(spec));
    let listening = listen_as(engine, owned).await?;
    let (_, socket) = listening.map_err(|no| refused("port", &spec.name, &no))?;
    Ok(socket)
}

/// Opens a socket, or sets its owner if it is open. Returns the only user that may connect, and the
/// socket.
async fn listen_as(
    engine: &Shared<'_>,
    (path, owner, of): (&str, SocketOwner, SocketType),
) -> Result<Listening, Problem> {
    let listening = engine.with(|e| {
        // Until this is done, the socket's owner is unknown.
        e.ports.sockets.remove(path);
        e.links.supervisor.listen_as(path, owner.clone(), of)
    });
    let listening = listening.await.map_err(unavailable)?;
    if let Ok((peer, _)) = &listening {
        let known = (owner, *peer);
        engine.with(|e| e.ports.sockets.insert(path.to_owned(), known));
    }
    Ok(listening)
}

/// Opens the sockets of new pipes, and sets the owners of all. The sockets of those that stay are
/// the ones in use. `listeners` gets all of them, after an error those before it.
pub(super) async fn pipes(
    engine: &Shared<'_>,
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
            let detail = desired::message("a path that no port has now", &found);
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
pub(super) async fn interfaces(engine: &Shared<'_>, target: &mut Target) -> Result<(), Problem> {
    let mut drivers = Vec::new();
    for spec in &target.desired.ports {
        let id = target.numbers.port_id(&spec.name);
        drivers.extend(desired::driver_of(spec, id));
    }
    let had = engine.with(|e| {
        let networks = e.user_networks(&target.desired);
        // A supervisor of a former build, which no user port is under, does not know the message.
        if !networks.is_empty() || !e.ports.user_networks.is_empty() {
            e.set_user_networks(networks)?;
        }
        Ok::<_, io::Error>(e.links.supervisor.drivers(drivers))
    });
    let had = had.map_err(unavailable)?.await;
    had.map_err(unavailable)?.map_err(|(port, reason)| {
        Problem::conflict("interface", format!("port `{port}`: {reason}"))
    })
}

/// Sends the supervisor the CPU weights of drivers, if they differ. A control that starts after
/// this one knows from the state file that there may be any.
pub(super) fn cpu_weights(engine: &Shared<'_>, target: &Target) -> Result<(), Problem> {
    let weight = |spec: &PortSpec| Some((spec.name.clone(), spec.cpu_weight?));
    let weights: Vec<_> = target.desired.ports.iter().filter_map(weight).collect();
    engine.with(|e| {
        let has_any = e.store.saved.weighted;
        if e.ports.cpu_weights.as_ref() == Some(&weights) || weights.is_empty() && !has_any {
            return Ok(());
        }
        if !has_any {
            e.store.saved.weighted = true;
            e.save().map_err(save_problem)?;
        }
        let sent = e.links.supervisor.set_cpu_weights(weights.clone());
        e.ports.cpu_weights = Some(weights);
        sent.map_err(unavailable)
    })
}

/// Sends the supervisor the sockets to which the switch may connect.
pub(super) async fn dials(engine: &Shared<'_>, target: &mut Target) -> Result<(), Problem> {
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
    engine: &Shared<'_>,
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
