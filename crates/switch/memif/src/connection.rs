//! The socket: whole messages with their descriptors, which stay in the socket until they have been
//! served.
//!
//! A message of a `SOCK_SEQPACKET` socket comes whole or not at all, and its descriptors come with
//! it. A process that dies while it serves one leaves it in the socket for its successor. Messages
//! to the client go through an [`AnswerPipe`]: what is in it has not been sent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use sys::descriptors;
use sys::foreign::ForeignFd;
use virtio::vhost_user::{AnswerPipe, Fault, Message, Reply};

use crate::message::{self, MESSAGE_LEN, code};

/// One connected client.
#[derive(Debug)]
pub struct Connection {
    socket: ForeignFd,
    pipe: AnswerPipe,
}

impl Connection {
    /// Takes over a connected socket and makes it non-blocking. Messages go through `pipe`, first
    /// those that a former process left in it.
    ///
    /// # Errors
    /// When the socket's flags cannot be set.
    pub fn new(socket: impl Into<ForeignFd>, pipe: AnswerPipe) -> std::io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, pipe })
    }

    /// Reads the next message and leaves it in the socket. `None`: there is none, or a message to
    /// the client has to leave first.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn peek(&mut self) -> Result<Option<(Message, Vec<ForeignFd>)>, Fault> {
        if !self.flush()? {
            return Ok(None);
        }
        self.receive(RecvFlags::PEEK)
    }

    /// Takes the message that [`Connection::peek`] returned from the socket. Its descriptors in the
    /// socket are closed.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn consume(&mut self) -> Result<(), Fault> {
        match self.receive(RecvFlags::empty())? {
            Some(_) => Ok(()),
            None => Err(Fault::ClosedMidMessage),
        }
    }

    /// After a restart: takes the message `answered` from the socket, if it is the next one and its
    /// answer waits in the pipe. It has been served then.
    ///
    /// # Errors
    /// As [`Connection::peek`].
    pub fn skip_answered(&mut self, answered: &Message) -> Result<(), Fault> {
        if self.pipe.is_empty() {
            return Ok(());
        }
        match self.receive(RecvFlags::PEEK)? {
            Some((next, _)) if next == *answered => self.consume(),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, more: RecvFlags) -> Result<Option<(Message, Vec<ForeignFd>)>, Fault> {
        // One byte more shows that a message is too long.
        let (mut bytes, mut fds) = ([0; MESSAGE_LEN + 1], Vec::new());
        let flags = RecvFlags::DONTWAIT | more;
        let into = (&mut fds, self.socket.author());
        let received = descriptors::receive(&self.socket, &mut bytes, into, flags);
        let Some(received) = received.map_err(|e| Fault::Socket("receive", e))? else {
            return Ok(None);
        };
        if received.lost_descriptors {
            return Err(Fault::FdsTruncated);
        }
        match (received.bytes, bytes.first_chunk()) {
            (0, _) => Err(Fault::Closed),
            (MESSAGE_LEN, Some(whole)) => Ok(Some((message::from_bytes(whole), fds))),
            (got, _) => Err(Fault::WrongSize {
                name: "message",
                got,
                expected: MESSAGE_LEN.to_string(),
            }),
        }
    }

    /// Prepares a message; [`Connection::flush`] sends it.
    ///
    /// # Errors
    /// The pipe does not take it.
    pub fn stage(&mut self, reply: &Reply) -> Result<(), Fault> {
        let bytes = message::to_bytes(reply.code, &reply.payload);
        let put = self.pipe.put(&bytes);
        put.map_err(|e| Fault::Socket("answer", e))
    }

    /// Sends what is prepared; returns whether nothing is left.
    ///
    /// # Errors
    /// When the client is gone.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        let drained = self.pipe.drain(&self.socket, MESSAGE_LEN);
        drained.map_err(|e| Fault::Socket("send", e))
    }

    /// Returns whether a message waits until the socket is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.pipe.is_empty()
    }

    /// Ends the connection for the client, even if other processes have the socket open; with a
    /// reason, in a `DISCONNECT`.
    pub fn end(self, reason: Option<&str>) {
        if let Some(reason) = reason {
            say_why(&self.socket, reason);
        }
        self.socket.hang_up();
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Rejects a client that has just connected, with a reason.
pub fn reject(socket: ForeignFd, reason: &str) {
    say_why(&socket, reason);
    socket.hang_up();
}

fn say_why(socket: &OwnedFd, reason: &str) {
    let reply = message::disconnect(reason);
    let bytes = message::to_bytes(code::DISCONNECT, &reply.payload);
    // A client that does not read misses it; the port's status shows the reason.
    let _ = descriptors::send(socket, &bytes, &[], SendFlags::DONTWAIT);
}
