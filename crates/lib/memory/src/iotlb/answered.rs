//! The message of the table that was answered last. It is in the table's file: a successor of the
//! process finds it there, and no other process need know of each message.

use std::os::fd::OwnedFd;

use super::AttachError;
use super::file::{LastAnswer, Table};
use super::sync::Ordering;

/// Bytes of a message's content (`struct vhost_iotlb_msg`).
const MESSAGE: usize = 32;
/// Another message was answered since.
const OTHER: u64 = 0;
/// The message was answered, and may still be in its socket.
const WAITS: u64 = 1;
/// It was answered and taken from its socket.
const TAKEN: u64 = 2;

/// The message of a connection that was answered last. Its answer may not have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredMessage {
    /// One that is no message of the table.
    Other,
    /// An UPDATE or INVALIDATE with this content, which may still be in its socket.
    Waits([u8; MESSAGE]),
    /// An UPDATE or INVALIDATE, which was taken from its socket.
    Taken,
}

impl AnsweredMessage {
    /// Reads it from the file of a table.
    ///
    /// # Errors
    /// A file that is not such a table.
    pub fn read(file: &OwnedFd) -> Result<Self, AttachError> {
        Ok(Table::map(file)?.head().answer.load())
    }
}

impl LastAnswer {
    fn load(&self) -> AnsweredMessage {
        match self.state.load(Ordering::Acquire) {
            WAITS => {
                let mut message = [0; MESSAGE];
                let words = message.as_chunks_mut().0.iter_mut().zip(&self.message);
                words.for_each(|(bytes, word)| *bytes = word.load(Ordering::Relaxed).to_ne_bytes());
                AnsweredMessage::Waits(message)
            }
            TAKEN => AnsweredMessage::Taken,
            _ => AnsweredMessage::Other,
        }
    }

    /// Stores it such that a process that dies in between leaves [`AnsweredMessage::Other`].
    pub(super) fn store(&self, answered: AnsweredMessage) {
        let state = match answered {
            AnsweredMessage::Other => OTHER,
            AnsweredMessage::Taken => TAKEN,
            AnsweredMessage::Waits(message) => {
                self.state.store(OTHER, Ordering::Release);
                let words = message.as_chunks().0.iter().zip(&self.message);
                words.for_each(|(bytes, word)| {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
                });
                WAITS
            }
        };
        self.state.store(state, Ordering::Release);
    }
}
