//! Descriptions as texts that can be read again.

use std::fmt;

use wire::tcp::FLAGS;

use super::{Body, EXPERIMENTAL, FrameText};

/// Types of an echo request and its reply, of ICMP and of ICMPv6.
pub(super) const fn echo(v4: bool) -> (u8, u8) {
    if v4 { (8, 0) } else { (128, 129) }
}

impl fmt::Display for FrameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((source, destination)) = self.ether {
            write!(f, "ether {source} > {destination} ")?;
        }
        if let Some(vid) = self.vlan {
            write!(f, "vlan {vid} ")?;
        }
        self.body.fmt(f)?;
        match self.payload {
            0 => Ok(()),
            len => write!(f, " length {len}"),
        }
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Icmp {
                src,
                dst,
                kind,
                code,
            } => {
                let word = if src.is_ipv4() { "icmp" } else { "icmp6" };
                write!(f, "{word} {src} > {dst}")?;
                match (*kind, *code) {
                    (kind, 0) if kind == echo(src.is_ipv4()).0 => Ok(()),
                    (kind, 0) if kind == echo(src.is_ipv4()).1 => f.write_str(" echo-reply"),
                    (kind, 0) => write!(f, " type {kind}"),
                    (kind, code) => write!(f, " type {kind} code {code}"),
                }
            }
            Self::Tcp { src, dst, flags } => {
                write!(f, "tcp {src} > {dst}")?;
                FLAGS
                    .iter()
                    .filter(|(_, bit)| flags & bit != 0)
                    .try_for_each(|(word, _)| write!(f, " {word}"))
            }
            Self::Udp { src, dst } => write!(f, "udp {src} > {dst}"),
            Self::Ip { src, dst, protocol } if *protocol == EXPERIMENTAL => {
                write!(f, "ip {src} > {dst}")
            }
            Self::Ip { src, dst, protocol } => write!(f, "ip proto {protocol} {src} > {dst}"),
            Self::ArpRequest { target, sender } => write!(f, "arp who-has {target} tell {sender}"),
            Self::ArpReply {
                sender,
                mac,
                target,
            } => write!(f, "arp reply {sender} is-at {mac} tell {target}"),
            Self::NeighborSolicitation { target, sender } => {
                write!(f, "nd who-has {target} tell {sender}")
            }
            Self::Other(ethertype) => write!(f, "type {:#06x}", ethertype.0),
        }
    }
}
