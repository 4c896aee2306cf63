//! Driver processes: one for each uplink and each TAP port, between an interface of the host and
//! the switch.
//!
//! To the switch a driver is one more guest. It has one memory file of its own with virtqueues and
//! buffers, speaks vhost-user over a connection that the supervisor made, and can do no more harm
//! than a guest. It has no capability, opens nothing, and lives as long as its connection: after
//! any error it ends, and the supervisor starts another.
//!
//! The supervisor opens the interface by crate `interfaces`, with the rights that this needs; the
//! session with the switch and the driver's sides of virtqueues are crate `front`'s. The modules
//! here, the lowest first; a module uses only those before it:
//!
//! ```text
//! free_buffers    the buffers that the driver owns, in the order of addresses
//! frames          reading and writing the interface, one copy
//! user::memory    bytes of buffers, for system calls
//! user::calls     system calls with them
//! user::buffers   memory of the host in the buffers of sockets
//! user::settings  the network of a user port, out of the supervisor's message
//! worker          one thread for each queue pair
//! user            in place of it for a user port: sockets instead of an interface
//! restrictions    limits and system call filter, before the first frame
//! process         supervisor link, heartbeat, end
//! testing         a queue for fuzz targets
//! ```

mod frames;
mod free_buffers;
mod process;
mod restrictions;
#[cfg(feature = "test-utils")]
pub mod testing;
mod user;
mod worker;

pub use process::run;
