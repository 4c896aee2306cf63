//! Why a connection ends, and why a message is refused.

use rustix::io::Errno;

use super::message::{MAX_FDS, MAX_PAYLOAD};

/// Why a connection to a front end is over. The text is for people: it says what came and what was
/// expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The front end closed the connection between two messages: the normal end.
    #[error("the front end closed the connection")]
    Closed,
    /// The front end closed the connection within a message.
    #[error("the front end closed the connection in the middle of a message")]
    ClosedMidMessage,
    /// The socket failed.
    #[error("vhost-user socket: {0} failed: {1}")]
    Socket(&'static str, Errno),
    /// Descriptors were lost on the way: more than a message may carry, or none left in this process.
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
        /// How many came.
        got: usize,
        /// What the message's row says.
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
        /// What its header says.
        size: u32,
    },
    /// A payload whose size is not the message's.
    #[error("{name} with a payload of {got} bytes, expected {expected}")]
    WrongSize {
        /// Name of the message.
        name: &'static str,
        /// Bytes that came.
        got: usize,
        /// What the message's row says.
        expected: String,
    },
    /// A message that is well formed, but refused, from a front end that did not ask for an
    /// acknowledgement and so cannot be told.
    #[error("{name} refused: {reason}")]
    Refused {
        /// Name of the message.
        name: String,
        /// Why.
        reason: String,
    },
}

impl Fault {
    /// Whether this is the normal end of a connection.
    #[must_use]
    pub fn is_close(&self) -> bool {
        matches!(self, Fault::Closed)
    }
}

/// Why a handler does not do what a message asks. Becomes a non-zero acknowledgement or a
/// [`Fault::Refused`].
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl<T: Into<String>> From<T> for Refusal {
    fn from(reason: T) -> Self {
        Refusal(reason.into())
    }
}
