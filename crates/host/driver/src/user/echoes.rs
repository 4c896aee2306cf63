//! Echo requests to the outside, by ping sockets (icmp(7)), which need no right: the system permits
//! them to the groups of `net.ipv4.ping_group_range`. It replaces the identifier of a request by
//! its own, so that each identifier of a guest has a socket.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};
use usernet::Nanos;
use usernet::network::{Network, Refusal};
use usernet::services::Notice;
use wire::build::PacketBuilder;
use wire::packet::L3;
use wire::{MacAddr, ParsedHeaders, icmp};

use super::calls;
use super::events::{Kind, Tag};
use super::host_ports::identifiers;

/// Types of messages (RFC 792; RFC 4443).
const REQUEST: u8 = 8;
const REPLY: u8 = 0;
const REQUEST6: u8 = 128;
const REPLY6: u8 = 129;
/// Maximum number of sockets, whatever the number of identifiers, and of those of one guest.
const SOCKETS_MAX: usize = 256;
const GUEST_MAX: usize = 32;
/// Room for a reply of any length.
const MESSAGE: usize = 1 << 16;
/// Bytes of a request that an error quotes.
const QUOTED: usize = 512;
/// Bytes of headers in front of the data of a reply.
const HEADERS: usize = 40 + icmp::HEADER_LEN;

/// The problem of a port without the right to open ping sockets.
const DENIED: &str = "echo requests to the outside are refused: the group of this process is not \
                      in net.ipv4.ping_group_range";

/// Opens a ping socket.
fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let protocol = match family {
        AddressFamily::INET => ipproto::ICMP,
        _ => ipproto::ICMPV6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::DGRAM, flags, Some(protocol))
}

/// A sequence of echo requests: guest, and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sequence {
    station: MacAddr,
    guest: IpAddr,
    id: u16,
}

#[derive(Debug)]
struct Echo {
    fd: OwnedFd,
    sequence: Sequence,
    serial: u32,
    deadline: Nanos,
    /// Hops that its packets may go, if they are fewer than usual.
    hops: Option<u8>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Echoes {
    epoll: OwnedFd,
    network: Network,
    /// Maximum number of sockets: each has an identifier of the host's alone.
    bound: usize,
    /// Time after which an unused socket ends.
    idle: Nanos,
    open: HashMap<u32, Echo>,
    sequences: HashMap<Sequence, u32>,
    next: u32,
    /// The system permits no such sockets (`net.ipv4.ping_group_range`).
    is_denied: bool,
}

/// An echo request to an address outside.
#[derive(Debug)]
pub(super) struct Request<'a> {
    sequence: Sequence,
    pub(super) to: IpAddr,
    /// Its time to live ends at the gateway.
    pub(super) is_over: bool,
    /// Hops that are left, if they are fewer than usual.
    hops_left: Option<u8>,
    /// The message, from its type on.
    message: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads a whole frame with headers that the gateway's services have checked; `None` if it is
    /// no echo request.
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        let headers = &frame[..frame.len().min(wire::SNAPSHOT)];
        let parsed = ParsedHeaders::parse(headers, frame.len());
        let (guest, to): (IpAddr, IpAddr) = match parsed.l3 {
            L3::V4 { src, dst, .. } => (src.into(), dst.into()),
            L3::V6 { src, dst, .. } => (src.into(), dst.into()),
            _ => return None,
        };
        let start = usize::from(parsed.l4_offset?);
        let message = frame.get(start..parsed.l3_end as usize)?;
        let expected = match guest {
            IpAddr::V4(_) => (icmp::PROTOCOL_V4, REQUEST),
            IpAddr::V6(_) => (icmp::PROTOCOL_V6, REQUEST6),
        };
        let [kind, code, _, _, high, low, ..] = message else {
            return None;
        };
        let id = u16::from_be_bytes([*high, *low]);
        let hops = usernet::hops_of(frame, guest);
        let is_request = (parsed.l4_proto, *kind) == expected && *code == 0;
        (is_request && message.len() >= icmp::HEADER_LEN).then_some(Self {
            sequence: Sequence {
                station: parsed.src,
                guest,
                id,
            },
            to,
            is_over: hops <= 1,
            hops_left: usernet::hops_left(hops),
            message,
        })
    }
}

impl Echoes {
    /// None yet; `sharers` have sockets in the same network namespace.
    pub(super) fn new(epoll: OwnedFd, network: Network, sharers: u32, idle: Nanos) -> Self {
        Self {
            epoll,
            network,
            bound: identifiers(sharers).min(SOCKETS_MAX),
            idle,
            open: HashMap::new(),
            sequences: HashMap::new(),
            next: 0,
            is_denied: false,
        }
    }

    /// Returns whether the system permits no echo requests now; a change is logged. The range may
    /// be changed at any time, and holds for new sockets.
    pub(super) fn look(&mut self) -> bool {
        let _ = self.socket(AddressFamily::INET);
        self.is_denied
    }

    /// Opens a ping socket, and notes whether the system permits one.
    fn socket(&mut self, family: AddressFamily) -> Result<OwnedFd, Errno> {
        let opened = socket(family);
        let is_denied = match opened {
            Ok(_) => false,
            Err(Errno::ACCESS) => true,
            Err(_) => self.is_denied,
        };
        if is_denied && !self.is_denied {
            tracing::warn!("{DENIED}");
        }
        if !is_denied && self.is_denied {
            tracing::info!("echo requests to the outside are permitted");
        }
        self.is_denied = is_denied;
        opened
    }

    /// Returns whether the system permitted none when it was looked at last.
    pub(super) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Changes the number of those that have sockets in the same network namespace.
    pub(super) fn set_sharers(&mut self, sharers: u32) {
        self.bound = identifiers(sharers).min(SOCKETS_MAX);
    }

    /// Changes how long a socket may be unused.
    pub(super) fn set_idle(&mut self, idle: Nanos) {
        self.idle = idle;
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Refusal::Protocol`] where the system permits no ping sockets, [`Refusal::Ports`] at a
    /// bound, [`Refusal::Flows`] without a descriptor, [`Refusal::Unreachable`] without a way.
    pub(super) fn send(&mut self, request: &Request<'_>, now: Nanos) -> Result<(), Refusal> {
        let sequence = request.sequence;
        if !self.network.may_be_guest(sequence.guest) {
            return Err(Refusal::Protocol);
        }
        let number = match self.sequences.get(&sequence) {
            Some(number) => *number,
            None => self.open(sequence)?,
        };
        let Some(echo) = self.open.get_mut(&number) else {
            return Err(Refusal::Flows);
        };
        echo.deadline = now.saturating_add(self.idle);
        if echo.hops != request.hops_left {
            // Where it fails the request goes as far as others.
            let is_v4 = sequence.guest.is_ipv4();
            let _ = calls::set_hops(echo.fd.as_fd(), is_v4, request.hops_left);
            echo.hops = request.hops_left;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let to = SocketAddr::new(request.to, 0);
        let send = || sendto(&echo.fd, request.message, flags, &to);
        // An error may be about a request before: then this one was not sent.
        match send().or_else(|_| send()) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(()),
            Err(_) => Err(Refusal::Unreachable),
        }
    }

    fn open(&mut self, sequence: Sequence) -> Result<u32, Refusal> {
        let of_guest = |echo: &&Echo| echo.sequence.station == sequence.station;
        let own = self.open.values().filter(of_guest).count();
        // A guest has at most as many as are left, so that others have some, too.
        if own >= GUEST_MAX.min(self.bound.saturating_sub(self.open.len())) {
            return Err(Refusal::Ports);
        }
        let family = match sequence.guest {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let fd = self.socket(family).map_err(|error| match error {
            Errno::MFILE | Errno::NFILE => Refusal::Flows,
            _ => Refusal::Protocol,
        })?;
        // Without it a request that is not delivered gets no error.
        let _ = calls::keep_errors(fd.as_fd(), sequence.guest.is_ipv4(), true);
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let tag = Tag::new(Kind::Echo, number, number);
        let added = epoll::add(&self.epoll, &fd, tag.data(), EventFlags::IN);
        added.map_err(|_| Refusal::Flows)?;
        self.sequences.insert(sequence, number);
        let echo = Echo {
            fd,
            sequence,
            serial: tag.serial(),
            deadline: 0,
            hops: None,
        };
        self.open.insert(number, echo);
        Ok(number)
    }

    /// Takes the next error about a request that concerns its guest; returns the frame of the
    /// request.
    pub(super) fn next_error(&mut self, tag: Tag) -> Option<(Vec<u8>, Notice)> {
        let echo = self.open.get(&tag.index());
        let echo = echo.filter(|echo| echo.serial == tag.serial())?;
        let mut quoted = [0; QUOTED];
        loop {
            let error = calls::next_error(echo.fd.as_fd(), &mut quoted).ok()?;
            let Some(calls::UndeliveredDatagram { to, len, notice }) = error else {
                continue;
            };
            // The system has replaced the identifier.
            let quoted = &quoted[..len.min(QUOTED)];
            let Some((&[kind, code, _, _, _, _, high, low], data)) = quoted.split_first_chunk()
            else {
                continue;
            };
            let sequence = echo.sequence;
            let [id_high, id_low] = sequence.id.to_be_bytes();
            let rest = [id_high, id_low, high, low];
            let builder = PacketBuilder::new(sequence.station, self.network.mac());
            let builder = match (sequence.guest, to.ip()) {
                (IpAddr::V4(guest), IpAddr::V4(to)) => builder.ipv4(guest, to),
                (IpAddr::V6(guest), IpAddr::V6(to)) => builder.ipv6(guest, to),
                _ => continue,
            };
            let frame = builder.icmp(kind, code, rest).payload(data).build();
            return Some((frame, notice));
        }
    }

    /// Reads a reply; returns its frame.
    pub(super) fn event(&mut self, tag: Tag) -> Option<Vec<u8>> {
        let echo = self.open.get(&tag.index());
        let echo = echo.filter(|echo| echo.serial == tag.serial())?;
        let mut bytes = vec![0; MESSAGE];
        // An error is about a request, which gets no reply.
        let (len, _, from) = recvfrom(&echo.fd, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
        let from = SocketAddr::try_from(from?).ok()?.ip();
        let (&[kind, code, _, _, _, _, high, low], data) =
            bytes.get(..len)?.split_first_chunk::<8>()?;
        if HEADERS + data.len() > usize::from(self.network.mtu()) || code != 0 {
            return None;
        }
        let sequence = echo.sequence;
        let [id_high, id_low] = sequence.id.to_be_bytes();
        let rest = [id_high, id_low, high, low];
        let builder = PacketBuilder::new(self.network.mac(), sequence.station);
        let builder = match (from, sequence.guest, kind) {
            (IpAddr::V4(from), IpAddr::V4(guest), REPLY) => {
                builder.ipv4(from, guest).icmp(REPLY, 0, rest)
            }
            (IpAddr::V6(from), IpAddr::V6(guest), REPLY6) => {
                builder.ipv6(from, guest).icmp(REPLY6, 0, rest)
            }
            _ => return None,
        };
        Some(builder.payload(data).build())
    }

    /// The latest time of the next call of [`Self::expire`].
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.open.values().map(|echo| echo.deadline).min()
    }

    /// Closes sockets that were not used for long.
    pub(super) fn expire(&mut self, now: Nanos) {
        self.open.retain(|_, echo| {
            let stays = echo.deadline > now;
            if !stays {
                self.sequences.remove(&echo.sequence);
            }
            stays
        });
    }
}
