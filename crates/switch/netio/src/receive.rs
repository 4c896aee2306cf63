//! Reading an interface.

mod packet;
mod tap;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipc::driving::DriverCounters;
use rustix::io::Errno;

use crate::{BATCH, HEADER, Kind, ReceivedFrame, Stop, frames_on_the_wire};

/// The receiving side of one queue of an interface.
pub struct Receiver {
    queue: Arc<OwnedFd>,
    /// Of a packet socket.
    messages: Option<Box<packet::Messages>>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.queue).finish()
    }
}

impl Receiver {
    /// Returns that of a queue.
    #[must_use]
    pub fn new(kind: Kind, queue: Arc<OwnedFd>) -> Self {
        let messages = match kind {
            Kind::Tap => None,
            Kind::Packet => Some(Box::default()),
        };
        Self { queue, messages }
    }

    /// Receives frames, one into each of at most [`BATCH`] `buffers`; what came is appended to
    /// `received`, in the order of the buffers, with length 0 for a frame that is lost and counted.
    /// After [`Stop::Done`] there may be more frames.
    ///
    /// # Safety
    /// Each buffer is the address of [`BUFFER`](crate::BUFFER) bytes of memory that is mapped until
    /// this returns. Others may write it meanwhile; then the frame is what they make of it.
    ///
    /// # Errors
    /// The interface is gone ([`is_lost`](crate::is_lost)), or the system returns an unexpected
    /// error. What was received before is in `received`.
    pub unsafe fn receive(
        &mut self,
        buffers: &[*mut u8],
        received: &mut Vec<ReceivedFrame>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        let buffers = &buffers[..buffers.len().min(BATCH)];
        let before = received.len();
        // SAFETY: what is promised here is promised there.
        let stop = unsafe {
            match &mut self.messages {
                None => tap::receive(self.queue.as_fd(), buffers, received, counters),
                Some(messages) => messages.receive(self.queue.as_fd(), buffers, received, counters),
            }
        };
        for (frame, buffer) in received[before..].iter().zip(buffers) {
            if frame.len > HEADER {
                let place = buffer.wrapping_add(frame.start as usize);
                // SAFETY: the frame is inside its buffer.
                counters.received.frames += unsafe { frames_on_the_wire(place, frame.len) };
            }
        }
        stop.or_else(|error| after(error, counters))
    }

    /// Counts the frames that found no room in a packet socket since the last call.
    pub fn count_drops(&mut self, counters: &mut DriverCounters) {
        if self.reports_drops() {
            // A socket that is of no use any more ends its user elsewhere.
            let drops = packet::take_drops(self.queue.as_fd()).unwrap_or(0);
            *counters.dropped_by_kernel.get_or_insert_default() += u64::from(drops);
        }
    }

    /// Returns whether the system reports the frames that it drops.
    #[must_use]
    pub fn reports_drops(&self) -> bool {
        self.messages.is_some()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// Returns how to continue receiving after an error.
pub(crate) fn after(error: Errno, counters: &mut DriverCounters) -> io::Result<Stop> {
    match error {
        Errno::AGAIN => Ok(Stop::Wait),
        Errno::INTR => Ok(Stop::Done),
        Errno::NOMEM | Errno::NOBUFS => Ok(Stop::Retry),
        // One frame that the system could not describe with a virtio header, and has dropped.
        // Others wait after it.
        Errno::INVAL => {
            counters.rejected_by_interface += 1;
            Ok(Stop::Done)
        }
        // It is unknown whether there was a frame, and a retry could loop.
        error => Err(error.into()),
    }
}
