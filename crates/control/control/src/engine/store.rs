//! The desired state in effect, and the state file in which it outlives control.

use std::io;
use std::time::Duration;

use ipc::state::StateFile;
use policy::SegmentId;
use port::PortId;
use wire::MacAddr;

use super::changes::Target;
use super::forwarding::Forwarding;
use crate::plan::{Access, Basis};
use crate::saved::{EncodedChunks, SavedState, SavedStation};
use config::desired::qos::Speeds;
use ipc::sockets::Reach;

/// Shortest interval, 100 ms, between two saves because of MAC moves: guests that claim
/// addresses in a loop cost no more than that.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_millis(100);

/// See the module documentation.
pub(super) struct Store {
    pub(super) file: StateFile,
    /// The document. Its FDB entries, bindings and counters are those of the last save.
    pub(super) saved: SavedState,
    /// The access lists in effect.
    pub(super) access: Access,
    /// Directories in which sockets may be.
    pub(super) reach: Reach,
    /// Speeds of the interfaces of scheduled ports, as far as they are known.
    pub(super) speeds: Speeds,
    saved_at: Duration,
    /// [`Fdb::changes`](crate::learning::Fdb::changes) as of the last save.
    saved_changes: u64,
    /// Another control changes and saves the desired state; see [`crate::gate`].
    pub(super) frozen: bool,
}

impl Store {
    /// Creates the store with a document that was read from the file.
    pub(super) fn new(file: StateFile, saved: SavedState, reach: Reach, frozen: bool) -> Self {
        Self {
            file,
            saved,
            access: Access::default(),
            reach,
            speeds: Speeds::new(),
            saved_at: Duration::ZERO,
            saved_changes: 0,
            frozen,
        }
    }

    /// Returns the name of a segment.
    pub(super) fn segment_name(&self, id: SegmentId) -> &str {
        let mut names = self.saved.numbers.segments.iter();
        names
            .find(|(_, i)| **i == id)
            .map_or("?", |(name, _)| name.as_str())
    }

    /// Returns the static entries of the configuration, whether their ports are up or not.
    pub(super) fn static_entries(&self) -> impl Iterator<Item = ((SegmentId, MacAddr), PortId)> {
        let numbers = &self.saved.numbers;
        self.saved.desired.fdb.iter().filter_map(|entry| {
            let segment = *numbers.segments.get(&entry.segment)?;
            let mac = MacAddr(api::v1::parse_mac(&entry.mac)?);
            Some(((segment, mac), *numbers.ports.get(&entry.port)?))
        })
    }

    /// Returns the basis of a change.
    pub(super) fn basis(&self) -> Basis {
        Basis {
            desired: self.saved.desired.clone(),
            access: self.access.clone(),
            numbers: self.saved.numbers.clone(),
            reach: self.reach.clone(),
            speeds: self.speeds.clone(),
        }
    }

    /// Puts a desired state into effect, without saving it.
    pub(super) fn commit(&mut self, target: &mut Target) {
        self.saved.desired = target.desired.clone();
        self.saved.numbers = target.numbers.clone();
        self.access = target.access.clone();
        self.saved.encoded = std::mem::take(&mut target.encoded);
    }

    /// Writes the state file, unless another control writes it.
    ///
    /// # Errors
    /// The document is too long, or the system's refusal.
    pub(super) fn save(&mut self, forwarding: &mut Forwarding) -> io::Result<()> {
        if self.frozen {
            return Ok(());
        }
        let now = forwarding.now();
        (forwarding.unsaved_move, self.saved_at) = (false, now);
        let stations = forwarding.fdb.list(now).into_iter();
        self.saved.stations = stations
            .map(|s| SavedStation {
                segment: s.segment,
                mac: s.mac.0,
                port: s.port,
                seen: now.saturating_sub(s.age),
            })
            .collect();
        self.saved.bound.clone_from(&forwarding.bound);
        let stored = self.saved.store(&self.file);
        self.saved.encoded = EncodedChunks::default();
        stored?;
        self.saved_changes = forwarding.fdb.changes();
        Ok(())
    }

    /// Writes the state file if an FDB entry was learned, used, moved or forgotten since. Changes
    /// of the desired state, bindings and counters of rules are saved as they are made.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub(super) fn save_stations(&mut self, forwarding: &mut Forwarding) -> io::Result<()> {
        if forwarding.fdb.changes() == self.saved_changes {
            return Ok(());
        }
        self.save(forwarding)
    }

    /// Writes the state file after a MAC move, at most once per [`SAVE_INTERVAL`], and always after
    /// a new binding. A guest causes at most four bindings a connection, and those of one batch of
    /// upcalls are written together.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub(super) fn save_moves(&mut self, forwarding: &mut Forwarding) -> io::Result<()> {
        let is_due = forwarding.unsaved_move && forwarding.now() >= self.saved_at + SAVE_INTERVAL;
        if is_due || forwarding.answers.are_held() {
            self.save(forwarding)?;
        }
        forwarding.answers.release();
        Ok(())
    }
}
