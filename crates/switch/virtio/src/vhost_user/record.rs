//! The serialised state of a session, which outlives the process.
//!
//! The record refers to descriptors by the numbers that were passed to [`Backend::keep`]. It is
//! `RECORD_VERSION` in two bytes, little endian, and [`Record`] in postcard's encoding. The
//! positions of running queues are not in it: they change with every batch, and are found in the
//! rings (`Queue::resume`).

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};
use sys::foreign::ForeignFd;

use super::backend::Backend;
use super::config::NET_CONFIG_LEN;
use super::message::{InflightDesc, LogDesc, RegionDesc, VringAddr};
use super::queues::Vring;
use super::saved;
use super::session::Session;

/// Version of the encoding; a record of any other version is refused.
pub const RECORD_VERSION: u16 = 10;

/// A descriptor that is also stored elsewhere, under a number.
#[derive(Debug)]
pub(super) struct StoredDescriptor {
    pub(super) number: u64,
    pub(super) fd: ForeignFd,
}

/// State set by messages. The types of the wire are used where they have the same meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) acked: Option<u64>,
    pub(super) protocol: Option<u64>,
    pub(super) status: u8,
    pub(super) mtu: Option<u16>,
    pub(super) config: [u8; NET_CONFIG_LEN],
    pub(super) regions: Vec<(RegionDesc, u64)>,
    pub(super) log: Option<(LogDesc, u64)>,
    pub(super) inflight: Option<(InflightDesc, u64)>,
    pub(super) channel: Option<u64>,
    pub(super) vrings: Vec<VringRecord>,
}

/// One queue of a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VringRecord {
    pub(super) size: Option<u16>,
    pub(super) addr: Option<VringAddr>,
    pub(super) base: Option<u32>,
    pub(super) last_position: Option<u32>,
    pub(super) kick: Option<u64>,
    pub(super) call: Option<u64>,
    pub(super) err: Option<u64>,
    pub(super) enabled: Option<bool>,
    pub(super) running: bool,
    pub(super) area: Option<u64>,
    pub(super) problem: Option<String>,
}

impl VringRecord {
    /// A queue that has not been resumed yet, because it lacks translations, still runs.
    fn of(vring: &Vring, is_translated: bool) -> Self {
        let number = |fd: &Option<StoredDescriptor>| fd.as_ref().map(|fd| fd.number);
        let running = vring.running.is_some() || (is_translated && vring.resume);
        Self {
            size: vring.size,
            addr: vring.addr,
            base: vring.base,
            last_position: vring.last_position,
            kick: number(&vring.kick),
            call: number(&vring.call),
            err: number(&vring.err),
            enabled: vring.enabled,
            running,
            area: vring.area.filter(|_| running),
            problem: vring.problem.clone(),
        }
    }
}

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        saved::encode(&RECORD_VERSION.to_le_bytes(), self)
    }

    /// Parses a record as hostile input; its contents are checked later.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        saved::decode(&RECORD_VERSION.to_le_bytes(), bytes)
    }

    /// Returns the numbers of all descriptors that the record refers to.
    pub(super) fn numbers(&self) -> Vec<u64> {
        let regions = self.regions.iter().map(|(_, file)| *file);
        let log = self.log.map(|(_, file)| file);
        let inflight = self.inflight.map(|(_, file)| file);
        let single = [log, inflight, self.channel];
        let of_vrings = self.vrings.iter().flat_map(|v| [v.kick, v.call, v.err]);
        let some = single.into_iter().chain(of_vrings).flatten();
        regions.chain(some).collect()
    }
}

impl Session {
    /// Reports that the message that may have ended the former process was served, or that there
    /// was none.
    pub fn settled(&mut self) {
        self.again = false;
    }

    /// Stores a descriptor, and gives it a number.
    pub(super) fn keep(&mut self, fd: &OwnedFd, backend: &mut dyn Backend) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        backend.keep(number, fd.as_fd());
        number
    }

    /// Returns the session as bytes for [`Session::restore`], and the numbers of the descriptors
    /// that it then needs.
    #[must_use]
    pub fn record(&self) -> (Vec<u8>, Vec<u64>) {
        let record = self.as_record();
        (record.to_bytes(), record.numbers())
    }

    pub(super) fn as_record(&self) -> Record {
        let region = |m: &super::regions::MappedRegion| {
            let desc = RegionDesc {
                gpa: m.region.gpa(),
                size: m.region.size(),
                uva: m.region.uva(),
                offset: m.offset,
            };
            (desc, m.file)
        };
        let log = |log: &super::regions::LogFile| {
            let desc = LogDesc {
                size: log.size,
                offset: log.offset,
            };
            (desc, log.file)
        };
        Record {
            acked: self.acked,
            protocol: self.protocol.map(|p| p.bits()),
            status: self.status,
            mtu: self.mtu,
            config: self.config.0,
            regions: self.regions.iter().map(region).collect(),
            log: self.log_file.as_ref().map(log),
            inflight: self.inflight.as_ref().map(|area| (area.desc, area.file)),
            channel: self.channel.as_ref().map(|(_, number)| *number),
            vrings: {
                let of = |vring| VringRecord::of(vring, self.is_translated());
                self.queues.iter().map(of).collect()
            },
        }
    }
}
