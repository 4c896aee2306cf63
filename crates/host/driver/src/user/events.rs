//! The 64 bits of an event of epoll: the thing that it is about.

use rustix::event::epoll::EventData;

/// Bits of a serial number in the upper half of a tag.
const SERIAL_BITS: u32 = 29;
const SERIAL: u32 = (1 << SERIAL_BITS) - 1;

/// The kinds of things that wake a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The switch or the main thread.
    Wake,
    /// The socket of a flow.
    Flow,
    /// The socket of a question at a resolver.
    Question,
    /// A socket for echo requests.
    Echo,
    /// A listening socket.
    Forward,
}

/// A kind, an index, and a serial number that tells events that are older than the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) const WAKE: Self = Self(0);

    pub(super) fn new(kind: Kind, serial: u32, index: u32) -> Self {
        let high = (kind as u32) << SERIAL_BITS | serial & SERIAL;
        Self(u64::from(high) << 32 | u64::from(index))
    }

    pub(super) fn of(data: EventData) -> Self {
        Self(data.u64())
    }

    pub(super) fn data(self) -> EventData {
        EventData::new_u64(self.0)
    }

    pub(super) fn kind(self) -> Kind {
        match self.0 >> (32 + SERIAL_BITS) {
            0 => Kind::Wake,
            1 => Kind::Flow,
            2 => Kind::Question,
            3 => Kind::Echo,
            _ => Kind::Forward,
        }
    }

    pub(super) fn serial(self) -> u32 {
        (self.0 >> 32) as u32 & SERIAL
    }

    /// Returns whether it has this serial number.
    pub(super) fn is_of(self, serial: u32) -> bool {
        self.serial() == serial & SERIAL
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_all_its_parts() {
        let kinds = [
            Kind::Wake,
            Kind::Flow,
            Kind::Question,
            Kind::Echo,
            Kind::Forward,
        ];
        for kind in kinds {
            let tag = Tag::of(Tag::new(kind, u32::MAX, 7).data());
            assert_eq!((tag.kind(), tag.serial(), tag.index()), (kind, SERIAL, 7));
        }
        assert_eq!(Tag::WAKE.kind(), Kind::Wake);
    }
}
