//! The state that survives a restart of control: the document in the state file, and the access
//! lists beside it.

mod lists;
mod numbers;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::v1::DesiredState;
use ipc::state::{Part, StateFile};
use policy::SegmentId;
use policy::acl::RuleId;
use policy::port_security::Bindings;
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

use crate::rule_counts::Count;
pub(crate) use lists::EncodedChunks;
use lists::Lists;
pub use numbers::Numbers;

/// The document in the state file. The first one, of the supervisor, has only the desired state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedState {
    /// The desired state, changes at run time included.
    pub desired: DesiredState,
    /// Numbers of its ports, segments and mirrors.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Epoch of the last program.
    pub epoch: u64,
    /// Rules epochs of its tracked segments.
    pub rules_epochs: Vec<(SegmentId, u16)>,
    /// Learned FDB entries as of the last save.
    pub stations: Vec<SavedStation>,
    /// Bindings of port security, by port.
    pub bound: BTreeMap<PortId, Bindings>,
    /// Counters of the rules that were hit last.
    pub rule_counts: Vec<(RuleId, Count)>,
    /// Whether the switch may have scheduling: set before the first order for it.
    pub scheduled: bool,
    /// Location of the access lists in the file.
    directory: Option<Part>,
    #[serde(skip)]
    lists: Lists,
    /// Encoded chunks of the desired access lists.
    #[serde(skip)]
    pub(crate) encoded: EncodedChunks,
}

fn malformed(error: serde_json::Error) -> io::Error {
    io::Error::other(format!("malformed state file: {error}"))
}

/// A learned FDB entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedStation {
    /// The segment.
    pub segment: SegmentId,
    /// The MAC address.
    pub mac: [u8; 6],
    /// The port.
    pub port: PortId,
    /// Time of its last frame, on the machine's monotonic clock.
    pub seen: Duration,
}

impl SavedStation {
    /// Returns the MAC address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }
}

impl SavedState {
    /// Creates the document of a first start.
    #[cfg(test)]
    pub fn initial(desired: DesiredState) -> Self {
        Self {
            desired,
            ..Self::default()
        }
    }

    /// Reads the document.
    ///
    /// # Errors
    /// The file is empty or malformed.
    pub fn load(file: &StateFile) -> io::Result<Self> {
        let bytes = file
            .load()?
            .ok_or_else(|| io::Error::other("the state file is empty"))?;
        let mut saved: Self = serde_json::from_slice(&bytes).map_err(malformed)?;
        if let Some(directory) = saved.directory {
            saved.lists = Lists::load(file, directory)?;
            saved.desired.access = Arc::clone(saved.lists.access());
        }
        Ok(saved)
    }

    /// Writes the new parts of the access lists, then the document.
    ///
    /// # Errors
    /// It is too long ([`io::ErrorKind::FileTooLarge`]), or the system's refusal; the file keeps
    /// its contents.
    pub fn store(&mut self, file: &StateFile) -> io::Result<()> {
        let is_other = !Arc::ptr_eq(self.lists.access(), &self.desired.access);
        let lists = if is_other {
            Some(self.lists.with(&self.desired.access, &self.encoded, file)?)
        } else {
            None
        };
        self.directory = lists.as_ref().unwrap_or(&self.lists).directory();
        let access = std::mem::take(&mut self.desired.access);
        let bytes = serde_json::to_vec(self);
        self.desired.access = access;
        file.save(&bytes.map_err(io::Error::other)?)?;
        if let Some(lists) = lists {
            self.lists = lists;
        }
        Ok(())
    }
}
