//! What the owner of a session gives (the offer) and gets (the calls of the back end).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use memory::GuestMemory;

use super::message::ProtocolFeatures;
use crate::features::Features;
use crate::queue::{Inflight, Layout};

/// What a port offers to its front end. Fixed for the life of a session, except for link and MTU.
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
}

impl Offer {
    /// An offer of `features` and `queue_pairs`, MTU 1500, link up, no address, all protocol features.
    #[must_use]
    pub fn new(features: Features, queue_pairs: u16) -> Self {
        Offer {
            features,
            queue_pairs,
            mtu: 1500,
            mac: [0; 6],
            link_up: true,
            protocol: ProtocolFeatures::all(),
        }
    }
}

/// Whether a process that died has served a queue: then it goes on where its rings say (`Queue::resume`), not at
/// the position that the front end gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It starts.
    No,
    /// The message that starts it may have been served before: perhaps.
    Perhaps,
    /// It ran.
    Yes,
}

/// Everything that is needed to serve a queue.
#[derive(Debug)]
pub struct QueueSetup {
    /// Which queue; even ones take frames to the guest, odd ones from the guest.
    pub index: u16,
    /// Size and guest-physical addresses; all three areas are mapped in `mem`.
    pub layout: Layout,
    /// Negotiated virtio features, without the bits of vhost itself.
    pub features: Features,
    /// Where to go on, in the encoding of `Queue::position`.
    pub position: u32,
    /// Whether another process may have served it before.
    pub resume: Resume,
    /// Readable when the guest made descriptors available. Non-blocking.
    pub kick: OwnedFd,
    /// To be written (8 bytes) to notify the guest; without it the guest polls. Non-blocking.
    pub call: Option<OwnedFd>,
    /// Whether frames may pass; a disabled queue is drained without effect.
    pub enabled: bool,
    /// This queue's part of the inflight area, when the front end set one.
    pub inflight: Option<Inflight>,
    /// The memory that the layout was checked against.
    pub mem: Arc<GuestMemory>,
}

/// The data path as a session sees it. Calls come from within `Session::handle` and `Session::close`, on
/// the caller's thread.
pub trait Backend {
    /// A new snapshot of guest memory, or none any more. Queues that keep running have the same layout in
    /// it; those that do not were stopped before this call.
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>);

    /// A queue is complete and is to be served from now on.
    ///
    /// # Errors
    /// A reason, for people. The queue counts as stopped and is offered again when something changes.
    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String>;

    /// Stops a queue that runs; when this returns, it is not touched any more. The position at which the
    /// next start goes on, or `None` when it is not known.
    fn stop_queue(&mut self, index: u16) -> Option<u32>;

    /// A running queue was enabled or disabled.
    fn enable_queue(&mut self, index: u16, on: bool);

    /// A running queue has another descriptor to notify its guest, or none.
    fn set_call(&mut self, index: u16, call: Option<OwnedFd>);

    /// A queue has all it needs and still cannot start; `reason` is for people. It is repeated only when it
    /// changes.
    fn queue_refused(&mut self, _index: u16, _reason: &str) {}

    /// A descriptor that the front end sent is part of the session from now on, under a number that no other one
    /// of the session has. Whoever keeps descriptors and [`Session::record`](super::Session::record) can bring the
    /// session back after this process has died.
    fn keep(&mut self, _number: u64, _fd: BorrowedFd<'_>) {}

    /// Adds one to an eventfd of the front end. A hostile front end can make the write wait (it can clear
    /// the descriptor's `O_NONBLOCK`): an owner that must not wait does it where it can be interrupted.
    fn signal(&mut self, event: &OwnedFd) {
        // A front end that does not listen misses it; its status shows the reason all the same.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }

    /// The device was reset; all queues were stopped before.
    fn reset(&mut self) {}

    /// The guest moved here and cannot announce itself: its address is to be broadcast (`SEND_RARP`).
    fn send_rarp(&mut self, _mac: [u8; 6]) {}

    /// The front end tells the guest this MTU.
    ///
    /// # Errors
    /// A reason, when the MTU cannot be had.
    fn set_mtu(&mut self, _mtu: u16) -> Result<(), String> {
        Ok(())
    }

    /// The device status that the driver wrote (virtio 1.3, 2.1).
    fn status_changed(&mut self, _status: u8) {}
}
