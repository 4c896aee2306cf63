//! A network without rights: frames of guests become sockets of the host, and back.
//!
//! The crate is arithmetic. The driver process does all I/O: it hands in frames, what sockets
//! report and the time, and carries out the actions that come back. Nothing here reads a clock,
//! opens a socket or holds a payload.

#![forbid(unsafe_code)]

mod action;
mod hash;
mod headers;
pub mod network;
mod progress;
mod record;
pub mod services;
mod tcp;
#[cfg(test)]
mod tests;
mod translator;
mod turns;
mod udp;

pub use action::{
    Action, Datagrams, Failure, Family, FlowId, Forwarded, HEADERS, Headers, Payload, Peek, Peeked,
    SocketEvent, Target,
};
pub use hash::Secret;
pub use progress::{Counters, Progress};
pub use record::{Kept, MappingRecord, RECORD_LEN, Record, RecordError};
pub use translator::{Bounds, FlowState, Listed, Settings, Translator, Undelivered, Verdict};
pub use turns::{QUANTUM, Turns};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
