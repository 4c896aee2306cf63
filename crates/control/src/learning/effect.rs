//! What a change of the database means for others.

use std::time::Duration;

use policy::{PortId, SegmentId};
use wire::MacAddr;

/// Something that happened, in order; [`Effect::Invalidate`] asks for work, the rest is news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// An unknown station was learned (or pinned).
    Learned {
        /// The station's segment.
        segment: SegmentId,
        /// Its address.
        mac: MacAddr,
        /// The port behind which it is.
        port: PortId,
    },
    /// A station is now behind another port.
    Moved {
        /// The station's segment.
        segment: SegmentId,
        /// Its address.
        mac: MacAddr,
        /// The port behind which it was.
        from: PortId,
        /// The port behind which it is.
        to: PortId,
    },
    /// A station was not heard for too long, or its port or segment is gone.
    Forgotten {
        /// The station's segment.
        segment: SegmentId,
        /// Its address.
        mac: MacAddr,
        /// The port behind which it was.
        port: PortId,
    },
    /// A port claimed an address that another still uses: its frames with this source are to be
    /// dropped (`mac-claim`) for a while.
    Barred {
        /// The address's segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
        /// The port that claimed it.
        port: PortId,
        /// When the bar ends.
        until: Duration,
    },
    /// A frame taught nothing.
    Refused {
        /// The frame's segment.
        segment: SegmentId,
        /// Its source address.
        mac: MacAddr,
        /// The port that it came from.
        port: PortId,
        /// Why.
        why: Refusal,
    },
    /// All cached flows from and to this address in this segment were decided on old knowledge.
    Invalidate {
        /// The segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
    },
}

/// Why a frame taught nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Too many addresses at its port.
    PortFull,
    /// Too many addresses in total.
    TableFull,
    /// Its port is barred from the address.
    Barred,
    /// The address is pinned to another port.
    Pinned,
}

/// What has happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Stations learned.
    pub learned: u64,
    /// Stations that changed their port, also back to where they were.
    pub moved: u64,
    /// Stations not heard for too long.
    pub aged: u64,
    /// Claims found false, each of which barred a port.
    pub false_claims: u64,
    /// Frames that taught nothing, see [`Refusal::PortFull`].
    pub port_full: u64,
    /// Likewise, [`Refusal::TableFull`].
    pub table_full: u64,
    /// Likewise, [`Refusal::Barred`].
    pub barred: u64,
    /// Likewise, [`Refusal::Pinned`].
    pub pinned: u64,
}

impl Counters {
    pub(super) fn refused_for(&mut self, why: Refusal) -> &mut u64 {
        match why {
            Refusal::PortFull => &mut self.port_full,
            Refusal::TableFull => &mut self.table_full,
            Refusal::Barred => &mut self.barred,
            Refusal::Pinned => &mut self.pinned,
        }
    }
}
