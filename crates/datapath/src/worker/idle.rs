//! Helpers on idle cores: threads of the lowest priority that forward frames of busy workers on
//! cores that have nothing else to do.
//!
//! ```text
//! choice       the core that helps for a receiver (no clock, no threads)
//! handoff      the slots by which queue pairs are assigned to a helper and taken back
//! boost        ordinary priority for a helper that others wait for
//! system       the kernel's scheduler
//! helper       a helper as other threads see it, and its backoff
//! core_states  the state of each core, as the kernel reports it
//! worth        the frames that are worth a helper
//! assignments  the pairs of one worker that helpers have
//! ```

pub(crate) mod assignments;
pub(crate) mod boost;
pub mod choice;
pub(crate) mod core_states;
pub(crate) mod handoff;
pub mod helper;
mod sync;
pub(crate) mod system;
#[cfg(test)]
mod tests;
pub(crate) mod worth;
