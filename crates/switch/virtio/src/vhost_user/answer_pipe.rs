//! A pipe that holds a reply until the kernel moves it to the socket.
//!
//! A process that dies between sending a reply and recording that it did leaves its successor in
//! doubt: a second reply is one too many, and without a reply the front end waits. So the reply is
//! written to a pipe, and one `splice` moves it from there to the socket. Bytes in the pipe have
//! not been sent; bytes that left it have.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The pipe of one connection. Both ends outlive the process if another process holds them.
#[derive(Debug)]
pub struct AnswerPipe {
    from: OwnedFd,
    to: OwnedFd,
    /// Number of bytes in the pipe.
    waiting: usize,
}

impl AnswerPipe {
    /// Creates an empty pipe.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new() -> io::Result<Self> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            from,
            to,
            waiting: 0,
        })
    }

    /// Takes over the pipe of a former process, with the bytes that are left in it.
    ///
    /// # Errors
    /// A descriptor that is not a pipe.
    pub fn again(from: OwnedFd, to: OwnedFd) -> io::Result<Self> {
        let waiting = rustix::io::ioctl_fionread(&from)?;
        Ok(Self {
            from,
            to,
            waiting: usize::try_from(waiting).map_err(io::Error::other)?,
        })
    }

    /// Returns the end that is read and the end that is written.
    #[must_use]
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.from.as_fd(), self.to.as_fd()]
    }

    /// Returns whether the pipe is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Writes a reply, which is shorter than the size that a pipe takes at once (`PIPE_BUF`).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let written = rustix::io::writev(&self.to, &[IoSlice::new(bytes)])?;
        self.waiting += written;
        Ok(())
    }

    /// Moves the bytes to the socket, as far as it takes them, and at most `piece` at once: on a
    /// socket with messages, each piece becomes one. Returns whether the pipe is empty.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn drain(&mut self, socket: &OwnedFd, piece: usize) -> Result<bool, Errno> {
        while self.waiting > 0 {
            let (len, flags) = (self.waiting.min(piece), SpliceFlags::NONBLOCK);
            match rustix::pipe::splice(&self.from, None, socket, None, len, flags) {
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
