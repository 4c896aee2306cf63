//! The socket: receives whole messages with their descriptors, sends replies, never blocks a
//! thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sys::descriptors;
use sys::foreign::ForeignFd;
use wire::virtio::vhost_user::{FLAG_NEED_REPLY, HEADER_LEN, Header};

use super::answer_pipe::AnswerPipe;
use super::fault::Fault;
use super::message::{MAX_FDS, Message, Reply, request_header};

/// No further flags of a call that receives.
pub(super) const NONE: RecvFlags = RecvFlags::empty();

/// One connected front end.
///
/// A message may arrive a byte at a time; received bytes are kept between calls, and at most one
/// message is in memory. While a reply waits for the front end to read, no further message is taken
/// from the socket.
#[derive(Debug)]
pub struct Connection {
    socket: ForeignFd,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Pipe for replies without a descriptor, when a successor of this process may have to send
    /// them.
    pipe: Option<AnswerPipe>,
}

/// The message that is being received.
#[derive(Debug, Default)]
struct Incoming {
    head: [u8; HEADER_LEN],
    head_len: usize,
    header: Option<Header>,
    payload: Vec<u8>,
    payload_len: usize,
    fds: Vec<ForeignFd>,
}

/// The reply that is being sent.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fd: Option<OwnedFd>,
}

impl Connection {
    /// Takes over a connected stream socket and makes it non-blocking.
    ///
    /// # Errors
    /// When the socket's flags cannot be set.
    pub fn new(socket: impl Into<ForeignFd>) -> std::io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Connection {
            socket,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            pipe: None,
        })
    }

    /// As [`Connection::new`]; replies go through `pipe`, first those that a former process left in
    /// it.
    ///
    /// # Errors
    /// When the socket's flags cannot be set.
    pub fn with_pipe(socket: impl Into<ForeignFd>, pipe: AnswerPipe) -> std::io::Result<Self> {
        let mut connection = Self::new(socket)?;
        connection.pipe = Some(pipe);
        Ok(connection)
    }

    pub(super) fn socket(&self) -> &ForeignFd {
        &self.socket
    }

    /// Ends the connection for the front end, even if other processes have the socket open. A
    /// connection that is only dropped stays open in those processes, with all messages that were
    /// not taken.
    pub fn end(self) {
        self.socket.hang_up();
    }

    /// Returns whether part of a message has been taken from the socket.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.incoming.head_len > 0
    }

    /// Returns whether a reply waits in the pipe.
    #[must_use]
    pub fn has_piped_reply(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| !pipe.is_empty())
    }

    /// Prepares a reply; [`Connection::flush`] sends it.
    ///
    /// # Errors
    /// The pipe does not take it.
    pub fn stage(&mut self, reply: Reply) -> Result<(), Fault> {
        match &mut self.pipe {
            Some(pipe) if reply.fd.is_none() => {
                let bytes = reply.to_bytes();
                pipe.put(&bytes).map_err(|e| Fault::Socket("answer", e))
            }
            _ => {
                self.outgoing.bytes.extend(reply.to_bytes());
                self.outgoing.fd = reply.fd;
                Ok(())
            }
        }
    }

    /// Returns the next message, or `None` when it is not complete yet or a reply has to leave
    /// first. Call it again when the socket is readable, or writable while
    /// [`Connection::wants_write`].
    ///
    /// # Errors
    /// The end of the connection. All descriptors that came with an unfinished message are closed.
    pub fn recv(&mut self) -> Result<Option<(Message, Vec<ForeignFd>)>, Fault> {
        if !self.flush()? {
            return Ok(None);
        }
        let result = self.incoming.advance(&self.socket);
        if result.is_err() {
            self.incoming = Incoming::default();
        }
        result
    }

    /// Sends a reply as far as the socket takes it; the rest goes with [`Connection::flush`].
    ///
    /// # Errors
    /// When the front end is gone.
    pub fn send(&mut self, reply: Reply) -> Result<(), Fault> {
        self.stage(reply)?;
        self.flush().map(|_| ())
    }

    /// Sends the rest of a reply; returns whether nothing is left.
    ///
    /// # Errors
    /// When the front end is gone.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        if let Some(pipe) = &mut self.pipe {
            let done = pipe.drain(&self.socket, usize::MAX);
            if !done.map_err(|e| Fault::Socket("send", e))? {
                return Ok(false);
            }
        }
        self.outgoing.advance(&self.socket)
    }

    /// Returns whether part of a reply waits until the socket is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.outgoing.bytes.is_empty() || self.has_piped_reply()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Incoming {
    fn advance(&mut self, socket: &ForeignFd) -> Result<Option<(Message, Vec<ForeignFd>)>, Fault> {
        let Some(header) = self.read_header(socket)? else {
            return Ok(None);
        };
        if !self.read_payload(socket)? {
            return Ok(None);
        }
        let done = std::mem::take(self);
        let message = Message {
            code: header.code,
            need_reply: header.flags & FLAG_NEED_REPLY != 0,
            payload: done.payload,
        };
        Ok(Some((message, done.fds)))
    }

    fn read_header(&mut self, socket: &ForeignFd) -> Result<Option<Header>, Fault> {
        if let Some(header) = self.header {
            return Ok(Some(header));
        }
        while self.head_len < HEADER_LEN {
            let started = self.head_len > 0;
            match receive(socket, &mut self.head[self.head_len..], &mut self.fds, NONE)? {
                None => return Ok(None),
                Some(0) if started => return Err(Fault::ClosedMidMessage),
                Some(0) => return Err(Fault::Closed),
                Some(n) => self.head_len += n,
            }
        }
        let header = request_header(self.head)?;
        self.payload = vec![0; header.size as usize];
        self.header = Some(header);
        Ok(Some(header))
    }

    fn read_payload(&mut self, socket: &ForeignFd) -> Result<bool, Fault> {
        while self.payload_len < self.payload.len() {
            let room = &mut self.payload[self.payload_len..];
            match receive(socket, room, &mut self.fds, NONE)? {
                None => return Ok(false),
                Some(0) => return Err(Fault::ClosedMidMessage),
                Some(n) => self.payload_len += n,
            }
        }
        Ok(true)
    }
}

impl Outgoing {
    fn advance(&mut self, socket: &OwnedFd) -> Result<bool, Fault> {
        while self.sent < self.bytes.len() {
            let fd: Vec<_> = self.fd.iter().map(AsFd::as_fd).collect();
            match descriptors::send(socket, &self.bytes[self.sent..], &fd, SendFlags::DONTWAIT) {
                // The descriptor left with the first byte.
                Ok(n) => {
                    self.sent += n;
                    self.fd = None;
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(Fault::Socket("send", errno)),
            }
        }
        *self = Outgoing::default();
        Ok(true)
    }
}

/// Reads the available bytes into `buf`, with more flags, and appends descriptors to `fds`. `None`:
/// nothing available now; `Some(0)`: the end. Received descriptors are close-on-exec, and closed
/// when they are too many (CVE-2022-0669).
pub(super) fn receive(
    socket: &ForeignFd,
    buf: &mut [u8],
    fds: &mut Vec<ForeignFd>,
    more: RecvFlags,
) -> Result<Option<usize>, Fault> {
    let (into, flags) = ((&mut *fds, socket.author()), RecvFlags::DONTWAIT | more);
    let received = descriptors::receive(socket, buf, into, flags);
    let Some(received) = received.map_err(|errno| Fault::Socket("receive", errno))? else {
        return Ok(None);
    };
    if received.lost_descriptors {
        return Err(Fault::FdsTruncated);
    }
    if fds.len() > MAX_FDS {
        return Err(Fault::TooManyFds(fds.len()));
    }
    Ok(Some(received.bytes))
}
