//! Shared memory as atomic words, where its length is a constant: memory files, and BPF maps of one
//! value, which have no length of their own.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `LEN` bytes that other processes may write at any time.
#[derive(Debug)]
pub struct SharedWords<const LEN: usize>(NonNull<u8>);

// SAFETY: it owns its addresses, and its memory is reached through atomics only.
unsafe impl<const LEN: usize> Send for SharedWords<LEN> {}
// SAFETY: as above.
unsafe impl<const LEN: usize> Sync for SharedWords<LEN> {}

impl<const LEN: usize> SharedWords<LEN> {
    /// Maps a memory file or a BPF map.
    ///
    /// # Errors
    /// The error of the system call; a file that is too short.
    pub fn map(fd: BorrowedFd<'_>, writable: bool) -> io::Result<Self> {
        // A BPF map has no length; one that is too short cannot be mapped. Files in memory have
        // seals.
        let is_file = rustix::fs::fcntl_get_seals(fd).is_ok();
        if is_file && rustix::fs::fstat(fd)?.st_size < LEN as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map_at(fd, 0, writable)
    }

    /// Maps what is at an offset, without a check of the length.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map_at(fd: BorrowedFd<'_>, at: u64, writable: bool) -> io::Result<Self> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no other memory of the
        // process.
        let base = unsafe { mmap(anywhere, LEN, protection, flags, fd, at) }?;
        NonNull::new(base.cast())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns the word at a multiple of eight.
    ///
    /// # Panics
    /// At another place, or past the end.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < LEN);
        // SAFETY: the word is inside the mapping. Its pages are aligned, and it lives as long as
        // `self`; it is never written through this reference where the mapping is read-only.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    /// Returns the half of a word at a multiple of four.
    ///
    /// # Panics
    /// At another place, or past the end.
    #[inline]
    pub fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < LEN);
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(at).cast()) }
    }
}

impl<const LEN: usize> Drop for SharedWords<LEN> {
    fn drop(&mut self) {
        // SAFETY: this is the range that was mapped, and there is no reference into it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}
