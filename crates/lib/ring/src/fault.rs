//! Errors of rings and their ends.

use thiserror::Error;

/// The peer broke the rules of the ring. The ring is dead on this side; the caller drops it and
/// requests a new one from the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingFault {
    /// The peer's index says that more bytes are in the ring than it can hold, or it went back.
    #[error("the peer's ring index jumped out of the ring")]
    IndexJump,
    /// The peer's index is not a multiple of the record alignment.
    #[error("the peer's ring index is not a multiple of 8")]
    IndexAlignment,
    /// A record claims more bytes than the producer has published.
    #[error("a ring record is longer than what was published")]
    RecordLength,
}

/// Reason why a ring could not be created or attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// The mapping does not start on an 8-byte boundary.
    #[error("the ring's memory is not aligned to 8 bytes")]
    Misaligned,
    /// The mapping is shorter than the header and the data it should hold.
    #[error("the ring's memory is too short for its capacity")]
    TooShort,
    /// The capacity is no power of two between 64 bytes and 1 GiB.
    #[error("the ring's capacity is not a power of two between 64 bytes and 1 GiB")]
    Capacity,
    /// The memory holds no ring (or one that its creator has not finished).
    #[error("the memory holds no ring")]
    Magic,
    /// The ring was made by another version of this ABI.
    #[error("the ring has another version of the layout")]
    Version,
    /// The ring exists and its indices contradict each other.
    #[error("the ring is broken: {0}")]
    Fault(#[from] RingFault),
}

/// Reason why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// Not enough room now; the consumer may make room later.
    #[error("the ring is full")]
    Full,
    /// The record is longer than this ring can ever hold.
    #[error("the record is longer than the ring")]
    TooLong,
    /// The ring is dead.
    #[error(transparent)]
    Fault(#[from] RingFault),
}
