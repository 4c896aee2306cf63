//! The DHCP server (RFC 2131, RFC 2132), for clients of BOOTP (RFC 951, RFC 1534), too.
//!
//! Clients say too much, and some of it wrong. What is of no use is as if it was not there: the
//! field decides that the answer needs. A table of messages with the answers of dnsmasq is in
//! `crates/test/e2e/tests/e2e/dhcp.rs`.

use std::net::{IpAddr, Ipv4Addr};

use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::Nanos;
use crate::network::{Network, Refusal};

use super::leases::{LEASE_SECONDS, Leases};
use super::neighbours::Offer;

/// Port of servers.
pub(super) const SERVER: u16 = 67;
/// Port of clients.
pub(super) const CLIENT: u16 = 68;
/// Bytes of the fixed fields; the cookie and the options follow.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Bytes of a message that every client takes, and that some relays demand (RFC 1542, section
/// 2.1).
const LEAST: usize = 300;
/// Bytes of a hardware address: of Ethernet, and at most.
const HARDWARE: u8 = 6;
const HARDWARE_MAX: u8 = 16;

/// Operations of messages (RFC 2131, section 2).
const REQUEST_OPERATION: u8 = 1;
const REPLY_OPERATION: u8 = 2;

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
    /// The type; none of a client of BOOTP.
    kind: Option<u8>,
    transaction: [u8; 4],
    /// It takes answers by broadcast alone.
    broadcast: bool,
    /// The address that it has.
    current: Ipv4Addr,
    /// The relay that has passed the message on.
    relay: Ipv4Addr,
    /// Type and length of the hardware address, as the client says them.
    hardware_type: [u8; 2],
    /// The hardware address with what follows it.
    hardware: [u8; 16],
    asked: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
}

/// The first bytes of an option. One that is there several times is one in parts (RFC 3396).
struct Value<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Value<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Value<N> {
    fn push(&mut self, part: &[u8]) {
        for (place, byte) in self.bytes[self.len..].iter_mut().zip(part) {
            *place = *byte;
            self.len += 1;
        }
    }

    /// The value; none if it is too short.
    fn get(&self) -> Option<[u8; N]> {
        (self.len == N).then_some(self.bytes)
    }
}

/// Options that a server reads.
#[derive(Default)]
struct Options {
    kind: Value<1>,
    asked: Value<4>,
    server: Value<4>,
    overload: Value<1>,
}

impl Options {
    /// Reads options up to their end, or to one that is longer than the bytes.
    fn read(&mut self, mut bytes: &[u8]) {
        while let [code, rest @ ..] = bytes
            && *code != 255
        {
            bytes = rest;
            if *code == 0 {
                continue;
            }
            let [len, rest @ ..] = rest else {
                return;
            };
            let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else {
                return;
            };
            match code {
                53 => self.kind.push(value),
                50 => self.asked.push(value),
                54 => self.server.push(value),
                52 => self.overload.push(value),
                _ => {}
            }
            bytes = rest;
        }
    }

    /// Reads all options of a message: those in the file and server name fields are behind the
    /// others (RFC 3396, section 5).
    fn of(fixed: &[u8; FIXED], options: &[u8]) -> Self {
        let mut read = Self::default();
        read.read(options);
        let [overload] = read.overload.get().unwrap_or_default();
        if overload & 1 != 0 {
            read.read(&fixed[108..]);
        }
        if overload & 2 != 0 {
            read.read(&fixed[44..108]);
        }
        read
    }
}

fn parse(bytes: &[u8]) -> Result<Request, Refusal> {
    let (fixed, rest) = bytes
        .split_first_chunk::<FIXED>()
        .ok_or(Refusal::Protocol)?;
    let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|i| fixed[at + i]));
    let hardware_len = fixed[2];
    if fixed[0] != REQUEST_OPERATION
        || fixed[1] == 0
        || !(HARDWARE..=HARDWARE_MAX).contains(&hardware_len)
    {
        return Err(Refusal::Protocol);
    }
    let options = Options::of(fixed, rest.get(COOKIE.len()..).unwrap_or_default());
    let kind = options
        .kind
        .get()
        .map(|[kind]| kind)
        .filter(|kind| *kind != 0);
    if kind.is_some() && !rest.starts_with(&COOKIE) {
        return Err(Refusal::Protocol);
    }
    Ok(Request {
        kind,
        transaction: [0, 1, 2, 3].map(|i| fixed[4 + i]),
        broadcast: fixed[10] & 0x80 != 0 || hardware_len != HARDWARE,
        current: address(12),
        relay: address(24),
        hardware: std::array::from_fn(|i| fixed[28 + i]),
        hardware_type: [fixed[1], fixed[2]],
        asked: options.asked.get().map(Ipv4Addr::from),
        server: options.server.get().map(Ipv4Addr::from),
    })
}

/// Answers a message of a client.
///
/// # Errors
/// [`Refusal::Protocol`] for what is no message of a client with the frame's station.
pub(super) fn answer(
    network: &Network,
    leases: &mut Leases,
    offer: &Offer,
    from: MacAddr,
    bytes: &[u8],
    now: Nanos,
) -> Result<Option<Vec<u8>>, Refusal> {
    let request = parse(bytes)?;
    // Else one guest could take the addresses of all.
    if !request.hardware.starts_with(&from.0) {
        return Err(Refusal::Protocol);
    }
    let is_relayed = !request.relay.is_unspecified();
    if is_relayed && !network.may_be_guest(request.relay.into()) {
        return Ok(None);
    }
    let is_other = |server| server != network.gateway();
    let is_for_other = request.server.is_some_and(is_other);
    let reply = Reply {
        network,
        request: &request,
        mac: from,
        offer,
    };
    Ok(match request.kind {
        None => leases.address_of(from, None, now).map(|address| {
            leases.lease(from, address, now);
            reply.message(None, address)
        }),
        Some(DISCOVER) => leases
            .address_of(from, request.asked, now)
            .map(|address| reply.message(Some(OFFER), address)),
        // It has chosen another server.
        Some(REQUEST) if is_for_other && request.current.is_unspecified() => None,
        Some(REQUEST) => Some(reply.requested(leases, now)),
        Some(DECLINE) if !is_for_other => {
            let address = request.asked.unwrap_or(request.current);
            leases.decline(from, address, now);
            None
        }
        Some(RELEASE) if !is_for_other => {
            leases.release(from, request.current, now);
            None
        }
        Some(INFORM) if network.may_be_guest(request.current.into()) => {
            Some(reply.message(Some(ACK), Ipv4Addr::UNSPECIFIED))
        }
        Some(DECLINE | RELEASE | INFORM) => None,
        Some(_) => return Err(Refusal::Protocol),
    })
}

/// An answer to a request.
struct Reply<'a> {
    network: &'a Network,
    request: &'a Request,
    mac: MacAddr,
    offer: &'a Offer,
}

impl Reply<'_> {
    /// Answers a DHCPREQUEST (RFC 2131, section 4.3.2): the address of the client decides, or the
    /// address that it requests if it has none.
    fn requested(&self, leases: &mut Leases, now: Nanos) -> Vec<u8> {
        let Request { current, asked, .. } = *self.request;
        let address = match current.is_unspecified() {
            true => asked,
            false => Some(current),
        };
        match leases.address_of(self.mac, address, now) {
            Some(own) if Some(own) == address => {
                leases.lease(self.mac, own, now);
                self.message(Some(ACK), own)
            }
            _ => self.message(Some(NAK), Ipv4Addr::UNSPECIFIED),
        }
    }

    /// A message of a type, or an answer of BOOTP.
    fn message(&self, kind: Option<u8>, address: Ipv4Addr) -> Vec<u8> {
        let request = self.request;
        let mut bytes = vec![0; FIXED];
        bytes[0] = REPLY_OPERATION;
        bytes[1..3].copy_from_slice(&request.hardware_type);
        bytes[4..8].copy_from_slice(&request.transaction);
        bytes[10] = u8::from(request.broadcast || kind == Some(NAK)) << 7;
        // Only of a client that has an address.
        let current = match kind {
            Some(ACK) | None => request.current,
            Some(_) => Ipv4Addr::UNSPECIFIED,
        };
        bytes[12..16].copy_from_slice(&current.octets());
        bytes[16..20].copy_from_slice(&address.octets());
        bytes[24..28].copy_from_slice(&request.relay.octets());
        bytes[28..44].copy_from_slice(&request.hardware);
        bytes.extend(COOKIE);
        let mut option = |code: u8, value: &[u8]| {
            bytes.extend([code, value.len() as u8]);
            bytes.extend(value);
        };
        if let Some(kind) = kind {
            option(53, &[kind]);
            option(54, &self.network.gateway().octets());
        }
        // An answer to DHCPINFORM has no lease (RFC 2131, section 4.3.5).
        if kind.is_some() && !address.is_unspecified() {
            option(51, &LEASE_SECONDS.to_be_bytes());
            option(58, &(LEASE_SECONDS / 2).to_be_bytes());
            option(59, &(LEASE_SECONDS / 8 * 7).to_be_bytes());
        }
        if kind != Some(NAK) {
            self.parameters(&mut option);
        }
        bytes.push(255);
        bytes.resize(bytes.len().max(LEAST), 0);
        let to = match kind {
            Some(NAK) => None,
            _ if !current.is_unspecified() => Some(current),
            _ => Some(address).filter(|_| !request.broadcast),
        };
        self.frame(to, &bytes)
    }

    fn parameters(&self, option: &mut impl FnMut(u8, &[u8])) {
        let len = u32::from(self.network.prefix().len());
        let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
        option(1, &mask.to_be_bytes());
        option(3, &self.network.gateway().octets());
        if self.offer.dns {
            option(6, &self.network.dns().octets());
        }
        let domains = self.offer.search.domains();
        if let Some(first) = domains.first() {
            option(15, first.as_bytes());
        }
        if domains.len() > 1 {
            option(119, &self.offer.search.wire());
        }
        option(26, &self.network.mtu().to_be_bytes());
        option(28, &self.network.host(u32::MAX).octets());
    }

    /// Where the answer goes (RFC 2131, section 4.1): to the relay, the client's address, or all.
    fn frame(&self, to: Option<Ipv4Addr>, bytes: &[u8]) -> Vec<u8> {
        let relay = self.request.relay;
        let (to, mac, port) = match to {
            _ if !relay.is_unspecified() => (relay, self.mac, SERVER),
            Some(to) => (to, self.mac, CLIENT),
            None => (Ipv4Addr::BROADCAST, MacAddr::BROADCAST, CLIENT),
        };
        PacketBuilder::new(self.network.mac(), mac)
            .ipv4(self.network.gateway(), to)
            .udp(SERVER, port)
            .payload(bytes)
            .build()
    }
}

/// Returns whether a datagram to this address may be for the server.
pub(super) fn is_for_server(network: &Network, to: IpAddr) -> bool {
    to == IpAddr::V4(Ipv4Addr::BROADCAST) || to == IpAddr::V4(network.gateway())
}
