//! Effects of changes of the database.

use policy::{PortId, SegmentId};
use wire::MacAddr;

/// Effects, in order. [`Effect::Invalidate`] requires an action; the others are notifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A new address was learned or pinned.
    Learned {
        /// The address's segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
        /// Its port.
        port: PortId,
    },
    /// An address has moved to another port.
    Moved {
        /// The address's segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
        /// The old port.
        from: PortId,
        /// Its port.
        to: PortId,
    },
    /// An entry has aged out, or its port or segment was removed.
    Forgotten {
        /// The address's segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
        /// The old port.
        port: PortId,
    },
    /// An address that a port claims again and again stays where it is. Reported once in a series
    /// of [`Effect::Refused`].
    Damped {
        /// The address's segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
        /// The port that claims it.
        port: PortId,
        /// The port that has it.
        holder: PortId,
    },
    /// A source address was not learned.
    Refused {
        /// The frame's segment.
        segment: SegmentId,
        /// Its source address.
        mac: MacAddr,
        /// The frame's port.
        port: PortId,
        /// The reason.
        why: Refusal,
    },
    /// All cached flows from and to this address in this segment are outdated.
    Invalidate {
        /// The segment.
        segment: SegmentId,
        /// The address.
        mac: MacAddr,
    },
}

/// Reasons why a source address is not learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Too many addresses at its port.
    PortFull,
    /// Too many addresses in total.
    TableFull,
    /// The address has moved to its port too often.
    Damped,
    /// The address belongs to other ports.
    Pinned,
}

/// Counters of the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Addresses learned.
    pub learned: u64,
    /// Moves of addresses, including moves back.
    pub moved: u64,
    /// Entries that have aged out.
    pub aged: u64,
    /// Frames that were not learned, see [`Refusal::PortFull`].
    pub port_full: u64,
    /// Likewise, [`Refusal::TableFull`].
    pub table_full: u64,
    /// Likewise, [`Refusal::Damped`].
    pub damped: u64,
    /// Likewise, [`Refusal::Pinned`].
    pub pinned: u64,
}

impl Counters {
    pub(super) fn refused_for(&mut self, why: Refusal) -> &mut u64 {
        match why {
            Refusal::PortFull => &mut self.port_full,
            Refusal::TableFull => &mut self.table_full,
            Refusal::Damped => &mut self.damped,
            Refusal::Pinned => &mut self.pinned,
        }
    }
}
