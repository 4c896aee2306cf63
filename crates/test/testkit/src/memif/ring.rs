//! One ring of a memif client, in memory that it shares.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use mapping::Mapping;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// The first field of a ring.
pub const COOKIE: u32 = 0x3E3_1F20;
/// In the flags of a ring: no interrupts.
pub const NO_INTERRUPT: u16 = 1;
/// In the flags of a descriptor: the frame continues in the next.
pub const NEXT: u16 = 1;

const FLAGS: u32 = 4;
const HEAD: u32 = 6;
const TAIL: u32 = 64;
const DESCRIPTORS: u32 = 128;

/// One region: a memory file.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Memory {
    pub(super) fn new(size: u64, sealed: bool) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("memif-region", flags)?;
        if sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK)?;
        }
        ftruncate(&file, size)?;
        let mapping = Mapping::shared(&file, size, 0).map_err(io::Error::other)?;
        Ok(Self {
            file,
            mapping: Arc::new(mapping),
        })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// [`NEXT`] or zero.
    pub flags: u16,
    /// Region of the buffer.
    pub region: u16,
    /// Bytes of the buffer, or of the frame's part in it.
    pub length: u32,
    /// Of the buffer in its region.
    pub offset: u32,
}

/// One ring, with the client's own view of it.
#[derive(Debug)]
pub struct Ring {
    regions: Vec<Arc<Mapping>>,
    offset: u32,
    size: u16,
    event: OwnedFd,
    /// Bytes of each buffer.
    buffer: u32,
    /// The next slot to publish.
    next: u16,
    /// The last `tail` up to which slots were taken.
    seen: u16,
}

impl Ring {
    pub(super) fn new(memory: &[Memory], offset: u32, log2_size: u8) -> io::Result<Self> {
        Ok(Self {
            regions: memory.iter().map(|m| Arc::clone(&m.mapping)).collect(),
            offset,
            size: 1 << log2_size,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            buffer: 0,
            next: 0,
            seen: 0,
        })
    }

    /// Writes header and descriptors; buffers lie one behind the other.
    pub(super) fn init(&self, region: u16, first: u32, buffer: u32) {
        self.word(0).store(COOKIE, Ordering::Relaxed);
        for at in 0..self.size {
            self.set_descriptor(
                at,
                Descriptor {
                    flags: 0,
                    region,
                    length: buffer,
                    offset: first + u32::from(at) * buffer,
                },
            );
        }
    }

    /// Place of the ring in region 0.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Its interrupt.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn ptr(&self, region: usize, at: u32, len: u32) -> *mut u8 {
        let mapping = &self.regions[region];
        let end = at as usize + len as usize;
        assert!(end <= mapping.len(), "{at}+{len} in region {region}");
        mapping.as_ptr().wrapping_add(at as usize)
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        let ptr = self.ptr(0, self.offset + at, 4);
        // SAFETY: `ptr` has checked the bounds in a mapping that lives as long as `self`; rings are
        // aligned to 16 bytes, and fields to their size.
        unsafe { AtomicU32::from_ptr(ptr.cast()) }
    }

    fn half(&self, at: u32) -> &AtomicU16 {
        let ptr = self.ptr(0, self.offset + at, 2);
        // SAFETY: as in `word`.
        unsafe { AtomicU16::from_ptr(ptr.cast()) }
    }

    /// Overwrites the cookie.
    pub fn set_cookie(&self, cookie: u32) {
        self.word(0).store(cookie, Ordering::Relaxed);
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.half(FLAGS).load(Ordering::Relaxed)
    }

    /// Overwrites the flags.
    pub fn set_flags(&self, flags: u16) {
        self.half(FLAGS).store(flags, Ordering::Relaxed);
    }

    /// The index that the client moves.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.half(HEAD).load(Ordering::Relaxed)
    }

    /// Overwrites it.
    pub fn set_head(&self, head: u16) {
        self.half(HEAD).store(head, Ordering::Release);
    }

    /// The index that the server moves.
    #[must_use]
    pub fn tail(&self) -> u16 {
        self.half(TAIL).load(Ordering::Acquire)
    }

    /// Overwrites it.
    pub fn set_tail(&self, tail: u16) {
        self.half(TAIL).store(tail, Ordering::Release);
    }

    /// The descriptor of a slot, whose number may be any.
    #[must_use]
    pub fn descriptor(&self, slot: u16) -> Descriptor {
        let at = self.descriptor_at(slot);
        Descriptor {
            flags: self.half(at).load(Ordering::Relaxed),
            region: self.half(at + 2).load(Ordering::Relaxed),
            length: self.word(at + 4).load(Ordering::Relaxed),
            offset: self.word(at + 8).load(Ordering::Relaxed),
        }
    }

    /// Overwrites the descriptor of a slot.
    pub fn set_descriptor(&self, slot: u16, descriptor: Descriptor) {
        let at = self.descriptor_at(slot);
        self.half(at).store(descriptor.flags, Ordering::Relaxed);
        self.half(at + 2)
            .store(descriptor.region, Ordering::Relaxed);
        self.word(at + 4)
            .store(descriptor.length, Ordering::Relaxed);
        self.word(at + 8)
            .store(descriptor.offset, Ordering::Relaxed);
    }

    fn descriptor_at(&self, slot: u16) -> u32 {
        DESCRIPTORS + 16 * u32::from(slot & (self.size - 1))
    }

    /// Sets the indices to zero.
    pub(super) fn reset(&mut self) {
        self.set_head(0);
        self.set_tail(0);
        (self.next, self.seen) = (0, 0);
        self.buffer = self.descriptor(0).length;
    }

    /// Writes a frame into the next buffers; [`Ring::publish`] gives them to the server. Returns
    /// whether there was room.
    ///
    /// # Panics
    /// When a buffer lies outside of its region.
    pub fn put(&mut self, frame: &[u8]) -> bool {
        let parts: Vec<_> = frame.chunks(self.buffer as usize).collect();
        let used = self.next.wrapping_sub(self.tail());
        if usize::from(self.size - used) < parts.len() {
            return false;
        }
        for (at, part) in parts.iter().enumerate() {
            let slot = self.next.wrapping_add(at as u16);
            let mut descriptor = self.descriptor(slot);
            let len = part.len() as u32;
            let to = self.ptr(descriptor.region.into(), descriptor.offset, len);
            // SAFETY: `ptr` has checked the bounds; the source is a private slice. The server only
            // reads the slots that were published.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            descriptor.length = len;
            descriptor.flags = if at + 1 < parts.len() { NEXT } else { 0 };
            self.set_descriptor(slot, descriptor);
        }
        self.next = self.next.wrapping_add(parts.len() as u16);
        true
    }

    /// Moves `head` behind what was put.
    pub fn publish(&self) {
        self.set_head(self.next);
    }

    /// Interrupts the server, unless it does not want that. There is no fence between the store of
    /// `head` and the load of the flags, as in other clients.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn interrupt(&self) -> io::Result<()> {
        if self.flags() & NO_INTERRUPT == 0 {
            rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Takes the next frame that the server has sent.
    ///
    /// # Panics
    /// When the server has written a length beyond the buffer.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let (mut frame, mut at) = (Vec::new(), self.seen);
        while at != self.tail() {
            let Descriptor {
                flags,
                region,
                length,
                offset,
            } = self.descriptor(at);
            assert!(length <= self.buffer, "{length} bytes in a buffer");
            let from = self.ptr(region.into(), offset, length);
            let old = frame.len();
            frame.resize(old + length as usize, 0);
            // SAFETY: `ptr` has checked the bounds, and the vector has room for as many bytes. The
            // server does not write to slots behind `tail`.
            unsafe {
                std::ptr::copy_nonoverlapping(from, frame.as_mut_ptr().add(old), length as usize)
            };
            at = at.wrapping_add(1);
            if flags & NEXT == 0 {
                self.seen = at;
                return Some(frame);
            }
        }
        None
    }

    /// Gives all free slots to the server, with whole buffers.
    pub(super) fn refill(&mut self) {
        while self.next.wrapping_sub(self.seen) < self.size {
            let mut descriptor = self.descriptor(self.next);
            descriptor.length = self.buffer;
            self.set_descriptor(self.next, descriptor);
            self.next = self.next.wrapping_add(1);
        }
        self.publish();
    }
}
