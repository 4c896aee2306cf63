//! Idle cores help: what is pending at a busy worker is done by threads of the lowest priority on cores that have nothing
//! else to do.
//!
//! ```text
//! topology  which cores share a cache (read where paths can be opened)
//! ```

pub mod topology;
