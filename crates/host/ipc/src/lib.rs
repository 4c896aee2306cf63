//! Messages and shared memory between Lasthop's processes.
//!
//! ```text
//! supervisor <-- supervision --> control      sockets, readiness, heartbeat
//! supervisor <-- supervision --> switch       links, client ports, saved sessions, heartbeat
//! supervisor <-- supervision --> driver       interface, connection to the switch, heartbeat
//! control    <--- switching ---> switch       ports, programs, state, stations in use
//! control    <=== records ====== switch       upcalls, in a ring of shared memory
//! control    ==== records =====> switch       decisions, likewise
//! control    <=== capture ====== switch       captured frames, in memory of their own
//! ```
//!
//! Messages travel over [`link::Link`], a pair of `SOCK_SEQPACKET` sockets, and may carry
//! descriptors. [`state::StateFile`] stores the desired state over a restart of control. This crate
//! has no knowledge of guest memory and HTTP.

pub mod admin;
pub mod audit;
pub mod capture;
pub mod connections;
pub mod driving;
pub mod egress;
pub mod figures;
pub mod flows;
pub mod formats;
pub mod forwards;
pub mod keeping;
pub mod limits;
pub mod link;
pub mod mirrors;
pub mod names;
pub mod owners;
pub mod peer;
pub mod records;
pub mod rules;
pub mod shared;
pub mod sockets;
pub mod start;
pub mod state;
pub mod supervision;
pub mod switching;
pub mod timeouts;
pub mod user_reports;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
