//! Frames for guests: buffers of the queue to the switch, and frames that wait for one.

use std::collections::VecDeque;
use std::io;

use usernet::Headers;
use vhost_frontend::queue::Fault;
use wire::virtio::net::NetHeader;

use super::memory::Bytes;
use crate::frames::{HEADER, HEADROOM};
use crate::free_buffers::FreeBuffers;
use crate::worker::Side;

/// Maximum number of frames that wait for a buffer; those beyond are lost, as in any queue.
const WAITING_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Guests {
    pub(super) side: Side,
    free: FreeBuffers,
    waiting: VecDeque<(NetHeader, Vec<u8>)>,
    /// No more frames are taken.
    is_closed: bool,
    /// Frames that found no buffer and no place to wait.
    pub(super) lost: u64,
}

/// A buffer to fill.
#[derive(Debug)]
pub(super) struct LeasedBuffer(u16);

impl Guests {
    pub(super) fn new(side: Side) -> Self {
        let entries = side.queue.place().shape.entries;
        Self {
            side,
            free: FreeBuffers::all_of(entries),
            waiting: VecDeque::new(),
            is_closed: false,
            lost: 0,
        }
    }

    /// Takes buffers back, and submits frames that waited for one.
    ///
    /// # Errors
    /// The switch broke a rule.
    pub(super) fn take_back(&mut self) -> Result<(), Fault> {
        while let Some(used) = self.side.queue.take()? {
            self.free.put(used.id);
        }
        while self.free.len() > 0
            && let Some((net, frame)) = self.waiting.pop_front()
        {
            self.submit_frame(net, &frame);
        }
        Ok(())
    }

    /// Takes no more frames: those that wait are lost.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.waiting.clear();
    }

    /// Submits a frame without payload of a socket, or has it wait.
    pub(super) fn send(&mut self, net: NetHeader, frame: &[u8]) {
        if self.is_closed {
            return;
        }
        if self.waiting.is_empty() && self.free.len() > 0 {
            self.submit_frame(net, frame);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((net, frame.to_vec()));
        } else {
            self.lost += 1;
        }
    }

    fn submit_frame(&mut self, net: NetHeader, frame: &[u8]) {
        let room = self.side.queue.place().shape.buffer - HEADROOM - HEADER;
        let fits = u32::try_from(frame.len()).is_ok_and(|len| len <= room);
        match self.lease().filter(|_| fits) {
            Some(leased) => self.submit(leased, net, frame, 0),
            None => self.lost += 1,
        }
    }

    /// Takes a buffer.
    pub(super) fn lease(&mut self) -> Option<LeasedBuffer> {
        self.free.take().map(LeasedBuffer)
    }

    /// Returns whether there is a buffer for a frame that comes after those that wait.
    pub(super) fn has_room(&self) -> bool {
        !self.is_closed && self.waiting.is_empty() && self.free.len() > 0
    }

    /// Returns whether too many frames wait to cause more.
    pub(super) fn is_congested(&self) -> bool {
        self.waiting.len() > WAITING_MAX / 2
    }

    /// Returns the room of a buffer behind `headers` bytes of a frame.
    pub(super) fn behind(&self, leased: &LeasedBuffer, headers: usize) -> Bytes {
        let queue = &self.side.queue;
        let start = HEADROOM + HEADER + headers as u32;
        Bytes::of(queue, leased.0, start, queue.place().shape.buffer - start)
    }

    /// Returns the number of free buffers.
    #[cfg(test)]
    pub(super) fn free(&self) -> u16 {
        self.free.len()
    }

    /// Gives a buffer back that was not filled.
    pub(super) fn give_back(&mut self, leased: LeasedBuffer) {
        self.free.put(leased.0);
    }

    /// Writes headers in front of `payload` bytes, and submits the frame.
    pub(super) fn submit(
        &mut self,
        leased: LeasedBuffer,
        net: NetHeader,
        frame: &[u8],
        payload: u32,
    ) {
        let len = HEADER + frame.len() as u32 + payload;
        let bytes = Bytes::of(&self.side.queue, leased.0, HEADROOM, len);
        // One buffer holds the frame (virtio 1.3, 5.1.6.4).
        let net = NetHeader {
            num_buffers: 1,
            ..net
        };
        bytes.put(&net.encode());
        if let Some(rest) = bytes.part(HEADER as usize, frame.len()) {
            rest.put(frame);
        }
        self.side.queue.submit(leased.0, HEADROOM, len);
    }

    /// As [`Self::submit`], with headers of the translator.
    pub(super) fn submit_headers(&mut self, leased: LeasedBuffer, headers: &Headers, payload: u32) {
        self.submit(leased, headers.net(), headers.bytes(), payload);
    }

    /// Hands submitted frames to the switch.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        self.side.publish()
    }

    /// Returns whether the switch has none of the frames any more.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.side.queue.is_empty()
    }

    /// Returns whether frames wait for a buffer.
    pub(super) fn is_short(&self) -> bool {
        !self.waiting.is_empty() || self.free.len() == 0
    }
}
