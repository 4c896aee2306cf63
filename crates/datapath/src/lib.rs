//! The switch process: guest memory, vhost-user sessions, flow cache, copy.
//!
//! ```text
//! process   main of the process, and the thread that speaks with supervisor, control and front ends
//! attach    one port's socket, connection and vhost-user session
//! keeper    what of a connection is deposited with the supervisor, to outlive this process
//! workers   all workers: who serves which queue pair
//! worker    a thread that serves queue pairs: polls, sleeps, drains messages and answers
//! poll      when the worker sleeps (no clock, no threads)
//! batching  when a guest that runs is notified (no clock, no threads)
//! switch    one batch at a time: match, deliver (no threads, no sockets)
//! runs      frames of a batch that share a decision
//! follow    control's answers, a piece at a time
//! errand    what goes through all flows and holds nothing up
//! fabric    the ports, and delivery of frames to others
//! refuse    what senders of rejected frames are told
//! watch     captures of ports: who looks on
//! late      receivers that are notified later
//! limits    what a port may send and be sent
//! cycles    what a batch costs, and who pays for it
//! lane      a queue that several workers use, one at a time
//! idle      cores that idle help busy workers
//! culprit   whom a thread serves, in case the process dies of it
//! watchdog  ringing a front end's eventfd without being held up by it
//! guest     a port made of virtio queues
//! replay    what the instruction counts are taken of
//! ```
//!
//! No configuration is read here and nothing is decided: control says what ports there are, and which
//! action belongs to which flow.

// Guests of the tests outside are shared with those inside.
#[cfg(test)]
extern crate self as datapath;

pub mod attach;
pub mod batching;
pub mod culprit;
pub mod cycles;
pub mod errand;
mod fabric;
pub mod flow_table;
mod follow;
pub mod guest;
pub mod guests;
pub mod idle;
pub mod keeper;
pub mod lane;
mod late;
pub mod limits;
pub mod mirror;
pub mod offload;
pub mod parking;
pub mod poll;
pub mod process;
mod refuse;
mod replay;
mod runs;
pub mod switch;
pub mod watch;
pub mod watchdog;
pub mod worker;
pub mod workers;

#[cfg(test)]
mod tests;
