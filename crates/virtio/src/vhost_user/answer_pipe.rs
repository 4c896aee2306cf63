//! An answer on its way, in the hands of the kernel.
//!
//! A process that dies between sending an answer and noting that it did would leave its successor to guess: to send
//! it again would be one answer too many, not to send it would leave the front end waiting. So the answer is
//! written to a pipe, and one `splice` moves it from there to the socket. Whatever is in the pipe has not been
//! sent, and what is not there has.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The pipe of one connection. Both ends outlive the process if somebody keeps them.
#[derive(Debug)]
pub struct AnswerPipe {
    from: OwnedFd,
    to: OwnedFd,
    /// Bytes in it.
    waiting: usize,
}

impl AnswerPipe {
    /// An empty one.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new() -> io::Result<Self> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            from,
            to,
            waiting: 0,
        })
    }

    /// The one that a former process had, with what it left in it.
    ///
    /// # Errors
    /// A descriptor that is no pipe.
    pub fn again(from: OwnedFd, to: OwnedFd) -> io::Result<Self> {
        let waiting = rustix::io::ioctl_fionread(&from)?;
        Ok(Self {
            from,
            to,
            waiting: usize::try_from(waiting).map_err(io::Error::other)?,
        })
    }

    /// The end that is read and the end that is written.
    #[must_use]
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.from.as_fd(), self.to.as_fd()]
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Puts an answer in, which is shorter than what a pipe takes at once (`PIPE_BUF`).
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let written = rustix::io::writev(&self.to, &[IoSlice::new(bytes)])?;
        self.waiting += written;
        Ok(())
    }

    /// Moves what is in it to the socket, as far as that takes it; whether nothing is left.
    pub(super) fn drain(&mut self, socket: &OwnedFd) -> Result<bool, Errno> {
        while self.waiting > 0 {
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(&self.from, None, socket, None, self.waiting, flags) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(moved) => self.waiting = self.waiting.saturating_sub(moved),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }
}
