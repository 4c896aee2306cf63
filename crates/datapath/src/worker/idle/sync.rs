//! Atomics and locks of the modules that are modelled with loom, which has its own under the same
//! names (`tests/idle_loom.rs`).

pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};
pub(super) use std::thread::yield_now;
