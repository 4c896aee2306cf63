//! One of the four rings between an `AF_XDP` socket and the system (Linux,
//! `Documentation/networking/af_xdp.rst`): entries, and two free-running indices. The producer
//! publishes entries by one, the consumer returns the slots by the other.
//!
//! The other side is the kernel alone; no other process maps a ring. So its values are trusted, as
//! the results of its calls are, but an index never reaches beyond the ring, and entries are read
//! as owned copies.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use interfaces::umem::SHAPE;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// Entry of a ring: plain numbers, of which any bytes are a value.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// The memory of a ring.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    len: usize,
    mapped: bool,
}

// SAFETY: it owns its range of addresses; all access to it goes through the one `Ring` that has it.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: the range was mapped by `Ring::map`, is unmapped nowhere else, and the ring
            // that used it is gone.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// A ring; see [`Producer`] and [`Consumer`].
#[derive(Debug)]
struct Ring<T> {
    memory: Memory,
    layout: XdpRingOffset,
    /// Entries less one; their number is a power of 2.
    mask: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Maps the ring of a socket at one of the `*_PGOFF_*` of `linux/if_xdp.h`.
    fn map(socket: BorrowedFd<'_>, at: u64, layout: XdpRingOffset) -> io::Result<Self> {
        let entries = SHAPE.entries;
        let len = layout.desc as usize + usize::from(entries) * size_of::<T>();
        // SAFETY: a new mapping at an address of the system's choice aliases nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                at,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Memory {
            base,
            len,
            mapped: true,
        };
        Ok(Self::new(memory, layout, entries))
    }

    fn new(memory: Memory, layout: XdpRingOffset, entries: u16) -> Self {
        assert!(entries.is_power_of_two());
        let mask = u32::from(entries) - 1;
        let end = layout.desc + u64::from(entries) * size_of::<T>() as u64;
        let indices = layout.producer.max(layout.consumer);
        let numbers = indices.max(layout.flags.unwrap_or_default()) + 4;
        assert!(end.max(numbers) <= memory.len as u64 && layout.desc.is_multiple_of(8));
        Self {
            memory,
            layout,
            mask,
            entry: std::marker::PhantomData,
        }
    }

    fn number(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `new` checked that it is inside; the system aligns its numbers, and both sides
        // use them as atomics.
        unsafe { AtomicU32::from_ptr(self.memory.base.as_ptr().add(at as usize).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.number(self.layout.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.number(self.layout.consumer)
    }

    fn slot(&self, index: u32) -> *mut T {
        let slot = (index & self.mask) as usize;
        let first = self.layout.desc as usize;
        // Inside, as `new` checked.
        let first = self.memory.base.as_ptr().wrapping_add(first).cast::<T>();
        first.wrapping_add(slot)
    }
}

/// A ring that we write.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    /// Index behind the last written entry.
    next: u32,
}

impl<T: Entry> Producer<T> {
    /// # Errors
    /// The system's refusal.
    pub(crate) fn map(socket: BorrowedFd<'_>, at: u64, layout: XdpRingOffset) -> io::Result<Self> {
        let ring = Ring::map(socket, at, layout)?;
        let next = ring.producer().load(Ordering::Relaxed);
        Ok(Self { ring, next })
    }

    /// Entries that the system has not taken, unpublished ones included.
    pub(crate) fn pending(&self) -> u32 {
        let taken = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(taken)
    }

    /// Writes the next entry; the system sees it after [`Producer::publish`].
    ///
    /// # Panics
    /// When there is no room: callers have no more entries than the ring.
    pub(crate) fn push(&mut self, entry: T) {
        // Looking at the other's index is cheap only where it seldom changes, but a slot that is
        // read must not be written.
        debug_assert!(self.pending() <= self.ring.mask);
        // SAFETY: the slot is inside; it is not the system's, because there are no more entries in
        // flight than slots (`Counts` in the parent module), and it has no other reader than the
        // system and us.
        unsafe { self.ring.slot(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    pub(crate) fn publish(&self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// The system wants a call for what was published (`XDP_RING_NEED_WAKEUP`). A system without
    /// that flag, before Linux 5.4, always does.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.ring.layout.flags.is_none_or(|at| {
            let flags = self.ring.number(at).load(Ordering::Relaxed);
            flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
        })
    }
}

/// A ring that we read.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// Producer index, as read last.
    end: u32,
}

impl<T: Entry> Consumer<T> {
    /// # Errors
    /// The system's refusal.
    pub(crate) fn map(socket: BorrowedFd<'_>, at: u64, layout: XdpRingOffset) -> io::Result<Self> {
        let ring = Ring::map(socket, at, layout)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Self {
            ring,
            next,
            end: next,
        })
    }

    /// The next entry. Its slot goes back with [`Consumer::release`].
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.next == self.end {
            self.end = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.end {
                return None;
            }
        }
        // SAFETY: the slot is inside, was published by the system, and is ours until it is
        // released.
        let entry = unsafe { self.ring.slot(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    pub(crate) fn release(&self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod tests;
