//! What Lasthop's processes say to one another.
//!
//! ```text
//! supervisor <-- supervision --> control      ask for sockets, tell of readiness; heart-beat
//! supervisor <-- supervision --> switch       hand over links, dial for client ports, keep sessions; heart-beat
//! supervisor <-- supervision --> driver       an interface and a connection to the switch; heart-beat
//! control    <--- switching ---> switch       ports, programs, state, stations in use
//! control    <=== records ====== switch       upcalls, in a ring of shared memory
//! control    ==== records =====> switch       answers, likewise
//! control    <=== capture ====== switch       frames that somebody wants to see, in memory of their own
//! ```
//!
//! Messages travel over [`link::Link`], a pair of `SOCK_SEQPACKET` sockets, and may carry descriptors.
//! [`state::StateFile`] keeps the wanted state over a restart of control. Guest memory and HTTP are not
//! known here.

pub mod capture;
pub mod cores;
pub mod driving;
pub mod figures;
pub mod files;
pub mod flows;
pub mod formats;
pub mod keeping;
pub mod limits;
pub mod link;
pub mod mirrors;
pub mod owners;
pub mod peer;
pub mod records;
pub mod rules;
pub mod shared;
pub mod state;
pub mod supervision;
pub mod switching;

/// The target of those lines of the log, of any process, that are events: what has happened, and who has asked for it.
pub const AUDIT: &str = "lasthop::audit";

#[cfg(test)]
mod tests;
