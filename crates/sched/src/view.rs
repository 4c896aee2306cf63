//! Reading states: one load each, and no system call.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::layout::{
    CORES, CORES_AT, IDLE, LINE, MAGIC, METHOD_AT, Method, SLOTS, Slot, VCPUS_AT, VERSION, Vcpu,
};
use crate::region::Region;

/// The memory of states, mapped read-only.
#[derive(Debug)]
pub struct View {
    region: Region,
    method: Method,
}

impl View {
    /// Maps the memory that a [`Table`](crate::Table) gave away.
    ///
    /// # Errors
    /// The system's refusal, or memory that holds something else.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let region = Region::map(fd, false)?;
        let field = |at| region.half(at).load(Ordering::Relaxed);
        let method = Method::of(field(METHOD_AT));
        match method.filter(|_| [field(0), field(4)] == [MAGIC, VERSION]) {
            Some(method) => Ok(Self { region, method }),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// By whom states are kept, and so how far they can be trusted.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// The state of a thread; `None` where nothing is known of it yet, or any more.
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

    /// Whether nothing wants to run on a core. A core of which nothing is known does not idle. Who asks about the core that it
    /// runs on itself, whatever its own priority, gets `false`.
    #[inline]
    #[must_use]
    pub fn core_idles(&self, core: usize) -> bool {
        core < CORES
            && self
                .region
                .word(CORES_AT + core * LINE)
                .load(Ordering::Relaxed)
                == IDLE
    }
}
