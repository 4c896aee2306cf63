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
use virtio::vhost_user::{AnswerPipe, Message};
use wire::virtio::vhost_user::code;

use super::Attachment;
use super::backend::{Positions, WorkerBackend};
use super::client::{Client, Link};
use super::missing_memory::MissingMemory;
use super::open::OpenConnection;
use super::translations::Watches;
use crate::ports::watchdog::Doorbells;
use crate::worker::workers::Workers;

/// The connection or interface of a port in the previous switch process.
#[derive(Debug)]
pub enum SavedSide {
    /// Its connection.
    Connection(SavedConnection),
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
    /// Its descriptors by their numbers.
    pub files: BTreeMap<u64, ForeignFd>,
    /// The connection is quarantined: it is to be ended.
    pub quarantined: bool,
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

    pub(super) fn take_connection(&mut self, port: &PortConfig) -> Result<Link, String> {
        let socket = self.take(SOCKET)?;
        let (from, to) = (self.take(PIPE_FROM)?.vouch(), self.take(PIPE_TO)?.vouch());
        let pipe = AnswerPipe::again(from, to).map_err(|e| e.to_string())?;
        Client::connect_again(socket, pipe, self.answered().as_ref(), port)
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

    fn restore_connection(&mut self, mut saved: SavedConnection, workers: &Workers) {
        self.context.connections = saved.record.connections;
        let socket = saved.files.get(&SOCKET);
        let socket = socket.and_then(|socket| socket.try_clone().ok());
        let quarantined = saved.quarantined;
        let numbers = saved.files.keys().copied().collect();
        let bytes = std::mem::take(&mut saved.bytes);
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
                socket.into_iter().for_each(ForeignFd::hang_up);
                self.context.store.drop_session();
                self.dial_later();
                if quarantined {
                    self.pause();
                }
            }
        }
    }

    fn try_restore(
        &mut self,
        mut saved: SavedConnection,
        workers: &Workers,
    ) -> Result<OpenConnection, String> {
        if saved.quarantined {
            return Err(
                "quarantined: the switch crashed repeatedly while serving this port, or could \
                 not close what its front end sent"
                    .into(),
            );
        }
        if saved.record.torn {
            return Err("a part of a message was lost with the previous switch process".into());
        }
        let link = saved.take_connection(&self.context.config)?;
        let mut positions = saved.take_positions(&self.context.config)?;
        let (config, doorbells) = (self.context.config.clone(), Doorbells::default());
        let mut backend = WorkerBackend {
            workers,
            context: &mut self.context,
            positions: &mut positions,
            doorbells: &doorbells,
        };
        let (record, files) = (&saved.record, saved.files);
        let client = Client::restore(link, &config, record, files, &mut backend);
        let mut client = client?;
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
