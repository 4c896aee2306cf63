//! The thread that makes files of what the switch copies, piece by piece.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as threads;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use channel::capture::{MAX_CAPTURES, Reader};
use hyper::body::{Body, Frame};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pcapng;

/// Until it looks again at rings that were empty. A ring of the usual length takes 4 GiB a second meanwhile.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a piece, about.
const PIECE: usize = 48 << 10;
/// Room for a piece, and for the longest block with which it may end.
const ROOM: usize = PIECE + (66 << 10);
/// Pieces that wait for a client that does not read. With 32 of them frames were missed at a lower rate.
const WAITING: usize = 8;

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

/// The thread, as others see it. Clones speak to the same.
#[derive(Clone, Debug)]
pub struct Feeder {
    words: threads::Sender<Word>,
    places: Arc<Semaphore>,
}

/// A place for one capture.
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// What the thread is told.
#[derive(Debug)]
enum Word {
    /// Here is one more.
    Begin(Box<Active>),
    /// A client that was too slow has read.
    Read,
}

/// The pieces of a file, as the body of an answer.
pub struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    is_full: Arc<AtomicBool>,
    words: threads::Sender<Word>,
}

impl Pieces {
    /// Has the thread go on that waits for room, once there is enough for it to be worth it.
    fn tell(&self) {
        if self.pieces.len() <= WAITING / 2 && self.is_full.swap(false, Ordering::Relaxed) {
            // A thread that is gone needs nothing.
            let _ = self.words.send(Word::Read);
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
        let piece = self.pieces.poll_recv(context);
        self.tell();
        piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Feeder {
    /// Starts the thread, and waits until it runs: what a thread needs for its start, this process may soon not do any more.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn start() -> io::Result<Self> {
        let (words, told) = threads::channel();
        let thread = std::thread::Builder::new().name("captures".into());
        let (runs, ready) = threads::sync_channel(1);
        thread.spawn(move || {
            let _ = runs.send(());
            run(&told);
        })?;
        ready.recv().map_err(io::Error::other)?;
        Ok(Self {
            words,
            places: Arc::new(Semaphore::new(MAX_CAPTURES)),
        })
    }

    /// A place, if fewer than [`MAX_CAPTURES`] are taken.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.ok().map(|permit| Place { _permit: permit })
    }

    /// Begins to make a file; `place` is taken until its end.
    #[must_use]
    pub fn feed(&self, place: Place, feed: Feed) -> Pieces {
        let (sender, pieces) = mpsc::channel(WAITING);
        let is_full = Arc::new(AtomicBool::new(false));
        let mut out = Vec::with_capacity(ROOM);
        pcapng::begin(&mut out, &feed.port, &feed.filter, feed.snaplen);
        let active = Active {
            feed: Some(feed),
            pieces: sender,
            is_full: Arc::clone(&is_full),
            out,
            spares: Spares::default(),
            written: 0,
            _place: place,
        };
        // A thread that is gone takes the feed with it: the file ends at once.
        let _ = self.words.send(Word::Begin(Box::new(active)));
        Pieces {
            pieces,
            is_full,
            words: self.words.clone(),
        }
    }
}

/// Buffers that clients have read: new ones of this size would be asked of the kernel each time, and be filled with zeros.
type Spares = Arc<Mutex<Vec<Vec<u8>>>>;

/// A piece on its way; its buffer comes back.
struct Piece {
    bytes: Vec<u8>,
    spares: Spares,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < WAITING {
            spares.push(bytes);
        }
    }
}

/// How a capture gets on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There was a whole piece, so there may be more.
    Went,
    /// It has nothing, or its client does not read.
    Waits,
    /// It is over.
    Done,
}

/// A capture that is being fed.
#[derive(Debug)]
struct Active {
    /// `None` when everything was read; what is left is to be sent.
    feed: Option<Feed>,
    pieces: mpsc::Sender<Bytes>,
    /// It waits for its client to read.
    is_full: Arc<AtomicBool>,
    /// What is to be sent next.
    out: Vec<u8>,
    spares: Spares,
    written: u64,
    _place: Place,
}

impl Active {
    fn step(&mut self) -> Step {
        if self.pieces.is_closed() {
            return Step::Done;
        }
        if self.out.len() < PIECE {
            self.read();
        }
        if self.out.is_empty() {
            return match self.feed {
                Some(_) => Step::Waits,
                None => Step::Done,
            };
        }
        let mut room = self.pieces.try_reserve();
        if let Err(TrySendError::Full(())) = room {
            self.is_full.store(true, Ordering::Relaxed);
            // The client may have read the last piece just before it could see that. If not even this look sees it, there is the pause.
            room = self.pieces.try_reserve();
        }
        match room {
            Ok(room) => {
                let is_whole = self.out.len() >= PIECE;
                let spare = self
                    .spares
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop();
                let next = spare.unwrap_or_else(|| Vec::with_capacity(ROOM));
                let bytes = std::mem::replace(&mut self.out, next);
                let spares = Arc::clone(&self.spares);
                room.send(Bytes::from_owner(Piece { bytes, spares }));
                // Of what comes meanwhile there is a longer piece after a pause.
                let is_last = self.feed.is_none();
                if is_whole || is_last {
                    Step::Went
                } else {
                    Step::Waits
                }
            }
            Err(TrySendError::Full(())) => Step::Waits,
            Err(TrySendError::Closed(())) => Step::Done,
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

    /// Wants nothing more.
    fn stop(&mut self) {
        if let Some(feed) = self.feed.take() {
            (feed.ended)();
        }
    }
}

impl Drop for Active {
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

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Feeds all captures in turn, until nobody can begin one any more.
fn run(told: &threads::Receiver<Word>) {
    let mut active: Vec<Box<Active>> = Vec::new();
    let mut pause = Duration::ZERO;
    loop {
        let word = match active.is_empty() {
            true => told
                .recv()
                .map_err(|_| threads::RecvTimeoutError::Disconnected),
            false => told.recv_timeout(pause),
        };
        match word {
            Ok(Word::Begin(feed)) => active.push(feed),
            Ok(Word::Read) | Err(threads::RecvTimeoutError::Timeout) => {}
            Err(threads::RecvTimeoutError::Disconnected) => return,
        }
        pause = PAUSE;
        active.retain_mut(|feed| match feed.step() {
            Step::Went => {
                pause = Duration::ZERO;
                true
            }
            Step::Waits => true,
            Step::Done => false,
        });
    }
}

#[cfg(test)]
mod tests;
