//! What the switch sees of an attachment point, whatever stands behind it: a [`Port`] that frames are
//! taken from and delivered to, [`Batch`]es of leased frames, the names of all drops, and counters.
//!
//! Ports compose: [`decorate::Capture`] and [`decorate::Faulty`] wrap any port; [`null::NullPort`] and
//! [`loopback::LoopbackPort`] need no guest. Policy and sessions are not known here.

mod alike;
mod batch;
mod budget;
pub mod counters;
pub mod decorate;
mod drops;
mod limiter;

pub mod loopback;
pub mod null;
mod payload;

#[cfg(test)]
mod tests;

pub use alike::Alike;
pub use batch::{
    BATCH, Batch, BatchLimit, Frame, MAX_FRAME, MAX_OUTGOING, Piece, Pieces, SHALLOW, Whole,
};
pub use budget::{Budget, Cost, Share};
pub use drops::{DropReason, REASONS};
pub use limiter::EventLimiter;
pub use payload::{Outgoing, Payload};

use counters::Traffic;
use wire::segment::GsoKind;

/// Names one port for as long as it exists: an index that control hands out, below
/// [`counters::MAX_PORTS`].
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct PortId(pub u32);

/// A checksum that the sender left to be completed: the 16-bit field at `start + offset` holds the
/// pseudo header's sum (virtio 1.3, 5.1.6.2, `VIRTIO_NET_HDR_F_NEEDS_CSUM`). Bytes from the frame's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// Where summing starts.
    pub start: u16,
    /// Where the field lies, from `start`.
    pub offset: u16,
}

/// A frame that stands for several: the receiver, or the switch for it, cuts it into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// What is cut, and how its headers change.
    pub kind: GsoKind,
    /// Payload bytes of a segment.
    pub size: u16,
    /// The TCP header carries CWR, which belongs to the first segment alone (RFC 3168).
    pub ecn: bool,
    /// Bytes of all headers, Ethernet to TCP or UDP: set by the switch from its own parsing, never
    /// believed from a sender.
    pub header_len: u16,
}

/// Work that the sender left to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// A checksum to complete.
    pub checksum: Option<PartialChecksum>,
    /// A segmentation to do; always comes with `checksum`.
    pub gso: Option<Gso>,
}

impl Offload {
    /// Whether the frame is complete as it is.
    #[inline]
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.checksum.is_none() && self.gso.is_none()
    }
}

/// Which of a sender's [`Offload`]s a receiver takes over as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accepts {
    /// Frames with a [`PartialChecksum`].
    pub checksum: bool,
    /// TCP over IPv4 larger than the link's MTU.
    pub tso4: bool,
    /// TCP over IPv6 larger than the link's MTU.
    pub tso6: bool,
    /// Such TCP frames with CWR set.
    pub ecn: bool,
    /// UDP over IPv4 to be cut into datagrams.
    pub uso4: bool,
    /// UDP over IPv6 to be cut into datagrams.
    pub uso6: bool,
}

impl Accepts {
    /// Everything.
    pub const ALL: Accepts = Accepts {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso4: true,
        uso6: true,
    };

    /// Whether a frame with this work left can be delivered as it is.
    #[inline]
    #[must_use]
    pub fn takes(self, offload: &Offload) -> bool {
        let Some(gso) = offload.gso else {
            return self.checksum || offload.checksum.is_none();
        };
        let kind = match gso.kind {
            GsoKind::Tcp4 => self.tso4,
            GsoKind::Tcp6 => self.tso6,
            GsoKind::Udp4 => self.uso4,
            GsoKind::Udp6 => self.uso6,
        };
        self.checksum && kind && (self.ecn || !gso.ecn)
    }
}

/// An attachment point with one or more queue pairs, as one worker sees it. Every method is bounded, and none
/// blocks but for other workers ([`Port::hold`]).
pub trait Port {
    /// Queue pairs that frames may come from or go to now; 0 while nobody is attached.
    fn pairs(&self) -> u16;

    /// What the port takes over from senders.
    fn accepts(&self) -> Accepts;

    /// Longest IP packet that goes to this port, bytes: its MTU.
    fn mtu(&self) -> u32 {
        u32::from(u16::MAX)
    }

    /// Leases waiting frames of `pair` into the empty `batch`, up to its [`Batch::limit`]. Frames that are wrong in
    /// themselves are dropped here, by name, through [`Batch::drop_taken`].
    fn take(&mut self, pair: u16, batch: &mut Batch);

    /// Ends all leases of the last [`Port::take`] on `pair`: the sender may reuse its buffers. It follows every
    /// `take`, also one that found nothing.
    fn release(&mut self, pair: u16);

    /// Gets hold of the queue that takes frames to `pair`, which others may use too, until the next
    /// [`Port::flush`]; nothing is delivered to a pair that is not held. `false` when somebody else has it, and
    /// `wait` was not asked for: then the caller may hold no other pair of any port.
    fn hold(&mut self, _pair: u16, _wait: bool) -> bool {
        true
    }

    /// Says that about so many frames are about to be delivered to `pair`, so that memory can be brought near
    /// in time. A hint: more or fewer may come.
    fn expect(&mut self, _pair: u16, _frames: usize) {}

    /// Whether `pair`, which is held, is *masked* until the next [`Port::flush`]: it has shown no buffer for a while
    /// and shows none now. Its frames are then to be dropped as [`DropReason::ReceiverFull`] without being tried.
    fn is_masked(&mut self, _pair: u16) -> bool {
        false
    }

    /// Frames for `pair`, which is held, were dropped.
    fn note_dropped(&mut self, _pair: u16, _reason: DropReason, _frames: u64) {}

    /// Frames that came from `pair` were dropped, by whoever decides where they go. Also while the pair is not held, and for a pair that
    /// there is not.
    fn note_refused(&mut self, _pair: u16, _reason: DropReason, _frames: u64) {}

    /// Copies frames into the receiver's memory that need no more than that, and says how much it did: the short way
    /// for many frames. The first frame that it does not take, and those behind it, are for [`Port::deliver`], so
    /// that to do nothing is always right.
    fn deliver_pieces(&mut self, _pair: u16, _frames: Pieces<'_>) -> Traffic {
        Traffic::default()
    }

    /// Copies one frame into the receiver's memory.
    ///
    /// # Errors
    /// The name of the drop: no room, too large, not attached.
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason>;

    /// Makes what was delivered to `pair` visible and notifies the receiver when it wants that. `now` is in nanoseconds of the
    /// machine's monotonic clock. A notification may be put off: then the time is returned at which [`Port::notify`] is to be called, once
    /// until it is. What is still being copied follows: see [`Port::settle`].
    fn flush(&mut self, pair: u16, now: u64) -> Option<u64>;

    /// Notifies the receiver of what a [`Port::flush`] has put off, if it is due or can wait no more; else the time at which it is due.
    fn notify(&mut self, _pair: u16, _now: u64) -> Option<u64> {
        None
    }

    /// Whether nothing that was delivered or released waits for a copy. To be asked after [`Port::flush`] and
    /// [`Port::release`].
    fn is_settled(&self) -> bool {
        true
    }

    /// Makes visible what was copied meanwhile, and gives it back to its senders; as [`Port::is_settled`] afterwards.
    /// To be called until it is, while no pair of any port is held. `late` is told of pairs whose receivers are to be
    /// notified later, as [`Port::flush`] says it.
    fn settle(&mut self, _now: u64, _late: &mut dyn FnMut(u16, u64)) -> bool {
        true
    }

    /// Asks to be notified of new frames on `pair` (`true`), or not to be (`false`). Returns whether
    /// frames are waiting already, in which case there may be no notification for them.
    fn arm(&mut self, pair: u16, on: bool) -> bool;
}
