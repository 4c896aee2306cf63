//! What the switch copies, as the body of an answer: a file that is made piece by piece, each when the client has read those before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use channel::capture::{MAX_CAPTURES, Reader};
use hyper::body::{Body, Frame};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::pcapng;

/// Until it looks again at rings that were empty. The timer may be as late once more, and a ring of the usual length takes 8 GiB a
/// second then.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a piece, about. With less of them there are more system calls and wake-ups for a frame, with more a piece does not stay in
/// the processor's cache until it is sent.
const PIECE: usize = 256 << 10;
/// Room for a piece, and for the longest block with which it may end.
const ROOM: usize = PIECE + (66 << 10);

/// What a client is to get.
pub struct Feed {
    /// Where frames come from.
    pub reader: Reader,
    /// The port's name.
    pub port: String,
    /// The filter as it was given.
    pub filter: String,
    /// Bytes of each frame at most.
    pub snaplen: u32,
    /// Frames after which it ends.
    pub count: Option<u64>,
    /// To be called when nothing more is wanted, whyever.
    pub ended: Box<dyn FnOnce() + Send>,
}

/// Room for [`MAX_CAPTURES`]. Clones have the same places.
#[derive(Clone, Debug)]
pub struct Places(Arc<Semaphore>);

/// A place for one capture.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CAPTURES)))
    }
}

impl Places {
    /// A place, if one is free.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        let place = Arc::clone(&self.0).try_acquire_owned();
        place.ok().map(|permit| Place { _permit: permit })
    }
}

/// The file. While nobody asks for more of it, the rings fill.
#[derive(Debug)]
pub struct Pieces {
    /// `None` when everything was read; what is left is to be sent.
    feed: Option<Feed>,
    /// What is to be sent next.
    out: Vec<u8>,
    /// What was sent last.
    sent: Bytes,
    written: u64,
    /// It found nothing more, and looks again after that.
    pause: Pin<Box<Sleep>>,
    _place: Place,
}

impl Pieces {
    /// Begins to make a file; `place` is taken until its end. Call it inside the runtime.
    #[must_use]
    pub fn new(place: Place, feed: Feed) -> Self {
        let mut out = Vec::with_capacity(ROOM);
        pcapng::begin(&mut out, &feed.port, &feed.filter, feed.snaplen);
        Self {
            feed: Some(feed),
            out,
            sent: Bytes::new(),
            written: 0,
            pause: Box::pin(sleep(Duration::ZERO)),
            _place: place,
        }
    }

    /// Reads about a piece; at the end of the capture, writes what a file ends with.
    fn read(&mut self) {
        let Some(feed) = &mut self.feed else {
            return;
        };
        let is_last = feed.reader.is_ended();
        let is_over = loop {
            if feed.count.is_some_and(|count| self.written >= count) {
                break true;
            }
            if self.out.len() >= PIECE {
                break false;
            }
            let out = &mut self.out;
            let write = |seen: &_, bytes: &[u8]| pcapng::packet(out, seen, bytes);
            match feed.reader.take(write) {
                Ok(Some(())) => self.written += 1,
                Ok(None) => break is_last,
                Err(error) => {
                    tracing::error!(port = feed.port, "a capture ends early: {error}");
                    break true;
                }
            }
        };
        if is_over {
            let counts = feed.reader.counts();
            pcapng::end(&mut self.out, now(), counts, self.written);
            self.stop();
        }
    }

    /// What is to be sent. The next piece gets the memory of the one before, which has gone as a rule: new memory would be asked of
    /// the kernel each time, and be filled with zeros.
    fn piece(&mut self) -> Bytes {
        let gone = std::mem::take(&mut self.sent).try_into_mut();
        let spare = gone.ok().map(|mut memory| {
            memory.clear();
            Vec::from(memory)
        });
        let spare = spare.filter(|memory| memory.capacity() >= ROOM);
        let next = spare.unwrap_or_else(|| Vec::with_capacity(ROOM));
        let piece = Bytes::from(std::mem::replace(&mut self.out, next));
        self.sent = piece.clone();
        piece
    }

    /// Wants nothing more.
    fn stop(&mut self) {
        if let Some(feed) = self.feed.take() {
            (feed.ended)();
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            ready!(self.pause.as_mut().poll(context));
            self.read();
            if self.out.len() < PIECE {
                // Of what comes meanwhile there is a longer piece then.
                self.pause.as_mut().reset(Instant::now() + PAUSE);
            }
            if !self.out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(self.piece()))));
            }
            if self.feed.is_none() {
                return Poll::Ready(None);
            }
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
