//! The atomics of what is modelled with loom, which brings its own under the same names (`tests/limits_loom.rs`).

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
