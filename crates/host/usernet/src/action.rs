//! Actions for the driver, and the socket events it reports.

use std::net::SocketAddr;
use std::ops::Range;

use wire::virtio::net::{self, NetHeader};

use crate::Nanos;
use crate::flow::FlowId;
use crate::services::{Notice, UndeliveredPacket};

/// Bytes of the longest headers that are built: Ethernet, IPv6, TCP with its options of a SYN.
pub const HEADERS: usize = 14 + 40 + 20 + 8;

/// Headers of a frame to a guest. The checksum of TCP and UDP is left to the receiver
/// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    pub(crate) bytes: [u8; HEADERS],
    pub(crate) len: u8,
    pub(crate) net: NetHeader,
}

impl Headers {
    /// The bytes, from the Ethernet header on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The virtio header in front of the frame.
    #[must_use]
    pub fn net(&self) -> NetHeader {
        self.net
    }

    /// Returns whether the frame is longer than one segment.
    #[must_use]
    pub fn is_super_frame(&self) -> bool {
        self.net.gso_type != net::GSO_NONE
    }
}

/// The destination of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To an address outside. The driver compares the socket's own address with it, and reports
    /// [`Failure::Own`] if they are the same.
    Outside(SocketAddr),
    /// To a service of the host on its loopback.
    Host(SocketAddr),
    /// To the DNS server, which the driver is itself.
    Resolver,
    /// To a peer of a forward, from the forward's socket.
    Peer(SocketAddr),
}

/// The other end of datagrams that come to the socket of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardPeer {
    /// The address of the forward's socket.
    pub listen: SocketAddr,
    /// The sender, as the socket reports it.
    pub peer: SocketAddr,
}

/// Bytes that came to a UDP socket: a datagram, or several of one length (`UDP_GRO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// All bytes.
    pub len: u16,
    /// Bytes of each datagram but the last, which may be shorter; 0: it is one.
    pub segment: u16,
}

/// The tasks of the driver, in this order.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Connect a TCP socket without waiting. [`crate::Translator::hops`] limits its packets, and
    /// `SO_OOBINLINE` keeps urgent bytes of the peer in the stream. Report
    /// [`SocketEvent::Connected`] or [`SocketEvent::Failed`].
    Connect(FlowId, Target),
    /// Send these bytes of the frame at hand, after those of earlier frames that wait still, by one
    /// call. Report [`SocketEvent::Sent`] for all of them soon, before any other event or question
    /// about the flow. An [`Action::Close`] that comes first sends them, too, without a report.
    Send(FlowId, Payload),
    /// The flow has bytes for the guest: when its guest has its turn, and there is a buffer, ask
    /// `Translator::peek` what to read, until there is nothing ([`crate::Turns`]).
    Ready(FlowId),
    /// Consume this many bytes of the socket, which have been peeked before.
    Discard(FlowId, u32),
    /// Put a frame without payload into a guest's buffer.
    Frame(Headers),
    /// Report [`SocketEvent::Room`] once, when the socket takes bytes again.
    AwaitRoom(FlowId),
    /// No more bytes follow from the guest: shut the socket down for writing.
    Shutdown(FlowId),
    /// The guest is silent, and is probed: have the system probe the peer after this many seconds
    /// of silence, too (`TCP_KEEPIDLE`, tcp(7)).
    Probe(FlowId, u32),
    /// A SYN to the guest was not answered: ask the segment for the station at its address.
    /// With a time the question was put before: report [`SocketEvent::Absent`] if that station has
    /// not said since then that it has the address.
    Ask(FlowId, Option<Nanos>),
    /// Tell the guest that a SYN of its own did not arrive ([`crate::services::Errors`]).
    Notify(UndeliveredPacket, Notice),
    /// The flow is established, or the mapping opened: keep its record (`Translator::record`).
    Keep(FlowId),
    /// Close the socket; if `reset`, with a reset of the peer.
    Close {
        /// The flow; its id is void afterwards, unless it waits for late segments.
        flow: FlowId,
        /// Whether the peer is to see a reset.
        reset: bool,
    },
    /// Open a UDP socket of the version of the address that follows.
    OpenUdp(FlowId, Family),
    /// Send these bytes of the frame at hand as a datagram, or several of `segment` bytes each.
    SendTo {
        /// The flow.
        flow: FlowId,
        /// Where to.
        target: Target,
        /// Bytes of the frame.
        payload: Payload,
        /// Bytes of each datagram (`UDP_SEGMENT`); 0: one.
        segment: u16,
        /// Hops that it may go, if they are fewer than usual.
        hops: Option<u8>,
    },
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Bytes of the frame at hand, counted from its Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The first byte.
    pub start: u32,
    /// How many.
    pub len: u32,
}

impl Payload {
    /// The bytes as a range.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// The bytes to read without consuming them, by one call, straight behind `headers` bytes of
/// a leased buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Bytes between the first that was not discarded and the first to read.
    pub offset: u32,
    /// Maximum number of bytes to read.
    pub len: u32,
    /// Bytes to leave in front, for the headers.
    pub headers: u16,
}

/// The reason of a failed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ECONNREFUSED.
    Refused,
    /// The address is one of the host's own.
    Own,
    /// An error of the way, which the guest gets as from a router.
    Unreachable(Notice),
    /// There was no answer (ETIMEDOUT).
    Silent,
    /// No descriptor is left.
    Descriptors,
    /// No ephemeral port is left.
    Ports,
}

/// The report of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// It is connected, and takes `room` bytes.
    Connected {
        /// Free bytes of the send buffer.
        room: u32,
    },
    /// It could not be connected.
    Failed(Failure),
    /// Of the bytes of [`Action::Send`] since the last report the kernel took the first `taken`.
    Sent {
        /// Bytes that were taken; 0 with EAGAIN.
        taken: u32,
        /// Free bytes of the send buffer now.
        room: u32,
    },
    /// It takes bytes again.
    Room {
        /// Free bytes of the send buffer.
        room: u32,
    },
    /// It has bytes to read, or the peer's end.
    Readable,
    /// It has urgent data of the peer (`EPOLLPRI`), and bytes to read.
    Urgent,
    /// The peer reset the connection, or it failed.
    Reset,
    /// The station of the guest of a forward does not answer.
    Absent,
}

/// The result of a [`Peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekResult {
    /// So many bytes, at least one.
    Bytes(u32),
    /// None yet (EAGAIN).
    Empty,
    /// The peer's end, at that offset. Of a flow with [`SocketEvent::Urgent`] it counts only at
    /// offset 0: urgent data may have ended the read.
    End,
}
