//! Reading states: one load each, and no system call.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::Region;
use crate::layout::{
    COUNTS_HALTS_AT, HALTS_AT, KERNEL, LINE, MAGIC, POLLED_AT, POLLED_OFTEN, SLOTS, Slot, VCPUS_AT,
    VERSION, Vcpu, WRITER_AT,
};

/// The memory of states, mapped read-only.
#[derive(Debug)]
pub struct View {
    region: Region,
}

impl View {
    /// Maps the memory of a [`Table`](crate::Table).
    ///
    /// # Errors
    /// The error of the system call, or memory with other content.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let region = Region::map(fd, false)?;
        let field = |at| region.half(at).load(Ordering::Relaxed);
        if [field(0), field(4), field(WRITER_AT)] == [MAGIC, VERSION, KERNEL] {
            Ok(Self { region })
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    /// Returns the state of a thread; `None` where it is unknown.
    #[inline]
    #[must_use]
    pub fn state(&self, slot: Slot) -> Option<Vcpu> {
        let slot = usize::from(slot.0);
        if slot >= SLOTS {
            return None;
        }
        let word = self.region.word(VCPUS_AT + slot * LINE);
        Vcpu::from_word(word.load(Ordering::Relaxed))
    }

    /// Returns whether halts of vCPUs of KVM are counted.
    #[inline]
    #[must_use]
    pub fn counts_halts(&self) -> bool {
        self.region.half(COUNTS_HALTS_AT).load(Ordering::Relaxed) != 0
    }

    /// Returns the number of halts of a vCPU that have ended, since any time; 0 for a thread that
    /// is no vCPU of KVM, and for all where they are not counted ([`View::counts_halts`]).
    #[inline]
    #[must_use]
    pub fn halts(&self, slot: Slot) -> u64 {
        let slot = usize::from(slot.0);
        if slot >= SLOTS {
            return 0;
        }
        let word = self.region.word(VCPUS_AT + slot * LINE + HALTS_AT);
        word.load(Ordering::Relaxed)
    }

    /// Returns whether KVM polls in the place of a vCPU that has halted, before it lets it sleep,
    /// as it did in several of the latest halts.
    #[inline]
    #[must_use]
    pub fn polls_for(&self, slot: Slot) -> bool {
        let slot = usize::from(slot.0);
        slot < SLOTS
            && self
                .region
                .word(VCPUS_AT + slot * LINE + POLLED_AT)
                .load(Ordering::Relaxed)
                > POLLED_OFTEN
    }
}
