//! Frames that stand in memory before the first is sent.
//!
//! ```text
//! buffer   0..12 virtio header   12..26 Ethernet   26..46 IPv4   46..54 UDP   payload
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

    #[inline]
    fn start(&self, id: u16) -> usize {
        self.first + usize::from(id) * self.stride
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

    /// Reads the head of the frame in buffer `id`: its flow, if it was sent to this port.
    #[inline]
    pub(super) fn touch(&self, id: u16) -> Option<u32> {
        let at = self.start(id);
        let load = |at| self.memory.u16(at).load(Relaxed).to_ne_bytes();
        let net_header = self.memory.u32(at).load(Relaxed);
        let front = self.memory.u32(at + DST).load(Relaxed);
        let [a, b, c, d, e, f] = self.to_me;
        let mine = front == u32::from_ne_bytes([a, b, c, d])
            && load(at + DST + 4) == [e, f]
            && net_header & 0xff00 == 0;
        let ([c, d], [a, b]) = (load(at + PORTS), load(at + PORTS + 2));
        mine.then_some(u32::from_be_bytes([a, b, c, d]))
    }
}
