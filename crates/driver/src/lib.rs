//! Driver processes: one for each uplink and each TAP port, between an interface of the host and
//! the switch.
//!
//! To the switch a driver is one more guest. It has one memory file of its own with virtqueues and
//! buffers, speaks vhost-user over a connection that the supervisor made, and can do no more harm
//! than a guest. It has no capability, opens nothing, and lives as long as its connection: after
//! any error it ends, and the supervisor starts another.
//!
//! ```text
//!   supervisor:  device::open      the interface, with the rights that this needs
//!   driver:      process           supervisor link, heartbeat, end
//!                                  the session with the switch: crate `front`
//!                  worker          one thread for each queue pair
//!                    queues        driver sides of virtqueues, in a region of shared memory: `front`
//!                    free_buffers  the buffers that the driver owns, in the order of addresses
//!                    frames        reading and writing the interface, one copy
//!                  user            in place of both for a user port: sockets instead of an interface
//!                  restrictions    limits and system call filter, before the first frame
//! ```

pub mod device;
mod frames;
mod free_buffers;
mod process;
mod restrictions;
#[cfg(feature = "test-utils")]
pub mod testing;
mod user;
mod vhost;
mod worker;
mod xdp;

/// Name of the memory that a driver shares with the switch.
const MEMORY: &str = "lasthop-driver";

pub use process::run;
#[cfg(feature = "in-process")]
pub use process::run_in_process;
pub use restrictions::{most_memory, threads};
