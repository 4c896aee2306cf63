//! Live migration of a guest's memory by a VMM: a copy of all of it, then pass after pass of the
//! pages in the logs, the back end's and that of the guest's own writes; the last one after all
//! writes.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher as _};

use crate::frontend::DirtyFile;
use crate::guest::{FakeGuest, GuestError};
use crate::guest_ram::GuestRam;

const PAGE: u64 = 4096;

/// Pages that were written and are not sent yet.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// By the back end, as its log says.
    pub device: BTreeSet<u64>,
    /// By the guest.
    pub guest: BTreeSet<u64>,
}

/// A migration under way.
#[derive(Debug)]
pub struct Precopy {
    source: GuestRam,
    log: DirtyFile,
    /// Address and content of every region at the other end.
    copy: Vec<(u64, Vec<u8>)>,
}

impl Precopy {
    /// Switches the log on and sends all of the guest's memory once.
    ///
    /// # Errors
    /// When the session fails.
    pub fn begin(guest: &mut FakeGuest) -> Result<Self, GuestError> {
        let log = guest.start_log()?;
        let source = guest.ram().clone();
        let _ = source.take_written();
        let regions = source.regions().iter().map(|region| region.spec());
        let copy = regions
            .map(|spec| {
                let mut bytes = vec![0; spec.size as usize];
                source.read(spec.gpa, &mut bytes);
                (spec.gpa, bytes)
            })
            .collect();
        Ok(Self { source, log, copy })
    }

    /// The back end's log.
    #[must_use]
    pub fn log(&self) -> &DirtyFile {
        &self.log
    }

    /// Returns the pages logged since the last call; the logs are cleared.
    #[must_use]
    pub fn pending(&self) -> Pending {
        Pending {
            device: self.log.take(),
            guest: self.source.take_written(),
        }
    }

    /// Sends these pages as they are now.
    ///
    /// # Panics
    /// When one of them is none of the guest's.
    pub fn send<'a>(&mut self, pages: impl IntoIterator<Item = &'a u64>) {
        for page in pages {
            let gpa = page * PAGE;
            let of = |(start, bytes): &&mut (u64, Vec<u8>)| {
                gpa >= *start && gpa - *start < bytes.len() as u64
            };
            let (start, bytes) = self
                .copy
                .iter_mut()
                .find(of)
                .unwrap_or_else(|| panic!("page {gpa:#x} is no guest memory"));
            let at = (gpa - *start) as usize;
            let end = bytes.len().min(at + PAGE as usize);
            self.source.read(gpa, &mut bytes[at..end]);
        }
    }

    /// A pass: everything that the logs name. Returns how many pages the back end's did.
    ///
    /// # Panics
    /// When a log names what is no guest memory.
    pub fn pass(&mut self) -> usize {
        let pending = self.pending();
        self.send(pending.device.union(&pending.guest));
        pending.device.len()
    }

    /// The pages that are not the same at both ends.
    #[must_use]
    pub fn differing(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (start, bytes) in &self.copy {
            let mut now = vec![0; bytes.len()];
            self.source.read(*start, &mut now);
            let both = now.chunks(PAGE as usize).zip(bytes.chunks(PAGE as usize));
            let differ = both.enumerate().filter(|(_, (now, then))| now != then);
            pages.extend(differ.map(|(n, _)| start / PAGE + n as u64));
        }
        pages
    }

    /// A checksum of the guest's memory here, and one of what the other end has.
    #[must_use]
    pub fn checksums(&self) -> [u64; 2] {
        let mut sums = [DefaultHasher::new(), DefaultHasher::new()];
        for (start, bytes) in &self.copy {
            let mut now = vec![0; bytes.len()];
            self.source.read(*start, &mut now);
            sums[0].write(&now);
            sums[1].write(bytes);
        }
        sums.map(|sum| sum.finish())
    }
}
