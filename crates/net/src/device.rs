//! Frames as smoltcp has them, over anything that moves frames with headers of virtio-net.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroUsize};

use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;
use wire::virtio::net::NetHeader;

use crate::offload;
use crate::stack::answer_of;

/// Bytes of the Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of the longest frame that is sent: an IP packet of 65535 bytes and its Ethernet header.
pub(crate) const LONGEST: usize = 65535 + ETHERNET;

/// Answers of neighbours at most that are noted of the frames between two looks.
const ANSWERS: usize = 16;

/// A way for frames.
pub trait Wire {
    /// Whether the other side cuts super-frames of TCP, so that the stack may send them.
    fn segments(&self) -> bool {
        true
    }

    /// Puts the next frame in place of the bytes of `frame`, a private copy, and returns its
    /// header. `None`: there is none.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader>;

    /// Whether there is room for a frame.
    fn has_room(&mut self) -> bool;

    /// Sends a frame of `len` bytes, which `fill` writes; it returns the frame's header. Without
    /// room the frame is lost.
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, NetHeader)) -> R;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Device<W> {
    pub(crate) wire: W,
    mtu: usize,
    /// Windows are in units of several bytes.
    is_scaled: bool,
    /// The received frame. Kept for its memory.
    frame: Vec<u8>,
    /// Neighbours that have answered since [`Device::take_answered`].
    answered: Vec<IpAddr>,
}

/// A received frame, and room for a reply.
pub(crate) struct Received<'a>(&'a [u8]);

/// Room for a frame.
pub(crate) struct Room<'a, W> {
    wire: &'a mut W,
    is_scaled: bool,
    segment: Option<NonZeroU16>,
}

impl<W: Wire> Device<W> {
    /// `mtu`: bytes of an IP packet; `buffer`: bytes that a connection may receive and not read.
    pub(crate) fn new(wire: W, mtu: u16, buffer: usize) -> Self {
        Self {
            wire,
            mtu: mtu.into(),
            is_scaled: buffer > u16::MAX.into(),
            frame: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Takes a neighbour that has answered.
    pub(crate) fn take_answered(&mut self) -> Option<IpAddr> {
        self.answered.pop()
    }
}

impl<W: Wire> phy::Device for Device<W> {
    type RxToken<'a>
        = Received<'a>
    where
        W: 'a;
    type TxToken<'a>
        = Room<'a, W>
    where
        W: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Room<'_, W>)> {
        // A frame may call for a reply: none is taken while there is no room for one.
        if !self.wire.has_room() {
            return None;
        }
        loop {
            let header = self.wire.receive(&mut self.frame)?;
            if offload::is_intact(&header, &self.frame) {
                break;
            }
        }
        if let Some(by) = answer_of(&self.frame)
            && self.answered.len() < ANSWERS
        {
            self.answered.push(by);
        }
        let room = Room {
            wire: &mut self.wire,
            is_scaled: self.is_scaled,
            segment: None,
        };
        Some((Received(&self.frame), room))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_, W>> {
        let has_room = self.wire.has_room();
        has_room.then_some(Room {
            wire: &mut self.wire,
            is_scaled: self.is_scaled,
            segment: None,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + ETHERNET;
        // Those of received frames are checked above.
        capabilities.checksum.tcp = Checksum::None;
        capabilities.checksum.udp = Checksum::None;
        if self.wire.segments() {
            // smoltcp 0.14 drops super-frames of IPv6 when it sends them.
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(LONGEST);
        }
        capabilities
    }
}

impl RxToken for Received<'_> {
    fn consume<R, F>(self, handle: F) -> R
    where
        F: FnOnce(&[u8]) -> R,
    {
        handle(self.0)
    }
}

impl<W: Wire> TxToken for Room<'_, W> {
    fn consume<R, F>(self, len: usize, write: F) -> R
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        let (segment, is_scaled) = (self.segment, self.is_scaled);
        self.wire.transmit(len, |frame| {
            let result = write(frame);
            (result, offload::leave(frame, segment, is_scaled))
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size;
    }
}
