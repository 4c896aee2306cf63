//! Frames as smoltcp has them, over anything that moves frames with headers of virtio-net.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroUsize};

use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::IpEndpoint;
use wire::virtio::net::NetHeader;

use crate::offload;

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
    pub(crate) is_scaled: bool,
    /// Traffic classes of frames that are sent.
    pub(crate) marks: Vec<Mark>,
    /// The received frame. Kept for its memory.
    frame: Vec<u8>,
    /// Neighbours that have answered since [`Device::take_answered`].
    answered: Vec<IpAddr>,
}

/// The traffic class of what a socket sends.
#[derive(Debug)]
pub(crate) struct Mark {
    /// TCP, not UDP.
    pub(crate) is_stream: bool,
    /// The socket's port.
    pub(crate) port: u16,
    /// The only receiver; none: any.
    pub(crate) peer: Option<IpEndpoint>,
    /// The byte of the IP header (RFC 2474).
    pub(crate) class: u8,
}

impl Mark {
    fn is_of(&self, frame: &[u8]) -> bool {
        let Some((is_stream, source, to)) = offload::ends(frame) else {
            return false;
        };
        let is_peer = self.peer.is_none_or(|peer| peer == IpEndpoint::from(to));
        is_stream == self.is_stream && source == self.port && is_peer
    }
}

/// A received frame, and room for a reply.
pub(crate) struct ReceivedFrame<'a>(&'a [u8]);

/// Room for a frame.
pub(crate) struct Room<'a, W> {
    wire: &'a mut W,
    marks: &'a [Mark],
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
            marks: Vec::new(),
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
        = ReceivedFrame<'a>
    where
        W: 'a;
    type TxToken<'a>
        = Room<'a, W>
    where
        W: 'a;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedFrame<'_>, Room<'_, W>)> {
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
            marks: &self.marks,
            is_scaled: self.is_scaled,
            segment: None,
        };
        Some((ReceivedFrame(&self.frame), room))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_, W>> {
        let has_room = self.wire.has_room();
        has_room.then_some(Room {
            wire: &mut self.wire,
            marks: &self.marks,
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

impl RxToken for ReceivedFrame<'_> {
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
            let mark = self.marks.iter().find(|mark| mark.is_of(frame));
            if let Some(mark) = mark {
                offload::set_class(frame, mark.class);
            }
            (result, offload::leave(frame, segment, is_scaled))
        })
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size;
    }
}

/// The neighbour that a frame is an answer of.
fn answer_of(frame: &[u8]) -> Option<IpAddr> {
    const ARP: [u8; 2] = [0x08, 0x06];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    const REPLY: [u8; 2] = [0, 2];
    const ICMPV6: u8 = 58;
    const ADVERTISEMENT: u8 = 136;
    let kind: [u8; 2] = frame.get(12..14)?.try_into().ok()?;
    match kind {
        ARP if *frame.get(20..22)? == REPLY => {
            let sender: [u8; 4] = frame.get(28..32)?.try_into().ok()?;
            Some(sender.into())
        }
        IPV6 if *frame.get(20)? == ICMPV6 && *frame.get(54)? == ADVERTISEMENT => {
            let sender: [u8; 16] = frame.get(22..38)?.try_into().ok()?;
            Some(sender.into())
        }
        _ => None,
    }
}
