//! Atomics: the real ones here, loom's in `tests/sigbus_loom.rs`.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
