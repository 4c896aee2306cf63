//! Block events: a waiting thread is woken when the vCPU of a guest that it waits for blocks.
//!
//! A subscription is a word beside the vCPU's state, which the BPF program reads when the thread
//! blocks. Then it clears the word and puts a record into a BPF ring buffer, whose descriptor
//! becomes readable. The records have no content: the woken thread reads all states that it waits
//! for.
//!
//! ```text
//! kernel: store "blocked", then load the subscription    here: store it, then load the state
//! ```
//! Both sides have a full barrier between their two steps, so at least one of them sees the store
//! of the other. (On other CPUs than x86-64 the kernel's side has none: there an event may be
//! missed now and then, and the thread is woken by its timeout.)

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use mapping::SharedWords;
use rustix::param::page_size;

use crate::Region;
use crate::layout::{LINE, SLOTS, SUBSCRIPTION_AT, Slot, VCPUS_AT};

/// The page of the ring buffer that begins with a position.
type Page = SharedWords<8>;

/// Subscriptions, and the ring buffer.
#[derive(Debug)]
pub struct BlockEvents {
    region: Region,
    ring: OwnedFd,
    /// Position up to which records were consumed.
    taken: Page,
    /// Position up to which there are records.
    there: Page,
}

impl BlockEvents {
    /// Maps the memory of states, as the BPF programs keep it, and their ring buffer.
    ///
    /// # Errors
    /// The error of the system call; other descriptors.
    pub fn map(states: BorrowedFd<'_>, ring: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            region: Region::map(states, true)?,
            taken: Page::map_at(ring.as_fd(), 0, true)?,
            there: Page::map_at(ring.as_fd(), page_size() as u64, false)?,
            ring,
        })
    }

    /// Subscribes to the next time that the thread of one of these slots blocks. A thread whose
    /// state is not seen as blocked after this call will cause an event.
    #[inline]
    pub fn subscribe(&self, slots: &[Slot]) {
        for slot in slots.iter().map(|slot| usize::from(slot.0)) {
            if slot < SLOTS {
                let subscription = self.region.word(VCPUS_AT + slot * LINE + SUBSCRIPTION_AT);
                subscription.store(1, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Consumes all records of the ring buffer, so that it has room.
    pub fn drain(&self) {
        let there = self.there.word(0).load(Ordering::Acquire);
        self.taken.word(0).store(there, Ordering::Release);
    }
}

impl AsFd for BlockEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
