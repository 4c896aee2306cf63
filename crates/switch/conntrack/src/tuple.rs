//! The identity of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Words of a tuple.
pub const WORDS: usize = 5;

const SRC_PORT: u32 = 0;
const DST_PORT: u32 = 16;
const PROTOCOL: u32 = 32;
const FORM: u32 = 40;
const ZONE: u32 = 48;

/// Form: addresses of IPv6.
const V6: u64 = 1;
/// Form: the source asks, by an ICMP query.
const SRC_ASKS: u64 = 2;
/// Form: the destination has asked; this is the answer.
const DST_ASKS: u64 = 4;
/// Form: the kind of a query.
const KIND: u32 = 3;

/// Zone, protocol, addresses and ports of a connection, seen in the direction of a frame.
///
/// ```text
/// word  bits 63..48   47..40   39..32     31..16     15..0
///  0    zone          form     protocol   dst port   src port
/// 1,2   source IP: word 1 the low 64 bits (IPv4 the low 32), word 2 the high
/// 3,4   destination IP, likewise
/// form  bit 0 IPv6, bit 1 the source asks, bit 2 the destination has asked, bits 3..5 query
/// ```
/// An ICMP query (RFC 792) has its identifier as the port of the side that asks, and its code as
/// that of the other. The form has the side that asks too: two hosts that ask each other with one
/// identifier have two connections. Other protocols without ports have zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple([u64; WORDS]);

/// An ICMP message that asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Whether it asks.
    pub asks: bool,
    /// A number below 8 that tells queries apart which may share an identifier.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Identifier.
    pub identifier: u16,
}

impl Tuple {
    /// A tuple of a protocol with ports, or of one without them and zeros. Both addresses are of
    /// one version: the source's counts.
    #[inline]
    #[must_use]
    pub fn new(zone: u16, protocol: u8, src: (IpAddr, u16), dst: (IpAddr, u16)) -> Self {
        let v6 = if src.0.is_ipv6() { V6 } else { 0 };
        let low = u64::from(protocol) << PROTOCOL
            | u64::from(dst.1) << DST_PORT
            | u64::from(src.1) << SRC_PORT;
        let (src, dst) = (number(src.0), number(dst.0));
        Self([
            u64::from(zone) << ZONE | v6 << FORM | low,
            src as u64,
            (src >> 64) as u64,
            dst as u64,
            (dst >> 64) as u64,
        ])
    }

    /// The tuple of a protocol with ports over IPv4. `addresses`: source and destination; `ports`:
    /// the source's in the low half, the destination's above it.
    #[inline(always)]
    #[must_use]
    pub const fn of_v4(zone: u16, protocol: u8, addresses: (u32, u32), ports: u32) -> Self {
        let first = (zone as u64) << ZONE | (protocol as u64) << PROTOCOL | ports as u64;
        Self([first, addresses.0 as u64, 0, addresses.1 as u64, 0])
    }

    /// The same over IPv6; an address is its low half and its high one.
    #[inline(always)]
    #[must_use]
    pub const fn of_v6(
        zone: u16,
        protocol: u8,
        ((src, src_high), (dst, dst_high)): ((u64, u64), (u64, u64)),
        ports: u32,
    ) -> Self {
        let first = (zone as u64) << ZONE | V6 << FORM | (protocol as u64) << PROTOCOL;
        Self([first | ports as u64, src, src_high, dst, dst_high])
    }

    /// The tuple of an ICMP message that asks or answers.
    #[inline]
    #[must_use]
    pub fn of_query(zone: u16, protocol: u8, src: IpAddr, dst: IpAddr, query: Query) -> Self {
        let (identifier, code) = (query.identifier, u16::from(query.code));
        let (ports, asks) = if query.asks {
            ((identifier, code), SRC_ASKS)
        } else {
            ((code, identifier), DST_ASKS)
        };
        let mut tuple = Self::new(zone, protocol, (src, ports.0), (dst, ports.1));
        tuple.0[0] |= (asks | u64::from(query.kind & 7) << KIND) << FORM;
        tuple
    }

    /// The tuple of a connection's frames in the other direction.
    #[inline]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        let [first, src, src_high, dst, dst_high] = self.0;
        let asks = SRC_ASKS | DST_ASKS;
        let form = first >> FORM;
        // One side asks or none does: to swap the two bits is to flip both of a query.
        let flip = if form & asks == 0 { 0 } else { asks << FORM };
        let ports = (first as u32).rotate_left(16) as u64;
        let first = (first & !(u32::MAX as u64) | ports) ^ flip;
        Self([first, dst, dst_high, src, src_high])
    }

    /// The words, for shared memory.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// A tuple of words that another process wrote. All words are a tuple; others than those that
    /// the constructors make are no frame's.
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// The zone: the number of a segment.
    #[inline]
    #[must_use]
    pub const fn zone(&self) -> u16 {
        (self.0[0] >> ZONE) as u16
    }

    /// IP protocol number.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        (self.0[0] >> PROTOCOL) as u8
    }

    /// Returns whether the addresses are of IPv6.
    #[inline]
    #[must_use]
    pub const fn is_v6(&self) -> bool {
        self.0[0] >> FORM & V6 != 0
    }

    /// Source port; a query's identifier if the source asks.
    #[inline]
    #[must_use]
    pub const fn src_port(&self) -> u16 {
        (self.0[0] >> SRC_PORT) as u16
    }

    /// Destination port; a query's identifier if the destination has asked.
    #[inline]
    #[must_use]
    pub const fn dst_port(&self) -> u16 {
        (self.0[0] >> DST_PORT) as u16
    }

    /// Source address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        self.address(self.0[1], self.0[2])
    }

    /// Destination address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.address(self.0[3], self.0[4])
    }

    fn address(&self, low: u64, high: u64) -> IpAddr {
        if self.is_v6() {
            Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
        } else {
            Ipv4Addr::from_bits(low as u32).into()
        }
    }

    /// The hash of the connection: that of [`reversed`](Self::reversed) too.
    ///
    /// A guest that does not know the seed cannot aim at a set of the table, because the chance
    /// over all seeds that two tuples meet is about 2^-62, whatever they are:
    /// * An end of a connection is a number of 64 bits. For IPv4 these are its address, port and
    ///   the side that asks, so two ends never are one number. For IPv6 it is the NH hash of UMAC
    ///   (RFC 4418, 5.2) over address and port, folded.
    /// * With a secret added to each, the numbers of both ends are multiplied to 128 bits, which is
    ///   the same in both directions. For two pairs of ends the difference of the products is
    ///   linear in that secret but for the carries, so only a few secrets make it zero, unless the
    ///   pairs are the same.
    /// * The product and the protocol are mixed with two more secrets, and multiplied once more.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, seed: &Seed) -> u64 {
        let [first, src, src_high, dst, dst_high] = self.0;
        let form = first >> FORM;
        let src_port = first & 0xffff | (form & SRC_ASKS) << 15;
        let dst_port = first >> DST_PORT & 0xffff | (form & DST_ASKS) << 14;
        let (src, dst) = if form & V6 == 0 {
            (src | src_port << 32, dst | dst_port << 32)
        } else {
            let src = seed.end(src, src_high, src_port);
            (src, seed.end(dst, dst_high, dst_port))
        };
        let [.., sum, low, high] = seed.0;
        let product = u128::from(src.wrapping_add(sum)) * u128::from(dst.wrapping_add(sum));
        let common = first & !((SRC_ASKS | DST_ASKS) << FORM) & !u64::from(u32::MAX);
        fold(
            product as u64 ^ low,
            (product >> 64) as u64 ^ common.wrapping_add(high),
        )
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Secrets of the hash.
#[derive(Clone, Copy)]
pub struct Seed([u64; 9]);

/// A station as connections know it: 16 bits of its MAC address, hashed with the table's secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Station(pub u16);

impl Seed {
    /// The secrets of a seed, which must be random and secret.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut secrets: [u64; 9] = std::array::from_fn(|_| {
            // SplitMix64's step, twice mixed with the seed.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            fold(
                state ^ 0xbf58_476d_1ce4_e5b9,
                seed.rotate_left(32) ^ 0x94d0_49bb_1331_11eb,
            ) ^ fold(state, 0xd6e8_feb8_6659_fd93)
        });
        // That of stations is odd.
        let [.., last] = &mut secrets;
        *last |= 1;
        Self(secrets)
    }

    /// The station with a MAC address, in the lower six bytes, the first one lowest: the upper
    /// third of its product of 48 bits with an odd secret number (multiply-shift).
    #[inline(always)]
    pub(crate) fn station(&self, address: u64) -> Station {
        let [.., secret] = self.0;
        Station(((address << 16).wrapping_mul(secret) >> 48) as u16)
    }

    #[inline]
    fn end(&self, low: u64, high: u64, port: u64) -> u64 {
        let [a, b, c, d, e, f, ..] = self.0;
        let address = u128::from(low.wrapping_add(a)) * u128::from(high.wrapping_add(b));
        let port = u128::from(port.wrapping_add(c)) * u128::from(d);
        let sum = address.wrapping_add(port);
        fold(sum as u64 ^ e, (sum >> 64) as u64 ^ f)
    }
}

/// Secrets are in no log.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}

/// `zone 3 protocol 6 10.0.0.1:1000 -> 10.0.0.2:80`.
impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: IpAddr, port| std::net::SocketAddr::new(address, port);
        write!(
            f,
            "zone {} protocol {} {} -> {}",
            self.zone(),
            self.protocol(),
            end(self.src(), self.src_port()),
            end(self.dst(), self.dst_port())
        )
    }
}

#[cfg(test)]
mod tests;
