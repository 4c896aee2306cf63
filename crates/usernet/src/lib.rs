//! A network without rights: frames of guests become sockets of the host, and back.
//!
//! The crate is arithmetic. The driver process does all I/O: it hands in frames, what sockets report
//! and the time, and carries out the actions that come back. Nothing here reads a clock, opens a
//! socket or holds a payload.

#![forbid(unsafe_code)]

pub mod network;
pub mod services;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
