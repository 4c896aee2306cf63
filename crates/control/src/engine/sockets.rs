//! Listening sockets of ports: their owners, and the users that may connect.

use std::io;
use std::os::fd::OwnedFd;

use api::v1::{PortSpec, Problem, ProblemKind};
use channel::owners::{NoSocket, SocketKey, SocketOwner};
use channel::supervision::{SupervisorEvent, SupervisorRequest};
use channel::switching::{PortConfig, Role, SwitchCommand};

use super::peers::SupervisorPeer;
use super::{Engine, unavailable};
use config::desired;

/// Returns the problem of a refused socket.
fn refused(port: &str, no: &NoSocket) -> Problem {
    let detail = desired::message(&no.expected, &no.found);
    match no.key {
        SocketKey::Socket => Problem::conflict("socket", detail),
        key => Problem::new(ProblemKind::Invalid, format!("port `{port}`: {detail}"))
            .with_field(key.as_str()),
    }
}

impl Engine {
    /// Returns whether a port of the switch listens at this path.
    pub(super) fn listens(&self, path: &str) -> bool {
        let server = |p: &PortConfig| p.role == Role::Server;
        self.ports.values().any(|p| server(p) && p.socket == path)
    }

    /// Opens the sockets of new ports and sets the owners of all, so that a failure is known before
    /// anything else is changed. The supervisor holds the sockets. Returns the paths of the new
    /// ones.
    pub(super) fn claim_sockets(&mut self, specs: &[PortSpec]) -> Result<Vec<String>, Problem> {
        let mut claimed: Vec<String> = Vec::new();
        for spec in specs.iter().filter(|spec| desired::listens(spec)) {
            let owner = desired::owner_of(spec);
            let path = &spec.socket;
            let is_there = self.listens(path);
            let is_right = self.sockets.get(path).is_some_and(|(of, _)| *of == owner);
            if is_there && is_right {
                continue;
            }
            // There may be many ports: the supervisor gets its heartbeats meanwhile.
            self.supervisor.handle_events();
            if let Err(problem) = self.listen(&spec.name, path, owner) {
                for path in claimed {
                    self.unlisten(&path)?;
                }
                return Err(problem);
            }
            if !is_there {
                claimed.push(path.clone());
            }
        }
        Ok(claimed)
    }

    fn listen(&mut self, port: &str, path: &str, owner: SocketOwner) -> Result<OwnedFd, Problem> {
        // Until this is done, the socket's owner is unknown.
        self.sockets.remove(path);
        let listening = self.supervisor.listen_for(path, &owner);
        let (peer, socket) = listening
            .map_err(unavailable)?
            .map_err(|no| refused(port, &no))?;
        self.sockets.insert(path.to_owned(), (owner, peer));
        Ok(socket)
    }

    /// Returns the socket of a desired port. The one that was claimed may have been another port's,
    /// and have been closed with it.
    pub(super) fn reopen_socket(&mut self, config: &PortConfig) -> Result<OwnedFd, Problem> {
        let specs = &self.saved.desired.ports;
        let spec = specs.iter().find(|spec| spec.name == config.name);
        let owner = spec.map(desired::owner_of).unwrap_or_default();
        self.listen(&config.name, &config.socket, owner)
    }

    pub(super) fn unlisten(&mut self, path: &str) -> Result<(), Problem> {
        self.sockets.remove(path);
        self.supervisor.unlisten(path).map_err(unavailable)
    }

    /// Sends the switch the user that alone may connect to a port.
    pub(super) fn reconcile_peer(&mut self, config: &PortConfig) -> Result<(), Problem> {
        let listens = config.role == Role::Server;
        let of = self.sockets.get(&config.socket).filter(|_| listens);
        let desired = of.and_then(|(_, peer)| *peer);
        if self.peers.get(&config.id).copied() == desired {
            return Ok(());
        }
        self.order(SwitchCommand::SetPeer(config.id, desired))?;
        match desired {
            Some(user) => self.peers.insert(config.id, user),
            None => self.peers.remove(&config.id),
        };
        Ok(())
    }
}

/// The user that may connect, and the socket.
type Listening = Result<(Option<u32>, OwnedFd), NoSocket>;

impl SupervisorPeer {
    /// Returns a listening socket at `path` with this owner, and the only user who may connect, if
    /// there is one.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason of its
    /// refusal.
    fn listen_for(&mut self, path: &str, owner: &SocketOwner) -> io::Result<Listening> {
        let request = SupervisorRequest::ListenFor {
            path: path.to_owned(),
            owner: owner.clone(),
        };
        self.request(&request, |event, mut fds| match event {
            SupervisorEvent::ListeningFor { path: of, outcome } if of == path => {
                Some(match outcome {
                    Ok(peer) => match fds.pop() {
                        Some(socket) => Ok(Ok((peer, socket))),
                        None => Err(io::Error::other("the supervisor sent no socket")),
                    },
                    Err(no) => Ok(Err(no)),
                })
            }
            _ => None,
        })?
    }
}
