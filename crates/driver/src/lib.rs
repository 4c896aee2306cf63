//! Driver processes: one for each uplink and each TAP port, between an interface of the host and the switch.
//!
//! To the switch a driver is one more guest. It has one memory file of its own with virtqueues and buffers, speaks
//! vhost-user over a connection that the supervisor made, and can do no more harm than a guest. It has no capability,
//! opens nothing, and lives as long as its connection: whatever goes wrong, it ends, and the supervisor starts
//! another.
//!
//! ```text
//!   supervisor:  device::open      the interface, with the rights that this needs
//!   driver:      process           what the supervisor says, heart-beat, end
//!                  front           the session with the switch
//!                  worker          one thread for each queue pair
//!                    queue         driver side of a virtqueue, in a region of shared memory
//!                    frames        reading and writing the interface, one copy
//!                  closing         what is given up last, before the first frame
//! ```

mod closing;
pub mod device;
mod frames;
mod front;
mod process;
mod queue;
mod region;
mod worker;
mod xdp;

pub use closing::{most_memory, threads};
pub use process::run;
#[cfg(feature = "inside")]
pub use process::run_inside;
