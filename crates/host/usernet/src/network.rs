//! Addresses of a user network, and which destinations its guests may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::MacAddr;

mod access;
mod prefix;
#[cfg(test)]
mod tests;

pub use access::{Access, HostRule, Ports, Protocol, Refusal, Rule, never_allowed};
pub use prefix::{ParseError, Prefix};

/// Shortest prefix of an IPv4 network, bits.
pub const SHORTEST: u8 = 8;
/// Longest prefix of an IPv4 network, bits: gateway, DNS and a guest fit.
pub const LONGEST: u8 = 29;
/// Host number of the gateway, as guests of QEMU know it.
const GATEWAY: u32 = 2;
/// Host number of the DNS server.
const DNS: u32 = 3;
/// Host number of the first lease, in networks that are large enough for it.
const FIRST_LEASE: u32 = 15;
/// Minimum MTU: IPv6's (RFC 8200, section 5).
pub const LEAST_MTU: u16 = 1280;

/// Why a network cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The IPv4 network is of another version, too small or too large.
    #[error("a network is an IPv4 prefix of 8 to 29 bits")]
    Size,
    /// The IPv4 network lies where no guest may reach, or is no unicast network.
    #[error("the network is one that is never reached: loopback, link-local or multicast")]
    Reserved,
    /// The IPv6 network is no /64 for unicast.
    #[error("network6 is an IPv6 prefix of 64 bits for unicast")]
    Size6,
    /// The MTU is below 1280 bytes.
    #[error("the MTU is below 1280 bytes")]
    Mtu,
}

/// The addresses of a user network. All are made of its prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The IPv4 network.
    prefix: Prefix,
    /// The IPv6 network, 64 bits; `None` without IPv6.
    prefix6: Option<Prefix>,
    /// Station of gateway and DNS server.
    mac: MacAddr,
    /// Longest IP packet towards a guest that is no super-frame, bytes.
    mtu: u16,
}

impl Network {
    /// A network with gateway .2 and DNS server .3, both at the station `mac`.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn new(
        prefix: Prefix,
        prefix6: Option<Prefix>,
        mac: MacAddr,
        mtu: u16,
    ) -> Result<Self, NetworkError> {
        let IpAddr::V4(first) = prefix.address() else {
            return Err(NetworkError::Size);
        };
        if !(SHORTEST..=LONGEST).contains(&prefix.len()) {
            return Err(NetworkError::Size);
        }
        if never_allowed(first.into()) || first.octets()[0] >= 224 {
            return Err(NetworkError::Reserved);
        }
        if prefix6.is_some_and(|prefix6| !is_network6(prefix6)) {
            return Err(NetworkError::Size6);
        }
        if mtu < LEAST_MTU {
            return Err(NetworkError::Mtu);
        }
        Ok(Self {
            prefix,
            prefix6,
            mac,
            mtu,
        })
    }

    /// The IPv4 network.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The IPv6 network.
    #[must_use]
    pub fn prefix6(&self) -> Option<Prefix> {
        self.prefix6
    }

    /// Station of gateway and DNS server.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Longest IP packet towards a guest that is no super-frame, bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Host `number` of the IPv4 network; it is masked to the network's size.
    #[must_use]
    pub fn host(&self, number: u32) -> Ipv4Addr {
        let first = match self.prefix.address() {
            IpAddr::V4(first) => first.to_bits(),
            IpAddr::V6(_) => 0,
        };
        Ipv4Addr::from_bits(first | number & !(u32::MAX << (32 - u32::from(self.prefix.len()))))
    }

    /// Address of the gateway.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        self.host(GATEWAY)
    }

    /// Address of the DNS server.
    #[must_use]
    pub fn dns(&self) -> Ipv4Addr {
        self.host(DNS)
    }

    /// Host numbers that leases may have. In a network with fewer than 32 hosts they follow the DNS
    /// server. The broadcast address is none.
    #[must_use]
    pub fn leases(&self) -> std::ops::Range<u32> {
        let broadcast = !(u32::MAX << (32 - u32::from(self.prefix.len())));
        let first = if broadcast < 31 { DNS + 1 } else { FIRST_LEASE };
        first..broadcast
    }

    /// Interface identifier `number` in the IPv6 network.
    fn host6(&self, number: u128) -> Option<Ipv6Addr> {
        match self.prefix6?.address() {
            IpAddr::V6(first) => Some(Ipv6Addr::from_bits(first.to_bits() | number)),
            IpAddr::V4(_) => None,
        }
    }

    /// Address of the gateway in the IPv6 network.
    #[must_use]
    pub fn gateway6(&self) -> Option<Ipv6Addr> {
        self.host6(u128::from(GATEWAY))
    }

    /// Address of the DNS server in the IPv6 network.
    #[must_use]
    pub fn dns6(&self) -> Option<Ipv6Addr> {
        self.host6(u128::from(DNS))
    }

    /// Link-local address of the gateway, which is the source of its router advertisements (RFC
    /// 4861, section 4.2): made of the station (RFC 4291, appendix A).
    #[must_use]
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac.0;
        let high = u16::from_be_bytes([a ^ 2, b]);
        let middle = [u16::from_be_bytes([c, 0xff]), u16::from_be_bytes([0xfe, d])];
        let low = u16::from_be_bytes([e, f]);
        Ipv6Addr::new(0xfe80, 0, 0, 0, high, middle[0], middle[1], low)
    }

    /// Returns whether `address` lies in the IPv4 or the IPv6 network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefix.contains(address) || self.prefix6.is_some_and(|p| p.contains(address))
    }

    /// Returns whether a guest may have `address`: one of the network's that is neither network,
    /// broadcast, gateway nor DNS server.
    #[must_use]
    pub fn may_be_guest(&self, address: IpAddr) -> bool {
        let edges = [self.host(0), self.host(u32::MAX)].map(IpAddr::V4);
        let router = self.prefix6.map(Prefix::address);
        self.contains(address)
            && !edges.contains(&address)
            && router != Some(address)
            && !self.is_gateway(address)
            && !self.is_dns(address)
    }

    /// Returns whether packets to guests may come from `address`: from gateway, DNS server, or a
    /// host outside that is no loopback, link-local or multicast address.
    #[must_use]
    pub fn may_be_peer(&self, address: IpAddr) -> bool {
        let ours = self.is_gateway(address) || self.is_dns(address);
        ours || !self.contains(address) && !never_allowed(address)
    }

    /// Returns whether `address` is one of the gateway's.
    #[must_use]
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address == self.gateway(),
            IpAddr::V6(address) => {
                self.gateway6() == Some(address)
                    || self.prefix6.is_some() && address == self.link_local()
            }
        }
    }

    /// Returns whether `address` is one of the DNS server's.
    #[must_use]
    pub fn is_dns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address == self.dns(),
            IpAddr::V6(address) => self.dns6() == Some(address),
        }
    }
}

/// Returns whether `prefix` is a /64 of unicast addresses that guests may have.
fn is_network6(prefix: Prefix) -> bool {
    match prefix.address() {
        IpAddr::V6(first) => prefix.len() == 64 && !never_allowed(first.into()),
        IpAddr::V4(_) => false,
    }
}

/// Where packets of a guest lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the DNS server of the network.
    Dns,
    /// To the gateway itself, which has no service there of the host's.
    Gateway,
    /// To a service of the host, on its loopback.
    Host(SocketAddr),
    /// To the outside.
    Outside(SocketAddr),
    /// Nowhere.
    Refused(Refusal),
}

/// Returns where packets to `to` lead. Addresses of the host itself are only known to the caller's
/// sockets: it compares the own address of a connected socket with `to`, and refuses.
#[must_use]
pub fn destination(
    network: &Network,
    access: &Access,
    protocol: Protocol,
    to: SocketAddr,
) -> Destination {
    if network.is_dns(to.ip()) {
        return Destination::Dns;
    }
    if network.is_gateway(to.ip()) {
        if !access.host_allows(protocol, to.port()) {
            return Destination::Gateway;
        }
        let loopback = match to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        return Destination::Host(SocketAddr::new(loopback, to.port()));
    }
    if network.contains(to.ip()) {
        return Destination::Refused(Refusal::Unreachable);
    }
    if to.is_ipv6() && network.prefix6().is_none() {
        return Destination::Refused(Refusal::Unreachable);
    }
    if !access.allows(protocol, to) {
        return Destination::Refused(Refusal::Denied);
    }
    Destination::Outside(to)
}
