//! A TCP segment, as far as tracking reads it.

use wire::tcp::{self, TcpView};

/// The option that has the highest shift of a window (RFC 7323, 2.3).
const MAX_SCALE: u8 = 14;
/// Option kinds (RFC 9293, 3.1; RFC 7323; RFC 2018).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
/// The only options of most segments: two of no operation, then timestamps.
const TIMESTAMPS: [u8; 4] = [NO_OPERATION, NO_OPERATION, 8, 10];
const TIMESTAMPS_LEN: usize = 12;
/// Flags that say nothing about a segment's place in its connection: PSH, ECE and CWR.
const INDIFFERENT: u8 = tcp::PSH as u8 | 0x40 | tcp::CWR as u8;

/// Returns whether sequence number `a` is before `b` (RFC 9293, 3.4).
#[inline]
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns whether sequence number `a` is after `b`.
#[inline]
pub(crate) const fn after(a: u32, b: u32) -> bool {
    before(b, a)
}

/// The kind of a segment: that of its flags which counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

/// The options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether there are any.
    pub present: bool,
    /// Window scale, 14 at most.
    pub scale: Option<u8>,
    /// Whether selective acknowledgements are permitted.
    pub sack_permitted: bool,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The highest right edge of a selective acknowledgement (RFC 2018), or `ack` if that is
    /// higher.
    pub sack: u32,
    /// Bytes of payload.
    pub payload: u32,
    /// Window, unscaled.
    pub window: u16,
    /// The lower eight flags.
    pub flags: u8,
    /// Options; of a segment without SYN nothing but `present`.
    pub options: Options,
}

/// A segment in two words, which are passed in registers: what the short way of most segments
/// reads. It has no selective acknowledgements, and neither opens nor closes.
///
/// ```text
///       63..32                31..16   15..8  7..0
/// one   sequence number       acknowledgement number
/// two   bytes of payload      window   flags  1: it has options
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    numbers: u64,
    rest: u64,
}

impl Brief {
    /// Of what is no segment, or none that is read briefly: the short way declines it.
    pub const NONE: Self = Self {
        numbers: 0,
        rest: u64::MAX,
    };

    /// Returns one of a sequence number above an acknowledgement.
    #[inline(always)]
    #[must_use]
    pub const fn new(
        numbers: u64,
        payload: u32,
        (window, flags): (u16, u8),
        options: bool,
    ) -> Self {
        let rest = (payload as u64) << 32 | (window as u64) << 16 | (flags as u64) << 8;
        Self {
            numbers,
            rest: rest | options as u64,
        }
    }

    /// Returns that of a segment, or [`Brief::NONE`].
    #[must_use]
    pub const fn of(segment: &Segment) -> Self {
        if segment.sack != segment.ack || segment.has(tcp::SYN | tcp::FIN | tcp::RST) {
            return Self::NONE;
        }
        let numbers = (segment.seq as u64) << 32 | segment.ack as u64;
        let small = (segment.window, segment.flags);
        Self::new(numbers, segment.payload, small, segment.options.present)
    }

    /// The segment; nothing of [`Brief::NONE`].
    #[inline(always)]
    #[must_use]
    pub fn segment(self) -> Option<Segment> {
        let options = Options {
            present: self.rest & 1 != 0,
            ..Options::default()
        };
        (self != Self::NONE).then_some(Segment {
            seq: self.seq(),
            ack: self.ack(),
            sack: self.ack(),
            payload: self.payload(),
            window: self.window(),
            flags: self.flags(),
            options,
        })
    }

    #[inline(always)]
    pub(crate) const fn seq(self) -> u32 {
        (self.numbers >> 32) as u32
    }

    #[inline(always)]
    pub(crate) const fn ack(self) -> u32 {
        self.numbers as u32
    }

    #[inline(always)]
    pub(crate) const fn payload(self) -> u32 {
        (self.rest >> 32) as u32
    }

    #[inline(always)]
    pub(crate) const fn window(self) -> u16 {
        (self.rest >> 16) as u16
    }

    #[inline(always)]
    const fn flags(self) -> u8 {
        (self.rest >> 8) as u8
    }

    /// Returns whether its [kind](Kind) is an acknowledgement.
    #[inline(always)]
    pub(crate) const fn is_ack(self) -> bool {
        self.flags() & !(INDIFFERENT | tcp::URG as u8) == tcp::ACK as u8
    }
}

impl Segment {
    /// Reads a segment of `len` bytes, header included.
    #[must_use]
    pub fn read(view: &TcpView<'_>, len: u32) -> Self {
        let (flags, ack) = (view.flags() as u8, view.ack());
        let mut segment = Self {
            seq: view.seq(),
            ack,
            sack: ack,
            payload: len.saturating_sub(view.header_len() as u32),
            window: view.window(),
            flags,
            options: Options::default(),
        };
        let options = view.options();
        if !options.is_empty() {
            segment.read_options(options);
        }
        segment
    }

    /// Reads the options that count. A damaged one ends them.
    fn read_options(&mut self, mut bytes: &[u8]) {
        self.options.present = true;
        let syn = self.has(tcp::SYN);
        if !syn && bytes.len() == TIMESTAMPS_LEN && bytes.starts_with(&TIMESTAMPS) {
            return;
        }
        let mut edges = false;
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == END {
                return;
            }
            if kind == NO_OPERATION {
                bytes = rest;
                continue;
            }
            let len = usize::from(rest.first().copied().unwrap_or_default());
            let Some(value) = len.checked_sub(2).and_then(|len| rest.get(1..=len)) else {
                return;
            };
            match (kind, value) {
                (WINDOW_SCALE, [scale]) if syn => {
                    self.options.scale = Some((*scale).min(MAX_SCALE))
                }
                (SACK_PERMITTED, []) if syn => self.options.sack_permitted = true,
                (SACK, value) if !edges => edges = self.read_edges(value),
                _ => {}
            }
            bytes = &rest[len - 1..];
        }
    }

    /// Reads the edges of a selective acknowledgement, if they are whole.
    fn read_edges(&mut self, value: &[u8]) -> bool {
        let (blocks, rest) = value.as_chunks::<8>();
        if blocks.is_empty() || !rest.is_empty() {
            return false;
        }
        for [.., a, b, c, d] in blocks {
            let right = u32::from_be_bytes([*a, *b, *c, *d]);
            if after(right, self.sack) {
                self.sack = right;
            }
        }
        true
    }

    /// Returns whether one of these flags is set.
    #[inline]
    pub(crate) const fn has(&self, flags: u16) -> bool {
        self.flags & flags as u8 != 0
    }

    /// The sequence number after its last byte: a SYN and a FIN count as one each.
    #[inline]
    pub(crate) const fn end(&self) -> u32 {
        let counted = self.has(tcp::SYN) as u32 + self.has(tcp::FIN) as u32;
        self.seq.wrapping_add(self.payload).wrapping_add(counted)
    }

    /// The kind, or nothing for flags that no stack sends together (RFC 9293, 3.10.7.4): the test
    /// that firewalls have for them, which lets through PSH, ECE and CWR with any.
    #[inline]
    pub(crate) const fn kind(&self) -> Option<Kind> {
        const FIN: u8 = tcp::FIN as u8;
        const SYN: u8 = tcp::SYN as u8;
        const RST: u8 = tcp::RST as u8;
        const ACK: u8 = tcp::ACK as u8;
        const URG: u8 = tcp::URG as u8;
        let flags = self.flags & !INDIFFERENT;
        // Without a branch for most: an acknowledgement.
        if flags == ACK {
            return Some(Kind::Ack);
        }
        if flags == RST || flags == RST | ACK {
            return Some(Kind::Rst);
        }
        if flags == SYN | ACK {
            return Some(Kind::SynAck);
        }
        match flags & !URG {
            SYN => Some(Kind::Syn),
            flags if flags == FIN | ACK => Some(Kind::Fin),
            ACK => Some(Kind::Ack),
            _ => None,
        }
    }
}
