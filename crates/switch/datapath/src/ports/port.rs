//! The attachment point of a guest or an interface, as the workers see it.

use std::ops::Range;

use port::counters::Traffic;
use port::{DropReason, Offload};
use wire::segment::GsoKind;

use super::batch::{Batch, Pieces};
use super::calls::PendingCalls;
use super::payload::Outgoing;

/// Buffers of the queues to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffers {
    /// Those that each queue has free, at least: so many frames it takes.
    pub free: usize,
    /// Those of all queues that have a frame and did not come back.
    pub used: usize,
}

/// Sender's [`Offload`]s that a receiver accepts as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accepts {
    /// Frames with a [`PartialChecksum`](port::PartialChecksum).
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
    /// Every offload.
    pub const ALL: Accepts = Accepts {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso4: true,
        uso6: true,
    };

    /// Returns whether a frame with this offload can be delivered as it is.
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

/// The result of delivering frames that waited, by which a receiver's counters are corrected.
#[derive(Debug, Default)]
pub struct Settlement {
    /// Frames that count as delivered in this batch, and wait.
    pub kept: Traffic,
    /// Frames that had waited and are delivered now.
    pub delivered: Traffic,
    /// Frames that had waited and are dropped now.
    pub dropped: Vec<(DropReason, u64)>,
}

impl Settlement {
    /// Adds the result of another queue.
    pub(crate) fn add(&mut self, other: Settlement) {
        for (sum, more) in [
            (&mut self.kept, other.kept),
            (&mut self.delivered, other.delivered),
        ] {
            sum.packets += more.packets;
            sum.bytes += more.bytes;
        }
        self.dropped.extend(other.dropped);
    }
}

/// An attachment point with one or more queue pairs, as one worker sees it. Every method is
/// bounded, and none blocks except for other workers ([`Port::hold`]).
pub trait Port {
    /// Returns the number of queue pairs that frames may come from or go to now; 0 without a guest.
    fn pairs(&self) -> u16;

    /// Returns the offloads that the port accepts.
    fn accepts(&self) -> Accepts;

    /// Returns the longest IP packet that goes to this port, in bytes: its MTU.
    fn mtu(&self) -> u32 {
        u32::from(u16::MAX)
    }

    /// Leases waiting frames of `pair` into the empty `batch`, up to its [`Batch::limit`].
    /// Malformed frames are dropped here, by name, through [`Batch::drop_taken`].
    fn take(&mut self, pair: u16, batch: &mut Batch);

    /// Ends the leases of the last [`Port::take`] on `pair` behind the first `kept` frames, the
    /// dropped ones included, as if they had not been taken; see [`Batch::cut`].
    fn leave(&mut self, pair: u16, kept: usize);

    /// Ends all leases of the last [`Port::take`] on `pair`: the sender may reuse its buffers, and
    /// is to be notified if it requested that. It follows every `take`, also one that found
    /// nothing.
    fn release(&mut self, pair: u16, calls: &mut PendingCalls);

    /// Locks the queue that takes frames to `pair`, which other workers may use too, until the next
    /// [`Port::flush`]; no frame is delivered to a pair that is not locked. Returns `false` when
    /// another worker has it, and `wait` is not set: then the caller may hold no other pair of any
    /// port.
    fn hold(&mut self, _pair: u16, _wait: bool) -> bool {
        true
    }

    /// Announces that about so many frames will be delivered to `pair`, so that memory can be
    /// prefetched in time. A hint: more or fewer may come.
    fn expect(&mut self, _pair: u16, _frames: usize) {}

    /// Returns whether `pair`, which is locked, is *masked* until the next [`Port::flush`]: it has
    /// shown no buffer for a while and shows none now. Its frames are then to be skipped and
    /// dropped as [`DropReason::ReceiverFull`].
    fn is_masked(&mut self, _pair: u16) -> bool {
        false
    }

    /// Returns the buffers of the queues to the port; `None` if another worker has one of them.
    fn buffers(&mut self) -> Option<Buffers> {
        Some(Buffers {
            free: usize::MAX,
            used: 0,
        })
    }

    /// Counts dropped frames for `pair`, which is locked.
    fn note_dropped(&mut self, _pair: u16, _reason: DropReason, _frames: u64) {}

    /// Counts frames from `pair` that the forwarding decision dropped. Also for a pair that is not
    /// locked, or does not exist.
    fn note_refused(&mut self, _pair: u16, _reason: DropReason, _frames: u64) {}

    /// Copies frames into the receiver's memory that need no more than that, and returns the
    /// amount: the fast path for many frames. The first frame that it does not take, and those
    /// behind it, are for [`Port::deliver`], so an empty implementation is correct.
    fn deliver_pieces(&mut self, _pair: u16, _frames: Pieces<'_>) -> Traffic {
        Traffic::default()
    }

    /// Takes frames of a batch, of `longest` bytes at most, as [`Port::deliver_pieces`] does;
    /// `None` for a port that takes pieces. It is apart from that, so that the loop over the pieces
    /// is compiled for one kind of port.
    fn deliver_range(
        &mut self,
        _pair: u16,
        _batch: &Batch,
        _frames: Range<usize>,
        _longest: u32,
    ) -> Option<Traffic> {
        None
    }

    /// Copies one frame into the receiver's memory.
    ///
    /// # Errors
    /// The drop reason: no room, too large, not attached.
    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason>;

    /// Returns what became of frames to `pair`, which is locked, that the port has taken without
    /// delivering them at once. To be called before [`Port::flush`].
    fn settle(&mut self, _pair: u16, _now: u64) -> Option<Settlement> {
        None
    }

    /// Makes the frames delivered to `pair` visible and unlocks it. The receiver is to be notified
    /// if it requested that, when the caller holds no pair of any port any more. `now` is in
    /// nanoseconds of the machine's monotonic clock. A notification may be deferred: then the time
    /// is returned at which [`Port::notify`] is to be called, once until it is. An interface may
    /// defer frames, too.
    fn flush(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64>;

    /// Notes the notification that a [`Port::flush`] has deferred, if it is due; else returns the
    /// time at which it is due.
    fn notify(&mut self, _pair: u16, _now: u64, _calls: &mut PendingCalls) -> Option<u64> {
        None
    }

    /// Returns what became of frames of `pair`, which is not locked, in [`Port::notify`].
    fn settle_deferred(&mut self, _pair: u16) -> Option<Settlement> {
        None
    }

    /// Notes the notification that a [`Port::flush`] has deferred, due or not.
    fn end_deferral(&mut self, _pair: u16, _calls: &mut PendingCalls) {}

    /// Enables (`true`) or disables notifications of new frames on `pair`. Returns whether frames
    /// are waiting already, in which case there may be no notification for them.
    fn arm(&mut self, pair: u16, on: bool) -> bool;
}
