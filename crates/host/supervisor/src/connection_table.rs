//! The file of the table of connections: see [`ipc::connections`]. The supervisor makes it and
//! keeps it, and has no knowledge of its contents.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipc::connections::MAX_TABLE_BYTES;
use sys::memory::{self, NoMemory, Which};

/// Reason why there is no table.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    #[error("{0} bytes are more than any table has")]
    TooLong(u64),
    #[error(transparent)]
    Memory(#[from] NoMemory),
    #[error("there is one already, and it has not {0} bytes")]
    Length(u64),
    #[error("no descriptors of it: {0}")]
    Descriptor(io::Error),
}

/// The file.
#[derive(Debug)]
pub(super) struct ConnectionTable(OwnedFd);

impl ConnectionTable {
    /// Makes a new file of this length, and takes all its memory.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn make(bytes: u64) -> Result<Self, TableError> {
        if bytes > MAX_TABLE_BYTES {
            return Err(TableError::TooLong(bytes));
        }
        // A charge beyond a limit would have a process killed.
        memory::check(bytes, Which::Available)?;
        let made = sys::file::filled("lasthop-connections", bytes);
        let file = made.map_err(|error| NoMemory::Refused(bytes, error))?;
        tracing::info!(bytes, "memory for the table of connections");
        Ok(Self(file))
    }

    /// Returns the table with this file.
    pub(super) fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Returns whether the file has this length.
    pub(super) fn has(&self, bytes: u64) -> bool {
        sys::file::len(&self.0).is_ok_and(|len| len == bytes)
    }

    /// Returns a descriptor for the switch, and one for control that cannot be mapped to be
    /// written.
    ///
    /// # Errors
    /// Failed system call, as without `/proc`.
    pub(super) fn files(&self) -> Result<(OwnedFd, OwnedFd), TableError> {
        let files = || Ok((self.0.try_clone()?, sys::file::read_only(&self.0)?));
        files().map_err(TableError::Descriptor)
    }
}

/// The file, which can be written.
impl AsFd for ConnectionTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_length_and_is_made_only_if_there_is_memory() {
        let table = ConnectionTable::make(1 << 20).unwrap();
        assert!(table.has(1 << 20) && !table.has(1 << 21));
        let refused = |bytes| ConnectionTable::make(bytes).unwrap_err().to_string();
        let expected = format!("{} bytes are more than any table has", MAX_TABLE_BYTES + 1);
        assert_eq!(refused(MAX_TABLE_BYTES + 1), expected);
    }
}
