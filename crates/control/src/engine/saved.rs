//! What survives a restart of control: the document in the state file, and the access lists beside it.

mod lists;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{AccessModel, WantedState};
use channel::state::{Part, StateFile};
use policy::SegmentId;
use policy::acl::RuleId;
use policy::guard::Bound;
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::MacAddr;

use super::numbers::Numbers;
use crate::rule_counts::Count;
use lists::Lists;
pub(super) use lists::Written;

/// The document.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    /// What the operator asked for, run-time changes included.
    pub wanted: WantedState,
    /// Of its ports and segments.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Of the last program.
    #[serde(default)]
    pub epoch: u64,
    /// Stations learned, as of the last save.
    #[serde(default)]
    pub stations: Vec<SavedStation>,
    /// What is bound at ports.
    #[serde(default)]
    pub bound: BTreeMap<PortId, Bound>,
    /// What was counted for rules, of those that were hit last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_counts: Vec<(RuleId, Count)>,
    /// The wanted access lists in a document of a version that had them in there.
    #[serde(default, skip_serializing)]
    access: Arc<AccessModel>,
    /// Where they are in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<Part>,
    #[serde(skip)]
    lists: Lists,
    /// Pieces of the wanted access lists as the file will have them.
    #[serde(skip)]
    pub(super) written: Written,
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
            true => Some(self.lists.with(&self.wanted.access, &self.written, file)?),
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
}
