//! Coalescing in software: consecutive frames of a TCP or UDP flow become one super-frame, which
//! [`segment`](crate::segment), the kernel or a network card cuts into the same frames again. Linux
//! does so when it receives (generic receive offload).
//!
//! Pure header logic: payloads stay in place, in pieces. The rules, for what is cut again to be
//! what came:
//!
//! * Ethernet header, tag, addresses, ports, TTL, type of service, flow label, window,
//!   acknowledgement, options: the same bytes.
//! * IPv4 without options, with a right header checksum; IPv6 without extension headers; no
//!   fragments, no padding behind the datagram.
//! * The IPv4 identification counts up. It may be anything where fragmentation is forbidden (DF):
//!   there it has no meaning, and is counted up by what cuts (RFC 6864, section 4.1).
//! * All payloads but the last have one length, which is not zero; the last may be shorter.
//! * TCP: consecutive sequence numbers; no flags but ACK, ECE, and PSH, which ends a super-frame.
//! * UDP: the length agrees with IP's.
//! * The transport checksum is right ([`SuperFrame::is_right`]), or it is left to the receiver and
//!   starts from the right pseudo-header. A datagram without a checksum would get one: it goes
//!   alone.

use crate::{
    Sum,
    bytes::{put16, put32},
    ipv6,
    packet::{Fragment, L3, ParsedHeaders},
    segment::GsoKind,
    tcp, udp,
    virtio::net::{self, NetHeader},
};

/// Most bytes of headers of a coalesced frame: Ethernet, a tag, IPv6, TCP.
pub const HEAD: usize = 14 + 4 + ipv6::HEADER_LEN + 60;
/// Limit of frames in a super-frame. All kernels that know UDP super-frames cut as many
/// (`UDP_MAX_SEGMENTS` was 64 at first).
pub const MAX_FRAMES: u16 = 64;
/// Place of the ports of TCP and UDP over IPv4, without a tag and options.
const PORTS: usize = 34;
/// Limit of bytes of an IP packet.
const MAX_PACKET: usize = 65_535;
/// IPv4's header without options.
const IPV4_LEN: usize = 20;
/// Forbids fragmentation, in the first byte of flags and offset.
const DF: u8 = 0x40;
/// Multiplier of the hash: 2^64 divided by the golden ratio, which is odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Congestion was experienced (RFC 3168).
const ECE: u16 = 0x40;

/// Returns a hash of the flow of a whole TCP or UDP frame: its VLAN, addresses, protocol and ports.
/// The upper bits are the best. A frame of plain IPv4 has one even if a length in it is wrong: its
/// ports are in their place. `None` for any other frame; it may belong to any flow, as a fragment
/// does. The first `known` bytes of `head` are the frame's; those after them, and after
/// `frame_len` bytes, have no meaning.
#[inline]
pub fn flow_hash(head: &[u8; HEAD], known: usize, frame_len: usize) -> Option<u64> {
    let known = known.min(frame_len).min(HEAD);
    // Plain IPv4 is looked at where it is: all of these fields have one place.
    let is_plain = known >= PORTS + 4
        && head[12..15] == [0x08, 0x00, 0x45]
        && word(head, 20) & !(u16::from(DF) << 8) == 0;
    let protocol = head[23];
    if is_plain && matches!(protocol, tcp::PROTOCOL | udp::PROTOCOL) {
        let (src, dst) = (long(head, 26), long(head, 30));
        let ports = u64::from(long(head, PORTS));
        return Some(hash(
            src.into(),
            dst.into(),
            ports << 32 | u64::from(protocol),
        ));
    }
    let p = ParsedHeaders::parse(&head[..known], frame_len);
    p.l4_offset?;
    let transport = matches!(p.l4_proto, tcp::PROTOCOL | udp::PROTOCOL);
    if !transport || p.fragment != Fragment::No {
        return None;
    }
    let (src, dst) = match p.l3 {
        L3::V4 { src, dst, .. } => (u128::from(src.to_bits()), u128::from(dst.to_bits())),
        L3::V6 { src, dst, .. } => (src.to_bits(), dst.to_bits()),
        _ => return None,
    };
    let vlan = p.vlan.map_or(0, |tag| tag.vid);
    let ports = u64::from(p.src_port) << 16 | u64::from(p.dst_port);
    let rest = ports << 32 | u64::from(vlan) << 8 | u64::from(p.l4_proto);
    Some(hash(src, dst, rest))
}

#[inline]
fn hash(src: u128, dst: u128, rest: u64) -> u64 {
    let words = [
        src as u64,
        (src >> 64) as u64,
        dst as u64,
        (dst >> 64) as u64,
    ];
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(MIX).rotate_left(31);
    words.into_iter().fold(rest, mix).wrapping_mul(MIX)
}

/// A frame that may be coalesced with others of its flow, and what it has become by that.
#[derive(Clone, Debug)]
pub struct SuperFrame {
    /// The headers. What differs between frames of a flow is zero before [`finish`](Self::finish).
    head: [u8; HEAD],
    header_len: u8,
    l3: u8,
    l4: u8,
    kind: GsoKind,
    /// Payload of each frame but the last, in bytes.
    size: u16,
    /// Payload of all, in bytes.
    payload: u32,
    count: u16,
    /// It takes no further frame.
    ended: bool,
    /// IPv4's identification of the first frame.
    id: u16,
    /// TCP's sequence number of the first frame.
    seq: u32,
    push: bool,
    /// Of the pseudo-header, without the length.
    pseudo: Sum,
    /// Of pseudo-header and transport header, with the checksum, of a frame whose checksum is
    /// complete.
    complete: Option<Sum>,
}

impl Default for SuperFrame {
    /// No frame yet.
    fn default() -> Self {
        Self {
            head: [0; HEAD],
            header_len: 0,
            l3: 0,
            l4: 0,
            kind: GsoKind::Tcp4,
            size: 0,
            payload: 0,
            count: 0,
            ended: true,
            id: 0,
            seq: 0,
            push: false,
            pseudo: Sum::new(),
            complete: None,
        }
    }
}

impl SuperFrame {
    /// Returns the place of the first bytes of a frame, up to [`HEAD`]. They are filled in before
    /// [`check`](Self::check), in place because they would be copied several times otherwise.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8; HEAD] {
        &mut self.head
    }

    /// Makes it a frame of `frame_len` bytes; the first ones are [there](Self::bytes), as many as
    /// are `known`; those after them, and after `frame_len` bytes, have no meaning. `header` is
    /// virtio's. Returns whether the frame may be coalesced, which needs all its headers; if not,
    /// it must not be used.
    #[inline]
    pub fn check(&mut self, known: usize, frame_len: usize, header: &NetHeader) -> bool {
        self.read(known, frame_len, header).is_some()
    }

    #[inline]
    fn read(&mut self, known: usize, frame_len: usize, header: &NetHeader) -> Option<()> {
        let known = known.min(frame_len).min(HEAD);
        let p = &ParsedHeaders::parse(&self.head[..known], frame_len);
        self.kind = kind(p)?;
        let (l3, l4) = (usize::from(p.l3_offset), usize::from(p.l4_offset?));
        let size = frame_len.checked_sub(p.header_len.into())?;
        let plain = if self.kind.is_v4() {
            IPV4_LEN
        } else {
            ipv6::HEADER_LEN
        };
        let is_whole = p.fragment == Fragment::No && p.l3_end as usize == frame_len;
        if header.gso_type != net::GSO_NONE || size == 0 || l4 - l3 != plain || !is_whole {
            return None;
        }
        self.size = u16::try_from(size).ok()?;
        self.payload = self.size.into();
        self.header_len = p.header_len as u8;
        (self.l3, self.l4) = (l3 as u8, l4 as u8);
        (self.count, self.ended, self.push) = (1, false, false);
        (self.pseudo, self.complete) = (p.pseudo_header(0)?, None);
        let may = self.has_checksum(header) && self.take_ip() && self.take_transport(p);
        may.then_some(())
    }

    /// Which super-frame it would be.
    #[inline]
    pub fn kind(&self) -> GsoKind {
        self.kind
    }

    /// Returns whether `next`, which is one frame, may follow. The checksums of all have to be
    /// right, too.
    #[inline]
    pub fn may_take(&self, next: &Self) -> bool {
        let counts_up = !self.kind.is_v4() || self.head[usize::from(self.l3) + 6] & DF != 0;
        let packet = usize::from(self.header_len - self.l3) + self.payload as usize;
        !self.ended
            && self.count < MAX_FRAMES
            && next.size <= self.size
            && packet + usize::from(next.size) <= MAX_PACKET
            && (counts_up || next.id == self.id.wrapping_add(self.count))
            && (!self.kind.is_tcp() || next.seq == self.seq.wrapping_add(self.payload))
            && self.head() == next.head()
    }

    /// Adds a frame that it [`may_take`](Self::may_take).
    #[inline]
    pub fn take(&mut self, next: &Self) {
        self.count += 1;
        self.payload += u32::from(next.size);
        self.ended = next.size < self.size || next.push;
        self.push = next.push;
    }

    /// Returns whether the transport checksum of this single frame is right, or is left to the
    /// receiver; `payload` gives the payload's sum, and is not called in the second case.
    #[inline]
    pub fn is_right(&self, payload: impl FnOnce() -> Sum) -> bool {
        self.complete.is_none_or(|mut sum| {
            sum.add_sum(payload());
            sum.finish() == 0
        })
    }

    /// Bytes of headers, the same in all of its frames.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len.into()
    }

    /// Completes the headers of a super-frame; virtio's header for it.
    pub fn finish(&mut self) -> NetHeader {
        let (l3, l4) = (usize::from(self.l3), usize::from(self.l4));
        let l4_len = self.header_len() - l4 + self.payload as usize;
        if self.kind.is_v4() {
            let ip = &mut self.head[l3..l4];
            put16(ip, 2, (IPV4_LEN + l4_len) as u16);
            put16(ip, 4, self.id);
            let checksum = Sum::of(ip).finish();
            put16(ip, 10, checksum);
        } else {
            put16(&mut self.head, l3 + 4, l4_len as u16);
        }
        if self.kind.is_tcp() {
            put32(&mut self.head, l4 + 4, self.seq);
            self.head[l4 + 13] |= if self.push { tcp::PSH as u8 } else { 0 };
        } else {
            put16(&mut self.head, l4 + 4, l4_len as u16);
        }
        let (at, pseudo) = (l4 + self.checksum(), self.pseudo(l4_len));
        put16(&mut self.head, at, pseudo);
        NetHeader {
            flags: net::FLAG_NEEDS_CSUM,
            gso_type: match self.kind {
                GsoKind::Tcp4 => net::GSO_TCPV4,
                GsoKind::Tcp6 => net::GSO_TCPV6,
                GsoKind::Udp4 | GsoKind::Udp6 => net::GSO_UDP_L4,
            },
            hdr_len: self.header_len.into(),
            gso_size: self.size,
            csum_start: self.l4.into(),
            csum_offset: self.checksum() as u16,
            num_buffers: 0,
        }
    }

    /// The headers, [`header_len`](Self::header_len) bytes; of a super-frame after
    /// [`finish`](Self::finish).
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..self.header_len()]
    }

    /// The place of the checksum in the transport header.
    #[inline]
    fn checksum(&self) -> usize {
        if self.kind.is_tcp() {
            tcp::CHECKSUM_OFFSET
        } else {
            udp::CHECKSUM_OFFSET
        }
    }

    /// The pseudo-header's sum for so many bytes of transport header and payload.
    #[inline]
    fn pseudo(&self, l4_len: usize) -> u16 {
        let mut sum = self.pseudo;
        sum.add_u32(l4_len as u32);
        sum.fold()
    }

    /// Returns whether there is a checksum that is left to the receiver and starts right, or one
    /// that may be complete. It must be in the form that cutting gives it: zero and 0xffff are the
    /// same number.
    #[inline]
    fn has_checksum(&mut self, header: &NetHeader) -> bool {
        let l4 = usize::from(self.l4);
        let l4_len = self.header_len() - l4 + usize::from(self.size);
        let field = word(&self.head, l4 + self.checksum());
        if header.needs_csum() {
            let place = (header.csum_start.into(), header.csum_offset.into());
            return place == (l4, self.checksum()) && field == self.pseudo(l4_len);
        }
        let mut sum = Sum::of(&self.head[l4..self.header_len()]);
        sum.add_u16(self.pseudo(l4_len));
        self.complete = Some(sum);
        field != if self.kind.is_tcp() { 0xffff } else { 0 }
    }

    /// Takes what differs out of the IP header; `false` if its checksum is wrong.
    #[inline]
    fn take_ip(&mut self) -> bool {
        let l3 = usize::from(self.l3);
        if !self.kind.is_v4() {
            put16(&mut self.head, l3 + 4, 0);
            return true;
        }
        let ip = &mut self.head[l3..l3 + IPV4_LEN];
        let is_right = Sum::of(ip).finish() == 0 && word(ip, 10) != 0xffff;
        self.id = word(ip, 4);
        put16(ip, 2, 0);
        put16(ip, 4, 0);
        put16(ip, 10, 0);
        is_right
    }

    /// Takes what differs out of the transport header; `false` for one that cutting does not make.
    #[inline]
    fn take_transport(&mut self, p: &ParsedHeaders) -> bool {
        let at = self.checksum();
        let l4 = &mut self.head[self.l4.into()..self.header_len.into()];
        put16(l4, at, 0);
        if !self.kind.is_tcp() {
            let len = usize::from(word(l4, 4));
            put16(l4, 4, 0);
            return len == udp::HEADER_LEN + usize::from(self.size);
        }
        self.seq = long(l4, 4);
        put32(l4, 4, 0);
        self.push = p.l4_flags & tcp::PSH != 0;
        self.ended = self.push;
        l4[13] &= !(tcp::PSH as u8);
        p.l4_flags & !(tcp::PSH | ECE) == tcp::ACK
    }
}

/// The two bytes at `at`, which is inside.
#[inline]
fn word(bytes: &[u8], at: usize) -> u16 {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk());
    two.map_or(0, |two| u16::from_be_bytes(*two))
}

/// The four bytes at `at`, which is inside.
#[inline]
fn long(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk());
    four.map_or(0, |four| u32::from_be_bytes(*four))
}

#[inline]
fn kind(p: &ParsedHeaders) -> Option<GsoKind> {
    Some(match (p.l3, p.l4_proto) {
        (L3::V4 { .. }, tcp::PROTOCOL) => GsoKind::Tcp4,
        (L3::V6 { .. }, tcp::PROTOCOL) => GsoKind::Tcp6,
        (L3::V4 { .. }, udp::PROTOCOL) => GsoKind::Udp4,
        (L3::V6 { .. }, udp::PROTOCOL) => GsoKind::Udp6,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
