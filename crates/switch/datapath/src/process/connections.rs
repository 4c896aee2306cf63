//! Connections of front ends: accepting, dialling, serving and ending them; and interfaces of the
//! host that the switch serves itself: they come from the previous switch process or as answers to
//! dials, and go when they fail, when they are changed, and with their ports.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::driving::{InterfaceStart, REASON_CHARS_MAX};
use ipc::supervision::SwitchRequest;
use ipc::switching::{PhaseReport, SwitchEvent};
use port::PortId;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use sys::foreign::{Author, ForeignFd};
use virtio::vhost_user::Fault;

use super::{Process, Token};
use crate::ports::attached::QueueFailure;
use crate::ports::crash_record;
use crate::ports::interface::InterfaceFault;
use crate::process::attach::Attachment;
use crate::worker::Notice;

/// Dial requests to the supervisor without a reply. Each reply needs room in the link; the
/// supervisor ends a process whose link is full.
const MAX_PENDING_DIALS: usize = 64;

/// Removes a connection that is about to end from the epoll set. The supervisor has the same socket
/// open, so that closing it here would not remove it from the set.
pub(super) fn unwatch(epoll: &OwnedFd, port: &Attachment) {
    if let Some((socket, _)) = port.socket() {
        let _ = epoll::delete(epoll, socket);
    }
}

/// Returns the event that a connection waits for: while a reply waits, no message is read.
fn awaited(has_pending_reply: bool) -> EventFlags {
    if has_pending_reply {
        EventFlags::OUT
    } else {
        EventFlags::IN
    }
}

/// Returns the queues of an interface: the supervisor has opened them.
fn opened_by_supervisor(fds: Vec<ForeignFd>) -> Vec<OwnedFd> {
    fds.into_iter().map(ForeignFd::vouch).collect()
}

/// Returns the tokens of missing translations and of the back-end channel of a port.
fn translation_tokens(id: PortId) -> [u64; 2] {
    [Token::Misses(id), Token::Channel(id)].map(|token| token.encode().u64())
}

/// Prepares a listening socket of a port. Clients that have connected to it and were not accepted
/// have nothing to do with others.
pub(super) fn own_listener(listener: ForeignFd) -> Result<ForeignFd, String> {
    rustix::io::ioctl_fionbio(&listener, true).map_err(|e| e.to_string())?;
    Ok(listener.of(Author::new(None)))
}

impl Process {
    /// Adds a port's listening socket to the epoll set, unless the port is paused. A port that
    /// restores a saved connection is added after that: its front end may have disconnected, and
    /// the waiting connection may be its new one.
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

    /// Returns the ports that listen and lack their sockets.
    pub(super) fn ports_without_listener(&self) -> Vec<PortId> {
        let ports = self.ports.iter();
        let lack = ports.filter(|(_, port)| port.lacks_listener());
        lack.map(|(id, _)| *id).collect()
    }

    /// Sets the listening socket of the port of a saved connection.
    pub(super) fn set_listener(
        &mut self,
        id: PortId,
        listener: Option<ForeignFd>,
    ) -> Result<(), String> {
        let listener = own_listener(listener.ok_or("no socket")?)?;
        let port = self.ports.get_mut(&id).ok_or("no such port")?;
        port.set_listener(listener);
        match self.ports.get(&id) {
            Some(port) if !self.sessions.saved.waits && !port.awaits_restore() => {
                self.watch_listener(id, port)
            }
            _ => Ok(()),
        }
    }

    /// Watches the listening socket of a port again, if it has one.
    pub(super) fn listen(&self, id: PortId) {
        if let Some(port) = self.ports.get(&id)
            && let Err(error) = self.watch_listener(id, port)
        {
            tracing::error!("watching a listening socket failed: {error}");
        }
    }

    pub(super) fn accept(&mut self, id: PortId) {
        // The connected front end may have disconnected: process that first.
        self.serve_connection(id);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let attached = port.socket().is_some();
        let peer = self.peers.get(&id).copied();
        match port.accept(peer) {
            Ok(()) if !attached => self.watch(id),
            Ok(()) => self.unwatch_while_paused(id),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // The connection stays in the backlog, and epoll would report it at once. The usual
                // cause is that no descriptor is left.
                if port.accept_failed(&error) {
                    let port = &port.config().name;
                    tracing::warn!(port, "accept failed: {error}");
                }
                self.unwatch_while_paused(id);
            }
        }
    }

    pub(super) fn dialed(
        &mut self,
        id: PortId,
        path: &str,
        socket: Option<ForeignFd>,
        error: Option<String>,
    ) {
        // The port that dialled may be removed, and its number used by another port.
        let port = self.ports.get_mut(&id);
        let Some(port) = port.filter(|p| p.is_dialing()) else {
            return;
        };
        let failed = match socket {
            _ if error.is_none() && port.config().socket != path => {
                Some("the dialled socket is not the port's any more".to_owned())
            }
            Some(socket) => port.attach(socket).err().map(|e| e.to_string()),
            None => Some(error.unwrap_or_default()),
        };
        match failed {
            Some(reason) => port.dial_failed(reason),
            None => self.watch(id),
        }
    }

    /// Adds a new connection to the epoll set, or one that is continued.
    pub(super) fn watch(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.watch_translations(&self.epoll, translation_tokens(id));
        }
        let Some((socket, has_pending_reply)) = self.ports.get(&id).and_then(Attachment::socket)
        else {
            return;
        };
        let (token, flags) = (Token::Connection(id).encode(), awaited(has_pending_reply));
        if let Err(error) = epoll::add(&self.epoll, socket, token, flags) {
            tracing::error!("watching a connection failed: {error}");
        }
        self.report_phase(id);
    }

    pub(super) fn serve_connection(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        let had_started = port.has_started();
        let outcome = port.serve(&self.workers);
        if !had_started && port.has_started() {
            self.sessions.tracked.greet(port.config());
        }
        if let Err(fault) = outcome {
            self.end_connection(id, fault);
        }
        self.disconnect_blocking(id);
        drop(served);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        port.watch_translations(&self.epoll, translation_tokens(id));
        if let Some((socket, has_pending_reply)) = port.socket() {
            let token = Token::Connection(id).encode();
            let _ = epoll::modify(&self.epoll, socket, token, awaited(has_pending_reply));
        }
        self.report_phase(id);
    }

    /// Asks the front end of a port for translations.
    pub(super) fn serve_misses(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        port.ask(&self.workers);
        port.watch_translations(&self.epoll, translation_tokens(id));
        drop(served);
        self.report_phase(id);
    }

    /// Reads the answers of a port's front end, after its messages: it may have sent an UPDATE
    /// before an answer.
    pub(super) fn serve_channel(&mut self, id: PortId) {
        self.serve_connection(id);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        port.read_answers(&self.workers);
        port.watch_translations(&self.epoll, translation_tokens(id));
        drop(served);
        self.report_phase(id);
    }

    /// The time at which the first question to a front end ends without an answer.
    pub(super) fn next_question(&self) -> Option<Instant> {
        let questions = self.ports.values();
        questions.filter_map(Attachment::next_question).min()
    }

    /// Ends questions that have not been answered in time.
    pub(super) fn questions_due(&mut self) {
        let now = Instant::now();
        let is_due = |port: &Attachment| port.next_question().is_some_and(|at| at <= now);
        let due = self.ports.iter().filter(|(_, port)| is_due(port));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.serve_misses(id);
        }
    }

    /// Ends a connection with a fault of its front end.
    fn end_connection(&mut self, id: PortId, fault: Fault) {
        if let Some(port) = self.ports.get_mut(&id) {
            unwatch(&self.epoll, port);
            port.close(Some(fault), &self.workers);
            self.unwatch_while_paused(id);
        }
    }

    /// Stops a queue that broke a rule, and ends its connection where that needs the queue.
    pub(super) fn queue_failed(&mut self, id: PortId, queue: u16, reason: &str) {
        let _served = crash_record::serve(Some(id));
        let port = self.ports.get_mut(&id);
        let ended = port.and_then(|port| port.queue_failed(queue, reason, &self.workers));
        if let Some(fault) = ended {
            self.end_connection(id, fault);
        }
        self.disconnect_blocking(id);
        self.report_phase(id);
    }

    /// Ends a connection whose front end made a writer of its event descriptors block. New
    /// connections wait in the backlog until the pause ends.
    pub(super) fn disconnect_blocking(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id).filter(|port| port.has_blocked()) else {
            return;
        };
        unwatch(&self.epoll, port);
        port.disconnect_blocking(&self.workers);
        self.unwatch_while_paused(id);
    }

    /// Removes a port's listening socket from the epoll set during a pause, see
    /// [`Self::pauses_due`].
    fn unwatch_while_paused(&self, id: PortId) {
        let port = self.ports.get(&id);
        let paused = port.filter(|port| port.paused_until().is_some());
        if let Some(listener) = paused.and_then(Attachment::listener) {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    /// Ends a connection of a user who may not connect to the port.
    pub(super) fn disconnect_other_user(&mut self, id: PortId) {
        let Some(peer) = self.peers.get(&id).copied() else {
            return;
        };
        let port = self.ports.get_mut(&id);
        if let Some(port) = port.filter(|port| port.has_other_user(peer)) {
            let _served = crash_record::serve(Some(id));
            unwatch(&self.epoll, port);
            port.disconnect("its user is not peer_user", &self.workers);
            self.unwatch_while_paused(id);
        }
    }

    pub(super) fn next_pause_end(&self) -> Option<Instant> {
        let paused = self.ports.values().filter_map(Attachment::paused_until);
        paused.min()
    }

    /// Adds the listening sockets of ports whose pause is over.
    pub(super) fn pauses_due(&mut self) {
        let now = Instant::now();
        let paused = self.ports.iter_mut();
        let over = paused.filter_map(|(id, port)| port.end_pause(now).then_some(*id));
        for id in over.collect::<Vec<_>>() {
            self.listen(id);
        }
    }

    pub(super) fn next_warning(&self) -> Option<Instant> {
        self.ports.values().filter_map(Attachment::warning_at).min()
    }

    /// Logs the warnings of ports that are due.
    pub(super) fn warnings_due(&mut self) {
        let now = Instant::now();
        let ports = self.ports.values_mut();
        ports.for_each(|port| port.warn_if_due(now));
    }

    pub(super) fn next_dial(&self) -> Option<Instant> {
        if self.sessions.saved.waits || self.room_for_dials() == 0 {
            return None;
        }
        self.ports.values().filter_map(Attachment::dial_at).min()
    }

    pub(super) fn dial_due(&mut self) {
        if self.sessions.saved.waits {
            return;
        }
        let (now, room) = (Instant::now(), self.room_for_dials());
        let is_due = |port: &Attachment| port.dial_at().is_some_and(|at| at <= now);
        let due = self.ports.iter_mut().filter(|(_, port)| is_due(port));
        for (id, port) in due.take(room) {
            port.dialing();
            let request = SwitchRequest::Dial { port: *id };
            if let Err(error) = self.supervisor.send(&request, &[]) {
                port.dial_failed(error.to_string());
            }
        }
    }

    /// Returns how many more dial requests may be sent now.
    fn room_for_dials(&self) -> usize {
        let open = self.ports.values().filter(|port| port.is_dialing());
        MAX_PENDING_DIALS.saturating_sub(open.count())
    }

    /// Sets the only user who may connect to a port, or removes the restriction. The port may not
    /// exist yet. A connection of another user is ended.
    pub(super) fn set_peer(&mut self, id: PortId, user: Option<u32>) -> Result<(), String> {
        if id.0 as usize >= port::counters::MAX_PORTS {
            return Err("no such port".into());
        }
        match user {
            Some(user) => self.peers.insert(id, user),
            None => self.peers.remove(&id),
        };
        self.disconnect_other_user(id);
        self.report_phase(id);
        Ok(())
    }

    /// Takes queues of the interface that is the answer to a dial, or was the previous switch's;
    /// others follow.
    pub(super) fn interface_queues(&mut self, id: PortId, fds: Vec<ForeignFd>) {
        let fds = opened_by_supervisor(fds);
        if let Some(port) = self.ports.get_mut(&id).filter(|port| port.is_dialing()) {
            port.add_interface_queues(fds);
        } else if self.sessions.saved.taking_over {
            self.sessions.saved.add_queues(id, fds);
        }
    }

    /// Attaches the interface that is the answer to a dial. One that was the previous switch's is
    /// attached with the connections that continue.
    pub(super) fn interface_dialed(
        &mut self,
        id: PortId,
        path: &str,
        start: InterfaceStart,
        fds: Vec<ForeignFd>,
    ) {
        let fds = opened_by_supervisor(fds);
        // The port that dialled may be removed, and its number used by another port.
        let Some(port) = self.ports.get_mut(&id).filter(|port| port.is_dialing()) else {
            if self.sessions.saved.taking_over {
                let saved = &mut self.sessions.saved;
                saved.add_interface(id, path.to_owned(), start, fds);
            }
            return;
        };
        let _served = crash_record::serve(Some(id));
        let attached = if port.config().socket == path {
            port.attach_interface(start, fds, &self.workers)
        } else {
            Err("the dialled interface is not the port's any more".to_owned())
        };
        if let Err(reason) = attached {
            port.dial_failed(reason);
        }
        self.report_phase(id);
    }

    /// Detaches an interface that has failed, and informs the supervisor.
    pub(super) fn interface_failed(&mut self, id: PortId, fault: InterfaceFault) {
        let reason: String = fault.to_string().chars().take(REASON_CHARS_MAX).collect();
        if !self.detach_interface(id, Some(&reason)) {
            return;
        }
        self.send(&SwitchRequest::InterfaceLost {
            port: id,
            reason,
            device_lost: fault.is_device_lost(),
        });
        self.report_phase(id);
    }

    /// Detaches an interface that the supervisor has changed.
    pub(super) fn close_interface(&mut self, id: PortId, reason: &str) {
        self.sessions.saved.drop_interface(id);
        if self.detach_interface(id, Some(reason)) {
            self.report_phase(id);
        }
    }

    /// Detaches the interface of a port, and reports its last counters. Returns `false` if it has
    /// none.
    pub(super) fn detach_interface(&mut self, id: PortId, reason: Option<&str>) -> bool {
        let _served = crash_record::serve(Some(id));
        let port = self.ports.get_mut(&id);
        let Some(counters) = port.and_then(|port| port.detach_interface(reason, &self.workers))
        else {
            return false;
        };
        self.send(&SwitchRequest::InterfaceCounters { port: id, counters });
        true
    }

    /// Reports the counters of interfaces that have changed.
    pub(super) fn report_interface_counters(&mut self) {
        let (ports, workers) = (&mut self.ports, &self.workers);
        let changed = ports.iter_mut().filter_map(|(id, port)| {
            let counters = port.new_interface_counters(workers)?;
            Some(SwitchRequest::InterfaceCounters {
                port: *id,
                counters,
            })
        });
        for request in changed.collect::<Vec<_>>() {
            self.send(&request);
        }
    }

    /// Handles what the workers have noticed.
    pub(super) fn handle_notices(&mut self) {
        self.notices.woke();
        while let Some(notice) = self.notices.next() {
            match notice {
                Notice::QueueFault(id, queue, QueueFailure::Guest(fault)) => {
                    self.queue_failed(id, queue, &fault.to_string());
                }
                Notice::QueueFault(id, _, QueueFailure::Interface(fault)) => {
                    self.interface_failed(id, fault);
                }
                Notice::MemoryLost(id) => {
                    let _served = crash_record::serve(Some(id));
                    // Every worker that notices reports it. By then the port may have a new
                    // connection.
                    let port = self.ports.get_mut(&id);
                    if let Some(port) = port.filter(|port| port.memory_is_lost()) {
                        unwatch(&self.epoll, port);
                        port.disconnect(
                            "guest memory was taken away (its file was truncated)",
                            &self.workers,
                        );
                    }
                    self.report_phase(id);
                }
                Notice::Finished(finished) => {
                    if let Some((number, reports)) = self.sweeps.merge(finished) {
                        reports.iter().for_each(|report| self.report(report, &[]));
                        self.done(number, None);
                    }
                }
                Notice::ProbeAck => {
                    self.pending_acks = self.pending_acks.saturating_sub(1);
                    if self.pending_acks == 0 {
                        self.report_interface_counters();
                        self.send_heartbeat();
                    }
                }
            }
        }
    }

    /// Reports the phase of a port, if it has changed. While connections are restored it is
    /// reported with those of the others.
    pub(super) fn report_phase(&mut self, id: PortId) {
        if self.sessions.saved.began.is_none()
            && let Some(phase) = self.phase_report(id)
        {
            self.report(&SwitchEvent::Phases(vec![phase]), &[]);
        }
    }

    /// Returns the phase of a port, if it has changed since the last call.
    pub(super) fn phase_report(&mut self, id: PortId) -> Option<PhaseReport> {
        let port = self.ports.get_mut(&id)?;
        let phase = port.phase_change()?;
        let reason = port.reason();
        Some(PhaseReport {
            port: id,
            phase,
            reason,
        })
    }
}
