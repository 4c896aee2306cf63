//! Prefixes of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use wire::hash::{BASIS, SplitMix64, fnv1a};

/// Why a text is no prefix, rule, or set of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Neither an address nor a prefix.
    #[error("expected an address or a prefix such as 10.0.0.0/8")]
    Prefix,
    /// Bits after the prefix are set.
    #[error("host bits are set after the prefix")]
    HostBits,
    /// Another word than the protocols that a rule can name.
    #[error("expected tcp, udp or icmp")]
    Protocol,
    /// Neither a port nor a range of ports.
    #[error("expected a port from 1 to 65535, or a range such as 1-1023")]
    Ports,
    /// Ports of a protocol that has none.
    #[error("icmp has no ports")]
    NoPorts,
    /// More words than a rule has.
    #[error("too many words")]
    Words,
}

/// A network: an address and how many of its bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// All IPv4 addresses.
    pub const ALL_V4: Self = Self {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        len: 0,
    };
    /// All IPv6 addresses.
    pub const ALL_V6: Self = Self {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        len: 0,
    };

    /// The network of `len` bits that `address` begins.
    ///
    /// # Errors
    /// [`ParseError::Prefix`] if the version has fewer bits, [`ParseError::HostBits`] if bits after
    /// the prefix are set.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, ParseError> {
        if len > bits(address) {
            return Err(ParseError::Prefix);
        }
        let prefix = Self::around(address, len);
        if prefix.address == address {
            Ok(prefix)
        } else {
            Err(ParseError::HostBits)
        }
    }

    /// The network of `len` bits that holds `address`; a longer one than the version has counts as
    /// the address alone.
    #[must_use]
    pub fn around(address: IpAddr, len: u8) -> Self {
        let len = len.min(bits(address));
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, len }
    }

    /// The /64 of a port that names none (`network6 = "auto"`): in fd00::/8, with a global id made
    /// of the switch's name and a subnet made of the port's (RFC 4193, section 3.2), so that it is
    /// the same after every restart.
    #[must_use]
    pub fn unique_local(switch: &str, port: &str) -> Self {
        // One step of a generator spreads the bits of a short name.
        let number = |name: &str| SplitMix64(fnv1a(BASIS, name.bytes())).number();
        let (global, subnet) = (number(switch) >> 24, number(port) >> 48);
        let bits = 0xfd << 120 | u128::from(global) << 80 | u128::from(subnet) << 64;
        Self::around(Ipv6Addr::from_bits(bits).into(), 64)
    }

    /// The first address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// How many bits count.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "bits of a prefix, no collection"
    )]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Returns whether `address` lies in the network; never for the other version.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self::around(address, self.len).address == self.address
    }

    /// Returns whether an address lies in both networks.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = ParseError;

    /// A prefix, or an address, which is a prefix of all its bits.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ParseError::Prefix)?;
        let len = match len {
            Some(len) if len.bytes().all(|digit| digit.is_ascii_digit()) => {
                len.parse().map_err(|_| ParseError::Prefix)?
            }
            Some(_) => return Err(ParseError::Prefix),
            None => bits(address),
        };
        Self::new(address, len)
    }
}
