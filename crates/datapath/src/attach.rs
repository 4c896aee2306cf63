//! One port's vhost-user side: its socket, the connection that is open, the session on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use channel::switching::{PortConfig, PortPhase, PortState, QueueState, Role};
use memory::GuestMemory;
use port::PortId;
use rustix::net::SocketFlags;
use virtio::features::Features;
use virtio::queue::Queue;
use virtio::vhost_user::{Backend, Connection, Fault, Offer, QueueSetup, Session};

use crate::guest::{GuestPort, GuestQueue};
use crate::watchdog;
use crate::workers::Workers;

/// Between two attempts to dial.
const REDIAL: Duration = Duration::from_millis(200);
/// Between two connections. A driver that died has a successor at once, but who hangs up again and again is not dialed
/// without end.
const RECONNECT: Duration = Duration::from_millis(20);
/// Messages of one front end in a row, before others have their turn.
const MESSAGES: usize = 64;

/// What is offered to every guest; MTU and multi-queue are added where they are configured.
fn offered(config: &PortConfig) -> Features {
    let mut features = Features::VERSION_1
        | Features::RING_PACKED
        | Features::RING_INDIRECT_DESC
        | Features::RING_EVENT_IDX
        | Features::IN_ORDER
        | Features::ANY_LAYOUT
        | Features::NET_CSUM
        | Features::NET_GUEST_CSUM
        | Features::NET_HOST_TSO4
        | Features::NET_HOST_TSO6
        | Features::NET_HOST_ECN
        | Features::NET_HOST_USO
        | Features::NET_GUEST_TSO4
        | Features::NET_GUEST_TSO6
        | Features::NET_GUEST_ECN
        | Features::NET_GUEST_USO4
        | Features::NET_GUEST_USO6
        | Features::NET_MRG_RXBUF
        | Features::NET_STATUS;
    features.set(Features::NET_MTU, config.mtu.is_some());
    features.set(Features::NET_MQ, config.queues > 1);
    features
}

fn offer(config: &PortConfig) -> Offer {
    let mut offer = Offer::new(offered(config), config.queues);
    offer.mtu = config.mtu.unwrap_or(offer.mtu);
    offer.mac = config.mac.unwrap_or_default();
    offer
}

/// The calls of a session, passed on to the workers.
struct ToWorkers<'a> {
    workers: &'a Workers,
    port: PortId,
    /// The port's name, for the log.
    name: &'a str,
    /// As configured; a front end may ask for less.
    mtu: Option<u16>,
}

impl<'a> ToWorkers<'a> {
    fn new(workers: &'a Workers, config: &'a PortConfig) -> Self {
        Self {
            workers,
            port: config.id,
            name: &config.name,
            mtu: config.mtu,
        }
    }
}

impl ToWorkers<'_> {
    fn on_port(&self, job: impl FnOnce(&mut GuestPort) + Send + 'static) {
        self.workers.on_port(self.port, job);
    }
}

impl Backend for ToWorkers<'_> {
    fn set_memory(&mut self, memory: Option<Arc<GuestMemory>>) {
        if let Some(memory) = memory {
            self.on_port(move |guest| guest.set_memory(&memory));
        }
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        let QueueSetup {
            layout,
            features,
            position,
            kick,
            call,
            enabled,
            inflight,
            mem,
            ..
        } = setup;
        let queue = match inflight {
            Some(inflight) => Queue::with_inflight(mem, layout, features, position, inflight),
            None => Queue::new(mem, layout, features, position),
        };
        let queue = queue.map_err(|fault| fault.to_string())?;
        let queue = GuestQueue::new(queue, kick, call, enabled);
        self.workers.start_queue(self.port, index, queue, features)
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.workers.stop_queue(self.port, index)
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.on_port(move |guest| guest.enable(index, on));
    }

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.on_port(move |guest| guest.set_call(index, call));
    }

    fn signal(&mut self, event: &OwnedFd) {
        // On the worker, which a front end cannot hold up.
        if let Ok(event) = event.try_clone() {
            self.workers.first(move |_| {
                let _ = watchdog::ring(&event);
            });
        }
    }

    fn queue_refused(&mut self, index: u16, reason: &str) {
        tracing::warn!(port = self.name, queue = index, "not started: {reason}");
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        let mtu = self.mtu.map_or(mtu, |configured| configured.min(mtu));
        self.on_port(move |guest| guest.set_mtu(Some(mtu)));
        Ok(())
    }

    fn send_rarp(&mut self, mac: [u8; 6]) {
        let port = self.port;
        self.workers.first(move |w| w.announce(port, mac));
    }
}

/// An open connection.
#[derive(Debug)]
struct Open {
    connection: Connection,
    session: Session,
}

/// See the module.
#[derive(Debug)]
pub struct Attachment {
    config: PortConfig,
    /// Only of a server port.
    listener: Option<OwnedFd>,
    open: Option<Open>,
    /// When to dial next; only of a client port that is not connected.
    dial_at: Option<Instant>,
    /// When the last connection was made.
    attached: Instant,
    reason: Option<String>,
    connections: u64,
    /// Reported last.
    phase: PortPhase,
}

impl Attachment {
    /// A port without a connection.
    #[must_use]
    pub fn new(config: PortConfig, listener: Option<OwnedFd>) -> Self {
        let client = config.role == Role::Client;
        Self {
            phase: if client {
                PortPhase::Dialing
            } else {
                PortPhase::Waiting
            },
            config,
            listener,
            open: None,
            dial_at: client.then(Instant::now),
            attached: Instant::now(),
            reason: None,
            connections: 0,
        }
    }

    /// The port's configuration.
    #[must_use]
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// The listening socket.
    #[must_use]
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// The open connection's socket, and whether a reply waits for room.
    #[must_use]
    pub fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let open = self.open.as_ref()?;
        Some((open.connection.as_fd(), open.connection.wants_write()))
    }

    /// Changes what can change under a running guest; the guest is told.
    pub fn set_mtu(&mut self, mtu: Option<u16>, workers: &Workers) {
        self.config.mtu = mtu;
        if let Some(open) = &mut self.open {
            open.session.set_mtu(mtu.unwrap_or(1500));
        }
        let backend = ToWorkers::new(workers, &self.config);
        backend.on_port(move |guest| guest.set_mtu(mtu));
    }

    /// Takes a connection from the listening socket. A second front end is turned away: a port has one
    /// guest.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn accept(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(listener, flags)?;
        if self.open.is_some() {
            tracing::warn!(port = self.config.name, "turned a second connection away");
            return Ok(());
        }
        self.attach(socket)
    }

    /// Takes a connection that was dialed.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn attach(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.open = Some(Open {
            connection: Connection::new(socket)?,
            session: Session::new(offer(&self.config)),
        });
        self.attached = Instant::now();
        self.dial_at = None;
        self.connections += 1;
        tracing::info!(port = self.config.name, "a front end connected");
        Ok(())
    }

    /// Nobody listens at the other end yet.
    pub fn dial_failed(&mut self, reason: String) {
        self.reason = Some(reason);
        self.dial_at = Some(Instant::now() + REDIAL);
    }

    /// When to dial, for a client port without a connection.
    #[must_use]
    pub fn dial_at(&self) -> Option<Instant> {
        self.dial_at
    }

    /// An attempt to dial is under way.
    pub fn dialing(&mut self) {
        self.dial_at = None;
    }

    /// Whether the result of a dial is waited for.
    #[must_use]
    pub fn is_dialing(&self) -> bool {
        self.config.role == Role::Client && self.open.is_none() && self.dial_at.is_none()
    }

    /// Serves what the front end sent; ends the connection when it broke a rule or left. `true` when the
    /// connection ended.
    pub fn pump(&mut self, workers: &Workers) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let mut backend = ToWorkers::new(workers, &self.config);
        match pump(open, &mut backend) {
            Ok(()) => {
                let info = open.session.info();
                // What stopped a queue is shown until the queue runs again.
                if info.queues.iter().any(|q| q.running)
                    && info.queues.iter().all(|q| q.fault.is_none())
                {
                    self.reason = info.last_refusal;
                }
                false
            }
            Err(fault) => {
                self.close(Some(fault), workers);
                true
            }
        }
    }

    /// A queue broke a rule: it is stopped, the session goes on.
    pub fn queue_failed(&mut self, index: u16, reason: &str, workers: &Workers) {
        tracing::warn!(port = self.config.name, queue = index, "stopped: {reason}");
        let mut backend = ToWorkers::new(workers, &self.config);
        // A connection that has ended has a reason of its own.
        if let Some(open) = &mut self.open {
            open.session.queue_failed(index, reason, &mut backend);
            self.reason = Some(format!("queue {index} stopped: {reason}"));
        }
    }

    /// Ends the connection for a reason of ours.
    pub fn disconnect(&mut self, reason: &str, workers: &Workers) {
        tracing::warn!(port = self.config.name, "disconnected: {reason}");
        self.close(None, workers);
        self.reason = Some(reason.to_owned());
    }

    /// Ends the connection, if there is one; the port waits for the next.
    pub fn close(&mut self, fault: Option<Fault>, workers: &Workers) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let mut backend = ToWorkers::new(workers, &self.config);
        open.session.close(&mut backend);
        let mtu = self.config.mtu;
        backend.on_port(move |guest| guest.set_mtu(mtu));
        if let Some(fault) = fault {
            let port = &self.config.name;
            if fault.is_close() {
                tracing::info!(port, "the front end disconnected");
            } else {
                tracing::warn!(port, "disconnected: {fault}");
                self.reason = Some(fault.to_string());
            }
        }
        if self.config.role == Role::Client {
            self.dial_at = Some(self.attached + RECONNECT);
        }
    }

    /// Where the port is in its life.
    #[must_use]
    pub fn phase(&self) -> PortPhase {
        let Some(open) = &self.open else {
            return match self.config.role {
                Role::Server => PortPhase::Waiting,
                Role::Client => PortPhase::Dialing,
            };
        };
        let queues = open.session.info().queues;
        if queues.iter().any(|q| q.fault.is_some()) {
            PortPhase::Faulted
        } else if queues.iter().any(|q| q.running && q.enabled) {
            PortPhase::Up
        } else {
            PortPhase::Connected
        }
    }

    /// The phase, if it is another than at the last call.
    pub fn phase_change(&mut self) -> Option<PortPhase> {
        let phase = self.phase();
        (std::mem::replace(&mut self.phase, phase) != phase).then_some(phase)
    }

    /// Everything for `status`.
    #[must_use]
    pub fn state(&self) -> PortState {
        let info = self.open.as_ref().map(|open| open.session.info());
        let queues = info.iter().flat_map(|i| &i.queues);
        PortState {
            config: self.config.clone(),
            phase: self.phase(),
            reason: self.reason.clone(),
            features: info
                .as_ref()
                .and_then(|i| i.features)
                .map_or(0, |f| f.bits()),
            protocol_features: info
                .as_ref()
                .and_then(|i| i.protocol)
                .map_or(0, |f| f.bits()),
            memory: info.as_ref().map_or(0, |i| i.memory_bytes),
            queues: queues
                .filter(|q| q.running || q.fault.is_some())
                .map(|q| QueueState {
                    index: q.index,
                    size: q.size,
                    enabled: q.enabled,
                    fault: q.fault.clone(),
                })
                .collect(),
            connections: self.connections,
        }
    }

    /// Why the last connection ended, or what is wrong now.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

fn pump(open: &mut Open, backend: &mut ToWorkers<'_>) -> Result<(), Fault> {
    if !open.connection.flush()? {
        return Ok(());
    }
    for _ in 0..MESSAGES {
        let Some((message, fds)) = open.connection.recv()? else {
            return Ok(());
        };
        if let Some(reply) = open.session.handle(message, fds, backend)? {
            open.connection.send(reply)?;
        }
    }
    Ok(())
}
