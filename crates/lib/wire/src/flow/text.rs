//! Keys and masks for people.

use super::*;
use std::{
    fmt::{Debug, Formatter, Result},
    net::{Ipv4Addr, Ipv6Addr},
};

impl Debug for FlowKey {
    /// Ethernet fields always, the others only when they are not all zero.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut d = f.debug_struct("FlowKey");
        d.field("in_port", &self.in_port());
        if self.ct() != Ct::UNTRACKED {
            d.field("ct", &format_args!("{}", self.ct()));
        }
        match self.vlan() {
            Some(vid) => d.field("vlan", &vid),
            None => d.field("vlan", &format_args!("untagged")),
        };
        d.field("smac", &self.smac())
            .field("dmac", &self.dmac())
            .field("ethertype", &self.ethertype());
        if self.frame_class() != FrameClass::Ordinary {
            d.field("class", &self.frame_class());
        }
        if self.src_ip() != 0 || self.dst_ip() != 0 {
            self.fmt_addresses(&mut d);
        }
        let upper = [
            ("ip_proto", u16::from(self.ip_proto())),
            ("tos", self.tos().into()),
            ("l4_src", self.l4_src()),
            ("l4_dst", self.l4_dst()),
        ];
        for (name, v) in upper.into_iter().filter(|(_, v)| *v != 0) {
            d.field(name, &v);
        }
        if self.l4_flags() != 0 {
            d.field("l4_flags", &format_args!("{:#x}", self.l4_flags()));
        }
        if !self.state().is_empty() {
            d.field("state", &self.state());
        }
        d.finish()
    }
}

impl FlowKey {
    fn fmt_addresses(&self, d: &mut std::fmt::DebugStruct<'_, '_>) {
        if self.ethertype() == EtherType::IPV6 {
            d.field("src_ip", &Ipv6Addr::from_bits(self.src_ip()));
            d.field("dst_ip", &Ipv6Addr::from_bits(self.dst_ip()));
        } else {
            d.field("src_ip", &Ipv4Addr::from_bits(self.src_ip() as u32));
            d.field("dst_ip", &Ipv4Addr::from_bits(self.dst_ip() as u32));
        }
    }
}

impl Debug for FlowMask {
    /// The fields that count: the name alone for a whole field, else its bits.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if *self == Self::EXACT {
            return f.write_str("FlowMask(exact)");
        }
        let mut d = f.debug_set();
        for (name, field) in FIELDS {
            match field.get(self.words()) {
                0 => {}
                v if v == field.ones => drop(d.entry(&format_args!("{name}"))),
                v => drop(d.entry(&format_args!("{name}&{v:#x}"))),
            }
        }
        for (name, at) in [("src_ip", SRC_IP), ("dst_ip", DST_IP)] {
            let bits = u128::from(self.words()[at]) | u128::from(self.words()[at + 1]) << 64;
            match bits {
                0 => {}
                u128::MAX => drop(d.entry(&format_args!("{name}"))),
                _ => drop(d.entry(&format_args!("{name}&{bits:#x}"))),
            }
        }
        d.finish()
    }
}

/// A key on one line, as people write of packets: see [`FlowKey::in_words`].
#[derive(Clone, Copy)]
pub struct InWords<'a>(&'a FlowKey);

impl FlowKey {
    /// The key on one line: `tcp 10.0.0.1:4000 > 10.0.0.2:80`.
    #[must_use]
    pub const fn in_words(&self) -> InWords<'_> {
        InWords(self)
    }
}

impl std::fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let key = self.0;
        let ip = |address: u128| match key.ethertype() {
            EtherType::IPV6 => std::net::IpAddr::V6(Ipv6Addr::from_bits(address)),
            _ => std::net::IpAddr::V4(Ipv4Addr::from_bits(address as u32)),
        };
        let (src, dst) = (ip(key.src_ip()), ip(key.dst_ip()));
        let kind = key.l4_flags() >> 8;
        match (key.ethertype(), key.ip_proto()) {
            (EtherType::ARP, _) => write!(f, "arp {src} > {dst}"),
            (EtherType::IPV4 | EtherType::IPV6, protocol @ (6 | 17)) => {
                let name = if protocol == 6 { "tcp" } else { "udp" };
                let end = |ip, port| std::net::SocketAddr::new(ip, port);
                let (from, to) = (end(src, key.l4_src()), end(dst, key.l4_dst()));
                write!(f, "{name} {from} > {to}")
            }
            (EtherType::IPV4, 1) => write!(f, "icmp type {kind} {src} > {dst}"),
            (EtherType::IPV6, 58) => write!(f, "icmpv6 type {kind} {src} > {dst}"),
            (EtherType::IPV4 | EtherType::IPV6, other) => {
                write!(f, "ip protocol {other} {src} > {dst}")
            }
            (other, _) => write!(f, "{other} {} > {}", key.smac(), key.dmac()),
        }
    }
}
