//! What a port may send and be sent, as control tells the switch.

use serde::{Deserialize, Serialize};

/// So many a second, and so many at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// A second, in the long run; at least 1.
    pub per_second: u64,
    /// At once, after a pause; at least 1.
    pub burst: u64,
}

/// Bounds of one direction; none where there is no bound. A segmentation-offload frame counts as the frames that it becomes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Frames.
    pub packets: Option<Rate>,
    /// Bits of the frames, without preamble and checksum.
    pub bits: Option<Rate>,
}

/// All bounds of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// What its guest sends: more waits in the guest's own queue.
    pub from_guest: Limit,
    /// What its guest is sent: more is dropped.
    pub to_guest: Limit,
    /// Broadcast frames that its guest sends: more are dropped.
    pub broadcast: Option<Rate>,
    /// Multicast frames, likewise.
    pub multicast: Option<Rate>,
    /// Frames for a station that is not known, so that all get them; likewise.
    pub unknown_unicast: Option<Rate>,
}

impl Limits {
    /// Whether there are none.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
