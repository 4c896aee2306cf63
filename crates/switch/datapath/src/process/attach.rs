//! One port's side of its front ends: its socket, the open connection, and the session on it.

mod admission;
mod backend;
mod client;
mod event_limits;
mod interface;
mod missing_memory;
mod offer;
mod open;
mod pause;
mod peer;
mod queue_snapshots;
mod rejected;
mod restore;
mod status;
mod stopped;
mod translations;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ipc::audit::AUDIT;
use ipc::driving::{self, DriverCounters, InterfaceStart};
use ipc::figures::Waits;
use ipc::switching::{Iommu, PortConfig, PortPhase, Role};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use sys::closer;
use sys::foreign::{Author, ForeignFd};
use sys::limit::SETTINGS;
use virtio::vhost_user::{AnswerPipe, Fault};

use crate::ports::interface::InterfaceQueues;
use crate::ports::watchdog::Doorbells;
use crate::process::session_store::PortSessionStore;
use crate::worker::workers::Workers;
use admission::Admission;
use backend::{Positions, WorkerBackend};
use client::Client;
use event_limits::EventLimits;
use interface::AttachedInterface;
use missing_memory::MissingMemory;
use open::{Context, OpenConnection, store_descriptors};
pub use queue_snapshots::QueueSnapshots;
pub use restore::{PreparedSession, SavedConnection, SavedInterface, SavedSide};
use stopped::StoppedQueues;
use translations::Watches;

/// Interval between two attempts to dial, milliseconds.
const REDIAL_INTERVAL: Duration = Duration::from_millis(200);
/// Least interval between two connections, milliseconds. A driver that crashed is restarted at
/// once, but a front end that disconnects repeatedly is not dialled without end.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// The reason of a front end that disconnects after reading the offered features: QEMU does so when
/// its driver uses a feature that the port offered before.
const NO_FEATURES_CHOSEN: &str = "the front end left without choosing features: \
     its guest may use one that the port no longer offers (mtu, queues, iommu)";

/// The reason of a rejection: the [`closer`] stands, or is late.
const UNCLOSED: &str = "too many descriptors that its user has sent are not closed yet";

const BLOCKING_EVENTFD: &str = "the front end made its event descriptors blocking";

/// The side of a port that its front ends see.
#[derive(Debug)]
pub struct Attachment {
    context: Context,
    /// The listening socket; only of a server port.
    listener: Option<ForeignFd>,
    open: Option<OpenConnection>,
    /// The interface of the host, where that is in place of a front end.
    interface: Option<AttachedInterface>,
    /// First queues of an interface; others follow.
    interface_queues: Vec<OwnedFd>,
    /// The side of the previous switch process, until it is restored.
    saved: Option<SavedSide>,
    snapshots: QueueSnapshots,
    /// Time of the next dial; only of a client port that is not connected.
    dial_at: Option<Instant>,
    /// Time of the last connection.
    attached: Instant,
    /// The reason for which the last connection ended, or for which the open one was refused
    /// something.
    reason: Option<String>,
    /// The reason for which the connection before the open one ended, until the open one serves its
    /// guest, is refused something, or ends.
    previous_reason: Option<String>,
    stopped: StoppedQueues,
    admission: Admission,
    /// Messages and queues that were refused in earlier connections.
    refused_messages: u64,
    /// The phase that was reported last.
    phase: PortPhase,
}

impl Attachment {
    /// Creates a port without a connection, or with what the previous switch process had.
    #[must_use]
    pub fn new(
        config: PortConfig,
        listener: Option<ForeignFd>,
        store: PortSessionStore,
        snapshots: QueueSnapshots,
        saved: Option<SavedSide>,
    ) -> Self {
        let client = config.role == Role::Client;
        Self {
            phase: if client {
                PortPhase::Dialing
            } else {
                PortPhase::Waiting
            },
            context: Context {
                config,
                store,
                connections: 0,
                event_limits: EventLimits::default(),
                invalidate_waits: Waits::default(),
            },
            listener,
            open: None,
            interface: None,
            interface_queues: Vec::new(),
            attached: Instant::now(),
            dial_at: (client && saved.is_none()).then(Instant::now),
            saved,
            snapshots,
            reason: None,
            previous_reason: None,
            stopped: StoppedQueues::default(),
            admission: Admission::default(),
            refused_messages: 0,
        }
    }

    /// Sets what was saved of a port without a connection.
    pub fn set_saved(&mut self, saved: SavedSide) {
        self.saved = Some(saved);
        self.dial_at = None;
    }

    /// Returns the port's configuration.
    #[must_use]
    pub fn config(&self) -> &PortConfig {
        &self.context.config
    }

    /// Returns whether the port listens and has no socket to do that: its connection was saved.
    #[must_use]
    pub fn lacks_listener(&self) -> bool {
        self.context.config.role == Role::Server && self.listener.is_none()
    }

    /// Sets the listening socket of a port without one.
    pub fn set_listener(&mut self, listener: ForeignFd) {
        if self.lacks_listener() {
            self.listener = Some(listener);
        }
    }

    /// Returns the listening socket.
    #[must_use]
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Returns the open connection's socket, and whether a reply waits for room in it.
    #[must_use]
    pub fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let open = self.open.as_ref()?;
        Some((open.client.as_fd(), open.client.wants_write()))
    }

    /// Changes the MTU under a running guest, and notifies the guest.
    pub fn set_mtu(&mut self, mtu: Option<u16>, workers: &Workers) {
        self.context.config.mtu = mtu;
        if let Some(open) = &mut self.open {
            open.client.set_mtu(mtu.unwrap_or(1500));
        }
        workers.set_mtu(self.context.config.id, mtu);
        self.store_session();
    }

    /// Sets the port's weight: its part of the worker time under load.
    pub fn set_weight(&mut self, weight: u16, workers: &Workers) {
        self.context.config.weight = weight;
        let id = self.context.config.id;
        workers.each(move |w| w.set_weight(id, weight));
        self.store_session();
    }

    /// Sets what the next connection is offered about translated addresses.
    pub fn set_iommu(&mut self, iommu: Iommu) {
        self.context.config.iommu = iommu;
    }

    /// Saves the present session with the supervisor.
    fn store_session(&mut self) {
        if let Some(open) = &self.open {
            open.record(&mut self.context);
        }
    }

    /// Accepts a connection at the listening socket. A second connection is rejected: a port has
    /// one guest. So is one of a user other than `peer`, if one is given, before any of its bytes
    /// are read, and one that is closed already, so that later ones need not wait for it.
    ///
    /// # Errors
    /// A system error.
    pub fn accept(&mut self, peer: Option<u32>) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if closer::is_full() {
            return Err(Errno::MFILE.into());
        }
        let socket = ForeignFd::connection(rustix::net::accept_with(listener, flags)?);
        let second = self.open.is_some() || self.saved.is_some();
        let rejection = match self.admission.peer_check.check(&socket, peer)? {
            None if !socket.author().may_connect() => Some(UNCLOSED),
            other => other,
        };
        if second || rejection.is_some() {
            self.admission.rejected.record(second);
            if !second {
                self.reason = self.admission.peer_check.reason();
            }
            let limits = &mut self.context.event_limits;
            if let Some(suppressed) = limits.rejection_log_line(rejection.is_some()) {
                let port = &self.context.config.name;
                let why = rejection.unwrap_or("second connection");
                let user = self.admission.peer_check.last_rejected;
                tracing::warn!(port, user, suppressed, "connection rejected: {why}");
            }
            let reason = rejection.unwrap_or("another client is connected");
            client::reject(socket, &self.context.config, reason);
            return Ok(());
        }
        if peer::has_hung_up(&socket)? {
            self.admission.rejected.record(false);
            return Ok(());
        }
        self.attach(socket)
    }

    /// Returns whether the connected front end belongs to a user other than `peer`.
    #[must_use]
    pub fn has_other_user(&self, peer: u32) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| peer::user_of(&open.client).ok() != Some(peer))
    }

    /// Opens a session on a new connection.
    ///
    /// # Errors
    /// A system error.
    pub fn attach(&mut self, socket: ForeignFd) -> io::Result<()> {
        let author = Author::of(&socket).labelled(self.context.config.id.0);
        let (socket, pipe) = (socket.of(author), AnswerPipe::new()?);
        store_descriptors(&socket, &pipe, &mut self.context.store);
        let client = Client::new(socket, pipe, &self.context.config, &self.snapshots)?;
        self.open = Some(OpenConnection {
            client,
            positions: Positions::new(self.context.config.queues),
            doorbells: Doorbells::default(),
            features_chosen: false,
            missing_memory: MissingMemory::default(),
            answered: None,
            torn: false,
            has_more: false,
            watches: Watches::default(),
        });
        self.attached = Instant::now();
        let reason = self.reason.take();
        self.previous_reason = reason.filter(|reason| reason != NO_FEATURES_CHOSEN);
        self.dial_at = None;
        self.context.connections += 1;
        self.store_session();
        if let Some(open) = &mut self.open {
            // An end of the connection is noticed when it is served.
            let _ = open.client.flush();
        }
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let port = &self.context.config.name;
            tracing::info!(target: AUDIT, port, suppressed, "front end connected");
        }
        Ok(())
    }

    /// Returns whether a queue has started since the front end has connected.
    #[must_use]
    pub fn has_started(&self) -> bool {
        let starts = self.open.iter().flat_map(|open| &open.positions.starts);
        starts.into_iter().any(|starts| *starts > 0)
    }

    /// Notes a failed dial, and schedules the next one.
    pub fn dial_failed(&mut self, reason: String) {
        self.reason = Some(reason);
        self.dial_at = Some(Instant::now() + REDIAL_INTERVAL);
    }

    /// Returns the time of the next dial, for a client port without a connection.
    #[must_use]
    pub fn dial_at(&self) -> Option<Instant> {
        self.dial_at
    }

    /// Notes that a dial request was sent.
    pub fn dialing(&mut self) {
        self.interface_queues.clear();
        self.dial_at = None;
    }

    /// Returns whether the result of a dial is pending.
    #[must_use]
    pub fn is_dialing(&self) -> bool {
        let idle = self.open.is_none() && self.saved.is_none() && self.interface.is_none();
        self.context.config.role == Role::Client && idle && self.dial_at.is_none()
    }

    /// Handles messages of the front end.
    ///
    /// # Errors
    /// The front end broke a rule or disconnected: the connection is to be closed.
    pub fn serve(&mut self, workers: &Workers) -> Result<(), Fault> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        open.serve(&mut self.context, workers)?;
        open.ask(&mut self.context, workers);
        self.note_refusal();
        Ok(())
    }

    /// Takes over the reason of the last refusal, once the guest is served or something is refused.
    fn note_refusal(&mut self) {
        let Some(open) = &self.open else {
            return;
        };
        let refusal = open.client.last_refusal();
        if refusal.is_some() || open.client.queue_summary().any_running {
            // Mostly the same as after the last message.
            if self.reason.as_deref() != refusal {
                self.reason = refusal.map(str::to_owned);
            }
            self.previous_reason = None;
            self.stopped.next_serves();
        }
    }

    /// Watches the descriptors of the open connection, beside its socket; `tokens` are those of
    /// missing translations and of the back-end channel.
    pub fn watch_translations(&mut self, epoll: &Rc<OwnedFd>, tokens: [u64; 2]) {
        if let Some(open) = &mut self.open {
            open.watch(epoll, tokens, &mut self.context);
        }
    }

    /// Returns the time at which a question to the front end ends without an answer.
    #[must_use]
    pub fn next_question(&self) -> Option<Instant> {
        self.open.as_ref()?.client.next_deadline()
    }

    /// Asks the front end for translations that queues lack, and ends questions that are overdue.
    pub fn ask(&mut self, workers: &Workers) {
        if let Some(open) = &mut self.open {
            if let Some(wakes) = open.client.wakes() {
                sys::event::clear(wakes.misses);
            }
            open.ask(&mut self.context, workers);
            self.note_refusal();
        }
    }

    /// Reads the front end's answers to questions. Its messages are to be served before.
    pub fn read_answers(&mut self, workers: &Workers) {
        if let Some(open) = &mut self.open {
            open.read_answers(&mut self.context, workers);
            self.note_refusal();
        }
    }

    /// Returns whether the VMM took memory away that it shares by this connection.
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.client.memory_is_lost())
    }

    /// Returns whether a thread blocked when it wrote to the front end's event descriptors: the
    /// front end is to be disconnected.
    #[must_use]
    pub fn has_blocked(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.doorbells.have_blocked())
    }

    /// Stops a queue that broke a rule. Returns the fault with which the connection is to be ended,
    /// where the session does not continue without it.
    pub fn queue_failed(&mut self, index: u16, reason: &str, workers: &Workers) -> Option<Fault> {
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let (port, queue) = (&self.context.config.name, index);
            tracing::warn!(target: AUDIT, port, queue, suppressed, "queue stopped: {reason}");
        }
        self.stopped.note(index, reason);
        // A connection that has ended has a reason of its own.
        let open = self.open.as_mut()?;
        let mut backend = WorkerBackend {
            workers,
            context: &mut self.context,
            positions: &mut open.positions,
            doorbells: &open.doorbells,
        };
        let fault = open.client.queue_failed(index, reason, &mut backend);
        self.store_session();
        fault
    }

    /// Returns the time at which to warn that the VMM shares no memory.
    #[must_use]
    pub fn warning_at(&self) -> Option<Instant> {
        self.open
            .as_ref()
            .and_then(|open| open.missing_memory.warn_at())
    }

    /// Logs that warning, if it is due.
    pub fn warn_if_due(&mut self, now: Instant) {
        let Some(open) = self
            .open
            .as_mut()
            .filter(|open| open.missing_memory.is_overdue(now))
        else {
            return;
        };
        if open.missing_memory.warn_at().is_some() {
            open.missing_memory.mark_warned();
            if let Some(suppressed) = self.context.event_limits.log_line() {
                let port = &self.context.config.name;
                tracing::warn!(port, suppressed, "{}", missing_memory::REASON);
            }
        }
    }

    /// Ends a connection whose front end blocks threads. The port accepts the next one after a
    /// pause.
    pub fn disconnect_blocking(&mut self, workers: &Workers) {
        self.disconnect(BLOCKING_EVENTFD, workers);
        self.pause();
    }

    /// Ends the connection for a reason of the switch.
    pub fn disconnect(&mut self, reason: &str, workers: &Workers) {
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let port = &self.context.config.name;
            tracing::warn!(target: AUDIT, port, suppressed, "disconnected: {reason}");
        }
        self.close_with(None, Some(reason), workers);
        self.reason = Some(reason.to_owned());
    }

    /// Takes the first queues of an interface.
    pub fn add_interface_queues(&mut self, fds: Vec<OwnedFd>) {
        self.interface_queues.extend(fds);
    }

    /// Attaches an interface, with a descriptor for each queue pair: these and those before.
    ///
    /// # Errors
    /// The descriptors are not as many as may be, or a worker cannot watch one.
    pub fn attach_interface(
        &mut self,
        start: InterfaceStart,
        fds: Vec<OwnedFd>,
        workers: &Workers,
    ) -> Result<(), String> {
        self.add_interface_queues(fds);
        let fds = std::mem::take(&mut self.interface_queues);
        let config = &self.context.config;
        if fds.is_empty() || fds.len() > usize::from(config.queues) {
            return Err(format!("an interface with {} queue pairs", fds.len()));
        }
        let Some(queues) = InterfaceQueues::new(config.id, start, fds) else {
            return Err("an interface of another kind".to_owned());
        };
        let (features, pairs) = (queues.features(), queues.pairs());
        workers.attach_interface(config.id, &queues, config.mtu)?;
        self.interface = Some(AttachedInterface {
            features,
            pairs,
            reported: DriverCounters::default(),
        });
        self.attached = Instant::now();
        self.reason = None;
        self.previous_reason = None;
        self.dial_at = None;
        self.context.connections += 1;
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let port = &self.context.config.name;
            tracing::info!(target: AUDIT, port, suppressed, "interface attached");
        }
        Ok(())
    }

    /// Returns whether an interface is attached.
    #[must_use]
    pub fn has_interface(&self) -> bool {
        self.interface.is_some()
    }

    /// Returns the counters of the interface, if they have changed since the last call.
    pub fn new_interface_counters(&mut self, workers: &Workers) -> Option<DriverCounters> {
        let interface = self.interface.as_mut()?;
        let id = self.context.config.id;
        let counters = interface::counters(id, workers)?;
        (std::mem::replace(&mut interface.reported, counters) != counters).then_some(counters)
    }

    /// Takes the interface out of service, and dials again. Returns its last counters; `None` if
    /// there was none, or one that was not restored yet.
    pub fn detach_interface(
        &mut self,
        reason: Option<&str>,
        workers: &Workers,
    ) -> Option<DriverCounters> {
        if let Some(SavedSide::Interface(_)) = self.saved {
            self.saved = None;
            self.dial_later();
        }
        let interface = self.interface.take()?;
        let id = self.context.config.id;
        workers.detach_interface(id);
        let counters = workers.remove_interface(id);
        let counters = counters.unwrap_or(interface.reported);
        workers.each(move |w| w.switch.guest_disconnected(id));
        if let Some(reason) = reason
            && let Some(suppressed) = self.context.event_limits.log_line()
        {
            let port = &self.context.config.name;
            tracing::warn!(target: AUDIT, port, suppressed, "interface detached: {reason}");
        }
        self.reason = reason.map(str::to_owned);
        self.dial_later();
        Some(counters)
    }

    /// Starts a pause, in which the port accepts no connection.
    fn pause(&mut self) {
        self.admission.pauses.begin(self.attached, Instant::now());
        self.dial_later();
    }

    /// Starts a pause: a connection could not be accepted, and is still in the backlog. Returns
    /// whether the reason is another one than before.
    pub fn accept_failed(&mut self, error: &io::Error) -> bool {
        self.admission.accept_pauses.begin_again(Instant::now());
        if self.open.is_some() {
            return false;
        }
        // The limit cannot be asked for here.
        let is_limit = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
        let reason = match is_limit {
            true => format!("accepts no connection: no descriptors left ({SETTINGS})"),
            false => format!("accepts no connection: {error}"),
        };
        let before = self.reason.replace(reason);
        before != self.reason
    }

    /// Returns the end of the present pause.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        self.admission.paused_until()
    }

    /// Ends a pause that is over. Returns whether the port accepts connections again.
    pub fn end_pause(&mut self, now: Instant) -> bool {
        self.admission.end_pause(now)
    }

    /// Ends the connection, if there is one; the port waits for the next.
    pub fn close(&mut self, fault: Option<Fault>, workers: &Workers) {
        self.detach_interface(None, workers);
        let reason = fault.as_ref().filter(|fault| !fault.is_close());
        let reason = reason.map(ToString::to_string);
        self.close_with(fault, reason.as_deref(), workers);
    }

    /// As [`Self::close`]; a front end whose protocol has a place for it gets the reason.
    fn close_with(&mut self, fault: Option<Fault>, reason: Option<&str>, workers: &Workers) {
        if let Some(saved) = self.saved.take() {
            saved.end();
            self.context.store.drop_session();
        }
        self.reason = self.persistent_fault();
        let Some(mut open) = self.open.take() else {
            return;
        };
        self.previous_reason = None;
        self.stopped.connection_ended(Instant::now());
        self.admission.rejected.connection_ended();
        let mut backend = WorkerBackend {
            workers,
            context: &mut self.context,
            positions: &mut open.positions,
            doorbells: &open.doorbells,
        };
        self.refused_messages += open.client.info().refused_messages;
        let may_refuse = open.client.may_refuse_offer() && open.answered.is_some();
        let no_features_chosen = !open.features_chosen && may_refuse;
        let broke_rule = fault.as_ref().is_some_and(|fault| !fault.is_close());
        if !open.features_chosen || broke_rule {
            self.admission.failure_pauses.begin_again(Instant::now());
        }
        let left = match driving::is_address(&backend.context.config.socket) {
            true => open.client.left_frames(&mut backend),
            false => 0,
        };
        let detached = open.client.detach(&mut backend);
        self.snapshots.add(self.context.config.id, detached);
        open.client.end(reason);
        self.context.store.drop_session();
        let (id, mtu) = (self.context.config.id, self.context.config.mtu);
        if left > 0 {
            workers.first(move |w| w.switch.count_left(id, left));
        }
        workers.set_mtu(id, mtu);
        workers.each(move |w| w.switch.guest_disconnected(id));
        if let Some(fault) = fault {
            self.note_disconnect(&fault, no_features_chosen);
        }
        self.dial_later();
    }

    /// Notes the reason of a connection's end: a disconnect, a broken rule, or a disconnect without
    /// chosen features.
    fn note_disconnect(&mut self, fault: &Fault, no_features_chosen: bool) {
        let reason = if !fault.is_close() {
            Some(fault.to_string())
        } else if no_features_chosen {
            Some(NO_FEATURES_CHOSEN.to_owned())
        } else {
            None
        };
        if let Some(suppressed) = self.context.event_limits.log_line() {
            let port = &self.context.config.name;
            match &reason {
                None => {
                    tracing::info!(target: AUDIT, port, suppressed, "front end disconnected")
                }
                Some(reason) => {
                    tracing::warn!(target: AUDIT, port, suppressed, "disconnected: {reason}");
                }
            }
        }
        self.reason = reason.or(self.reason.take());
    }

    fn dial_later(&mut self) {
        if self.context.config.role == Role::Client {
            let soon = self.attached + RECONNECT_INTERVAL;
            self.dial_at = Some(self.paused_until().map_or(soon, |until| soon.max(until)));
        }
    }
}
