//! A file that is read by system calls, past the functions of the C library: a child after vfork(2)
//! shares its parent's table of descriptors that are a library's, and has other descriptors.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// An open file.
pub(super) struct File(ManuallyDrop<OwnedFd>);

impl File {
    /// Opens a file to read.
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self(ManuallyDrop::new(opened)))
    }

    /// Its permissions.
    pub(super) fn mode(&self) -> u32 {
        rustix::fs::fstat(self.0.as_fd()).map_or(0, |file| file.st_mode)
    }

    /// Up to `len` bytes from an offset on: fewer are at its end, and where it cannot be read.
    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            let at = offset.saturating_add(filled as u64);
            match rustix::io::pread(self.0.as_fd(), &mut bytes[filled..], at) {
                Ok(0) | Err(_) => break,
                Ok(more) => filled += more,
            }
        }
        bytes.truncate(filled);
        bytes
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: nothing else has the descriptor, and it is not used again.
        unsafe { rustix::io::close(self.0.as_raw_fd()) };
    }
}
