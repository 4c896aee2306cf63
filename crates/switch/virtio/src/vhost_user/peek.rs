//! Messages that stay in the socket until they have been served.
//!
//! A process that dies while it serves a message leaves the message in the socket for its
//! successor. Every message may be served twice: each sets something, requests something, or stops
//! something that then is stopped. (`SEND_RARP` broadcasts once more.)
//!
//! Linux (6.18 and before) shows the descriptors of the next message together with a message that
//! has none. So peeked descriptors count only as far as the message can have descriptors, and are
//! compared with the received ones when the message is consumed.

use rustix::net::RecvFlags;
use std::os::fd::AsFd;
use sys::foreign::ForeignFd;
use wire::virtio::vhost_user::{FLAG_NEED_REPLY, HEADER_LEN, Header, code};

use super::connection::{Connection, NONE, receive};
use super::fault::Fault;
use super::message::{Message, request_header};
use super::table;

/// Result of a look at the socket's receive queue.
#[derive(Debug)]
pub enum PeekResult {
    /// No message, or a reply must leave first.
    Nothing,
    /// Part of a message, or one that was sent in pieces: only [`Connection::recv`] assembles it,
    /// and takes it from the socket piece by piece.
    Pieces,
    /// A whole message with its descriptors; [`Connection::consume`] takes it from the socket.
    Whole(Message, Vec<ForeignFd>),
}

impl Connection {
    /// Reads the next message and leaves it in the socket.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn peek(&mut self) -> Result<PeekResult, Fault> {
        if !self.flush()? {
            return Ok(PeekResult::Nothing);
        }
        if self.is_mid_message() {
            return Ok(PeekResult::Pieces);
        }
        let mut head = [0; HEADER_LEN];
        match peek_bytes(self.socket(), &mut head)? {
            None => return Ok(PeekResult::Nothing),
            Some(0) => return Err(Fault::Closed),
            Some(HEADER_LEN) => {}
            Some(_) => return Ok(PeekResult::Pieces),
        }
        let header = request_header(head)?;
        let mut bytes = vec![0; HEADER_LEN + header.size as usize];
        let mut fds = Vec::new();
        let got = receive(self.socket(), &mut bytes, &mut fds, RecvFlags::PEEK)?;
        if got != Some(bytes.len()) {
            return Ok(PeekResult::Pieces);
        }
        let message = Message {
            code: header.code,
            need_reply: header.flags & FLAG_NEED_REPLY != 0,
            payload: bytes.split_off(HEADER_LEN),
        };
        let waiting = rustix::io::ioctl_fionread(self.socket());
        let waiting = waiting.map_err(|e| Fault::Socket("look at", e))?;
        if waiting > bytes_of(&message) as u64 && table::has_no_fds(&message) {
            // They belong to the next message, or will be found when this one is consumed.
            fds.clear();
        }
        Ok(PeekResult::Whole(message, fds))
    }

    /// Takes the message that [`Connection::peek`] returned from the socket. Its descriptors in the
    /// socket are closed.
    ///
    /// # Errors
    /// As [`Connection::recv`]; and when it came with another number of descriptors than `peek`
    /// returned.
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

    /// Takes a message from the socket; returns its number of descriptors.
    fn take_away(&mut self, message: &Message) -> Result<usize, Fault> {
        let (mut left, mut fds) = (bytes_of(message), Vec::new());
        while left > 0 {
            let mut bytes = vec![0; left];
            match receive(self.socket(), &mut bytes, &mut fds, NONE)? {
                None | Some(0) => return Err(Fault::ClosedMidMessage),
                Some(n) => left -= n,
            }
        }
        Ok(fds.len())
    }

    /// After a restart: takes the message `answered` from the socket, if it is the next one and its
    /// reply waits in the pipe. It has been served then.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn skip_answered(&mut self, answered: &Message) -> Result<(), Fault> {
        if !self.has_piped_reply() {
            return Ok(());
        }
        let mut bytes = vec![0; HEADER_LEN + answered.payload.len()];
        let got = peek_bytes(self.socket(), &mut bytes)?;
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

/// Returns the number of bytes of a message on the wire.
fn bytes_of(message: &Message) -> usize {
    HEADER_LEN + message.payload.len()
}

/// Reads bytes without their descriptors and leaves them in the socket.
fn peek_bytes(socket: impl AsFd, bytes: &mut [u8]) -> Result<Option<usize>, Fault> {
    let received = sys::descriptors::peek_bytes(socket, bytes);
    let received = received.map_err(|errno| Fault::Socket("receive", errno))?;
    Ok(received.map(|received| received.bytes))
}
