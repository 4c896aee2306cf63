//! Lock of the runtime directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ipc::sockets::LOCK_FILE;
use rustix::fs::FlockOperation;

/// Lock that keeps a second Lasthop out of the directory.
pub(super) struct Lock {
    path: PathBuf,
    file: File,
}

/// Open lock file, for the next supervisor: it holds the lock.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Lock {
    /// Returns the lock that the previous supervisor has taken.
    pub(super) fn of(dir: &Path, file: OwnedFd) -> Self {
        Self {
            path: dir.join(LOCK_FILE),
            file: file.into(),
        }
    }

    /// Takes the lock until the value is dropped.
    ///
    /// # Errors
    /// Another process has it, or a failed system call.
    pub(super) fn take(dir: &Path) -> io::Result<Self> {
        let path = dir.join(LOCK_FILE);
        loop {
            // Users that may connect to ports must not be able to take it.
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path)
                .map_err(|error| dir_error(dir, &error))?;
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                let text = format!("another Lasthop runs in {}", dir.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            // The previous owner may have removed the file after it was opened; then the next one
            // makes a new file.
            let ours = file.metadata()?.ino();
            if path.symlink_metadata().is_ok_and(|now| now.ino() == ours) {
                return Ok(Self { path, file });
            }
        }
    }
}

/// Returns the error for a runtime directory that cannot be used.
pub(super) fn dir_error(dir: &Path, error: &io::Error) -> io::Error {
    let text = format!(
        "the runtime directory {}: {error}: --runtime-dir or LASTHOP_RUNTIME_DIR selects another",
        dir.display()
    );
    io::Error::new(error.kind(), text)
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
