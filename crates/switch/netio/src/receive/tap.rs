//! A queue of a TAP device (Linux, `Documentation/networking/tuntap.rst`): each read is a frame
//! with its header of 12 bytes. There is no call for several, but there are super-frames.
//!
//! The descriptor does not block (`O_NONBLOCK`). That is also what lets the system build a short
//! frame in one step (`tun_can_build_skb` of `drivers/net/tun.c`).

use std::os::fd::{AsRawFd, BorrowedFd};

use ipc::driving::DriverCounters;
use rustix::io::Errno;

use crate::{HEADER, HEADROOM, ROOM, ReceivedFrame, Stop, last_error};

/// # Safety
/// As for [`Receiver::receive`](super::Receiver::receive).
pub(super) unsafe fn receive(
    queue: BorrowedFd<'_>,
    buffers: &[*mut u8],
    received: &mut Vec<ReceivedFrame>,
    counters: &mut DriverCounters,
) -> Result<Stop, Errno> {
    for buffer in buffers {
        // SAFETY: the caller's promise.
        let mut len = unsafe { read(queue, *buffer) }?;
        counters.received.calls += 1;
        // A longer frame is truncated without notice; no whole frame is that long.
        if len >= HEADER + ROOM as u32 {
            counters.oversized_frames += 1;
            len = 0;
        }
        let start = HEADROOM;
        received.push(ReceivedFrame { start, len });
    }
    Ok(Stop::Done)
}

/// # Safety
/// As above.
unsafe fn read(queue: BorrowedFd<'_>, buffer: *mut u8) -> Result<u32, Errno> {
    let start = buffer.wrapping_add(HEADROOM as usize);
    let room = HEADER as usize + ROOM;
    // SAFETY: the buffer has HEADROOM + HEADER + ROOM bytes of memory that is mapped until the call
    // returns. Others may write it too, so the bytes are never accessed as Rust values.
    let got = unsafe { libc::read(queue.as_raw_fd(), start.cast(), room) };
    match u32::try_from(got) {
        Ok(len) if len > HEADER => Ok(len),
        // The end of the file: the device has none, so this is no device any more.
        Ok(0) => Err(Errno::BADFD),
        // A frame without a byte.
        Ok(_) => Err(Errno::INTR),
        Err(_) => Err(last_error()),
    }
}
