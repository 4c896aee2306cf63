//! Plain packets, as almost all frames are: whole, untagged IPv4 without options that carries TCP
//! or UDP.
//!
//! Their keys are made without a parser, and consecutive packets are recognised as one flow without
//! keys: the first bytes are equal, as far as a decision depends on them.

use super::{FlowKey, FlowMask, L4_FLAGS, ingress};
use crate::{EtherType, SNAPSHOT, tcp, udp};

/// First bytes of a plain packet, which contain all fields of its key.
pub const PLAIN_HEAD: usize = 48;
/// Offset of the IPv4 header, and its EtherType and first byte.
const L3: usize = 14;
const L4: usize = 34;
const IPV4_HEADER: usize = L4 - L3;
/// Offsets of the total length and the protocol.
const TOTAL: usize = 16;
const PROTOCOL: usize = 23;
/// Offset of the transport's ports.
const PORTS: usize = L4;
/// Offset of TCP's header length and flags.
const OFFSET_AND_FLAGS: usize = L4 + 12;
const WORDS: usize = PLAIN_HEAD / 8;

/// The longest transport header is among the bytes that are parsed of a frame.
const _: () = assert!(L4 + 60 <= SNAPSHOT);

impl FlowKey {
    /// The key of a plain packet of so many bytes: what [`FlowKey::new`] makes of the
    /// [parsed](crate::ParsedHeaders) packet, in a fraction of the time, with each byte read once,
    /// in words. `None` for all other frames. `headers` are the frame's first bytes,
    /// [`PLAIN_HEAD`] at least where the frame has so many.
    #[inline]
    pub fn of_plain_ipv4(in_port: u32, headers: &[u8], frame_len: usize) -> Option<Self> {
        if headers.len() > frame_len {
            return None;
        }
        let word = |at: usize| -> Option<u64> {
            let bytes = headers.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_be_bytes(*bytes))
        };
        let (smac_and_type, begin, middle, end) = (word(6)?, word(14)?, word(22)?, word(30)?);
        let total = usize::from((begin >> 32) as u16);
        // Version 4 and five words; neither offset nor more fragments.
        let plain = smac_and_type & 0xffff == u64::from(EtherType::IPV4.0)
            && begin >> 56 == 0x45
            && begin & 0x3fff == 0
            && total + L3 <= frame_len;
        let proto = (middle >> 48) as u8;
        let (l4_len, l4_flags) = match proto {
            udp::PROTOCOL => (udp::HEADER_LEN, 0),
            tcp::PROTOCOL => {
                let tail = headers.get(OFFSET_AND_FLAGS..)?.first_chunk()?;
                let tail = u16::from_be_bytes(*tail);
                (usize::from(tail >> 12) * 4, tail & 0xfff)
            }
            _ => return None,
        };
        let least = if proto == tcp::PROTOCOL {
            tcp::HEADER_LEN
        } else {
            l4_len
        };
        if !plain || l4_len < least || IPV4_HEADER + l4_len > total {
            return None;
        }
        let (tos, source, destination) = (begin >> 48 & 0xff, end >> 16 & 0xffff, end & 0xffff);
        Some(Self([
            ingress(in_port) | u64::from(EtherType::IPV4.0) << 48,
            word(0)? >> 16 | u64::from(proto) << 48 | tos << 56,
            smac_and_type >> 16 | u64::from(l4_flags) << 48,
            source | destination << 16,
            middle & 0xffff_ffff,
            0,
            end >> 32,
            0,
        ]))
    }
}

/// Which bits of plain packets' first bytes a mask counts, with those that make them plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainMask {
    words: [u64; WORDS],
    /// The last word of TCP; UDP has data there.
    tcp: u64,
}

impl PlainMask {
    /// Returns the bits of packets that correspond to the fields of a mask. Ingress port, frame
    /// class and connection state are in no packet.
    #[must_use]
    pub fn new(mask: &FlowMask) -> Self {
        let words = mask.words();
        let mut bytes = [0; PLAIN_HEAD];
        let mut put = |at: usize, bits: u64, len: usize| {
            bytes[at..at + len].copy_from_slice(&bits.to_be_bytes()[8 - len..]);
        };
        put(0, words[1] & 0xffff_ffff_ffff, 6);
        put(6, words[2] & 0xffff_ffff_ffff, 6);
        put(12, 0xffff, 2);
        put(14, 0xff, 1);
        put(15, words[1] >> 56, 1);
        // All of the offset, and whether there are more.
        put(20, 0x3fff, 2);
        put(PROTOCOL, 0xff, 1);
        put(26, words[4] & 0xffff_ffff, 4);
        put(30, words[6] & 0xffff_ffff, 4);
        put(PORTS, words[3] & 0xffff, 2);
        put(PORTS + 2, words[3] >> 16 & 0xffff, 2);
        put(OFFSET_AND_FLAGS, 0xf000 | L4_FLAGS.get(words) & 0x0fff, 2);
        let mut words = words_of(&bytes);
        let tcp = std::mem::take(&mut words[WORDS - 1]);
        Self { words, tcp }
    }
}

/// Bits that plain packets must share with one for their keys to agree in all fields of a mask.
#[derive(Clone, Copy, Debug)]
pub struct PlainHead {
    /// The bits of the first bytes that must be the same, in little-endian words.
    pub mask: [u64; WORDS],
    /// Minimum of the IPv4 total length.
    least: usize,
}

impl PlainHead {
    /// Returns the condition for packets to share the flow of the one that begins with these bytes,
    /// for which there is a key by [`FlowKey::of_plain_ipv4`]: the bits of the mask, and
    /// [`PlainHead::fits`]. Such packets are plain, and their keys agree.
    #[inline(always)]
    #[must_use]
    pub fn new(mask: &PlainMask, head: &[u8; PLAIN_HEAD]) -> Self {
        let mut words = mask.words;
        let l4_len = match head[PROTOCOL] {
            tcp::PROTOCOL => {
                words[WORDS - 1] = mask.tcp;
                usize::from(head[OFFSET_AND_FLAGS] >> 4) * 4
            }
            _ => udp::HEADER_LEN,
        };
        Self {
            mask: words,
            least: IPV4_HEADER + l4_len,
        }
    }

    /// Returns whether the total length of a packet of `frame_len` bytes is possible, if it begins
    /// with these bytes and has the bits of the mask.
    #[inline(always)]
    #[must_use]
    pub fn fits(&self, other: &[u8; PLAIN_HEAD], frame_len: usize) -> bool {
        let total = usize::from(u16::from_be_bytes([other[TOTAL], other[TOTAL + 1]]));
        total >= self.least && total + L3 <= frame_len
    }
}

#[inline(always)]
fn words_of(head: &[u8; PLAIN_HEAD]) -> [u64; WORDS] {
    let chunks = head.as_chunks::<8>().0;
    std::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ParsedHeaders;

    fn alike(
        mask: &PlainMask,
        one: &[u8; PLAIN_HEAD],
        other: &[u8; PLAIN_HEAD],
        len: usize,
    ) -> bool {
        let head = PlainHead::new(mask, one);
        let differ = |i: usize| (words_of(one)[i] ^ words_of(other)[i]) & head.mask[i];
        (0..WORDS).all(|i| differ(i) == 0) && head.fits(other, len)
    }

    fn packet(tcp: bool, [tos, a, b]: [u8; 3]) -> Vec<u8> {
        let mut frame = vec![0x5a; 100];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let protocol = if tcp { 6 } else { 17 };
        frame[14..34].copy_from_slice(&[
            0x45, tos, 0, 60, 1, 2, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, a, 10, 0, b, 2,
        ]);
        frame
    }

    fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
        prop::collection::vec((0..50usize, any::<u8>()), 0..3)
    }

    /// Plain packets, with up to two bytes of their headers and their length changed.
    fn nearly_plain() -> impl Strategy<Value = Vec<u8>> {
        let parts = (any::<bool>(), any::<[u8; 3]>(), changes(), 0..=100usize);
        parts.prop_map(|(tcp, bytes, changes, cut)| {
            let mut frame = packet(tcp, bytes);
            changes.iter().for_each(|(at, value)| frame[*at] = *value);
            frame.truncate(cut);
            frame
        })
    }

    /// Returns the first bytes of a frame, as a switch reads them.
    fn head(frame: &[u8]) -> &[u8] {
        &frame[..frame.len().min(64)]
    }

    fn mask() -> impl Strategy<Value = FlowMask> {
        let word = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
        prop::array::uniform8(word).prop_map(FlowMask::from_words)
    }

    proptest! {
        #[test]
        fn plain_packets_have_the_key_of_what_is_parsed(frame in nearly_plain(), port: u32) {
            let parsed = FlowKey::new(port, &ParsedHeaders::parse(&frame, frame.len()));
            if let Some(key) = FlowKey::of_plain_ipv4(port, head(&frame), frame.len()) {
                prop_assert_eq!(key, parsed);
            }
        }

        #[test]
        fn packets_with_one_head_have_one_masked_key(
            first in nearly_plain(),
            changes in changes(),
            cut in 40..=100usize,
            mask in mask(),
        ) {
            let mut second = first.clone();
            changes.iter().for_each(|(at, value)| {
                if let Some(byte) = second.get_mut(*at) {
                    *byte = *value;
                }
            });
            second.truncate(cut);
            let key = |frame: &[u8]| FlowKey::of_plain_ipv4(7, head(frame), frame.len());
            let (Some(one), Some(start)) = (key(&first), first.first_chunk()) else {
                return Ok(());
            };
            let plain = PlainMask::new(&mask);
            prop_assert!(alike(&plain, start, start, first.len()));
            let Some(start) = second.first_chunk() else {
                return Ok(());
            };
            let parsed = FlowKey::new(7, &ParsedHeaders::parse(&second, second.len()));
            let same = parsed.masked(&mask) == one.masked(&mask);
            if alike(&plain, first.first_chunk().expect("a head"), start, second.len()) {
                prop_assert!(same && key(&second).is_some());
            } else {
                // Otherwise its transport has another length, or is another one.
                let other_transport = first[46] != second[46] || first[23] != second[23];
                prop_assert!(!same || key(&second).is_none() || other_transport);
            }
        }
    }

    #[test]
    fn plain_packets_are_known() {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        for (protocol, offset) in [(17, 0), (6, 0x50)] {
            (frame[23], frame[46]) = (protocol, offset);
            let parsed = FlowKey::new(7, &ParsedHeaders::parse(&frame, 60));
            assert_eq!(FlowKey::of_plain_ipv4(7, &frame, 60), Some(parsed));
        }
        let others = [
            (14, 0x46),
            (20, 0x20),
            (21, 1),
            (23, 1),
            (46, 0x40),
            (12, 0x86),
        ];
        for (at, other) in others {
            let mut strange = frame.clone();
            strange[at] = other;
            assert_eq!(FlowKey::of_plain_ipv4(7, &strange, 60), None, "byte {at}");
        }
    }

    #[test]
    fn what_no_mask_counts_tells_nothing_apart() {
        let mask = PlainMask::new(&FlowMask::ETHERNET.with_dst_ip_bits(0xffff_0000));
        let first = packet(false, [0; 3]);
        let alike = |at: usize, value: u8| {
            let mut other = first.clone();
            other[at] = value;
            let start = first.first_chunk().expect("a head");
            let other_start = other.first_chunk().expect("a head");
            super::tests::alike(&mask, start, other_start, other.len())
        };
        // Type of service, identification, time to live, source, low half of the destination,
        // ports, data.
        for at in [15, 18, 22, 27, 33, 34, 37, 40, 47] {
            assert!(alike(at, 99), "byte {at}");
        }
        // Addresses of Ethernet, its type, fragments, protocol, high half of the destination.
        for at in [0, 11, 13, 14, 21, 23, 31] {
            assert!(!alike(at, 99), "byte {at}");
        }
        assert!(!alike(16, 99), "longer than the frame");
    }
}
