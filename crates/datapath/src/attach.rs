//! One port's vhost-user side: its socket, the connection that is open, the session on it.

mod backend;
mod left;
mod open;
mod revive;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::figures::QueueCounts;
use channel::switching::{PortConfig, PortPhase, PortState, QueueState, Role};
use rustix::net::SocketFlags;
use virtio::features::Features;
use virtio::vhost_user::{AnswerPipe, Connection, Fault, Offer, Session};

use crate::keeper::Keeper;
use crate::workers::Workers;
use backend::{Positions, ToWorkers};
pub use left::LeftBehind;
use open::{Around, Open, deposit};
pub use revive::KeptConnection;

/// Between two attempts to dial.
const REDIAL: Duration = Duration::from_millis(200);
/// Between two connections. A driver that died has a successor at once, but who hangs up again and again is not dialed
/// without end.
const RECONNECT: Duration = Duration::from_millis(20);

/// Of a front end that leaves when it has seen what is offered: QEMU does so when its driver uses a feature that the port
/// offered before.
const DISLIKED: &str = "the front end left without choosing features: its guest may use one that the port does not offer \
     any more (mtu, queues)";

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

/// The offer to a front end that was made one before: nothing else than then, and nothing that is not served any more.
fn offer_again(config: &PortConfig, before: u64) -> Offer {
    let mut offer = offer(config);
    let served = offer.features | Features::NET_MTU;
    offer.features = Features::from_bits_retain(before) & served;
    offer
}

fn offer(config: &PortConfig) -> Offer {
    let mut offer = Offer::new(offered(config), config.queues);
    offer.mtu = config.mtu.unwrap_or(offer.mtu);
    offer.mac = config.mac.unwrap_or_default();
    offer
}

/// See the module.
#[derive(Debug)]
pub struct Attachment {
    config: PortConfig,
    /// Only of a server port.
    listener: Option<OwnedFd>,
    open: Option<Open>,
    /// A connection of the switch before this one, until it is time to go on with it.
    kept: Option<KeptConnection>,
    keeper: Keeper,
    left: LeftBehind,
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
    /// A port without a connection, or with the one that the switch before this one has left.
    #[must_use]
    pub fn new(
        config: PortConfig,
        listener: Option<OwnedFd>,
        keeper: Keeper,
        left: LeftBehind,
        kept: Option<KeptConnection>,
    ) -> Self {
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
            attached: Instant::now(),
            dial_at: (client && kept.is_none()).then(Instant::now),
            kept,
            keeper,
            left,
            reason: None,
            connections: 0,
        }
    }

    /// Gives a port without a connection the one that the switch before this one has left.
    pub fn hand(&mut self, kept: KeptConnection) {
        self.kept = Some(kept);
        self.dial_at = None;
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
        workers.on_port(self.config.id, move |guest| guest.set_mtu(mtu));
        self.keep_record(workers);
    }

    /// Changes how much of the workers' time the port gets, compared with others.
    pub fn set_weight(&mut self, weight: u16, workers: &Workers) {
        self.config.weight = weight;
        let id = self.config.id;
        workers.each(move |w| w.set_weight(id, weight));
        self.keep_record(workers);
    }

    /// Deposits the connection as it is now.
    fn keep_record(&mut self, workers: &Workers) {
        let mut around = Around {
            workers,
            config: &self.config,
            keeper: &mut self.keeper,
            connections: self.connections,
        };
        if let Some(open) = &self.open {
            open.record(&mut around);
        }
    }

    /// Takes a connection from the listening socket. A second front end is turned away: a port has one
    /// guest.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn accept(&mut self, workers: &Workers) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(listener, flags)?;
        if self.open.is_some() || self.kept.is_some() {
            tracing::warn!(port = self.config.name, "turned a second connection away");
            return Ok(());
        }
        self.attach(socket, workers)
    }

    /// Takes a connection that was dialed.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn attach(&mut self, socket: OwnedFd, workers: &Workers) -> io::Result<()> {
        let pipe = AnswerPipe::new()?;
        deposit(&socket, &pipe, &mut self.keeper);
        let mut session = Session::new(offer(&self.config));
        session.recall(self.left.all());
        self.open = Some(Open {
            connection: Connection::with_pipe(socket, pipe)?,
            session,
            positions: Positions::new(self.config.queues),
            answered: None,
            torn: false,
        });
        self.attached = Instant::now();
        self.dial_at = None;
        self.connections += 1;
        self.keep_record(workers);
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
        let idle = self.open.is_none() && self.kept.is_none();
        self.config.role == Role::Client && idle && self.dial_at.is_none()
    }

    /// Serves what the front end sent.
    ///
    /// # Errors
    /// It broke a rule or left: the connection is to be closed.
    pub fn pump(&mut self, workers: &Workers) -> Result<(), Fault> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let mut around = Around {
            workers,
            config: &self.config,
            keeper: &mut self.keeper,
            connections: self.connections,
        };
        open.pump(&mut around)?;
        let info = open.session.info();
        // What stopped a queue is shown until the queue runs again.
        if info.queues.iter().any(|q| q.running) && info.queues.iter().all(|q| q.fault.is_none()) {
            self.reason = info.last_refusal;
        }
        Ok(())
    }

    /// Whether the VMM took memory away that it shares by this connection.
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.session.memory_is_lost())
    }

    /// A queue broke a rule: it is stopped, the session goes on.
    pub fn queue_failed(&mut self, index: u16, reason: &str, workers: &Workers) {
        tracing::warn!(port = self.config.name, queue = index, "stopped: {reason}");
        // A connection that has ended has a reason of its own.
        if let Some(open) = &mut self.open {
            let mut backend = ToWorkers {
                workers,
                config: &self.config,
                keeper: &mut self.keeper,
                positions: &mut open.positions,
            };
            open.session.queue_failed(index, reason, &mut backend);
            self.reason = Some(format!("queue {index} stopped: {reason}"));
        }
        self.keep_record(workers);
    }

    /// Ends the connection for a reason of ours.
    pub fn disconnect(&mut self, reason: &str, workers: &Workers) {
        tracing::warn!(port = self.config.name, "disconnected: {reason}");
        self.close(None, workers);
        self.reason = Some(reason.to_owned());
    }

    /// Ends the connection, if there is one; the port waits for the next.
    pub fn close(&mut self, fault: Option<Fault>, workers: &Workers) {
        if let Some(kept) = self.kept.take() {
            kept.end();
            self.keeper.forget();
        }
        let Some(mut open) = self.open.take() else {
            return;
        };
        let mut backend = ToWorkers {
            workers,
            config: &self.config,
            keeper: &mut self.keeper,
            positions: &mut open.positions,
        };
        let chose = open.session.info().features.is_some();
        self.left
            .add(self.config.id, open.session.leave(&mut backend));
        open.connection.end();
        self.keeper.forget();
        let (id, mtu) = (self.config.id, self.config.mtu);
        workers.on_port(id, move |guest| guest.set_mtu(mtu));
        workers.each(move |w| w.switch.guest_left(id));
        if let Some(fault) = fault {
            let port = &self.config.name;
            if fault.is_close() && !chose && open.answered.is_some() {
                tracing::warn!(port, "the front end disconnected: {DISLIKED}");
                self.reason = Some(DISLIKED.to_owned());
            } else if fault.is_close() {
                tracing::info!(port, "the front end disconnected");
            } else {
                tracing::warn!(port, "disconnected: {fault}");
                self.reason = Some(fault.to_string());
            }
        }
        self.dial_later();
    }

    fn dial_later(&mut self) {
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
    pub fn state(&self, counts: &BTreeMap<u16, QueueCounts>) -> PortState {
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
                    counts: counts.get(&q.index).cloned().unwrap_or_default(),
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
