//! Names of ports: `vm1.internal`, and its reverse.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::Network;

use super::message::{Query, Rcode};

/// The domain of the names of ports, which ICANN keeps for private use.
pub const DOMAIN: &str = "internal";
/// Time to live of an answer, in seconds: addresses change with leases.
const TTL: u32 = 30;
/// Maximum number of addresses of a name in an answer: it fits into 512 bytes.
const ADDRESSES_MAX: usize = 8;

const INTERNET: u16 = 1;
const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;

/// Names of ports with their addresses.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    names: BTreeMap<String, Vec<IpAddr>>,
    owners: BTreeMap<IpAddr, String>,
}

impl Zone {
    /// Names of ports with known addresses. Names that are no host names are left out; of two ports
    /// with an address the first has it.
    pub fn new<'a>(known: impl IntoIterator<Item = (&'a str, IpAddr)>) -> Self {
        let mut zone = Self::default();
        for (name, address) in known {
            let name = name.to_ascii_lowercase();
            let label = |label: &str| (1..=63).contains(&label.len());
            if name.len() > 200 || !name.split('.').all(label) {
                continue;
            }
            let addresses = zone.names.entry(name.clone()).or_default();
            if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
                addresses.push(address);
            }
            zone.owners.entry(address).or_insert(name);
        }
        zone
    }

    /// Answers a question about a name of the domain, or the reverse of an address of the network;
    /// `None` for others, which resolvers answer.
    #[must_use]
    pub fn answer(&self, network: &Network, query: &Query) -> Option<Vec<u8>> {
        let labels = query.labels()?;
        let (kind, class) = query.kind();
        let (domain, name) = labels.split_last()?;
        if class != INTERNET {
            return None;
        }
        if domain == DOMAIN {
            let name = name.join(".");
            let Some(addresses) = self.names.get(&name) else {
                // The domain itself is there, without records.
                let rcode = if name.is_empty() {
                    Rcode::Ok
                } else {
                    Rcode::NoName
                };
                return Some(query.authoritative(rcode, TTL, &[]));
            };
            let data = addresses
                .iter()
                .filter_map(|address| match (address, kind) {
                    (IpAddr::V4(address), A) => Some(address.octets().to_vec()),
                    (IpAddr::V6(address), AAAA) => Some(address.octets().to_vec()),
                    _ => None,
                });
            let data: Vec<_> = data.collect();
            return Some(query.authoritative(Rcode::Ok, TTL, &data));
        }
        let address = reversed(&labels).filter(|address| network.contains(*address))?;
        let Some(name) = self.owners.get(&address) else {
            return Some(query.authoritative(Rcode::NoName, TTL, &[]));
        };
        let data = [wire_name(name)];
        let data = if kind == PTR { &data[..] } else { &[] };
        Some(query.authoritative(Rcode::Ok, TTL, data))
    }
}

/// A name of the domain as labels with their lengths.
fn wire_name(name: &str) -> Vec<u8> {
    let labels = name.split('.').chain([DOMAIN]);
    let mut bytes: Vec<u8> = labels
        .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat())
        .collect();
    bytes.push(0);
    bytes
}

/// The address of a reverse name (RFC 1035, section 3.5; RFC 3596, section 2.5).
fn reversed(labels: &[String]) -> Option<IpAddr> {
    let (top, labels) = labels.split_last()?;
    let (tree, parts) = labels.split_last()?;
    match (top.as_str(), tree.as_str()) {
        ("arpa", "in-addr") => {
            let parts: &[String; 4] = parts.try_into().ok()?;
            let [d, c, b, a] = parts.each_ref().map(|part| part.parse::<u8>().ok());
            Some(Ipv4Addr::new(a?, b?, c?, d?).into())
        }
        ("arpa", "ip6") => {
            let parts: &[String; 32] = parts.try_into().ok()?;
            let digit = |part: &String| match part.len() {
                1 => u128::from_str_radix(part, 16).ok(),
                _ => None,
            };
            let bits = parts
                .iter()
                .rev()
                .try_fold(0, |bits, part| Some(bits << 4 | digit(part)?));
            Some(Ipv6Addr::from_bits(bits?).into())
        }
        _ => None,
    }
}
