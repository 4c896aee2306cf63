//! Captures: frames that the switch copies for a client, as a pcapng file that has no end until somebody says so.
//!
//! ```text
//! switch ==ring==> feeder, one thread for all captures ==pieces==> the client's connection
//! ```
//!
//! Nobody waits for a client: where it does not read, its pieces wait, then the ring fills, and then the switch counts what
//! it cannot copy. The thread is started before the process gives up its rights, as it cannot be afterwards.

mod feeder;
pub mod pcapng;

pub use feeder::{Feed, Feeder, Pieces};
