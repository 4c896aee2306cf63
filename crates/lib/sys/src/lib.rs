//! System calls that several crates make in the same way. Each module has one subject; none of them
//! knows what its callers use it for.
//!
//! An interrupted call (`EINTR`) is repeated here, unless its documentation says otherwise.

pub mod closer;
pub mod descriptors;
pub mod event;
pub mod file;
pub mod foreign;
pub mod lasting;
pub mod limit;
pub mod memory;
pub mod network;
pub mod peer;
pub mod procfs;
pub mod signal;
pub mod thread;
pub mod time;
pub mod wait;
