//! The thread that makes files of what the switch copies, piece by piece.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc as threads;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use channel::capture::{MAX_CAPTURES, Reader};
use hyper::body::{Body, Frame};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pcapng;

/// Until it looks again at rings that were empty.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of a piece, about.
const PIECE: usize = 64 << 10;
/// Pieces that wait for a client that does not read.
const WAITING: usize = 4;

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
    feeds: threads::Sender<Active>,
    places: Arc<Semaphore>,
}

/// A place for one capture.
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// The pieces of a file, as the body of an answer.
pub struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Feeder {
    /// Starts the thread, and waits until it runs: what a thread needs for its start, this process may soon not do any more.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn start() -> io::Result<Self> {
        let (feeds, new) = threads::channel();
        let thread = std::thread::Builder::new().name("captures".into());
        let (runs, ready) = threads::sync_channel(1);
        thread.spawn(move || {
            let _ = runs.send(());
            run(&new);
        })?;
        ready.recv().map_err(io::Error::other)?;
        Ok(Self {
            feeds,
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
        let (pieces, body) = mpsc::channel(WAITING);
        let mut out = Vec::with_capacity(2 * PIECE);
        pcapng::begin(&mut out, &feed.port, &feed.filter, feed.snaplen);
        // A thread that is gone takes the feed with it: the file ends at once.
        let _ = self.feeds.send(Active {
            feed: Some(feed),
            pieces,
            out,
            written: 0,
            _place: place,
        });
        Pieces(body)
    }
}

/// How a capture gets on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There may be more.
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
    /// What is to be sent next.
    out: Vec<u8>,
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
        match self.pieces.try_reserve() {
            Ok(room) => {
                let next = Vec::with_capacity(2 * PIECE);
                room.send(std::mem::replace(&mut self.out, next).into());
                Step::Went
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
fn run(new: &threads::Receiver<Active>) {
    let mut active: Vec<Active> = Vec::new();
    let mut pause = Duration::ZERO;
    loop {
        let next = match active.is_empty() {
            true => new
                .recv()
                .map_err(|_| threads::RecvTimeoutError::Disconnected),
            false => new.recv_timeout(pause),
        };
        match next {
            Ok(feed) => active.push(feed),
            Err(threads::RecvTimeoutError::Timeout) => {}
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
mod tests {
    use channel::capture::{MIN_RING, Region, Seen, Way, Writer};
    use port::Offload;

    use super::*;

    const SEEN: Seen = Seen {
        at_ns: 1,
        len: 60,
        way: Way::In,
        dropped: None,
        offload: Offload {
            checksum: None,
            gso: None,
        },
    };

    /// A capture, and a message when it has ended.
    fn begin(
        feeder: &Feeder,
        count: Option<u64>,
    ) -> (Region, Writer, Pieces, threads::Receiver<()>) {
        let (region, file) = Region::create(1, 16 * MIN_RING).unwrap();
        let writer = region.writer(0).unwrap();
        let (tell, told) = threads::channel();
        let feed = Feed {
            reader: Region::map(&file, 1, 16 * MIN_RING)
                .unwrap()
                .reader()
                .unwrap(),
            port: "vm1".to_owned(),
            filter: String::new(),
            snaplen: 60,
            count,
            ended: Box::new(move || {
                let _ = tell.send(());
            }),
        };
        let place = feeder.place().expect("a place");
        (region, writer, feeder.feed(place, feed), told)
    }

    /// The kinds of blocks in a whole file.
    fn kinds(mut pieces: Pieces) -> Vec<u32> {
        let mut file = Vec::new();
        while let Some(piece) = pieces.0.blocking_recv() {
            file.extend_from_slice(&piece);
        }
        let (mut rest, mut kinds) = (&file[..], Vec::new());
        while !rest.is_empty() {
            let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            kinds.push(word(0));
            rest = &rest[word(4) as usize..];
        }
        kinds
    }

    #[test]
    fn a_file_ends_with_its_statistics_when_the_switch_ends_it() {
        let feeder = Feeder::start().unwrap();
        let (region, mut writer, pieces, told) = begin(&feeder, None);
        (0..3).for_each(|_| writer.write(&SEEN, &[0; 60]));
        drop(writer);
        region.end();
        assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 6, 6, 5]);
        told.recv().unwrap();
    }

    #[test]
    fn a_file_ends_after_as_many_frames_as_were_wanted() {
        let feeder = Feeder::start().unwrap();
        let (_region, mut writer, pieces, told) = begin(&feeder, Some(2));
        (0..5).for_each(|_| writer.write(&SEEN, &[0; 60]));
        assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 6, 5]);
        told.recv().unwrap();
    }

    #[test]
    fn a_client_that_goes_ends_it_and_one_that_does_not_read_holds_nobody_up() {
        let feeder = Feeder::start().unwrap();
        let (_first, mut writer, unread, told) = begin(&feeder, None);
        // More than waits for a client.
        for _ in 0..10_000 {
            writer.write(&SEEN, &[0; 60]);
        }
        let (region, mut other, pieces, _) = begin(&feeder, None);
        other.write(&SEEN, &[0; 60]);
        region.end();
        assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 5]);
        assert!(told.try_recv().is_err());
        drop(unread);
        told.recv().unwrap();
    }

    #[test]
    fn there_are_so_many_places_and_a_place_is_free_again() {
        let feeder = Feeder::start().unwrap();
        let mut open: Vec<_> = (0..MAX_CAPTURES).map(|_| begin(&feeder, None)).collect();
        assert!(feeder.place().is_none());
        let (_, _, pieces, told) = open.pop().unwrap();
        drop(pieces);
        told.recv().unwrap();
        while feeder.place().is_none() {
            std::thread::yield_now();
        }
    }
}
