//! Messages that stay in the socket until they are done.
//!
//! Whoever dies while it serves a message leaves it to its successor, which finds it where it was. That every
//! message may be served twice follows from the protocol: each sets something, asks for something, or stops
//! something that then is stopped. (`SEND_RARP` broadcasts once more.)
//!
//! Linux (6.18 and before) shows the descriptors of the next message together with a message that has none. So what
//! is seen is believed only as far as the message can have descriptors, and compared with what really came when the
//! message is taken away.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, Shutdown, recvmsg, shutdown};

use super::connection::{Connection, receive_with};
use super::fault::Fault;
use super::message::{HEADER_LEN, Header, Message, code};
use super::table;

/// Each of a message or 4 KiB: more than a socket holds.
const READS_AT_THE_END: u32 = 4096;

/// What the socket has.
#[derive(Debug)]
pub enum Peeked {
    /// No message, or a reply has to leave first.
    Nothing,
    /// Part of a message, or one that was sent in pieces: only [`Connection::recv`] puts it together, and takes it
    /// from the socket piece by piece.
    Pieces,
    /// A whole message with its descriptors; [`Connection::consume`] takes it away.
    Whole(Message, Vec<OwnedFd>),
}

impl Connection {
    /// Looks at the next message and leaves it in the socket.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn peek(&mut self) -> Result<Peeked, Fault> {
        if !self.flush()? {
            return Ok(Peeked::Nothing);
        }
        if self.is_mid_message() {
            return Ok(Peeked::Pieces);
        }
        let mut head = [0; HEADER_LEN];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match receive_bytes(self.socket(), &mut head, flags)? {
            None => return Ok(Peeked::Nothing),
            Some(0) => return Err(Fault::Closed),
            Some(HEADER_LEN) => {}
            Some(_) => return Ok(Peeked::Pieces),
        }
        let header = Header::parse(head);
        header.check()?;
        let mut bytes = vec![0; HEADER_LEN + header.size as usize];
        let mut fds = Vec::new();
        let got = receive_with(self.socket(), &mut bytes, &mut fds, RecvFlags::PEEK)?;
        if got != Some(bytes.len()) {
            return Ok(Peeked::Pieces);
        }
        let message = Message {
            code: header.code,
            need_reply: header.need_reply(),
            payload: bytes.split_off(HEADER_LEN),
        };
        let waiting = rustix::io::ioctl_fionread(self.socket());
        let waiting = waiting.map_err(|e| Fault::Socket("look at", e))?;
        if waiting > bytes_of(&message) as u64 && table::has_no_fds(&message) {
            // They are of the next one, or will be found when this one is taken away.
            fds.clear();
        }
        Ok(Peeked::Whole(message, fds))
    }

    /// Takes the message away that [`Connection::peek`] has shown. Its descriptors in the socket are closed.
    ///
    /// # Errors
    /// As [`Connection::recv`]; and when it has brought another number of descriptors than were shown.
    pub fn consume(&mut self, message: &Message, shown: usize) -> Result<(), Fault> {
        let got = self.take_away(message)?;
        let of_no_use = message.code == code::REM_MEM_REG && got <= 1;
        if got == shown || of_no_use {
            return Ok(());
        }
        Err(match table::find(message.code) {
            Some(row) => row.wrong_fds(got),
            None => Fault::TooManyFds(got),
        })
    }

    /// Takes a message away; how many descriptors it had.
    fn take_away(&mut self, message: &Message) -> Result<usize, Fault> {
        let (mut left, mut fds) = (bytes_of(message), Vec::new());
        while left > 0 {
            let mut bytes = vec![0; left];
            let more = RecvFlags::empty();
            match receive_with(self.socket(), &mut bytes, &mut fds, more)? {
                None | Some(0) => return Err(Fault::ClosedMidMessage),
                Some(n) => left -= n,
            }
        }
        Ok(fds.len())
    }
}

impl Connection {
    /// Ends the connection for the front end, whoever else has the socket open. One that is only dropped is there for
    /// whoever has it open, with all messages that were not taken.
    pub fn end(self) {
        hang_up(self.socket());
    }
}

/// Ends the connection of a socket for the front end, whoever else has the socket open.
///
/// A socket that is closed with something unread in it resets the connection, and the front end gets that error before
/// the replies that it has not read. So nothing more is let in, and what is there is read.
pub fn hang_up(socket: &OwnedFd) {
    // One that is gone needs no end.
    let _ = shutdown(socket, Shutdown::Both);
    let (mut bytes, mut fds) = ([0; 4096], Vec::new());
    for _ in 0..READS_AT_THE_END {
        let got = receive_with(socket, &mut bytes, &mut fds, RecvFlags::empty());
        if matches!(got, Ok(None | Some(0)) | Err(Fault::Socket(..))) {
            return;
        }
        fds.clear();
    }
}

/// Bytes of a message on the wire.
fn bytes_of(message: &Message) -> usize {
    HEADER_LEN + message.payload.len()
}

impl Connection {
    /// After a restart: takes the message away that `answered` is, if it is the next one and its answer waits in the
    /// pipe. It is done then.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn skip_answered(&mut self, answered: &Message) -> Result<(), Fault> {
        if !self.has_piped_reply() {
            return Ok(());
        }
        let mut bytes = vec![0; HEADER_LEN + answered.payload.len()];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let got = receive_bytes(self.socket(), &mut bytes, flags)?;
        if got == Some(bytes.len())
            && let Some((head, payload)) = bytes.split_first_chunk()
            && Header::parse(*head).code == answered.code
            && *payload == answered.payload
        {
            self.take_away(answered)?;
        }
        Ok(())
    }
}

/// Reads without room for descriptors: those that come with the bytes are not taken.
fn receive_bytes(
    socket: &OwnedFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<Option<usize>, Fault> {
    let mut none: [MaybeUninit<u8>; 0] = [];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut none);
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(received) => return Ok(Some(received.bytes)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Ok(Some(0)),
            Err(errno) => return Err(Fault::Socket("receive", errno)),
        }
    }
}
