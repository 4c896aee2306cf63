//! Taking over from a switch process that crashed, or that is quiesced.
//!
//! ```text
//!              after a crash                              planned (see `hand_over`)
//! supervisor   saved sessions: descriptors and records
//! control      adopts, adds the desired ports:            likewise; no port has a connection yet
//!              each claims its connection
//!              publishes the program: all connections     likewise
//!              continue, those of removed ports end
//! supervisor                                              saved sessions, TakeOver
//! ```

use std::collections::{BTreeMap, VecDeque};

use ipc::keeping::{ConnectionRecord, SOCKET};
use ipc::switching::PortConfig;
use port::PortId;
use sys::foreign::{Author, ForeignFd};

use crate::process::attach::SavedConnection;

/// Saved connections from the supervisor that no port has claimed yet.
#[derive(Debug, Default)]
pub(super) struct SavedConnections {
    pub(super) taking_over: bool,
    /// The previous switch process still runs: connections are continued after `TakeOver`.
    pub(super) waits: bool,
    files: BTreeMap<PortId, BTreeMap<u64, ForeignFd>>,
    whole: BTreeMap<PortId, SavedConnection>,
    /// Ports whose record is malformed, or whose connection does not fit.
    refused: Vec<PortId>,
    /// Ports whose connections are to be restored now.
    pub(super) waiting: VecDeque<PortId>,
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

    pub(super) fn add_record(&mut self, port: PortId, record: &[u8], quarantined: bool) {
        let mut files = self.files.remove(&port).unwrap_or_default();
        if let Some(author) = files.get(&SOCKET).map(Author::of) {
            let author = author.labelled(port.0);
            let of_author = |(number, fd): (u64, ForeignFd)| (number, fd.of(author));
            files = files.into_iter().map(of_author).collect();
        }
        match ConnectionRecord::from_bytes(record) {
            Ok(record) => {
                let saved = SavedConnection {
                    record,
                    files,
                    quarantined,
                };
                self.whole.insert(port, saved);
            }
            Err(reason) => {
                tracing::error!(port = port.0, "connection not continued: {reason}");
                let socket = files.remove(&SOCKET);
                socket.into_iter().for_each(ForeignFd::hang_up);
                self.refused.push(port);
            }
        }
    }

    /// Returns the saved connection of a port. One of a different port configuration is ended.
    pub(super) fn claim(&mut self, port: &PortConfig) -> Option<SavedConnection> {
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

    /// Ends the take-over, and the connections that no port has claimed; returns their ports.
    pub(super) fn finish(&mut self) -> Vec<PortId> {
        self.taking_over = false;
        self.files.clear();
        let mut over = std::mem::take(&mut self.refused);
        for (port, saved) in std::mem::take(&mut self.whole) {
            saved.end();
            over.push(port);
        }
        over
    }
}
