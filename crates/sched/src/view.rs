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
    /// Maps the memory of a [`Table`](crate::Table).
    ///
    /// # Errors
    /// The error of the system call, or memory with other content.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let region = Region::map(fd, false)?;
        let field = |at| region.half(at).load(Ordering::Relaxed);
        let method = Method::of(field(METHOD_AT));
        match method.filter(|_| [field(0), field(4)] == [MAGIC, VERSION]) {
            Some(method) => Ok(Self { region, method }),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns the source of the states, and so how far they can be trusted.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
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

    /// Returns whether a core is idle. A core without a known state is not idle. A caller that
    /// passes its own core, whatever its priority, gets `false`.
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
