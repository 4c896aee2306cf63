//! Plain packets as tracking reads them: a few words of their first bytes.

use conntrack::segment::Brief;
use conntrack::{Message, Packet, Tuple};
use wire::flow::{FlowMask, PLAIN_HEAD};
use wire::{EtherType, tcp, udp};

use crate::ports::batch::Frame;

/// Offsets of the network header, and of the transport's.
const L3: usize = 14;
const L4: usize = 34;
const L4_V6: usize = 54;
/// Offsets of the protocol of IPv4, and of a segment's header length, which its flags follow.
const PROTOCOL: usize = 23;
const OFFSET: usize = L4 + 12;
/// Bytes of an IPv4 header without options.
const IPV4_HEADER: usize = L4 - L3;
/// The first IPv4 address that is no host's: groups, and what is above them.
const GROUPS: u32 = 0xe000_0000;
/// First byte of IPv6 groups.
const GROUPS_V6: u8 = 0xff;
/// The only options of most segments: two of no operation, then timestamps (RFC 7323, appendix A).
const TIMESTAMPS: u32 = 0x0101_080a;
/// Header lengths of a segment without options, and with timestamps alone, bytes.
const BARE: usize = 20;
const STAMPED: usize = 32;
/// Flags of segments that open or close: their checksums are verified.
const DECISIVE: u16 = tcp::SYN | tcp::FIN | tcp::RST;

/// Flags that make another kind of segment.
const COUNTED: u16 = DECISIVE | tcp::ACK | tcp::URG;

/// A packet, as far as most judgements depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    pub(crate) tuple: Tuple,
    /// Its segment; [`Brief::NONE`] of a datagram.
    pub(crate) upper: Brief,
}

impl Plain {
    #[inline]
    pub(crate) fn packet(&self) -> Packet {
        Packet {
            tuple: self.tuple,
            message: self.upper.segment().map_or(Message::Udp, Message::Tcp),
            piece: None,
        }
    }
}

/// Reads what [`conntrack::packet::read`] does of a whole, untagged packet of UDP or TCP over IPv4
/// from one host to another, in a fraction of the time. A segment neither opens nor closes, and
/// has no options but timestamps. `None` for all other frames.
#[inline(always)]
pub(crate) fn read(zone: u16, frame: &Frame) -> Option<Plain> {
    read_v4(zone, frame, frame.plain_head()?)
}

/// Reads the same of a frame with work for its receiver, and the length of its headers. Its offload
/// is checked by the caller.
#[inline(always)]
pub(crate) fn read_offloaded(zone: u16, frame: &Frame) -> Option<(Plain, usize)> {
    let plain = read_v4(zone, frame, frame.headers.first()?)?;
    let head: &[u8; OFFSET + 1] = frame.headers.first()?;
    let len = usize::from(head[OFFSET] >> 4) * 4;
    (plain.upper != Brief::NONE).then_some((plain, L4 + len))
}

#[inline(always)]
fn read_v4(zone: u16, frame: &Frame, head: &[u8; PLAIN_HEAD]) -> Option<Plain> {
    let (begin, middle, end) = (word(head, 14)?, word(head, 22)?, word(head, 30)?);
    let total = usize::from((begin >> 32) as u16);
    let destination = (end >> 32) as u32;
    // Version 4 and five words; neither offset nor more fragments; to one station.
    let plain = (word(head, 6)? & 0xffff == u64::from(EtherType::IPV4.0))
        & (begin >> 56 == 0x45)
        & (begin & 0x3fff == 0)
        & (total + L3 <= frame.len() as usize)
        & (head[0] & 1 == 0)
        & (destination < GROUPS);
    let room = total.checked_sub(IPV4_HEADER)?;
    if !plain {
        return None;
    }
    let protocol = (middle >> 48) as u8;
    let upper = upper::<L4>(frame, protocol, room)?;
    // The destination's port above the source's.
    let ports = (end as u32).rotate_left(16);
    Some(Plain {
        tuple: Tuple::of_v4(zone, protocol, (middle as u32, destination), ports),
        upper,
    })
}

/// Reads the same over IPv6 without extension headers. More of such a frame is read than of others.
#[inline(always)]
pub(crate) fn read_v6(zone: u16, frame: &Frame) -> Option<Plain> {
    let head: &[u8; L4_V6 + 8] = frame.headers.first()?;
    let begin = word(head, L3)?;
    let room = usize::from((begin >> 16) as u16);
    let plain = frame.offload.is_nothing()
        & (word(head, 6)? & 0xffff == u64::from(EtherType::IPV6.0))
        & (begin >> 60 == 6)
        & (L4_V6 + room <= frame.len() as usize)
        & (head[0] & 1 == 0)
        & (head[38] != GROUPS_V6);
    if !plain {
        return None;
    }
    let protocol = (begin >> 8) as u8;
    let upper = upper::<L4_V6>(frame, protocol, room)?;
    let address = |at| Some((word(head, at + 8)?, word(head, at)?));
    let ports = ((word(head, L4_V6)? >> 32) as u32).rotate_left(16);
    let addresses = (address(22)?, address(38)?);
    Some(Plain {
        tuple: Tuple::of_v6(zone, protocol, addresses, ports),
        upper,
    })
}

/// The fields that the packets of a stretch share: what [`read`] examines, but for the numbers of a
/// segment, its window and its length.
pub(crate) const SHARED: FlowMask = FlowMask::NONE
    .with_smac()
    .with_dmac()
    .with_tos()
    .with_src_ip()
    .with_dst_ip()
    .with_l4_src()
    .with_l4_dst()
    .with_l4_flag_bits(COUNTED);

/// Returns whether two packets have one destination and the same ports: most stretches have one.
#[inline(always)]
pub(crate) fn may_follow(frame: &Frame, next: &Frame) -> bool {
    let (Some(one), Some(other)) = (frame.plain_head(), next.plain_head()) else {
        return false;
    };
    word(one, 30) == word(other, 30)
}

/// Returns whether a segment that shares its fields with one that [`read`] has read is read by it,
/// too.
#[inline(never)]
pub(crate) fn follows(frame: &Frame) -> bool {
    let Some(head) = frame.plain_head() else {
        return false;
    };
    if head[PROTOCOL] == udp::PROTOCOL {
        let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
        let length = usize::from(u16::from_be_bytes([head[38], head[39]]));
        return length >= udp::HEADER_LEN && IPV4_HEADER + length <= total;
    }
    head[OFFSET] >> 4 == 5
        || is_stamped::<L4>(frame.headers.as_slice(), usize::from(head[OFFSET] >> 4) * 4)
}

/// Returns whether a packet is a segment without options: then all that share its fields are.
#[inline(always)]
pub(crate) fn is_bare(frame: &Frame) -> bool {
    let head = frame.plain_head();
    head.is_some_and(|head| head[PROTOCOL] == tcp::PROTOCOL && head[OFFSET] >> 4 == 5)
}

/// Fields that all segments of a stretch of [`read`] have: header length, and the flags that count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedFields {
    /// Bytes of both headers.
    headers: u32,
    flags: u8,
}

impl SharedFields {
    /// Returns those of a stretch that begins with this frame.
    #[inline(always)]
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        let head: &[u8; OFFSET + 2] = frame.headers.first()?;
        Some(Self {
            headers: IPV4_HEADER as u32 + u32::from(head[OFFSET] >> 4) * 4,
            flags: head[OFFSET + 1],
        })
    }

    /// Reads a segment of the stretch.
    #[inline(always)]
    pub(crate) fn segment(self, frame: &Frame) -> Option<Brief> {
        let head: &[u8; OFFSET + 4] = frame.headers.first()?;
        let numbers = word(head, L4 + 4)?;
        let total = u16::from_be_bytes([head[16], head[17]]);
        let window = u16::from_be_bytes([head[48], head[49]]);
        let payload = u32::from(total).wrapping_sub(self.headers);
        Some(Brief::new(numbers, payload, (window, self.flags), false))
    }
}

/// Reads a segment that [`read_v6`] has read.
#[inline(always)]
pub(crate) fn segment_v6(frame: &Frame) -> Option<Brief> {
    let head: &[u8; L4_V6] = frame.headers.first()?;
    let room = usize::from((word(head, L3)? >> 16) as u16);
    upper::<L4_V6>(frame, tcp::PROTOCOL, room)
}

/// Reads a segment that [`read_offloaded`] has read.
#[inline(always)]
pub(crate) fn segment_offloaded(frame: &Frame) -> Option<Brief> {
    let head: &[u8; L4] = frame.headers.first()?;
    let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
    upper::<L4>(frame, tcp::PROTOCOL, total.checked_sub(IPV4_HEADER)?)
}

/// Returns whether a frame is of IPv6, and [`read_v6`] may read it.
#[inline(always)]
pub(crate) fn is_v6(frame: &Frame) -> bool {
    let head = frame.plain_head();
    head.is_some_and(|head| head[12..14] == EtherType::IPV6.0.to_be_bytes())
}

#[inline(always)]
fn word(head: &[u8], at: usize) -> Option<u64> {
    let bytes = head.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*bytes))
}

/// Reads the upper layer, which begins at `AT` and has `room` bytes.
#[inline(always)]
fn upper<const AT: usize>(frame: &Frame, protocol: u8, room: usize) -> Option<Brief> {
    let headers = frame.headers.as_slice();
    match protocol {
        tcp::PROTOCOL => {
            let bytes = headers.get(AT..AT + BARE)?;
            let (numbers, tail) = (word(bytes, 4)?, word(bytes, 12)?);
            let len = (tail >> 60) as usize * 4;
            let flags = (tail >> 48) as u16;
            let payload = room.checked_sub(len)?;
            let present = len != BARE;
            if flags & DECISIVE != 0 || present && !is_stamped::<AT>(headers, len) {
                return None;
            }
            let small = ((tail >> 32) as u16, flags as u8);
            Some(Brief::new(numbers, payload as u32, small, present))
        }
        udp::PROTOCOL => {
            let length = headers.get(AT + 4..)?.first_chunk()?;
            let length = usize::from(u16::from_be_bytes(*length));
            (udp::HEADER_LEN..=room)
                .contains(&length)
                .then_some(Brief::NONE)
        }
        _ => None,
    }
}

/// Returns whether timestamps are the only options of a segment.
#[inline(always)]
fn is_stamped<const AT: usize>(headers: &[u8], len: usize) -> bool {
    let options = headers.get(AT + BARE..).and_then(|rest| rest.first_chunk());
    len == STAMPED && options.is_some_and(|options| u32::from_be_bytes(*options) == TIMESTAMPS)
}
