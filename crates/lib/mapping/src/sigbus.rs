//! Handling of SIGBUS after a shared memory file was truncated.
//!
//! A VMM keeps its memory file and may truncate it or punch holes into it at any time, or have no
//! huge page behind it; the next access by the switch raises SIGBUS. The handler puts private
//! zeroed pages (dummy pages) in place of the whole mapping and marks it as lost; the access then
//! continues. The user of that guest's memory checks [`Mapping::is_lost`](crate::Mapping::is_lost)
//! now and then and closes the port.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

mod sync;
pub(crate) mod table;

pub(crate) use table::Place;
use table::Slot;

/// Most mappings of shared files at a time: those of all ports ([`crate::Quota`]), those of one
/// more message, and the process's own.
const MAX_MAPPINGS: usize = crate::quota::MAPPINGS as usize + 4096;

static SLOTS: [Slot; MAX_MAPPINGS] = [const {
    Slot {
        version: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        block: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
        replaced: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

/// The former action for SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Number of accesses to a truncated file since the start.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Returns a number that changes when a mapping of this process is lost: a cheap check before a
/// thorough one.
#[must_use]
pub fn lost_mappings() -> usize {
    LOST.load(Ordering::Acquire)
}

/// A mapping's entry in the table. Dropping it removes the entry, which must come before the memory
/// is unmapped.
#[derive(Debug)]
pub(crate) struct Entry(usize);

impl Entry {
    /// Enters a mapping; `None` when the table is full.
    pub(crate) fn new(place: Place) -> Option<Self> {
        table::enter(&SLOTS, place).map(Self)
    }

    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        SLOTS[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        SLOTS[self.0].release();
    }
}

/// Installs the handler for the whole process. A SIGBUS elsewhere has its former action: as a rule,
/// it ends the process.
///
/// # Errors
/// The error of the system call.
pub fn survive_truncation() -> io::Result<()> {
    // SAFETY: the handler makes async-signal-safe calls only.
    let before = unsafe { sys::signal::handle(libc::SIGBUS, on_sigbus, 0) }?;
    // On a second call it is this very handler.
    BEFORE.get_or_init(|| before);
    Ok(())
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; errno is this thread's
    // own and is put back, because the interrupted code may be about to read it.
    unsafe {
        let errno = *libc::__errno_location();
        if !replace((*info).si_addr() as usize) {
            sys::signal::restore(libc::SIGBUS, BEFORE.get());
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts dummy pages in place of the mapping around `address`, if it is one of the table. When no
/// file can be created, or the system has no page for the one that is there, only the page or huge
/// page of `address` is replaced.
fn replace(address: usize) -> bool {
    let Some((slot, place)) = table::find(&SLOTS, address) else {
        return false;
    };
    slot.lost.store(true, Ordering::Release);
    LOST.fetch_add(1, Ordering::Release);
    // Two threads may both replace it: bytes that one of them wrote into dummy pages are lost.
    if !slot.replaced.load(Ordering::Acquire) && replace_whole(place) {
        slot.replaced.store(true, Ordering::Release);
        return true;
    }
    replace_around(place, address)
}

/// Replaces a mapping by a file of its own, of which a page takes memory when it is touched.
/// Private memory without a file would be charged for as a whole where the host does not overcommit
/// (`vm.overcommit_memory=2`), and refused; some kernels have then unmapped the range. No other
/// process has the file, which ends with the mapping.
fn replace_whole(place: Place) -> bool {
    // SAFETY: bare system calls. The range is exactly one mapping of the table, whose users hold
    // raw pointers and expect its bytes to change under them; the descriptor is created here and
    // closed once.
    unsafe {
        let file = libc::memfd_create(c"lasthop-dummy".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return false;
        }
        let fits = libc::ftruncate(file, place.len as libc::off_t) == 0;
        let done = fits && map_over(place.base, place.len, libc::MAP_SHARED, file);
        libc::close(file);
        done
    }
}

/// Replaces a page, or where the system splits no huge page the huge page, by memory without a
/// file.
fn replace_around(place: Place, address: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = rustix::param::page_size();
    [page, place.block].into_iter().any(|size| {
        let offset = (address - place.base) / size * size;
        // SAFETY: a multiple of a page within the mapping, which `find` found around `address`, as
        // above.
        unsafe { map_over(place.base + offset, size, flags, -1) }
    })
}

/// Maps zeroed memory at an address.
///
/// # Safety
/// The range lies within a mapping of the table whose users expect its bytes to change under them.
unsafe fn map_over(base: usize, len: usize, flags: libc::c_int, file: libc::c_int) -> bool {
    let flags = flags | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches for the range; mmap is a bare system call.
    let new = unsafe { libc::mmap(base as *mut libc::c_void, len, protection, flags, file, 0) };
    new != libc::MAP_FAILED
}
