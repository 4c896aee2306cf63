//! A planned hand-over from one switch process to the next. Both run; one of them serves.
//!
//! ```text
//!              serving process                 next process
//! supervisor                                   StartSwitch, a link to a control of its own
//! control                                      adds the ports, publishes the program;
//!                                              nothing is connected
//! supervisor                                   saved sessions, Prepare
//!                                              memory is mapped, descriptors are checked
//!                                              Prepared
//! supervisor   Quiesce
//!              workers end their batches
//!              and leave all queues;
//!              control decides open upcalls;
//!              full interfaces take what waits;
//!              deferred notifications are sent
//!              Quiesced
//! supervisor                                   sessions that have changed, interfaces, TakeOver
//!                                              queues continue at their positions
//!                                              Serving
//! supervisor   Stop
//! ```
//!
//! The position of a queue is in guest memory or in its journal, as after a crash. The hand-over
//! happens between two batches, so that no frame is taken twice. Frames that wait for control are
//! decided or dropped before, and those that an interface has not taken yet are written or dropped:
//! both are waited for, for a bounded time. Deferred notifications are sent before, so that the
//! serving process does not come back to a queue for them. Messages of VMMs wait in their sockets.
//! `EventToSwitch::Resume` undoes the hand-over until the next process receives
//! `EventToSwitch::TakeOver`.

use std::io;
use std::time::{Duration, Instant};

use ipc::supervision::{SavedPart, SwitchRequest};
use ipc::switching::SwitchEvent;
use ipc::timeouts::{QUIESCE_INTERFACES, QUIESCE_UPCALLS};
use port::PortId;
use rustix::event::PollFlags;
use sys::foreign::ForeignFd;

use super::Process;
use crate::ports::crash_record;

/// Interval between two checks for open upcalls, microseconds.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Interval between two checks for frames that wait for an interface, microseconds. Each is tried
/// once a millisecond.
const INTERFACE_INTERVAL: Duration = Duration::from_micros(500);
/// Time after which open upcalls are sent again, milliseconds: the ring may have been full.
const RESEND_TIMEOUT: Duration = Duration::from_millis(4);

/// Time for which a port whose pending frames fill their limit keeps further frames in its queue,
/// milliseconds.
const PENDING_FRAMES_TIMEOUT_MS: u64 = 500;
/// Time for which connections are restored in a row, milliseconds.
const RESTORE_BUDGET: Duration = Duration::from_millis(50);

impl Process {
    /// Stops serving all queues, for the next switch process.
    pub(super) fn quiesce(&mut self) -> io::Result<()> {
        let at_ns = sys::time::monotonic_ns();
        self.workers.quiesce();
        self.drain_upcalls();
        self.drain_interfaces();
        // Frames of upcalls have been delivered, too. No queue is used from here on. What an
        // interface has not taken in time is tried once more, and dropped by name.
        self.workers.each(|w| w.switch.end_deferrals());
        self.report_interface_counters();
        // The next switch counts the connections anew.
        self.sessions.tracked.leave(&self.workers);
        self.quiesced = true;
        self.supervisor
            .send(&SwitchRequest::Quiesced { at_ns }, &[])
    }

    /// Waits until no frame waits for control. Frames without a decision in time are dropped and
    /// counted.
    fn drain_upcalls(&self) {
        let began = Instant::now();
        let mut resent = false;
        while self
            .workers
            .each(|w| w.switch.has_pending())
            .contains(&true)
        {
            if began.elapsed() > QUIESCE_UPCALLS {
                self.workers.each(|w| w.switch.drop_pending());
                return;
            }
            if began.elapsed() > RESEND_TIMEOUT && !std::mem::replace(&mut resent, true) {
                self.workers.each(|w| w.resend_upcalls());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Waits until no frame waits for an interface, or not any longer: the workers try again
    /// meanwhile. The time is one for all interfaces, so that others wait no longer for one that
    /// takes nothing.
    fn drain_interfaces(&self) {
        let began = Instant::now();
        while self
            .workers
            .each(|w| w.switch.awaits_interfaces())
            .contains(&true)
            && began.elapsed() <= QUIESCE_INTERFACES
        {
            std::thread::sleep(INTERFACE_INTERVAL);
        }
    }

    /// Serves all queues again: the hand-over was cancelled.
    pub(super) fn resume(&mut self) {
        if std::mem::take(&mut self.quiesced) {
            if let Err(error) = self.sessions.tracked.share(&self.workers) {
                tracing::error!("connections are not tracked: {error}");
            }
            self.workers.resume();
        }
    }

    /// Waits for messages of the supervisor only, while the switch is quiesced. [`Process::probe`]
    /// replies to pings.
    pub(super) fn wait_for_supervisor(&mut self) -> io::Result<()> {
        sys::wait::ready(&self.supervisor, PollFlags::IN, None)?;
        self.handle_supervisor()
    }

    /// Continues all saved connections and interfaces: the previous switch process is quiesced, and
    /// the supervisor has sent all of them.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        if !self.sessions.saved.waits {
            return Ok(());
        }
        for port in self.ports.values_mut() {
            if let Some(saved) = self.sessions.saved.claim(port.config()) {
                port.set_saved(saved);
            }
        }
        self.sessions.saved.waits = false;
        // The switch before writes to it no more.
        let (tracked, around) = self.tracked();
        if let Err(error) = tracked.take_over(&around) {
            tracing::error!("connections are not tracked: {error}");
        }
        self.restore_all();
        let open = self.ports.values().filter(|port| port.socket().is_some());
        let connections = open.count() as u32;
        self.ports.keys().for_each(|id| self.listen(*id));
        let serving = SwitchRequest::Serving {
            at_ns: self.sessions.saved.served_at_ns,
            connections,
            table: self.sessions.tracked.adopted,
        };
        self.supervisor.send(&serving, &[])
    }

    /// Starts to restore what was saved: control has added all ports and published the program.
    pub(super) fn restore_connections(&mut self) {
        if !self.sessions.saved.taking_over || self.sessions.saved.waits {
            return;
        }
        // Frames of a guest that is served before its peer is restored would be lost, be that a
        // guest or an interface.
        self.workers.quiesce();
        self.workers.each(|w| {
            w.switch
                .enable_backpressure(w.now(), PENDING_FRAMES_TIMEOUT_MS)
        });
        for id in self.sessions.saved.finish() {
            if self
                .ports
                .get(&id)
                .is_none_or(|port| port.socket().is_none())
            {
                self.sessions.store.drop_session(id);
            }
        }
        self.sessions.saved.waiting = self.ports.keys().copied().collect();
        self.sessions.saved.began = Some(Instant::now());
        self.restore_due();
    }

    /// Restores connections for a bounded time, so that other descriptors are served; then serves
    /// all of them.
    pub(super) fn restore_due(&mut self) {
        if self.sessions.saved.began.is_none() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < RESTORE_BUDGET
            && let Some(id) = self.sessions.saved.waiting.pop_front()
        {
            self.restore_port(id);
        }
        if self.sessions.saved.waiting.is_empty() {
            self.workers.resume();
            self.restored();
        }
    }

    /// Adds parts of saved sessions. Those that come while the previous switch process serves are
    /// prepared.
    pub(super) fn add_saved(&mut self, parts: Vec<SavedPart>, fds: Vec<ForeignFd>) {
        let mut fds = fds.into_iter();
        for part in parts {
            match part {
                SavedPart::Descriptors { port, numbers } => {
                    let fds = fds.by_ref().take(numbers.len()).collect();
                    self.sessions.saved.add_files(port, numbers, fds);
                }
                SavedPart::Record {
                    port,
                    record,
                    quarantined,
                } => {
                    self.sessions.saved.add_record(port, record, quarantined);
                    self.add_saved_port(port);
                    self.prepare(port);
                }
                SavedPart::Over { port } => {
                    self.sessions.saved.forget(port);
                    self.prepare(port);
                }
            }
        }
    }

    /// Adds the port of a dead switch process's connection, with the configuration in the record,
    /// and restores the connection. It is not served yet. Control, which starts meanwhile,
    /// adopts the port as it adopts those of a switch that lives on, or removes it.
    fn add_saved_port(&mut self, id: PortId) {
        let saved = &mut self.sessions.saved;
        if saved.waits || !saved.taking_over || self.ports.contains_key(&id) {
            return;
        }
        let Some(config) = saved.config_of(id).cloned() else {
            return;
        };
        // No pair is served before control has published the program.
        self.workers.quiesce();
        if let Err(reason) = self.add_port(config, None) {
            return tracing::error!(port = id.0, "connection not continued: {reason}");
        }
        self.restore_port(id);
    }

    /// Prepares the connection of a port that has come, in place of one that came before.
    fn prepare(&mut self, id: PortId) {
        if !self.sessions.saved.waits {
            return;
        }
        // No pair is served before the take-over.
        self.workers.quiesce();
        if let Some(port) = self.ports.get_mut(&id) {
            port.forget_saved();
            if let Some(saved) = self.sessions.saved.take_fitting(port.config()) {
                port.prepare(saved, &self.workers);
            }
        }
    }

    /// Handles what has waited until all ports are served again: messages of front ends, new
    /// connections, and the report to control.
    fn restored(&mut self) {
        let Some(began) = self.sessions.saved.began else {
            return;
        };
        let served_within = began.elapsed();
        self.sessions.saved.served_at_ns = sys::time::monotonic_ns();
        for id in std::mem::take(&mut self.sessions.saved.restored) {
            self.disconnect_other_user(id);
            self.listen(id);
            self.watch(id);
            // epoll is level-triggered: it reports a message in the socket, but no reply in the
            // pipe.
            self.serve_connection(id);
        }
        self.sessions.saved.began = None;
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        // The workers have notified all guests.
        ports.iter().for_each(|id| self.disconnect_blocking(*id));
        let phases = ports.iter().filter_map(|id| self.phase_report(*id));
        let phases: Vec<_> = phases.collect();
        if !phases.is_empty() {
            self.report(&SwitchEvent::Phases(phases), &[]);
        }
        let open = self.ports.values().filter(|port| port.socket().is_some());
        let (connections, ms) = (open.count(), served_within.as_secs_f64() * 1e3);
        tracing::info!(
            connections,
            "connections continue, served within {ms:.1} ms"
        );
    }

    /// Restores all connections without a time limit: no other process serves them.
    pub(super) fn restore_all(&mut self) {
        self.restore_connections();
        while self.next_restore().is_some() {
            self.restore_due();
        }
    }

    fn restore_port(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id).filter(|p| p.awaits_restore()) else {
            return;
        };
        let served = crash_record::serve(Some(id));
        port.restore(&self.workers);
        drop(served);
        self.sessions.saved.restored.push(id);
    }

    /// The time to restore more connections: now, if there are any.
    pub(super) fn next_restore(&self) -> Option<Instant> {
        (!self.sessions.saved.waiting.is_empty()).then(Instant::now)
    }
}
