//! Control: desired state, learning, upcalls, and the API server.
//!
//! Its modules, lowest first; a module uses only those that stand above it in this list:
//!
//! ```text
//! learning     the forwarding database: the port of each MAC address
//! trace        traces and flows as documents of the API
//! capture      pcapng files of the frames that the switch copies
//! events       state changes for clients and the log
//! rule_counts  counters of the rules of access lists
//! connections  the view of the table of connections
//! prefilter    flows of denied frames that end before the switch
//! metrics      the metrics page for Prometheus
//! saved        the state that survives a restart of control
//! plan         changes of the desired state, planned before the engine makes them
//! command      commands of the API server to the engine
//! fake_engine  an engine without a switch, for tests
//! gate         opening and closing the API
//! pipes        the server at which ends of pipes meet
//! engine       owns all state, decides upcalls, makes the switch match the desired state
//! server       the API server
//! process      the engine and the server as a process
//! ```
//!
//! Control decides and never touches a guest's memory.
#![forbid(unsafe_code)]

pub mod capture;
pub mod command;
pub mod connections;
pub mod engine;
pub mod events;
#[cfg(any(test, feature = "test-utils"))]
pub mod fake_engine;
mod gate;
pub mod learning;
pub mod metrics;
mod pipes;
pub mod plan;
mod prefilter;
pub mod process;
pub mod rule_counts;
pub mod saved;
pub mod server;
mod trace;
