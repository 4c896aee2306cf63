//! Captures: frames that the switch copies for a client, as an endless pcapng file, until client or
//! operator end it.
//!
//! ```text
//! switch ==ring==> chunks of a file ==> the client's connection
//! ```
//!
//! A slow client delays nothing but its file: the ring fills up, and then the switch counts the
//! frames that it cannot copy.

mod file;
pub mod pcapng;

pub use file::{CaptureBody, CaptureSlot, CaptureSlots, CaptureSource};
