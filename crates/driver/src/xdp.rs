//! Definitions for both sides of an `AF_XDP` interface (Linux,
//! `Documentation/networking/af_xdp.rst`): the supervisor, which makes sockets and memory, and the
//! driver process, which moves frames.
//!
//! The memory that a driver shares with the switch *is* the umem of its sockets, all of it, so that
//! an offset in the one is an address in the other. A frame that arrives lies behind [`HEADROOM`]
//! bytes of its buffer, where its virtio header is written: the switch copies it from there to the
//! guest. A frame of a guest is copied by the switch to the buffer that the interface sends from.
//! So each direction has one copy by us; without zero-copy the system makes another.
//!
//! ```text
//! to the switch     free -> fill ring -> interface -> receive ring -> switch -> free
//! from the switch   switch -> transmit ring -> interface -> completion ring -> switch
//! ```

use crate::region::Shape;

/// Buffers of a queue, and so the entries of each ring: some milliseconds of a fast wire. A buffer
/// is the longest chunk that a umem may have everywhere, one page.
pub(crate) const SHAPE: Shape = Shape {
    entries: 2048,
    buffer: 4096,
};
/// Bytes that the system leaves free before a frame (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM: u32 = 256;
/// Bytes of the longest frame that fits behind it.
pub(crate) const LONGEST: u32 = SHAPE.buffer - HEADROOM;
