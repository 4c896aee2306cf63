//! Stateless DHCPv6: DNS server and domains (RFC 8415, section 18.3.6; RFC 3646).

use std::net::{IpAddr, Ipv6Addr};

use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::network::{Network, Refusal};

use super::neighbours::Offer;

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
    offer: &Offer,
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
    let search = offer.search.wire();
    if !search.is_empty() {
        option(24, &search);
    }
    if let Some(dns) = network.dns6().filter(|_| offer.dns) {
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
            // Of several the first counts.
            1 => {
                read.client.get_or_insert(value);
                !(3..=DUID_MAX).contains(&value.len())
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Search;

    const CLIENT_ID: [u8; 14] = [0, 1, 0, 1, 1, 2, 3, 4, 2, 0, 0, 0, 0, 1];

    /// Returns the answer to a message with these options, the last of which says this length.
    fn ask(message: u8, options: &[(u16, &[u8])], last: Option<u16>) -> Result<Vec<u8>, Refusal> {
        let mac = MacAddr([2, 0, 0, 0, 0, 2]);
        let (prefix, prefix6) = ("10.0.2.0/24".parse(), "fd00:1::/64".parse().ok());
        let network = Network::new(prefix.unwrap(), prefix6, mac, 1500).unwrap();
        let mut bytes = vec![message, 1, 2, 3];
        for (n, (code, value)) in options.iter().enumerate() {
            let own = value.len() as u16;
            let len = last.filter(|_| n + 1 == options.len()).unwrap_or(own);
            bytes.extend([code.to_be_bytes(), len.to_be_bytes()].concat());
            bytes.extend(*value);
        }
        let from = (mac, "fe80::2".parse().unwrap());
        let offer = Offer {
            route6: true,
            dns: true,
            search: Search::none(),
        };
        Ok(answer(&network, &offer, from, &bytes)?.unwrap_or_default())
    }

    #[test]
    fn of_several_identifiers_the_first_comes_back() {
        let options = [(1, &CLIENT_ID[..]), (6, &[0, 23]), (1, &[0, 4, 9])];
        let answer = ask(INFORMATION_REQUEST, &options, None).unwrap();
        let is_in = |id: &[u8]| answer.windows(id.len()).any(|window| window == id);
        assert!(is_in(&CLIENT_ID) && !is_in(&[0, 4, 9]));
    }

    /// OVN copied a client identifier into its answer by the length that the option says, and
    /// returned bytes behind the packet.
    #[test]
    fn cve_2026_5367_no_option_is_longer_than_its_message() {
        let id = &CLIENT_ID[..];
        let good = ask(INFORMATION_REQUEST, &[(1, id)], None).unwrap();
        let repeated = good.windows(id.len()).filter(|window| *window == id);
        assert_eq!(repeated.count(), 1, "the identifier comes back once");
        // The length of the frame is that of its parts: Ethernet, IPv6, UDP, message, options.
        assert_eq!(
            good.len(),
            14 + 40 + 8 + 4 + (4 + id.len()) + (4 + 10) + (4 + 16)
        );
        for code in [1, 2, 3, 6, 25, 39] {
            for beyond in [id.len() as u16 + 1, 255, 0x7fff, 0x8000, u16::MAX] {
                for message in [1, INFORMATION_REQUEST] {
                    let refused = ask(message, &[(code, id)], Some(beyond));
                    assert_eq!(refused, Err(Refusal::Protocol), "{code} {beyond}");
                    let behind = ask(message, &[(1, id), (code, id)], Some(beyond));
                    assert_eq!(behind, Err(Refusal::Protocol), "{code} {beyond}");
                }
            }
        }
        for bytes in [1, 2, 3] {
            let cut = [&[INFORMATION_REQUEST, 1, 2, 3][..], &[0, 1, 0][..bytes]].concat();
            assert!(read(&cut[4..], &[]).is_err(), "{bytes} bytes of an option");
        }
    }
}
