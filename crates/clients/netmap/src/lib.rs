//! The netmap API without netmap's kernel module.

pub mod abi;
pub mod device;
pub mod epolls;
pub mod ioctl;
mod meeting;
pub mod names;
mod pages;
mod pipe;
mod port;
mod region;
mod registration;
mod ring;
mod sync;
mod view;
pub mod wait;
mod wake;

pub use device::Netmap;
pub use rustix::io::Errno;

/// Lines for the person who runs the program.
pub(crate) static SAY: interpose::say::Lines = interpose::say::Lines::new("lasthop netmap");

/// Says why a request is refused; returns its error.
pub(crate) fn refuse(errno: Errno, why: &str) -> Errno {
    SAY.once(why);
    errno
}
