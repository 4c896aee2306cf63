//! Restoring a connection of the previous switch process, or attaching the interface that it
//! served.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use ipc::driving::InterfaceStart;
use ipc::keeping::{ConnectionRecord, IOTLB, JOURNAL, PIPE_FROM, PIPE_TO, SOCKET};
use ipc::switching::{PortConfig, Role};
use memory::iotlb::AnsweredMessage;
use sys::foreign::ForeignFd;
use virtio::queue::JournalRegion;
use virtio::vhost_user::{AnswerPipe, Message, Session};
use wire::virtio::vhost_user::code;

use super::Attachment;
use super::backend::{Positions, WorkerBackend};
use super::client::{Client, Link, RestoredSession};
use super::missing_memory::MissingMemory;
use super::open::OpenConnection;
use super::translations::Watches;
use crate::ports::watchdog::Doorbells;
use crate::worker::workers::Workers;

/// The connection or interface of a port in the previous switch process.
#[derive(Debug)]
pub enum SavedSide {
    /// Its connection.
    Connection(Box<SavedConnection>),
    /// Its interface.
    Interface(SavedInterface),
}

impl SavedSide {
    /// Returns whether it fits the port: the settings that must not change under a guest are the
    /// same, or it is the interface that the port dials for.
    #[must_use]
    pub fn belongs_to(&self, port: &PortConfig) -> bool {
        match self {
            Self::Connection(saved) => saved.record.port.keeps_connection(port),
            Self::Interface(saved) => port.role == Role::Client && port.socket == saved.path,
        }
    }

    /// Ends it. The front end of a connection notices at once; the supervisor keeps the interface.
    pub fn end(self) {
        if let Self::Connection(saved) = self {
            saved.end();
        }
    }
}

/// An interface of the host.
#[derive(Debug)]
pub struct SavedInterface {
    /// The socket of its port.
    pub path: String,
    /// Its kind and features.
    pub start: InterfaceStart,
    /// A descriptor for each queue pair.
    pub queues: Vec<OwnedFd>,
}

/// The saved session of a connection.
#[derive(Debug)]
pub struct SavedConnection {
    /// Its record.
    pub record: ConnectionRecord,
    /// The same as the supervisor has it.
    pub bytes: Vec<u8>,
    /// Its descriptors by their numbers; without those that the preparation has taken.
    pub files: BTreeMap<u64, ForeignFd>,
    /// The numbers of all its descriptors.
    pub numbers: Vec<u64>,
    /// The connection is quarantined: it is to be ended.
    pub quarantined: bool,
    /// The session as restored while the previous switch process served the connection, or the
    /// reason why it cannot be continued.
    pub prepared: Option<Result<PreparedSession, String>>,
}

/// The part of a session that needs no queue: memory is mapped, descriptors are checked.
#[derive(Debug)]
pub struct PreparedSession {
    session: Box<Session>,
    positions: Positions,
    doorbells: Doorbells,
}

impl SavedConnection {
    /// Ends the connection; its front end notices at once.
    fn end(mut self) {
        if let Some(socket) = self.files.remove(&SOCKET) {
            socket.hang_up();
        }
    }

    fn take(&mut self, number: u64) -> Result<ForeignFd, String> {
        let found = self.files.remove(&number);
        found.ok_or_else(|| "a descriptor of the connection was not saved".into())
    }

    pub(super) fn take_positions(&mut self, port: &PortConfig) -> Result<Positions, String> {
        let queues = 2 * port.queues;
        let journal = match self.files.remove(&JOURNAL) {
            None => None,
            Some(fd) => {
                let region = JournalRegion::map(&fd, queues).map_err(|e| e.to_string())?;
                Some(Arc::new(region))
            }
        };
        let mut starts = std::mem::take(&mut self.record.starts);
        starts.resize(usize::from(queues), 0);
        Ok(Positions {
            journal,
            starts,
            iotlb: self.files.remove(&IOTLB),
        })
    }

    /// Returns its connection, unless it is to end; after an error it has ended.
    pub(super) fn take_connection(&mut self, port: &PortConfig) -> Result<Link, String> {
        let taken = self.may_continue().and_then(|()| {
            let (from, to) = (self.take(PIPE_FROM)?.vouch(), self.take(PIPE_TO)?.vouch());
            AnswerPipe::again(from, to).map_err(|e| e.to_string())
        });
        let socket = self.take(SOCKET)?;
        match taken {
            Ok(pipe) => Link::again(socket, pipe, self.answered().as_ref(), port),
            Err(reason) => {
                socket.hang_up();
                Err(reason)
            }
        }
    }

    fn may_continue(&self) -> Result<(), String> {
        let reason = if self.quarantined {
            "quarantined: the switch crashed repeatedly while serving this port, or could not \
             close what its front end sent"
        } else if self.record.torn {
            "a part of a message was lost with the previous switch process"
        } else {
            return Ok(());
        };
        Err(reason.into())
    }

    /// Returns the message that was answered last, unless it is known to have left the socket.
    fn answered(&self) -> Option<Message> {
        let (code, payload) = match self
            .files
            .get(&IOTLB)
            .map(|file| AnsweredMessage::read(file))
        {
            Some(Ok(AnsweredMessage::Waits(content))) => (code::IOTLB_MSG, content.to_vec()),
            Some(Ok(AnsweredMessage::Taken)) => return None,
            _ => self.record.answered.clone()?,
        };
        Some(Message {
            code,
            need_reply: false,
            payload,
        })
    }
}

impl Attachment {
    /// Returns whether a saved connection or interface is to be restored.
    #[must_use]
    pub fn awaits_restore(&self) -> bool {
        self.saved.is_some()
    }

    /// Restores what was saved, if there is something without an error.
    pub fn restore(&mut self, workers: &Workers) {
        match self.saved.take() {
            Some(SavedSide::Connection(saved)) => self.restore_connection(saved, workers),
            Some(SavedSide::Interface(saved)) => {
                let SavedInterface { start, queues, .. } = saved;
                if let Err(reason) = self.attach_interface(start, queues, workers) {
                    self.dial_failed(reason);
                }
            }
            None => {}
        }
    }

    fn restore_connection(&mut self, mut saved: Box<SavedConnection>, workers: &Workers) {
        self.context.connections = saved.record.connections;
        let quarantined = saved.quarantined;
        let bytes = std::mem::take(&mut saved.bytes);
        let numbers = std::mem::take(&mut saved.numbers);
        self.context.store.resume(bytes, numbers);
        match self.try_restore(saved, workers) {
            Ok(open) => {
                self.open = Some(open);
                self.store_session();
                tracing::debug!(port = self.context.config.name, "connection continued");
            }
            Err(reason) => {
                tracing::error!(
                    port = self.context.config.name,
                    "connection not continued: {reason}"
                );
                self.reason = Some(reason);
                self.context.store.drop_session();
                self.dial_later();
                if quarantined {
                    self.pause();
                }
            }
        }
    }

    /// Forgets what was saved, which another switch process serves or has ended.
    pub fn forget_saved(&mut self) {
        if self.saved.take().is_some() {
            self.dial_later();
        }
    }

    /// Restores of a connection what needs no queue: the previous switch process still serves it.
    /// The rest follows with [`Attachment::restore`].
    pub fn prepare(&mut self, mut saved: Box<SavedConnection>, workers: &Workers) {
        // memif starts with its socket, and a table of translations has one writer.
        let fits = !saved.quarantined && !saved.record.torn && !saved.files.contains_key(&IOTLB);
        if fits && Client::can_be_prepared(&self.context.config) {
            saved.prepared = Some(self.try_prepare(&mut saved, workers));
        }
        self.set_saved(SavedSide::Connection(saved));
    }

    fn try_prepare(
        &mut self,
        saved: &mut SavedConnection,
        workers: &Workers,
    ) -> Result<PreparedSession, String> {
        let positions = saved.take_positions(&self.context.config)?;
        let of_connection = |number: &u64| [SOCKET, PIPE_FROM, PIPE_TO].contains(number);
        let (own, files) = std::mem::take(&mut saved.files)
            .into_iter()
            .partition(|(number, _)| of_connection(number));
        saved.files = own;
        let restored = self.with_backend(
            positions,
            Doorbells::default(),
            workers,
            |config, backend| Client::prepare(config, &saved.record, files, backend),
        );
        let (session, positions, doorbells) = restored?;
        Ok(PreparedSession {
            session,
            positions,
            doorbells,
        })
    }

    /// Returns the session with its queues in service.
    fn restored(
        &mut self,
        saved: &mut SavedConnection,
        workers: &Workers,
    ) -> Result<(RestoredSession, Positions, Doorbells), String> {
        if let Some(prepared) = saved.prepared.take() {
            let PreparedSession {
                mut session,
                positions,
                doorbells,
            } = prepared?;
            return self.with_backend(positions, doorbells, workers, |_, backend| {
                session.start_restored(backend);
                Ok(RestoredSession::VhostUser(session))
            });
        }
        let positions = saved.take_positions(&self.context.config)?;
        let (record, files) = (&saved.record, std::mem::take(&mut saved.files));
        self.with_backend(
            positions,
            Doorbells::default(),
            workers,
            |config, backend| Client::restore(config, record, files, backend),
        )
    }

    /// Restores something with the backend of this port; returns it with the rest of the
    /// connection.
    fn with_backend<R>(
        &mut self,
        mut positions: Positions,
        doorbells: Doorbells,
        workers: &Workers,
        restore: impl FnOnce(&PortConfig, &mut WorkerBackend<'_>) -> Result<R, String>,
    ) -> Result<(R, Positions, Doorbells), String> {
        let config = self.context.config.clone();
        let mut backend = WorkerBackend {
            workers,
            context: &mut self.context,
            positions: &mut positions,
            doorbells: &doorbells,
        };
        let restored = restore(&config, &mut backend)?;
        Ok((restored, positions, doorbells))
    }

    /// Continues a connection; after an error it has ended.
    fn try_restore(
        &mut self,
        mut saved: Box<SavedConnection>,
        workers: &Workers,
    ) -> Result<OpenConnection, String> {
        let link = saved.take_connection(&self.context.config)?;
        let (session, positions, doorbells) = match self.restored(&mut saved, workers) {
            Ok(restored) => restored,
            Err(reason) => {
                link.end();
                return Err(reason);
            }
        };
        let mut client = Client::join(link, session)?;
        if saved.record.port.mtu != self.context.config.mtu {
            client.set_mtu(self.context.config.mtu.unwrap_or(1500));
        }
        let mut missing_memory = MissingMemory::default();
        missing_memory.update(client.lacks_memory(), Instant::now());
        Ok(OpenConnection {
            // Features were chosen before any queue was started.
            features_chosen: client.has_chosen() || positions.starts.iter().any(|n| *n > 0),
            missing_memory,
            client,
            positions,
            doorbells,
            answered: saved.record.answered,
            torn: false,
            has_more: false,
            watches: Watches::default(),
        })
    }
}
