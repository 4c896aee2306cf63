//! The vhost-user front end (vhost-user specification, QEMU `docs/interop/vhost-user.rst`): sets
//! the queues of a driver, or of a program with a port of its own, up with the switch. To the
//! switch it is one more guest.
//!
//! Messages without a reply of their own are sent with `NEED_REPLY`, and the acknowledgements of
//! many are read together: few round trips.

pub mod queue;
pub mod region;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::SendFlags;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{
    FLAG_NEED_REPLY, FLAG_REPLY, HEADER_LEN, Header, ProtocolFeatures, VERSION, VERSION_MASK, code,
};

/// Acknowledgements that may wait; a socket's buffer has room for many more.
const IN_FLIGHT: usize = 64;

/// One queue as the switch is to have it. Addresses are offsets in the shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// Entries, a power of 2.
    pub size: u16,
    /// Descriptor area.
    pub descriptors: u64,
    /// Driver area: we write it.
    pub driver: u64,
    /// Device area: the switch writes it.
    pub device: u64,
    /// We signal it.
    pub kick: BorrowedFd<'a>,
    /// The switch signals it.
    pub call: BorrowedFd<'a>,
    /// The switch signals it when the queue has stopped because a rule was broken.
    pub error: Option<BorrowedFd<'a>>,
}

/// A connection to the switch.
#[derive(Debug)]
pub struct Front {
    socket: UnixStream,
    /// Deadline of the set-up.
    until: Instant,
    /// Messages whose acknowledgement was not read yet.
    unanswered: Vec<u32>,
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Front {
    /// Over a connected socket. The switch is not waited for after `until`.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new(socket: OwnedFd, until: Instant) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            until,
            unanswered: Vec::new(),
        })
    }

    /// Agrees on `desired` and `protocol`, all of them, and on at least so many queue pairs.
    /// Returns the number of queues that the switch has.
    ///
    /// # Errors
    /// The switch lacks something, or the conversation fails.
    pub fn negotiate(
        &mut self,
        desired: Features,
        protocol: ProtocolFeatures,
        pairs: u16,
    ) -> io::Result<u64> {
        let offered = self.ask(code::GET_FEATURES)?;
        let desired = (desired | Features::VHOST_PROTOCOL_FEATURES).bits();
        if desired & !offered != 0 {
            let missing = desired & !offered;
            return Err(bad(format!(
                "the switch does not offer features {missing:#x}"
            )));
        }
        let protocol = protocol | ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK;
        let offered = self.ask(code::GET_PROTOCOL_FEATURES)?;
        if protocol.bits() & !offered != 0 {
            return Err(bad("the switch lacks a protocol feature"));
        }
        // Acknowledgements are agreed on with this message, which therefore has none.
        let body = protocol.bits().to_ne_bytes();
        self.send(code::SET_PROTOCOL_FEATURES, VERSION, &body, None)?;
        let most = self.ask(code::GET_QUEUE_NUM)?;
        if u64::from(pairs) > most {
            return Err(bad(format!(
                "the switch has {most} queue pairs, not {pairs}"
            )));
        }
        self.notify(code::SET_OWNER, &[], None)?;
        self.set_features(desired)?;
        Ok(most)
    }

    /// Agrees on other features, all of which the switch has offered. No queue runs.
    ///
    /// # Errors
    /// As all messages.
    pub fn renegotiate(&mut self, desired: Features) -> io::Result<()> {
        self.set_features((desired | Features::VHOST_PROTOCOL_FEATURES).bits())
    }

    fn set_features(&mut self, features: u64) -> io::Result<()> {
        self.notify(code::SET_FEATURES, &features.to_ne_bytes(), None)
    }

    /// Hands the memory over: `size` bytes of a file from its start. Addresses in it, the front
    /// end's own ones too, are offsets.
    ///
    /// # Errors
    /// As all messages: the switch is gone.
    pub fn share(&mut self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        // One region: guest address, size, user address, offset in the file.
        let head = [1u32, 0].map(u32::to_ne_bytes).concat();
        let fields = [0, size, 0, 0].map(u64::to_ne_bytes).concat();
        let body = [head, fields].concat();
        self.notify(code::SET_MEM_TABLE, &body, Some(file))
    }

    /// Sets queue `index` up and switches it on.
    ///
    /// # Errors
    /// As all messages.
    pub fn start(&mut self, index: u16, queue: &Queue<'_>) -> io::Result<()> {
        let index = u32::from(index);
        let state = |value: u32| [index, value].map(u32::to_ne_bytes).concat();
        self.notify(code::SET_VRING_NUM, &state(u32::from(queue.size)), None)?;
        self.notify(code::SET_VRING_BASE, &state(0), None)?;
        let addresses = [queue.descriptors, queue.device, queue.driver, 0];
        let body = [state(0), addresses.map(u64::to_ne_bytes).concat()].concat();
        self.notify(code::SET_VRING_ADDR, &body, None)?;
        let number = u64::from(index).to_ne_bytes();
        if let Some(error) = queue.error {
            self.notify(code::SET_VRING_ERR, &number, Some(error))?;
        }
        self.notify(code::SET_VRING_CALL, &number, Some(queue.call))?;
        // Switched on before it starts: what is in a queue that is off is dropped.
        self.notify(code::SET_VRING_ENABLE, &state(1), None)?;
        self.notify(code::SET_VRING_KICK, &number, Some(queue.kick))
    }

    /// Stops queue `index`: when this returns, the switch has published all it had for the queue,
    /// and nothing follows. Waits until `until` at most.
    ///
    /// # Errors
    /// As all messages.
    pub fn stop(&mut self, index: u16, until: Instant) -> io::Result<()> {
        self.until = until;
        let body = [u32::from(index), 0].map(u32::to_ne_bytes).concat();
        self.send(code::GET_VRING_BASE, VERSION, &body, None)?;
        self.answer(code::GET_VRING_BASE).map(drop)
    }

    /// Waits until the switch has done everything.
    ///
    /// # Errors
    /// It refused something.
    pub fn settle(&mut self) -> io::Result<()> {
        for code in std::mem::take(&mut self.unanswered) {
            let refusal = self.answer(code)?;
            if refusal != 0 {
                return Err(bad(format!("the switch refused message {code}")));
            }
        }
        Ok(())
    }

    fn ask(&mut self, code: u32) -> io::Result<u64> {
        self.send(code, VERSION, &[], None)?;
        self.answer(code)
    }

    fn notify(&mut self, code: u32, body: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        // The switch reads nothing while its answers find no room: they must be read now and then.
        if self.unanswered.len() == IN_FLIGHT {
            self.settle()?;
        }
        self.send(code, VERSION | FLAG_NEED_REPLY, body, fd)?;
        self.unanswered.push(code);
        Ok(())
    }

    /// Every reply that is requested is one number.
    fn answer(&mut self, code: u32) -> io::Result<u64> {
        let mut bytes = [0; HEADER_LEN + 8];
        self.read(&mut bytes)?;
        let (head, body) = bytes.split_at(HEADER_LEN);
        let (head, body) = (head.try_into().ok(), body.try_into().ok());
        let (Some(head), Some(body)) = (head.map(Header::parse), body) else {
            return Err(bad("a short answer"));
        };
        if head.code != code
            || head.flags & (VERSION_MASK | FLAG_REPLY) != VERSION | FLAG_REPLY
            || head.size != 8
        {
            return Err(bad(format!("no answer to message {code}: {head:?}")));
        }
        Ok(u64::from_ne_bytes(body))
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut got = 0;
        while got < bytes.len() {
            match (&self.socket).read(&mut bytes[got..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => got += len,
                Err(error) => self.wait_after(error, PollFlags::IN)?,
            }
        }
        Ok(())
    }

    /// Waits until the socket may be ready, if it was not.
    fn wait_after(&self, error: io::Error, flags: PollFlags) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            _ => return Err(error),
        }
        if sys::wait::ready(&self.socket, flags, Some(self.until))?.is_empty() {
            let text = "the switch takes too long to set queues up";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    fn send(
        &self,
        code: u32,
        flags: u32,
        body: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let size = u32::try_from(body.len()).map_err(io::Error::other)?;
        let head = Header { code, flags, size }.to_bytes();
        let bytes = [&head, body].concat();
        let fds = fd.as_slice();
        // A message is far shorter than a socket's buffer: it goes whole or not at all.
        loop {
            match sys::descriptors::send(&self.socket, &bytes, fds, SendFlags::empty()) {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) => self.wait_after(error.into(), PollFlags::OUT)?,
            }
        }
    }
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
