//! The netmap API without netmap's kernel module.

pub mod abi;
mod bound;
pub mod device;
pub mod epolls;
pub mod ioctl;
mod meeting;
pub mod names;
mod pages;
mod pipe;
mod port;
mod region;
mod ring;
mod sync;
mod view;
pub mod wait;
mod wake;

pub use device::Netmap;
pub use rustix::io::Errno;

/// Lines for the person in front of the program.
pub(crate) static SAY: interpose::say::Lines = interpose::say::Lines::new("lasthop netmap");
