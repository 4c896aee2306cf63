//! Which destinations guests may reach.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::{ParseError, Prefix};

/// Why a frame or a flow of a guest is refused. The names are those of the drop reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// The configuration, or the fixed list of what is never reached, forbids the destination; or
    /// the flow is that of another station.
    Denied,
    /// A bound of flows is reached: the port's, the guest's, or that of half open ones.
    Flows,
    /// A fragment. None are reassembled.
    Fragment,
    /// A protocol, option or frame that is not translated.
    Protocol,
    /// Nothing is there, or the host has no route to it.
    Unreachable,
    /// The guest has its part of the host's ephemeral ports, or of the identifiers of echo
    /// requests.
    Ports,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Denied,
        Self::Flows,
        Self::Fragment,
        Self::Protocol,
        Self::Unreachable,
        Self::Ports,
    ];

    /// The drop reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "user-denied",
            Self::Flows => "user-flows",
            Self::Fragment => "user-fragment",
            Self::Protocol => "user-protocol",
            Self::Unreachable => "user-unreachable",
            Self::Ports => "user-ports",
        }
    }
}

/// A protocol that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6: echo requests.
    Icmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

impl FromStr for Protocol {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "icmp" => Ok(Self::Icmp),
            _ => Err(ParseError::Protocol),
        }
    }
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// All ports.
    pub const ALL: Self = Self {
        first: 0,
        last: u16::MAX,
    };

    /// Ports from `first` to `last`.
    ///
    /// # Errors
    /// [`ParseError::Ports`] for port 0, or if `last` is below `first`.
    pub fn new(first: u16, last: u16) -> Result<Self, ParseError> {
        if first == 0 || last < first {
            return Err(ParseError::Ports);
        }
        Ok(Self { first, last })
    }

    /// The first port.
    #[must_use]
    pub fn first(self) -> u16 {
        self.first
    }

    /// The last port.
    #[must_use]
    pub fn last(self) -> u16 {
        self.last
    }

    /// Returns whether `port` is one of them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for Ports {
    type Err = ParseError;

    /// A port, or two with a hyphen between them.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| match text.bytes().all(|digit| digit.is_ascii_digit()) {
            true => text.parse().map_err(|_| ParseError::Ports),
            false => Err(ParseError::Ports),
        };
        Self::new(port(first)?, port(last)?)
    }
}

/// A rule of `allow` or `deny`: a network, and of what in it, such as `10.0.0.0/8 tcp 1-1023`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The network.
    pub prefix: Prefix,
    /// The protocol; `None`: all.
    pub protocol: Option<Protocol>,
    /// The ports of the protocol.
    pub ports: Ports,
}

impl Rule {
    fn covers(&self, protocol: Protocol, to: SocketAddr) -> bool {
        self.prefix.contains(to.ip())
            && self.protocol.is_none_or(|own| own == protocol)
            && self.ports.contains(to.port())
    }
}

impl From<Prefix> for Rule {
    fn from(prefix: Prefix) -> Self {
        Self {
            prefix,
            protocol: None,
            ports: Ports::ALL,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.prefix)?;
        if let Some(protocol) = self.protocol {
            write!(f, " {protocol}")?;
            if self.ports != Ports::ALL {
                write!(f, " {}", self.ports)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = ParseError;

    /// `PREFIX [PROTOCOL [PORTS]]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (prefix, rest) = text
            .split_once(' ')
            .map_or((text, None), |(p, r)| (p, Some(r)));
        let mut rule = Self::from(prefix.parse::<Prefix>()?);
        if let Some(rest) = rest {
            let host: HostRule = rest.parse()?;
            rule.protocol = Some(host.protocol);
            rule.ports = host.ports;
        }
        Ok(rule)
    }
}

/// A service of the host that guests reach at the gateway, such as `tcp 5432`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRule {
    /// The protocol.
    pub protocol: Protocol,
    /// Its ports.
    pub ports: Ports,
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.protocol)?;
        if self.ports != Ports::ALL {
            write!(f, " {}", self.ports)?;
        }
        Ok(())
    }
}

impl FromStr for HostRule {
    type Err = ParseError;

    /// `PROTOCOL [PORTS]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut words = text.split_ascii_whitespace();
        let protocol = words.next().ok_or(ParseError::Protocol)?.parse()?;
        let ports = match (protocol, words.next()) {
            (_, None) => Ports::ALL,
            (Protocol::Icmp, Some(_)) => return Err(ParseError::NoPorts),
            (_, Some(ports)) => ports.parse()?,
        };
        match words.next() {
            None => Ok(Self { protocol, ports }),
            Some(_) => Err(ParseError::Words),
        }
    }
}

/// The destinations that guests may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Networks that are allowed.
    pub allow: Vec<Rule>,
    /// Networks that are denied; of two rules for the same network this one decides.
    pub deny: Vec<Rule>,
    /// Services of the host that are reached at the gateway.
    pub host: Vec<HostRule>,
}

impl Default for Access {
    /// Everything outside, and nothing of the host.
    fn default() -> Self {
        Self {
            allow: vec![Prefix::ALL_V4.into(), Prefix::ALL_V6.into()],
            deny: Vec::new(),
            host: Vec::new(),
        }
    }
}

impl Access {
    /// Returns whether guests may reach `to` outside. The rule with the most specific network
    /// decides; without any rule it is no. Where a translator may lead to an address of IPv4, that
    /// must not be denied either.
    #[must_use]
    pub fn allows(&self, protocol: Protocol, to: SocketAddr) -> bool {
        let longest = |rules: &[Rule], to| {
            let rules = rules.iter().filter(|rule| rule.covers(protocol, to));
            rules.map(|rule| rule.prefix.len()).max()
        };
        let is_denied = |v4: Ipv4Addr| {
            let to = SocketAddr::new(v4.into(), to.port());
            let denied = longest(&self.deny, to);
            denied.is_some() && denied >= longest(&self.allow, to)
        };
        let translated_is_denied = match to.ip() {
            IpAddr::V6(v6) => translated(v6).any(is_denied),
            IpAddr::V4(_) => false,
        };
        !never_allowed(to.ip())
            && longest(&self.allow, to) > longest(&self.deny, to)
            && !translated_is_denied
    }

    /// Returns whether guests reach this port of the host at the gateway.
    #[must_use]
    pub fn host_allows(&self, protocol: Protocol, port: u16) -> bool {
        let mut rules = self.host.iter();
        rules.any(|rule| rule.protocol == protocol && rule.ports.contains(port))
    }
}

/// Metadata services of clouds outside of the link-local networks: they hand the host's own
/// credentials to those who ask from its addresses. Amazon's and Google's by IPv6, Alibaba's,
/// Azure's and Oracle's.
const METADATA: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// Returns whether no rule can allow `address`: loopback, link-local, unspecified, multicast,
/// broadcast, metadata services of clouds, forms of IPv6 that stand for an address of IPv4, and
/// those that lead to such an address by NAT64, 6to4, Teredo or ISATAP.
#[must_use]
pub fn never_allowed(address: IpAddr) -> bool {
    let by_range = match address {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            let segments = v6.segments();
            let embeds_v4 = segments[..5] == [0; 5] && matches!(segments[5], 0 | 0xffff);
            // The first 96 bits of zero include the unspecified address and loopback.
            let translated = translated(v6).any(|v4| never_allowed(v4.into()));
            embeds_v4 || v6.is_multicast() || v6.is_unicast_link_local() || translated
        }
    };
    by_range || METADATA.contains(&address)
}

/// The IPv4 addresses that a translator or tunnel of the host's network may lead to:
///
/// * NAT64 by the well-known prefix (RFC 6052, section 2.1)
/// * NAT64 by a prefix of the network's own (RFC 8215), whose length is not known: 96 bits, or
///   where nothing lies behind a shorter one, each of 48, 56 and 64 bits (RFC 6052, section 2.2)
/// * 6to4 (RFC 3056, section 2)
/// * Teredo (RFC 4380, section 4): the server, and the client, whose address is inverted
/// * ISATAP (RFC 5214, section 6.1), in any network
fn translated(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = address.to_bits();
    // The 32 bits that end `n` bits before the end.
    let at = |end: u32| Some((bits >> end) as u32);
    // Bits 64 to 71 are none of the address.
    let around = |before: u32| {
        let (high, low) = (bits >> 64, bits << 72 >> 96);
        Some((high << (32 - before)) as u32 | low as u32 >> before)
    };
    let found = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [at(0), None, None],
        // `0.0.0.0/8` is no destination: the prefix has another length.
        [0x64, 0xff9b, 1, ..] if bits << 104 == 0 => {
            [around(16), around(8), around(0)].map(|found| found.filter(|found| found >> 24 != 0))
        }
        [0x64, 0xff9b, 1, ..] => [at(0), None, None],
        [0x2002, ..] => [at(80), None, None],
        [0x2001, 0, ..] => [at(64), Some(!(bits as u32)), None],
        [.., 0 | 0x200, 0x5efe, _, _] => [at(0), None, None],
        _ => [None; 3],
    };
    found.into_iter().flatten().map(Ipv4Addr::from_bits)
}
