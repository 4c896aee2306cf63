//! An `AF_XDP` socket: frames stay in place, in the memory shared with the switch, and only their
//! addresses travel, through four rings that are shared with the system. See
//! [`interfaces::umem`] for the owner of a buffer.
//!
//! There is no polling, and no call is made for a frame: the system is called after a batch, and
//! only where it requests that (`XDP_USE_NEED_WAKEUP`).

mod checksum;
pub(crate) mod ring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use interfaces::umem::SHAPE;
use ipc::driving::{DriverCounters, XdpStart};
use rustix::io::Errno;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpDesc as Frame, XdpDescOptions, XdpMmapOffsets,
};
use rustix::net::{RecvFlags, SendFlags, sockopt};
use vhost_frontend::queue::Queue;
use vhost_frontend::region::{QueuePlace, Region};
use wire::virtio::net::{self, NetHeader};

use super::{BATCH, HEADER, IncomingFrame, OutgoingFrame, Stop, is_lost};
use crate::free_buffers::FreeBuffers;
use ring::{Consumer, Producer};

/// Shorter than an Ethernet header is no frame.
const SHORTEST: u32 = 14;
/// Turns without a frame from one look at the interface to the next; a ping makes one, too.
const LOOK: u8 = 8;
/// Limit of sleep while frames wait that a call did not send, or too many buffers are in use for
/// long sleeps: there is no notification for these.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Fewer free buffers at the interface than this are too few to sleep without hearing of more.
const LOW: u16 = SHAPE.entries / 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Xdp {
    socket: OwnedFd,
    rings: Rings,
    to_switch: QueuePlace,
    from_switch: QueuePlace,
    start: XdpStart,
    counts: Counts,
    /// Turns in a row without a frame.
    idle: u8,
    /// Oversized and dropped frames of the socket that are counted already.
    lost: [u64; 2],
}

#[derive(Debug)]
struct Rings {
    fill: Producer<u64>,
    received: Consumer<Frame>,
    transmit: Producer<Frame>,
    completed: Consumer<u64>,
}

/// Buffers that the system has; never more than each ring has slots, because a queue has no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// For frames that arrive.
    posted: u16,
    /// With frames on their way out.
    sent: u16,
}

impl Rings {
    fn map(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let XdpMmapOffsets { rx, tx, fr, cr } = sockopt::xdp_mmap_offsets(socket)?;
        Ok(Self {
            fill: Producer::map(socket, XDP_UMEM_PGOFF_FILL_RING, fr)?,
            received: Consumer::map(socket, XDP_PGOFF_RX_RING, rx)?,
            transmit: Producer::map(socket, XDP_PGOFF_TX_RING, tx)?,
            completed: Consumer::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, cr)?,
        })
    }
}

impl Xdp {
    /// The socket of queue pair `pair`, with `region` as its umem.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(
        socket: OwnedFd,
        region: &Region,
        pair: u16,
        start: XdpStart,
    ) -> io::Result<Self> {
        let rings = Rings::map(socket.as_fd())?;
        Ok(Self::with(socket, rings, region, pair, start))
    }

    fn with(socket: OwnedFd, rings: Rings, region: &Region, pair: u16, start: XdpStart) -> Self {
        Self {
            socket,
            rings,
            from_switch: region.place(2 * pair),
            to_switch: region.place(2 * pair + 1),
            start,
            counts: Counts::default(),
            idle: 0,
            lost: [0; 2],
        }
    }

    /// Gives the system all `free` buffers, and takes the frames that it has put into others.
    pub(super) fn receive(
        &mut self,
        queue: &Queue,
        free: &mut FreeBuffers,
        arrived: &mut Vec<IncomingFrame>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        self.post(free)?;
        while arrived.len() < BATCH {
            let Some(frame) = self.rings.received.pop() else {
                break;
            };
            let id = self.to_switch.buffer_at(frame.addr);
            let id = id.ok_or_else(|| io::Error::other("a frame in no buffer of ours"))?;
            self.counts.posted = self.counts.posted.saturating_sub(1);
            match self.with_header(queue, id, frame) {
                Some(frame) => arrived.push(frame),
                None => {
                    counters.oversized_frames += 1;
                    free.put(id);
                }
            }
        }
        self.rings.received.release();
        if arrived.is_empty() {
            return self.rest(counters).map(|()| Stop::Wait);
        }
        self.idle = 0;
        counters.received.calls += 1;
        counters.received.frames += arrived.len() as u64;
        Ok(Stop::Done)
    }

    fn post(&mut self, free: &mut FreeBuffers) -> io::Result<()> {
        if free.len() == 0 {
            return Ok(());
        }
        self.counts.posted += free.len();
        while let Some(id) = free.take() {
            self.rings.fill.push(self.to_switch.buffer(id));
        }
        self.rings.fill.publish();
        if self.rings.fill.needs_wakeup() {
            self.wake()?;
        }
        Ok(())
    }

    /// Writes the virtio header before a frame.
    fn with_header(&self, queue: &Queue, id: u16, frame: Frame) -> Option<IncomingFrame> {
        let inside = frame.addr - self.to_switch.buffer(id);
        let start = u32::try_from(inside).ok()?.checked_sub(HEADER)?;
        let len = frame.len.checked_add(HEADER)?;
        if frame.len < SHORTEST || start.checked_add(len)? > SHAPE.buffer {
            return None;
        }
        let place = queue.buffer(id).wrapping_add(start as usize);
        let header = if self.start.unfinished {
            partial(place.wrapping_add(HEADER as usize), frame.len as usize)
        } else {
            NetHeader::default()
        };
        // SAFETY: the header lies inside the buffer, as was checked, and is mapped. The switch may
        // write it at any time: no reference to it is made, and nothing of it is read back.
        unsafe { ptr::copy_nonoverlapping(header.encode().as_ptr(), place, net::LEN) };
        Some(IncomingFrame { id, start, len })
    }

    /// Handles a call that received nothing. The second time in a row the interface did not cause
    /// the wake-up, and the socket is woken and checked; and then now and then, because a removed
    /// interface is not detected otherwise.
    fn rest(&mut self, counters: &mut DriverCounters) -> io::Result<()> {
        self.idle = self.idle.wrapping_add(1);
        if self.idle % LOOK == 2 {
            self.wake()?;
            self.count_drops(counters);
        }
        Ok(())
    }

    /// Counts the frames that the socket has lost. If the system does not report all statistics,
    /// the counts stay.
    pub(super) fn count_drops(&mut self, counters: &mut DriverCounters) {
        let Ok(statistics) = sockopt::xdp_statistics(&self.socket) else {
            return;
        };
        // A frame that found no free buffer is in both numbers, if the system copies; the other
        // ones of `rx_dropped` were oversized. In zero-copy, `no_buffer` counts no frames.
        let no_buffer = statistics.rx_fill_ring_empty_descs.unwrap_or(0);
        let oversized = statistics.rx_dropped.saturating_sub(no_buffer);
        let dropped = statistics.rx_dropped.min(no_buffer);
        let dropped = dropped.saturating_add(statistics.rx_ring_full.unwrap_or(0));
        let [oversized_before, dropped_before] = self.lost;
        counters.oversized_frames += oversized.saturating_sub(oversized_before);
        *counters.dropped_by_kernel.get_or_insert_default() +=
            dropped.saturating_sub(dropped_before);
        self.lost = [oversized, dropped];
    }

    /// Sends frames; appends to `back` the numbers of buffers that are free again: those of frames
    /// that have left, and of frames that the interface cannot send, which are counted.
    pub(super) fn send(
        &mut self,
        frames: &[OutgoingFrame],
        back: &mut Vec<u16>,
        counters: &mut DriverCounters,
    ) -> io::Result<()> {
        self.reap(back)?;
        let before = self.counts.sent;
        for frame in frames {
            let len = frame.len.saturating_sub(HEADER);
            if !(SHORTEST..=self.start.longest).contains(&len) {
                counters.rejected_by_interface += 1;
                back.push(frame.id);
                continue;
            }
            self.counts.sent += 1;
            self.rings.transmit.push(Frame {
                addr: self.from_switch.buffer(frame.id) + u64::from(HEADER),
                len,
                options: XdpDescOptions::empty(),
            });
        }
        counters.sent.frames += u64::from(self.counts.sent - before);
        self.rings.transmit.publish();
        self.kick(counters)?;
        self.reap(back)
    }

    /// Takes back the buffers of frames that have left.
    fn reap(&mut self, back: &mut Vec<u16>) -> io::Result<()> {
        if self.counts.sent == 0 {
            return Ok(());
        }
        while let Some(address) = self.rings.completed.pop() {
            let id = self.from_switch.buffer_at(address);
            back.push(id.ok_or_else(|| io::Error::other("no buffer of ours was sent"))?);
            self.counts.sent = self.counts.sent.saturating_sub(1);
        }
        self.rings.completed.release();
        Ok(())
    }

    /// Makes the system send the frames in the ring; it takes some frames a call.
    fn kick(&mut self, counters: &mut DriverCounters) -> io::Result<()> {
        let mut pending = self.rings.transmit.pending();
        while pending > 0 && self.rings.transmit.needs_wakeup() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let done = rustix::net::send(&self.socket, &[], flags);
            let left = self.rings.transmit.pending();
            counters.sent.calls += u64::from(left != pending);
            match done {
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::NOBUFS) => {}
                // One frame was taken and dropped.
                Err(Errno::BUSY) => {
                    let dropped = u64::from(left < pending);
                    counters.rejected_by_interface += dropped;
                    counters.sent.frames = counters.sent.frames.saturating_sub(dropped);
                }
                Err(error) => return Err(error.into()),
            }
            if left == pending {
                break;
            }
            pending = left;
        }
        Ok(())
    }

    /// Makes the system read the ring of free buffers, and returns an error if the interface is
    /// gone or down.
    fn wake(&self) -> io::Result<()> {
        let looked = rustix::net::recv(&self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        match looked.map_err(io::Error::from) {
            Err(error) if is_lost(&error) => Err(error),
            // A call that failed is retried later.
            _ => Ok(()),
        }
    }

    /// Returns whether so few buffers are at the interface that the switch's return of more is
    /// worth being woken for.
    pub(super) fn is_short(&self) -> bool {
        self.counts.posted < LOW
    }

    /// How long a sleep may be.
    pub(super) fn sleep_limit(&self) -> Option<Duration> {
        let stuck = self.rings.transmit.pending() > 0 && self.rings.transmit.needs_wakeup();
        (stuck || self.counts.sent > SHAPE.entries / 2).then_some(POLL_INTERVAL)
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The header of a frame with a checksum that may be unfinished.
fn partial(frame: *const u8, len: usize) -> NetHeader {
    let mut head = [0; checksum::HEAD];
    let looked_at = len.min(head.len());
    // SAFETY: the frame's bytes are mapped; the switch could write them meanwhile, so that the copy
    // may be of no frame at all, which is the switch's loss: it checks the header.
    unsafe { ptr::copy(frame, head.as_mut_ptr(), looked_at) };
    match checksum::unfinished(&head[..looked_at], len) {
        None => NetHeader::default(),
        Some((csum_start, csum_offset)) => NetHeader {
            flags: net::FLAG_NEEDS_CSUM,
            csum_start,
            csum_offset,
            ..NetHeader::default()
        },
    }
}

#[cfg(test)]
mod interface_tests;
#[cfg(test)]
mod tests;
