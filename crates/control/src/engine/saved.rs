//! What survives a restart of control: the document in the state file.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use api::v1::WantedState;
use channel::state::StateFile;
use policy::SegmentId;
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

/// The document. Numbers that were handed out stay the same, because the switch's flows speak of them.
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
    /// Of the last program.
    #[serde(default)]
    pub epoch: u64,
    /// Stations learned, as of the last save.
    #[serde(default)]
    pub stations: Vec<SavedStation>,
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
        serde_json::from_slice(&bytes)
            .map_err(|error| io::Error::other(format!("the state file makes no sense: {error}")))
    }

    /// Writes the document.
    ///
    /// # Errors
    /// It is too long, or the system's refusal.
    pub fn store(&self, file: &StateFile) -> io::Result<()> {
        file.save(&serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// The number of a segment; a new one gets the lowest free number.
    pub fn segment_id(&mut self, name: &str) -> SegmentId {
        if let Some(id) = self.segments.get(name) {
            return *id;
        }
        let taken: Vec<u16> = self.segments.values().map(|id| id.0).collect();
        let id = SegmentId((0..).find(|n| !taken.contains(n)).unwrap_or(0));
        self.segments.insert(name.to_owned(), id);
        id
    }

    /// The number of a port; a new one gets the lowest free number.
    pub fn port_id(&mut self, name: &str) -> PortId {
        if let Some(id) = self.ports.get(name) {
            return *id;
        }
        let taken: Vec<u32> = self.ports.values().map(|id| id.0).collect();
        let id = PortId((0..).find(|n| !taken.contains(n)).unwrap_or(0));
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
