//! One port's vhost-user side: its socket, the connection that is open, the session on it.

mod backend;
mod bare;
mod bounds;
mod left;
mod offer;
mod open;
mod pause;
mod peer;
mod revive;
mod status;
mod turned_away;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::AUDIT;
use channel::switching::{PortConfig, PortPhase, Role};
use rustix::net::SocketFlags;
use virtio::vhost_user::{AnswerPipe, Connection, Fault, Session};

use crate::keeper::Keeper;
use crate::watchdog::Doorbells;
use crate::workers::Workers;
use backend::{Positions, ToWorkers};
use bare::BareDriver;
use bounds::Bounds;
pub use left::LeftBehind;
use offer::offer;
use open::{Around, Open, deposit};
use pause::Pauses;
use peer::Strangers;
pub use revive::KeptConnection;
use turned_away::TurnedAway;

/// Between two attempts to dial.
const REDIAL: Duration = Duration::from_millis(200);
/// Between two connections. A driver that died has a successor at once, but who hangs up again and again is not dialed
/// without end.
const RECONNECT: Duration = Duration::from_millis(20);

/// Of a front end that leaves when it has seen what is offered: QEMU does so when its driver uses a feature that the port
/// offered before.
const DISLIKED: &str = "the front end left without choosing features: its guest may use one that the port does not offer \
     any more (mtu, queues)";

const BLOCKS: &str = "the front end has its event descriptors block whoever writes to them";

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
    /// Why the last connection ended, or what was refused to the one that is open.
    reason: Option<String>,
    /// Why the connection before this one ended, until this one serves its guest, is refused something, or is over.
    earlier: Option<String>,
    connections: u64,
    turned_away: TurnedAway,
    strangers: Strangers,
    /// Messages and queues that were refused in connections that are over.
    refusals: u64,
    /// After connections that did harm.
    pauses: Pauses,
    /// After those that ended before features were chosen, or by breaking a rule.
    fruitless: Pauses,
    bounds: Bounds,
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
            earlier: None,
            connections: 0,
            turned_away: TurnedAway::default(),
            strangers: Strangers::default(),
            refusals: 0,
            pauses: Pauses::after_harm(),
            fruitless: Pauses::after_nothing(),
            bounds: Bounds::default(),
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
            bounds: &self.bounds,
        };
        if let Some(open) = &self.open {
            open.record(&mut around);
        }
    }

    /// Takes a connection from the listening socket. A second front end is turned away: a port has one
    /// guest. So is one of another user than `peer`, if that is said, before anything of it is read, and one that has hung up: whoever
    /// has come after many of those does not have to wait for them.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn accept(&mut self, peer: Option<u32>, workers: &Workers) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(listener, flags)?;
        let second = self.open.is_some() || self.kept.is_some();
        let stranger = self.strangers.look(&socket, peer)?;
        if second || stranger.is_some() {
            self.turned_away.once_more(second);
            if !second {
                self.reason = self.strangers.words();
            }
            if let Some(left_out) = self.bounds.line_of_turned_away(stranger.is_some()) {
                let port = &self.config.name;
                let why = stranger.unwrap_or("a second connection");
                let user = self.strangers.last();
                tracing::warn!(port, user, left_out, "turned away: {why}");
            }
            return Ok(());
        }
        if peer::has_hung_up(&socket)? {
            self.turned_away.once_more(false);
            return Ok(());
        }
        self.attach(socket, workers)
    }

    /// Whether the front end that is connected is of another user than `peer`.
    #[must_use]
    pub fn serves_stranger(&self, peer: u32) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| peer::user_of(&open.connection).ok() != Some(peer))
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
            doorbells: Doorbells::default(),
            chose: false,
            bare: BareDriver::default(),
            answered: None,
            torn: false,
        });
        self.attached = Instant::now();
        let reason = self.reason.take();
        self.earlier = reason.filter(|reason| reason != DISLIKED);
        self.dial_at = None;
        self.connections += 1;
        self.keep_record(workers);
        if let Some(left_out) = self.bounds.line() {
            let port = &self.config.name;
            tracing::info!(target: AUDIT, port, left_out, "a front end connected");
        }
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
            bounds: &self.bounds,
        };
        open.pump(&mut around)?;
        let info = open.session.info();
        if info.last_refusal.is_some() || info.queues.iter().any(|q| q.running) {
            self.reason = info.last_refusal;
            self.earlier = None;
        }
        Ok(())
    }

    /// Whether the VMM took memory away that it shares by this connection.
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.session.memory_is_lost())
    }

    /// Whether the front end held a thread up that wrote to its event descriptors: it is to be disconnected.
    #[must_use]
    pub fn blocks(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.doorbells.have_blocked())
    }

    /// A queue broke a rule: it is stopped, the session goes on.
    pub fn queue_failed(&mut self, index: u16, reason: &str, workers: &Workers) {
        if let Some(left_out) = self.bounds.line() {
            let port = &self.config.name;
            tracing::warn!(target: AUDIT, port, queue = index, left_out, "stopped: {reason}");
        }
        // A connection that has ended has a reason of its own.
        if let Some(open) = &mut self.open {
            let mut backend = ToWorkers {
                workers,
                config: &self.config,
                keeper: &mut self.keeper,
                positions: &mut open.positions,
                doorbells: &open.doorbells,
                bounds: &self.bounds,
            };
            open.session.queue_failed(index, reason, &mut backend);
        }
        self.keep_record(workers);
    }

    /// When the log is to say that the VMM shares no memory.
    #[must_use]
    pub fn to_say_at(&self) -> Option<Instant> {
        self.open.as_ref().and_then(|open| open.bare.due_to_say())
    }

    /// Says so, if it is time.
    pub fn say_due(&mut self, now: Instant) {
        let Some(open) = self.open.as_mut().filter(|open| open.bare.is(now)) else {
            return;
        };
        if open.bare.due_to_say().is_some() {
            open.bare.say();
            if let Some(left_out) = self.bounds.line() {
                let port = &self.config.name;
                tracing::warn!(port, left_out, "{}", bare::WORDS);
            }
        }
    }

    /// Ends a connection whose front end holds threads up. The port takes the next one after a pause.
    pub fn disconnect_who_blocks(&mut self, workers: &Workers) {
        self.disconnect(BLOCKS, workers);
        self.pause();
    }

    /// Ends the connection for a reason of ours.
    pub fn disconnect(&mut self, reason: &str, workers: &Workers) {
        if let Some(left_out) = self.bounds.line() {
            let port = &self.config.name;
            tracing::warn!(target: AUDIT, port, left_out, "disconnected: {reason}");
        }
        self.close(None, workers);
        self.reason = Some(reason.to_owned());
    }

    /// Has the port take no connection for a while.
    fn pause(&mut self) {
        self.pauses.begin(self.attached, Instant::now());
        self.dial_later();
    }

    /// When the port takes connections again, where it takes none now.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        let all = [&self.pauses, &self.fruitless, self.turned_away.pauses()];
        all.into_iter().filter_map(Pauses::until).max()
    }

    /// Takes connections again, if it is time. Whether it is.
    pub fn end_pause(&mut self, now: Instant) -> bool {
        let others = self.turned_away.pauses_mut();
        let all = [&mut self.pauses, &mut self.fruitless, others];
        let over = all.map(|pauses| pauses.is_over(now));
        over.contains(&true) && self.paused_until().is_none()
    }

    /// Ends the connection, if there is one; the port waits for the next.
    pub fn close(&mut self, fault: Option<Fault>, workers: &Workers) {
        if let Some(kept) = self.kept.take() {
            kept.end();
            self.keeper.forget();
        }
        self.reason = self.lasting_fault();
        let Some(mut open) = self.open.take() else {
            return;
        };
        self.earlier = None;
        self.turned_away.room_again();
        let mut backend = ToWorkers {
            workers,
            config: &self.config,
            keeper: &mut self.keeper,
            positions: &mut open.positions,
            doorbells: &open.doorbells,
            bounds: &self.bounds,
        };
        self.refusals += open.session.info().refusals;
        let disliked = !open.chose && open.answered.is_some();
        let broke_rule = fault.as_ref().is_some_and(|fault| !fault.is_close());
        if !open.chose || broke_rule {
            self.fruitless.begin_again(Instant::now());
        }
        self.left
            .add(self.config.id, open.session.leave(&mut backend));
        open.connection.end();
        self.keeper.forget();
        let (id, mtu) = (self.config.id, self.config.mtu);
        workers.on_port(id, move |guest| guest.set_mtu(mtu));
        workers.each(move |w| w.switch.guest_left(id));
        if let Some(fault) = fault {
            self.left_with(&fault, disliked);
        }
        self.dial_later();
    }

    /// Notes why a connection is over that its front end has ended, or that broke a rule; it may have disliked what is offered.
    fn left_with(&mut self, fault: &Fault, disliked: bool) {
        let reason = if !fault.is_close() {
            Some(fault.to_string())
        } else if disliked {
            Some(DISLIKED.to_owned())
        } else {
            None
        };
        if let Some(left_out) = self.bounds.line() {
            let port = &self.config.name;
            match &reason {
                None => tracing::info!(target: AUDIT, port, left_out, "the front end disconnected"),
                Some(reason) => {
                    tracing::warn!(target: AUDIT, port, left_out, "disconnected: {reason}");
                }
            }
        }
        self.reason = reason.or(self.reason.take());
    }

    fn dial_later(&mut self) {
        if self.config.role == Role::Client {
            let soon = self.attached + RECONNECT;
            self.dial_at = Some(self.paused_until().map_or(soon, |until| soon.max(until)));
        }
    }
}
