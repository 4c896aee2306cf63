//! Captures: frames that the switch copies for a client, as a pcapng file that has no end until somebody says so.
//!
//! ```text
//! switch ==ring==> pieces of a file ==> the client's connection
//! ```
//!
//! Nobody waits for a client: where it does not read, no piece is made, the ring fills, and then the switch counts what it
//! cannot copy.

mod file;
pub mod pcapng;

pub use file::{Feed, Pieces, Place, Places};
