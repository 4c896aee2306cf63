//! A TAP device by a vhost device of the kernel (`drivers/vhost/net.c`): a thread of the kernel
//! moves frames between a queue of the TAP device and two virtqueues. Their buffers are those of
//! the memory shared with the switch. Only numbers of buffers are moved here, from one ring to
//! another; no frame is copied, and no system call is made for one.
//!
//! ```text
//! to the switch     free -> receive ring -> vhost fills -> switch -> free
//! from the switch   switch -> send ring -> vhost sends -> switch
//! ```
//!
//! The rings of the device are in memory of the driver's own, which the switch does not have. Each
//! has as many entries as the switch's queue for the same buffers, so it is never full.
//!
//! The device reports neither a frame that the interface does not take, nor the removal of the
//! interface. So the driver looks at the TAP device with each heartbeat.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use interfaces::MEMORY;
use interfaces::vhost::{self, Device};
use ipc::driving::DriverCounters;
use netio::{ArrangedGroup, Outbox, frames_on_the_wire};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sys::{event, wait};
use vhost_frontend::queue::{Direction, Fault, Piece, Queue};
use vhost_frontend::region::{self, Region};
use wire::virtio::shape::{BUFFER, QUEUE_SIZE, Shape};

use super::{BATCH, HEADER, HEADROOM, IncomingFrame, OutgoingFrame, Stop};
use crate::free_buffers::FreeBuffers;

/// Fewer free buffers at the device than this are too few to sleep without hearing of more.
const LOW: u16 = QUEUE_SIZE / 4;
/// Number of sent frames for one notification, if as many are on their way; else one notification
/// is for all. Their buffers are the room that the switch has for more.
const SENT: u16 = QUEUE_SIZE / 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct VhostNet {
    device: Device,
    /// Queue of the TAP device, to see its end.
    tap: OwnedFd,
    /// Frames of the interface, in buffers of the queue to the switch.
    received: Queue,
    /// Frames for the interface, in buffers of the queue from the switch.
    sent: Queue,
    /// Of both rings, in the order of their numbers.
    kicks: [OwnedFd; 2],
    /// Signalled by the device for either ring.
    call: OwnedFd,
    /// Signalled by the device when it finds a ring malformed.
    error: OwnedFd,
    region: Arc<Region>,
    /// Brings frames of a flow together; empty between two batches.
    outbox: Outbox,
    is_attached: bool,
    /// The device gets no more buffers for frames of the interface.
    is_stopped: bool,
    /// Kept for its memory.
    pieces: Vec<Piece>,
}

fn at_fault(fault: Fault) -> io::Error {
    io::Error::other(format!("vhost-net {fault}"))
}

impl VhostNet {
    /// Queue pair `pair` of `region`, over a queue of a TAP device, which takes super-frames of UDP
    /// if `uso`.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(
        device: OwnedFd,
        tap: OwnedFd,
        region: &Arc<Region>,
        pair: u16,
        uso: bool,
    ) -> io::Result<Self> {
        let shape = Shape::LONG.rings_only();
        let rings = Arc::new(Region::over(region::file(MEMORY, shape, 1)?, shape, 1)?);
        let ring = |index: u32, buffers_of, direction| {
            let place = rings.place(index as u16);
            let place = place.with_buffers_of(region.place(buffers_of));
            Queue::at(rings.clone(), place, direction)
        };
        Ok(Self {
            device: device.into(),
            tap,
            received: ring(vhost::RECEIVE, 2 * pair + 1, Direction::Inbound),
            sent: ring(vhost::SEND, 2 * pair, Direction::Outbound),
            kicks: [event::create()?, event::create()?],
            call: event::create()?,
            error: event::create()?,
            region: region.clone(),
            outbox: Outbox::new(uso),
            is_attached: false,
            is_stopped: false,
            pieces: Vec::with_capacity(BATCH),
        })
    }

    /// Sets the device up. This makes a thread of the kernel, with the rights that this process has
    /// now.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn attach(&mut self) -> io::Result<()> {
        let size = self.region.size();
        self.device.take_over()?;
        self.device.share(self.region.pointer(0, size), size)?;
        let rings = [(vhost::RECEIVE, &self.received), (vhost::SEND, &self.sent)];
        for ((index, queue), kick) in rings.into_iter().zip(&self.kicks) {
            let ring = vhost::Ring {
                size: queue.place().shape.entries,
                areas: queue.areas(),
                kick: kick.as_fd(),
                call: self.call.as_fd(),
                error: self.error.as_fd(),
            };
            self.device.set_ring(index, &ring)?;
        }
        for index in [vhost::RECEIVE, vhost::SEND] {
            self.device.set_backend(index, Some(self.tap.as_fd()))?;
        }
        self.is_attached = true;
        Ok(())
    }

    /// Takes no more frames of the interface, which keeps them. Those that have come already are
    /// still to be received.
    pub(super) fn stop_receiving(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_stopped, true) && self.is_attached {
            self.device.set_backend(vhost::RECEIVE, None)?;
        }
        Ok(())
    }

    /// Gives the device all `free` buffers, and takes those that it has filled.
    pub(super) fn receive(
        &mut self,
        queue: &Queue,
        free: &mut FreeBuffers,
        arrived: &mut Vec<IncomingFrame>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        self.post(free)?;
        while arrived.len() < BATCH {
            let Some(used) = self.received.take().map_err(at_fault)? else {
                break;
            };
            let start = HEADROOM;
            // Without a byte after the header there is no frame.
            let len = if used.len > HEADER { used.len } else { 0 };
            if len > 0 {
                let place = queue.buffer(used.id).wrapping_add(start as usize);
                // SAFETY: the frame is inside its buffer, which is mapped.
                counters.received.frames += unsafe { frames_on_the_wire(place, len) };
            }
            let id = used.id;
            arrived.push(IncomingFrame { id, start, len });
        }
        if arrived.is_empty() {
            return Ok(Stop::Wait);
        }
        counters.received.calls += 1;
        Ok(Stop::Done)
    }

    fn post(&mut self, free: &mut FreeBuffers) -> io::Result<()> {
        if self.is_stopped || free.len() == 0 {
            return Ok(());
        }
        while let Some(id) = free.take() {
            self.received.submit(id, HEADROOM, BUFFER - HEADROOM);
        }
        if self.received.publish() {
            event::ring(&self.kicks[vhost::RECEIVE as usize])?;
        }
        Ok(())
    }

    /// Gives the device frames to send; appends to `back` the numbers of buffers with frames that
    /// have left.
    pub(super) fn send(
        &mut self,
        frames: &[OutgoingFrame],
        back: &mut Vec<u16>,
        counters: &mut DriverCounters,
    ) -> io::Result<()> {
        self.take_back(back)?;
        for frame in frames {
            // SAFETY: the frame is in a buffer of the shared memory, which is mapped for as long as
            // this process works with it.
            if !unsafe { self.outbox.push_whole(frame.id, frame.buffer, frame.len) } {
                counters.rejected_by_interface += 1;
                back.push(frame.id);
            }
        }
        let outbox = &mut self.outbox;
        outbox.arrange(outbox.len() > 1);
        for group in outbox.arranged() {
            counters.sent.frames += group.frames_on_the_wire();
            self.pieces.clear();
            describe(&group, &self.sent, &self.region, &mut self.pieces, back);
            self.sent.submit_chain(&self.pieces);
        }
        outbox.clear();
        if self.sent.publish() {
            counters.sent.calls += 1;
            event::ring(&self.kicks[vhost::SEND as usize])?;
        }
        Ok(())
    }

    fn take_back(&mut self, back: &mut Vec<u16>) -> io::Result<()> {
        while let Some(used) = self.sent.take().map_err(at_fault)? {
            let chain = std::iter::successors(Some(used.id), |id| self.sent.take_next(*id));
            back.extend(chain);
        }
        Ok(())
    }

    /// Requests notifications. `true` when there is work already.
    pub(super) fn arm(&mut self) -> io::Result<bool> {
        let has_come = self.received.arm().map_err(at_fault)?;
        let count = self.sent.lent().min(SENT);
        let has_left = count > 0 && self.sent.arm_for(count).map_err(at_fault)?;
        Ok(has_come || has_left)
    }

    /// Returns whether so few buffers are at the device that the switch's return of more is worth
    /// being woken for.
    pub(super) fn is_short(&self) -> bool {
        self.received.lent() < LOW
    }

    /// Returns whether all frames for the interface have left.
    pub(super) fn has_sent(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns an error if the interface was removed, or the device has given up.
    pub(super) fn check(&self) -> io::Result<()> {
        let mut ready = [
            PollFd::new(&self.tap, PollFlags::empty()),
            PollFd::new(&self.error, PollFlags::IN),
        ];
        wait::poll(&mut ready, Some(Instant::now()))?;
        match ready.map(|fd| !fd.revents().is_empty()) {
            [true, _] => Err(Errno::BADFD.into()),
            [_, true] => Err(io::Error::other("vhost-net finds a ring malformed")),
            _ => Ok(()),
        }
    }
}

/// Describes frames that leave as one: the first, with the headers of the super-frame, and the
/// payloads of the others. A frame without a payload is done.
fn describe(
    group: &ArrangedGroup<'_>,
    sent: &Queue,
    region: &Region,
    pieces: &mut Vec<Piece>,
    back: &mut Vec<u16>,
) {
    let headers = group.headers();
    let behind = headers.map_or(0, |[header, head]| (header.len() + head.len()) as u32);
    for (id, len) in group.frames() {
        let is_first = pieces.is_empty();
        if is_first && let Some([header, head]) = headers {
            let buffer = region.pointer(sent.place().buffer(id), BUFFER.into());
            // SAFETY: a buffer is mapped and longer than all headers. The switch may write it at
            // any time: no reference to it is made, and nothing of it is read back.
            unsafe {
                ptr::copy_nonoverlapping(header.as_ptr(), buffer, header.len());
                ptr::copy_nonoverlapping(head.as_ptr(), buffer.add(header.len()), head.len());
            }
        }
        let start = if is_first { 0 } else { behind };
        match len.saturating_sub(start) {
            0 => back.push(id),
            len => pieces.push(Piece { id, start, len }),
        }
    }
}

impl AsFd for VhostNet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}

#[cfg(test)]
mod tests;
