//! Faults of a guest's queue.

use virtio::queue::QueueFault;

/// Reason for which a queue was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuestFault {
    /// The ring or a descriptor violated the specification.
    #[error(transparent)]
    Queue(#[from] QueueFault),
    /// The call descriptor blocks (see `watchdog`).
    #[error("the call descriptor blocks")]
    CallBlocked,
    /// The guest kicks but never makes a buffer available: its memory is not shared.
    #[error("the guest kicks but offers no buffers: is its memory shared (QEMU: share=on)?")]
    NotShared,
    /// A chain has no room for the virtio header (CVE-2022-2132, CVE-2026-86566).
    #[error("a chain is too short for the virtio header")]
    NoRoomForHeader,
}
