//! Atomics: the real ones here, loom's in `tests/iotlb_loom.rs`.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
