//! Requests from the back end to the front end, over the socket of `SET_BACKEND_REQ_FD`, and the
//! answers to them.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
use sys::descriptors;
use sys::foreign::ForeignFd;
use wire::virtio::vhost_user::{
    FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, IotlbMessage, VERSION, VERSION_MASK,
    backend_code,
};

use super::backend::Backend;
use super::fault::Refusal;
use super::session::{Answer, Request, Session};

/// Bytes of the payload of an answer.
const VALUE_LEN: usize = 8;

/// The request channel. Only requests about translations ask for an answer, so only a session with
/// an IOMMU reads from it. Nothing here waits for the front end.
#[derive(Debug)]
pub struct BackendChannel {
    socket: ForeignFd,
    broken: bool,
    /// The answer that is being received, and the number of its bytes that are there.
    incoming: ([u8; HEADER_LEN + VALUE_LEN], usize),
}

/// Result of sending a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendResult {
    Whole,
    /// The front end does not read: the request can be sent again later.
    NoRoom,
    /// Nothing can be sent any more.
    Broken,
}

impl BackendChannel {
    /// Takes over the socket that the front end sent.
    ///
    /// # Errors
    /// The descriptor is not a Unix socket. Writes to any other file could block.
    pub fn new(socket: ForeignFd) -> Result<Self, String> {
        if socket_domain(&socket) != Ok(AddressFamily::UNIX) {
            return Err("the descriptor is no Unix socket".into());
        }
        Ok(BackendChannel {
            socket,
            broken: false,
            incoming: Default::default(),
        })
    }

    /// Checks that nothing lies in the socket: it would be closed with it. The front end can fill
    /// it later, so this spares work and is no protection.
    fn check_empty(&self) -> Result<(), String> {
        if socket_type(&self.socket) != Ok(SocketType::STREAM) {
            return Err("the descriptor is no stream socket".into());
        }
        match descriptors::peek_bytes(&self.socket, &mut [0]) {
            Ok(None) => Ok(()),
            Ok(Some(got)) if got.bytes == 0 => Ok(()),
            Ok(Some(_)) => Err("the socket holds something already".into()),
            Err(error) => Err(format!("the socket is not connected: {error}")),
        }
    }

    /// Notifies the front end that the configuration space changed
    /// (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`). Returns whether the message was sent; a front end
    /// that does not read loses it, and a closed channel is not written again.
    pub fn config_changed(&mut self) -> bool {
        self.request(backend_code::CONFIG_CHANGE_MSG, false, &[]) == SendResult::Whole
    }

    /// Sends a message about a translation (`VHOST_USER_BACKEND_IOTLB_MSG`).
    pub(super) fn iotlb(&mut self, message: IotlbMessage, need_reply: bool) -> SendResult {
        self.request(backend_code::IOTLB_MSG, need_reply, &message.to_bytes())
    }

    fn request(&mut self, code: u32, need_reply: bool, payload: &[u8]) -> SendResult {
        if self.broken {
            return SendResult::Broken;
        }
        let flags = VERSION | if need_reply { FLAG_NEED_REPLY } else { 0 };
        let size = payload.len() as u32;
        let bytes = [&Header { code, flags, size }.to_bytes()[..], payload].concat();
        match descriptors::send(&self.socket, &bytes, &[], SendFlags::DONTWAIT) {
            Ok(sent) if sent == bytes.len() => SendResult::Whole,
            Err(Errno::AGAIN) => SendResult::NoRoom,
            // Part of a message: the next one could not be parsed.
            Ok(_) | Err(_) => {
                self.broken = true;
                SendResult::Broken
            }
        }
    }

    /// Reads the next answer to a message about a translation: 0, or why there is none. `None`: no
    /// whole answer is there.
    ///
    /// # Errors
    /// The channel is closed, or something else came than an answer; the caller reads no more.
    pub(super) fn answer(&mut self) -> Result<Option<u64>, String> {
        let (bytes, got) = &mut self.incoming;
        while *got < bytes.len() {
            let (flags, mut fds) = (RecvFlags::DONTWAIT, Vec::new());
            let into = (&mut fds, self.socket.author());
            match descriptors::receive(&self.socket, &mut bytes[*got..], into, flags) {
                Ok(None) => return Ok(None),
                Ok(Some(received)) if received.bytes == 0 => {
                    return Err("the front end closed the back-end channel".into());
                }
                Ok(Some(received)) => *got += received.bytes,
                Err(error) => return Err(format!("back-end channel: {error}")),
            }
        }
        *got = 0;
        let (head, value) = bytes.split_at(HEADER_LEN);
        let header = Header::parse(std::array::from_fn(|at| head[at]));
        let is_answer = header.code == backend_code::IOTLB_MSG
            && header.flags & VERSION_MASK == VERSION
            && header.flags & FLAG_REPLY != 0
            && header.size as usize == VALUE_LEN;
        if !is_answer {
            let Header { code, flags, size } = header;
            return Err(format!(
                "back-end channel: message {code} with flags {flags:#x} and {size} bytes, \
                 expected an answer to BACKEND_IOTLB_MSG"
            ));
        }
        Ok(Some(u64::from_ne_bytes(std::array::from_fn(|at| {
            value[at]
        }))))
    }

    /// Closes the channel for the front end, even if other processes have it open.
    pub(super) fn end(self) {
        self.socket.hang_up();
    }
}

impl AsFd for BackendChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `SET_BACKEND_REQ_FD`; an earlier channel is closed. A descriptor that is not a socket is
/// refused.
pub(super) fn set_backend_req_fd(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let fd = request.fds.pop().ok_or("no file descriptor")?;
    let keep = fd.try_clone().map_err(|e| e.to_string())?;
    let channel = BackendChannel::new(fd)?;
    channel.check_empty()?;
    let number = session.keep(&keep, backend);
    if let Some((earlier, _)) = session.channel.replace((channel, number)) {
        earlier.end();
    }
    session.channel_changed(backend);
    Ok(Answer::Done)
}
