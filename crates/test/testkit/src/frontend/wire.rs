//! Messages on the socket.
//!
//! ```text
//! | request u32 | flags u32: version 1, reply 4, need_reply 8 | size u32 | body ... |   files attached
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::FrontError;

/// The protocol version in the flags.
pub const VERSION: u32 = 1;
/// The message is an answer.
pub const FLAG_REPLY: u32 = 4;
/// The message wants an acknowledgement.
pub const FLAG_NEED_REPLY: u32 = 8;
/// Most files that can be attached here; more than any message may carry.
pub const MAX_FDS: usize = 32;
/// Longest body that is believed.
const MAX_BODY: u32 = 1 << 16;

/// Request codes of the front end.
#[allow(missing_docs, reason = "the names are those of the specification")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const IOTLB_MSG: u32 = 22;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// A message as it was received.
#[derive(Debug)]
pub struct Message {
    /// Its code.
    pub request: u32,
    /// Its flags.
    pub flags: u32,
    /// Its body.
    pub body: Vec<u8>,
    /// The files that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The body as one 64-bit number.
    ///
    /// # Errors
    /// When it has another size; `asked` is for the error's text.
    pub fn u64(&self, asked: u32) -> Result<u64, FrontError> {
        let bytes = self.body.as_slice().try_into();
        bytes
            .map(u64::from_le_bytes)
            .map_err(|_| FrontError::bad(asked, self, "not 8 bytes"))
    }
}

/// Returns a message as it goes over the socket.
#[must_use]
pub fn packed(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [code, flags, body.len() as u32].map(u32::to_le_bytes);
    [&header.concat(), body].concat()
}

pub(crate) fn send(
    socket: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), FrontError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(
            control.push(SendAncillaryMessage::ScmRights(fds)),
            "at most {MAX_FDS} files"
        );
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let iov = [IoSlice::new(&bytes[sent..])];
        match rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::NOSIGNAL) {
            Ok(n) => {
                sent += n;
                control.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                return Err(FrontError::Closed);
            }
            Err(e) => return Err(FrontError::Io(e.into())),
        }
    }
    Ok(())
}

pub(crate) fn receive(socket: &UnixStream) -> Result<Message, FrontError> {
    let mut header = [0; 12];
    let (n, fds) = receive_head(socket, &mut header)?;
    read_rest(socket, &mut header[n..])?;
    let field = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let mut message = Message {
        request: field(0),
        flags: field(4),
        body: Vec::new(),
        fds,
    };
    if field(8) > MAX_BODY {
        return Err(FrontError::bad(
            message.request,
            &message,
            "a body beyond all bounds",
        ));
    }
    message.body = vec![0; field(8) as usize];
    read_rest(socket, &mut message.body)?;
    Ok(message)
}

/// The first bytes of a message and the files that come with them.
fn receive_head(
    socket: &UnixStream,
    header: &mut [u8; 12],
) -> Result<(usize, Vec<OwnedFd>), FrontError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(header)];
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let n = got.map_err(|e| explain(e.into()))?.bytes;
    if n == 0 {
        return Err(FrontError::Closed);
    }
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    Ok((n, fds))
}

fn read_rest(mut socket: &UnixStream, buffer: &mut [u8]) -> Result<(), FrontError> {
    socket.read_exact(buffer).map_err(explain)
}

fn explain(e: io::Error) -> FrontError {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => FrontError::Timeout(0),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => FrontError::Closed,
        _ => FrontError::Io(e),
    }
}
