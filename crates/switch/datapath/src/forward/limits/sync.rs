//! Atomics of the modules under loom, which replaces them (`tests/limits_loom.rs`).

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
