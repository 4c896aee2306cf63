//! A connection that the switch before this one had: the port goes on with it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use channel::keeping::{ConnectionRecord, JOURNAL, PIPE_FROM, PIPE_TO, SOCKET};
use channel::switching::PortConfig;
use virtio::queue::JournalRegion;
use virtio::vhost_user::{AnswerPipe, Connection, Message, Session, hang_up};

use super::Attachment;
use super::backend::{Positions, ToWorkers};
use super::bare::BareDriver;
use super::offer::offer_again;
use super::open::Open;
use crate::watchdog::Doorbells;
use crate::workers::Workers;

/// What was kept of a connection.
#[derive(Debug)]
pub struct KeptConnection {
    /// Its record.
    pub record: ConnectionRecord,
    /// Its descriptors by their numbers.
    pub files: BTreeMap<u64, OwnedFd>,
    /// It is to be ended.
    pub condemned: bool,
}

impl KeptConnection {
    /// Whether it can be this port's: what may not change under a guest has not.
    #[must_use]
    pub fn belongs_to(&self, port: &PortConfig) -> bool {
        let fixed = |p: &PortConfig| PortConfig {
            mtu: None,
            mac: None,
            weight: 0,
            ..p.clone()
        };
        fixed(&self.record.port) == fixed(port)
    }

    /// It does not go on: its front end hears of that at once.
    pub fn end(self) {
        if let Some(socket) = self.files.get(&SOCKET) {
            hang_up(socket);
        }
    }

    fn take(&mut self, number: u64) -> Result<OwnedFd, String> {
        let found = self.files.remove(&number);
        found.ok_or_else(|| "a descriptor of the connection was not kept".into())
    }

    fn take_positions(&mut self, port: &PortConfig) -> Result<Positions, String> {
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
        Ok(Positions { journal, starts })
    }

    fn take_connection(&mut self) -> Result<Connection, String> {
        let socket = self.take(SOCKET)?;
        let (from, to) = (self.take(PIPE_FROM)?, self.take(PIPE_TO)?);
        let pipe = AnswerPipe::again(from, to).map_err(|e| e.to_string())?;
        let mut connection = Connection::with_pipe(socket, pipe).map_err(|e| e.to_string())?;
        if let Some((code, payload)) = self.record.answered.clone() {
            let answered = Message {
                code,
                need_reply: false,
                payload,
            };
            let skipped = connection.skip_answered(&answered);
            skipped.map_err(|fault| fault.to_string())?;
        }
        Ok(connection)
    }
}

impl Attachment {
    /// Whether a connection of before waits to be brought back.
    #[must_use]
    pub fn is_to_revive(&self) -> bool {
        self.kept.is_some()
    }

    /// Goes on with the connection of before, if there is one and nothing is wrong with it.
    pub fn revive(&mut self, workers: &Workers) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        self.connections = kept.record.connections;
        let socket = kept.files.get(&SOCKET);
        let socket = socket.and_then(|socket| socket.try_clone().ok());
        let condemned = kept.condemned;
        match self.bring_back(kept, workers) {
            Ok(open) => {
                self.open = Some(open);
                self.keep_record(workers);
                tracing::info!(port = self.config.name, "its connection goes on");
            }
            Err(reason) => {
                tracing::error!(port = self.config.name, "its connection ends: {reason}");
                self.reason = Some(reason);
                socket.iter().for_each(hang_up);
                self.keeper.forget();
                self.dial_later();
                if condemned {
                    self.pause();
                }
            }
        }
    }

    fn bring_back(&mut self, mut kept: KeptConnection, workers: &Workers) -> Result<Open, String> {
        if kept.condemned {
            return Err("the switch died of serving it, again and again".into());
        }
        if kept.record.torn {
            return Err("half a message was lost with the switch".into());
        }
        let connection = kept.take_connection()?;
        let mut positions = kept.take_positions(&self.config)?;
        let doorbells = Doorbells::default();
        let mut backend = ToWorkers {
            workers,
            config: &self.config,
            keeper: &mut self.keeper,
            positions: &mut positions,
            doorbells: &doorbells,
            bounds: &self.bounds,
        };
        let (record, files) = (kept.record.session, kept.files);
        let offer = offer_again(&self.config, kept.record.offered);
        let mut session = Session::restore(offer, &record, files, &mut backend)?;
        if kept.record.port.mtu != self.config.mtu {
            session.set_mtu(self.config.mtu.unwrap_or(1500));
        }
        let mut bare = BareDriver::default();
        bare.look(&session, Instant::now());
        Ok(Open {
            connection,
            // A queue that was ever started had them.
            chose: session.has_chosen_features() || positions.starts.iter().any(|n| *n > 0),
            bare,
            session,
            positions,
            doorbells,
            answered: kept.record.answered,
            torn: false,
        })
    }
}
