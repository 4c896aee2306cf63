//! The memif 2.0 protocol, server side: handles the messages of a client and sets up queues.
//! Source: DPDK 22.11 (`drivers/net/memif`) and VPP (`src/plugins/memif`, `extras/libmemif`), whose
//! clients are served.
//!
//! # Security model
//!
//! **Hostile: the client.** It chooses every byte, every descriptor, every order and every pause.
//! It may truncate the files that it passed, clear flags on descriptors that it shares, and stop
//! reading. **Trusted:** the owner of the [`Session`] (its [`Offer`] and its back end) and the
//! kernel.
//!
//! | resource | bound | where |
//! |---|---|---|
//! | bytes of one message | 128 | [`Connection::peek`] |
//! | descriptors of one message | as many as its row allows, at most one; others are closed | table |
//! | descriptors kept | one a region, one a ring, each found to be of its kind first | regions, rings |
//! | time of the thread | nothing blocks: reads and writes are non-blocking, one message per call | [`Connection`] |
//! | output | one answer; nothing more is read until it is gone | [`Connection::peek`] |
//! | memory | [`MAX_REGIONS`] regions of at most [`MAX_REGION`] bytes, each checked against its file | regions |
//! | rings | two a queue pair of the offer, up to 4096 entries, each within one region | rings |
//!
//! Every message has one row in one table (code, name, descriptors, state in which it is legal,
//! handler) and every row has a test. A message that no row allows ends the connection, with a
//! `DISCONNECT` that has the reason.
//!
//! # Life of a session
//!
//! ```text
//!   server                                client
//!   HELLO  ------------------------------->
//!          <-------------------------------  INIT (interface, secret)
//!   ACK    ------------------------------->
//!          <-------------------------------  ADD_REGION + file, ADD_RING + eventfd, each
//!   ACK    ------------------------------->  acknowledged
//!          <-------------------------------  CONNECT
//!   CONNECTED ---------------------------->  sets head and tail of each ring to zero
//!   queues start                             uses the rings
//!          <---- DISCONNECT (reason) ----->
//! ```
//!
//! The queues start when `CONNECTED` has left the process, because DPDK's client and libmemif set
//! all indices to zero when it arrives. At that time the indices are zero already: a ring with
//! another `tail` is refused at `CONNECT`, and a client moves `head` only after it has set the
//! indices. So the switch sees a queue that is empty until the client uses it, whichever of both
//! is faster. `CONNECTED` is sent once, also when the process dies meanwhile: a client that got it
//! a second time would clear the indices of rings in use.

mod connection;
mod message;
mod record;
mod regions;
mod rings;
mod session;
mod table;

#[cfg(test)]
mod tests;

pub use connection::{Connection, reject};
pub use message::{MESSAGE_LEN, PAYLOAD_LEN, REASON_LEN, SECRET_LEN, VERSION, code};
pub use record::RECORD_VERSION;
pub use regions::{MAX_REGION, MAX_REGIONS};
pub use rings::MAX_LOG2_SIZE;
pub use session::{FEATURES, Offer, Session};
