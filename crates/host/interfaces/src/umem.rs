//! Layout of the memory for both sides of an `AF_XDP` interface (Linux,
//! `Documentation/networking/af_xdp.rst`): the supervisor, which makes sockets and memory, and the
//! driver process, which moves frames.
//!
//! The memory that a driver shares with the switch *is* the umem of its sockets, all of it, so that
//! an offset in the one is an address in the other. A frame that arrives lies behind the headroom
//! of its buffer, where its virtio header is written: the switch copies it from there to the guest.
//! A frame of a guest is copied by the switch to the buffer that the interface sends from. So each
//! direction has one copy by us; without zero-copy the system makes another.
//!
//! ```text
//! to the switch     free -> fill ring -> interface -> receive ring -> switch -> free
//! from the switch   switch -> transmit ring -> interface -> completion ring -> switch
//! ```

use wire::virtio::net;
use wire::virtio::shape::Shape;

/// Buffers of a queue, and so the entries of each ring: some milliseconds of a fast wire. A buffer
/// is the longest chunk that a umem may have everywhere, one page.
pub const SHAPE: Shape = Shape {
    entries: 2048,
    buffer: 4096,
};
/// Bytes that the system leaves free before every frame (`XDP_PACKET_HEADROOM`).
pub const SYSTEM_HEADROOM: u32 = 256;
/// Bytes that it is to leave free beside them where it copies frames: a frame then lies 12 bytes
/// behind the start of a cache line, as in a receive buffer of Linux (see `frames`). An interface
/// that writes frames itself may start them at a line, so that it writes whole lines.
pub const COPY_HEADROOM: u32 = net::LEN as u32;
/// Bytes of the longest frame that fits behind both.
pub const LONGEST: u32 = SHAPE.buffer - SYSTEM_HEADROOM - COPY_HEADROOM;
