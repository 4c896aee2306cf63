//! The vhost-user protocol, back-end side, for network devices: handles the messages of a VMM and
//! sets up queues. Source: the vhost-user specification (QEMU, `docs/interop/vhost-user.rst`).
//!
//! # Security model
//!
//! **Hostile: the front end**, that is the VMM or any other process that connected to the socket,
//! and through it the guest. It chooses every byte, every file descriptor, every order and every
//! pause. It may truncate the files it passed, clear flags on descriptors it shares with the back
//! end, and stop reading replies. **Trusted:** the owner of the [`Session`] (its [`Offer`] and its
//! [`Backend`]) and the kernel.
//!
//! What a hostile front end can reach is bounded:
//!
//! | resource | bound | where |
//! |---|---|---|
//! | bytes of one message | header, then at most [`MAX_PAYLOAD`]; refused before a payload byte is read | [`Connection::recv`] |
//! | descriptors of one message | at most [`MAX_FDS`], then as many as the message's row allows; all others are closed | [`Connection::recv`], table |
//! | descriptors kept | kick, call and error per queue, log, request channel, each found to be of its kind first; a new one closes the old one | queues |
//! | descriptors kept for a successor | those of the record, by [`Backend::keep`]: the above, and a file a region, the log, the inflight area | record |
//! | time of the thread | nothing blocks: reads and writes are non-blocking, one message per call | [`Connection`] |
//! | output | one reply; nothing more is read until it is gone | [`Connection::recv`] |
//! | guest memory | 509 regions, each checked against its file before it is mapped | `memory` |
//! | queues | two a queue pair of the offer, up to [`MAX_QUEUE_SIZE`] entries; every index is checked in its full width | queues |
//! | translations | a table of fixed size; 64 open questions, each for a second without an answer to an earlier one; 256 answers that are owed | iotlb |
//! | dirty log, inflight area | file length, offset and size checked together; offset applied once | `memory`, inflight |
//!
//! Every message has one row in one table (code, name, descriptors, size, state in which it is
//! legal, reply, handler) and every row has a test. A message that no row allows is *refused*: with
//! a non-zero acknowledgement when the front end requested one, and otherwise by the end of the
//! connection with a reason. A violation of the framing (sizes, descriptors, version) always ends
//! the connection.
//!
//! A queue that cannot start (packed without `VERSION_1`, addresses outside memory) does neither:
//! it stays stopped, with its reason in [`Session::info`], because the next driver of the same
//! guest may set it up correctly.
//!
//! One gap remains by design of the protocol: kick and call descriptors are shared with the VMM,
//! which can clear the `O_NONBLOCK` that is set here. A writer of call descriptors must survive
//! that.
//!
//! # Life of a session and of its queues
//!
//! ```text
//!   Connection::recv -> Session::handle -> Connection::send  (until a Fault, then Session::close)
//!
//!   queue:   stopped --- memory, size, addresses, kick, features ---> running
//!               ^                                                       |
//!               +--- GET_VRING_BASE, reset, memory gone, queue fault ---+
//!   a setting that changes while the queue runs: stop, apply, start at the same position
//! ```

mod answer_pipe;
mod backend;
mod channel;
mod config;
mod connection;
mod detach;
mod fault;
mod inflight;
mod iotlb;
mod message;
mod peek;
mod queues;
mod record;
mod regions;
mod restore;
pub mod saved;
mod session;
mod table;

#[cfg(test)]
mod tests;

pub use answer_pipe::AnswerPipe;
pub use backend::{Backend, Offer, QueueSetup, Resume};
pub use channel::BackendChannel;
pub use connection::Connection;
pub use detach::{LeftFrames, QueueSnapshot};
pub use fault::Fault;
pub use iotlb::{ChannelWake, IotlbInfo, Wakes};
pub use message::{MAX_FDS, MAX_PAYLOAD, Message, Reply};
pub use peek::PeekResult;
pub use queues::{MAX_QUEUE_SIZE, QueueInfo, QueueSummary};
pub use record::RECORD_VERSION;
pub use saved::StoredFiles;
pub use session::{Info, Session};
