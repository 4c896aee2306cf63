//! The state of one connection: a word that both directions change, and a side for each direction
//! that only frames of that direction change.
//!
//! So the threads that serve the two directions of a connection write no word of each other, but
//! for the few segments that change the TCP state.

use std::fmt;

use crate::Direction;
use crate::timeouts::Millis;

/// States of a TCP connection as a switch between its ends sees them. Names are `nf_conntrack`'s;
/// those of RFC 9293 are of one end. See [`tcp`](crate::tcp) for the diagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// No TCP connection.
    #[default]
    None,
    /// A SYN was sent.
    SynSent,
    /// A SYN was sent and answered.
    SynRecv,
    /// The answer is acknowledged.
    Established,
    /// One side has sent a FIN.
    FinWait,
    /// The FIN is acknowledged.
    CloseWait,
    /// Both sides have sent a FIN.
    LastAck,
    /// The last FIN is acknowledged.
    TimeWait,
    /// A side has reset the connection.
    Close,
    /// Each side has sent a SYN.
    SynSent2,
}

impl TcpState {
    const ALL: [Self; 10] = [
        Self::None,
        Self::SynSent,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::SynSent2,
    ];

    /// The name in lists of connections.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::SynSent2 => "SYN_SENT2",
        }
    }

    /// Returns whether a side has closed or reset the connection.
    #[inline]
    pub(crate) const fn is_closing(self) -> bool {
        matches!(
            self,
            Self::FinWait | Self::CloseWait | Self::LastAck | Self::TimeWait | Self::Close
        )
    }
}

/// The kind of the last segment that was accepted, as far as later ones depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Predecessor {
    /// An acknowledgement, with or without data: of either side.
    Ack,
    Syn,
    SynAck,
    Fin,
    Rst,
    /// An acknowledgement that answered a SYN: its sender has half a connection from before.
    HalfOpen,
}

impl Predecessor {
    const ALL: [Self; 6] = [
        Self::Ack,
        Self::Syn,
        Self::SynAck,
        Self::Fin,
        Self::Rst,
        Self::HalfOpen,
    ];
}

/// The word of a connection that frames of both directions change: 16 bits, by compare and
/// exchange.
///
/// ```text
/// bits 0..3  TCP state
///      4..6  kind of the last segment      7  the direction that it came from; 0 for an ACK
///      8 replied   9 assured   10 both sides have sent a SYN   11 the original side starts anew
///     12 FIN of the original side   13 FIN of the reply side   14 denied
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Progress(u16);

const STATE: u16 = 0xf;
const LAST: u32 = 4;
const LAST_REPLY: u16 = 1 << 7;

impl Progress {
    /// The answering side has sent a frame.
    pub(crate) const REPLIED: u16 = 1 << 8;
    /// More than a question and its answer have passed.
    pub(crate) const ASSURED: u16 = 1 << 9;
    /// Both sides have sent a SYN (RFC 9293, 3.5: simultaneous open).
    pub(crate) const SIMULTANEOUS: u16 = 1 << 10;
    /// Of the original side the SYN counts that was noted, and that the other side has answered.
    pub(crate) const RENEWED: u16 = 1 << 11;
    const FIN_ORIGINAL: u16 = 1 << 12;
    const FIN_REPLY: u16 = 1 << 13;
    /// Rules have denied a frame of it.
    pub(crate) const DENIED: u16 = 1 << 14;

    /// The bits, for shared memory.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The word of these bits: any are one.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns whether the answering side has sent a frame.
    #[inline]
    #[must_use]
    pub const fn is_replied(self) -> bool {
        self.has(Self::REPLIED)
    }

    /// Returns whether more than a question and its answer have passed: such a connection is the
    /// last to be evicted.
    #[inline]
    #[must_use]
    pub const fn is_assured(self) -> bool {
        self.has(Self::ASSURED)
    }

    /// Returns whether rules have denied a frame of it, and let in none since. Its frames change
    /// nothing until rules let one in.
    #[inline]
    #[must_use]
    pub const fn is_denied(self) -> bool {
        self.has(Self::DENIED)
    }

    /// Returns whether the connection goes before others where room is needed.
    #[inline]
    pub(crate) const fn goes_first(self) -> bool {
        !self.is_replied() || self.is_denied()
    }

    /// State of TCP; [`TcpState::None`] for other protocols.
    #[inline]
    #[must_use]
    pub fn tcp(self) -> TcpState {
        let number = usize::from(self.0 & STATE);
        TcpState::ALL.get(number).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn last(self) -> (Predecessor, Direction) {
        let number = usize::from(self.0 >> LAST & 7);
        let direction = if self.has(LAST_REPLY) {
            Direction::Reply
        } else {
            Direction::Original
        };
        (
            Predecessor::ALL
                .get(number)
                .copied()
                .unwrap_or(Predecessor::Ack),
            direction,
        )
    }

    #[inline]
    pub(crate) const fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }

    #[inline]
    pub(crate) const fn with(self, bit: u16) -> Self {
        Self(self.0 | bit)
    }

    #[inline]
    pub(crate) const fn without(self, bits: u16) -> Self {
        Self(self.0 & !bits)
    }

    #[inline]
    pub(crate) const fn with_tcp(self, state: TcpState) -> Self {
        Self(self.0 & !STATE | state as u16)
    }

    #[inline]
    pub(crate) const fn with_last(self, last: Predecessor, direction: Direction) -> Self {
        // Acknowledgements alternate: the direction would be written for each frame.
        let reply = match (last, direction) {
            (Predecessor::Ack, _) | (_, Direction::Original) => 0,
            (_, Direction::Reply) => LAST_REPLY,
        };
        Self(self.0 & !(7 << LAST | LAST_REPLY) | (last as u16) << LAST | reply)
    }

    /// The bit for a FIN of this side.
    #[inline]
    pub(crate) const fn fin(direction: Direction) -> u16 {
        match direction {
            Direction::Original => Self::FIN_ORIGINAL,
            Direction::Reply => Self::FIN_REPLY,
        }
    }

    /// Returns whether acknowledgements in the window leave it as it is: an established connection,
    /// answered, assured and not denied, and with an acknowledgement as the last segment.
    #[inline]
    pub(crate) const fn is_steady(self) -> bool {
        let fins = Self::FIN_ORIGINAL | Self::FIN_REPLY;
        let all = STATE | 7 << LAST | LAST_REPLY | Self::RENEWED | fins;
        let all = all | Self::REPLIED | Self::ASSURED | Self::DENIED;
        self.0 & all == TcpState::Established as u16 | Self::REPLIED | Self::ASSURED
    }

    /// Returns whether a side has closed.
    #[inline]
    pub(crate) const fn is_closed(self) -> bool {
        self.has(Self::FIN_ORIGINAL | Self::FIN_REPLY)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tcp().name())?;
        let names = [
            (Self::REPLIED, "replied"),
            (Self::ASSURED, "assured"),
            (Self::SIMULTANEOUS, "simultaneous"),
            (Self::RENEWED, "renewed"),
            (Self::FIN_ORIGINAL, "fin-original"),
            (Self::FIN_REPLY, "fin-reply"),
            (Self::DENIED, "denied"),
        ];
        for (bit, name) in names {
            if self.has(bit) {
                write!(f, " {name}")?;
            }
        }
        let (last, direction) = self.last();
        write!(f, " last {last:?} {direction:?}")
    }
}

/// Words of a [`Side`], of 32 bits.
pub const SIDE_WORDS: usize = 11;

/// The state of one direction of a connection, in 44 bytes, which only frames of that direction
/// change.
///
/// The windows are van Rooij's (Real Stateful TCP Packet Filtering in IP Filter, 2001).
/// `nf_conntrack` stores some of them with the other side: there a frame writes both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// When its last frame was accepted.
    pub used: Millis,
    /// Highest sequence number that it has sent, plus one.
    pub(crate) end: u32,
    /// The limit of what it may send until the other side says one.
    pub(crate) base: u32,
    /// The greatest window that it has announced, in bytes; zero before its first segment.
    pub(crate) window: u32,
    /// The other side's window, if this side's segments have gone beyond it: at least this.
    pub(crate) raised: u32,
    /// The limit of what it lets the other side send; see [`Flags::ALLOWED`].
    pub(crate) allowed: u32,
    /// Highest acknowledgement that it has sent; see [`Flags::ACKED`].
    pub(crate) max_ack: u32,
    /// The other side's end when this side has last acknowledged all of it.
    pub(crate) all_acked: u32,
    /// End of its last acknowledgement, or of the segment that was noted last.
    pub(crate) last_end: u32,
    /// Acknowledgement number of the same.
    pub(crate) last_ack: u32,
    /// Window of the SYN that was noted last.
    pub(crate) noted_window: u16,
    pub(crate) flags: Flags,
    /// Window scale; in the upper four bits that of the SYN that was noted last, or 15 for none.
    pub(crate) scales: u8,
}

bitflags::bitflags! {
    /// Flags of a [`Side`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        /// It may send selective acknowledgements (RFC 2018).
        const SACK = 0x01;
        /// It scales windows (RFC 7323).
        const SCALE = 0x02;
        /// Its windows are not known well enough to be checked: TCP that was met in its middle.
        const LIBERAL = 0x04;
        /// Its end has risen since its first segment.
        const SENT = 0x08;
        /// [`Side::max_ack`] counts.
        const ACKED = 0x10;
        /// [`Side::allowed`] counts.
        const ALLOWED = 0x20;
        /// [`SACK`](Self::SACK) of a SYN that was noted.
        const NOTED_SACK = 0x40;
        /// Its last acknowledgement has announced a window.
        const OPEN = 0x80;
    }
}

/// Places of words among those of a [`Side`]: fields of these names.
#[allow(missing_docs)]
pub mod place {
    pub const END: usize = 0;
    pub const BASE: usize = 1;
    pub const WINDOW: usize = 2;
    pub const RAISED: usize = 3;
    pub const ALLOWED: usize = 4;
    pub const MAX_ACK: usize = 5;
    pub const ALL_ACKED: usize = 6;
    pub const LAST_END: usize = 7;
    pub const LAST_ACK: usize = 8;
    /// The window that was noted 16, flags 8, scales 8.
    pub const SMALL: usize = 9;
    pub const USED: usize = 10;
    /// The lowest bit of the flags.
    pub const FLAGS: u32 = 16;
}

impl Side {
    /// A side that was last used now, and has sent nothing that a window can be taken from.
    #[must_use]
    pub fn new(now: Millis) -> Self {
        Self {
            used: now,
            ..Self::default()
        }
    }

    /// The words, for shared memory.
    #[inline]
    #[must_use]
    pub fn words(&self) -> [u32; SIDE_WORDS] {
        let small = u32::from(self.noted_window)
            | u32::from(self.flags.bits()) << 16
            | u32::from(self.scales) << 24;
        [
            self.end,
            self.base,
            self.window,
            self.raised,
            self.allowed,
            self.max_ack,
            self.all_acked,
            self.last_end,
            self.last_ack,
            small,
            self.used,
        ]
    }

    /// The side of these words: any are one.
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u32; SIDE_WORDS]) -> Self {
        let [end, base, window, raised, allowed, max_ack, ..] = words;
        let [.., all_acked, last_end, last_ack, small, used] = words;
        Self {
            used,
            end,
            base,
            window,
            raised,
            allowed,
            max_ack,
            all_acked,
            last_end,
            last_ack,
            noted_window: 0,
            flags: Flags::empty(),
            scales: 0,
        }
        .with_small(small)
    }

    /// The same with the fields of the word of small ones.
    #[inline]
    #[must_use]
    pub(crate) const fn with_small(self, small: u32) -> Self {
        Self {
            noted_window: small as u16,
            flags: Flags::from_bits_retain((small >> place::FLAGS) as u8),
            scales: (small >> 24) as u8,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_the_whole_side(words: [u32; SIDE_WORDS]) {
            let side = Side::from_words(words);
            prop_assert_eq!(side.words(), words);
            prop_assert_eq!(Side::from_words(side.words()), side);
        }

        #[test]
        fn any_bits_are_a_state(bits: u16) {
            let progress = Progress::from_bits(bits);
            let _ = (format!("{progress:?}"), progress.last());
            prop_assert_eq!(progress.with_tcp(TcpState::Close).tcp(), TcpState::Close);
            let (last, direction) = progress.with_last(Predecessor::Rst, Direction::Reply).last();
            prop_assert_eq!((last, direction), (Predecessor::Rst, Direction::Reply));
        }
    }
}
