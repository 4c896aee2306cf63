//! Supervisor: the process of `lasthop run`.
//!
//! It reads the configuration, binds every listening socket, makes the files that outlive the other
//! processes, and starts those. Then it waits for their requests, their deaths and signals.
//!
//! ```text
//! control dies      it is restarted, with a new link to the switch, which forwards meanwhile; the
//!                   delay grows with each death before control is ready
//! switch dies       it is restarted and gets the saved sessions; control is restarted to set it up
//! driver dies       see [`drivers`]
//! upgrade           see [`upgrade`]
//! SIGTERM, SIGINT   all processes are stopped, sockets are removed, exit status 0
//! SIGHUP            see [`reload`]
//! supervisor dies   the kernel sends SIGKILL to all others
//! ```

mod admin;
mod binaries;
mod check;
mod child;
mod dialling;
mod drivers;
mod environment;
mod events;
mod groups;
mod guests;
mod hand_over;
mod heartbeat;
mod lock;
pub(crate) mod names;
mod notify;
mod paths;
mod reload;
mod renew;
mod replace;
mod running;
mod saved_sessions;
mod set_up;
mod settings;
mod signals;
mod sockets;
mod start;
#[cfg(test)]
mod tests;
mod upgrade;
mod usage;
mod wait;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use channel::state::StateFile;
use channel::supervision::{ProcessInfo, SupervisorEvent, SupervisorRequest, SwitchSettings};
use channel::timeouts;

use admin::Admin;
use binaries::Binaries;
use child::{Child, Kind};
use drivers::Drivers;
use events::{Death, PendingEvents};
use guests::Guests;
use hand_over::{HandOver, HandOverResult};
use heartbeat::HeartbeatStatus;
use lock::Lock;
use reload::Reload;
use saved_sessions::SavedSessions;
use signals::Signal;
use sockets::Sockets;
use upgrade::Upgrade;

/// Maximum number of messages of one child in a row, before the other children are served.
const MAX_MESSAGES: usize = 64;
/// Maximum number of messages read from a dead child. A link holds fewer, but other processes may
/// have copies of its socket.
const MAX_LAST_MESSAGES: usize = 4096;

/// Arguments of `lasthop run`.
pub(crate) struct RunArgs {
    /// Configuration file.
    pub(crate) config: PathBuf,
    /// Directory of the sockets.
    pub(crate) runtime_dir: PathBuf,
}

/// Reason why Lasthop did not start, with its exit status.
struct StartError {
    status: u8,
    text: String,
}

impl StartError {
    /// Returns the error for an invalid configuration or environment; nothing was changed.
    fn invalid(text: String) -> Self {
        Self { status: 2, text }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        Self { status: 1, text }
    }
}

impl From<config::ConfigError> for StartError {
    fn from(error: config::ConfigError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// Runs the supervisor in the foreground until it is stopped.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    crate::log::start();
    supervise(|| start_new(args))
}

/// Resumes as the successor of another supervisor in this process, if there was one.
pub(crate) fn resume() -> Option<ExitCode> {
    std::env::var_os(replace::RESUME)?;
    crate::log::start();
    Some(supervise(|| {
        let resumed = replace::resume();
        resumed.map_err(|text| StartError { status: 1, text })
    }))
}

/// Checks whether this build can read the record of a running supervisor.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn understand(record: &File) -> Result<(), String> {
    replace::load(record).map(drop)
}

fn start_new(args: &RunArgs) -> Result<Supervisor, StartError> {
    environment::check().map_err(StartError::invalid)?;
    let mut supervisor = start::start(args)?;
    supervisor.set_up_switch()?;
    supervisor.set_up_control()?;
    Ok(supervisor)
}

fn supervise(start: impl FnOnce() -> Result<Supervisor, StartError>) -> ExitCode {
    let supervised = || {
        let signals = signals::block()?;
        let mut supervisor = start()?;
        let done = supervisor.serve(&signals);
        supervisor.stop();
        Ok::<_, StartError>(done?)
    };
    match supervised() {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            drop(writeln!(io::stderr(), "lasthop: {}", refusal.text));
            ExitCode::from(refusal.status)
        }
    }
}

/// Control or switch, of the serving pair or of the next pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ProcessRef {
    kind: Kind,
    next: bool,
}

/// Control of the serving pair.
const CONTROL: ProcessRef = ProcessRef {
    kind: Kind::Control,
    next: false,
};
/// Switch of the serving pair.
const SWITCH: ProcessRef = ProcessRef {
    kind: Kind::Switch,
    next: false,
};

/// Reply to a request of a process.
struct Reply {
    event: SupervisorEvent,
    socket: Option<OwnedFd>,
}

/// Returns a socket that was opened, or the reason why not.
fn opened(socket: Result<OwnedFd, impl ToString>) -> (Option<OwnedFd>, Option<String>) {
    match socket {
        Ok(socket) => (Some(socket), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// State of the supervisor.
struct Supervisor {
    /// Executable files of new processes.
    binaries: Binaries,
    /// Configuration file of the start, if known.
    config: Option<PathBuf>,
    reload: Reload,
    runtime_dir: PathBuf,
    sockets: Sockets,
    drivers: Drivers,
    api: OwnedFd,
    state: StateFile,
    counters: OwnedFd,
    /// Shared memory with the port that each thread of the switch serves.
    thread_slots: OwnedFd,
    /// Sessions for the next switch.
    saved_sessions: SavedSessions,
    /// vCPU states of the guests.
    guests: Guests,
    events: PendingEvents,
    settings: SwitchSettings,
    control: Child,
    switch: Child,
    started: Instant,
    /// Set when control has reported that everything is in place.
    ready: bool,
    admin: Admin,
    upgrade: Option<Upgrade>,
    /// Pair that is to replace control and the switch.
    next: Option<HandOver>,
    /// Result of the last hand-over.
    hand_over_result: Option<HandOverResult>,
    /// Dropped last: the next owner of the lock finds no sockets.
    lock: Lock,
}

impl Supervisor {
    /// Serves until a terminating signal, or until control cannot start.
    fn serve(&mut self, signals: &OwnedFd) -> io::Result<()> {
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
            if self.next.is_none() {
                self.restart_dead()?;
            }
            for reply in self.drivers.poll(&self.binaries) {
                self.reply(SWITCH, &reply);
            }
            self.poll_reload();
            self.poll_upgrade();
            self.check_processes();
            self.poll_guests();
            self.send_events();
        }
    }

    /// Sends saved sessions to a new switch and checks the heartbeats.
    fn check_processes(&mut self) {
        if self.switch.is_alive() && !self.next_receives_sessions() {
            let switch = &self.switch;
            let sent = self
                .saved_sessions
                .send_queued(|event, fds| switch.try_send(event, fds));
            self.switch.kill_on_error(sent);
        }
        // During a hand-over each step has a deadline instead; a quiesced or a waiting switch does
        // not count as hung.
        if self.next.is_some() {
            return;
        }
        self.control.check_heartbeat();
        if self.switch.check_heartbeat() == HeartbeatStatus::Missed {
            let progresses = self
                .saved_sessions
                .session_thread_progressed(&self.thread_slots);
            progresses.then(|| self.switch.excuse_missed());
        }
    }

    /// Handles up to `most` messages of a child, so that one child cannot block the others.
    fn receive(&mut self, process: ProcessRef, most: usize) -> io::Result<()> {
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
    fn child(&mut self, process: ProcessRef) -> Option<&mut Child> {
        match process {
            ProcessRef { kind, next: true } => self.next.as_mut().map(|next| next.child(kind)),
            CONTROL => Some(&mut self.control),
            _ => Some(&mut self.switch),
        }
    }

    fn answer(
        &mut self,
        process: ProcessRef,
        request: SupervisorRequest,
        fds: Vec<OwnedFd>,
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

    /// Handles a request; returns the reply, if there is one.
    fn reply_to(
        &mut self,
        process: ProcessRef,
        request: SupervisorRequest,
        fds: Vec<OwnedFd>,
    ) -> Option<Reply> {
        let event = match request {
            SupervisorRequest::Listen { path } => {
                let (socket, error) = opened(self.sockets.listen(&path));
                let event = SupervisorEvent::Listening { path, error };
                return Some(Reply { event, socket });
            }
            SupervisorRequest::ListenFor { path, owner } => {
                let (socket, outcome) = match self.sockets.listen_as(&path, &owner) {
                    Ok((socket, peer)) => (Some(socket), Ok(peer)),
                    Err(no) => (None, Err(no)),
                };
                let event = SupervisorEvent::ListeningFor { path, outcome };
                return Some(Reply { event, socket });
            }
            SupervisorRequest::Dial { port } => return self.dial(port),
            SupervisorRequest::Dials(dials) => {
                let error = self.sockets.register(dials).err();
                let error = error.map(|error| error.to_string());
                SupervisorEvent::Dials { error }
            }
            SupervisorRequest::SocketDirs => {
                SupervisorEvent::SocketDirs(self.sockets.dirs().to_vec())
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
            SupervisorRequest::WatchedGuests => {
                SupervisorEvent::WatchedGuests(self.guests.watched())
            }
            SupervisorRequest::Ready => {
                self.control.set_proved();
                self.switch.set_proved();
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
                self.guests.watch(watch);
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
            | SupervisorRequest::DriverEnds { .. } => return None,
        };
        let socket = None;
        Some(Reply { event, socket })
    }

    /// Sends a reply. A child that is gone or does not read gets none.
    fn reply(&mut self, process: ProcessRef, reply: &Reply) {
        let fds: Vec<_> = reply.socket.iter().map(AsFd::as_fd).collect();
        let child = self.child(process);
        if let Some(Err(error)) = child.map(|child| child.send(&reply.event, &fds)) {
            tracing::debug!("cannot send to {}: {error}", process.kind);
        }
    }

    fn report_ready(&mut self) {
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

    fn processes(&self) -> Vec<ProcessInfo> {
        let own = ProcessInfo {
            name: "supervisor".to_owned(),
            pid: std::process::id(),
            restarts: 0,
            uptime_ms: self.started.elapsed().as_millis() as u64,
        };
        let mut all = vec![own, self.control.info(), self.switch.info()];
        all.extend(self.drivers.processes());
        all
    }

    fn restart_dead(&mut self) -> io::Result<()> {
        let died = [self.control.reap(), self.reap_switch()?];
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
        if self.switch.restart_if_due(&self.binaries) {
            self.emit_restarted(Kind::Switch);
            // Control belongs to the dead switch; its successor sets up the new one.
            self.control.set_peer_lost();
            self.control.kill();
            let sent = self.set_up_switch();
            self.switch.kill_on_error(sent);
        }
        if self.switch_is_complete() && self.control.restart_if_due(&self.binaries) {
            self.emit_restarted(Kind::Control);
            let sent = self.set_up_control();
            self.control.kill_on_error(sent);
        }
        Ok(())
    }

    /// Returns whether the switch runs and has all saved sessions. Control is not started before.
    fn switch_is_complete(&self) -> bool {
        self.switch.is_alive() && !self.saved_sessions.has_queued()
    }

    /// Reaps the switch if it has died. Its last messages are handled first, because its successor
    /// depends on them.
    fn reap_switch(&mut self) -> io::Result<Option<Death>> {
        let Some(status) = self.switch.has_died() else {
            return Ok(None);
        };
        self.receive(SWITCH, MAX_LAST_MESSAGES)?;
        if self.switch.has_hung() {
            self.saved_sessions.record_hang(&self.thread_slots)
        } else {
            self.saved_sessions.record_crash(status, &self.thread_slots)
        }
        self.settings.successor = true;
        Ok(self.switch.reap())
    }

    /// Stops all processes and waits for their ends.
    fn stop(&mut self) {
        self.reload.stop();
        self.drop_next();
        self.drivers.stop();
        for child in [&self.control, &self.switch] {
            // A process that is gone needs no message.
            let _ = child.send(&SupervisorEvent::Stop, &[]);
        }
        let deadline = Instant::now() + timeouts::STOP;
        for child in [&mut self.control, &mut self.switch] {
            child.wait(deadline);
        }
    }
}
