//! What survives a restart of control: the document in the state file, and the access lists beside it.

mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{AccessModel, WantedState};
use channel::state::{Part, StateFile};
use policy::guard::Bound;
use policy::{MAX_SEGMENTS, SegmentId};
use port::PortId;
use port::counters::MAX_PORTS;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

use lists::Lists;

/// The document. Numbers that were handed out stay the same, because the switch's flows speak of them. A number
/// that is given back is handed out again when all others have had their turn: until then nothing is left in the
/// switch, or on its way to or from it, that speaks of whoever had it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    /// What the operator asked for, run-time changes included.
    pub wanted: WantedState,
    /// Numbers of segments by name.
    #[serde(default)]
    pub segments: BTreeMap<String, SegmentId>,
    /// Numbers of ports by name.
    #[serde(default)]
    pub ports: BTreeMap<String, PortId>,
    /// Where the next free number is looked for.
    #[serde(default)]
    pub next_segment: u32,
    /// Likewise.
    #[serde(default)]
    pub next_port: u32,
    /// Of the last program.
    #[serde(default)]
    pub epoch: u64,
    /// Stations learned, as of the last save.
    #[serde(default)]
    pub stations: Vec<SavedStation>,
    /// What is bound at ports.
    #[serde(default)]
    pub bound: BTreeMap<PortId, Bound>,
    /// The wanted access lists in a document of a version that had them in there.
    #[serde(default, skip_serializing)]
    access: Arc<AccessModel>,
    /// Where they are in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<Part>,
    #[serde(skip)]
    lists: Lists,
}

fn senseless(error: serde_json::Error) -> io::Error {
    io::Error::other(format!("the state file makes no sense: {error}"))
}

/// A learned station.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedStation {
    /// Its segment.
    pub segment: SegmentId,
    /// Its address.
    pub mac: [u8; 6],
    /// Its port.
    pub port: PortId,
    /// When it was heard last, on the machine's monotonic clock.
    pub seen: Duration,
}

impl SavedStation {
    /// Its address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }
}

/// The first number that is not taken among those below `end`, from `next` on and around.
fn free(next: u32, end: usize, taken: impl Iterator<Item = u32>) -> u32 {
    let taken: BTreeSet<u32> = taken.collect();
    let mut numbers = (next..end as u32).chain(0..next);
    numbers.find(|n| !taken.contains(n)).unwrap_or(0)
}

impl Saved {
    /// The document of a first start.
    #[must_use]
    pub fn initial(wanted: WantedState) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Reads the document.
    ///
    /// # Errors
    /// There is none, or it is not one.
    pub fn load(file: &StateFile) -> io::Result<Self> {
        let bytes = file
            .load()?
            .ok_or_else(|| io::Error::other("the state file is empty"))?;
        let mut saved: Self = serde_json::from_slice(&bytes).map_err(senseless)?;
        saved.wanted.access = std::mem::take(&mut saved.access);
        if let Some(directory) = saved.directory {
            saved.lists = Lists::load(file, directory)?;
            saved.wanted.access = Arc::clone(saved.lists.access());
        }
        Ok(saved)
    }

    /// Writes the document, and before it what is new of the access lists.
    ///
    /// # Errors
    /// It is too long ([`io::ErrorKind::FileTooLarge`]), or the system's refusal; the file has what it had.
    pub fn store(&mut self, file: &StateFile) -> io::Result<()> {
        let is_other = !Arc::ptr_eq(self.lists.access(), &self.wanted.access);
        let lists = match is_other {
            true => Some(self.lists.with(&self.wanted.access, file)?),
            false => None,
        };
        self.directory = lists.as_ref().unwrap_or(&self.lists).directory();
        let access = std::mem::take(&mut self.wanted.access);
        let bytes = serde_json::to_vec(self);
        self.wanted.access = access;
        file.save(&bytes.map_err(io::Error::other)?)?;
        if let Some(lists) = lists {
            self.lists = lists;
        }
        Ok(())
    }

    /// The number of a segment; a new one gets the next free number.
    pub fn segment_id(&mut self, name: &str) -> SegmentId {
        if let Some(id) = self.segments.get(name) {
            return *id;
        }
        let taken = self.segments.values().map(|id| id.0.into());
        let id = free(self.next_segment, MAX_SEGMENTS, taken);
        self.next_segment = id + 1;
        let id = SegmentId(id as u16);
        self.segments.insert(name.to_owned(), id);
        id
    }

    /// The number of a port; a new one gets the next free number.
    pub fn port_id(&mut self, name: &str) -> PortId {
        if let Some(id) = self.ports.get(name) {
            return *id;
        }
        let taken = self.ports.values().map(|id| id.0);
        let id = free(self.next_port, MAX_PORTS, taken);
        self.next_port = id + 1;
        let id = PortId(id);
        self.ports.insert(name.to_owned(), id);
        id
    }

    /// Gives back the numbers of what is not wanted any more.
    pub fn forget_unwanted(&mut self) {
        let wanted = &self.wanted;
        self.ports.retain(|name, _| wanted.port(name).is_some());
        self.segments
            .retain(|name, _| wanted.segment(name).is_some());
    }
}
