//! Pipes: `[[pipe]]`, and those of netmap ports.

use api::v1::{DesiredState, PipeSpec, PortSpec};
use ipc::owners::SocketOwner;
use ipc::sockets::MAX_PIPES;

use super::at::{At, name, quoted};
use super::invalid::{Invalid, Place};
use super::owner::{self, owner_of, owner_of_pipe};
use super::process;

/// A socket at which the ends of pipes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeSocket {
    /// Name of the pipe or the port.
    pub name: String,
    /// Path of the socket.
    pub path: String,
    /// Requested owner of the socket.
    pub owner: SocketOwner,
    /// Slots of each ring; `None` for the pipes of a port, whose clients choose.
    pub slots: Option<u16>,
    /// Place in the desired state.
    pub place: Place,
}

/// Returns the sockets of all pipes of a normalised state.
pub fn pipe_sockets(state: &DesiredState) -> impl Iterator<Item = PipeSocket> {
    let ports = state.ports.iter().enumerate();
    let ports = ports.filter_map(|(at, port)| {
        Some(PipeSocket {
            name: port.name.clone(),
            path: socket_of_port(port)?,
            owner: owner_of(port),
            slots: None,
            place: Place::Port(at),
        })
    });
    let pipes = state.pipes.iter().enumerate();
    let pipes = pipes.map(|(at, pipe)| PipeSocket {
        name: pipe.name.clone(),
        path: socket_of(pipe),
        owner: owner_of_pipe(pipe),
        slots: Some(pipe.slots),
        place: Place::Pipe(at),
    });
    ports.chain(pipes)
}

/// Returns the default path of a socket.
fn default_socket(name: &str) -> String {
    format!("{name}.pipes")
}

/// Returns the path of a pipe's socket.
pub(super) fn socket_of(pipe: &PipeSpec) -> String {
    match pipe.socket.as_str() {
        "" => default_socket(&pipe.name),
        socket => socket.to_owned(),
    }
}

/// Returns the path of the socket of a port's pipes, if it has any.
pub(super) fn socket_of_port(port: &PortSpec) -> Option<String> {
    port.pipes.then(|| default_socket(&port.name))
}

/// Fills in the defaults.
pub(crate) fn normalise(pipe: &mut PipeSpec) {
    pipe.socket = socket_of(pipe);
}

/// Checks each pipe but for its socket. A pipe has no name of a port: programs name both alike.
pub(super) fn check(state: &DesiredState) -> Result<(), Invalid> {
    let mut sockets = 0;
    for (i, _) in state
        .ports
        .iter()
        .enumerate()
        .filter(|(_, port)| port.pipes)
    {
        sockets += 1;
        room(At(Place::Port(i), "pipes"), sockets)?;
    }
    for (i, pipe) in state.pipes.iter().enumerate() {
        let place = Place::Pipe(i);
        let at = At(place, "name");
        room(at, sockets + i + 1)?;
        name(at, &pipe.name)?;
        if state.pipes[..i].iter().any(|other| other.name == pipe.name) {
            let found = format!("{} a second time", quoted(&pipe.name));
            return Err(at.taken("a name that no other pipe has", found));
        }
        if state.port(&pipe.name).is_some() {
            let found = format!("{}, the name of a port", quoted(&pipe.name));
            return Err(at.taken("a name that no port has", found));
        }
        process::slots(At(place, "slots"), pipe.slots)?;
        owner::check_pipe(place, pipe)?;
    }
    Ok(())
}

/// Checks the number of sockets of pipes.
fn room(at: At, sockets: usize) -> Result<(), Invalid> {
    if sockets <= MAX_PIPES {
        return Ok(());
    }
    let expected = format!("at most {MAX_PIPES} pipes and ports with pipes");
    Err(at.wrong(expected, sockets.to_string()))
}
