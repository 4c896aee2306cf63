//! Frames of an interface: read into private buffers, leased from them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::driving::DriverCounters;
use ipc::figures::QueueCounts;
use memory::Segment;
use netio::{BUFFER, HEADER, Kind, Moderation, ReceivedFrame, Receiver, Stop};
use port::{DropReason, MAX_FRAME};
use wire::virtio::features::Features;

use super::Fault;
use crate::ports::batch::{BATCH, Batch};
use crate::ports::guest::header;

/// Length of an Ethernet header, the minimum of a frame.
const MIN_FRAME: u32 = 14;
/// Frames that are read in a row while they are long: what is read and not leased grows cold.
const LONG_FRAMES: usize = 4;
/// Bytes of the shortest frame that counts as long.
const LONG: u32 = 4096;

/// A queue of an interface that frames come from. Its buffers are filled from the first one on, so
/// that few of them ever have a long frame: the system gives memory to the others for a page or
/// two.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    receiver: Receiver,
    descriptor: Arc<OwnedFd>,
    features: Features,
    buffers: Vec<Box<[u8]>>,
    /// The buffers as addresses; kept for its memory.
    places: Vec<*mut u8>,
    /// Frames in the first buffers.
    frames: Vec<ReceivedFrame>,
    /// Frames before this one were leased and have ended.
    next: usize,
    /// Frames from `next` on before this one are leased.
    leased: usize,
    /// Frames may be there that were not read.
    readable: bool,
    /// The last frames were long.
    long: bool,
    /// Of the queue of a TAP device, which takes a system call for each frame.
    moderation: Option<Moderation>,
    pub(super) fault: Fault,
    interface: DriverCounters,
    pub(super) counts: QueueCounts,
}

// SAFETY: the pointers in `places` are set before each use and mean nothing after it.
unsafe impl Send for ReceiveQueue {}

impl ReceiveQueue {
    pub(super) fn new(kind: Kind, descriptor: Arc<OwnedFd>, features: Features) -> Self {
        Self {
            receiver: Receiver::new(kind, Arc::clone(&descriptor)),
            descriptor,
            features,
            buffers: Vec::new(),
            places: Vec::with_capacity(BATCH),
            frames: Vec::with_capacity(BATCH),
            next: 0,
            leased: 0,
            readable: true,
            long: false,
            moderation: (kind == Kind::Tap).then(Moderation::default),
            fault: Fault::default(),
            interface: DriverCounters::default(),
            counts: QueueCounts::default(),
        }
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    pub(super) fn note_edge(&mut self) {
        self.readable = true;
        self.counts.notifications += 1;
    }

    /// Reads no more until the next edge. Returns whether frames were read and not leased.
    pub(super) fn stop_reading(&mut self) -> bool {
        self.readable = false;
        self.next < self.frames.len()
    }

    pub(super) fn may_have_frames(&self) -> bool {
        !self.fault.is_some() && (self.readable || self.next < self.frames.len())
    }

    /// Notes that the queue is empty. Returns whether to leave it alone for the time of
    /// [`netio::PAUSE`].
    pub(super) fn end_burst(&mut self) -> bool {
        self.moderation.as_mut().is_some_and(Moderation::end_burst)
    }

    /// Returns the counters of what the interface has received.
    pub(super) fn interface_counters(&mut self) -> DriverCounters {
        self.receiver.count_drops(&mut self.interface);
        self.interface
    }

    /// Leases frames up to the limit of the empty batch: those that were read before, or new ones.
    pub(super) fn lease(&mut self, batch: &mut Batch) {
        self.leased = self.next;
        loop {
            self.lease_read(batch);
            if batch.is_full() || self.leased < self.frames.len() {
                return;
            }
            // Lost frames have buffers, too.
            let room = batch.limit().frames.saturating_sub(self.leased - self.next);
            let room = room.min(BATCH.saturating_sub(self.frames.len()));
            if !self.readable || self.fault.is_some() || room == 0 || !self.read(room) {
                return;
            }
        }
    }

    /// Reads frames, at most as many. Returns whether there were any.
    fn read(&mut self, most: usize) -> bool {
        let most = if self.long {
            most.min(LONG_FRAMES)
        } else {
            most
        };
        let first = self.frames.len();
        while self.buffers.len() < first + most {
            self.buffers.push(vec![0; BUFFER].into_boxed_slice());
        }
        self.places.clear();
        let free = &mut self.buffers[first..first + most];
        let places = free.iter_mut().map(|buffer| buffer.as_mut_ptr());
        self.places.extend(places);
        let (places, frames) = (&self.places, &mut self.frames);
        // SAFETY: each is the address of a buffer of that many bytes, which nothing else uses now.
        let stop = unsafe { self.receiver.receive(places, frames, &mut self.interface) };
        match stop {
            // If the system has no memory to pass a frame on, no edge follows: the queue is polled.
            Ok(Stop::Done | Stop::Retry) => {}
            Ok(Stop::Wait | Stop::Fault) => self.readable = false,
            Err(error) => self.fault.note(&error),
        }
        let new = &self.frames[first..];
        self.long = new.iter().any(|frame| frame.len >= LONG);
        if let Some(moderation) = &mut self.moderation {
            new.iter().for_each(|frame| moderation.received(frame.len));
        }
        !new.is_empty()
    }

    /// Leases frames that were read.
    fn lease_read(&mut self, batch: &mut Batch) {
        while !batch.is_full()
            && let Some(frame) = self.frames.get(self.leased).copied()
        {
            let buffer = self.buffers[self.leased].as_mut_ptr();
            self.leased += 1;
            if frame.len > HEADER {
                let place = buffer.wrapping_add(frame.start as usize);
                lease_one(place, frame.len, self.features, batch);
                self.counts.frames += 1;
                self.counts.bytes += u64::from(frame.len - HEADER);
            }
        }
    }

    /// Ends the leases after the first `kept` frames: they are leased again next.
    pub(super) fn leave_from(&mut self, kept: usize) {
        let mut left = kept;
        let mut at = self.next;
        while at < self.leased && (left > 0 || self.frames[at].len <= HEADER) {
            left -= usize::from(self.frames[at].len > HEADER);
            at += 1;
        }
        let left = &self.frames[at..self.leased];
        for frame in left.iter().filter(|frame| frame.len > HEADER) {
            self.counts.frames -= 1;
            self.counts.bytes -= u64::from(frame.len - HEADER);
        }
        self.leased = at;
    }

    /// Ends all leases.
    pub(super) fn end_leases(&mut self) {
        self.next = self.leased;
        if self.next == self.frames.len() {
            self.frames.clear();
            (self.next, self.leased) = (0, 0);
        }
    }
}

/// Makes a frame of the header and frame at `place`, or counts it as dropped.
fn lease_one(place: *mut u8, len: u32, features: Features, batch: &mut Batch) {
    let arena = batch.segments_mut();
    let start = arena.len() as u32;
    arena.push(Segment {
        ptr: place,
        len,
        gpa: 0,
    });
    let range = start..start + 1;
    let frame = len - HEADER;
    // SAFETY: the place has `len` bytes of a buffer of the queue, which stays as it is until the
    // leases end.
    let words = unsafe { batch.peek_words(&range, HEADER as usize) };
    let (low, high) = words.unwrap_or_default();
    let offload = header::decode_words(low, high, features);
    let refused = match &offload {
        Err(reason) => Some(*reason),
        Ok(_) if frame < MIN_FRAME => Some(DropReason::Runt),
        Ok(_) if frame > MAX_FRAME => Some(DropReason::Oversize),
        Ok(_) => None,
    };
    match (offload, refused) {
        // SAFETY: as above; the segment has HEADER + frame bytes.
        (Ok(offload), None) => unsafe { batch.push(range, HEADER, frame, offload) },
        (_, reason) => batch.drop_taken(reason.unwrap_or(DropReason::BadHeader), frame),
    }
}
