//! Reasons why a connection ends and why a message is refused.

use rustix::io::Errno;

use super::message::{MAX_FDS, MAX_PAYLOAD};

/// Reason why the connection to a front end ended. The text has the received and the expected
/// values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The front end closed the connection between two messages: the normal end.
    #[error("the front end closed the connection")]
    Closed,
    /// The front end said that it ends the connection (memif): a normal end, too.
    #[error("the front end ended the connection: {0}")]
    Left(String),
    /// The front end closed the connection within a message.
    #[error("the front end closed the connection in the middle of a message")]
    ClosedMidMessage,
    /// The socket failed.
    #[error("socket of the front end: {0} failed: {1}")]
    Socket(&'static str, Errno),
    /// Descriptors were lost: more than a message may carry, or none left in this process.
    #[error("file descriptors of a message were cut off: more than {MAX_FDS}, or none left here")]
    FdsTruncated,
    /// More descriptors than any message carries, spread over several pieces.
    #[error("{0} file descriptors with one message, no message carries more than {MAX_FDS}")]
    TooManyFds(usize),
    /// A number of descriptors that this message does not have.
    #[error("{name} with {got} file descriptors, expected {expected}")]
    WrongFds {
        /// Name of the message.
        name: &'static str,
        /// Number of descriptors that came.
        got: usize,
        /// Number that the message's row allows.
        expected: &'static str,
    },
    /// The version in the header is not 1.
    #[error("vhost-user version {0}, only version 1 exists")]
    Version(u32),
    /// A request with the reply flag.
    #[error("message {0} is marked as a reply, nothing was asked")]
    UnexpectedReply(u32),
    /// A payload longer than any message has.
    #[error("message {code} announces {size} bytes of payload, at most {MAX_PAYLOAD} are read")]
    Oversized {
        /// Code of the message.
        code: u32,
        /// Size in its header.
        size: u32,
    },
    /// A payload whose size is not the message's.
    #[error("{name} with a payload of {got} bytes, expected {expected}")]
    WrongSize {
        /// Name of the message.
        name: &'static str,
        /// Bytes that came.
        got: usize,
        /// Size that the message's row allows.
        expected: String,
    },
    /// A queue broke a rule, and the protocol has no message about a single queue (memif).
    #[error("queue {index} stopped: {reason}")]
    QueueStopped {
        /// Index of the queue.
        index: u16,
        /// Reason of the stop.
        reason: String,
    },
    /// A message that is well formed, but refused, from a front end that did not request an
    /// acknowledgement and so cannot be notified.
    #[error("{name} refused: {reason}")]
    Refused {
        /// Name of the message.
        name: String,
        /// Reason of the refusal.
        reason: String,
    },
}

impl Fault {
    /// Returns whether this is the normal end of a connection.
    #[must_use]
    pub fn is_close(&self) -> bool {
        matches!(self, Fault::Closed | Fault::Left(_))
    }
}

/// Reason why a handler refuses a message. Becomes a non-zero acknowledgement or a
/// [`Fault::Refused`].
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl<T: Into<String>> From<T> for Refusal {
    fn from(reason: T) -> Self {
        Refusal(reason.into())
    }
}
