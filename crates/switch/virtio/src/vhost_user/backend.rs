//! Interfaces of a session's owner: the offer that it makes and the calls that it receives.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use memory::GuestMemory;
use memory::iotlb::Iotlb;
use sys::foreign::ForeignFd;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use crate::queue::{Inflight, Layout};

/// Offer of a port to its front end. Fixed for the life of a session, except for link and MTU.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Virtio features; the front end may take any subset. The two bits that belong to vhost itself
    /// (dirty log, protocol features) are added by the session.
    pub features: Features,
    /// Queue pairs, 1 to 128, because vhost-user names a queue in 8 bits.
    pub queue_pairs: u16,
    /// Largest layer 3 packet in bytes, shown in the configuration space.
    pub mtu: u16,
    /// The guest's address, shown in the configuration space.
    pub mac: [u8; 6],
    /// Whether the link is up at the start.
    pub link_up: bool,
    /// Protocol features; everything is offered by default.
    pub protocol: ProtocolFeatures,
    /// Slots of each slot queue, unless the client chooses others; 0: virtqueues.
    pub slots: u16,
    /// No queue starts without `VIRTIO_F_ACCESS_PLATFORM` (virtio 1.3, 6.2).
    pub iommu_required: bool,
}

impl Offer {
    /// An offer of `features` and `queue_pairs`, MTU 1500, link up, no address, all protocol
    /// features, no feature required.
    #[must_use]
    pub fn new(features: Features, queue_pairs: u16) -> Self {
        Offer {
            features,
            queue_pairs,
            mtu: 1500,
            mac: [0; 6],
            link_up: true,
            protocol: ProtocolFeatures::all(),
            slots: 0,
            iommu_required: false,
        }
    }

    /// Turns the offer into one of slot queues with so many slots, for a netmap client: features of
    /// virtqueues go, translated addresses too, and so does everything that serves the migration
    /// and the reconnection of guests.
    #[must_use]
    pub fn of_slot_queues(mut self, slots: u16) -> Self {
        self.slots = slots;
        self.features -= Features::RING_PACKED
            | Features::RING_INDIRECT_DESC
            | Features::RING_EVENT_IDX
            | Features::IN_ORDER
            | Features::ACCESS_PLATFORM;
        self.iommu_required = false;
        self.protocol =
            ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK | ProtocolFeatures::SLOT_QUEUES;
        self
    }
}

/// Whether a process that died has served a queue: then the queue resumes at the position in its
/// rings (`Queue::resume`), not at the position that the front end gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// The queue starts.
    No,
    /// The message that starts the queue may have been served before.
    Perhaps,
    /// The queue was running.
    Yes,
}

/// Parameters for serving a queue.
#[derive(Debug)]
pub struct QueueSetup {
    /// Queue index; even ones take frames to the guest, odd ones from the guest.
    pub index: u16,
    /// Size and guest-physical addresses; all three areas are mapped in `mem`. With `iotlb`, I/O
    /// virtual addresses, which were translated when the queue was complete.
    pub layout: Layout,
    /// Negotiated virtio features, without the bits of vhost itself.
    pub features: Features,
    /// Start position, in the encoding of `Queue::position`.
    pub position: u32,
    /// Whether another process may have served the queue before.
    pub resume: Resume,
    /// Readable when the guest made descriptors available. Non-blocking.
    pub kick: ForeignFd,
    /// To be written (8 bytes) to notify the guest; without it the guest polls. Non-blocking.
    pub call: Option<ForeignFd>,
    /// Whether frames may pass; a disabled queue is drained without effect.
    pub enabled: bool,
    /// This queue's part of the inflight area, when the front end set one.
    pub inflight: Option<Inflight>,
    /// The memory that the layout was checked against.
    pub mem: Arc<GuestMemory>,
    /// Translations of the addresses in rings and descriptors, of a guest with an IOMMU.
    pub iotlb: Option<Arc<Iotlb>>,
}

/// The data path as a session sees it. Calls are made within `Session::handle` and
/// `Session::close`, on the caller's thread.
pub trait Backend {
    /// Sets a new snapshot of guest memory, or none. Queues that keep running have the same layout
    /// in it; those that do not were stopped before this call.
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>);

    /// Starts a queue, which is complete.
    ///
    /// # Errors
    /// A reason, as text. The queue counts as stopped and is offered again when something changes.
    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String>;

    /// Stops a running queue; when this returns, it is no longer accessed. Returns the position at
    /// which the next start continues, or `None` when it is not known.
    fn stop_queue(&mut self, index: u16) -> Option<u32>;

    /// Enables or disables a running queue.
    fn enable_queue(&mut self, index: u16, on: bool);

    /// Gives a running queue another descriptor to notify its guest, or none.
    fn set_call(&mut self, index: u16, call: Option<ForeignFd>);

    /// Waits until nothing of guest memory is accessed any more that was looked up before this
    /// call, in a table of translations or another. What was removed from such a table, with a
    /// `fence(SeqCst)` behind it, is then out of use. The wait depends on no front end and no
    /// guest.
    fn end_access(&mut self) {}

    /// Has all running queues looked at again, as after kicks: buffers that could not be accessed
    /// may be accessible now. Returns at once.
    fn retry(&mut self) {}

    /// Reports a queue that is complete and still cannot start; `reason` is text. It is repeated
    /// only when it changes.
    fn queue_refused(&mut self, _index: u16, _reason: &str) {}

    /// Adds a descriptor that the front end sent to the session, under a number that no other
    /// descriptor of the session has. With the stored descriptors and
    /// [`Session::record`](super::Session::record), the session can be restored after this process
    /// has died.
    fn keep(&mut self, _number: u64, _fd: BorrowedFd<'_>) {}

    /// Stores the file of the session's translations, in place of an earlier one, for
    /// [`Backend::kept_iotlb`].
    fn keep_iotlb(&mut self, _fd: BorrowedFd<'_>) {}

    /// Returns the file of translations that a former process has stored.
    fn kept_iotlb(&mut self) -> Option<ForeignFd> {
        None
    }

    /// Reports how long [`Backend::end_access`] took.
    fn access_ended(&mut self, _waited: Duration) {}

    /// Adds one to an eventfd of the front end. A hostile front end can make the write wait (it can
    /// clear the descriptor's `O_NONBLOCK`): an owner that must not wait writes where it can be
    /// interrupted.
    fn signal(&mut self, event: &OwnedFd) {
        // A front end that does not listen misses it; the queue's status shows the reason.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }

    /// Resets the device; all queues were stopped before.
    fn reset(&mut self) {}

    /// Broadcasts the address of a guest that moved here and cannot announce itself (`SEND_RARP`).
    fn send_rarp(&mut self, _mac: [u8; 6]) {}

    /// Applies the MTU that the front end gives to the guest.
    ///
    /// # Errors
    /// A reason, when the MTU is not possible.
    fn set_mtu(&mut self, _mtu: u16) -> Result<(), String> {
        Ok(())
    }

    /// Reports the device status that the driver wrote (virtio 1.3, 2.1).
    fn status_changed(&mut self, _status: u8) {}
}
