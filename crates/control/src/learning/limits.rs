//! Times and sizes.

use std::time::Duration;

/// Times and sizes of a forwarding database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// An address that was not heard for this long is forgotten. 300 s, as in IEEE 802.1Q.
    pub age: Duration,
    /// Addresses that may be learned at one port; frames to further ones are flooded. An address
    /// that moves to a full port is still moved: the table does not grow by it, and refusing would
    /// cut the station off.
    pub per_port: usize,
    /// Addresses that may be learned in total.
    pub total: usize,
    /// A move is false if the old port still speaks this long after it.
    pub move_window: Duration,
    /// The first time that a port is barred from an address.
    pub hold: Duration,
    /// Each repetition doubles the time, up to this. A claim is repeated if it comes within this
    /// time after the last bar has ended.
    pub max_hold: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(300),
            per_port: 4096,
            total: 65536,
            move_window: Duration::from_secs(1),
            hold: Duration::from_secs(30),
            max_hold: Duration::from_secs(600),
        }
    }
}
