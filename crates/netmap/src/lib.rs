//! The netmap API without netmap's kernel module.

pub mod abi;
mod bound;
pub mod device;
pub mod epolls;
mod forks;
pub mod ioctl;
mod meeting;
pub mod names;
mod pages;
mod pipe;
mod port;
mod region;
mod ring;
mod say;
mod sync;
pub mod table;
mod view;
pub mod wait;
mod wake;

pub use rustix::io::Errno;
