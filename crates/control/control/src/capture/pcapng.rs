//! pcapng writer (draft-ietf-opsawg-pcapng): one section with one interface. Times are in
//! nanoseconds.
//!
//! | block | options |
//! |---|---|
//! | section header (4.1) | `shb_userappl` |
//! | interface description (4.2) | `if_name`, `if_filter`, `if_tsresol` |
//! | enhanced packet (4.3) | `epb_flags` with the direction; comments with its offloads and drop reason |
//! | interface statistics (4.6) | `isb_ifrecv`, `isb_ifdrop`, `isb_usrdeliv` |
//!
//! Integers are in the machine's byte order, as the section header says. *Inbound* is the direction
//! into the switch.

use ipc::capture::{Counts, FrameMetadata, Way};
use port::{Offload, PartialChecksum};
use wire::segment::GsoKind;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const USER_APPLICATION: u16 = 4;
const IF_TIME_RESOLUTION: u16 = 9;
const IF_FILTER: u16 = 11;
const PACKET_FLAGS: u16 = 2;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;
const DELIVERED: u16 = 8;

/// A block under construction; [`Block::finish`] completes it.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    fn begin(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        let mut block = Self { out, start };
        block.put(&kind.to_ne_bytes());
        // Its length, patched at the end.
        block.put(&[0; 4]);
        block
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// Writes a time, high half first (4.3).
    fn put_time(&mut self, at_ns: u64) {
        self.put_u32((at_ns >> 32) as u32);
        self.put_u32(at_ns as u32);
    }

    /// Writes bytes, padded to a multiple of four.
    fn put_padded(&mut self, bytes: &[u8]) {
        self.put(bytes);
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.put(&[0; 3][..padding]);
    }

    /// Writes an option; a value that is too long is truncated.
    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(u16::MAX.into())];
        self.put(&code.to_ne_bytes());
        self.put(&(value.len() as u16).to_ne_bytes());
        self.put_padded(value);
    }

    /// Ends the options and the block.
    fn finish(mut self) {
        self.put_u32(0);
        let len = (self.out.len() - self.start + 4) as u32;
        self.out[self.start + 4..self.start + 8].copy_from_slice(&len.to_ne_bytes());
        self.put_u32(len);
    }
}

/// Writes the beginning of a file.
pub fn begin(out: &mut Vec<u8>, port: &str, filter: &str, snaplen: u32) {
    let mut section = Block::begin(out, SECTION_HEADER);
    section.put_u32(BYTE_ORDER);
    section.put(&1_u16.to_ne_bytes());
    section.put(&0_u16.to_ne_bytes());
    // The section's length: unknown.
    section.put(&u64::MAX.to_ne_bytes());
    let us = concat!("lasthop ", env!("CARGO_PKG_VERSION"));
    section.option(USER_APPLICATION, us.as_bytes());
    section.finish();

    let mut interface = Block::begin(out, INTERFACE);
    interface.put(&ETHERNET.to_ne_bytes());
    interface.put(&[0; 2]);
    interface.put_u32(snaplen);
    interface.option(IF_NAME, port.as_bytes());
    if !filter.is_empty() {
        // A zero: the filter's text as libpcap writes it.
        interface.option(IF_FILTER, &[&[0], filter.as_bytes()].concat());
    }
    interface.option(IF_TIME_RESOLUTION, &[9]);
    interface.finish();
}

/// Writes a frame.
pub fn packet(out: &mut Vec<u8>, seen: &FrameMetadata, bytes: &[u8]) {
    let mut packet = Block::begin(out, PACKET);
    packet.put_u32(0);
    packet.put_time(seen.at_ns);
    packet.put_u32(bytes.len() as u32);
    packet.put_u32(seen.len);
    packet.put_padded(bytes);
    let direction: u32 = match seen.way {
        Way::In => 1,
        Way::Out => 2,
    };
    packet.option(PACKET_FLAGS, &direction.to_ne_bytes());
    if let Some(reason) = seen.dropped {
        let text = format!("dropped: {reason}");
        packet.option(COMMENT, text.as_bytes());
    }
    if let Some(text) = offload(&seen.offload) {
        packet.option(COMMENT, text.as_bytes());
    }
    packet.finish();
}

/// Returns the offloads that the sender has left to others, as text.
fn offload(offload: &Offload) -> Option<String> {
    let PartialChecksum { start, offset } = offload.checksum?;
    let checksum = format!(
        "offload: checksum of bytes from {start} at {}",
        start + offset
    );
    let Some(gso) = offload.gso else {
        return Some(checksum);
    };
    let kind = match gso.kind {
        GsoKind::Tcp4 => "tcp4",
        GsoKind::Tcp6 => "tcp6",
        GsoKind::Udp4 => "udp4",
        GsoKind::Udp6 => "udp6",
    };
    let size = gso.size;
    Some(format!("{checksum}; {kind} segments of {size} bytes"))
}

/// Writes the end of a file: the numbers of frames that were selected, lost and written.
pub fn end(out: &mut Vec<u8>, at_ns: u64, counts: Counts, written: u64) {
    let mut statistics = Block::begin(out, STATISTICS);
    statistics.put_u32(0);
    statistics.put_time(at_ns);
    for (code, value) in [
        (RECEIVED, counts.meant),
        (DROPPED, counts.lost),
        (DELIVERED, written),
    ] {
        statistics.option(code, &value.to_ne_bytes());
    }
    statistics.finish();
}

#[cfg(test)]
mod tests;
