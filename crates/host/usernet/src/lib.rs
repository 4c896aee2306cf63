//! A network without rights: frames of guests become sockets of the host, and back.
//!
//! Its modules, the lowest first; a module uses only those before it:
//!
//! ```text
//! hash        keyed hashes of addresses, for tables that guests fill
//! times       how long flows may be silent
//! flow        numbers and states of flows
//! waiting     how far a flow is, and what it waits for, for people
//! record      flows as bytes, for the next process
//! progress    how far the halves of a flow are
//! network     addresses of the network, and the destinations that guests may reach
//! services    the gateway's own answers: ARP, ND, DHCP, DNS, ICMP
//! action      what the driver must do, and the events that it reports
//! turns       the order in which flows send
//! headers     headers of frames to guests
//! udp         one mapping of UDP
//! tcp         one flow of TCP
//! translator  all flows of a port
//! ```
//!
//! The crate is arithmetic. The driver process does all I/O: it hands in frames, what sockets
//! report and the time, and carries out the actions that come back. Nothing here reads a clock,
//! opens a socket or holds a payload.

#![forbid(unsafe_code)]

mod action;
mod flow;
mod hash;
mod headers;
pub mod network;
mod progress;
mod record;
pub mod services;
mod tcp;
#[cfg(test)]
mod tests;
mod times;
mod translator;
mod turns;
mod udp;
mod waiting;

pub use action::{
    Action, Datagrams, Failure, Family, ForwardPeer, HEADERS, Headers, Payload, Peek, PeekResult,
    SocketEvent, Target,
};
pub use flow::{FlowId, FlowState};
pub use hash::Secret;
pub use progress::{Counters, Progress};
pub use record::{FlowRecord, MappingRecord, RECORD_LEN, RECORD_VERSION, Record, RecordError};
pub use services::UndeliveredPacket;
pub use times::{SECONDS, Time, TimeError, Times};
pub use translator::{Bounds, ListedFlow, Settings, Translator, Verdict, hops_left, hops_of};
pub use turns::{QUANTUM, Turns};
pub use waiting::{SocketQueues, TcpCounters, TimerKind, WaitsFor};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
