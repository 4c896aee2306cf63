//! A memory file that keeps one document, and parts that it refers to, over the death of the
//! process that writes them.
//!
//! ```text
//! 0      which slot is valid: 0 none, 1 or 2
//! 4096   slot 1: length (u64 LE), bytes
//! 4096 + SLOT   slot 2: likewise
//! PARTS         both halves of the parts; the document has the used ranges
//! ```
//!
//! A writer fills the other slot and then flips the number with one 8-byte write, so a reader finds
//! the old document or the new one, whenever the writer was killed. Parts are written first, to a
//! range that the old document does not use.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

const SLOT: u64 = 64 << 20;
const FIRST: u64 = 4096;
const PARTS: u64 = FIRST + 2 * SLOT;
/// Most bytes of the parts of one document.
pub const PARTS_MAX: u64 = 64 << 20;

/// The file; the supervisor creates it and passes it to every control process.
#[derive(Debug)]
pub struct StateFile {
    file: File,
}

/// Range of bytes within the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part(u64, u64);

impl Part {
    /// Returns the number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is a length in a file")]
    pub fn len(&self) -> u64 {
        self.1
    }
}

/// Position for the next part. Parts of one half follow each other; the other half has nothing of
/// the last document, and the writer starts there anew when this half is mostly outdated.
#[derive(Clone, Debug, Default)]
pub struct Place {
    half: u64,
    used: u64,
}

impl Place {
    /// Returns the position behind these parts of a document.
    #[must_use]
    pub fn behind(parts: impl IntoIterator<Item = Part>) -> Self {
        let end = |Part(at, len): Part| (at / PARTS_MAX, at % PARTS_MAX + len);
        let last = parts.into_iter().map(end).max().unwrap_or_default();
        Self {
            half: last.0,
            used: last.1,
        }
    }

    /// Returns the start of the other half.
    #[must_use]
    pub fn other_half(&self) -> Self {
        Self {
            half: 1 - self.half.min(1),
            used: 0,
        }
    }

    /// Returns the number of bytes of this half that were written.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }
}

impl StateFile {
    /// Creates an empty file.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create() -> io::Result<Self> {
        let file = sys::file::fixed("lasthop-state", PARTS + 2 * PARTS_MAX)?;
        Ok(Self::from_fd(file))
    }

    /// Takes over a file of the supervisor.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }

    /// Returns the valid slot; 0: none.
    fn valid_slot(&self) -> io::Result<u64> {
        let mut number = [0; 8];
        self.file.read_exact_at(&mut number, 0)?;
        match u64::from_le_bytes(number) {
            slot @ 0..=2 => Ok(slot),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns the document written last, or `None` before the first.
    ///
    /// # Errors
    /// The file is not a state file.
    pub fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let slot = self.valid_slot()?;
        if slot == 0 {
            return Ok(None);
        }
        let start = slot_start(slot);
        let mut len = [0; 8];
        self.file.read_exact_at(&mut len, start)?;
        let len = u64::from_le_bytes(len);
        if len > SLOT - 8 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, start + 8)?;
        Ok(Some(bytes))
    }

    /// Replaces the document. Its parts were written before.
    ///
    /// # Errors
    /// It is too long (64 MiB), or the error of the system call; the old one stays.
    pub fn save(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > SLOT - 8 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let slot = if self.valid_slot()? == 1 { 2 } else { 1 };
        let start = slot_start(slot);
        self.file
            .write_all_at(&(bytes.len() as u64).to_le_bytes(), start)?;
        self.file.write_all_at(bytes, start + 8)?;
        self.file.write_all_at(&slot.to_le_bytes(), 0)
    }

    /// Reads a part.
    ///
    /// # Errors
    /// Such a part is not possible, or the error of the system call.
    pub fn load_part(&self, part: Part) -> io::Result<Vec<u8>> {
        let Part(at, len) = part;
        let end = (at % PARTS_MAX).checked_add(len);
        if at >= 2 * PARTS_MAX || end.is_none_or(|end| end > PARTS_MAX) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, PARTS + at)?;
        Ok(bytes)
    }

    /// Writes a part. It is lost unless a document that refers to it is saved.
    ///
    /// # Errors
    /// This half is full ([`io::ErrorKind::FileTooLarge`]), or the error of the system call.
    pub fn save_part(&self, place: &mut Place, bytes: &[u8]) -> io::Result<Part> {
        let (at, len) = (place.half * PARTS_MAX + place.used, bytes.len() as u64);
        if place.half > 1 || place.used + len > PARTS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(bytes, PARTS + at)?;
        place.used += len;
        Ok(Part(at, len))
    }
}

fn slot_start(slot: u64) -> u64 {
    FIRST + (slot - 1) * SLOT
}

impl AsFd for StateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
