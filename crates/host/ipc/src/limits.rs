//! Limits of a port, from control to the switch.

use serde::{Deserialize, Serialize};

/// Rate and burst.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Per second, in the long run; at least 1.
    pub per_second: u64,
    /// At once, after a pause; at least 1.
    pub burst: u64,
}

/// Limits of one direction; none where there is no limit. A segmentation-offload frame counts as
/// the frames that it becomes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Frames.
    pub packets: Option<Rate>,
    /// Bits of the frames, without preamble and checksum.
    pub bits: Option<Rate>,
}

/// All limits of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Frames that its guest sends: excess frames wait in the guest's own queue.
    pub from_guest: Limit,
    /// Frames that its guest receives: excess frames are dropped.
    pub to_guest: Limit,
    /// Broadcast frames that its guest sends: excess frames are dropped.
    pub broadcast: Option<Rate>,
    /// Multicast frames, likewise.
    pub multicast: Option<Rate>,
    /// Frames to an unknown destination, which are flooded; likewise.
    pub unknown_unicast: Option<Rate>,
    /// Tracked connections: those that its guest opens, and those opened to it, each.
    pub connections: Option<u32>,
}

impl Limits {
    /// Returns whether there are none.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
