//! Requests from the back end to the front end, over the socket of `SET_BACKEND_REQ_FD`.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::SendFlags;
use rustix::net::sockopt::socket_domain;
use sys::descriptors;
use wire::virtio::vhost_user::{HEADER_LEN, Header, VERSION};

use super::backend::Backend;
use super::fault::Refusal;
use super::session::{Answer, Request, Session};

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;

/// Sending end of the request channel. Requests need no reply, so nothing is ever read from it.
#[derive(Debug)]
pub struct BackendChannel {
    socket: OwnedFd,
    broken: bool,
}

impl BackendChannel {
    /// Takes over the socket that the front end sent.
    ///
    /// # Errors
    /// The descriptor is not a Unix socket. Writes to any other file could block.
    pub fn new(socket: OwnedFd) -> Result<Self, String> {
        if socket_domain(&socket) != Ok(AddressFamily::UNIX) {
            return Err("the descriptor is no Unix socket".into());
        }
        Ok(BackendChannel {
            socket,
            broken: false,
        })
    }

    /// Notifies the front end that the configuration space changed
    /// (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`). Returns whether the message was sent; a front end
    /// that does not read loses it, and a closed channel is not written again.
    pub fn config_changed(&mut self) -> bool {
        self.request(CONFIG_CHANGE)
    }

    fn request(&mut self, code: u32) -> bool {
        if self.broken {
            return false;
        }
        let (flags, size) = (VERSION, 0);
        let bytes = Header { code, flags, size }.to_bytes();
        match descriptors::send(&self.socket, &bytes, &[], SendFlags::DONTWAIT) {
            Ok(HEADER_LEN) => true,
            Err(Errno::AGAIN) => false,
            // Part of a message: the next one could not be parsed.
            Ok(_) | Err(_) => {
                self.broken = true;
                false
            }
        }
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
    let number = session.keep(&keep, backend);
    session.channel = Some((channel, number));
    Ok(Answer::Done)
}
