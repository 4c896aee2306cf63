//! An `AF_PACKET` socket with `PACKET_VNET_HDR` and `PACKET_AUXDATA` (packet(7)), several frames a
//! call.
//!
//! The mapped rings of such sockets are not used to receive:
//!
//! * `TPACKET_V3` hands over a block of frames when it is full, or after a timer of 1 ms at least,
//!   and no frame before that wakes its reader: one that comes alone waits for half a millisecond
//!   (`docs/benchmarks/external.md`). No setting hands over a block earlier.
//! * `TPACKET_V2` hands over each frame at once. But a packet that no virtio header describes
//!   leaves its slot taken for good, and the ring receives nothing any more (`tpacket_rcv` of Linux
//!   up to 6.18 at least): the other end of a veth pair could end an uplink by one packet.
//! * They are kernel memory that cannot be shared with another process: a frame would be copied out
//!   of the ring a second time. `recvmmsg` copies it once, to its buffer.
//!
//! The header that the system reads and writes has 10 bytes, without `num_buffers`. The system
//! strips the outermost VLAN tag and reports it beside; it is reinserted here.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use ipc::driving::DriverCounters;
use rustix::io::Errno;
use wire::virtio::net::{self, NetHeader, SHORT_LEN};

use crate::{BATCH, HEADER, HEADROOM, ROOM, ReceivedFrame, Stop, last_error};

/// The two addresses before a tag.
const ADDRESSES: usize = 12;
/// Bytes of a tag. There is room for it before the header.
const TAG: usize = 4;
const _: () = assert!(TAG <= HEADROOM as usize);
/// Room for one `struct tpacket_auxdata` as ancillary data, aligned as that wants it.
const CONTROL: usize = 8;

/// Tables for system calls.
pub(super) struct Messages {
    messages: [libc::mmsghdr; BATCH],
    pieces: [[libc::iovec; 2]; BATCH],
    control: [[u64; CONTROL]; BATCH],
}

// SAFETY: the pointers in the tables are set before each system call and mean nothing after
// it.
unsafe impl Send for Messages {}

impl Default for Messages {
    fn default() -> Self {
        // SAFETY: zero is a value of these C structures: null pointers and lengths of 0.
        let (message, piece) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            messages: [message; BATCH],
            pieces: [[piece; 2]; BATCH],
            control: [[0; CONTROL]; BATCH],
        }
    }
}

impl Messages {
    /// Makes message `at` describe a header, the frame after it, and the room for ancillary data.
    fn describe(&mut self, at: usize, header: *mut u8) {
        let piece = |start: *mut u8, len| libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        };
        let body = header.wrapping_add(HEADER as usize);
        self.pieces[at] = [piece(header, SHORT_LEN), piece(body, ROOM)];
        let head = &mut self.messages[at].msg_hdr;
        head.msg_iov = self.pieces[at].as_mut_ptr();
        head.msg_iovlen = 2;
        head.msg_flags = 0;
        head.msg_control = self.control[at].as_mut_ptr().cast();
        head.msg_controllen = size_of::<[u64; CONTROL]>() as _;
    }

    /// # Safety
    /// As for [`Receiver::receive`](super::Receiver::receive).
    pub(super) unsafe fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        buffers: &[*mut u8],
        received: &mut Vec<ReceivedFrame>,
        counters: &mut DriverCounters,
    ) -> Result<Stop, Errno> {
        for (at, buffer) in buffers.iter().enumerate() {
            self.describe(at, buffer.wrapping_add(HEADROOM as usize));
        }
        let mut done = 0;
        // A call that returns fewer than it may was ended by an empty socket or by a frame that the
        // system could not pass on; only the next call shows which, and until it has returned
        // "empty" there will be no wake-up.
        while done < buffers.len() {
            // SAFETY: the messages have been described, with buffers as the caller promises them.
            let got = unsafe { self.receive_some(socket, done..buffers.len()) }?;
            counters.received.calls += 1;
            for (at, buffer) in buffers.iter().enumerate().skip(done).take(got) {
                // SAFETY: the message was received, into this buffer.
                let frame = unsafe { self.finish(at, *buffer) };
                if frame.len == 0 {
                    counters.oversized_frames += 1;
                }
                received.push(frame);
            }
            done += got;
        }
        Ok(Stop::Done)
    }

    /// # Safety
    /// The messages describe mapped memory.
    unsafe fn receive_some(
        &mut self,
        socket: BorrowedFd<'_>,
        which: Range<usize>,
    ) -> Result<usize, Errno> {
        let flags = libc::MSG_DONTWAIT as _;
        let messages = &mut self.messages[which];
        let (first, count) = (messages.as_mut_ptr(), messages.len());
        let (socket, no_limit) = (socket.as_raw_fd(), ptr::null_mut());
        // SAFETY: pieces and control buffers of the messages are as long as described and mapped
        // until the call returns; the tables have no other user meanwhile. The buffers may be
        // written by others too, which does not affect the system.
        let got = unsafe { libc::recvmmsg(socket, first, count as _, flags, no_limit) };
        usize::try_from(got).map_err(|_| last_error())
    }

    /// Returns the frame of message `at`; of length 0 if it cannot be used.
    ///
    /// # Safety
    /// The message has been received, and into this buffer.
    unsafe fn finish(&self, at: usize, buffer: *mut u8) -> ReceivedFrame {
        let message = &self.messages[at];
        let head = &message.msg_hdr;
        let start = HEADROOM;
        // The length is that of both pieces, and the frame is longer than its two addresses.
        let body = (message.msg_len as usize).saturating_sub(SHORT_LEN);
        if head.msg_flags & libc::MSG_TRUNC != 0 || body <= ADDRESSES || body > ROOM {
            return ReceivedFrame { start, len: 0 };
        }
        let len = HEADER + body as u32;
        // SAFETY: the 2 bytes lie inside the buffer, between the system's header and the frame, and
        // the buffer is mapped. Others may write it at any time: no reference is made to it, and
        // nothing read from it is relied on.
        unsafe { set_num_buffers(buffer.wrapping_add(HEADROOM as usize)) };
        match self.tag(at) {
            None => ReceivedFrame { start, len },
            Some(tag) => {
                let start = start - TAG as u32;
                // SAFETY: room for the tag, header and addresses lie inside the buffer (the frame
                // is longer than they are), which is used as above.
                unsafe { insert_tag(buffer.wrapping_add(start as usize), tag) };
                ReceivedFrame {
                    start,
                    len: len + TAG as u32,
                }
            }
        }
    }

    /// The tag that the system took off message `at`.
    fn tag(&self, at: usize) -> Option<[u8; TAG]> {
        let head = &self.messages[at].msg_hdr;
        // SAFETY: the system wrote the control buffer of this message and its length; CMSG_FIRSTHDR
        // and CMSG_NXTHDR stay inside of both.
        let found = unsafe {
            let mut next = libc::CMSG_FIRSTHDR(head);
            while let Some(message) = next.as_ref() {
                let kind = (message.cmsg_level, message.cmsg_type);
                if kind == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
                    break;
                }
                next = libc::CMSG_NXTHDR(head, next);
            }
            next.as_ref()
        }?;
        // SAFETY: the system's ancillary data of this type is a `struct tpacket_auxdata`; the read
        // needs no alignment.
        let data: libc::tpacket_auxdata =
            unsafe { ptr::read_unaligned(libc::CMSG_DATA(found).cast()) };
        tag_of(&data)
    }
}

/// Returns the number of frames that found no room in a socket since the last call: the system
/// starts again at 0 (`PACKET_STATISTICS`, packet(7)).
pub(super) fn take_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut values = [0; 2];
    let mut size = size_of_val(&values) as libc::socklen_t;
    let (fd, place) = (socket.as_raw_fd(), (&raw mut values).cast());
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: the kernel writes at most `size` bytes to the values.
    let got = unsafe { libc::getsockopt(fd, level, option, place, &raw mut size) };
    let [_, drops] = values;
    if got < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(drops)
    }
}

/// The tag that a frame had on the wire.
fn tag_of(data: &libc::tpacket_auxdata) -> Option<[u8; TAG]> {
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if known { data.tp_vlan_tpid } else { 0x8100 };
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = data.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}

/// Completes the system's header to one of [`net::LEN`] bytes: `num_buffers` is 0 from a driver
/// (5.1.6.2).
///
/// # Safety
/// `header` is the address of [`net::LEN`] mapped, writable bytes. Another process may write them
/// meanwhile; this one does not.
unsafe fn set_num_buffers(header: *mut u8) {
    // SAFETY: all bytes lie in what the caller promises, and no reference to them is made.
    unsafe { ptr::write_bytes(header.add(SHORT_LEN), 0, net::LEN - SHORT_LEN) };
}

/// Puts a tag after the addresses of a frame; header and addresses move into the room for it. A
/// checksum then starts later.
///
/// # Safety
/// `buffer` is the address of [`TAG`] bytes of room, a header, and a frame with both addresses:
/// mapped, writable bytes. Another process may write them meanwhile, and then the frame is what it
/// makes of it; this one does not.
unsafe fn insert_tag(buffer: *mut u8, tag: [u8; TAG]) {
    // SAFETY: all bytes lie in what the caller promises; source and target overlap, which `copy`
    // allows. The header is decoded from a copy of our own, no value of it is used as a length or
    // an address here, and no reference to the buffer is made.
    unsafe {
        ptr::copy(buffer.add(TAG), buffer, net::LEN + ADDRESSES);
        ptr::copy(tag.as_ptr(), buffer.add(net::LEN + ADDRESSES), TAG);
        let mut bytes = [0; net::LEN];
        ptr::copy(buffer, bytes.as_mut_ptr(), net::LEN);
        let mut header = NetHeader::decode(&bytes);
        let longer = TAG as u16;
        if header.needs_csum() {
            header.csum_start = header.csum_start.saturating_add(longer);
        }
        if header.hdr_len > 0 {
            header.hdr_len = header.hdr_len.saturating_add(longer);
        }
        ptr::copy(header.encode().as_ptr(), buffer, net::LEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: NetHeader, body: &[u8]) -> Vec<u8> {
        [&[0xee; TAG], &header.encode()[..], body].concat()
    }

    #[test]
    fn a_tag_goes_behind_the_addresses() {
        let header = NetHeader {
            flags: net::FLAG_NEEDS_CSUM,
            hdr_len: 54,
            csum_start: 34,
            csum_offset: 16,
            ..NetHeader::default()
        };
        let body: Vec<u8> = (0..100).collect();
        let mut buffer = frame(header, &body);
        // SAFETY: the buffer has room for a tag, header and 100 bytes of frame.
        unsafe { insert_tag(buffer.as_mut_ptr(), [0x81, 0, 0x20, 10]) };
        let moved = NetHeader::decode(buffer[..12].try_into().unwrap());
        assert_eq!((moved.csum_start, moved.hdr_len), (38, 58));
        assert_eq!(moved.csum_offset, 16);
        let expected = [&body[..12], &[0x81, 0, 0x20, 10], &body[12..]].concat();
        assert_eq!(buffer[12..], expected);
        // Without a checksum to do, there is no start of one.
        let mut buffer = frame(NetHeader::default(), &body);
        // SAFETY: as above.
        unsafe { insert_tag(buffer.as_mut_ptr(), [0x88, 0xa8, 0, 1]) };
        assert_eq!(buffer[..12], NetHeader::default().encode());
    }

    #[test]
    fn what_the_system_tells_of_a_tag() {
        let told = |status, tci, tpid| {
            // SAFETY: zero is a value of this C structure.
            let mut data: libc::tpacket_auxdata = unsafe { std::mem::zeroed() };
            (data.tp_status, data.tp_vlan_tci, data.tp_vlan_tpid) = (status, tci, tpid);
            tag_of(&data)
        };
        let (valid, typed) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        assert_eq!(told(0, 10, 0x8100), None);
        assert_eq!(told(valid, 0x200a, 0), Some([0x81, 0, 0x20, 10]));
        assert_eq!(told(valid | typed, 10, 0x88a8), Some([0x88, 0xa8, 0, 10]));
    }
}
