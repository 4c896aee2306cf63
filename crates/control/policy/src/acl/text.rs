//! Parsers of the texts in rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::MacAddr;

use super::class_key::MacBits;
use super::error::Reason;
use super::prefix::{Prefix, ones};
use model::PortText;

/// Limit of characters in a name.
const NAME_MAX: usize = 64;

pub(super) fn name(text: &str) -> Result<(), Reason> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let fits = (1..=NAME_MAX).contains(&text.len()) && text.chars().all(good);
    fits.then_some(())
        .ok_or_else(|| Reason::Name(text.to_owned()))
}

/// Parses a prefix; the flag is true for IPv6.
pub(super) fn prefix(text: &str) -> Result<(Prefix, bool), Reason> {
    let bad = || Reason::Address(text.to_owned());
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(number::<u8>(len).ok_or_else(bad)?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let (bits, most) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let len = len.unwrap_or(most);
    if len > most {
        let text = text.to_owned();
        return Err(Reason::PrefixLength { text, most });
    }
    let (found, text) = (Prefix::new(bits, len), text.to_owned());
    if bits & !ones(len) != 0 {
        let network = match address {
            IpAddr::V4(_) => format!("{}/{len}", Ipv4Addr::from_bits((found.bits >> 96) as u32)),
            IpAddr::V6(_) => format!("{}/{len}", Ipv6Addr::from_bits(found.bits)),
        };
        return Err(Reason::HostBits { text, network });
    }
    Ok((found, address.is_ipv6()))
}

/// Parses decimal digits: no sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

pub(super) fn mac(text: &str) -> Result<MacBits, Reason> {
    let parse = |part: &str| {
        let mac: Result<MacAddr, _> = part.parse();
        mac.map(MacAddr::to_u64)
            .map_err(|_| Reason::Mac(text.to_owned()))
    };
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (parse(value)?, parse(mask)?),
        None => (parse(text)?, 0xffff_ffff_ffff),
    };
    if value & !mask != 0 {
        return Err(Reason::MacBits(text.to_owned()));
    }
    Ok(MacBits { value, mask })
}

pub(super) fn ether_type(text: &str) -> Result<u16, Reason> {
    let value = match text {
        "ipv4" => Some(0x0800),
        "ipv6" => Some(0x86dd),
        "arp" => Some(0x0806),
        _ => match text.strip_prefix("0x") {
            Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u16::from_str_radix(hex, 16).ok()
            }
            Some(_) => None,
            None => number(text),
        },
    };
    // Smaller values are lengths (IEEE 802.3).
    value
        .filter(|value| *value >= 0x600)
        .ok_or_else(|| Reason::EtherType(text.to_owned()))
}

pub(super) fn vlan(vid: i64) -> Result<u16, Reason> {
    let found = u16::try_from(vid).ok().filter(|vid| *vid <= 4094);
    found.ok_or(Reason::Vlan(vid))
}

pub(super) fn protocol(text: &str) -> Result<u8, Reason> {
    let found = match text {
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmp" => Some(1),
        "icmpv6" => Some(58),
        _ => number(text),
    };
    found.ok_or_else(|| Reason::Protocol(text.to_owned()))
}

/// Parses the first and the last port.
pub(super) fn ports(text: &PortText) -> Result<(u16, u16), Reason> {
    let text = match text {
        PortText::Number(port) => &port.to_string(),
        PortText::Text(text) => text,
    };
    let port = |part| number(part).ok_or_else(|| Reason::Port(text.clone()));
    let (from, to) = match text.split_once('-') {
        Some((from, to)) if !from.is_empty() => (port(from)?, port(to)?),
        _ => (port(text)?, port(text)?),
    };
    if from <= to {
        Ok((from, to))
    } else {
        Err(Reason::EmptyRange(text.clone()))
    }
}

/// Names of the flags from the lowest bit on (RFC 9293).
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// Parses flags to value and mask.
pub(super) fn tcp_flags(text: &str) -> Result<(u16, u16), Reason> {
    let bad = || Reason::Flags(text.to_owned());
    let flags = |names: &str| {
        let names = names.split(',').filter(|name| !name.is_empty());
        names
            .map(|name| FLAGS.iter().position(|flag| *flag == name.trim()))
            .try_fold(0u16, |all, at| Some(all | 1 << at?))
            .ok_or_else(bad)
    };
    let (value, mask) = text.split_once('/').ok_or_else(bad)?;
    let (value, mask) = (flags(value)?, flags(mask)?);
    if mask == 0 {
        return Err(bad());
    }
    match value & !mask {
        0 => Ok((value, mask)),
        _ => Err(Reason::FlagsOutside(text.to_owned())),
    }
}
