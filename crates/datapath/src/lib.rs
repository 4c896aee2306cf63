//! The switch process: guest memory, vhost-user sessions, flow cache, copy.
//!
//! ```text
//! process   main of the process, and the thread that speaks with supervisor, control and front ends
//! attach    one port's socket, connection and vhost-user session
//! worker    the thread that owns all queues: polls, sleeps, drains messages and answers
//! switch    one batch at a time: key, match (no threads, no sockets)
//! fabric    the ports, and delivery of one frame to others
//! watchdog  ringing a front end's eventfd without being held up by it
//! guest     a port made of virtio queues
//! ```
//!
//! No configuration is read here and nothing is decided: control says what ports there are, and which
//! action belongs to which flow.

pub mod attach;
mod fabric;
pub mod flow_table;
pub mod guest;
pub mod offload;
pub mod parking;
pub mod process;
pub mod switch;
pub mod watchdog;
pub mod worker;

#[cfg(test)]
mod tests;
