//! Idle cores help: what is pending at a busy worker is done by threads of the lowest priority on cores that have nothing
//! else to do.
//!
//! ```text
//! topology  which cores share a cache (read where paths can be opened)
//! choice    which of them is to help (no clock, no threads)
//! desk      where queue pairs are lent to a helper and come back
//! boost     a helper that others wait for runs with ordinary priority
//! system    the kernel's scheduler
//! helper    a helper as others see it, and when it is asked
//! seen      what cores do, as the kernel says
//! worth     whose frames are worth it
//! ```

pub(crate) mod boost;
pub mod choice;
pub(crate) mod desk;
pub mod helper;
pub(crate) mod seen;
mod sync;
pub(crate) mod system;
#[cfg(test)]
mod tests;
pub mod topology;
pub(crate) mod worth;
