//! The sockets on which ports listen: whose they are, and who may connect.

use std::io;
use std::os::fd::OwnedFd;

use api::v1::{PortSpec, Problem, ProblemKind};
use channel::owners::{NoSocket, SocketKey, SocketOwner};
use channel::supervision::{Ask, Tell};
use channel::switching::{Order, PortConfig, Role};

use super::peers::SupervisorPeer;
use super::{Engine, unavailable};
use crate::wanted;

/// What a request is answered with that asked for such a socket.
fn refused(port: &str, no: &NoSocket) -> Problem {
    let detail = wanted::said(&no.expected, &no.found);
    match no.key {
        SocketKey::Socket => Problem::conflict("socket", detail),
        key => Problem::new(ProblemKind::Invalid, format!("port `{port}`: {detail}"))
            .with_field(key.as_str()),
    }
}

impl Engine {
    /// Whether a port of the switch listens there.
    pub(super) fn listens(&self, path: &str) -> bool {
        let server = |p: &PortConfig| p.role == Role::Server;
        self.ports.values().any(|p| server(p) && p.socket == path)
    }

    /// Binds the sockets that no port has yet, and has those that there are belong to whom they are to, so that one which cannot be
    /// had is known before anything else is changed. The supervisor keeps them. Paths of those that are new.
    pub(super) fn claim_sockets(&mut self, specs: &[PortSpec]) -> Result<Vec<String>, Problem> {
        let mut claimed: Vec<String> = Vec::new();
        for spec in specs.iter().filter(|spec| wanted::listens(spec)) {
            let owner = wanted::owner_of(spec);
            let path = &spec.socket;
            let is_there = self.listens(path);
            let is_right = self.sockets.get(path).is_some_and(|(of, _)| *of == owner);
            if is_there && is_right {
                continue;
            }
            // There may be many: the supervisor hears meanwhile that we live.
            self.supervisor.hear();
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
        // Until it is done, what the socket is like is not known.
        self.sockets.remove(path);
        let listening = self.supervisor.listen_for(path, &owner);
        let (peer, socket) = listening
            .map_err(unavailable)?
            .map_err(|no| refused(port, &no))?;
        self.sockets.insert(path.to_owned(), (owner, peer));
        Ok(socket)
    }

    /// The socket of a wanted port. Another port may have had the one that was claimed, and have taken it along.
    pub(super) fn listen_again(&mut self, config: &PortConfig) -> Result<OwnedFd, Problem> {
        let specs = &self.saved.wanted.ports;
        let spec = specs.iter().find(|spec| spec.name == config.name);
        let owner = spec.map(wanted::owner_of).unwrap_or_default();
        self.listen(&config.name, &config.socket, owner)
    }

    pub(super) fn unlisten(&mut self, path: &str) -> Result<(), Problem> {
        self.sockets.remove(path);
        self.supervisor.unlisten(path).map_err(unavailable)
    }

    /// Has the switch take connections to a port only from whom they may come.
    pub(super) fn reconcile_peer(&mut self, config: &PortConfig) -> Result<(), Problem> {
        let listens = config.role == Role::Server;
        let of = self.sockets.get(&config.socket).filter(|_| listens);
        let wanted = of.and_then(|(_, peer)| *peer);
        if self.peers.get(&config.id).copied() == wanted {
            return Ok(());
        }
        self.order(Order::SetPeer(config.id, wanted))?;
        match wanted {
            Some(user) => self.peers.insert(config.id, user),
            None => self.peers.remove(&config.id),
        };
        Ok(())
    }
}

/// The user who may connect, and the socket.
type Listening = Result<(Option<u32>, OwnedFd), NoSocket>;

impl SupervisorPeer {
    /// A listening socket at `path` as it is asked for, and the number of the only user who may connect, if there is one.
    ///
    /// # Errors
    /// The supervisor is gone or silent; or, inside, why there is none.
    fn listen_for(&mut self, path: &str, owner: &SocketOwner) -> io::Result<Listening> {
        let ask = Ask::ListenFor {
            path: path.to_owned(),
            owner: owner.clone(),
        };
        self.ask(&ask, |tell, mut fds| match tell {
            Tell::ListeningFor { path: of, outcome } if of == path => Some(match outcome {
                Ok(peer) => match fds.pop() {
                    Some(socket) => Ok(Ok((peer, socket))),
                    None => Err(io::Error::other("no socket came")),
                },
                Err(no) => Ok(Err(no)),
            }),
            _ => None,
        })?
    }
}
