//! The meeting of the two ends of a pipe: messages, and the state of the server.
//!
//! A pipe is memory that two processes share: slots and buffers, and index lines that say which
//! side has which slots. The first end makes a file and offers it; the second gets it. The server
//! passes descriptors and maps nothing. From then on both ends need no other process, and the
//! server may die: it knows nothing that the ends cannot bring again.
//!
//! Each message is a packet of a `SOCK_SEQPACKET` socket, at most [`MAX_MESSAGE`] bytes, with at
//! most [`MAX_DESCRIPTORS`] descriptors. An end sends one [`Register`], and one [`Offer`] if it is
//! asked for that:
//!
//! ```text
//!  first end                 server                  second end
//!     | REGISTER               |                          |
//!     |----------------------->|              REGISTER    |
//!     |                 CREATE |<-------------------------|
//!     |<-----------------------|                          | (waits for the offer)
//!     | OFFER, 3 descriptors   |                          |
//!     |----------------------->| JOIN, 3 descriptors      |
//!     |   JOIN, 3 descriptors  |------------------------->|
//!     |<-----------------------|                          |
//! ```
//!
//! The first end need not wait for the second. A JOIN is for the memory of the offer, or for that
//! of an end that came back meanwhile: its instance tells. REFUSED may take the place of any
//! answer, and the connection is closed then.
//!
//! A connection stays open as long as its end lives. An end that loses its connection (the server
//! has died) dials and registers again, with the instance that it has: the answer is JOIN if the
//! server has this instance, CREATE if it has none (it is offered again, and so on), and REFUSED if
//! another one has taken its place. When both connections of a pipe are closed, the server forgets
//! it.
//!
//! Source: pipes of netmap(4); Garzarella, Lettieri, Rizzo, "Virtual device passthrough for high
//! speed VM networking", 2.3.

#![forbid(unsafe_code)]

mod message;
mod server;

pub use message::{
    Answer, Block, Create, End, LINE_DISTANCE, MAX_DESCRIPTORS, MAX_MESSAGE, MAX_REASON,
    MessageError, Offer, Register, Request, Rings, SLOTS_MAX, SLOTS_MIN, VERSION,
};
pub use server::{Conn, EndStatus, MAX_PIPES, MAX_WAITING, Note, Output, PipeStatus, Server};
