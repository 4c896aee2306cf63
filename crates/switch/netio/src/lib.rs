//! Frames between memory and interfaces of the host: TAP devices and packet sockets, with offloads
//! and coalescing. The descriptors are opened elsewhere. Each frame is copied once, by the system.
//!
//! A received frame comes into a buffer of the caller. That starts with [`HEADROOM`] bytes, the
//! last of them for a VLAN tag, then comes the virtio header (virtio 1.3, 5.1.6), then the frame:
//! 12 bytes after the start of a cache line, as in a receive buffer of Linux.
//!
//! A frame to send ([`Outbox::push`]) has its virtio header and its first bytes in private memory,
//! the rest where it lies. So the bytes that the caller has checked are those that leave, even if
//! the rest is memory that others write. One in memory of the caller's own, or that no one has
//! checked, may stay whole ([`Outbox::push_whole`]). The system checks headers, as it does for
//! every program with such a descriptor.
//!
//! The system copies before a call returns, and keeps no address: `MSG_ZEROCOPY` and mapped rings
//! are never used.
//!
//! ```text
//! receive   reading an interface
//! outbox    frames to send, and those of a flow together
//! send      writing them
//! ```

mod moderation;
mod outbox;
mod receive;
mod send;
#[cfg(feature = "test-utils")]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::ptr;

use rustix::io::Errno;
use wire::udp;
use wire::virtio::features::Features;
use wire::virtio::net::{self, NetHeader};
use wire::virtio::shape;

pub use moderation::{Moderation, PAUSE};
pub use outbox::{ArrangedGroup, HEAD, MAX_HEAD, MAX_PIECES, Outbox};
pub use receive::Receiver;
pub use send::Sender;

/// Frames of one call in one direction, at most.
pub const BATCH: usize = 64;
/// Bytes of a receive buffer before the virtio header: a cache line, so that the header starts at
/// one.
pub const HEADROOM: u32 = 64;
/// Bytes of the virtio header.
pub const HEADER: u32 = net::LEN as u32;
/// Bytes of a receive buffer.
pub const BUFFER: usize = shape::BUFFER as usize;
/// Maximum length of a received frame, in bytes.
const ROOM: usize = BUFFER - (HEADROOM + HEADER) as usize;
/// Place of the header's length in a TCP header, in the upper half of a byte (RFC 9293, 3.1).
const TCP_OFFSET: usize = 12;

/// Returns the features of an interface in terms of virtio, UDP segmentation offload if `uso`.
/// Frames cross whole in both directions: they are segmented as late as possible.
#[must_use]
pub fn features(uso: bool) -> Features {
    let mut features = Features::NET_CSUM
        | Features::NET_GUEST_CSUM
        | Features::NET_HOST_TSO4
        | Features::NET_HOST_TSO6
        | Features::NET_HOST_ECN
        | Features::NET_GUEST_TSO4
        | Features::NET_GUEST_TSO6
        | Features::NET_GUEST_ECN;
    let of_udp = Features::NET_HOST_USO | Features::NET_GUEST_USO4 | Features::NET_GUEST_USO6;
    features.set(of_udp, uso);
    features
}

/// A kind of interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A queue of a TAP device (Linux, `Documentation/networking/tuntap.rst`), with headers of 12
    /// bytes, which does not block.
    Tap,
    /// An `AF_PACKET` socket with `PACKET_VNET_HDR` and `PACKET_AUXDATA` (packet(7)), bound to an
    /// interface.
    Packet,
}

/// A buffer with a received frame: its header and frame are `len` bytes from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Offset of the virtio header in the buffer, in bytes.
    pub start: u32,
    /// Bytes of header and frame; 0: the frame is lost and counted.
    pub len: u32,
}

/// Why a receive or send stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All frames were moved.
    Done,
    /// There is nothing more to receive, or no room to send, for now: the system will notify.
    Wait,
    /// The system has no memory to receive with, or no place for a frame in a queue of its own, and
    /// will not notify.
    Retry,
    /// The system could not read the memory of the outbox's first group (`EFAULT`). Everything
    /// before it has left.
    Fault,
}

/// Returns the number of frames that `len` bytes of virtio header and frame are cut into; `byte`
/// gives the byte at an offset that is inside of them, for a super-frame of TCP.
fn segments(header: &[u8; net::LEN], len: usize, byte: impl FnOnce(usize) -> u8) -> u64 {
    let header = NetHeader::decode(header);
    if header.gso() == net::GSO_NONE || header.gso_size == 0 {
        return 1;
    }
    let transport = net::LEN + usize::from(header.csum_start);
    let header_len = if header.gso() == net::GSO_UDP_L4 {
        udp::HEADER_LEN
    } else if transport + TCP_OFFSET < len {
        4 * usize::from(byte(transport + TCP_OFFSET) >> 4)
    } else {
        0
    };
    let payload = len.saturating_sub(transport + header_len);
    payload.div_ceil(header.gso_size.into()).max(1) as u64
}

/// Returns the number of frames that a frame with its virtio header is cut into, `len` bytes at
/// `start`.
///
/// # Safety
/// The bytes are mapped, and at least [`HEADER`]. Others may write them: then it is any number.
#[must_use]
pub unsafe fn frames_on_the_wire(start: *const u8, len: u32) -> u64 {
    let mut header = [0; net::LEN];
    // SAFETY: the bytes are mapped. They are copied, and no reference to them is made.
    unsafe { ptr::copy_nonoverlapping(start, header.as_mut_ptr(), net::LEN) };
    segments(&header, len as usize, |at| {
        // SAFETY: the byte is inside the frame, which is used as above.
        unsafe { start.add(at).read_volatile() }
    })
}

/// Returns whether it is one of those errors after which only a new descriptor helps.
#[must_use]
pub fn is_lost(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|number| is_gone(Errno::from_raw_os_error(number)))
}

/// Errors after which only a new descriptor helps: the interface was removed (`EBADFD` of a TAP
/// device, `ENXIO` and `ENODEV` of a socket), or a socket has none because it was switched off
/// (`ENETDOWN`). What is no descriptor of an interface at all is none either.
fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::BADFD | Errno::NXIO | Errno::NODEV | Errno::NETDOWN | Errno::BADF | Errno::NOTSOCK
    )
}

/// The last error of the C library.
fn last_error() -> Errno {
    let number = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}
