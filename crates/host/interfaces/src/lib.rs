//! Interfaces of the host behind ports. The supervisor opens and configures them, because that
//! needs rights; a driver process moves their frames.
//!
//! No frame is parsed here, and no code of user ports' networks is linked: the supervisor is the
//! process with rights.
//!
//! The modules, the lowest first; a module uses only those before it:
//!
//! ```text
//! umem       layout of the memory of `AF_XDP` sockets
//! vhost      requests of vhost devices
//! prefilter  the table of flows in the kernel, and the programs that read it
//! device     opening and configuring: TAP, packet and `AF_XDP` sockets, namespaces of user ports
//! limits     memory and threads of a driver, for its control group and for its own limits
//! testing    interfaces of tests
//! ```

pub mod device;
pub mod limits;
pub mod prefilter;
#[cfg(any(test, feature = "test-utils"))]
pub mod testing;
pub mod umem;
pub mod vhost;

/// Name of the memory that a driver shares with the switch.
pub const MEMORY: &str = "lasthop-driver";
