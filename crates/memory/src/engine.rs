//! Who copies a frame's bytes: the processor at once, or an engine beside it, which says later that it has.
//!
//! ```text
//!   frame ---> Copies ---+--- Cpu: a small frame, or no engine -------------------------> copied
//!                        |
//!                        '--- FrameCopy: a slot for each piece ---> Device ---> slot done, in any order
//!                                  |
//!                                  '--- Tickets: whoever publishes the frame, or gives its sender the buffer
//!                                       back, asks first whether they are done
//! ```
//! Each worker has a line of [`SLOTS`] slots, so that what is under way is bounded; a copy that finds none free is
//! made by the processor. A slot is looked at and finished by anybody: its state says who may.
//!
//! The memory that is copied from and to must stay mapped until the copy is done. Nothing here holds it: whoever
//! holds a snapshot of it keeps the tickets of all copies there, and [`Engines::wait`]s before letting go.

mod copier;
mod cpu;
pub mod dsa;
mod slots;
mod soft;

#[cfg(test)]
mod tests;

pub use copier::{Copier, Engines, FrameCopy, Tickets};
pub use cpu::{Aligned, Cpu, Streaming};
pub use slots::{SLOTS, Slot};

/// Pieces of fewer bytes are copied by the processor: to hand them over costs more than to copy them. More than the
/// private head of a frame, so that an engine never reads memory that is not a guest's.
pub const LEAST: usize = 1024;

/// Something that copies.
pub trait Copies {
    /// Copies `len` bytes, or has them copied.
    ///
    /// # Safety
    /// `len` bytes are mapped at both places, and stay so until they were copied. A guest may write to either
    /// meanwhile.
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize);
}

/// What a device says of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is under way.
    Busy,
    /// All of it is done, but for so many bytes from this one on, which are for the processor.
    Left {
        /// The first byte that was not copied.
        from: u32,
        /// How many there are.
        len: u32,
    },
}

/// What copies beside the processor.
pub trait Device: std::fmt::Debug + Send + Sync {
    /// Begins the copy that a slot describes. `false`: not now, and the processor does it.
    fn submit(&self, slot: &Slot) -> bool;

    /// What has become of a copy that was begun.
    fn look(&self, slot: &Slot) -> Outcome;

    /// Whether who waits for a copy may make it: no device touches the memory of a slot that it has not claimed.
    fn can_be_helped(&self) -> bool;
}
