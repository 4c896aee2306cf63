//! The switch process: guest memory, vhost-user sessions, frame delivery.
//!
//! The modules in order, the lowest first. A module uses itself and those before it only;
//! `crates/test/e2e/tests/structure.rs` compares.
//!
//! ```text
//! ports::budget            what a port with a rate limit may send now
//! ports::payload           a frame on its way to a receiver, its bytes in the sender's memory
//! ports::batch             frames that are leased from one queue pair
//! ports::alike             consecutive frames of a batch that need one lookup
//! ports::faults            the number of faults: a worker looks for them when it has grown
//! ports::watchdog          ringing a front end's eventfd without being blocked by it
//! ports::calls             notifications of guests, sent when no queue is locked
//! ports::port              the trait of all ports: frames are taken from it and delivered to it
//! ports::loopback          a port for tests
//! ports::crash_record       the port that each thread serves, for crash attribution
//! ports::queue_lock         the lock of a queue that several workers use
//! ports::coalescing         when a running guest is notified (no clock, no threads)
//! ports::offload            checksums and segmentation that senders leave to the receiver
//! ports::guest              a port made of virtio queues
//! ports::interface          a port made of TAP devices or packet sockets
//! ports::attached           a port of a worker: a guest, or an interface
//! ports                     the folder of the above
//! forward::cycles           cost of batches, and its accounting
//! forward::limits           rate limits of ports
//! forward::egress           credit of the senders of a scheduled port
//! forward::mirror           mirrors of ports
//! forward::tap              taps of captures
//! forward::classes          priorities of the tags of traffic classes
//! forward::tracking         connections of tracked ports, and what is read of their frames
//! forward::flow_batch       frames of a batch that share a decision
//! forward::tables           the flow table of tracked ports, and that of all others
//! forward::pending_upcalls  frames that wait for a decision
//! forward::revalidator      sweeps over all flows, in parts between batches
//! forward::receive_shares   shares of receivers in the time for copying (no clock)
//! forward::reject           the budget of replies to rejected frames
//! forward::fabric           the ports, and delivery of frames to others
//! forward::switch           one batch at a time: match, deliver; control's decisions
//! forward                   the folder of the above (no threads, no sockets)
//! worker::guests            the vCPU states of guests
//! worker                    a thread that serves queue pairs: polls, sleeps, reads messages
//! worker::workers           all workers; the home worker of each queue pair
//! process::session_store    saving sessions with the supervisor, to outlive this process
//! process::attach           one port's socket, connection and vhost-user session
//! process                   main function of the process, and the session thread
//! ```
//!
//! The crate reads no configuration and decides nothing: control adds the ports and sends the
//! action of each flow.

// The integration tests and the unit tests share the module of test guests.
#[cfg(test)]
extern crate self as datapath;

pub mod forward;
pub mod ports;
pub mod process;
pub mod worker;

#[cfg(test)]
mod tests;
