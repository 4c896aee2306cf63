//! A pipe's ring whose program has its slots and buffers in another memory than the pipe: one that
//! swaps buffers between a port and a pipe whose memory the other end has made.
//!
//! ```text
//!   memory of the program     slots    header            what a program maps
//!                               | copy: bytes, length, flags
//!   memory of the pipe        slots    both index lines  what both ends map
//! ```
//! A slot has the same number in both. Sent frames are copied before they are published, received
//! ones before the program's `tail` passes them: each side of the copy is then ours alone.

use super::{Ring, Slot, addr_of, addr_of_mut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::NS_BUF_CHANGED;
use crate::region::Region;

/// Slots and buffers of a pipe.
#[derive(Debug)]
pub(crate) struct Far {
    /// As many as the program's.
    pub(crate) slots: NonNull<Slot>,
    /// Their buffers, as large as the program's.
    pub(crate) region: Arc<Region>,
}

impl Ring {
    /// Copies the slots `from .. to` to the pipe's, or from there.
    pub(super) fn copy(&self, from: u16, to: u16) {
        let (Some(far), Some(region)) = (&self.places.far, &self.places.region) else {
            return;
        };
        let mut number = from;
        while number != to {
            let index = usize::from(number & (self.slots - 1));
            // SAFETY: the pipe has as many slots as the program, and the index is below that.
            let pipes = unsafe { far.slots.add(index).as_ptr() };
            let (pipes, ours) = ((pipes, &*far.region), (self.slot(number), &**region));
            match self.role.sends() {
                true => copy_slot(ours, pipes),
                false => copy_slot(pipes, ours),
            }
            number = number.wrapping_add(1);
        }
    }
}

/// Copies what is in a slot into the buffer of another. A buffer that is none has no bytes.
fn copy_slot((source, from): (*mut Slot, &Region), (target, to): (*mut Slot, &Region)) {
    // SAFETY: both are addresses of slots; the program, or the other end, may write them meanwhile.
    let (slot, into) = unsafe { (source.read_volatile(), addr_of!((*target).buf_idx)) };
    // SAFETY: as above.
    let into = unsafe { into.read_volatile() };
    let room = from.geometry.buffer_size.min(to.geometry.buffer_size);
    let mut len = u32::from(slot.len).min(room) as u16;
    match (from.buffer(slot.buf_idx), to.buffer(into)) {
        // SAFETY: both buffers are mapped and have `len` bytes, in different files. The program, or
        // the other end, may write them meanwhile: the bytes are theirs, and mean nothing here.
        (Some(bytes), Some(into)) => unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.as_ptr(), usize::from(len));
        },
        _ => len = 0,
    }
    // SAFETY: as above.
    unsafe {
        addr_of_mut!((*target).len).write_volatile(len);
        addr_of_mut!((*target).flags).write_volatile(slot.flags & !NS_BUF_CHANGED);
        addr_of_mut!((*target).ptr).write_volatile(slot.ptr);
    }
}
