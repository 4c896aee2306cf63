//! Messages over TCP: each has its length in two bytes in front (RFC 1035, section 4.2.2).

/// Bytes of the longest message with its length.
const LONGEST: usize = 2 + u16::MAX as usize;

/// A message of no bytes, or more bytes than one message that were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a stream of DNS messages")]
pub struct StreamError;

/// Messages of a connection, as their bytes come.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
}

impl Stream {
    /// Adds bytes that were read.
    ///
    /// # Errors
    /// [`StreamError`] if more bytes wait than the longest message has; the caller closes the
    /// connection. Take each [`Stream::message`] before.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        if bytes.len() > self.room() {
            return Err(StreamError);
        }
        self.bytes.extend(bytes);
        Ok(())
    }

    /// Returns how many bytes [`Stream::push`] takes.
    #[must_use]
    pub fn room(&self) -> usize {
        LONGEST.saturating_sub(self.bytes.len())
    }

    /// Takes the next message that is whole.
    ///
    /// # Errors
    /// [`StreamError`] for a length of 0; the caller closes the connection.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        let Some(len) = self.bytes.first_chunk::<2>() else {
            return Ok(None);
        };
        let end = 2 + usize::from(u16::from_be_bytes(*len));
        if end == 2 {
            return Err(StreamError);
        }
        if self.bytes.len() < end {
            return Ok(None);
        }
        let message = self.bytes[2..end].to_vec();
        self.bytes.drain(..end);
        Ok(Some(message))
    }
}

/// A message with its length in front; `None` for one that is too long or empty.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(message.len()).ok().filter(|len| *len > 0)?;
    Some([&len.to_be_bytes()[..], message].concat())
}
