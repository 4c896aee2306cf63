//! Connection tracking: the state that a frame has in its connection, for stateful access lists.
//!
//! The semantics are those of Linux's `nf_conntrack`, which is the oracle of the tests. The crate
//! knows neither flows nor policy nor sessions: it reads a frame's headers, judges them, and has
//! connections committed by its caller.
//!
//! * [`state`]: the direction of a frame in its connection, and the reasons of invalid frames
//! * [`mod@tuple`]: the identity of a connection, and its hash
//! * [`timeouts`]: timeouts and other settings
//! * [`segment`]: what is read of a TCP segment
//! * [`packet`]: what is read of a frame
//! * [`progress`]: the state of one connection, in words for shared memory
//! * [`tcp`], [`datagram`]: the state machines of protocols
//! * [`machine`]: one connection and one frame
//! * [`judgement`]: what a tracker answers for a frame
//! * [`table`]: all connections of a switch; [`tracker`]: a thread's frames and the table
//! * `reference`: a slow tracker, for tests

#[forbid(unsafe_code)]
pub mod datagram;
#[forbid(unsafe_code)]
pub mod judgement;
#[forbid(unsafe_code)]
pub mod machine;
#[forbid(unsafe_code)]
pub mod packet;
#[forbid(unsafe_code)]
pub mod progress;
#[cfg(any(test, feature = "test-utils"))]
#[forbid(unsafe_code)]
pub mod reference;
#[forbid(unsafe_code)]
pub mod segment;
#[forbid(unsafe_code)]
pub mod state;
pub mod table;
#[forbid(unsafe_code)]
pub mod tcp;
#[forbid(unsafe_code)]
pub mod timeouts;
#[forbid(unsafe_code)]
pub mod tracker;
#[forbid(unsafe_code)]
pub mod tuple;

pub use judgement::{Ingress, Judgement, Stations};
pub use machine::{Context, Outcome, Step};
pub use packet::{Message, Packet, Reading};
pub use progress::{Progress, Side, TcpState};
pub use state::{Direction, Invalid};
pub use table::Table;
pub use timeouts::{Millis, Settings, Timeout, Timeouts};
pub use tracker::Tracker;
pub use tuple::{Seed, Tuple};
