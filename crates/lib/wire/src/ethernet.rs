//! Ethernet II: addresses, types, and the view of a header with at most one 802.1Q tag (IEEE 802.3,
//! 802.1Q).

use crate::{
    VlanTci, WireError,
    bytes::{be16, header_fields},
};
use std::{fmt, str::FromStr};

/// Bytes of an untagged Ethernet header.
pub const HEADER_LEN: usize = 14;
/// Bytes of one 802.1Q tag.
pub const TAG_LEN: usize = 4;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// 00:00:00:00:00:00, no station's address.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns whether the group bit is set; true for broadcast.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether this is the broadcast address.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        self.to_u64() == 0xffff_ffff_ffff
    }

    /// Returns whether this address may be a station's own: neither a group address nor zero.
    #[inline]
    pub const fn is_station(self) -> bool {
        !self.is_multicast() && self.to_u64() != 0
    }

    /// Returns whether this is an address that several routers share by protocol, so that it moves
    /// between them: of VRRP (RFC 9568, 7.3) and CARP, of HSRP (versions 1, 2 and IPv6; RFC 2281,
    /// 5.3 has version 1) or of GLBP.
    #[must_use]
    pub const fn is_virtual_router(self) -> bool {
        matches!(
            self.0,
            [0x00, 0x00, 0x5e, 0x00, 0x01 | 0x02, _]
                | [0x00, 0x00, 0x0c, 0x07, 0xac, _]
                | [0x00, 0x00, 0x0c, 0x9f, 0xf0..=0xff, _]
                | [0x00, 0x05, 0x73, 0xa0, 0x00..=0x0f, _]
                | [0x00, 0x07, 0xb4, 0x00..=0x03, _, _]
        )
    }

    /// Returns whether this is one of 01-80-C2-00-00-00 to -0F, which a bridge never forwards (IEEE
    /// 802.1Q, table 8-1).
    #[inline]
    pub const fn is_link_local_reserved(self) -> bool {
        self.to_u64() & !0xf == 0x0180_c200_0000
    }

    /// The address as a number, first byte most significant; the upper 16 bits are zero.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The address whose number is the low 48 bits of `v`.
    #[inline]
    pub const fn from_u64(v: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = v.to_be_bytes();
        Self([a, b, c, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not six hexadecimal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address: expected six hexadecimal bytes such as 52:54:00:12:34:56")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Six two-digit bytes, all separated by `:` or all by `-`, either case.
    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let sep = if s.contains('-') { '-' } else { ':' };
        let mut bytes = [0; 6];
        let mut parts = s.split(sep);
        for b in &mut bytes {
            *b = parts.next().and_then(hex_byte).ok_or(ParseMacError)?;
        }
        parts
            .next()
            .is_none()
            .then_some(Self(bytes))
            .ok_or(ParseMacError)
    }
}

fn hex_byte(s: &str) -> Option<u8> {
    let digits = s.len() == 2 && s.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(s, 16).ok()).flatten()
}

/// Type field of an Ethernet header; below 0x600 it is an 802.3 length.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// 802.1Q customer tag.
    pub const VLAN: Self = Self(0x8100);
    /// 802.1ad service tag; opaque to the switch.
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// Reverse ARP (RFC 903), announced by a migrated guest.
    pub const RARP: Self = Self(0x8035);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
    /// Link Layer Discovery Protocol.
    pub const LLDP: Self = Self(0x88cc);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("ipv4"),
            Self::ARP => f.write_str("arp"),
            Self::VLAN => f.write_str("vlan"),
            Self::RARP => f.write_str("rarp"),
            Self::IPV6 => f.write_str("ipv6"),
            Self::LLDP => f.write_str("lldp"),
            Self(v) => write!(f, "{v:#06x}"),
        }
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An Ethernet header, its outer 802.1Q tag if there is one, and the payload.
///
/// Only a customer tag (0x8100) counts as a tag. A second tag, or a service tag, is the
/// [`ethertype`](Self::ethertype) and is opaque: nested tags give no access to a VLAN.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<'a> {
    fixed: &'a [u8; HEADER_LEN],
    tag: Option<&'a [u8; TAG_LEN]>,
    payload: &'a [u8],
}

header_fields! {
    EthernetView:
    /// Destination address.
    dst: MacAddr = 0;
    /// Source address.
    src: MacAddr = 6;
}

impl<'a> EthernetView<'a> {
    /// A view of the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] for fewer than 14 bytes, or 18 with a tag.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        if be16(fixed, 12) != EtherType::VLAN.0 {
            return Ok(Self {
                fixed,
                tag: None,
                payload: rest,
            });
        }
        let (tag, payload) = rest.split_first_chunk().ok_or(WireError::Truncated)?;
        Ok(Self {
            fixed,
            tag: Some(tag),
            payload,
        })
    }

    /// The outer 802.1Q tag.
    #[inline]
    pub fn vlan(&self) -> Option<VlanTci> {
        self.tag.map(|t| VlanTci::from_bits(be16(t, 0)))
    }

    /// The type after the outer tag.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(
            self.tag
                .map_or_else(|| be16(self.fixed, 12), |t| be16(t, 2)),
        )
    }

    /// Bytes of header including the outer tag: 14 or 18.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + if self.tag.is_some() { TAG_LEN } else { 0 }
    }

    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_round_trips_and_rejects_what_is_not_one() {
        let mac: MacAddr = "52:54:00:aB:cd:0f".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:0f");
        assert_eq!("52-54-00-ab-cd-0f".parse(), Ok(mac));
        for bad in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:0f:1",
            "52:54:00:ab:cd:+f",
            "52:54:00:ab:cd:0",
            "5254.00ab.cd0f",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
        assert_eq!(MacAddr::from_u64(mac.to_u64()), mac);
    }

    #[test]
    fn mac_classes() {
        assert!(MacAddr::BROADCAST.is_broadcast() && MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([1, 0x80, 0xc2, 0, 0, 0xf]).is_link_local_reserved());
        assert!(!MacAddr([1, 0x80, 0xc2, 0, 0, 0x10]).is_link_local_reserved());
        let shared = |bytes: [u8; 6]| MacAddr(bytes).is_virtual_router();
        for yes in [
            [0, 0, 0x5e, 0, 1, 51],
            [0, 0, 0x5e, 0, 2, 255],
            [0, 0, 0x0c, 7, 0xac, 1],
            [0, 0, 0x0c, 0x9f, 0xf1, 2],
            [0, 5, 0x73, 0xa0, 0x0f, 0xff],
            [0, 7, 0xb4, 0, 1, 2],
        ] {
            assert!(shared(yes), "{yes:x?}");
        }
        for no in [
            [0, 0, 0x5e, 0, 0, 51],
            [0, 0, 0x5e, 0, 3, 51],
            [0, 0, 0x0c, 0x9f, 0xe1, 2],
            [0, 5, 0x73, 0xa0, 0x10, 0],
            [0, 7, 0xb4, 4, 1, 2],
            [2, 0, 0x5e, 0, 1, 51],
        ] {
            assert!(!shared(no), "{no:x?}");
        }
        assert!(!MacAddr::ZERO.is_station() && MacAddr([2, 0, 0, 0, 0, 1]).is_station());
    }

    #[test]
    fn a_tag_needs_all_of_its_bytes() {
        let mut frame = [0u8; 18];
        frame[12..18].copy_from_slice(&[0x81, 0, 0xa0, 5, 8, 0]);
        for len in 0..18 {
            assert_eq!(
                EthernetView::new_checked(&frame[..len]).err(),
                Some(WireError::Truncated)
            );
        }
        let eth = EthernetView::new_checked(&frame).unwrap();
        assert_eq!(
            eth.vlan(),
            Some(VlanTci {
                pcp: 5,
                dei: false,
                vid: 5
            })
        );
        assert_eq!((eth.ethertype(), eth.header_len()), (EtherType::IPV4, 18));
    }

    #[test]
    fn an_inner_or_service_tag_is_opaque() {
        let mut frame = [0u8; 22];
        frame[12..18].copy_from_slice(&[0x81, 0, 0, 1, 0x81, 0]);
        assert_eq!(
            EthernetView::new_checked(&frame).unwrap().ethertype(),
            EtherType::VLAN
        );
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        let eth = EthernetView::new_checked(&frame).unwrap();
        assert_eq!(
            (eth.vlan(), eth.ethertype()),
            (None, EtherType::SERVICE_VLAN)
        );
    }
}
