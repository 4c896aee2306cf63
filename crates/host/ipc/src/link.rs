//! A message socket between two of Lasthop's processes.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::descriptors;
use sys::foreign::{Author, ForeignFd};

use crate::timeouts;

/// Most bytes of one message; a longer one cannot be sent.
pub const MAX_MESSAGE: usize = 64 << 20;

/// Most bytes of a datagram; a longer message travels in a memory file.
const MAX_INLINE: usize = 128 * 1024;
/// First byte of a datagram: the message follows.
const INLINE: u8 = 0;
/// First byte of a datagram: the message is in a memory file, the last of its descriptors.
const IN_FILE: u8 = 1;

/// One end: sends `Out`, receives `In`.
#[derive(Debug)]
pub struct Link<Out, In> {
    fd: ForeignFd,
    buffer: Vec<u8>,
    types: PhantomData<fn(Out) -> In>,
}

/// Result of a receive.
#[derive(Debug)]
pub enum LinkEvent<In> {
    /// A message with its descriptors. The peer is a process of ours, and may pass on what others
    /// have sent.
    Message(In, Vec<ForeignFd>),
    /// The peer has closed its end.
    Closed,
    /// Nothing yet; only on a non-blocking link.
    Nothing,
}

/// Creates two connected ends, close-on-exec, as bare descriptors to pass to processes.
///
/// # Errors
/// The error of the system call.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

impl<Out: Serialize, In: DeserializeOwned> Link<Out, In> {
    /// Wraps one end of [`pair`].
    #[must_use]
    pub fn new(fd: impl Into<ForeignFd>) -> Self {
        let fd = fd.into().of(Author::ours());
        // Room for a few of the longest messages; the system may grant less, then senders wait.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, 4 * MAX_INLINE);
        Self {
            fd,
            buffer: vec![0; MAX_INLINE + 1],
            types: PhantomData,
        }
    }

    /// Makes [`Link::recv`] return at once when there is no message. [`Link::send`] still waits for
    /// room.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, true)?)
    }

    /// Sends one message; waits up to a second for room.
    ///
    /// # Errors
    /// The peer is gone, does not read, or the message is too long.
    pub fn send(&self, message: &Out, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_or(message, fds, || self.wait_for_room())
    }

    /// Sends one message without waiting, to a peer that may never read.
    ///
    /// # Errors
    /// As [`Link::send`], and [`io::ErrorKind::WouldBlock`] when there is no room. The link must be
    /// non-blocking.
    pub fn send_at_once(&self, message: &Out, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_or(message, fds, || Err(Errno::AGAIN.into()))
    }

    fn send_or(
        &self,
        message: &Out,
        fds: &[BorrowedFd<'_>],
        no_room: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = postcard::to_extend(message, vec![INLINE]).map_err(io::Error::other)?;
        if bytes.len() <= MAX_INLINE {
            return self.send_datagram(&bytes, fds, no_room);
        }
        let file = to_file(&bytes[1..])?;
        let mut fds = fds.to_vec();
        fds.push(file.as_fd());
        self.send_datagram(&[IN_FILE], &fds, no_room)
    }

    fn send_datagram(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        no_room: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match descriptors::send(&self.fd, bytes, fds, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => no_room()?,
                // The peer is gone and has left messages unread.
                Err(Errno::CONNRESET) => return Err(Errno::PIPE.into()),
                Err(Errno::TOOBIG) => {
                    let text = "too many descriptors";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait_for_room(&self) -> io::Result<()> {
        let until = Instant::now() + timeouts::LINK_ROOM;
        if sys::wait::ready(&self.fd, PollFlags::OUT, Some(until))?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Receives one message. Descriptors arrive close-on-exec.
    ///
    /// # Errors
    /// The error of the system call, or a message that is not an `In`.
    pub fn recv(&mut self) -> io::Result<LinkEvent<In>> {
        self.recv_within(MAX_MESSAGE)
    }

    /// Receives one message from a peer that may try to exhaust memory: a message is decoded only
    /// if it has no more than `most` bytes. Even a short message may take much more memory than
    /// bytes.
    ///
    /// # Errors
    /// As [`Link::recv`], and a message that is longer.
    pub fn recv_within(&mut self, most: usize) -> io::Result<LinkEvent<In>> {
        let mut fds = Vec::new();
        let Some(got) = self.receive(&mut fds)? else {
            return Ok(LinkEvent::Nothing);
        };
        let message = match &self.buffer[..got] {
            [] => return Ok(LinkEvent::Closed),
            [INLINE, bytes @ ..] if bytes.len() <= most => parse(bytes)?,
            [IN_FILE] => parse(&from_file(fds.pop(), most)?)?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(LinkEvent::Message(message, fds))
    }

    /// Receives a datagram. A peer that dies with unread messages resets the connection: the system
    /// reports that once, as an end, before the last messages of the peer. These are read all the
    /// same.
    fn receive(&mut self, fds: &mut Vec<ForeignFd>) -> io::Result<Option<usize>> {
        let (flags, author) = (RecvFlags::empty(), self.fd.author());
        let mut receive =
            || descriptors::receive(&self.fd, &mut self.buffer, (&mut *fds, author), flags);
        Ok(match receive()? {
            Some(end) if end.bytes == 0 => Some(receive()?.map_or(0, |got| got.bytes)),
            got => got.map(|got| got.bytes),
        })
    }
}

fn to_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.len() > MAX_MESSAGE {
        let text = "message too long";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    sys::file::constant("lasthop-message", bytes).map(OwnedFd::from)
}

/// Reads a message that came in a file. It has to be a sealed memory file: a read of any other may
/// block, and a file that can still be written is not one message.
fn from_file(fd: Option<ForeignFd>, most: usize) -> io::Result<Vec<u8>> {
    let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
    if !sys::file::is_constant(&fd)? {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let file = File::from(fd.vouch());
    let len = sys::file::len(&file)?;
    if len > most.min(MAX_MESSAGE) as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Returns a function that sends and receives a message that is too long for a datagram, and
/// returns whether it is the same. A process needs system calls of its own for that.
///
/// # Panics
/// When there are no sockets.
#[cfg(any(test, feature = "test-utils"))]
pub fn passes_a_long_message() -> impl FnOnce() -> bool {
    let (here, there) = pair().expect("sockets");
    let (sender, message) = (Link::<_, ()>::new(here), vec![0_u8; 2 * MAX_INLINE]);
    let mut receiver: Link<(), Vec<u8>> = Link::new(there);
    move || {
        let is_sent = sender.send(&message, &[]).is_ok();
        let got = receiver.recv();
        is_sent && matches!(got, Ok(LinkEvent::Message(got, _)) if got == message)
    }
}

/// Parses a message without trailing bytes.
fn parse<In: DeserializeOwned>(bytes: &[u8]) -> io::Result<In> {
    match postcard::take_from_bytes(bytes).map_err(io::Error::other)? {
        (message, []) => Ok(message),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl<Out, In> AsFd for Link<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
