//! The serialised state of a session, which outlives the process, and its way back.
//!
//! The record refers to descriptors by the numbers that were passed to [`Backend::keep`]. It is
//! [`RECORD_VERSION`] in one byte, and [`Record`] in postcard's encoding. The positions of queues
//! are not in it: they continue at the `tail` in their rings.
//!
//! The record is checked as the messages that it stands for, because the process that wrote it may
//! have died of corrupted state. An error ends this one session; its client may connect again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};
use sys::foreign::ForeignFd;
use virtio::vhost_user::{Backend, StoredFiles, saved};

use crate::rings::{Place, Ring, StoredDescriptor};
use crate::session::{Offer, Session, Stage};
use crate::table::Refusal;

/// Version of the encoding; a record of any other version is refused.
pub const RECORD_VERSION: u8 = 10;

/// State set by messages.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    stage: Stage,
    program: String,
    interface: String,
    /// Bytes of each region, and the number of its file.
    regions: Vec<(u64, u64)>,
    /// Rings to the client, and from it.
    rings: [Vec<RingRecord>; 2],
}

/// One ring of a [`Record`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RingRecord {
    place: Place,
    event: u64,
    problem: Option<String>,
}

impl RingRecord {
    fn of(ring: &Ring) -> Self {
        Self {
            place: ring.place,
            event: ring.event.number,
            problem: ring.problem.clone(),
        }
    }
}

impl Record {
    /// Parses a record as hostile input; its contents are checked later.
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        saved::decode(&[RECORD_VERSION], bytes)
    }

    /// Returns the numbers of all descriptors that the record refers to.
    fn numbers(&self) -> Vec<u64> {
        let files = self.regions.iter().map(|(_, file)| *file);
        let events = self.rings.iter().flatten().map(|ring| ring.event);
        files.chain(events).collect()
    }
}

impl Session {
    /// Stores a descriptor, and gives it a number.
    pub(crate) fn keep(&mut self, fd: &OwnedFd, backend: &mut dyn Backend) {
        let number = self.next_number;
        self.next_number += 1;
        backend.keep(number, fd.as_fd());
    }

    fn as_record(&self) -> Record {
        let regions = self.regions.all.iter();
        let rings = |rings: &Vec<Ring>| rings.iter().map(RingRecord::of).collect();
        Record {
            stage: self.stage,
            program: self.program.clone(),
            interface: self.interface.clone(),
            regions: regions.map(|m| (m.region.size(), m.file)).collect(),
            rings: self.rings.each_ref().map(rings),
        }
    }

    /// Returns the session as bytes for [`Session::restore`], and the numbers of the descriptors
    /// that it then needs.
    #[must_use]
    pub fn record(&self) -> (Vec<u8>, Vec<u64>) {
        let record = self.as_record();
        (saved::encode(&[RECORD_VERSION], &record), record.numbers())
    }

    /// Restores the session of `record`, with its stored descriptors. Queues that were running
    /// continue in `backend` at the positions in their rings. The next message may be one that was
    /// served before the record was made; call [`Session::settled`] after it, or when there is
    /// none. When no message to the client is left, call [`Session::sent`].
    ///
    /// # Errors
    /// A record of another version, or one that no client could have caused under this offer.
    /// Started queues have been stopped.
    pub fn restore(
        offer: Offer,
        record: &[u8],
        files: BTreeMap<u64, ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<Self, String> {
        let record = Record::from_bytes(record)?;
        let mut session = Self::new(offer);
        match session.follow(record, StoredFiles(files), backend) {
            Ok(()) => Ok(session),
            Err(Refusal(reason)) => {
                session.close(backend);
                Err(reason)
            }
        }
    }

    fn follow(
        &mut self,
        record: Record,
        mut files: StoredFiles,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        self.next_number = saved::next_number(&record.numbers())?;
        let is_empty = record.regions.is_empty() && record.rings.iter().all(Vec::is_empty);
        if record.stage == Stage::Greeted && !is_empty {
            return Err("regions and rings before INIT".into());
        }
        (self.program, self.interface) = (record.program, record.interface);
        for (size, file) in record.regions {
            let fd = files.take(file)?;
            let region = self.regions.map(self.regions.all.len(), &fd, size, file)?;
            self.regions.all.push(region);
        }
        for (from_client, rings) in [false, true].into_iter().zip(record.rings) {
            for ring in rings {
                let fd = files.take(ring.event)?;
                sys::event::check_again(&fd)?;
                let event = StoredDescriptor {
                    number: ring.event,
                    fd,
                };
                self.push_ring(from_client, ring.place, event)?;
                if let Some(last) = self.rings[usize::from(from_client)].last_mut() {
                    last.problem = ring.problem;
                }
            }
        }
        if matches!(record.stage, Stage::Connecting | Stage::Connected) {
            self.memory = Some(self.regions.snapshot()?);
        }
        if record.stage == Stage::Connected {
            self.start_all(backend);
        }
        (self.stage, self.again) = (record.stage, true);
        Ok(())
    }
}
