//! The messages of a memif connection.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
    socketpair,
};

/// Types of messages.
pub mod code {
    /// Acknowledges.
    pub const ACK: u32 = 1;
    /// From the server, first.
    pub const HELLO: u32 = 2;
    /// Interface, mode, secret, name.
    pub const INIT: u32 = 3;
    /// With a file.
    pub const ADD_REGION: u32 = 4;
    /// With an event descriptor.
    pub const ADD_RING: u32 = 5;
    /// All is said.
    pub const CONNECT: u32 = 6;
    /// From the server, last.
    pub const CONNECTED: u32 = 7;
    /// With a reason.
    pub const DISCONNECT: u32 = 8;
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its type.
    pub code: u32,
    /// Its other 126 bytes.
    pub payload: Vec<u8>,
}

impl Said {
    /// The reason of a `DISCONNECT`.
    #[must_use]
    pub fn reason(&self) -> String {
        let text = self.payload[4..100].split(|byte| *byte == 0).next();
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    }
}

/// One connection.
#[derive(Debug)]
pub struct Dialog {
    socket: OwnedFd,
    timeout: Duration,
}

impl Dialog {
    /// Connects to a listening server; retries until `timeout` while there is no listener.
    ///
    /// # Errors
    /// The last refusal.
    pub fn connect(path: &Path, timeout: Duration) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let end = Instant::now() + timeout;
        loop {
            let socket = new_socket()?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(Self { socket, timeout }),
                Err(e) if Instant::now() >= end => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// A connection and its other end.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn pair(timeout: Duration) -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self { socket, timeout }, other))
    }

    /// Sends a message of 128 bytes.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn send(&self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut bytes = (code as u16).to_ne_bytes().to_vec();
        bytes.extend(payload);
        bytes.resize(128, 0);
        let fds: Vec<_> = fd.into_iter().collect();
        self.send_bytes(&bytes, &fds)
    }

    /// Sends any bytes as one message.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Waits for the next message; `None` at the end of the connection.
    ///
    /// # Errors
    /// Nothing came in time, or not 128 bytes.
    pub fn receive(&self) -> io::Result<Option<Said>> {
        let timeout = Timespec::try_from(self.timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; 129];
        let mut none = RecvAncillaryBuffer::default();
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(&self.socket, buffers, &mut none, RecvFlags::empty())?.bytes {
            0 => Ok(None),
            128 => Ok(Some(Said {
                code: u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])),
                payload: bytes[2..128].to_vec(),
            })),
            got => Err(io::Error::other(format!("a message of {got} bytes"))),
        }
    }

    /// Waits for a message of this type.
    ///
    /// # Errors
    /// As [`Dialog::receive`]; another message, or the end.
    pub fn expect(&self, code: u32) -> io::Result<Said> {
        match self.receive()? {
            Some(said) if said.code == code => Ok(said),
            Some(said) if said.code == code::DISCONNECT => {
                Err(io::Error::other(format!("disconnected: {}", said.reason())))
            }
            Some(said) => Err(io::Error::other(format!("message {}", said.code))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl AsFd for Dialog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}
