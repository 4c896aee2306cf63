//! Taking over from a switch process that crashed, or that is quiesced.
//!
//! ```text
//!              after a crash                              planned (see `hand_over`)
//! supervisor   saved sessions: descriptors and records;
//!              each adds its port and is restored;
//!              interfaces that the switch serves
//! control      adopts, adds the other desired ports:      likewise; no port has a connection yet
//!              each claims its interface
//!              publishes the program: all of them         likewise
//!              continue, those of removed ports end
//!              gives ports their listening sockets
//! supervisor                                              saved sessions: prepared;
//!                                                         those that have changed, interfaces,
//!                                                         TakeOver
//! ```
//!
//! So a frame that a guest sends meanwhile finds the interface that it goes to, as it finds guests.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::driving::InterfaceStart;
use ipc::keeping::{ConnectionRecord, SOCKET};
use ipc::switching::PortConfig;
use port::PortId;
use sys::foreign::{Author, ForeignFd};

use crate::process::attach::{SavedConnection, SavedInterface, SavedSide};

/// Saved connections and interfaces from the supervisor that no port has claimed yet.
#[derive(Debug, Default)]
pub(super) struct SavedConnections {
    pub(super) taking_over: bool,
    /// The previous switch process still runs: connections are continued after `TakeOver`.
    pub(super) waits: bool,
    files: BTreeMap<PortId, BTreeMap<u64, ForeignFd>>,
    /// First queues of interfaces; others follow.
    queues: BTreeMap<PortId, Vec<OwnedFd>>,
    whole: BTreeMap<PortId, SavedSide>,
    /// Ports with a malformed record, with the sockets of their connections.
    malformed: BTreeMap<PortId, Option<ForeignFd>>,
    /// Ports with a connection that does not fit.
    refused: Vec<PortId>,
    /// Ports whose connections are to be restored now.
    pub(super) waiting: VecDeque<PortId>,
    /// Ports with queues that are served again, and messages that are not handled yet.
    pub(super) restored: Vec<PortId>,
    /// Time since which they are restored.
    pub(super) began: Option<Instant>,
    /// Time since which all of them are served, nanoseconds of the machine's monotonic clock.
    pub(super) served_at_ns: u64,
}

impl SavedConnections {
    pub(super) fn new(taking_over: bool, waits: bool) -> Self {
        Self {
            taking_over,
            waits,
            ..Self::default()
        }
    }

    pub(super) fn add_files(&mut self, port: PortId, numbers: Vec<u64>, fds: Vec<ForeignFd>) {
        let files = self.files.entry(port).or_default();
        files.extend(numbers.into_iter().zip(fds));
    }

    /// Adds the record of a connection. Its descriptors have come. It replaces one that came
    /// before, and so do its descriptors.
    pub(super) fn add_record(&mut self, port: PortId, bytes: Vec<u8>, quarantined: bool) {
        let mut files = self.files.remove(&port).unwrap_or_default();
        if let Some(author) = files.get(&SOCKET).map(Author::of) {
            let author = author.labelled(port.0);
            let of_author = |(number, fd): (u64, ForeignFd)| (number, fd.of(author));
            files = files.into_iter().map(of_author).collect();
        }
        self.forget(port);
        match ConnectionRecord::from_bytes(&bytes) {
            Ok(record) => {
                let saved = SavedConnection {
                    record,
                    bytes,
                    numbers: files.keys().copied().collect(),
                    files,
                    quarantined,
                    prepared: None,
                };
                let saved = SavedSide::Connection(Box::new(saved));
                self.whole.insert(port, saved);
            }
            Err(reason) => {
                tracing::error!(port = port.0, "connection not continued: {reason}");
                // The switch before may still serve it.
                self.malformed.insert(port, files.remove(&SOCKET));
            }
        }
    }

    /// Forgets what came of a connection; the switch before may still serve it, or has ended it.
    pub(super) fn forget(&mut self, port: PortId) {
        self.files.remove(&port);
        self.malformed.remove(&port);
        if let Some(SavedSide::Connection(_)) = self.whole.get(&port) {
            self.whole.remove(&port);
        }
    }

    /// Returns the configuration of the port of a connection, as the record has it.
    pub(super) fn config_of(&self, port: PortId) -> Option<&PortConfig> {
        match self.whole.get(&port)? {
            SavedSide::Connection(saved) if saved.record.port.id == port => {
                Some(&saved.record.port)
            }
            _ => None,
        }
    }

    /// Returns the connection of a port, if it fits, for a preparation.
    pub(super) fn take_fitting(&mut self, port: &PortConfig) -> Option<Box<SavedConnection>> {
        match self.whole.remove(&port.id)? {
            SavedSide::Connection(saved) if saved.record.port.keeps_connection(port) => Some(saved),
            other => {
                self.whole.insert(port.id, other);
                None
            }
        }
    }

    pub(super) fn add_queues(&mut self, port: PortId, fds: Vec<OwnedFd>) {
        self.queues.entry(port).or_default().extend(fds);
    }

    /// Adds an interface with its last queues. A port with a connection has none.
    pub(super) fn add_interface(
        &mut self,
        port: PortId,
        path: String,
        start: InterfaceStart,
        fds: Vec<OwnedFd>,
    ) {
        let mut queues = self.queues.remove(&port).unwrap_or_default();
        queues.extend(fds);
        let saved = SavedInterface {
            path,
            start,
            queues,
        };
        let known = self.whole.entry(port);
        known.or_insert(SavedSide::Interface(saved));
    }

    /// Forgets the interface of a port, which the supervisor has changed.
    pub(super) fn drop_interface(&mut self, port: PortId) {
        if let Some(SavedSide::Interface(_)) = self.whole.get(&port) {
            self.whole.remove(&port);
        }
    }

    /// Returns what was saved of a port. That of a different port configuration is ended.
    pub(super) fn claim(&mut self, port: &PortConfig) -> Option<SavedSide> {
        let saved = self.whole.remove(&port.id)?;
        if saved.belongs_to(port) {
            return Some(saved);
        }
        tracing::info!(
            port = port.name,
            "connection not continued: the port was replaced"
        );
        saved.end();
        self.refused.push(port.id);
        None
    }

    /// Ends the take-over, and what no port has claimed; returns the ports.
    pub(super) fn finish(&mut self) -> Vec<PortId> {
        self.taking_over = false;
        self.files.clear();
        self.queues.clear();
        let mut over = std::mem::take(&mut self.refused);
        for (port, socket) in std::mem::take(&mut self.malformed) {
            socket.into_iter().for_each(ForeignFd::hang_up);
            over.push(port);
        }
        for (port, saved) in std::mem::take(&mut self.whole) {
            saved.end();
            over.push(port);
        }
        over
    }
}
