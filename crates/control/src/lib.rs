//! Control: wanted state, learning, upcalls, and the API server.
//!
//! * [`config`] reads the configuration file into a wanted state.
//! * [`wanted`] checks a wanted state, and changes it.
//! * [`learning`] is the forwarding database: which station is behind which port.
//! * [`engine`] owns all state, answers upcalls, and makes the switch have what is wanted.
//! * [`capture`] makes files of the frames that the switch copies for a client.
//! * [`events`] tells what has happened to those who watch, and to the log.
//! * [`metrics`] writes what is known for Prometheus.
//! * [`rule_counts`] has what was counted for the rules of access lists.
//! * [`command`] is how the API server asks the engine; [`server`] is the API server.
//!
//! Control decides and never touches a guest's memory.
#![forbid(unsafe_code)]

pub mod capture;
pub mod command;
pub mod config;
pub mod engine;
pub mod events;
pub mod learning;
pub mod metrics;
mod objects;
pub mod rule_counts;
pub mod server;
mod trace;
pub mod wanted;
