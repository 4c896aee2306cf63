//! The switch process: guest memory, vhost-user sessions, flow cache, frame delivery.
//!
//! ```text
//! process          main function of the process, and the session thread
//! attach           one port's socket, connection and vhost-user session
//! session_store    saving sessions with the supervisor, to outlive this process
//! workers          all workers; the home worker of each queue pair
//! worker           a thread that serves queue pairs: polls, sleeps, reads messages and decisions
//! guests           the vCPU states of guests
//! poll             adaptive polling: when a worker sleeps (no clock, no threads)
//! coalescing       interrupt coalescing: when a running guest is notified (no clock, no threads)
//! switch           one batch at a time: match, deliver (no threads, no sockets)
//! flow_batch       frames of a batch that share a decision
//! pending_upcalls  frames that wait for a decision
//! apply            control's decisions, executed in parts
//! revalidator      sweeps over all flows, in parts between batches
//! fabric           the ports, and delivery of frames to others
//! reject           replies to senders of rejected frames
//! tap              taps of captures
//! mirror           mirrors of ports
//! deferred         deferred notifications
//! limits           rate limits of ports
//! cycles           cost of batches, and its accounting
//! queue_lock       the lock of a queue that several workers use
//! idle             helpers on idle cores
//! offload          checksums and segmentation that senders leave to the receiver
//! crash_record     the port that each thread serves, for crash attribution
//! watchdog         ringing a front end's eventfd without being blocked by it
//! guest            a port made of virtio queues
//! replay           the workload of the instruction counts
//! ```
//!
//! The crate reads no configuration and decides nothing: control adds the ports and sends the
//! action of each flow.

// The integration tests and the unit tests share the module of test guests.
#[cfg(test)]
extern crate self as datapath;

mod apply;
pub mod attach;
pub mod coalescing;
pub mod crash_record;
pub mod cycles;
mod deferred;
mod fabric;
mod flow_batch;
pub mod guest;
pub mod guests;
pub mod idle;
pub mod limits;
pub mod mirror;
pub mod offload;
pub mod pending_upcalls;
pub mod poll;
pub mod process;
pub mod queue_lock;
mod reject;
mod replay;
pub mod revalidator;
pub mod session_store;
pub mod switch;
pub mod tap;
pub mod watchdog;
pub mod worker;
pub mod workers;

#[cfg(test)]
mod tests;
