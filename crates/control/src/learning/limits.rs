//! Times and sizes.

use std::time::Duration;

/// Times and sizes of a forwarding database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ageing time: entries without frames for this long are removed. 300 s, as in IEEE 802.1Q.
    pub age: Duration,
    /// Maximum number of addresses learned at one port; frames to further ones are flooded. An
    /// address still moves to a full port: the table does not grow, and a refusal would disconnect
    /// the host.
    pub per_port: usize,
    /// Maximum number of learned addresses in total.
    pub total: usize,
    /// Move window: a move is false if the old port sends within this time after it.
    pub move_window: Duration,
    /// Duration of the first bar of a port.
    pub hold: Duration,
    /// Maximum duration of a bar: each repetition doubles it. A false claim is a repetition if it
    /// comes within this time after the end of the last bar.
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
