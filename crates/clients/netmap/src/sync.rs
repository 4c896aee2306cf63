//! Atomics of the modules under loom, which replaces them (`tests/wake_loom.rs`).

pub(crate) use std::sync::atomic::{AtomicU16, Ordering, fence};
