//! Scheduling of the frames that leave by a port: guarantees, ceilings, priorities and weights of
//! its senders, with the words of `devlink-rate(8)`.
//!
//! An *output* is such a port. Control describes it ([`OutputConfig`]), and the switch asks its
//! [`Tree`] for bits when a sender has frames for it. The crate knows neither frames nor threads
//! nor a clock: it is arithmetic on bits and nanoseconds, which [`oracle`] checks.

#![forbid(unsafe_code)]

mod config;
#[cfg(any(test, feature = "test-utils"))]
pub mod oracle;
#[cfg(test)]
mod tests;
mod tokens;
mod tree;

pub use config::{
    Beyond, FullAction, Group, MAX_CLASSES, MAX_PRIORITY, OutputConfig, Rates, Sender, WEIGHT,
};
pub use tree::{Grant, Leaf, Need, QUANTUM, SCARCE, Tree};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;

/// Bits of the longest frame in one piece, 64 KiB of payload with its headers: the least burst.
pub const LONGEST: u64 = 65_553 * 8;
