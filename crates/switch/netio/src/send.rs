//! Writing to an interface.
//!
//! Frames for a packet socket go through the traffic control of the interface (`tc`), which may
//! have no place for one. That is an error of the call, and the frame is sent again while the bytes
//! that may wait in the interface are bounded: then senders wait for it. `PACKET_QDISC_BYPASS`
//! would make the queue of the interface itself tell that, but the operator's shapers, filters and
//! `tcpdump` on the host would see no frame.
//!
//! Work that is left to the system, and tested (`tests::offloads`): the checksum of TCP and of UDP,
//! over IPv4 and IPv6, with a tag or without, as the virtio header says (`NEEDS_CSUM`); it is
//! completed on the way, or left to the next receiver that can do it. And cutting super-frames of
//! TCP and UDP, with the checksums of all parts, which IPv4 headers have, too. The system refuses a
//! checksum outside of the frame, and segmentation that it does not know (`EINVAL`).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::driving::{DriverCounters, PACKET_BACKLOG};
use rustix::io::Errno;
use rustix::net::sockopt;
use wire::virtio::net;

use crate::outbox::{ALL_PIECES, Outbox};
use crate::{BATCH, Kind, Stop, is_gone, last_error};

/// Longest time for attempts to send a frame that traffic control does not take.
const PATIENCE: Duration = Duration::from_millis(50);

/// Bytes after which a system call takes no further group: some hundred microseconds of copying.
const MOST_BYTES: usize = 256 << 10;

/// The sending side of one queue of an interface.
pub struct Sender {
    queue: Arc<OwnedFd>,
    kind: Kind,
    /// Of a packet socket.
    messages: Vec<libc::mmsghdr>,
    /// Pieces of frames, kept for their memory.
    pieces: Vec<libc::iovec>,
    /// Time since when traffic control takes no frame.
    full_since: Option<Instant>,
}

// SAFETY: the pointers in the tables are set before each system call and mean nothing after
// it.
unsafe impl Send for Sender {}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.queue).finish()
    }
}

impl Sender {
    /// Returns that of a queue.
    #[must_use]
    pub fn new(kind: Kind, queue: Arc<OwnedFd>) -> Self {
        let messages = match kind {
            Kind::Tap => Vec::new(),
            Kind::Packet => Vec::with_capacity(BATCH),
        };
        Self {
            queue,
            kind,
            messages,
            pieces: Vec::with_capacity(ALL_PIECES + 3 * BATCH),
            full_since: None,
        }
    }

    /// Sends the frames of an outbox, those of a flow coalesced. What is done leaves it, and is
    /// appended to `done`: the frame's number, and whether it was sent; if not, the interface has
    /// refused it, and it is counted. What is left is there for another call.
    ///
    /// # Errors
    /// The interface is gone ([`is_lost`](crate::is_lost)).
    pub fn send(
        &mut self,
        outbox: &mut Outbox,
        done: &mut Vec<(u16, bool)>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        self.send_while(outbox, done, counters, |_| true)
    }

    /// As [`send`](Self::send), for a caller that measures: after each system call `goes_on` gets
    /// the frames that it was for. If it returns `false`, this returns [`Stop::Done`], and the rest
    /// is left in the outbox. A call takes as many groups as have 256 KiB, or one.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_while(
        &mut self,
        outbox: &mut Outbox,
        done: &mut Vec<(u16, bool)>,
        counters: &mut DriverCounters,
        mut goes_on: impl FnMut(&[(u16, bool)]) -> bool,
    ) -> io::Result<Stop> {
        outbox.arrange(outbox.len() > 1 && !self.has_bounded_room());
        while !outbox.is_empty() {
            let is_super_frame = outbox.is_super_frame();
            let before = done.len();
            match self.send_some(outbox) {
                Ok(groups) => {
                    counters.sent.calls += 1;
                    counters.sent.frames += outbox.leave(groups, true, done);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Stop::Wait),
                Err(Errno::NOBUFS) if self.is_worth_a_retry(Instant::now()) => {
                    return Ok(Stop::Retry);
                }
                Err(error) if is_gone(error) => return Err(error.into()),
                // The frame that cannot be read is one of these.
                Err(Errno::FAULT) if is_super_frame => outbox.split_first_group(),
                Err(Errno::FAULT) => return Ok(Stop::Fault),
                // The system cannot describe it: its frames go singly.
                Err(Errno::INVAL) if is_super_frame => outbox.refuse_super_frame(),
                Err(_) => {
                    counters.rejected_by_interface += outbox.drop_first_group(done) as u64;
                }
            }
            if done.len() > before && !goes_on(&done[before..]) {
                break;
            }
        }
        Ok(Stop::Done)
    }

    /// Returns the number of groups that were sent by a call.
    fn send_some(&mut self, outbox: &Outbox) -> Result<usize, Errno> {
        match self.kind {
            Kind::Tap => self.write(outbox).map(|()| 1),
            Kind::Packet => self.send_messages(outbox),
        }
    }

    /// Writes the first group.
    fn write(&mut self, outbox: &Outbox) -> Result<(), Errno> {
        self.pieces.clear();
        if let Some(group) = outbox.arranged().next() {
            group.describe(net::LEN, &mut self.pieces);
        }
        let queue = self.queue.as_raw_fd();
        let put = match self.pieces[..] {
            // SAFETY: the pieces are of the outbox, or mapped as the callers of `push` have
            // promised; the system only reads them.
            [piece] => unsafe { libc::write(queue, piece.iov_base, piece.iov_len) },
            // SAFETY: as above.
            ref pieces => unsafe {
                libc::writev(queue, pieces.as_ptr(), pieces.len() as libc::c_int)
            },
        };
        if put < 0 { Err(last_error()) } else { Ok(()) }
    }

    fn send_messages(&mut self, outbox: &Outbox) -> Result<usize, Errno> {
        self.pieces.clear();
        self.messages.clear();
        let mut bytes = 0;
        for group in outbox.arranged() {
            let before = self.pieces.len();
            group.describe(net::SHORT_LEN, &mut self.pieces);
            // SAFETY: zero is a value of this C structure: null pointers and lengths of 0.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iovlen = (self.pieces.len() - before) as _;
            self.messages.push(message);
            bytes += self.pieces[before..]
                .iter()
                .map(|piece| piece.iov_len)
                .sum::<usize>();
            if bytes >= MOST_BYTES {
                break;
            }
        }
        let mut pieces = self.pieces.as_mut_ptr();
        for message in &mut self.messages {
            message.msg_hdr.msg_iov = pieces;
            pieces = pieces.wrapping_add(message.msg_hdr.msg_iovlen as _);
        }
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _;
        let (messages, count) = (self.messages.as_mut_ptr(), self.messages.len() as _);
        // SAFETY: the messages have been described above: their pieces are of the outbox, or mapped
        // as the callers of `push` have promised, and the system only reads them.
        let put = unsafe { libc::sendmmsg(self.queue.as_raw_fd(), messages, count, flags) };
        let put = usize::try_from(put).map_err(|_| last_error())?;
        self.full_since = None;
        Ok(put)
    }

    /// Returns whether the bytes are bounded that may wait in the interface. Then each frame must
    /// be taken or wait, and frames are not coalesced: traffic control may cut a super-frame and
    /// take a part of it (`tbf`).
    #[must_use]
    pub fn has_bounded_room(&self) -> bool {
        if self.kind == Kind::Tap {
            return false;
        }
        let buffer = sockopt::socket_send_buffer_size(&self.queue);
        // The system doubles what is set.
        buffer.is_ok_and(|bytes| (bytes as u64) < 2 * PACKET_BACKLOG)
    }

    /// Returns whether a frame must be sent again later that a queue of the system did not take.
    pub(crate) fn is_worth_a_retry(&mut self, now: Instant) -> bool {
        if !self.has_bounded_room() {
            return false;
        }
        let since = *self.full_since.get_or_insert(now);
        let is_young = now.duration_since(since) <= PATIENCE;
        if !is_young {
            self.full_since = None;
        }
        is_young
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
