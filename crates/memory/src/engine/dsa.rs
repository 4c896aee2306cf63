//! Intel's Data Streaming Accelerator, by the character device of one of its shared work queues.
//!
//! A copy is a descriptor of 64 bytes (Intel DSA Architecture Specification, "Descriptor Structure" and "Memory
//! Move"; `linux/idxd.h`, `struct dsa_hw_desc`), handed over in one instruction through a page that the device maps
//! (`ENQCMD`), or by `write` where the page is not given out. Addresses are the process's own: the kernel lends the
//! device our page tables (shared virtual addressing). The device says in a record of 32 bytes how it ended; where it
//! met a page that is not there it says how far it came, and the processor copies the rest.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Device, Outcome, Slot};

#[cfg(test)]
mod tests;

/// `DSA_OPCODE_MEMMOVE`.
const MEMMOVE: u32 = 0x03;
/// `IDXD_OP_FLAG_CRAV`: the address of the completion record is valid.
const RECORD_IS_VALID: u32 = 0x0004;
/// `IDXD_OP_FLAG_RCR`: write it in any case.
const RECORD_IS_WANTED: u32 = 0x0008;
/// `IDXD_OP_FLAG_CC`: what is written goes to the cache, where the receiver looks next.
const TO_CACHE: u32 = 0x0100;

/// `DSA_COMP_STATUS_MASK`: without the bit that tells a write's fault from a read's.
const STATUS: u64 = 0x7f;
/// `DSA_COMP_SUCCESS`.
const SUCCESS: u64 = 0x01;
/// `DSA_COMP_SUCCESS_PRED`.
const SUCCESS_WITH_FALSE_PREDICATE: u64 = 0x02;
/// `DSA_COMP_PAGE_FAULT_NOBOF`: it came to a page that is not there.
const PAGE_FAULT: u64 = 0x03;
/// In the record's second byte, of a copy that ended early: it went from the last byte to the first, because the
/// ranges overlap.
const BACKWARDS: u64 = 1 << 8;

/// Bytes of the page that descriptors are written to.
const PORTAL: usize = 4096;

/// Where the device says how a copy ended (`struct dsa_completion_record`); aligned as it wants it.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct Record([AtomicU64; 4]);

impl Record {
    /// Before a copy: nothing is said.
    pub(super) fn clear(&self) {
        self.0[0].store(0, Ordering::Relaxed);
    }

    /// What became of a copy of `len` bytes. One fetch: status, direction and length are in its first eight bytes.
    fn outcome(&self, len: u32) -> Outcome {
        let word = u64::from_le(self.0[0].load(Ordering::Acquire));
        let completed = ((word >> 32) as u32).min(len);
        match word & STATUS {
            0 => Outcome::Busy,
            SUCCESS | SUCCESS_WITH_FALSE_PREDICATE => Outcome::Left { from: len, len: 0 },
            PAGE_FAULT => Outcome::Left {
                from: if word & BACKWARDS == 0 { completed } else { 0 },
                len: len - completed,
            },
            // Whatever it is, the device is done with it.
            _ => Outcome::Left { from: 0, len },
        }
    }
}

/// `struct dsa_hw_desc`.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor([u64; 8]);

impl Descriptor {
    /// Of the copy that a slot describes.
    fn of(slot: &Slot) -> Self {
        let (from, to, len) = slot.span();
        let flags = RECORD_IS_VALID | RECORD_IS_WANTED | TO_CACHE;
        let mut words = [0; 8];
        // The first half word is the address space and the privilege, which `ENQCMD` or the kernel fill in.
        words[0] = u64::from(MEMMOVE << 24 | flags) << 32;
        words[1] = (&raw const slot.record).expose_provenance() as u64;
        words[2] = from as u64;
        words[3] = to as u64;
        words[4] = u64::from(len);
        Self(words.map(u64::to_le))
    }

    /// As it lies in memory.
    #[must_use]
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (part, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// What takes descriptors.
pub trait Portal: Debug + Send + Sync {
    /// Hands one over; `false`: the queue is full, or gone.
    ///
    /// # Safety
    /// The memory that it names, and its record, stay until the record says that the device is done.
    unsafe fn submit(&self, descriptor: &Descriptor) -> bool;
}

/// A work queue as copy engine.
#[derive(Debug)]
pub struct Dsa<P>(P);

impl<P: Portal> Dsa<P> {
    /// Of the queue behind this portal.
    pub fn behind(portal: P) -> Self {
        Self(portal)
    }
}

impl<P: Portal> Device for Dsa<P> {
    fn submit(&self, slot: &Slot) -> bool {
        // SAFETY: who filled the slot keeps the memory until the slot is done, which it is not before its record says
        // so; the slots live until all of them are done (`Engines`).
        unsafe { self.0.submit(&Descriptor::of(slot)) }
    }

    fn look(&self, slot: &Slot) -> Outcome {
        slot.record.outcome(slot.span().2)
    }

    fn can_be_helped(&self) -> bool {
        false
    }
}

/// The work queue behind an open `/dev/dsa/wqX.Y`.
///
/// # Errors
/// The descriptor is no such device: neither can its page be mapped, nor does it take descriptors by `write`.
pub fn open(device: OwnedFd) -> io::Result<Box<dyn Device>> {
    if !is_character_device(&device)? {
        return Err(io::Error::other("not a character device"));
    }
    if has_enqcmd()
        && let Ok(page) = Page::map(&device)
    {
        return Ok(Box::new(Dsa::behind(page)));
    }
    // Nothing is submitted by writing nothing; a kernel that knows no `write` for it says so.
    match rustix::io::write(&device, &[]) {
        Ok(_) => Ok(Box::new(Dsa::behind(Written(device)))),
        Err(error) => Err(error.into()),
    }
}

fn is_character_device(device: &OwnedFd) -> io::Result<bool> {
    let mode = rustix::fs::fstat(device)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::CharacterDevice)
}

/// Whether the processor hands descriptors to shared queues (CPUID 7.0, ECX bit 29).
fn has_enqcmd() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << 29 != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// The page of a shared work queue. It outlives the descriptor that it was mapped by.
#[derive(Debug)]
struct Page(usize);

impl Page {
    fn map(device: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let page = unsafe {
            mmap(
                std::ptr::null_mut(),
                PORTAL,
                ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                device,
                0,
            )
        }?;
        Ok(Self(page.expose_provenance()))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and reached by nobody else.
        let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.0), PORTAL) };
    }
}

impl Portal for Page {
    unsafe fn submit(&self, descriptor: &Descriptor) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let refused: u8;
            // SAFETY: the processor knows the instruction (`open`), the page is mapped, and the descriptor is one; the
            // rest is our caller's promise. Everything that was stored before is visible to the device before it.
            unsafe {
                std::arch::asm!(
                    "sfence",
                    "enqcmd {page}, [{descriptor}]",
                    "setz {refused}",
                    page = in(reg) self.0,
                    descriptor = in(reg) descriptor,
                    refused = out(reg_byte) refused,
                    options(nostack)
                );
            }
            refused == 0
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            let _ = descriptor;
            false
        }
    }
}

/// A queue whose kernel takes descriptors by `write` only (Linux 6.10): a system call for each copy.
#[derive(Debug)]
struct Written(OwnedFd);

impl Portal for Written {
    unsafe fn submit(&self, descriptor: &Descriptor) -> bool {
        let bytes = descriptor.bytes();
        rustix::io::write(&self.0, &bytes) == Ok(bytes.len())
    }
}
