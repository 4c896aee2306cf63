//! Requests that change nothing desired: status and counters, the FDB, flow dumps, connections,
//! traces, captures.

pub(super) mod captures;
pub(super) mod connections;
pub(super) mod egress;
pub(super) mod flow_dumps;
pub(super) mod flush;
pub(super) mod prefilters;
pub(super) mod rule_counts;
mod shared_sockets;
pub(super) mod status;
pub(super) mod trace;
pub(super) mod user;
pub(super) mod user_forwards;
