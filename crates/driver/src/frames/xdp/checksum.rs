//! Incomplete checksums without metadata.
//!
//! The peer of a veth pair passes packets on as its own stack made them: the checksum field of TCP
//! and UDP then holds the sum of the pseudo-header alone (RFC 9293, 3.1; RFC 768), and the packet's
//! metadata has the offset to complete it (`CHECKSUM_PARTIAL`). An `AF_XDP` socket gets the bytes
//! without the metadata. But such a frame can be recognised by its bytes: the field *is* that sum.
//! A complete checksum that happens to be equal (one of 65535) stays the same when it is completed
//! once more. Only for interfaces that lead to a stack on this host and to no wire, where that
//! would hide damage.

/// Bytes of a frame's head that are parsed: Ethernet, two tags, the longest IPv4 header, TCP up to
/// its checksum.
pub(super) const HEAD: usize = 14 + 8 + 60 + 18;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Returns the start of the checksum of a frame, and the offset of its field from there, if the
/// checksum is incomplete. `head` is the frame, or its first [`HEAD`] bytes, `len` its length.
pub(super) fn unfinished(head: &[u8], len: usize) -> Option<(u16, u16)> {
    let mut at = 12;
    let mut kind = word(head, at)?;
    for _ in 0..2 {
        if matches!(kind, 0x8100 | 0x88a8) {
            at += 4;
            kind = word(head, at)?;
        }
    }
    let packet = head.get(at + 2..)?;
    let (start, protocol, payload, addresses) = match kind {
        0x0800 => ipv4(packet)?,
        0x86dd => ipv6(packet)?,
        _ => return None,
    };
    let offset = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let begin = at + 2 + start;
    if begin + payload > len || payload < offset + 2 {
        return None;
    }
    let field = word(head, begin + offset)?;
    // A UDP checksum of 0 is none at all.
    if protocol == UDP && field == 0 {
        return None;
    }
    let pseudo = sum(addresses) + u32::from(protocol) + payload as u32;
    (fold(pseudo) == fold(field.into())).then_some((begin as u16, offset as u16))
}

type Found<'a> = (usize, u8, usize, &'a [u8]);

/// Returns a packet's payload offset, protocol, length, and addresses.
fn ipv4(packet: &[u8]) -> Option<Found<'_>> {
    let header = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(word(packet, 2)?);
    // A fragment's checksum is complete, or is in another one.
    let fragment = word(packet, 6)? & 0x3fff != 0;
    if packet[0] >> 4 != 4 || header < 20 || fragment {
        return None;
    }
    let payload = total.checked_sub(header)?;
    Some((header, *packet.get(9)?, payload, packet.get(12..20)?))
}

fn ipv6(packet: &[u8]) -> Option<Found<'_>> {
    let payload = usize::from(word(packet, 4)?);
    let version = packet.first()? >> 4;
    (version == 6).then_some((40, *packet.get(6)?, payload, packet.get(8..40)?))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum()
}

/// The 16-bit ones' complement sum, with one of its two zeros.
fn fold(sum: u32) -> u32 {
    sum % 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let total = sum(&frame[22..54]) + u32::from(TCP) + 20;
        let half = ((total & 0xffff) + (total >> 16)) as u16;
        frame[70..72].copy_from_slice(&half.to_be_bytes());
        assert_eq!(found(&frame), Some((54, 16)));
    }
}
