//! A memory file that keeps one document over the death of the process that writes it.
//!
//! ```text
//! 0      which slot is valid: 0 none, 1 or 2
//! 4096   slot 1: length (u64 LE), bytes
//! 4096 + SLOT   slot 2: likewise
//! ```
//!
//! A writer fills the other slot and then flips the number with one 8-byte write, so a reader finds the
//! old document or the new one, whenever the writer was killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;

const SLOT: u64 = 64 << 20;
const FIRST: u64 = 4096;

/// The file; the supervisor makes it and hands it to every control process.
#[derive(Debug)]
pub struct StateFile {
    fd: OwnedFd,
}

impl StateFile {
    /// An empty file.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn create() -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("lasthop-state", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, FIRST + 2 * SLOT)?;
        Ok(Self { fd })
    }

    /// A file that was handed over.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    fn valid_slot(&self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.read_at::<8>(0)?))
    }

    fn read_at<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        if rustix::io::pread(&self.fd, &mut bytes, at)? != N {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    /// The document written last, or `None` before the first.
    ///
    /// # Errors
    /// The file is not a state file.
    pub fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let slot = self.valid_slot()?;
        if slot == 0 {
            return Ok(None);
        }
        let start = slot_start(slot)?;
        let len = u64::from_le_bytes(self.read_at::<8>(start)?);
        if len > SLOT - 8 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.fd, &mut bytes[done..], start + 8 + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(Some(bytes))
    }

    /// Replaces the document.
    ///
    /// # Errors
    /// It is too long (16 MiB), or the system's refusal; the old one stays.
    pub fn save(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > SLOT - 8 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slot = if self.valid_slot()? == 1 { 2 } else { 1 };
        let start = slot_start(slot)?;
        self.write_at(start, &(bytes.len() as u64).to_le_bytes())?;
        self.write_at(start + 8, bytes)?;
        self.write_at(0, &slot.to_le_bytes())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += rustix::io::pwrite(&self.fd, &bytes[done..], at + done as u64)?;
        }
        Ok(())
    }
}

fn slot_start(slot: u64) -> io::Result<u64> {
    match slot {
        1 => Ok(FIRST),
        2 => Ok(FIRST + SLOT),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl AsFd for StateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
