//! Frames that are prepared in memory before the first is sent.
//!
//! ```text
//! buffer   0..12 virtio header   12..26 Ethernet   26..46 IPv4   46..54 UDP   56..64 stamp   payload
//! ```
//! The flow is the two UDP ports, one number of 32 bits; UDP goes without a checksum (RFC 768), so
//! nothing else depends on it.

use std::sync::atomic::Ordering::Relaxed;

use super::ring::Buffers;
use super::span::Span;
use testkit::guest_ram::GuestRam;
use testkit::iommu::PAGE;
use testkit::net::HEADER_LEN;
use testkit::packets::{Flow, udp};

/// Ethernet, IPv4 and UDP headers.
pub(super) const MIN_LEN: u16 = 42;

const DST: usize = HEADER_LEN;
const IP: usize = HEADER_LEN + 14;
const PORTS: usize = HEADER_LEN + 34;
const UDP_SUM: usize = 40;
const STAMP: usize = HEADER_LEN + 44;

/// Requirement of stamps on a configuration.
pub(super) const STAMP_RULE: &str = "frames of 52 bytes or more, and not super-frames";

/// The head of an IPv4 packet, up to its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head([u16; 12]);

impl Head {
    /// Of a frame of `frame_len` bytes. With TCP there must be 54 at least; flags and window are
    /// then what stands in the payload.
    #[must_use]
    pub fn new(
        frame_len: u16,
        protocol: u8,
        [source, destination]: [u32; 2],
        ports: [u16; 2],
    ) -> Self {
        let halves = |address: u32| [(address >> 16) as u16, address as u16];
        let ([a, b], [c, d]) = (halves(source), halves(destination));
        let hops_and_protocol = 64 << 8 | u16::from(protocol);
        let mut words = [
            0x4500,
            frame_len.saturating_sub(14),
            0,
            0,
            hops_and_protocol,
            0,
            a,
            b,
            c,
            d,
        ];
        let sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        // RFC 1071: ten words carry into the sum twice at most.
        words[5] = !((folded & 0xffff) + (folded >> 16)) as u16;
        let mut all = [0; 12];
        all[..10].copy_from_slice(&words);
        all[10..].copy_from_slice(&ports);
        Self(all.map(u16::to_be))
    }
}

impl Head {
    /// As they lie in memory.
    pub(super) fn words(&self) -> &[u16; 12] {
        &self.0
    }
}

/// As many buffers as a ring has entries.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    memory: Span,
    /// Byte of the first buffer.
    first: usize,
    stride: usize,
    /// See [`Buffers`].
    spread: u16,
    len: u32,
    /// First bytes of received frames.
    to_me: [u8; 6],
}

impl Frames {
    /// Zeroed buffers of `len` bytes for port `to_me`. The stride is an odd number of cache lines,
    /// so that the heads of the buffers spread over all sets of a cache.
    ///
    /// A buffer starts with a cache line, unless `apart`: then the frame does, behind a header at
    /// the end of the line before.
    pub(super) fn new(
        ram: &GuestRam,
        (count, len): (u16, u32),
        apart: bool,
        to_me: [u8; 6],
    ) -> Self {
        let first = if apart { 64 - HEADER_LEN } else { 0 };
        let lines = (len as usize + first).div_ceil(64);
        let stride = (lines | 1) * 64;
        Self {
            memory: Span::new(ram, stride * usize::from(count)),
            first,
            stride,
            spread: 0,
            len,
            to_me,
        }
    }

    /// As [`Frames::new`], each buffer on pages of its own. They begin at various lines of their
    /// pages as far as they fit, for the same reason.
    pub(super) fn paged(ram: &GuestRam, (count, len): (u16, u32), to_me: [u8; 6]) -> Self {
        let stride = (len as usize).next_multiple_of(PAGE as usize);
        let lines = (stride - len as usize) / 64 + 1;
        Self {
            memory: Span::new(ram, stride * usize::from(count)),
            first: 0,
            stride,
            spread: (1 << lines.min(64).ilog2()) - 1,
            len,
            to_me,
        }
    }

    pub(super) fn buffers(&self) -> Buffers {
        Buffers {
            gpa: self.memory.gpa() + self.first as u64,
            stride: self.stride as u32,
            spread: self.spread,
            len: self.len,
        }
    }

    /// Writes a frame of the port to its partner into every buffer, flows in turn.
    pub(super) fn fill(&self, ram: &GuestRam, count: u16, flows: u32, partner: [u8; 6]) {
        let flow = Flow {
            src_mac: self.to_me,
            dst_mac: partner,
            ..Flow::v4(self.to_me[5], partner[5])
        };
        let len = self.len as usize - HEADER_LEN;
        let mut frame = udp(&flow, &vec![0x5a; len - usize::from(MIN_LEN)]);
        frame[UDP_SUM..][..2].fill(0);
        for id in 0..count {
            let gpa = self.buffers().at(id);
            ram.write(gpa + HEADER_LEN as u64, &frame);
            self.set_flow(id, u32::from(id) % flows);
        }
    }

    /// The bytes that the buffers lie in.
    pub(super) fn memory(&self) -> &Span {
        &self.memory
    }

    /// Byte of buffer `id`.
    #[inline]
    pub(super) fn start(&self, id: u16) -> usize {
        self.first + usize::from(id) * self.stride + 64 * usize::from(id & self.spread)
    }

    /// Two bytes of buffer `id`.
    #[inline]
    pub(super) fn half(&self, id: u16, at: usize) -> u16 {
        self.memory.u16(self.start(id) + at).load(Relaxed)
    }

    /// Writes two bytes of buffer `id`.
    #[inline]
    pub(super) fn set_half(&self, id: u16, at: usize, value: u16) {
        self.memory.u16(self.start(id) + at).store(value, Relaxed);
    }

    /// Makes the frame in buffer `id` one of flow `flow`.
    #[inline]
    pub(super) fn set_flow(&self, id: u16, flow: u32) {
        let at = self.start(id) + PORTS;
        let [a, b, c, d] = flow.to_be_bytes();
        let half = |x, y| u16::from_ne_bytes([x, y]);
        // Low half first: the source port changes most, as with real clients.
        self.memory.u16(at).store(half(c, d), Relaxed);
        self.memory.u16(at + 2).store(half(a, b), Relaxed);
    }

    /// Gives the frame in buffer `id` another head.
    #[inline]
    pub(super) fn set_head(&self, id: u16, head: &Head) {
        let at = self.start(id) + IP;
        for (n, word) in head.0.iter().enumerate() {
            self.memory.u16(at + 2 * n).store(*word, Relaxed);
        }
    }

    /// Returns whether there is room for a stamp.
    pub(super) fn takes_stamps(&self) -> bool {
        self.len as usize >= STAMP + 8
    }

    /// Writes a number into the frame in buffer `id`.
    #[inline]
    pub(super) fn set_stamp(&self, id: u16, stamp: u64) {
        let at = self.start(id) + STAMP;
        self.memory.u32(at).store(stamp as u32, Relaxed);
        self.memory.u32(at + 4).store((stamp >> 32) as u32, Relaxed);
    }

    /// The number in the frame in buffer `id`.
    #[inline]
    pub(super) fn stamp(&self, id: u16) -> u64 {
        let at = self.start(id) + STAMP;
        let half = |at| u64::from(self.memory.u32(at).load(Relaxed));
        half(at) | half(at + 4) << 32
    }

    /// Returns whether the frame in buffer `id` was sent to this port.
    #[inline]
    pub(super) fn is_mine(&self, id: u16) -> bool {
        let front = self.memory.u32(self.start(id) + DST).load(Relaxed);
        let [a, b, c, d, e, f] = self.to_me;
        front == u32::from_ne_bytes([a, b, c, d]) && self.half(id, DST + 4).to_ne_bytes() == [e, f]
    }

    /// Reads the head of the frame in buffer `id`: its flow, if it was sent to this port.
    #[inline]
    pub(super) fn touch(&self, id: u16) -> Option<u32> {
        let load = |at| self.half(id, at).to_ne_bytes();
        let net_header = self.memory.u32(self.start(id)).load(Relaxed);
        let mine = self.is_mine(id) && net_header & 0xff00 == 0;
        let ([c, d], [a, b]) = (load(PORTS), load(PORTS + 2));
        mine.then_some(u32::from_be_bytes([a, b, c, d]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::guest_ram::RegionSpec;
    use testkit::packets::{parse, verify_checksums};

    #[test]
    #[cfg(not(miri))] // Miri maps no files
    fn heads_are_whole_packets() {
        let ram = GuestRam::memfd(&[RegionSpec::at(0, 4 << 20)]).expect("memory");
        let len = 64;
        let frames = Frames::new(&ram, (2, u32::from(len) + HEADER_LEN as u32), false, [2; 6]);
        frames.fill(&ram, 2, 1, [4; 6]);
        for protocol in [6, 17] {
            let head = Head::new(len, protocol, [0xc0a8_fffe, 0x0a01_0203], [80, 65_535]);
            frames.set_head(1, &head);
            let mut bytes = vec![0; usize::from(len)];
            ram.read(frames.buffers().at(1) + HEADER_LEN as u64, &mut bytes);
            let found = parse(&bytes).expect("a packet");
            assert_eq!((found.protocol, found.end), (protocol, 64));
            assert_eq!(found.src.to_string(), "192.168.255.254");
            assert_eq!(found.dst.to_string(), "10.1.2.3");
            assert_eq!(bytes[34..38], [0, 80, 0xff, 0xff]);
            if protocol == 17 {
                verify_checksums(&bytes).expect("the header's sum is right, and UDP has none");
            }
        }
    }
}
