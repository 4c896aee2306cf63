//! The vhost-user front end (vhost-user specification, QEMU `docs/interop/vhost-user.rst`): sets a
//! driver's queues up with the switch. To the switch it is one more guest.
//!
//! Messages without a reply of their own are sent with `NEED_REPLY`, and the acknowledgements of
//! many are read together: few round trips.

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

use crate::region::{QueuePlace, Region};

/// Acknowledgements that may wait; a socket's buffer has room for many more.
const IN_FLIGHT: usize = 64;

/// One queue as the switch is to have it.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) place: QueuePlace,
    /// We write it.
    pub(crate) kick: OwnedFd,
    /// The switch writes it.
    pub(crate) call: OwnedFd,
}

/// A connection to the switch.
#[derive(Debug)]
pub(crate) struct Front {
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
    pub(crate) fn new(socket: OwnedFd, until: Instant) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            until,
            unanswered: Vec::new(),
        })
    }

    /// Agrees on `desired`, all of it, and on as many queue pairs.
    ///
    /// # Errors
    /// The switch lacks something, or the conversation fails.
    pub(crate) fn negotiate(&mut self, desired: Features, pairs: u16) -> io::Result<()> {
        let offered = self.ask(code::GET_FEATURES)?;
        let desired = (desired | Features::VHOST_PROTOCOL_FEATURES).bits();
        if desired & !offered != 0 {
            let missing = desired & !offered;
            return Err(bad(format!(
                "the switch does not offer features {missing:#x}"
            )));
        }
        let protocol = ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK;
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
        self.notify(code::SET_FEATURES, &desired.to_ne_bytes(), None)
    }

    /// Hands the memory over. Addresses in it, the driver's own ones too, are offsets.
    ///
    /// # Errors
    /// As all messages: the switch is gone.
    pub(crate) fn share(&mut self, region: &Region) -> io::Result<()> {
        // One region: guest address, size, user address, offset in the file.
        let head = [1u32, 0].map(u32::to_ne_bytes).concat();
        let fields = [0, region.size(), 0, 0].map(u64::to_ne_bytes).concat();
        let body = [head, fields].concat();
        self.notify(code::SET_MEM_TABLE, &body, Some(region.file()?))
    }

    /// Sets queue `index` up and switches it on.
    ///
    /// # Errors
    /// As all messages.
    pub(crate) fn start(&mut self, index: u16, ring: &Ring) -> io::Result<()> {
        let index = u32::from(index);
        let state = |value: u32| [index, value].map(u32::to_ne_bytes).concat();
        let place = ring.place;
        let size = u32::from(place.shape.entries);
        self.notify(code::SET_VRING_NUM, &state(size), None)?;
        self.notify(code::SET_VRING_BASE, &state(0), None)?;
        let addresses = [place.descriptors, place.used, place.available, 0];
        let body = [state(0), addresses.map(u64::to_ne_bytes).concat()].concat();
        self.notify(code::SET_VRING_ADDR, &body, None)?;
        let number = u64::from(index).to_ne_bytes();
        self.notify(code::SET_VRING_CALL, &number, Some(ring.call.as_fd()))?;
        self.notify(code::SET_VRING_KICK, &number, Some(ring.kick.as_fd()))?;
        self.notify(code::SET_VRING_ENABLE, &state(1), None)
    }

    /// Stops queue `index`: when this returns, the switch has published all it had for the queue,
    /// and nothing follows. Waits until `until` at most.
    ///
    /// # Errors
    /// As all messages.
    pub(crate) fn stop(&mut self, index: u16, until: Instant) -> io::Result<()> {
        self.until = until;
        let body = [u32::from(index), 0].map(u32::to_ne_bytes).concat();
        self.send(code::GET_VRING_BASE, VERSION, &body, None)?;
        self.answer(code::GET_VRING_BASE).map(drop)
    }

    /// Waits until the switch has done everything.
    ///
    /// # Errors
    /// It refused something.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
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
