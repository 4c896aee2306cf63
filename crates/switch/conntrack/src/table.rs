//! The table of connections: one memory file that all threads of a switch share.
//!
//! ```text
//! worker   its stock of free entries; an epoch for each batch
//!    |  find, open, remove
//! links    index words -> entries, without a lock
//! accounts limits of guests, and the choice of connections that make room
//! walk     over the entries in use, a part at a time: expiry, flushes, listings
//! ```
//!
//! The file outlives the switch. Its successor trusts nothing in it ([`Table::adopt`]), and
//! another process may read it meanwhile ([`Reader`]).

#[forbid(unsafe_code)]
mod account;
#[forbid(unsafe_code)]
mod admit;
#[forbid(unsafe_code)]
mod adopt;
#[forbid(unsafe_code)]
mod bounds;
#[forbid(unsafe_code)]
mod connection;
#[forbid(unsafe_code)]
pub(crate) mod content;
#[forbid(unsafe_code)]
pub(crate) mod ends;
#[forbid(unsafe_code)]
pub(crate) mod entry;
#[forbid(unsafe_code)]
mod fragments;
#[forbid(unsafe_code)]
mod grace;
#[forbid(unsafe_code)]
mod index;
#[forbid(unsafe_code)]
mod known;
#[forbid(unsafe_code)]
mod layout;
#[forbid(unsafe_code)]
pub(crate) mod links;
mod memory;
#[forbid(unsafe_code)]
mod reader;
#[forbid(unsafe_code)]
mod removal;
#[forbid(unsafe_code)]
mod shared;
#[forbid(unsafe_code)]
mod sighting;
#[forbid(unsafe_code)]
mod stock;
#[forbid(unsafe_code)]
mod sync;
#[forbid(unsafe_code)]
mod used;
#[forbid(unsafe_code)]
mod walk;
#[forbid(unsafe_code)]
pub(crate) mod word;
#[forbid(unsafe_code)]
pub(crate) mod worker;

#[cfg(test)]
mod tests;

pub use account::{Account, Counts, Kind, PortLimits, PortTotals};
pub use admit::{LimitKind, Refusal};
pub use adopt::Adoption;
pub use bounds::Occupancy;
pub use connection::Connection;
pub use layout::{DEFAULT_CAPACITY, Layout, MAX_CAPACITY, MAX_PORTS, MIN_CAPACITY, VERSION};
pub use reader::Reader;
pub use removal::ConnectionId;
pub use shared::{Table, TableError};
pub use sighting::Sighting;
pub use walk::{Part, Walk};
pub use worker::{Rule, Worker};
