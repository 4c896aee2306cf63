//! Incomplete checksums without metadata.
//!
//! The peer of a veth pair passes packets on as its own stack made them: the checksum field of TCP
//! and UDP then holds the sum of the pseudo-header alone (RFC 9293, 3.1; RFC 768), and the packet's
//! metadata has the offset to complete it (`CHECKSUM_PARTIAL`). An `AF_XDP` socket gets the bytes
//! without the metadata. But such a frame can be recognised by its bytes: the field *is* that sum.
//! A complete checksum that happens to be equal (one of 65535) stays the same when it is completed
//! once more. Only for interfaces that lead to a stack on this host and to no wire, where that
//! would hide damage.

use wire::packet::{Fragment, ParsedHeaders};
use wire::{tcp, udp};

/// Bytes of a frame's head that are parsed.
pub(super) const HEAD: usize = wire::SNAPSHOT;
/// Bytes of a VLAN tag, and the offset of the first one.
const TAG: usize = 4;
const TAG_AT: usize = 12;

/// Returns the start of the checksum of a frame, and the offset of its field from there, if the
/// checksum is incomplete. `head` is the frame, or its first [`HEAD`] bytes, `len` its length.
pub(super) fn unfinished(head: &[u8], len: usize) -> Option<(u16, u16)> {
    let is_tag = |at: &usize| matches!(word(head, *at), Some(0x8100 | 0x88a8));
    let tags = [TAG_AT, TAG_AT + TAG].iter().take_while(|at| is_tag(at));
    // Behind the tags the frame is parsed as one without; its addresses do not matter.
    let skipped = TAG * tags.count();
    let parsed = ParsedHeaders::parse(head.get(skipped..)?, len.checked_sub(skipped)?);
    // A fragment's checksum is complete, or is in another one.
    let whole = parsed.fragment == Fragment::No;
    if !whole || !matches!(parsed.l4_proto, tcp::PROTOCOL | udp::PROTOCOL) {
        return None;
    }
    let (start, at) = (parsed.l4_offset?, parsed.checksum_offset()?);
    let field = word(head, skipped + usize::from(at))?;
    // A UDP checksum of 0 is none at all.
    if parsed.l4_proto == udp::PROTOCOL && field == 0 {
        return None;
    }
    let pseudo = parsed.pseudo_header(parsed.l4_len()?)?.fold();
    (zeros_as_one(pseudo) == zeros_as_one(field)).then_some((start + skipped as u16, at - start))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*pair))
}

/// A ones' complement sum has two zeros.
fn zeros_as_one(sum: u16) -> u16 {
    sum % 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = tcp::PROTOCOL;
    const UDP: u8 = udp::PROTOCOL;

    const V4: [u8; 34] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, // Ethernet
        0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];

    /// A UDP datagram of 28 bytes with this in its checksum field.
    fn udp(field: u16) -> Vec<u8> {
        let mut frame = V4.to_vec();
        frame.extend([0x12, 0x34, 0, 53, 0, 28]);
        frame.extend(field.to_be_bytes());
        frame.extend(1..=20);
        frame
    }

    fn sum(bytes: &[u8]) -> u32 {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum()
    }

    fn fold(sum: u32) -> u32 {
        sum % 0xffff
    }

    /// As the other end's stack leaves it.
    fn pseudo(frame: &[u8]) -> u16 {
        let total = sum(&frame[26..34]) + u32::from(UDP) + 28;
        ((total & 0xffff) + (total >> 16)) as u16
    }

    fn found(frame: &[u8]) -> Option<(u16, u16)> {
        let head = &frame[..frame.len().min(HEAD)];
        unfinished(head, frame.len())
    }

    #[test]
    fn the_sum_of_the_pseudo_header_is_to_be_completed() {
        let half = pseudo(&udp(0));
        assert_eq!(found(&udp(half)), Some((34, 6)));
        assert_eq!(found(&udp(half ^ 1)), None);
        assert_eq!(found(&udp(0)), None, "no checksum at all");
        let mut tagged = udp(half);
        tagged.splice(12..12, [0x81, 0, 0, 10]);
        assert_eq!(found(&tagged), Some((38, 6)));
        tagged.splice(12..12, [0x88, 0xa8, 0, 20]);
        assert_eq!(found(&tagged), Some((42, 6)));
        let mut padded = udp(half);
        padded.extend([0; 10]);
        assert_eq!(found(&padded), Some((34, 6)));
    }

    #[test]
    fn completing_a_complete_one_changes_nothing() {
        // Of all payloads with two free bytes, one gives a checksum that looks unfinished.
        let half = pseudo(&udp(0));
        let complete = |frame: &[u8]| {
            let rest = sum(&frame[34..40]) + sum(&frame[42..]);
            !fold(u32::from(half) + rest) as u16
        };
        let mut frame = udp(half);
        for free in 0..=u16::MAX {
            frame[60..62].copy_from_slice(&free.to_be_bytes());
            if fold(complete(&frame).into()) == fold(half.into()) {
                assert!(found(&frame).is_some());
                return;
            }
        }
        panic!("no such payload");
    }

    #[test]
    fn what_is_cut_short_or_something_else_is_left_alone() {
        let frame = udp(pseudo(&udp(0)));
        for len in 0..frame.len() {
            assert_eq!(found(&frame[..len]), None, "{len} bytes");
        }
        for (at, value) in [
            (12, 9),
            (14, 0x55),
            (14, 0x44),
            (20, 0x20),
            (21, 1),
            (23, 1),
        ] {
            let mut other = frame.clone();
            other[at] = value;
            assert_eq!(found(&other), None, "byte {at}");
        }
    }

    #[test]
    fn ipv6_and_tcp() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, TCP, 64]);
        frame.extend((0..32).map(|n| n * 7));
        frame.extend([0; 20]);
        frame[66] = 0x50;
        let total = sum(&frame[22..54]) + u32::from(TCP) + 20;
        let half = ((total & 0xffff) + (total >> 16)) as u16;
        frame[70..72].copy_from_slice(&half.to_be_bytes());
        assert_eq!(found(&frame), Some((54, 16)));
    }
}
