//! A queue of a TAP device or a packet socket: system calls with buffers of the shared memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipc::driving::DriverCounters;
use netio::{BATCH, Kind, Outbox, ReceivedFrame, Receiver, Sender, Stop};
use vhost_frontend::queue::Queue;

use super::{IncomingFrame, OutgoingFrame};
use crate::free_buffers::FreeBuffers;

/// See the module.
#[derive(Debug)]
pub(crate) struct ByCalls {
    kind: Kind,
    receiver: Receiver,
    sender: Sender,
    /// Frames of the switch that the interface has not taken yet, in buffers of the memory.
    outbox: Outbox,
    /// Kept for their memory.
    buffers: Vec<*mut u8>,
    received: Vec<ReceivedFrame>,
    done: Vec<(u16, bool)>,
}

// SAFETY: the pointers in `buffers` are set before each use and mean nothing after it.
unsafe impl Send for ByCalls {}

impl ByCalls {
    /// Returns that of a queue; `uso`: it takes super-frames of UDP.
    pub(super) fn new(kind: Kind, queue: OwnedFd, uso: bool) -> Self {
        let queue = Arc::new(queue);
        Self {
            kind,
            receiver: Receiver::new(kind, queue.clone()),
            sender: Sender::new(kind, queue),
            outbox: Outbox::new(uso),
            buffers: Vec::with_capacity(BATCH),
            received: Vec::with_capacity(BATCH),
            done: Vec::with_capacity(BATCH),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the number of frames that the interface has not taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    pub(super) fn receive(
        &mut self,
        queue: &Queue,
        free: &mut FreeBuffers,
        arrived: &mut Vec<IncomingFrame>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        if free.len() == 0 {
            return Ok(Stop::Wait);
        }
        let Self {
            buffers, received, ..
        } = self;
        buffers.clear();
        received.clear();
        buffers.extend(free.iter().take(BATCH).map(|id| queue.buffer(id)));
        // SAFETY: the buffers are of the queue's memory, which is mapped, and as long.
        let stop = unsafe { self.receiver.receive(buffers, received, counters) }?;
        for ReceivedFrame { start, len } in received.iter().copied() {
            // As many as there were buffers, at most.
            let Some(id) = free.take() else { break };
            arrived.push(IncomingFrame { id, start, len });
        }
        Ok(stop)
    }

    pub(super) fn send(
        &mut self,
        frames: &[OutgoingFrame],
        back: &mut Vec<u16>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        let Self { outbox, done, .. } = self;
        done.clear();
        for frame in frames {
            // SAFETY: the frame is in a buffer of the shared memory, which is mapped for as long as
            // this process works with it.
            if !unsafe { outbox.push_whole(frame.id, frame.buffer, frame.len) } {
                counters.rejected_by_interface += 1;
                done.push((frame.id, false));
            }
        }
        let stop = loop {
            match self.sender.send(outbox, done, counters)? {
                // The memory is this process's own, all of it: only a frame is lost.
                Stop::Fault => {
                    counters.rejected_by_interface += outbox.drop_first_group(done) as u64;
                }
                stop => break stop,
            }
        };
        back.extend(done.iter().map(|(id, _)| *id));
        Ok(stop)
    }

    pub(super) fn count_drops(&mut self, counters: &mut DriverCounters) {
        self.receiver.count_drops(counters);
    }

    pub(super) fn reports_drops(&self) -> bool {
        self.receiver.reports_drops()
    }
}

impl AsFd for ByCalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
