//! Control: desired state, learning, upcalls, and the API server.
//!
//! * [`learning`] is the forwarding database: the port of each MAC address.
//! * [`engine`] owns all state, decides upcalls, and makes the switch match the desired state.
//! * [`capture`] makes pcapng files of the frames that the switch copies.
//! * [`events`] publishes state changes to clients and the log.
//! * [`metrics`] makes the metrics page for Prometheus.
//! * [`rule_counts`] has the counters of the rules of access lists.
//! * [`command`] has the commands of the API server to the engine; [`server`] is the API server.
//!
//! Control decides and never touches a guest's memory.
#![forbid(unsafe_code)]

pub mod capture;
pub mod command;
pub mod engine;
pub mod events;
pub mod learning;
pub mod metrics;
pub mod rule_counts;
pub mod server;
mod trace;
