//! Budget of a sender: a part of its ready frames is taken, and the rest stays in its ring.

use port::Offload;
use wire::packet::ParsedHeaders;

/// Cost of a frame on the wire: a segmentation-offload frame costs as much as the frames that it
/// becomes, each with headers of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Ethernet frames.
    pub packets: u64,
    /// Bits of them, without preamble and checksum.
    pub bits: u64,
}

impl std::ops::Add for Cost {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bits: self.bits + other.bits,
        }
    }
}

impl Cost {
    /// Returns the cost of a frame of `len` bytes that starts with these headers, as its sender
    /// gave it: its offload is not checked yet.
    #[must_use]
    pub fn of_unchecked(headers: &[u8], len: u32, offload: &Offload) -> Self {
        match offload.gso {
            None => Self::of_whole(len),
            Some(gso) => {
                let parsed = ParsedHeaders::parse(headers, len as usize);
                Self::of_segments(len, parsed.header_len, gso.size)
            }
        }
    }

    /// Returns the cost of a frame whose offload was checked.
    #[inline]
    #[must_use]
    pub fn of(len: u32, offload: &Offload) -> Self {
        match offload.gso {
            None => Self::of_whole(len),
            Some(gso) => Self::of_segments(len, gso.header_len, gso.size),
        }
    }

    /// Returns the same behind a link that pads frames to `shortest` bytes.
    #[inline]
    #[must_use]
    pub fn of_padded(len: u32, offload: &Offload, shortest: u32) -> Self {
        match offload.gso {
            None => Self::of_whole(len.max(shortest)),
            Some(gso) => Self::of_segments(len, gso.header_len, gso.size)
                .padded((len, gso.header_len.into(), gso.size.into()), shortest),
        }
    }

    /// Adds the padding of the segments of a frame: its length, and the headers and payload of a
    /// segment.
    fn padded(self, (len, headers, payload): (u32, u32, u32), shortest: u32) -> Self {
        let missing = |segment: u64| u64::from(shortest).saturating_sub(segment);
        let (headers, payload) = (u64::from(headers), u64::from(payload.max(1)));
        let before = self.packets - 1;
        let last = u64::from(len).saturating_sub(before * payload);
        let padding = before * missing(headers + payload) + missing(last);
        Self {
            bits: self.bits + padding * 8,
            ..self
        }
    }

    #[inline]
    fn of_whole(len: u32) -> Self {
        Self {
            packets: 1,
            bits: u64::from(len) * 8,
        }
    }

    fn of_segments(len: u32, header_len: u16, size: u16) -> Self {
        let (len, headers) = (u64::from(len), u64::from(header_len));
        let payload = len.saturating_sub(headers);
        let packets = payload.div_ceil(u64::from(size.max(1))).max(1);
        Self {
            packets,
            bits: (len + (packets - 1) * headers) * 8,
        }
    }
}

/// Budget of one counted resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Granted amount.
    pub granted: u64,
    /// Used amount; it may exceed the granted one.
    pub used: u64,
    /// The grant is the most that is ever granted at once: waiting does not help a frame that needs
    /// more.
    pub is_all: bool,
}

impl Share {
    /// Without limit.
    pub const ENDLESS: Self = Self {
        granted: u64::MAX,
        used: 0,
        is_all: false,
    };

    fn has(&self, more: u64) -> bool {
        more <= self.granted.saturating_sub(self.used) || (self.is_all && self.used == 0)
    }
}

/// Budget of a sender in packets and bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Frames, as on the wire.
    pub packets: Share,
    /// Their bits.
    pub bits: Share,
    /// Cost of the first frame that was left in its ring, because the budget did not suffice.
    pub short: Option<Cost>,
}

impl Budget {
    /// Creates an unused budget.
    #[must_use]
    pub fn new(packets: Share, bits: Share) -> Self {
        Self {
            packets,
            bits,
            short: None,
        }
    }

    /// Charges a frame, if the budget suffices; else records its cost, and no more is to be taken.
    pub fn admit(&mut self, cost: Cost) -> bool {
        let admits = self.packets.has(cost.packets) && self.bits.has(cost.bits);
        if admits {
            self.charge(cost);
        } else {
            self.short = Some(cost);
        }
        admits
    }

    /// Returns whether so much is left of it.
    #[must_use]
    pub fn covers(&self, cost: Cost) -> bool {
        let left = |share: Share| share.granted.saturating_sub(share.used);
        cost.packets <= left(self.packets) && cost.bits <= left(self.bits)
    }

    /// Charges this instead of all that was charged.
    pub fn recharge(&mut self, cost: Cost) {
        (self.packets.used, self.bits.used) = (0, 0);
        self.charge(cost);
    }

    /// Charges a frame, even beyond the budget.
    pub fn charge(&mut self, cost: Cost) {
        self.packets.used += cost.packets;
        self.bits.used += cost.bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::{Gso, PartialChecksum};
    use wire::segment::GsoKind;

    fn tso(size: u16) -> Offload {
        Offload {
            checksum: Some(PartialChecksum {
                start: 34,
                offset: 16,
            }),
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size,
                ecn: false,
                header_len: 54,
            }),
        }
    }

    #[test]
    fn a_super_frame_costs_what_its_segments_do() {
        let plain = Cost::of(1514, &Offload::default());
        assert_eq!((plain.packets, plain.bits), (1, 1514 * 8));
        let cost = Cost::of(54 + 3000, &tso(1448));
        let each = [54 + 1448, 54 + 1448, 54 + 104];
        assert_eq!(cost.packets, 3);
        assert_eq!(cost.bits, each.iter().sum::<u64>() * 8);
        let exact = Cost::of(54 + 2896, &tso(1448));
        assert_eq!((exact.packets, exact.bits), (2, 2 * 1502 * 8));
    }

    #[test]
    fn a_link_pads_short_frames_and_short_segments() {
        let bits = |len, offload| Cost::of_padded(len, &offload, 60).bits;
        assert_eq!(bits(14, Offload::default()), 60 * 8);
        assert_eq!(bits(1514, Offload::default()), 1514 * 8);
        assert_eq!(bits(54 + 500, tso(1)), 500 * 60 * 8);
        // The last segment has the rest.
        assert_eq!(bits(54 + 1448 + 2, tso(1448)), (54 + 1448 + 60) * 8);
        assert_eq!(bits(54 + 7, tso(1448)), 61 * 8);
        let exact = Cost::of(54 + 3000, &tso(1448));
        assert_eq!(Cost::of_padded(54 + 3000, &tso(1448), 60), exact);
    }

    #[test]
    fn nothing_that_a_sender_says_makes_a_frame_free() {
        for (len, size) in [(14, 0), (14, 1), (54, 1448), (65_553, 1)] {
            let cost = Cost::of_unchecked(&[0; 14], len, &tso(size));
            assert!(cost.packets >= 1 && cost.bits >= u64::from(len) * 8);
        }
        // Without headers, all bytes count as payload.
        assert_eq!(Cost::of_unchecked(&[0; 64], 64, &tso(10)).packets, 5);
    }

    #[test]
    fn a_budget_ends_with_the_first_frame_that_it_is_too_small_for() {
        let share = |granted, is_all| Share {
            granted,
            used: 0,
            is_all,
        };
        let cost = |packets, bits| Cost { packets, bits };
        let mut budget = Budget::new(share(3, false), share(1000, false));
        assert!(budget.admit(cost(2, 400)) && budget.admit(cost(1, 600)));
        assert_eq!(budget.short, None);
        assert!(!budget.admit(cost(1, 0)));
        assert_eq!(budget.short, Some(cost(1, 0)));
        // A frame that needs more than is ever granted passes alone, and only where waiting does
        // not help.
        let mut budget = Budget::new(share(3, true), Share::ENDLESS);
        assert!(budget.admit(cost(70, 1)));
        assert_eq!(budget.packets.used, 70);
        assert!(!budget.admit(cost(1, 1)));
        let mut budget = Budget::new(share(3, true), share(8, false));
        assert!(!budget.admit(cost(70, 9)));
    }
}
