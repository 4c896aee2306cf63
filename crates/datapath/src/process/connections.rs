//! Connections with front ends: they come in at a listening socket, or are dialled for; they are heard, and end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use channel::supervision::Ask;
use port::PortId;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::Process;
use super::token::Token;
use crate::attach::Attachment;
use crate::culprit;

/// After a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Waits no more for a connection that is about to end. The supervisor has its socket open too, so that it would not leave
/// the set when it is closed here.
pub(super) fn unwatch(epoll: &OwnedFd, port: &Attachment) {
    if let Some((socket, _)) = port.socket() {
        let _ = epoll::delete(epoll, socket);
    }
}

impl Process {
    /// Takes connections of a port from now on, if it listens. One whose connection is still to be brought back waits with that:
    /// the front end may have gone meanwhile, and be the one that comes.
    pub(super) fn watch_listener(&self, id: PortId, port: &Attachment) -> Result<(), String> {
        let Some(listener) = port.listener() else {
            return Ok(());
        };
        let token = Token::Listener(id).encode();
        match epoll::add(&self.epoll, listener, token, EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn accept(&mut self, id: PortId) {
        // The guest that is attached may be gone already: see to that first.
        self.pump(id);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let attached = port.socket().is_some();
        match port.accept(&self.workers) {
            Ok(()) if !attached => self.watch(id),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("a connection was not accepted: {error}");
                // It waits at the socket and would be found again at once: out of descriptors, as a rule.
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    pub(super) fn dialed(
        &mut self,
        id: PortId,
        path: &str,
        socket: Option<OwnedFd>,
        error: Option<String>,
    ) {
        // The port that asked may be gone, and its number another's.
        let port = self.ports.get_mut(&id);
        let Some(port) = port.filter(|p| p.is_dialing() && p.config().socket == path) else {
            return;
        };
        let failed = match socket {
            Some(socket) => port
                .attach(socket, &self.workers)
                .err()
                .map(|e| e.to_string()),
            None => Some(error.unwrap_or_default()),
        };
        match failed {
            Some(reason) => port.dial_failed(reason),
            None => self.watch(id),
        }
    }

    /// Waits for a new connection's messages.
    pub(super) fn watch(&mut self, id: PortId) {
        let Some((socket, _)) = self.ports.get(&id).and_then(Attachment::socket) else {
            return;
        };
        let token = Token::Connection(id).encode();
        if let Err(error) = epoll::add(&self.epoll, socket, token, EventFlags::IN) {
            tracing::error!("a connection cannot be waited for: {error}");
        }
        self.report_phase(id);
    }

    pub(super) fn pump(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = culprit::serve(Some(id));
        if let Err(fault) = port.pump(&self.workers) {
            unwatch(&self.epoll, port);
            port.close(Some(fault), &self.workers);
        }
        drop(served);
        if let Some((socket, wants_write)) = port.socket() {
            let flags = if wants_write {
                EventFlags::OUT
            } else {
                EventFlags::IN
            };
            let token = Token::Connection(id).encode();
            let _ = epoll::modify(&self.epoll, socket, token, flags);
        }
        self.report_phase(id);
    }

    pub(super) fn next_dial(&self) -> Option<Instant> {
        if self.kept.waits() {
            return None;
        }
        self.ports.values().filter_map(Attachment::dial_at).min()
    }

    pub(super) fn dial_due(&mut self) {
        if self.kept.waits() {
            return;
        }
        let now = Instant::now();
        for (id, port) in &mut self.ports {
            if port.dial_at().is_some_and(|at| at <= now) {
                port.dialing();
                let path = port.config().socket.clone();
                let ask = Ask::Dial { port: *id, path };
                if let Err(error) = self.supervisor.send(&ask, &[]) {
                    port.dial_failed(error.to_string());
                }
            }
        }
    }
}
