//! Atomics of the module under loom, which replaces them (`tests/grants_loom.rs`).

pub(super) use std::sync::atomic::{AtomicU32, Ordering};
