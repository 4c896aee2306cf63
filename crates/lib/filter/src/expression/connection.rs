//! Filters of connections: the same language, without what frames alone have.
//!
//! The source is the side that opened the connection: `dst port 80` are connections to port 80,
//! and `port 80` those that have it at either end.

use std::net::IpAddr;

use wire::packet::L3;
use wire::{EtherType, ParsedHeaders};

use super::parse::{About, parse};
use super::{Filter, Holder, Primitive};
use crate::ExpressionError;

/// A filter of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFilter(Filter);

/// A connection as filters see it, in the direction of its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    /// IP protocol number.
    pub protocol: u8,
    /// Address and port of the side that opened it; the port is 0 where the protocol has none.
    pub source: (IpAddr, u16),
    /// Address and port of the other side; the address has the same version.
    pub destination: (IpAddr, u16),
}

impl ConnectionFilter {
    /// Reads a text.
    ///
    /// # Errors
    /// As [`Filter::parse`], and primitives that no connection has: Ethernet addresses, tags,
    /// lengths, groups, and types other than `ip` and `ip6`.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let root = parse(text, About::Connections)?;
        Ok(Self(Filter { root }))
    }

    /// Returns whether every connection is selected.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.is_everything()
    }

    /// Returns whether a connection is selected. Allocates nothing.
    #[must_use]
    pub fn matches(&self, ends: &ConnectionEnds) -> bool {
        self.0.matches(&ends.frame(), 0)
    }
}

impl ConnectionEnds {
    /// Returns the headers of its first frame.
    fn frame(&self) -> ParsedHeaders {
        let (ethertype, l3) = match (self.source.0, self.destination.0) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (EtherType::IPV4, L3::V4 { src, dst, tos: 0 }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => (
                EtherType::IPV6,
                L3::V6 {
                    src,
                    dst,
                    tos: 0,
                    routing: false,
                },
            ),
            _ => (EtherType(0), L3::Other),
        };
        ParsedHeaders {
            ethertype,
            l3,
            l3_offset: 14,
            l4_proto: self.protocol,
            l4_offset: Some(0),
            src_port: self.source.1,
            dst_port: self.destination.1,
            ..ParsedHeaders::default()
        }
    }
}

impl Primitive {
    /// Returns whether it is about something that a connection has.
    pub(super) fn is_of_connections(self) -> bool {
        match self {
            Self::EtherType(ethertype) => matches!(ethertype, EtherType::IPV4 | EtherType::IPV6),
            Self::Address(holder, ..) => holder != Holder::Arp,
            Self::Protocol(..) | Self::Ports(..) => true,
            Self::Ether(..)
            | Self::Broadcast
            | Self::Multicast
            | Self::IpMulticast(_)
            | Self::Vlan(_)
            | Self::Less(_)
            | Self::Greater(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(protocol: u8, source: (&str, u16), destination: (&str, u16)) -> ConnectionEnds {
        let end = |(address, port): (&str, u16)| (address.parse().unwrap(), port);
        ConnectionEnds {
            protocol,
            source: end(source),
            destination: end(destination),
        }
    }

    #[test]
    fn the_source_is_the_side_that_opened_the_connection() {
        let web = ends(6, ("10.0.0.1", 4000), ("10.0.1.2", 80));
        let dns = ends(17, ("fd00::1", 4000), ("fd00::2", 53));
        let ping = ends(1, ("10.0.0.1", 0), ("10.0.0.9", 0));
        for (text, matches) in [
            ("", [true; 3]),
            ("tcp", [true, false, false]),
            ("dst port 80", [true, false, false]),
            ("src port 80", [false; 3]),
            ("port 4000", [true, true, false]),
            ("ip6 and udp portrange 50-60", [false, true, false]),
            ("host 10.0.0.1", [true, false, true]),
            ("dst net 10.0.1.0/24 or icmp", [true, false, true]),
            ("not src host 10.0.0.1", [false, true, false]),
            ("ip proto 1", [false, false, true]),
        ] {
            let filter = ConnectionFilter::parse(text).unwrap();
            let found = [web, dns, ping].map(|ends| filter.matches(&ends));
            assert_eq!(found, matches, "{text}");
            assert_eq!(filter.is_everything(), text.is_empty());
        }
    }

    #[test]
    fn what_frames_alone_have_is_refused_with_its_column() {
        for text in [
            "ether host 02:00:00:00:00:01",
            "ether proto 0x88cc",
            "arp",
            "arp host 10.0.0.1",
            "rarp",
            "broadcast",
            "multicast",
            "ip multicast",
            "vlan",
            "vlan 5",
            "less 100",
            "greater 100",
        ] {
            let error = ConnectionFilter::parse(&format!("tcp and ({text})")).unwrap_err();
            assert_eq!(error.column, 10, "{text}");
            assert!(Filter::parse(text).is_ok());
        }
        let error = ConnectionFilter::parse("port http").unwrap_err();
        assert_eq!(error.column, 6);
    }
}
