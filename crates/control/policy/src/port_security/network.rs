//! Networks of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 network; a single address is one of full length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Network {
    address: IpAddr,
    len: u8,
}

/// The text is no network: `10.0.0.5`, `10.0.0.0/24`, `2001:db8::/64`, without bits behind the
/// prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an IP address or a network")]
pub struct NotANetwork;

impl Network {
    /// Addresses that are decided one by one: unspecified ones, and those of the link.
    pub(super) const SPECIAL: [Self; 3] = [
        Self::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 32),
        Self::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128),
        Self::new(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    ];

    const fn new(address: IpAddr, len: u8) -> Self {
        Self { address, len }
    }

    /// Returns the network of this length that contains an address.
    pub(super) fn around(address: IpAddr, len: u8) -> Self {
        let behind = |width: u32| 1u128.checked_shl(width.saturating_sub(len.into()));
        let kept = |bits: u128, width| bits & !behind(width).map_or(u128::MAX, |bit| bit - 1);
        let address = match address {
            IpAddr::V4(v4) => {
                let bits = kept(u128::from(v4.to_bits()), 32) as u32;
                IpAddr::V4(Ipv4Addr::from_bits(bits))
            }
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(kept(v6.to_bits(), 128))),
        };
        Self { address, len }
    }

    fn width(&self) -> u8 {
        if self.is_v4() { 32 } else { 128 }
    }

    pub(super) fn is_v4(&self) -> bool {
        self.address.is_ipv4()
    }

    pub(super) fn is_host(&self) -> bool {
        self.len == self.width()
    }

    /// Returns the address, if it is a single one.
    pub(super) fn host(&self) -> Option<IpAddr> {
        self.is_host().then_some(self.address)
    }

    pub(super) fn is_link_local(&self) -> bool {
        Self::SPECIAL[2].covers(self)
    }

    /// Returns whether the network contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_v4() && Self::around(address, self.len) == *self
    }

    /// Returns whether the network contains all of another.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.len <= other.len && self.contains(other.address)
    }

    /// Returns whether any address is in both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork)?;
        let whole = Self::new(address, if address.is_ipv4() { 32 } else { 128 });
        let Some(len) = len else { return Ok(whole) };
        let digits = len.bytes().all(|b| b.is_ascii_digit());
        let len: u8 = len.parse().map_err(|_| NotANetwork)?;
        let network = Self::new(address, len);
        let right = digits && len <= whole.len && Self::around(address, len) == network;
        right.then_some(network).ok_or(NotANetwork)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.len)
        }
    }
}
