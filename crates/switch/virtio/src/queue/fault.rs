//! Violations by a driver, or by the front end that set up the queue.

/// Reason why a queue stopped. A queue with a fault no longer touches guest memory; every later
/// call returns the same fault until the queue is created anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum QueueFault {
    /// Not 1..=4096, or for a split queue not a power of two.
    #[error("queue size is not allowed")]
    BadSize,
    /// The start position is not one that a queue of this size can be in.
    #[error("queue position is out of range")]
    BadPosition,
    /// A ring area's address is not aligned as its layout demands.
    #[error("ring area is misaligned")]
    Misaligned,
    /// A ring area is not wholly inside one memory region.
    #[error("ring area is not mapped")]
    UnmappedRing,
    /// A buffer is not wholly mapped.
    #[error("buffer address is not mapped")]
    UnmappedAddress,
    /// An indirect table is not wholly mapped.
    #[error("indirect table is not mapped")]
    UnmappedTable,
    /// A descriptor of zero bytes.
    #[error("descriptor of zero length")]
    ZeroLength,
    /// More is available than the queue holds: the available index jumped, or slots in use were
    /// offered again.
    #[error("available index jumps beyond the queue")]
    IndexJump,
    /// The available ring names a descriptor that does not exist (split).
    #[error("head index is out of range")]
    HeadOutOfRange,
    /// A descriptor names a next one that does not exist (split, indirect tables).
    #[error("next index is out of range")]
    NextOutOfRange,
    /// A buffer id that is not below the queue size (packed).
    #[error("buffer id is out of range")]
    IdOutOfRange,
    /// A chain visits more descriptors than there are.
    #[error("descriptors form a loop")]
    DescriptorLoop,
    /// More than [`super::MAX_CHAIN_DESCRIPTORS`] descriptors in one chain, or more than
    /// [`super::MAX_SLOTS_PER_FRAME`] slots.
    #[error("chain has too many descriptors")]
    ChainTooLong,
    /// More than [`super::MAX_CHAIN_BYTES`] bytes in one chain.
    #[error("chain has too many bytes")]
    ChainTooLarge,
    /// Buffers of one chain cross more than [`super::MAX_CHAIN_BORDERS`] borders between memory
    /// regions.
    #[error("chain lies in too many pieces of memory")]
    TooManyPieces,
    /// A chain for the device to read holds a descriptor for it to write.
    #[error("writable descriptor in a chain to read")]
    WritableInReadable,
    /// A chain for the device to write starts with a descriptor for it to read.
    #[error("readable descriptor in a chain to write")]
    ReadableInWritable,
    /// A readable descriptor follows a writable one.
    #[error("readable descriptor after a writable one")]
    ReadableAfterWritable,
    /// An indirect descriptor without `RING_INDIRECT_DESC`.
    #[error("indirect descriptor was not negotiated")]
    IndirectNotNegotiated,
    /// An indirect descriptor inside an indirect table.
    #[error("indirect table inside an indirect table")]
    IndirectNested,
    /// An indirect descriptor that is not the last of its chain (split) or not the only one
    /// (packed).
    #[error("indirect descriptor linked to others")]
    IndirectWithNext,
    /// An indirect table whose length is zero or not a multiple of 16.
    #[error("indirect table has a wrong length")]
    IndirectLength,
    /// A descriptor was offered again while it is in flight (seen only when in-flight chains are
    /// tracked).
    #[error("buffer offered twice")]
    OfferedTwice,
    /// A slot names a buffer that does not exist (netmap).
    #[error("buffer index is out of range")]
    BufferOutOfRange,
    /// A slot is longer than a buffer (netmap).
    #[error("length is beyond the buffer")]
    LengthBeyondBuffer,
    /// A frame of several slots takes the whole ring, and its last slot is missing.
    #[error("a frame fills the ring")]
    ChainFillsRing,
    /// The parameters of a netmap client's queue are not valid: magic number, version, header,
    /// number and size of buffers.
    #[error("parameters of the slot queue are not valid")]
    BadParameters,
    /// The buffers of a netmap client are not wholly inside one memory region.
    #[error("buffer pool is not mapped")]
    UnmappedPool,
    /// A memif ring does not start with memif's cookie.
    #[error("ring has a wrong cookie")]
    WrongCookie,
    /// The inflight region is too small, misaligned, of another version, or for another queue size.
    #[error("inflight region does not fit the queue")]
    InflightMismatch,
    /// The inflight region contradicts itself.
    #[error("inflight region is corrupt")]
    InflightCorrupt,
}

/// Reason why no chain was taken although one is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The queue has stopped.
    Fault(QueueFault),
    /// The chain is not translated yet, and left where it is.
    Untranslated,
}

impl From<QueueFault> for Stop {
    fn from(fault: QueueFault) -> Self {
        Self::Fault(fault)
    }
}

impl Stop {
    /// Returns what the taker of a chain gets.
    #[cold]
    pub(super) fn outcome<T>(self) -> Result<Option<T>, QueueFault> {
        match self {
            Self::Fault(fault) => Err(fault),
            Self::Untranslated => Ok(None),
        }
    }
}
