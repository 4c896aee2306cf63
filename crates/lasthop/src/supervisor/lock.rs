//! Who runs in a directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use control::wanted::LOCK_FILE;
use rustix::fs::FlockOperation;

/// The lock that keeps a second Lasthop out of the directory.
pub(super) struct Lock {
    path: PathBuf,
    file: File,
}

/// For the supervisor that takes the place of this one: whoever has the file has the lock.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Lock {
    /// The lock that the supervisor before this one has taken.
    pub(super) fn of(dir: &Path, file: OwnedFd) -> Self {
        Self {
            path: dir.join(LOCK_FILE),
            file: file.into(),
        }
    }

    /// Takes it, for as long as the value lives.
    ///
    /// # Errors
    /// Somebody else has it, or the system's refusal.
    pub(super) fn take(dir: &Path) -> io::Result<Self> {
        let path = dir.join(LOCK_FILE);
        loop {
            // Who may connect to ports must not be able to take it.
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path)
                .map_err(|error| blame(dir, &error))?;
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                let text = format!("another Lasthop runs in {}", dir.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            // Who had it before may have removed the file after we opened it: then others make a new one.
            let ours = file.metadata()?.ino();
            if path.symlink_metadata().is_ok_and(|now| now.ino() == ours) {
                return Ok(Self { path, file });
            }
        }
    }
}

/// The directory is none, or no file can be made in it.
pub(super) fn blame(dir: &Path, error: &io::Error) -> io::Error {
    let text = format!(
        "the runtime directory {}: {error}: --runtime-dir, or the variable LASTHOP_RUNTIME_DIR, names another",
        dir.display()
    );
    io::Error::new(error.kind(), text)
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
