//! Messages with descriptors on sockets of the Unix domain (`SCM_RIGHTS` in unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::foreign::{Author, ForeignFd};

/// Most descriptors of one message of ours, and of vhost-user.
pub const MAX_FDS: usize = 8;
/// Most descriptors of any message (`SCM_MAX_FD` of Linux). There is room for all: one that does
/// not fit is closed by the kernel in the thread that receives.
const MAX_RECEIVED: usize = 253;
/// Most descriptors of a message with the connections of many guests.
pub const MANY_FDS: usize = 200;

/// Sends bytes with descriptors; returns the number of bytes that the socket has taken. A peer that
/// is gone causes no signal.
///
/// # Errors
/// The error of the system call; [`Errno::TOOBIG`] if there is no room for the descriptors, which
/// there is for [`MANY_FDS`].
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    more: SendFlags,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MANY_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let (bytes, flags) = ([IoSlice::new(bytes)], SendFlags::NOSIGNAL | more);
    retry_on_intr(|| sendmsg(&socket, &bytes, &mut control, flags))
}

/// Result of a call that receives bytes and descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveResult {
    /// Number of bytes; zero at the end of the connection, also if the peer has reset it.
    pub bytes: usize,
    /// Descriptors were lost: this process can have no more.
    pub lost_descriptors: bool,
}

/// Receives bytes, and appends the descriptors that came with them to `fds`, close-on-exec, as
/// those of an author. `None`: a socket that does not wait has nothing now.
///
/// # Errors
/// The error of the system call. [`Errno::MFILE`] if too many descriptors of the author wait for
/// their close: no more are received from it, and the connection should end.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    (fds, author): (&mut Vec<ForeignFd>, Author),
    more: RecvFlags,
) -> Result<Option<ReceiveResult>> {
    if !author.may_send() {
        return Err(Errno::MFILE);
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_RECEIVED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (mut bytes, flags) = ([IoSliceMut::new(bytes)], RecvFlags::CMSG_CLOEXEC | more);
    let received = retry_on_intr(|| recvmsg(&socket, &mut bytes, &mut control, flags));
    let received = received.map(|message| ReceiveResult {
        bytes: message.bytes,
        lost_descriptors: message.flags.contains(ReturnFlags::CTRUNC),
    });
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(|fd| ForeignFd::new(fd, author)));
        }
    }
    unless_nothing_or_reset(received)
}

/// Reads bytes without their descriptors, and leaves both in the socket.
///
/// # Errors
/// The error of the system call.
pub fn peek_bytes(socket: impl AsFd, bytes: &mut [u8]) -> Result<Option<ReceiveResult>> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| rustix::net::recv(&socket, &mut *bytes, flags));
    unless_nothing_or_reset(received.map(|(bytes, _)| ReceiveResult {
        bytes,
        lost_descriptors: false,
    }))
}

fn unless_nothing_or_reset(received: Result<ReceiveResult>) -> Result<Option<ReceiveResult>> {
    match received {
        Err(Errno::AGAIN) => Ok(None),
        Err(Errno::CONNRESET) => Ok(Some(ReceiveResult {
            bytes: 0,
            lost_descriptors: false,
        })),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::event;

    /// Receives at most two bytes; returns what, and how many descriptors.
    fn take(socket: &UnixStream) -> (Option<ReceiveResult>, usize) {
        let (mut bytes, mut fds) = ([0; 2], Vec::new());
        let author = Author::new(None);
        let got = receive(socket, &mut bytes, (&mut fds, author), RecvFlags::DONTWAIT).unwrap();
        (got, fds.len())
    }

    fn received(bytes: usize) -> Option<ReceiveResult> {
        Some(ReceiveResult {
            bytes,
            lost_descriptors: false,
        })
    }

    #[test]
    fn descriptors_come_with_the_first_byte() {
        let (one, other) = UnixStream::pair().unwrap();
        let event = event::create().unwrap();
        let fds = [event.as_fd(); MAX_FDS];
        assert_eq!(send(&one, b"abc", &fds, SendFlags::empty()), Ok(3));
        assert_eq!(take(&other), (received(2), MAX_FDS));
        assert_eq!(take(&other), (received(1), 0));
        assert_eq!(take(&other), (None, 0));
    }

    #[test]
    fn many_more_descriptors_are_refused() {
        let (one, _other) = UnixStream::pair().unwrap();
        let event = event::create().unwrap();
        let fds = [event.as_fd(); 2 * MANY_FDS];
        assert_eq!(
            send(&one, b"a", &fds, SendFlags::empty()),
            Err(Errno::TOOBIG)
        );
    }

    /// One that did not fit would be closed by the kernel in this thread.
    #[test]
    fn all_descriptors_of_a_message_are_received() {
        let (one, other) = UnixStream::pair().unwrap();
        let event = event::create().unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_RECEIVED))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [event.as_fd(); MAX_RECEIVED];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [IoSlice::new(b"a")];
        assert_eq!(
            sendmsg(&one, &bytes, &mut control, SendFlags::empty()),
            Ok(1)
        );
        assert_eq!(take(&other), (received(1), MAX_RECEIVED));
    }

    #[test]
    fn bytes_are_shown_without_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let fds = [one.as_fd()];
        send(&one, b"a", &fds, SendFlags::empty()).unwrap();
        let mut byte = [0];
        assert_eq!(peek_bytes(&other, &mut byte), Ok(received(1)));
        assert_eq!(take(&other), (received(1), 1));
        assert_eq!(peek_bytes(&other, &mut byte), Ok(None));
    }

    #[test]
    fn a_connection_that_was_reset_has_ended() {
        let (one, other) = UnixStream::pair().unwrap();
        send(&other, b"unread", &[], SendFlags::empty()).unwrap();
        drop(one);
        assert_eq!(take(&other), (received(0), 0));
        assert_eq!(
            send(&other, b"a", &[], SendFlags::empty()),
            Err(Errno::PIPE)
        );
    }
}
