//! Super-frames of 64 KiB, as Linux's TCP hands them to a device that cuts them.
//!
//! ```text
//! buffer   0..12 virtio header   12..26 Ethernet   26..46 IPv4   46..66 TCP   66.. payload
//! line k   64k+16 a word that is written for each frame anew                       from byte 80: summed
//! ```
//! The sender writes a word into every cache line of the payload, the receiver adds up all words of
//! it, so that every moved byte is written and read. Receive buffers may be smaller than frames,
//! which then lie in several (virtio 1.3 section 5.1.6.4, MRG_RXBUF); word sums are the same as
//! long as buffers are whole lines.

use super::LeanPort;
use super::frames::Frames;
use super::span::Span;
use testkit::features::{CSUM, GUEST_CSUM, GUEST_TSO4, HOST_TSO4, MRG_RXBUF};
use testkit::guest_ram::GuestRam;
use testkit::net::{GSO_TCPV4, HEADER_LEN, NEEDS_CSUM};
use testkit::packets::{Flow, tcp_super};

/// Features without which frames do not cross whole.
pub(super) const FEATURES: u64 = CSUM | HOST_TSO4 | GUEST_CSUM | GUEST_TSO4 | MRG_RXBUF;

/// Payload of a segment at an MTU of 1500, as Linux cuts it, which leaves room for timestamps.
const MSS: u16 = 1448;
/// Linux fills whole segments, as many as fit 64 KiB.
const PAYLOAD: usize = MSS as usize * 45;
/// Ethernet, IPv4 and TCP.
const HEADERS: usize = 14 + 20 + 20;
/// Bytes of a super-frame, from the Ethernet header on.
pub const FRAME_LEN: u16 = (HEADERS + PAYLOAD) as u16;

/// Most transmit buffers of a port: 2 MiB, about what a connection keeps on its way.
pub(super) const SLOTS: u16 = 32;
/// Of the word in each line.
const IN_LINE: usize = 16;
/// Offset of the first word in a line that is all payload.
const SUMMED: usize = 64 + IN_LINE;
/// Byte of the field that says in how many buffers a frame lies.
const NUM_BUFFERS: usize = 10;

/// A frame from one port to another behind the header that has it cut and checksummed.
fn frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let flow = Flow {
        src_mac: from,
        dst_mac: to,
        ..Flow::v4(from[5], to[5])
    };
    let (frame, header) = tcp_super(&flow, 1, &[0x5a; PAYLOAD], MSS);
    [&header.to_bytes()[..], &frame].concat()
}

/// Words of a frame that are written for each frame.
fn lines() -> u64 {
    let bytes = usize::from(FRAME_LEN) + HEADER_LEN;
    ((bytes - SUMMED - 8) / 64 + 1) as u64
}

/// State of a sender's transmit buffers.
#[derive(Debug)]
pub(super) struct Writer {
    /// Sum over a frame with nothing written into it.
    blank: u64,
    /// The next value.
    value: u64,
}

impl Writer {
    /// Writes a frame into each of the `count` buffers.
    pub(super) fn fill(
        frames: &Frames,
        (ram, count): (&GuestRam, u16),
        [from, to]: [[u8; 6]; 2],
    ) -> Self {
        let frame = frame(from, to);
        for id in 0..count {
            ram.write(frames.buffers().at(id), &frame);
        }
        let mut writer = Self { blank: 0, value: 0 };
        writer.write(frames.memory(), frames.start(0));
        writer.blank = sum(frames.memory(), frames.start(0), frame.len());
        writer
    }

    /// Writes the payload of a frame; what its words add up to.
    #[inline]
    pub(super) fn write(&mut self, memory: &Span, start: usize) -> u64 {
        let value = self.value;
        self.value += 1;
        memory.set_lines(start + SUMMED, lines() as usize, value);
        self.blank.wrapping_add(lines().wrapping_mul(value))
    }
}

/// Sum of the payload of a frame that lies in one piece, `len` bytes with its header.
#[inline]
pub(super) fn sum(memory: &Span, start: usize, len: usize) -> u64 {
    memory.sum(start + SUMMED, len.saturating_sub(SUMMED))
}

/// A frame that is coming in, buffer by buffer.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Buffers that are still to come.
    left: u16,
}

impl Reader {
    /// Takes `len` bytes in buffer `id`; counts the frame with its last one.
    #[inline]
    pub(super) fn take(&mut self, frames: &Frames, counts: &mut LeanPort, id: u16, len: u32) {
        let (memory, start, len) = (frames.memory(), frames.start(id), len as usize);
        counts.bytes += len as u64;
        let words = if self.left == 0 {
            self.left = frames.half(id, NUM_BUFFERS).max(1);
            counts.bytes -= HEADER_LEN.min(len) as u64;
            let whole = frames.half(id, 0).to_le_bytes() == [NEEDS_CSUM, GSO_TCPV4];
            if !(whole && frames.is_mine(id)) {
                counts.strange += 1;
            }
            sum(memory, start, len)
        } else {
            memory.sum(start, len)
        };
        counts.payload_received = counts.payload_received.wrapping_add(words);
        self.left -= 1;
        counts.received += u64::from(self.left == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::guest_ram::RegionSpec;
    use testkit::net::NetHeader;
    use testkit::packets::{mac, verify_partial};

    const LEN: usize = FRAME_LEN as usize + HEADER_LEN;

    #[test]
    fn the_frame_is_what_it_says() {
        let bytes = frame(mac(1), mac(2));
        assert_eq!(bytes.len(), LEN);
        let header = NetHeader::from_bytes(bytes[..HEADER_LEN].try_into().expect("a header"));
        verify_partial(&bytes[HEADER_LEN..], &header).expect("a checksum to be completed");
        assert_eq!(usize::from(header.hdr_len), HEADERS);
        const { assert!(SUMMED >= HEADER_LEN + HEADERS, "sums are of payload only") };
    }

    #[test]
    fn sums_agree_however_a_frame_is_cut() {
        for piece in [128, 4096, 65_280] {
            let ram = GuestRam::heap(&[RegionSpec::at(0, 4 << 20)]);
            let tx = Frames::new(&ram, (SLOTS, LEN as u32), false, mac(1));
            let mut writer = Writer::fill(&tx, (&ram, SLOTS), [mac(1), mac(2)]);
            let sent = writer.write(tx.memory(), tx.start(3));
            assert_eq!(sent, sum(tx.memory(), tx.start(3), LEN));
            let mut bytes = vec![0; LEN];
            ram.read(tx.buffers().at(3), &mut bytes);
            let count = LEN.div_ceil(piece);
            bytes[NUM_BUFFERS..][..2].copy_from_slice(&(count as u16).to_le_bytes());
            let room = count.next_power_of_two() as u16;
            let rx = Frames::new(&ram, (room, piece as u32), false, mac(2));
            let (mut reader, mut counts) = (Reader::default(), LeanPort::default());
            for (id, part) in bytes.chunks(piece).enumerate() {
                assert_eq!(counts.received, 0);
                ram.write(rx.buffers().at(id as u16), part);
                reader.take(&rx, &mut counts, id as u16, part.len() as u32);
            }
            assert_eq!((counts.received, counts.bytes), (1, u64::from(FRAME_LEN)));
            assert_eq!((counts.payload_received, counts.strange), (sent, 0));
        }
    }

    #[test]
    fn frames_differ() {
        let ram = GuestRam::heap(&[RegionSpec::at(0, 4 << 20)]);
        let tx = Frames::new(&ram, (SLOTS, LEN as u32), false, mac(1));
        let mut writer = Writer::fill(&tx, (&ram, SLOTS), [mac(1), mac(2)]);
        let two = [(); 2].map(|()| writer.write(tx.memory(), tx.start(0)));
        assert_eq!(two[1].wrapping_sub(two[0]), lines());
    }
}
