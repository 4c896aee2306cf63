//! Atomics of the modules under loom, which replaces them (`tests/egress_loom.rs`).

pub(super) use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
