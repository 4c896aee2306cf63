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

/// Answers of the supervisor that may be on their way: one for whom there is no room ends us.
const DIALS: usize = 64;
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
        if port.paused_until().is_some() {
            return Ok(());
        }
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
        let peer = self.peers.get(&id).copied();
        match port.accept(peer, &self.workers) {
            Ok(()) if !attached => self.watch(id),
            Ok(()) => self.unwatch_while_paused(id),
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
        let Some(port) = port.filter(|p| p.is_dialing()) else {
            return;
        };
        let failed = match socket {
            _ if error.is_none() && port.config().socket != path => {
                Some("another front end was dialled".to_owned())
            }
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
            self.unwatch_while_paused(id);
        }
        self.part_with_who_blocks(id);
        drop(served);
        let Some(port) = self.ports.get(&id) else {
            return;
        };
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

    /// Ends a connection whose front end holds up whoever writes to its event descriptors. Who connects then, before the pause is over,
    /// waits at the port's socket.
    pub(super) fn part_with_who_blocks(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id).filter(|port| port.blocks()) else {
            return;
        };
        unwatch(&self.epoll, port);
        port.disconnect_who_blocks(&self.workers);
        self.unwatch_while_paused(id);
    }

    /// Takes no connections of a port until its pause is over, if there is one: see [`Self::pauses_due`].
    fn unwatch_while_paused(&self, id: PortId) {
        let port = self.ports.get(&id);
        let paused = port.filter(|port| port.paused_until().is_some());
        if let Some(listener) = paused.and_then(Attachment::listener) {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    /// Ends a connection of another user than may connect to the port.
    pub(super) fn part_with_stranger(&mut self, id: PortId) {
        let Some(peer) = self.peers.get(&id).copied() else {
            return;
        };
        let port = self.ports.get_mut(&id);
        if let Some(port) = port.filter(|port| port.serves_stranger(peer)) {
            let _served = culprit::serve(Some(id));
            unwatch(&self.epoll, port);
            port.disconnect("it was of another user than peer_user", &self.workers);
            self.unwatch_while_paused(id);
        }
    }

    pub(super) fn next_pause_end(&self) -> Option<Instant> {
        let paused = self.ports.values().filter_map(Attachment::paused_until);
        paused.min()
    }

    /// Ports whose pause is over take connections again.
    pub(super) fn pauses_due(&mut self) {
        let now = Instant::now();
        let paused = self.ports.iter_mut();
        let over = paused.filter_map(|(id, port)| port.end_pause(now).then_some(*id));
        for id in over.collect::<Vec<_>>() {
            if let Some(port) = self.ports.get(&id)
                && let Err(error) = self.watch_listener(id, port)
            {
                tracing::error!("connections of a port cannot be waited for: {error}");
            }
        }
    }

    pub(super) fn next_warning(&self) -> Option<Instant> {
        self.ports.values().filter_map(Attachment::to_say_at).min()
    }

    /// Has ports say what only time shows.
    pub(super) fn warnings_due(&mut self) {
        let now = Instant::now();
        let ports = self.ports.values_mut();
        ports.for_each(|port| port.say_due(now));
    }

    pub(super) fn next_dial(&self) -> Option<Instant> {
        if self.kept.waits() || self.room_for_dials() == 0 {
            return None;
        }
        self.ports.values().filter_map(Attachment::dial_at).min()
    }

    pub(super) fn dial_due(&mut self) {
        if self.kept.waits() {
            return;
        }
        let (now, room) = (Instant::now(), self.room_for_dials());
        let is_due = |port: &Attachment| port.dial_at().is_some_and(|at| at <= now);
        let due = self.ports.iter_mut().filter(|(_, port)| is_due(port));
        for (id, port) in due.take(room) {
            port.dialing();
            let ask = Ask::Dial { port: *id };
            if let Err(error) = self.supervisor.send(&ask, &[]) {
                port.dial_failed(error.to_string());
            }
        }
    }

    /// How many more may be dialled for now: each answer needs room in the link.
    fn room_for_dials(&self) -> usize {
        let open = self.ports.values().filter(|port| port.is_dialing());
        DIALS.saturating_sub(open.count())
    }
}
