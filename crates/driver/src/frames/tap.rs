//! A queue of a TAP device (Linux, `Documentation/networking/tuntap.rst`): each read is a frame
//! with its header of 12 bytes, each write likewise. There is no call for several, but there are
//! super-frames.
//!
//! The descriptor does not block (`O_NONBLOCK`). That is also what lets the system build a short
//! frame in one step (`tun_can_build_skb` of `drivers/net/tun.c`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use channel::driving::DriverCounters;
use rustix::io::Errno;

use super::coalesce::{Coalescer, Group};
use super::{BATCH, HEADER, HEADROOM, Outgoing, ROOM, Received, Stop, last_error};

/// See the module.
#[derive(Debug)]
pub(crate) struct Tap {
    queue: OwnedFd,
    /// Kept for its memory.
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in `pieces` are set before each system call and mean nothing after it.
unsafe impl Send for Tap {}

impl Tap {
    pub(super) fn new(queue: OwnedFd) -> Self {
        let pieces = Vec::with_capacity(2 + BATCH);
        Self { queue, pieces }
    }

    pub(super) fn receive(
        &mut self,
        buffers: &[*mut u8],
        received: &mut Vec<Received>,
        counters: &mut DriverCounters,
    ) -> Result<Stop, Errno> {
        for buffer in buffers {
            let mut len = self.read(*buffer)?;
            counters.received.calls += 1;
            // A longer frame is truncated without notice; no whole one is so long.
            if len >= HEADER + ROOM as u32 {
                counters.oversized_frames += 1;
                len = 0;
            }
            let start = HEADROOM;
            received.push(Received { start, len });
        }
        Ok(Stop::Done)
    }

    fn read(&self, buffer: *mut u8) -> Result<u32, Errno> {
        let start = buffer.wrapping_add(HEADROOM as usize);
        let room = HEADER as usize + ROOM;
        // SAFETY: the buffer has HEADROOM + HEADER + ROOM bytes of memory that is mapped for as
        // long as this process works with it. The switch may write it too, so the bytes are never
        // accessed as Rust values.
        let got = unsafe { libc::read(self.queue.as_raw_fd(), start.cast(), room) };
        match u32::try_from(got) {
            Ok(len) if len > HEADER => Ok(len),
            // The end of the file: the device has none, so this is no device any more.
            Ok(0) => Err(Errno::BADFD),
            // A frame without a byte.
            Ok(_) => Err(Errno::INTR),
            Err(_) => Err(last_error()),
        }
    }

    /// Sends a group of these frames.
    pub(super) fn send(
        &mut self,
        coalescer: &Coalescer,
        group: &Group,
        frames: &[Outgoing],
    ) -> Result<(), Errno> {
        let queue = self.queue.as_raw_fd();
        let put = match frames {
            // SAFETY: the caller's frame is `len` bytes of mapped memory; only the system reads it.
            [Outgoing { buffer, len, .. }] => unsafe {
                libc::write(queue, buffer.cast(), *len as usize)
            },
            _ => {
                self.pieces.clear();
                coalescer.describe(group, frames, HEADER as usize, &mut self.pieces);
                let count = self.pieces.len() as libc::c_int;
                // SAFETY: the pieces are of the group and of mapped frames; only the system reads
                // them.
                unsafe { libc::writev(queue, self.pieces.as_ptr(), count) }
            }
        };
        if put < 0 { Err(last_error()) } else { Ok(()) }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
