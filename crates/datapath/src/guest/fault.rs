//! Why a guest's queue was stopped.

use virtio::queue::QueueFault;

/// Why a queue was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuestFault {
    /// The ring or a descriptor broke a rule.
    #[error(transparent)]
    Queue(#[from] QueueFault),
    /// The front end does not let itself be notified (see `watchdog`).
    #[error("the call descriptor does not take notifications")]
    CallBlocked,
    /// Kicks, and never a buffer: what the guest writes is not what we see.
    #[error("the guest kicks, and its memory shows no buffer: is it shared (QEMU: share=on)?")]
    NotShared,
    /// A chain has no room for the virtio header (CVE-2022-2132, CVE-2026-86566).
    #[error("a chain is too short for the virtio header")]
    NoRoomForHeader,
}
