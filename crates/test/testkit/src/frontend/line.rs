//! A socket, and the conversations on it.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{FLAG_NEED_REPLY, FLAG_REPLY, FrontError, Message, VERSION, wire};

/// Requests that are sent before the first of them is acknowledged.
const AHEAD: usize = 32;

/// The front end's socket. A request and its answer are one conversation, and others wait until it
/// is over: so threads can share the socket.
#[derive(Debug)]
pub struct Line {
    socket: UnixStream,
    conversation: Mutex<()>,
}

impl Line {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            conversation: Mutex::new(()),
        }
    }

    /// The socket, for conversations by hand.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a request without an answer of its own, and takes the acknowledgement if there is one.
    pub(super) fn tell(
        &self,
        code: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        acknowledged: bool,
    ) -> Result<(), FrontError> {
        let _conversation = self.conversation();
        self.request(code, body, fds, acknowledged)?;
        if acknowledged {
            self.acknowledgement(code)?;
        }
        Ok(())
    }

    /// Sends requests without files, so many ahead of their acknowledgements as surely fit into
    /// the socket.
    ///
    /// # Errors
    /// When the socket fails, or a request is refused.
    pub fn tell_all<B: AsRef<[u8]>>(
        &self,
        code: u32,
        bodies: &[B],
        acknowledged: bool,
    ) -> Result<(), FrontError> {
        let _conversation = self.conversation();
        // All acknowledgements are taken, also when one is a refusal.
        let mut said = Ok(());
        for chunk in bodies.chunks(AHEAD) {
            for body in chunk {
                self.request(code, body.as_ref(), &[], acknowledged)?;
            }
            let answers = chunk.iter().filter(|_| acknowledged);
            said = answers.fold(said, |said, _| said.and(self.acknowledgement(code)));
        }
        said
    }

    /// Sends a request that has an answer and returns it.
    pub(super) fn ask(
        &self,
        code: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, FrontError> {
        let _conversation = self.conversation();
        self.request(code, body, fds, false)?;
        self.answer(code)
    }

    fn conversation(&self) -> MutexGuard<'_, ()> {
        self.conversation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn request(
        &self,
        code: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        acknowledged: bool,
    ) -> Result<(), FrontError> {
        let flags = VERSION | if acknowledged { FLAG_NEED_REPLY } else { 0 };
        wire::send(&self.socket, &wire::packed(code, flags, body), fds)
    }

    fn acknowledgement(&self, code: u32) -> Result<(), FrontError> {
        match self.answer(code)?.u64(code)? {
            0 => Ok(()),
            refusal => Err(FrontError::Refused {
                request: code,
                code: refusal,
            }),
        }
    }

    fn answer(&self, code: u32) -> Result<Message, FrontError> {
        let message = wire::receive(&self.socket).map_err(|e| match e {
            FrontError::Timeout(_) => FrontError::Timeout(code),
            other => other,
        })?;
        if message.request != code {
            return Err(FrontError::bad(code, &message, "another code"));
        }
        if message.flags & 3 != VERSION || message.flags & FLAG_REPLY == 0 {
            return Err(FrontError::bad(code, &message, "not a reply of version 1"));
        }
        Ok(message)
    }
}
