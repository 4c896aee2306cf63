//! A vhost-user front end: what a VMM says to a back end, well-formed or not.
//!
//! Every request has a function of its own; [`FrontEnd::send_raw`] and [`FrontEnd::send_bytes`]
//! send anything else. Requests that carry no answer by themselves are acknowledged when REPLY_ACK
//! was negotiated and [`FrontEnd::acknowledge`] is on.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::features::{PROTOCOL_FEATURES, protocol};

mod event;
mod iotlb;
mod line;
mod listen;
mod requests;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use event::{Event, wait_any};
pub use iotlb::{BACKEND_IOTLB_MSG, IotlbKind, IotlbMessage};
pub use line::Line;
pub use listen::FrontListener;
pub use requests::{DirtyFile, Inflight, VringAddr};
pub use wire::{FLAG_NEED_REPLY, FLAG_REPLY, MAX_FDS, Message, VERSION, packed, request};

/// Failure of a session.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    Closed,
    /// The back end did not answer in time.
    #[error("no answer to request {0} in time")]
    Timeout(u32),
    /// The answer does not belong to the request or is malformed.
    #[error("bad answer to request {request}: {why} (code {code}, flags {flags:#x}, {size} bytes)")]
    BadReply {
        /// Code of the request.
        request: u32,
        /// Code of the answer.
        code: u32,
        /// Flags of the answer.
        flags: u32,
        /// Size of the answer.
        size: u32,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The back end acknowledged with an error.
    #[error("request {request} was refused with {code}")]
    Refused {
        /// Code of the request.
        request: u32,
        /// Its answer, not 0.
        code: u64,
    },
}

impl FrontError {
    fn bad(request: u32, message: &Message, why: &'static str) -> Self {
        let size = message.body.len() as u32;
        Self::BadReply {
            request,
            code: message.request,
            flags: message.flags,
            size,
            why,
        }
    }
}

/// One connection to a back end.
#[derive(Debug)]
pub struct FrontEnd {
    line: Arc<Line>,
    backend: Option<UnixStream>,
    /// Features that the back end offered.
    pub offered: u64,
    /// Features that were agreed on.
    pub features: u64,
    /// Protocol features that the back end offered.
    pub protocol_offered: u64,
    /// Protocol features that were agreed on.
    pub protocol: u64,
    /// Ask for an acknowledgement wherever REPLY_ACK allows it.
    pub acknowledge: bool,
}

impl FrontEnd {
    /// Connects to a listening back end; retries until `timeout` while there is no listener.
    ///
    /// # Errors
    /// The last refusal.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, FrontError> {
        let end = Instant::now() + timeout;
        loop {
            match UnixStream::connect(path) {
                Ok(socket) => return Self::over(socket, timeout),
                Err(e) if Instant::now() >= end => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Speaks over a connected socket; waits at most `timeout` for each answer.
    ///
    /// # Errors
    /// When the socket takes no timeout.
    pub fn over(socket: UnixStream, timeout: Duration) -> Result<Self, FrontError> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;
        Ok(Self {
            line: Arc::new(Line::new(socket)),
            backend: None,
            offered: 0,
            features: 0,
            protocol_offered: 0,
            protocol: 0,
            acknowledge: true,
        })
    }

    /// The socket, for polling or for closing half of it.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        self.line.socket()
    }

    /// Sends a message with any code, flags, claimed size, body and files.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn send_raw(
        &self,
        code: u32,
        flags: u32,
        size: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontError> {
        let header = [code, flags, size].map(u32::to_le_bytes).concat();
        self.send_bytes(&[&header, body].concat(), fds)
    }

    /// Sends any bytes, with files attached to the first of them.
    ///
    /// # Errors
    /// When they cannot be sent.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontError> {
        wire::send(self.socket(), bytes, fds)
    }

    /// Receives the next message from the back end.
    ///
    /// # Errors
    /// [`FrontError::Closed`] at the end of the stream, [`FrontError::Timeout`] for none in time.
    pub fn receive(&self) -> Result<Message, FrontError> {
        wire::receive(self.socket())
    }

    /// Returns whether the back end closes the connection within `timeout`; other messages are
    /// thrown away.
    #[must_use]
    pub fn closes_within(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            match self.receive() {
                Err(FrontError::Closed) => return true,
                Err(FrontError::Io(e)) => return e.kind() == io::ErrorKind::ConnectionReset,
                Ok(_) | Err(_) => {}
            }
        }
        false
    }

    /// Sends a request without an answer of its own, and takes the acknowledgement if there is to
    /// be one.
    ///
    /// # Errors
    /// [`FrontError::Refused`] when the acknowledgement is not 0.
    pub fn tell(
        &mut self,
        code: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontError> {
        self.line.tell(code, body, fds, self.is_acknowledged())
    }

    /// Returns whether requests without an answer of their own are acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledge && self.protocol & protocol::REPLY_ACK != 0
    }

    /// The socket, for a part of the VMM that has conversations of its own on it; it ends with
    /// this front end.
    #[must_use]
    pub fn line(&self) -> Weak<Line> {
        Arc::downgrade(&self.line)
    }

    /// Sends a request that has an answer and returns it.
    ///
    /// # Errors
    /// When no answer comes, or one to something else.
    pub fn ask(
        &mut self,
        code: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, FrontError> {
        self.line.ask(code, body, fds)
    }

    /// Negotiates as many of the desired features and protocol features as the back end offers, in
    /// the order of QEMU; returns the features.
    ///
    /// # Errors
    /// When the session fails.
    pub fn negotiate(&mut self, features: u64, protocol: u64) -> Result<u64, FrontError> {
        self.offered = self.get_features()?;
        if self.offered & features & PROTOCOL_FEATURES != 0 {
            self.protocol_offered = self.get_protocol_features()?;
            self.set_protocol_features(self.protocol_offered & protocol)?;
        }
        self.set_owner()?;
        self.set_features(self.offered & features)?;
        Ok(self.features)
    }

    /// Opens the channel for requests of the back end.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn open_backend_channel(&mut self) -> Result<(), FrontError> {
        use std::os::fd::AsFd;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(self.socket().read_timeout()?)?;
        self.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        self.backend = Some(ours);
        Ok(())
    }

    /// Takes the channel that [`FrontEnd::open_backend_channel`] opened, to be read elsewhere.
    pub fn take_backend_channel(&mut self) -> Option<UnixStream> {
        self.backend.take()
    }

    /// The next request of the back end on its own channel.
    ///
    /// # Errors
    /// As [`FrontEnd::receive`]; [`FrontError::Closed`] when the channel was never opened.
    pub fn receive_backend(&self) -> Result<Message, FrontError> {
        self.backend
            .as_ref()
            .map_or(Err(FrontError::Closed), wire::receive)
    }
}

/// A file that cannot be what the back end wants: for hostile tests.
///
/// # Panics
/// When the system has no `/dev/null`.
#[must_use]
pub fn useless_fd() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("/dev/null").into()
}
