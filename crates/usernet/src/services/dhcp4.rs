//! The DHCP server (RFC 2131, RFC 2132).

use std::net::{IpAddr, Ipv4Addr};

use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::Nanos;
use crate::network::{Network, Refusal};

use super::leases::{LEASE_SECONDS, Leases};

/// Port of servers.
pub(super) const SERVER: u16 = 67;
/// Port of clients.
pub(super) const CLIENT: u16 = 68;
/// Bytes before the options: the fixed fields and the magic cookie.
const FIXED: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Bytes of a message that every client takes, and that some relays demand (RFC 1542, section
/// 2.1).
const LEAST: usize = 300;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

/// The message of a client.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    kind: u8,
    transaction: [u8; 4],
    broadcast: bool,
    /// The address that it has.
    current: Ipv4Addr,
    mac: MacAddr,
    asked: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
}

/// Options that a server reads, each at most once.
#[derive(Default)]
struct Options {
    kind: Option<[u8; 1]>,
    asked: Option<[u8; 4]>,
    server: Option<[u8; 4]>,
    overload: Option<[u8; 1]>,
}

impl Options {
    /// Reads options up to their end. Those in the file and server name fields may not overload
    /// again (RFC 2131, section 4.1).
    fn read(&mut self, mut bytes: &[u8], inner: bool) -> Result<(), Refusal> {
        loop {
            let (value, rest) = match bytes {
                [] | [255, ..] => return Ok(()),
                [0, rest @ ..] => {
                    bytes = rest;
                    continue;
                }
                [_, len, rest @ ..] => {
                    let value = rest.split_at_checked(usize::from(*len));
                    value.ok_or(Refusal::Protocol)?
                }
                [_] => return Err(Refusal::Protocol),
            };
            match bytes[0] {
                53 => once(&mut self.kind, value)?,
                50 => once(&mut self.asked, value)?,
                54 => once(&mut self.server, value)?,
                52 if !inner => once(&mut self.overload, value)?,
                52 => return Err(Refusal::Protocol),
                _ => {}
            }
            bytes = rest;
        }
    }
}

fn once<const N: usize>(slot: &mut Option<[u8; N]>, value: &[u8]) -> Result<(), Refusal> {
    let value = value.try_into().map_err(|_| Refusal::Protocol)?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::Protocol),
    }
}

fn parse(bytes: &[u8]) -> Result<Request, Refusal> {
    let (fixed, options) = bytes
        .split_first_chunk::<FIXED>()
        .ok_or(Refusal::Protocol)?;
    let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|i| fixed[at + i]));
    // A request, of Ethernet, through no relay.
    let good = fixed[..3] == [1, 1, 6] && fixed[236..] == COOKIE && address(24).is_unspecified();
    if !good {
        return Err(Refusal::Protocol);
    }
    let mut read = Options::default();
    read.read(options, false)?;
    let overload = read.overload.map_or(0, |[bits]| bits);
    if overload > 3 {
        return Err(Refusal::Protocol);
    }
    if overload & 1 != 0 {
        read.read(&fixed[108..236], true)?;
    }
    if overload & 2 != 0 {
        read.read(&fixed[44..108], true)?;
    }
    let [kind] = read.kind.ok_or(Refusal::Protocol)?;
    Ok(Request {
        kind,
        transaction: [0, 1, 2, 3].map(|i| fixed[4 + i]),
        broadcast: fixed[10] & 0x80 != 0,
        current: address(12),
        mac: MacAddr([0, 1, 2, 3, 4, 5].map(|i| fixed[28 + i])),
        asked: read.asked.map(Ipv4Addr::from),
        server: read.server.map(Ipv4Addr::from),
    })
}

/// Answers a message of a client.
///
/// # Errors
/// [`Refusal::Protocol`] for what is no message of a client with the frame's station.
pub(super) fn answer(
    network: &Network,
    leases: &mut Leases,
    dns: bool,
    from: MacAddr,
    bytes: &[u8],
    now: Nanos,
) -> Result<Option<Vec<u8>>, Refusal> {
    let request = parse(bytes)?;
    // Else one guest could take the addresses of all.
    if request.mac != from {
        return Err(Refusal::Protocol);
    }
    let reply = Reply {
        network,
        request: &request,
        dns,
    };
    if request
        .server
        .is_some_and(|server| server != network.gateway())
    {
        return Ok(None);
    }
    Ok(match request.kind {
        DISCOVER => leases
            .address_of(from, request.asked, now)
            .map(|address| reply.message(OFFER, address)),
        REQUEST => reply.requested(leases, now)?,
        DECLINE => {
            let asked = request.asked.ok_or(Refusal::Protocol)?;
            leases.decline(from, asked, now);
            None
        }
        RELEASE => {
            leases.release(from, request.current, now);
            None
        }
        INFORM if network.may_be_guest(request.current.into()) => {
            Some(reply.message(ACK, Ipv4Addr::UNSPECIFIED))
        }
        INFORM => None,
        _ => return Err(Refusal::Protocol),
    })
}

/// An answer to a request.
struct Reply<'a> {
    network: &'a Network,
    request: &'a Request,
    dns: bool,
}

impl Reply<'_> {
    /// Answers a DHCPREQUEST (RFC 2131, section 4.3.2).
    fn requested(&self, leases: &mut Leases, now: Nanos) -> Result<Option<Vec<u8>>, Refusal> {
        let Request { current, asked, .. } = *self.request;
        let address = match (asked, current.is_unspecified()) {
            // Selecting, or rebooting.
            (Some(asked), true) => asked,
            // Renewing, or rebinding.
            (None, false) => current,
            _ => return Err(Refusal::Protocol),
        };
        let mac = self.request.mac;
        if leases.address_of(mac, Some(address), now) != Some(address) {
            return Ok(Some(self.message(NAK, Ipv4Addr::UNSPECIFIED)));
        }
        leases.lease(mac, address, now);
        Ok(Some(self.message(ACK, address)))
    }

    fn message(&self, kind: u8, address: Ipv4Addr) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[..3].copy_from_slice(&[2, 1, 6]);
        bytes[4..8].copy_from_slice(&self.request.transaction);
        bytes[10] = u8::from(self.request.broadcast) << 7;
        if kind == ACK {
            bytes[12..16].copy_from_slice(&self.request.current.octets());
        }
        bytes[16..20].copy_from_slice(&address.octets());
        bytes[28..34].copy_from_slice(&self.request.mac.0);
        bytes[236..].copy_from_slice(&COOKIE);
        let mut option = |code: u8, value: &[u8]| {
            bytes.extend([code, value.len() as u8]);
            bytes.extend(value);
        };
        let gateway = self.network.gateway().octets();
        option(53, &[kind]);
        option(54, &gateway);
        if kind != NAK {
            self.parameters(address, &mut option);
        }
        bytes.push(255);
        bytes.resize(bytes.len().max(LEAST), 0);
        self.frame(kind, address, &bytes)
    }

    fn parameters(&self, address: Ipv4Addr, option: &mut impl FnMut(u8, &[u8])) {
        // An answer to DHCPINFORM has no lease (RFC 2131, section 4.3.5).
        if !address.is_unspecified() {
            option(51, &LEASE_SECONDS.to_be_bytes());
            option(58, &(LEASE_SECONDS / 2).to_be_bytes());
            option(59, &(LEASE_SECONDS / 8 * 7).to_be_bytes());
        }
        let len = u32::from(self.network.prefix().len());
        option(
            1,
            &u32::MAX.checked_shl(32 - len).unwrap_or(0).to_be_bytes(),
        );
        option(3, &self.network.gateway().octets());
        if self.dns {
            option(6, &self.network.dns().octets());
        }
        option(26, &self.network.mtu().to_be_bytes());
    }

    /// Where the answer goes: RFC 2131, section 4.1.
    fn frame(&self, kind: u8, address: Ipv4Addr, bytes: &[u8]) -> Vec<u8> {
        let Request { current, mac, .. } = *self.request;
        let (to, mac) = if kind == NAK {
            (Ipv4Addr::BROADCAST, MacAddr::BROADCAST)
        } else if !current.is_unspecified() {
            (current, mac)
        } else if self.request.broadcast {
            (Ipv4Addr::BROADCAST, MacAddr::BROADCAST)
        } else {
            (address, mac)
        };
        PacketBuilder::new(self.network.mac(), mac)
            .ipv4(self.network.gateway(), to)
            .udp(SERVER, CLIENT)
            .payload(bytes)
            .build()
    }
}

/// Returns whether a datagram to this address may be for the server.
pub(super) fn is_for_server(network: &Network, to: IpAddr) -> bool {
    to == IpAddr::V4(Ipv4Addr::BROADCAST) || to == IpAddr::V4(network.gateway())
}
