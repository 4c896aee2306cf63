//! Atomics: the real ones here, loom's in `tests/table_loom.rs`.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
