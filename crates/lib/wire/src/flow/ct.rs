//! Connection state, a field of the flow key.
//!
//! Connection tracking decides it before the flow is looked up, so flows depend on the state of a
//! connection and not on its addresses and ports.

use std::fmt::{Debug, Display, Formatter, Result};

bitflags::bitflags! {
    /// State of a frame's connection: the bits of `ct_state` in ovs-fields(7), without those of
    /// address translation, and two more.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CtState: u8 {
        /// Connection tracking has seen the frame.
        const TRACKED = 1;
        /// The frame begins a connection.
        const NEW = 1 << 1;
        /// The connection is known.
        const ESTABLISHED = 1 << 2;
        /// An ICMP error that quotes a packet of a known connection.
        const RELATED = 1 << 3;
        /// The frame comes from the answering side. With [`NEW`](Self::NEW): it may, because the
        /// connection may have been forgotten.
        const REPLY = 1 << 4;
        /// The frame can belong to no connection by state or window.
        const INVALID = 1 << 5;
        /// The rules have changed since they let the connection in.
        const STALE = 1 << 6;
        /// The station has moved to the ingress port since the connection began; or one of the two
        /// ports of the connection is not known yet, because its first frame was flooded.
        const MOVED = 1 << 7;
    }
}

impl CtState {
    /// All bits and their names, those of OVS where it has the bit.
    pub const NAMES: [(Self, &str); 8] = [
        (Self::TRACKED, "trk"),
        (Self::NEW, "new"),
        (Self::ESTABLISHED, "est"),
        (Self::RELATED, "rel"),
        (Self::REPLY, "rpl"),
        (Self::INVALID, "inv"),
        (Self::STALE, "stale"),
        (Self::MOVED, "moved"),
    ];

    /// Returns whether the connection is known and stands as it was let in, so that no rule is
    /// asked about the frame.
    #[must_use]
    #[inline]
    pub const fn is_known(self) -> bool {
        let known = Self::ESTABLISHED.union(Self::RELATED);
        let asked = Self::STALE.union(Self::MOVED).union(Self::INVALID);
        self.contains(Self::TRACKED) && self.intersects(known) && !self.intersects(asked)
    }
}

/// State of a frame's connection and the low byte of the connection's mark above it, in 16 bits.
/// Zero for frames that are not tracked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ct(u16);

impl Ct {
    /// The value of frames that are not tracked.
    pub const UNTRACKED: Self = Self(0);

    /// Returns the value of this state and mark.
    #[must_use]
    #[inline]
    pub const fn new(state: CtState, mark: u8) -> Self {
        Self(state.bits() as u16 | (mark as u16) << 8)
    }

    /// Returns the state.
    #[must_use]
    #[inline]
    pub const fn state(self) -> CtState {
        CtState::from_bits_retain(self.0 as u8)
    }

    /// Returns the low byte of the mark.
    #[must_use]
    #[inline]
    pub const fn mark(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns the value with these bits of the state, too.
    #[must_use]
    #[inline]
    pub const fn with_state(self, state: CtState) -> Self {
        Self(self.0 | state.bits() as u16)
    }

    /// Returns the value with these bits.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns its bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl Display for Ct {
    /// The names of the bits as OVS writes them, and the mark if there is one: `trk|est|rpl mark
    /// 3`.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let set = CtState::NAMES.iter();
        let set = set.filter(|(bit, _)| self.state().contains(*bit));
        for (at, (_, name)) in set.enumerate() {
            let sign = if at > 0 { "|" } else { "" };
            write!(f, "{sign}{name}")?;
        }
        match (self.mark(), self.state().is_empty()) {
            (0, _) => Ok(()),
            (mark, true) => write!(f, "mark {mark}"),
            (mark, false) => write!(f, " mark {mark}"),
        }
    }
}

impl Debug for Ct {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "Ct({self})")
    }
}
