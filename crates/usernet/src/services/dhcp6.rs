//! Stateless DHCPv6: the address of the DNS server (RFC 8415, section 18.3.6; RFC 3646).

use std::net::{IpAddr, Ipv6Addr};

use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::network::{Network, Refusal};

/// Port of servers.
pub(super) const SERVER: u16 = 547;
const CLIENT: u16 = 546;
/// All relay agents and servers of the link.
pub(super) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const REPLY: u8 = 7;
const INFORMATION_REQUEST: u8 = 11;
/// Longest DUID in bytes (section 11.1).
const DUID_MAX: usize = 130;

/// Answers an information request. Other messages ask for addresses, which router advertisements
/// give.
///
/// # Errors
/// [`Refusal::Protocol`] for what section 16.12 has discarded.
pub(super) fn answer(
    network: &Network,
    dns: bool,
    (mac, from): (MacAddr, IpAddr),
    bytes: &[u8],
) -> Result<Option<Vec<u8>>, Refusal> {
    let IpAddr::V6(from) = from else {
        return Err(Refusal::Protocol);
    };
    let (head, options) = bytes.split_first_chunk::<4>().ok_or(Refusal::Protocol)?;
    if !from.is_unicast_link_local() {
        return Err(Refusal::Protocol);
    }
    let own = [&[0, 3, 0, 1][..], &network.mac().0].concat();
    let options = read(options, &own)?;
    if head[0] != INFORMATION_REQUEST {
        return Ok(None);
    }
    if options.asks_for_addresses {
        return Err(Refusal::Protocol);
    }
    let mut reply = vec![REPLY, head[1], head[2], head[3]];
    let mut option = |code: u16, value: &[u8]| {
        reply.extend(code.to_be_bytes());
        reply.extend((value.len() as u16).to_be_bytes());
        reply.extend(value);
    };
    if let Some(client) = options.client {
        option(1, client);
    }
    option(2, &own);
    if let Some(dns) = network.dns6().filter(|_| dns) {
        option(23, &dns.octets());
    }
    let frame = PacketBuilder::new(network.mac(), mac)
        .ipv6(network.link_local(), from)
        .udp(SERVER, CLIENT)
        .payload(&reply);
    Ok(Some(frame.build()))
}

/// The options of a message.
#[derive(Default)]
struct Options<'a> {
    /// The client's identifier.
    client: Option<&'a [u8]>,
    asks_for_addresses: bool,
}

/// Checks the options.
fn read<'a>(mut options: &'a [u8], own: &[u8]) -> Result<Options<'a>, Refusal> {
    let mut read = Options::default();
    while !options.is_empty() {
        let (head, rest) = options.split_first_chunk::<4>().ok_or(Refusal::Protocol)?;
        let [code, len] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_be_bytes);
        let value = rest.split_at_checked(usize::from(len));
        let (value, rest) = value.ok_or(Refusal::Protocol)?;
        let bad = match code {
            1 => read.client.replace(value).is_some() || !(3..=DUID_MAX).contains(&value.len()),
            2 => value != own,
            // Identity associations (sections 21.4, 21.5 and 21.21).
            3 | 4 | 25 => {
                read.asks_for_addresses = true;
                false
            }
            _ => false,
        };
        if bad {
            return Err(Refusal::Protocol);
        }
        options = rest;
    }
    Ok(read)
}
