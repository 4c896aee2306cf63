//! State of the supervisor, and its loop: requests, deaths, and the resources of new processes.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use channel::keeping::SlotSnapshot;
use channel::link;
use channel::owners::SocketOwner;
use channel::sockets::SocketType;
use channel::state::StateFile;
use channel::supervision::{ProcessInfo, SupervisorEvent, SupervisorRequest, SwitchSettings};
use channel::timeouts;
use port::PortId;
use rustix::event::{PollFd, PollFlags};
use sys::foreign::ForeignFd;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{Child, Kind};
use super::drivers::Drivers;
use super::events::{Death, PendingEvents};
use super::guests::Guests;
use super::hand_over::HandOvers;
use super::heartbeat::HeartbeatStatus;
use super::lock::Lock;
use super::reload::Reload;
use super::saved_sessions::SavedSessions;
use super::signals::{self, Signal};
use super::sockets::Sockets;
use super::upgrade::Upgrade;
use super::{notify, rights, running, usage};

/// Maximum number of messages of one child in a row, before the other children are served.
const MAX_MESSAGES: usize = 64;
/// Maximum number of messages read from a dead child. A link holds fewer, but other processes may
/// have copies of its socket.
pub(super) const MAX_LAST_MESSAGES: usize = 4096;

/// Control or switch, of the serving pair or of the next pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ProcessRef {
    pub(super) kind: Kind,
    pub(super) next: bool,
}

/// Control of the serving pair.
pub(super) const CONTROL: ProcessRef = ProcessRef {
    kind: Kind::Control,
    next: false,
};
/// Switch of the serving pair.
pub(super) const SWITCH: ProcessRef = ProcessRef {
    kind: Kind::Switch,
    next: false,
};

/// Reply to a request of a process.
pub(super) struct Reply {
    pub(super) event: SupervisorEvent,
    pub(super) socket: Option<ForeignFd>,
}

/// Returns a socket that was opened, or the reason why not.
pub(super) fn opened(
    socket: Result<ForeignFd, impl ToString>,
) -> (Option<ForeignFd>, Option<String>) {
    match socket {
        Ok(socket) => (Some(socket), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// Control and the switch, which belong together.
pub(super) struct Pair {
    pub(super) control: Child,
    pub(super) switch: Child,
}

impl Pair {
    /// Returns control or the switch.
    pub(super) fn child(&mut self, kind: Kind) -> &mut Child {
        match kind {
            Kind::Control => &mut self.control,
            _ => &mut self.switch,
        }
    }

    /// Returns both processes.
    fn processes(&self, next: bool) -> [(ProcessRef, &Child); 2] {
        [&self.control, &self.switch].map(|child| {
            let kind = child.kind();
            (ProcessRef { kind, next }, child)
        })
    }
}

/// Resources of each pair, which outlive it.
pub(super) struct Setup {
    pub(super) settings: SwitchSettings,
    pub(super) state: StateFile,
    pub(super) counters: OwnedFd,
    /// Shared memory with the port that each thread of the switch serves.
    pub(super) thread_slots: OwnedFd,
}

/// Runtime directory.
pub(super) struct Home {
    pub(super) dir: PathBuf,
    pub(super) api: ForeignFd,
    /// Dropped last: the next owner of the lock finds no sockets.
    pub(super) lock: Lock,
}

/// State of the supervisor.
pub(super) struct Supervisor {
    /// Executable files of new processes.
    pub(super) binaries: Binaries,
    pub(super) reload: Reload,
    pub(super) sockets: Sockets,
    pub(super) drivers: Drivers,
    /// Sessions for the next switch.
    pub(super) saved_sessions: SavedSessions,
    /// vCPU states of the guests.
    pub(super) guests: Guests,
    pub(super) events: PendingEvents,
    pub(super) setup: Setup,
    pub(super) pair: Pair,
    pub(super) started: Instant,
    /// Set when control has reported that everything is in place.
    pub(super) ready: bool,
    pub(super) admin: Admin,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) hand_over: HandOvers,
    /// Dropped last.
    pub(super) home: Home,
}

impl Supervisor {
    /// Serves until a terminating signal, or until control cannot start.
    pub(super) fn serve(&mut self, signals: &OwnedFd) -> io::Result<()> {
        loop {
            let (signal, ready) = self.wait(signals)?;
            match signal.then(|| signals::next(signals)).flatten() {
                Some(Signal::Terminate) => return Ok(()),
                Some(Signal::Reload(by)) => self.reload(by),
                None => {}
            }
            for process in ready {
                self.receive(process, MAX_MESSAGES)?;
            }
            self.poll_hand_over()?;
            if self.hand_over.next.is_none() {
                self.restart_dead()?;
            }
            for reply in self.drivers.poll(&self.binaries) {
                self.reply(SWITCH, &reply);
            }
            for event in self.drivers.take_pages() {
                let socket = None;
                self.reply(CONTROL, &Reply { event, socket });
            }
            self.poll_reload();
            self.poll_upgrade();
            self.check_processes();
            self.poll_guests();
            self.send_events();
        }
    }

    /// Sends saved sessions to a new switch and checks the heartbeats.
    pub(super) fn check_processes(&mut self) {
        if self.pair.switch.is_alive() && !self.next_receives_sessions() {
            let switch = &self.pair.switch;
            let sent = self
                .saved_sessions
                .send_queued(|event, fds| switch.try_send(event, fds));
            self.pair.switch.kill_on_error(sent);
        }
        // During a hand-over each step has a deadline instead; a quiesced or a waiting switch does
        // not count as hung.
        if self.hand_over.next.is_some() {
            return;
        }
        self.pair.control.check_heartbeat();
        if self.pair.switch.check_heartbeat() == HeartbeatStatus::Missed {
            let progresses = self
                .saved_sessions
                .session_thread_progressed(&self.setup.thread_slots);
            progresses.then(|| self.pair.switch.excuse_missed());
        }
    }

    /// Handles up to `most` messages of a child, so that one child cannot block the others.
    pub(super) fn receive(&mut self, process: ProcessRef, most: usize) -> io::Result<()> {
        for _ in 0..most {
            let Some((request, fds)) = self.child(process).and_then(Child::receive) else {
                return Ok(());
            };
            self.answer(process, request, fds)?;
        }
        if let Some(child) = self.child(process) {
            child.note_flood();
        }
        Ok(())
    }

    /// Returns control or the switch; `None` without a next pair.
    pub(super) fn child(&mut self, process: ProcessRef) -> Option<&mut Child> {
        let pair = match process.next {
            true => &mut self.hand_over.next.as_mut()?.pair,
            false => &mut self.pair,
        };
        Some(pair.child(process.kind))
    }

    pub(super) fn answer(
        &mut self,
        process: ProcessRef,
        request: SupervisorRequest,
        fds: Vec<ForeignFd>,
    ) -> io::Result<()> {
        if !process.kind.may_request(&request) {
            tracing::error!("unexpected request from {}: killed", process.kind);
            if let Some(child) = self.child(process) {
                child.kill();
            }
            return Ok(());
        }
        match request {
            SupervisorRequest::Frozen
            | SupervisorRequest::Quiesced { .. }
            | SupervisorRequest::Serving { .. } => self.on_hand_over_request(process, &request),
            SupervisorRequest::Ready if process.next => {
                self.on_hand_over_request(process, &request)
            }
            request => {
                if let Some(reply) = self.reply_to(process, request, fds) {
                    self.reply(process, &reply);
                }
                Ok(())
            }
        }
    }

    fn listen_as(&mut self, path: String, owner: &SocketOwner, of: SocketType) -> Reply {
        let (socket, outcome) = match self.sockets.listen_as(&path, owner, of) {
            Ok((socket, peer)) => (Some(socket), Ok(peer)),
            Err(no) => (None, Err(no)),
        };
        let event = SupervisorEvent::ListeningFor { path, outcome };
        Reply { event, socket }
    }

    /// Handles a request; returns the reply, if there is one.
    pub(super) fn reply_to(
        &mut self,
        process: ProcessRef,
        request: SupervisorRequest,
        fds: Vec<ForeignFd>,
    ) -> Option<Reply> {
        let event = match request {
            SupervisorRequest::Listen { path } => {
                let (socket, error) = opened(self.sockets.listen(&path));
                let event = SupervisorEvent::Listening { path, error };
                return Some(Reply { event, socket });
            }
            SupervisorRequest::ListenFor { path, owner } => {
                return Some(self.listen_as(path, &owner, SocketType::Stream));
            }
            SupervisorRequest::ListenAs {
                path,
                owner,
                socket_type,
            } => return Some(self.listen_as(path, &owner, socket_type)),
            SupervisorRequest::Dial { port } => return self.dial(port),
            SupervisorRequest::Dials(dials) => {
                let error = self.sockets.register(dials).err();
                let error = error.map(|error| error.to_string());
                SupervisorEvent::Dials { error }
            }
            SupervisorRequest::SocketDirs => {
                SupervisorEvent::SocketDirs(self.sockets.dirs().to_vec())
            }
            SupervisorRequest::SharedSockets => {
                SupervisorEvent::SharedSockets(self.sockets.shared())
            }
            SupervisorRequest::ForwardReach => {
                SupervisorEvent::ForwardReach(self.drivers.reach().clone())
            }
            SupervisorRequest::Processes => SupervisorEvent::Processes(self.processes()),
            SupervisorRequest::ProcessUsage => {
                let pids = self.processes().into_iter().map(|process| process.pid);
                SupervisorEvent::ProcessUsage(pids.filter_map(usage::of).collect())
            }
            SupervisorRequest::Drivers(specs) => {
                let error = self.drivers.set(specs).err();
                SupervisorEvent::Drivers { error }
            }
            SupervisorRequest::DriverStates => SupervisorEvent::DriverStates(self.drivers.states()),
            SupervisorRequest::InterfaceAddresses => {
                SupervisorEvent::InterfaceAddresses(self.drivers.addresses())
            }
            SupervisorRequest::InterfaceSpeeds => {
                SupervisorEvent::InterfaceSpeeds(self.drivers.speeds())
            }
            SupervisorRequest::CpuWeightErrors => {
                SupervisorEvent::CpuWeightErrors(self.drivers.cpu_weight_errors())
            }
            SupervisorRequest::DriverCalls => SupervisorEvent::DriverCalls(self.drivers.calls()),
            SupervisorRequest::KernelDrops => {
                SupervisorEvent::KernelDrops(self.drivers.kernel_drops())
            }
            SupervisorRequest::WatchedGuests => {
                SupervisorEvent::WatchedGuests(self.guests.watched())
            }
            SupervisorRequest::FoundVcpus => SupervisorEvent::FoundVcpus(self.guests.found()),
            SupervisorRequest::Ready => {
                self.pair.control.set_proved();
                self.pair.switch.set_proved();
                self.report_ready();
                return None;
            }
            SupervisorRequest::Unlisten { path } => {
                if let Err(error) = self.sockets.unlisten(&path) {
                    tracing::error!("cannot remove a socket for {}: {error}", process.kind);
                }
                return None;
            }
            SupervisorRequest::SwitchGone => {
                self.child(process)?.set_peer_lost();
                return None;
            }
            SupervisorRequest::Events { had } => {
                if had && process == CONTROL {
                    self.events.acknowledge();
                }
                self.child(process)?.set_wants_events(true);
                return None;
            }
            SupervisorRequest::WatchGuests(watch) => {
                if self.guests.watch(watch) {
                    rights::give_up();
                }
                return None;
            }
            SupervisorRequest::Rooms(rooms) => {
                self.drivers.set_rooms(&rooms);
                return None;
            }
            SupervisorRequest::CpuWeights(weights) => {
                self.drivers.set_cpu_weights(weights);
                return None;
            }
            SupervisorRequest::AllUserFigures => {
                SupervisorEvent::UserFigures(self.drivers.user_figures())
            }
            SupervisorRequest::UserTable { port, question } => {
                self.drivers.ask(&port, question);
                return None;
            }
            SupervisorRequest::UserNetworks(networks) => {
                self.drivers.set_networks(networks);
                return None;
            }
            SupervisorRequest::Heartbeat => {
                // A reply without a ping is harmless.
                let _ = self.child(process)?.on_heartbeat_reply();
                return None;
            }
            // Only the serving switch owns the sessions.
            SupervisorRequest::StoreDescriptor { .. }
            | SupervisorRequest::StoreSession { .. }
            | SupervisorRequest::DropSession { .. }
                if !self.is_serving(process) =>
            {
                return None;
            }
            SupervisorRequest::StoreDescriptor { port, number } => {
                self.saved_sessions.store_descriptor(port, number, fds);
                return None;
            }
            SupervisorRequest::StoreSession {
                port,
                record,
                numbers,
            } => {
                self.saved_sessions.store_session(port, record, &numbers);
                return None;
            }
            SupervisorRequest::DropSession { port } => {
                self.saved_sessions.drop_session(port);
                return None;
            }
            // The hand-over and `drivers` handle these.
            SupervisorRequest::Frozen
            | SupervisorRequest::Quiesced { .. }
            | SupervisorRequest::Serving { .. }
            | SupervisorRequest::Pong(_)
            | SupervisorRequest::DriverPong { .. }
            | SupervisorRequest::DriverEnds { .. }
            | SupervisorRequest::VhostRefused { .. }
            | SupervisorRequest::KeepFlows(_)
            | SupervisorRequest::DropFlows(_)
            | SupervisorRequest::NextFlows
            | SupervisorRequest::NextForwards
            | SupervisorRequest::NetworkDenied
            | SupervisorRequest::UserFigures(_)
            | SupervisorRequest::UserPage(_) => return None,
        };
        let socket = None;
        Some(Reply { event, socket })
    }

    /// Sends a reply. A child that is gone or does not read gets none.
    pub(super) fn reply(&mut self, process: ProcessRef, reply: &Reply) {
        let fds: Vec<_> = reply.socket.iter().map(AsFd::as_fd).collect();
        let child = self.child(process);
        if let Some(Err(error)) = child.map(|child| child.send(&reply.event, &fds)) {
            tracing::debug!("cannot send to {}: {error}", process.kind);
        }
    }

    pub(super) fn report_ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            let mut out = io::stdout().lock();
            // Standard output may be closed.
            drop(
                out.write_all(b"lasthop: ready\n")
                    .and_then(|()| out.flush()),
            );
            if let Err(error) = notify::ready() {
                tracing::warn!("cannot notify the service manager: {error}");
            }
        }
    }

    pub(super) fn processes(&self) -> Vec<ProcessInfo> {
        let own = ProcessInfo {
            name: "supervisor".to_owned(),
            pid: std::process::id(),
            restarts: 0,
            uptime_ms: self.started.elapsed().as_millis() as u64,
        };
        let mut all = vec![own, self.pair.control.info(), self.pair.switch.info()];
        all.extend(self.drivers.processes());
        all.extend(running::reap_given_up().iter().map(|one| ProcessInfo {
            name: format!("{} (given up)", one.name),
            pid: one.pid.as_raw_nonzero().get().unsigned_abs(),
            restarts: 0,
            uptime_ms: one.since.elapsed().as_millis() as u64,
        }));
        all
    }

    pub(super) fn restart_dead(&mut self) -> io::Result<()> {
        let died = [self.pair.control.reap(), self.reap_switch()?];
        for (kind, death) in [Kind::Control, Kind::Switch].into_iter().zip(&died) {
            if let Some(death) = death {
                self.emit_ended(kind, death);
            }
        }
        if !self.ready
            && let Some(status) = died.into_iter().flatten().next()
        {
            return Err(io::Error::other(format!(
                "{status} before everything was ready"
            )));
        }
        if self.pair.switch.restart_if_due(&self.binaries) {
            self.emit_restarted(Kind::Switch);
            // Control belongs to the dead switch; its successor sets up the new one.
            self.pair.control.set_peer_lost();
            self.pair.control.kill();
            let sent = self.set_up_switch();
            self.pair.switch.kill_on_error(sent);
        }
        if self.switch_is_complete() && self.pair.control.restart_if_due(&self.binaries) {
            self.emit_restarted(Kind::Control);
            let sent = self.set_up_control();
            self.pair.control.kill_on_error(sent);
        }
        Ok(())
    }

    /// Returns whether the switch runs and has all saved sessions. Control is not started before.
    pub(super) fn switch_is_complete(&self) -> bool {
        self.pair.switch.is_alive() && !self.saved_sessions.has_queued()
    }

    /// Reaps the switch if it has died. Its last messages are handled first, because its successor
    /// depends on them.
    pub(super) fn reap_switch(&mut self) -> io::Result<Option<Death>> {
        let Some(status) = self.pair.switch.has_died() else {
            return Ok(None);
        };
        self.receive(SWITCH, MAX_LAST_MESSAGES)?;
        let closing = self.pair.switch.is_given_up().then(|| {
            let slots = SlotSnapshot::at(&self.setup.thread_slots);
            slots.map(|slots| slots.closing()).unwrap_or_default()
        });
        if self.pair.switch.has_hung() {
            self.saved_sessions.record_hang(&self.setup.thread_slots)
        } else {
            self.saved_sessions
                .record_crash(status, &self.setup.thread_slots)
        }
        self.saved_sessions.quarantine(closing.unwrap_or_default());
        self.setup.settings.successor = true;
        Ok(self.pair.switch.reap())
    }

    /// Stops all processes and waits for their ends.
    pub(super) fn stop(&mut self) {
        self.reload.stop();
        self.drop_next();
        self.drivers.stop();
        for child in [&self.pair.control, &self.pair.switch] {
            // A process that is gone needs no message.
            let _ = child.send(&SupervisorEvent::Stop, &[]);
        }
        let deadline = Instant::now() + timeouts::STOP;
        for child in [&mut self.pair.control, &mut self.pair.switch] {
            if !child.wait(deadline) {
                let ProcessInfo { name, pid, .. } = child.info();
                tracing::error!(pid, "killed {name} does not end: left behind");
            }
        }
        for one in running::reap_given_up() {
            let pid = one.pid.as_raw_nonzero().get();
            tracing::error!(pid, "killed {} cannot be reaped: left behind", one.name);
        }
    }

    /// Sets up a new switch; the saved sessions follow.
    ///
    /// # Errors
    /// It cannot receive.
    pub(super) fn set_up_switch(&mut self) -> io::Result<()> {
        let start = SupervisorEvent::StartSwitch(self.setup.settings.clone());
        let fds = [self.setup.counters.as_fd(), self.setup.thread_slots.as_fd()];
        self.pair.switch.send(&start, &fds)?;
        self.saved_sessions.queue_all();
        Ok(())
    }

    /// Sets up a new control process of the serving pair.
    ///
    /// # Errors
    /// One of them cannot receive.
    pub(super) fn set_up_control(&mut self) -> io::Result<()> {
        self.set_up(&self.pair, false)
    }

    /// Sets up a new control process, and links it with the switch.
    ///
    /// # Errors
    /// One of them cannot receive.
    pub(super) fn set_up(&self, pair: &Pair, frozen: bool) -> io::Result<()> {
        let (switch_end, control_end) = link::pair()?;
        pair.switch
            .send(&SupervisorEvent::ControlLink, &[switch_end.as_fd()])?;
        let start = SupervisorEvent::StartControl {
            runtime_dir: self.home.dir.display().to_string(),
            frozen,
        };
        let fds = [
            control_end.as_fd(),
            self.home.api.as_fd(),
            self.setup.state.as_fd(),
            self.setup.counters.as_fd(),
        ];
        pair.control.send(&start, &fds)
    }

    /// Waits for signals, messages and timers. Returns whether a signal is pending, and the
    /// processes with messages or an end.
    pub(super) fn wait(&self, signals: &OwnedFd) -> io::Result<(bool, Vec<ProcessRef>)> {
        let mut sources: Vec<(Option<ProcessRef>, BorrowedFd<'_>)> = vec![(None, signals.as_fd())];
        let next = self.hand_over.next.iter();
        let next = next.flat_map(|next| next.pair.processes(true));
        for (process, child) in self.pair.processes(false).into_iter().chain(next) {
            sources.extend(child.link().map(|fd| (Some(process), fd)));
            sources.extend(child.pidfd().map(|fd| (Some(process), fd)));
        }
        sources.extend(self.drivers.sources().map(|fd| (None, fd)));
        sources.extend(self.reload.source().map(|fd| (None, fd)));
        sources.extend(self.upgrade_sources().map(|fd| (None, fd)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd)| PollFd::new(fd, PollFlags::IN))
            .collect();
        let receiver = match &self.hand_over.next {
            Some(next) if self.next_receives_sessions() => &next.pair.switch,
            _ => &self.pair.switch,
        };
        if let (true, Some(link)) = (self.saved_sessions.has_queued(), receiver.link()) {
            fds.push(PollFd::from_borrowed_fd(link, PollFlags::OUT));
        }
        // During a hand-over no process of the pair is restarted or checked.
        let alone = self.hand_over.next.is_none();
        let due = (self.pair_due().filter(|_| alone).into_iter())
            .chain(self.drivers.due())
            .chain(self.guests.due())
            .chain(self.upgrade_due())
            .min();
        sys::wait::poll(&mut fds, due)?;
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = sources.iter().zip(&fds);
        let ready = ready
            .filter(|(_, fd)| happened(fd))
            .filter_map(|((process, _), _)| *process);
        Ok((happened(&fds[0]), ready.collect()))
    }

    /// Returns the time of the next restart or heartbeat check of control and switch.
    pub(super) fn pair_due(&self) -> Option<Instant> {
        let control_due = self
            .pair
            .control
            .restart_at()
            .filter(|_| self.switch_is_complete());
        let due = [
            self.pair.control.heartbeat_due(),
            self.pair.switch.heartbeat_due(),
        ];
        let given_up = [&self.pair.control, &self.pair.switch].map(Child::give_up_due);
        let restarts = [control_due, self.pair.switch.restart_at()];
        due.into_iter()
            .chain(restarts)
            .chain(given_up)
            .flatten()
            .min()
    }

    /// Connects for a port with a front end that listens; `None` for a driver, whose reply is sent
    /// when it runs.
    pub(super) fn dial(&mut self, port: PortId) -> Option<Reply> {
        if self.drivers.dial(port) {
            return None;
        }
        let path = self.sockets.dialled(port).unwrap_or_default().to_owned();
        let (socket, error) = opened(self.sockets.dial(port));
        let event = SupervisorEvent::Dialed { port, path, error };
        Some(Reply { event, socket })
    }
}

#[cfg(test)]
mod tests;
