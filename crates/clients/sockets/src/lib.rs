//! Sockets over a port: a process of the host as one more guest, with a TCP/IP stack of its own.
//!
//! Its modules, the lowest first; a module uses only those before it:
//!
//! ```text
//! config   settings of a program, by its environment
//! offload  checksums and segmentation of frames that come
//! device   frames as smoltcp has them; checksums and segmentation are left to the switch
//! link     a queue pair in memory of our own, and the vhost-user session
//! stack    sockets without descriptors, threads and clocks, over smoltcp
//! net      the stack, shared by threads: who handles frames, and when
//! posix    sockets as the C library has them: descriptors, errors, waits
//! ```
//!
//! Frames are handled by the thread that calls, under one lock: to send is to write into the queue,
//! without a system call unless the switch sleeps. A thread of the library handles them while
//! no other thread calls.

pub mod config;
mod device;
mod link;
mod net;
mod offload;
pub mod posix;
mod stack;

pub use config::Config;
pub use device::Wire;
pub use link::{Events, Link};
pub use net::{Error, Interest, Net};
pub use rustix::io::Errno;
pub use stack::{Family, Id, KeepAlive, Kind, Options, Random, ReceivedBytes, Stack};

/// A random number of the system's.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // The system has had its entropy since long before: the call fills eight bytes.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Lines for the user of the program.
pub(crate) static SAY: interpose::say::Lines = interpose::say::Lines::new("lasthop net");
