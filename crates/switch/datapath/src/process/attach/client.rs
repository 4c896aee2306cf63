//! The protocol of a connection: vhost-user or memif. Both have a session of messages and a
//! connection that carries them; this is the choice between the two.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use ipc::keeping::ConnectionRecord;
use ipc::switching::{Iommu, PortConfig};
use memory::iotlb::AnsweredMessage;
use sys::foreign::ForeignFd;
use virtio::vhost_user::{
    AnswerPipe, Backend, Fault, Info, Message, PeekResult, QueueSnapshot, Reply,
};
use virtio::vhost_user::{Connection, QueueSummary, Session, Wakes};
use wire::virtio::features::Features;

use super::offer::{memif_offer, offer, offer_after_restore};
use super::queue_snapshots::QueueSnapshots;

/// A front end and the session with it.
#[derive(Debug)]
pub(super) enum Client {
    /// A VMM or a driver.
    VhostUser {
        connection: Connection,
        session: Box<Session>,
    },
    /// A process with memif.
    Memif {
        connection: memif::Connection,
        session: Box<memif::Session>,
    },
}

/// Calls the same method of either protocol.
macro_rules! either {
    ($client:expr, $part:ident => $call:expr) => {
        match $client {
            Client::VhostUser { $part, .. } => $call,
            Client::Memif { $part, .. } => $call,
        }
    };
}

impl Client {
    /// Starts a session on a new connection. What the switch says first is in the pipe.
    pub(super) fn new(
        socket: ForeignFd,
        pipe: AnswerPipe,
        config: &PortConfig,
        snapshots: &QueueSnapshots,
    ) -> io::Result<Self> {
        if let Some(offer) = memif_offer(config) {
            let session = memif::Session::new(offer);
            let mut connection = memif::Connection::new(socket, pipe)?;
            let staged = connection.stage(&session.hello());
            staged.map_err(io::Error::other)?;
            let session = Box::new(session);
            return Ok(Self::Memif {
                connection,
                session,
            });
        }
        let mut session = Session::new(offer(config));
        session.restore_snapshots(snapshots.all());
        Ok(Self::VhostUser {
            connection: Connection::with_pipe(socket, pipe)?,
            session: Box::new(session),
        })
    }

    /// Restores the session of `record`; [`Client::join`] gives it its connection.
    pub(super) fn restore(
        config: &PortConfig,
        record: &ConnectionRecord,
        files: BTreeMap<u64, ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<RestoredSession, String> {
        if let Some(offer) = memif_offer(config) {
            let session = memif::Session::restore(offer, &record.session, files, backend)?;
            return Ok(RestoredSession::Memif(Box::new(session)));
        }
        let offer = offer_after_restore(config, record);
        let session = Session::restore(offer, &record.session, files, backend)?;
        Ok(RestoredSession::VhostUser(Box::new(session)))
    }

    /// Returns a session with its connection, which ends if it has another protocol.
    pub(super) fn join(link: Link, session: RestoredSession) -> Result<Self, String> {
        match (link, session) {
            (Link::VhostUser(connection), RestoredSession::VhostUser(session)) => {
                Ok(Self::VhostUser {
                    connection,
                    session,
                })
            }
            (Link::Memif(connection), RestoredSession::Memif(session)) => Ok(Self::Memif {
                connection,
                session,
            }),
            (link, _) => {
                link.end();
                Err("the connection has another protocol".into())
            }
        }
    }

    /// Returns whether the sessions of a port can be prepared.
    pub(super) fn can_be_prepared(config: &PortConfig) -> bool {
        memif_offer(config).is_none()
    }

    /// Restores the session of `record` but for its queues, see [`Session::restore_stopped`].
    pub(super) fn prepare(
        config: &PortConfig,
        record: &ConnectionRecord,
        files: BTreeMap<u64, ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<Box<Session>, String> {
        let offer = offer_after_restore(config, record);
        let session = Session::restore_stopped(offer, &record.session, files, backend)?;
        Ok(Box::new(session))
    }

    /// Returns whether a message waits for room in the socket.
    pub(super) fn wants_write(&self) -> bool {
        either!(self, connection => connection.wants_write())
    }

    /// Reads the next message and leaves it in the socket.
    pub(super) fn peek(&mut self) -> Result<PeekResult, Fault> {
        match self {
            Self::VhostUser { connection, .. } => connection.peek(),
            Self::Memif { connection, .. } => {
                let next = connection.peek()?;
                Ok(next.map_or(PeekResult::Nothing, |(message, fds)| {
                    PeekResult::Whole(message, fds)
                }))
            }
        }
    }

    /// Assembles a message that comes in pieces.
    pub(super) fn receive_pieces(&mut self) -> Result<Option<(Message, Vec<ForeignFd>)>, Fault> {
        match self {
            Self::VhostUser { connection, .. } => connection.recv(),
            // Its messages are whole.
            Self::Memif { .. } => Ok(None),
        }
    }

    /// Takes the message that [`Self::peek`] returned, with so many descriptors, from the socket.
    pub(super) fn consume(&mut self, message: &Message, shown: usize) -> Result<(), Fault> {
        match self {
            Self::VhostUser { connection, .. } => connection.consume(message, shown),
            Self::Memif { connection, .. } => connection.consume(),
        }
    }

    /// Serves one message.
    pub(super) fn handle(
        &mut self,
        message: Message,
        fds: Vec<ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Reply>, Fault> {
        either!(self, session => session.handle(message, fds, backend))
    }

    /// Prepares a reply.
    pub(super) fn stage(&mut self, reply: Reply) -> Result<(), Fault> {
        match self {
            Self::VhostUser { connection, .. } => connection.stage(reply),
            Self::Memif { connection, .. } => connection.stage(&reply),
        }
    }

    /// Sends what is prepared; returns whether nothing is left.
    pub(super) fn flush(&mut self) -> Result<bool, Fault> {
        either!(self, connection => connection.flush())
    }

    /// Reports that nothing is left to be sent. Returns whether the session has changed.
    pub(super) fn sent(&mut self, backend: &mut dyn Backend) -> bool {
        match self {
            Self::VhostUser { .. } => false,
            Self::Memif { session, .. } => session.sent(backend),
        }
    }

    /// Reports that the message at which the former process may have died was served.
    pub(super) fn settled(&mut self) {
        either!(self, session => session.settled());
    }

    /// Returns whether the front end has taken the offer: a driver may take that back.
    pub(super) fn has_chosen(&self) -> bool {
        match self {
            Self::VhostUser { session, .. } => session.has_chosen_features(),
            Self::Memif { session, .. } => session.is_connected(),
        }
    }

    /// Returns the offered features, for [`Self::restore`].
    pub(super) fn offered_features(&self) -> Features {
        match self {
            Self::VhostUser { session, .. } => session.offered_features(),
            Self::Memif { .. } => memif::FEATURES,
        }
    }

    /// Returns the session, if it is one of vhost-user.
    fn vhost_user(&self) -> Option<&Session> {
        match self {
            Self::VhostUser { session, .. } => Some(session),
            Self::Memif { .. } => None,
        }
    }

    fn vhost_user_mut(&mut self) -> Option<&mut Session> {
        match self {
            Self::VhostUser { session, .. } => Some(session),
            Self::Memif { .. } => None,
        }
    }

    /// Returns whether there is a table of translations, whose file is stored.
    pub(super) fn has_iotlb(&self) -> bool {
        self.vhost_user().is_some_and(Session::has_iotlb)
    }

    /// Returns whether a message changes nothing in [`Self::record`], as a rule; see
    /// [`Session::is_unrecorded`].
    pub(super) fn is_unrecorded(&self, message: &Message) -> bool {
        self.vhost_user()
            .is_some_and(|session| session.is_unrecorded(message))
    }

    /// Returns whether it has changed something all the same.
    pub(super) fn take_unrecorded(&mut self) -> bool {
        self.vhost_user_mut().is_some_and(Session::take_unrecorded)
    }

    /// Stores with the table of translations which message was answered last.
    pub(super) fn set_answered(&self, answered: AnsweredMessage) {
        if let Some(session) = self.vhost_user() {
            session.set_answered(answered);
        }
    }

    /// Returns the descriptors to wait for, beside the socket.
    pub(super) fn wakes(&self) -> Option<Wakes<'_>> {
        self.vhost_user()?.wakes()
    }

    /// Returns the time at which [`Self::ask`] is to be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.vhost_user()?.next_deadline()
    }

    /// Asks the front end for missing translations.
    pub(super) fn ask(&mut self, now: Instant, backend: &mut dyn Backend) {
        if let Some(session) = self.vhost_user_mut() {
            session.ask(now, backend);
        }
    }

    /// Reads the front end's answers to that.
    pub(super) fn read_answers(&mut self, now: Instant, backend: &mut dyn Backend) {
        if let Some(session) = self.vhost_user_mut() {
            session.read_answers(now, backend);
        }
    }

    /// Returns what the front end was offered about translated addresses.
    pub(super) fn iommu(&self) -> Iommu {
        let offered = self.offered_features();
        match self {
            _ if !offered.contains(Features::ACCESS_PLATFORM) => Iommu::Off,
            Self::VhostUser { session, .. } if session.requires_iommu() => Iommu::Required,
            _ => Iommu::Offered,
        }
    }

    /// Returns which states the queues are in; see [`Self::info`] for each. It is asked for after
    /// every message.
    pub(super) fn queue_summary(&self) -> QueueSummary {
        either!(self, session => session.queue_summary())
    }

    /// Returns the last message that was refused with an acknowledgement, and why.
    pub(super) fn last_refusal(&self) -> Option<&str> {
        self.vhost_user()?.last_refusal()
    }

    pub(super) fn info(&self) -> Info {
        either!(self, session => session.info())
    }

    /// Returns the session as bytes, and the numbers of its descriptors.
    pub(super) fn record(&self) -> (Vec<u8>, Vec<u64>) {
        either!(self, session => session.record())
    }

    pub(super) fn memory_is_lost(&self) -> bool {
        either!(self, session => session.memory_is_lost())
    }

    /// Notifies the front end of an MTU; a memif client knows none.
    pub(super) fn set_mtu(&mut self, mtu: u16) {
        if let Self::VhostUser { session, .. } = self {
            session.set_mtu(mtu);
        }
    }

    /// Stops a queue with a fault. Returns the fault with which the connection is to be ended:
    /// memif has no message about a single queue.
    pub(super) fn queue_failed(
        &mut self,
        index: u16,
        reason: &str,
        backend: &mut dyn Backend,
    ) -> Option<Fault> {
        either!(self, session => session.queue_failed(index, reason, backend));
        let is_memif = matches!(self, Self::Memif { .. });
        is_memif.then(|| Fault::QueueStopped {
            index,
            reason: reason.to_owned(),
        })
    }

    /// Stops the queues of a driver process; returns the number of frames that are left in its
    /// rings, in both directions.
    pub(super) fn left_frames(&mut self, backend: &mut dyn Backend) -> u64 {
        let Self::VhostUser { session, .. } = self else {
            return 0;
        };
        let left = session.left_frames(backend);
        left.to_front_end + left.from_front_end
    }

    /// Ends the session, and returns what the next one needs to know.
    pub(super) fn detach(&mut self, backend: &mut dyn Backend) -> Vec<QueueSnapshot> {
        match self {
            Self::VhostUser { session, .. } => session.detach(backend),
            Self::Memif { session, .. } => {
                session.close(backend);
                Vec::new()
            }
        }
    }

    /// Ends the connection; a memif client gets the reason.
    pub(super) fn end(self, reason: Option<&str>) {
        match self {
            Self::VhostUser { connection, .. } => connection.end(),
            Self::Memif { connection, .. } => connection.end(reason),
        }
    }

    /// Returns the name of the front end's program, if it has said it.
    pub(super) fn program(&self) -> Option<String> {
        match self {
            Self::VhostUser { session, .. } => session.program(),
            Self::Memif { session, .. } => {
                Some(session.program().to_owned()).filter(|name| !name.is_empty())
            }
        }
    }

    /// Returns whether a guest's driver has started, and its VMM has shared no memory.
    pub(super) fn lacks_memory(&self) -> bool {
        let is_guest = matches!(self, Self::VhostUser { .. });
        is_guest && self.has_chosen() && self.info().memory_bytes == 0
    }

    /// Returns whether a front end that leaves before it has chosen features was deterred by the
    /// offer.
    pub(super) fn may_refuse_offer(&self) -> bool {
        matches!(self, Self::VhostUser { .. })
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, connection => connection.as_fd())
    }
}

/// A connection without a session.
#[derive(Debug)]
pub(super) enum Link {
    VhostUser(Connection),
    Memif(memif::Connection),
}

impl Link {
    /// Takes over the connection of a former process, which answered `answered` last. After an
    /// error the connection has ended.
    pub(super) fn again(
        socket: ForeignFd,
        pipe: AnswerPipe,
        answered: Option<&Message>,
        config: &PortConfig,
    ) -> Result<Self, String> {
        let mut link = if memif_offer(config).is_some() {
            memif::Connection::new(socket, pipe).map(Self::Memif)
        } else {
            Connection::with_pipe(socket, pipe).map(Self::VhostUser)
        }
        .map_err(|error| error.to_string())?;
        if let Some(answered) = answered {
            let skipped = match &mut link {
                Self::VhostUser(connection) => connection.skip_answered(answered),
                Self::Memif(connection) => connection.skip_answered(answered),
            };
            if let Err(fault) = skipped {
                link.end();
                return Err(fault.to_string());
            }
        }
        Ok(link)
    }

    /// Ends it for the other side, even if other processes have the socket open.
    pub(super) fn end(self) {
        match self {
            Self::VhostUser(connection) => connection.end(),
            Self::Memif(connection) => connection.end(None),
        }
    }
}

/// A session without a connection.
#[derive(Debug)]
pub(super) enum RestoredSession {
    VhostUser(Box<Session>),
    Memif(Box<memif::Session>),
}

/// Rejects a connection that was just accepted; a memif client gets the reason.
pub(super) fn reject(socket: ForeignFd, config: &PortConfig, reason: &str) {
    if memif_offer(config).is_some() {
        memif::reject(socket, reason);
    } else {
        socket.hang_up();
    }
}
