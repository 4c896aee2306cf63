//! Hearing that a thread goes to sleep: who waits for something of a guest's has a bell rung when that guest blocks.
//!
//! The wish is a word beside the thread's state, which the kernel's program looks at when the thread blocks. Then it takes the
//! wish off and puts a record into a ring of the kernel's, whose descriptor becomes readable. What the records say does not
//! matter: who is woken looks at all states that it waits for.
//!
//! ```text
//! kernel: store "blocked", then look at the wish        here: store the wish, then look at the state
//! ```
//! Between its two each side has a full barrier, so one of them at least sees what the other has stored. (On other
//! processors than x86-64 the kernel's side has none: there a bell may be missed now and then, and the clock is what wakes.)

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::layout::{BELL_AT, LINE, SLOTS, Slot, VCPUS_AT};
use crate::region::Region;

/// Wishes, and the ring.
#[derive(Debug)]
pub struct Bells {
    region: Region,
    ring: OwnedFd,
    /// How far records were taken.
    taken: Page,
    /// How far there are records.
    there: Page,
}

impl Bells {
    /// Maps the memory of states, as the kernel's programs keep it, and their ring.
    ///
    /// # Errors
    /// The system's refusal; other descriptors.
    pub fn map(states: BorrowedFd<'_>, ring: OwnedFd) -> io::Result<Self> {
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self {
            region: Region::map(states, true)?,
            taken: Page::map(ring.as_fd(), 0, writable)?,
            there: Page::map(ring.as_fd(), page_size() as u64, ProtFlags::READ)?,
            ring,
        })
    }

    /// Has the bell rung when the thread of one of these slots blocks for the next time. One whose state is not known to be that
    /// of a blocked thread behind this call will be heard.
    #[inline]
    pub fn listen(&self, slots: &[Slot]) {
        for slot in slots.iter().map(|slot| usize::from(slot.0)) {
            if slot < SLOTS {
                let wish = self.region.word(VCPUS_AT + slot * LINE + BELL_AT);
                wish.store(1, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Takes all records out of the ring, so that it has room.
    pub fn heard(&self) {
        let there = self.there.first().load(Ordering::Acquire);
        self.taken.first().store(there, Ordering::Release);
    }
}

impl AsFd for Bells {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// A page of the ring: its first word is a position.
#[derive(Debug)]
struct Page(NonNull<u8>);

// SAFETY: the page owns its addresses, and what is there is reached through atomics only.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(ring: BorrowedFd<'_>, at: u64, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                page_size(),
                protection,
                MapFlags::SHARED,
                ring,
                at,
            )
        }?;
        NonNull::new(base.cast())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn first(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped for as long as we live and its start is aligned; it is never written through this
        // reference where the mapping is read-only.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().cast()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nobody has a reference into it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), page_size()) };
    }
}
