//! Restoring a session from its record, in the successor of a process that died.
//!
//! The record is checked as the messages that it stands for, because the process that wrote it may
//! have died of corrupted state. An error ends this one session; its front end may connect again.

use std::collections::BTreeMap;

use mapping::Amount;
use memory::MAX_REGIONS;
use sys::foreign::ForeignFd;
use wire::virtio::vhost_user::ProtocolFeatures;

use super::backend::{Backend, Offer};
use super::channel::BackendChannel;
use super::config::NetConfig;
use super::fault::Refusal;
use super::inflight;
use super::queues::{MAX_QUEUE_SIZE, Vring};
use super::record::{Record, StoredDescriptor, VringRecord};
use super::saved::{StoredFiles, next_number};
use super::session::Session;

impl StoredFiles {
    fn event(&mut self, number: Option<u64>) -> Result<Option<StoredDescriptor>, Refusal> {
        let Some(number) = number else {
            return Ok(None);
        };
        let fd = self.take(number)?;
        sys::event::check_again(&fd)?;
        Ok(Some(StoredDescriptor { number, fd }))
    }
}

impl Session {
    /// Restores the session of `record`, with its stored descriptors. Queues that were running
    /// continue in `backend` at the positions in their rings. The next message may be one that was
    /// served before the record was made; call [`Session::settled`] after it, or when there is
    /// none.
    ///
    /// # Errors
    /// A record of another version, or one that no front end could have caused under this offer.
    /// Started queues have been stopped.
    pub fn restore(
        offer: Offer,
        record: &[u8],
        files: BTreeMap<u64, ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<Self, String> {
        let mut session = Self::restore_stopped(offer, record, files, backend)?;
        session.start_restored(backend);
        Ok(session)
    }

    /// Restores everything of a session but its queues, which the former process may still serve:
    /// no ring is read or written, nor a message. [`Session::start_restored`] does the rest.
    ///
    /// # Errors
    /// As [`Session::restore`].
    pub fn restore_stopped(
        offer: Offer,
        record: &[u8],
        files: BTreeMap<u64, ForeignFd>,
        backend: &mut dyn Backend,
    ) -> Result<Self, String> {
        let record = Record::from_bytes(record)?;
        let mut session = Session::new(offer);
        match session.follow(record, StoredFiles(files), backend) {
            Ok(()) => Ok(session),
            Err(Refusal(reason)) => {
                session.close(backend);
                Err(reason)
            }
        }
    }

    /// Continues the queues of a session that [`Session::restore_stopped`] has returned, at the
    /// positions in their rings.
    pub fn start_restored(&mut self, backend: &mut dyn Backend) {
        // A table is ahead of the record: a queue that lacked translations only may have been
        // started before, and not recorded.
        self.again = self.is_translated();
        self.start_all(backend);
        self.again = true;
    }

    fn follow(
        &mut self,
        record: Record,
        mut files: StoredFiles,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        self.next_number = next_number(&record.numbers())?;
        self.restore_features(&record)?;
        self.restore_iotlb(backend)?;
        if let Some(mtu) = record.mtu {
            backend.set_mtu(mtu)?;
        }
        (self.mtu, self.config) = (record.mtu, NetConfig(record.config));
        self.restore_files(&record, &mut files)?;
        if record.vrings.len() != self.queues.len() {
            let (had, has) = (record.vrings.len(), self.queues.len());
            return Err(format!("{had} queues, and the port has {has}").into());
        }
        self.restore_regions(&record, &mut files, backend)?;
        for (at, vring) in record.vrings.into_iter().enumerate() {
            self.queues[at] = restore_vring(vring, &mut files)?;
        }
        Ok(())
    }

    fn restore_features(&mut self, record: &Record) -> Result<(), Refusal> {
        let foreign = record.acked.unwrap_or(0) & !self.offered();
        let protocol = record.protocol.map(ProtocolFeatures::from_bits_retain);
        let strange = protocol.is_some_and(|p| !self.offer.protocol.contains(p));
        if foreign != 0 || strange {
            return Err("features that are not offered".into());
        }
        (self.acked, self.protocol) = (record.acked, protocol);
        self.status = record.status;
        Ok(())
    }

    fn restore_files(&mut self, record: &Record, files: &mut StoredFiles) -> Result<(), Refusal> {
        if let Some((desc, file)) = &record.log {
            let fd = files.take(*file)?;
            self.map_log(&fd, desc, *file)?;
        }
        if let Some((desc, file)) = record.inflight {
            let fd = files.take(file)?;
            inflight::map(self, desc, &fd, file)?;
        }
        if let Some(number) = record.channel {
            let fd = files.take(number)?;
            self.channel = Some((BackendChannel::new(fd)?, number));
        }
        Ok(())
    }

    fn restore_regions(
        &mut self,
        record: &Record,
        files: &mut StoredFiles,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        if record.regions.is_empty() {
            return Ok(());
        }
        if record.regions.len() > MAX_REGIONS {
            return Err(format!("more than {MAX_REGIONS} memory regions").into());
        }
        let mut desired = Vec::with_capacity(record.regions.len());
        for (desc, file) in &record.regions {
            desired.push((files.take(*file)?, *desc, *file));
        }
        let all = self.map_regions(&desired, Amount::default())?;
        self.install_regions(all, backend)
    }
}

/// Restores a queue that does not run yet.
fn restore_vring(record: VringRecord, files: &mut StoredFiles) -> Result<Vring, Refusal> {
    let sane = |size: u16| (1..=MAX_QUEUE_SIZE).contains(&size);
    if record.size.is_some_and(|size| !sane(size)) {
        return Err("a queue of impossible size".into());
    }
    Ok(Vring {
        size: record.size,
        addr: record.addr,
        base: record.base,
        last_position: record.last_position,
        kick: files.event(record.kick)?,
        call: files.event(record.call)?,
        err: files.event(record.err)?,
        enabled: record.enabled,
        running: None,
        area: record.area,
        resume: record.running,
        served: record.running || record.last_position.is_some(),
        problem: record.problem,
        untranslated: false,
    })
}
