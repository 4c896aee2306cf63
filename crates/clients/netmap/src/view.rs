//! A file of shared memory as programs see it.
//!
//! A `struct netmap_ring` and its slots are adjacent in memory. The slots are shared, with the
//! switch or with the other end of a pipe; the ring's header belongs to one process. So a program
//! does not map the shared file as it is, but a view:
//!
//! ```text
//!   0          PRIVATE                               PRIVATE + size of the file
//!   |          |                                     |
//!   | header   |                                     |   private: a file of this process, with
//!   | slots ---+---> slots   lines         buffers   |   interfaces and headers of rings
//!   | header   |                                     |   slots:   pages of the shared file, once
//!   | slots ---+---> slots   lines         buffers   |            more, behind each header
//!   |          |                                     |   then the whole shared file
//! ```
//! All mappings of a region in a process are this view, those that were made before a ring was
//! registered, too: its pages are put into all of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use interpose::system::out_of_the_way;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of the private part. Sparse: only pages in use take memory.
pub(crate) const PRIVATE: u64 = 32 << 20;

/// Locks; a panic elsewhere has ended the process.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages of the shared file within the private part.
#[derive(Clone, Copy, Debug)]
struct Overlay {
    at: u64,
    file: u64,
    len: u64,
}

/// One mapping of the view.
#[derive(Clone, Copy, Debug)]
struct ViewMapping {
    base: usize,
    /// First byte of the view in it.
    offset: u64,
    len: u64,
    prot: ProtFlags,
}

#[derive(Debug, Default)]
struct Maps {
    overlays: Vec<Overlay>,
    mappings: Vec<ViewMapping>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct View {
    file: OwnedFd,
    private: OwnedFd,
    file_size: u64,
    /// Our own mapping of the whole view.
    home: NonNull<u8>,
    maps: Mutex<Maps>,
}

// SAFETY: `home` is an address of memory that lives as long as the view; what is read or written
// there is argued where it is.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps the view of a file of `file_size` bytes, which cannot shrink.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(file: OwnedFd, file_size: u64) -> io::Result<Self> {
        let private = out_of_the_way(sys::file::fixed("netmap-private", PRIVATE)?);
        let mut view = Self {
            file,
            private,
            file_size,
            home: NonNull::dangling(),
            maps: Mutex::default(),
        };
        let whole = ViewMapping {
            base: 0,
            offset: 0,
            len: view.size(),
            prot: ProtFlags::READ | ProtFlags::WRITE,
        };
        let base = view.map_at(whole, MapFlags::empty())?;
        view.home = NonNull::new(base as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(view)
    }

    /// Bytes of the view.
    pub(crate) fn size(&self) -> u64 {
        PRIVATE + self.file_size
    }

    /// The shared file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of `len` bytes of the view in our own mapping.
    ///
    /// # Panics
    /// When they are not all inside.
    pub(crate) fn pointer(&self, offset: u64, len: u64) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.size()),
            "outside the view"
        );
        // SAFETY: `home` is the start of a mapping of `size` bytes, and the range lies inside.
        unsafe { self.home.add(offset as usize) }
    }

    /// The address of `len` bytes of the shared file in our own mapping.
    pub(crate) fn shared(&self, offset: u64, len: u64) -> NonNull<u8> {
        self.pointer(PRIVATE.saturating_add(offset), len)
    }

    /// Maps bytes of the view for the program, as mmap(2) with these arguments would map a file.
    ///
    /// # Errors
    /// `EINVAL` for bytes outside; the system's refusal.
    pub(crate) fn map(
        &self,
        base: usize,
        len: u64,
        prot: ProtFlags,
        flags: MapFlags,
        offset: u64,
    ) -> io::Result<usize> {
        let len = len.next_multiple_of(crate::pages::PAGE);
        let end = offset.checked_add(len);
        if len == 0 || end.is_none_or(|end| end > self.size()) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let mapping = ViewMapping {
            base,
            offset,
            len,
            prot,
        };
        self.map_at(mapping, flags)
    }

    fn map_at(&self, mut mapping: ViewMapping, flags: MapFlags) -> io::Result<usize> {
        let kept = MapFlags::FIXED | MapFlags::FIXED_NOREPLACE;
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE | (flags & kept);
        let mut maps = lock(&self.maps);
        // SAFETY: a new mapping without access, at an address of the kernel's choice or, as the
        // program requested, in the place of what it has there.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                mapping.base as *mut _,
                mapping.len as usize,
                ProtFlags::empty(),
                reserve,
            )?
        };
        mapping.base = base as usize;
        let fill = || -> io::Result<()> {
            self.put(mapping, &self.private, 0, 0, PRIVATE)?;
            self.put(mapping, &self.file, PRIVATE, 0, self.file_size)?;
            for overlay in &maps.overlays {
                self.put(mapping, &self.file, overlay.at, overlay.file, overlay.len)?;
            }
            Ok(())
        };
        if let Err(error) = fill() {
            // SAFETY: the mapping was made above, and its address is nobody's yet.
            let _ = unsafe { rustix::mm::munmap(base, mapping.len as usize) };
            return Err(error);
        }
        maps.mappings.push(mapping);
        Ok(mapping.base)
    }

    /// Maps `len` bytes of a file from `from` on, which the view has at `at`, into a mapping of the
    /// view, as far as they lie in it.
    fn put(
        &self,
        into: ViewMapping,
        file: &OwnedFd,
        at: u64,
        from: u64,
        len: u64,
    ) -> io::Result<()> {
        let start = at.max(into.offset);
        let end = (at + len).min(into.offset + into.len);
        if start >= end {
            return Ok(());
        }
        let address = into.base + (start - into.offset) as usize;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range lies in a mapping that this view has made and that was not unmapped
        // (`forget`): nothing else is replaced.
        unsafe {
            rustix::mm::mmap(
                address as *mut _,
                (end - start) as usize,
                into.prot,
                flags,
                file,
                from + (start - at),
            )?;
        }
        Ok(())
    }

    /// Shows pages of the shared file within the private part, in all mappings.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn show(&self, at: u64, file: u64, len: u64) -> io::Result<()> {
        let mut maps = lock(&self.maps);
        for mapping in &maps.mappings {
            self.put(*mapping, &self.file, at, file, len)?;
        }
        maps.overlays.push(Overlay { at, file, len });
        Ok(())
    }

    /// Shows the private part again where [`Self::show`] has put other pages.
    pub(crate) fn hide(&self, at: u64) {
        let mut maps = lock(&self.maps);
        let Some(index) = maps.overlays.iter().position(|overlay| overlay.at == at) else {
            return;
        };
        let overlay = maps.overlays.remove(index);
        for mapping in &maps.mappings {
            // The system has no reason to refuse, and the next `show` at this place tries again.
            let _ = self.put(*mapping, &self.private, at, at, overlay.len);
        }
    }

    /// Forgets the mappings of a range that the program is about to unmap or to replace.
    pub(crate) fn forget(&self, base: usize, len: usize) {
        let end = base.saturating_add(len);
        let ours = self.home.as_ptr() as usize;
        let is_apart = |mapping: &ViewMapping| {
            mapping.base >= end || base >= mapping.base.saturating_add(mapping.len as usize)
        };
        lock(&self.maps)
            .mappings
            .retain(|mapping| mapping.base == ours || is_apart(mapping));
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Mappings of the program stay, as those of any file that is closed.
        // SAFETY: the mapping is ours, and all that leads there lives no longer than the view.
        let _ = unsafe { rustix::mm::munmap(self.home.as_ptr().cast(), self.size() as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 * 4096;

    fn view() -> View {
        View::new(sys::file::fixed("test", SIZE).unwrap(), SIZE).unwrap()
    }

    fn read(address: usize) -> u8 {
        // SAFETY: the tests read mappings that exist, and write in no other thread.
        unsafe { std::ptr::read_volatile(address as *const u8) }
    }

    fn write(address: usize, value: u8) {
        // SAFETY: as in `read`.
        unsafe { std::ptr::write_volatile(address as *mut u8, value) }
    }

    fn map(view: &View) -> usize {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        view.map(0, view.size(), both, MapFlags::SHARED, 0).unwrap()
    }

    #[test]
    fn slots_follow_a_private_header_in_all_mappings() {
        let view = view();
        let before = map(&view);
        view.show(4096, 8192, 4096).unwrap();
        let after = map(&view);
        let file = PRIVATE as usize;
        write(before + 4095, 1);
        write(before + 4096, 2);
        for base in [before, after, view.pointer(0, 1).as_ptr() as usize] {
            assert_eq!((read(base + 4095), read(base + 4096)), (1, 2));
            assert_eq!(read(base + file + 8192), 2, "the shared file has the slots");
            assert_eq!(read(base + file + 4095), 0, "and not the header");
        }
        view.hide(4096);
        assert_eq!((read(before + 4096), read(after + file + 8192)), (0, 2));
    }

    #[test]
    fn a_mapping_that_the_program_has_undone_is_left_alone() {
        let view = view();
        let base = map(&view);
        view.forget(base, view.size() as usize);
        // SAFETY: the mapping is the test's, which does not use it any more.
        unsafe { rustix::mm::munmap(base as *mut _, view.size() as usize).unwrap() };
        view.show(4096, 8192, 4096).unwrap();
        assert_eq!(lock(&view.maps).mappings.len(), 1);
    }

    #[test]
    fn parts_are_mapped_and_bytes_outside_are_not() {
        let view = view();
        write(view.shared(4096, 1).as_ptr() as usize, 7);
        let map = |len, offset| view.map(0, len, ProtFlags::READ, MapFlags::SHARED, offset);
        let part = map(4096, PRIVATE + 4096).unwrap();
        assert_eq!(read(part), 7);
        for (len, offset) in [(0, 0), (4096, view.size()), (1, u64::MAX - 1)] {
            assert!(map(len, offset).is_err(), "{len} at {offset}");
        }
    }
}
