//! Frames that stand in memory before the first is sent.
//!
//! ```text
//! buffer   0..12 virtio header   12..26 Ethernet   26..46 IPv4   46..54 UDP   56..64 stamp   payload
//! ```
//! The flow is the two UDP ports, one number of 32 bits; UDP goes without a checksum (RFC 768), so nothing
//! else depends on it.

use std::sync::atomic::Ordering::Relaxed;

use super::ring::Buffers;
use super::span::Span;
use crate::guest_ram::GuestRam;
use crate::net::HEADER_LEN;
use crate::packets::{Flow, udp};

/// Ethernet, IPv4 and UDP headers.
pub(super) const MIN_LEN: u16 = 42;

const DST: usize = HEADER_LEN;
const PORTS: usize = HEADER_LEN + 34;
const UDP_SUM: usize = 40;
const STAMP: usize = HEADER_LEN + 44;

/// What stamps ask of a configuration.
pub(super) const STAMP_RULE: &str = "frames of 52 bytes or more, and not super-frames";

/// As many buffers as a ring has entries.
#[derive(Debug)]
pub(super) struct Frames {
    memory: Span,
    /// Byte of the first buffer.
    first: usize,
    stride: usize,
    len: u32,
    /// What received frames start with.
    to_me: [u8; 6],
}

impl Frames {
    /// Zeroed buffers of `len` bytes for port `to_me`. The stride is an odd number of cache lines, so that
    /// the heads of the buffers spread over all sets of a cache.
    ///
    /// A buffer starts with a cache line, unless `apart`: then the frame does, behind a header at the end of
    /// the line before.
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
            len,
            to_me,
        }
    }

    pub(super) fn buffers(&self) -> Buffers {
        Buffers {
            gpa: self.memory.gpa() + self.first as u64,
            stride: self.stride as u32,
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
        self.first + usize::from(id) * self.stride
    }

    /// Two bytes of buffer `id`.
    #[inline]
    pub(super) fn half(&self, id: u16, at: usize) -> u16 {
        self.memory.u16(self.start(id) + at).load(Relaxed)
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

    /// Whether there is room for a stamp.
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

    /// Whether the frame in buffer `id` was sent to this port.
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
