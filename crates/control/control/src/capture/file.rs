//! Body of a capture's response: a pcapng file, made in chunks, each when the client has read those
//! before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use ipc::capture::{MAX_CAPTURES, Reader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::pcapng;

/// Interval, 1 ms, between two looks at empty rings. With a timer that is late by as
/// much again, a ring of the default length can take 8 GiB a second.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes of a chunk, about. Smaller chunks cost more system calls and wake-ups for a frame, larger
/// ones do not stay in the CPU's cache until they are sent.
const CHUNK: usize = 256 << 10;
/// Capacity of a chunk, with the longest block that may end it.
const CHUNK_CAPACITY: usize = CHUNK + (66 << 10);

/// The input of a capture file.
pub struct CaptureSource {
    /// Reader of the captured frames.
    pub reader: Reader,
    /// Name of the port.
    pub port: String,
    /// The filter as the client sent it.
    pub filter: String,
    /// Most bytes of each frame.
    pub snaplen: u32,
    /// Frames after which the file ends.
    pub count: Option<u64>,
    /// Called once when no more frames are needed, for any reason.
    pub ended: Box<dyn FnOnce() + Send>,
}

/// Slots of [`MAX_CAPTURES`] captures. Clones share the slots.
#[derive(Clone, Debug)]
pub struct CaptureSlots(Arc<Semaphore>);

/// Slot of one capture.
#[derive(Debug)]
pub struct CaptureSlot {
    _permit: OwnedSemaphorePermit,
}

impl Default for CaptureSlots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CAPTURES)))
    }
}

impl CaptureSlots {
    /// Takes a slot, if one is free.
    #[must_use]
    pub fn acquire(&self) -> Option<CaptureSlot> {
        let slot = Arc::clone(&self.0).try_acquire_owned();
        slot.ok().map(|permit| CaptureSlot { _permit: permit })
    }
}

/// The body of the response. While the client reads nothing, the rings fill up.
#[derive(Debug)]
pub struct CaptureBody {
    /// `None` when all frames were read.
    source: Option<CaptureSource>,
    /// Bytes to send next.
    out: Vec<u8>,
    /// Bytes sent last.
    sent: Bytes,
    written: u64,
    /// Pause after empty rings.
    pause: Pin<Box<Sleep>>,
    _slot: CaptureSlot,
}

impl CaptureBody {
    /// Starts a file, which keeps `slot` until its end. Call it inside the runtime.
    #[must_use]
    pub fn new(slot: CaptureSlot, source: CaptureSource) -> Self {
        let mut out = Vec::with_capacity(CHUNK_CAPACITY);
        pcapng::begin(&mut out, &source.port, &source.filter, source.snaplen);
        Self {
            source: Some(source),
            out,
            sent: Bytes::new(),
            written: 0,
            pause: Box::pin(sleep(Duration::ZERO)),
            _slot: slot,
        }
    }

    /// Reads about a chunk; at the end of the capture, writes the end of the file.
    fn read(&mut self) {
        let Some(source) = &mut self.source else {
            return;
        };
        let is_last = source.reader.is_ended();
        let is_over = loop {
            if source.count.is_some_and(|count| self.written >= count) {
                break true;
            }
            if self.out.len() >= CHUNK {
                break false;
            }
            let out = &mut self.out;
            let write = |seen: &_, bytes: &[u8]| pcapng::packet(out, seen, bytes);
            match source.reader.take(write) {
                Ok(Some(())) => self.written += 1,
                Ok(None) => break is_last,
                Err(error) => {
                    tracing::error!(port = source.port, "capture ended early: {error}");
                    break true;
                }
            }
        };
        if is_over {
            let counts = source.reader.counts();
            pcapng::end(&mut self.out, now(), counts, self.written);
            self.stop();
        }
    }

    /// Returns the bytes to send. The next chunk reuses the memory of the last one, which is free
    /// by then as a rule: new memory would come from the kernel each time, and be zeroed.
    fn take_chunk(&mut self) -> Bytes {
        let last = std::mem::take(&mut self.sent).try_into_mut();
        let spare = last.ok().map(|mut memory| {
            memory.clear();
            Vec::from(memory)
        });
        let spare = spare.filter(|memory| memory.capacity() >= CHUNK_CAPACITY);
        let next = spare.unwrap_or_else(|| Vec::with_capacity(CHUNK_CAPACITY));
        let chunk = Bytes::from(std::mem::replace(&mut self.out, next));
        self.sent = chunk.clone();
        chunk
    }

    /// Ends the capture.
    fn stop(&mut self) {
        if let Some(source) = self.source.take() {
            (source.ended)();
        }
    }
}

impl Body for CaptureBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            ready!(self.pause.as_mut().poll(context));
            self.read();
            if self.out.len() < CHUNK {
                // The next chunk is longer after a pause.
                self.pause.as_mut().reset(Instant::now() + POLL_INTERVAL);
            }
            if !self.out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(self.take_chunk()))));
            }
            if self.source.is_none() {
                return Poll::Ready(None);
            }
        }
    }
}

impl Drop for CaptureBody {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for CaptureSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureSource")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Returns nanoseconds since 1970.
fn now() -> u64 {
    sys::time::since_1970().as_nanos() as u64
}

#[cfg(test)]
mod tests;
