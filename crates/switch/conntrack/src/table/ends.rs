//! The two ports of a connection, and its mark: one word of an entry.
//!
//! ```text
//! 63..48     47                46..32          31..0
//! far port   charged to it     opener's port   mark
//! ```

use crate::state::Direction;

use super::account::{Account, Kind};
use super::layout::MAX_PORTS;

/// The word; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends(pub(crate) u64);

const FAR: u32 = 48;
const OPENED_TO: u64 = 1 << 47;
const OPENER: u32 = 32;
/// No port.
const NONE: u16 = u16::MAX;

impl Ends {
    /// The ends of no connection: those of an entry that was unlinked. Nothing changes them.
    pub(crate) const GONE: Self = Self(!(1 << FAR));

    pub(crate) fn new(opener: u16, far: Option<u16>, kind: Kind, mark: u32) -> Self {
        let far = u64::from(far.unwrap_or(NONE)) << FAR;
        let kind = if kind == Kind::OpenedTo { OPENED_TO } else { 0 };
        Self(far | kind | u64::from(opener & 0x7fff) << OPENER | u64::from(mark))
    }

    #[inline(always)]
    pub(crate) const fn opener(self) -> u16 {
        (self.0 >> OPENER) as u16 & 0x7fff
    }

    /// The far port; none until an answer binds it.
    #[inline(always)]
    pub(crate) const fn far(self) -> Option<u16> {
        let far = (self.0 >> FAR) as u16;
        if far == NONE { None } else { Some(far) }
    }

    /// The ports of a frame's own side and of the other one.
    #[inline(always)]
    pub(crate) const fn seen(self, direction: Direction) -> (Option<u16>, Option<u16>) {
        match direction {
            Direction::Original => (Some(self.opener()), self.far()),
            Direction::Reply => (self.far(), Some(self.opener())),
        }
    }

    /// The port of the other side of a frame's, if both sides' are known, and its own one is this.
    #[inline(always)]
    pub(crate) const fn beyond(self, direction: Direction, port: u16) -> Option<u16> {
        let far = (self.0 >> FAR) as u16;
        let (own, other) = match direction {
            Direction::Original => (self.opener(), far),
            Direction::Reply => (far, self.opener()),
        };
        if own == port && far != NONE {
            Some(other)
        } else {
            None
        }
    }

    /// The same once a frame of this direction from a port goes to another one, if it says
    /// anything about its connection: the side that answers does not say where the other one is,
    /// and a flood not that the known port is left.
    pub(crate) fn committed(
        self,
        direction: Direction,
        (from, to): (u16, Option<u16>),
    ) -> Option<Self> {
        match (direction, to) {
            (Direction::Original, Some(to)) => Some(self.with_opener(from).with_far(to)),
            (Direction::Original, None) => self.far().is_none().then(|| self.with_opener(from)),
            (Direction::Reply, Some(to)) => (to == self.opener()).then(|| self.with_far(from)),
            (Direction::Reply, None) => None,
        }
    }

    #[inline(always)]
    pub(crate) const fn mark(self) -> u32 {
        self.0 as u32
    }

    const fn kind(self) -> Kind {
        match self.0 & OPENED_TO {
            0 => Kind::Opened,
            _ => Kind::OpenedTo,
        }
    }

    /// The account that the connection is charged to.
    #[inline]
    pub(crate) const fn account(self) -> Account {
        match (self.kind(), self.far()) {
            (Kind::OpenedTo, Some(port)) => Account {
                port,
                kind: Kind::OpenedTo,
            },
            _ => Account {
                port: self.opener(),
                kind: Kind::Opened,
            },
        }
    }

    /// Returns whether a frame of this direction from a port is of the connection: if its side has
    /// the port, or has none yet and the other side has another.
    #[inline(always)]
    pub(crate) const fn accepts(self, direction: Direction, port: u16) -> bool {
        match (direction, self.far()) {
            (Direction::Reply, Some(far)) => far == port,
            (Direction::Reply, None) => self.opener() != port,
            (Direction::Original, _) => self.opener() == port,
        }
    }

    /// The same with another far port.
    pub(crate) fn with_far(self, far: u16) -> Self {
        Self::new(self.opener(), Some(far), self.kind(), self.mark())
    }

    /// The same with another port of the opener.
    pub(crate) fn with_opener(self, opener: u16) -> Self {
        Self::new(opener, self.far(), self.kind(), self.mark())
    }

    /// Returns whether all fields are possible ones.
    pub(crate) fn is_sound(self) -> bool {
        let is_port = |port: u16| usize::from(port) < MAX_PORTS;
        is_port(self.opener())
            && self.far().is_none_or(is_port)
            && (self.kind() == Kind::Opened || self.far().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_their_fields() {
        for (far, kind) in [
            (None, Kind::Opened),
            (Some(0), Kind::Opened),
            (Some(1023), Kind::OpenedTo),
        ] {
            let ends = Ends::new(5, far, kind, 0xdead_beef);
            assert_eq!((ends.opener(), ends.far()), (5, far));
            assert_eq!(ends.mark(), 0xdead_beef);
            assert!(ends.is_sound());
            let port = if kind == Kind::Opened { 5 } else { 1023 };
            assert_eq!(ends.account(), Account { port, kind });
            let moved = ends.with_far(7).with_opener(8);
            assert_eq!((moved.opener(), moved.far()), (8, Some(7)));
        }
        for far in [None, Some(7)] {
            let ends = Ends::new(5, far, Kind::Opened, 0);
            for (direction, port) in [Direction::Original, Direction::Reply]
                .into_iter()
                .flat_map(|direction| [5, 7, NONE].map(|port| (direction, port)))
            {
                let expected = match ends.seen(direction) {
                    (Some(own), Some(other)) if own == port => Some(other),
                    _ => None,
                };
                assert_eq!(ends.beyond(direction, port), expected);
            }
        }
        assert!(!Ends::GONE.is_sound());
        for direction in [Direction::Original, Direction::Reply] {
            assert!((0..MAX_PORTS as u16).all(|port| !Ends::GONE.accepts(direction, port)));
        }
        assert!(!Ends::new(1024, None, Kind::Opened, 0).is_sound());
        assert!(!Ends::new(1, Some(1024), Kind::Opened, 0).is_sound());
        assert!(!Ends::new(1, None, Kind::OpenedTo, 0).is_sound());
    }
}
