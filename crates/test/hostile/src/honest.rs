//! Honest guests and VMMs, and what they live through.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::lasthop::Lasthop;

mod book;
mod pair;
mod talker;

pub use book::Counts;

use book::Book;
use pair::Pair;
use talker::talk;

/// Latencies in nanoseconds, each from when it was due.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// To having the frame at the other guest.
    pub frames: Vec<u64>,
    /// To having the answer to a VMM's message.
    pub messages: Vec<u64>,
}

pub(super) struct Honest {
    book: Arc<Book>,
    threads: Vec<JoinHandle<()>>,
}

impl Honest {
    pub(super) fn start(lasthop: &Lasthop) -> io::Result<Self> {
        let mut honest = Self {
            book: Arc::default(),
            threads: Vec::new(),
        };
        for (stream, segment) in (0..).zip(["blue", "green"]) {
            let pair = Pair::connect(lasthop, segment, stream)?;
            honest.spawn(move |book| pair.run(book));
        }
        let talker = lasthop.socket("talker");
        honest.spawn(move |book| talk(&talker, book));
        Ok(honest)
    }

    fn spawn(&mut self, run: impl FnOnce(&Book) + Send + 'static) {
        let book = Arc::clone(&self.book);
        self.threads.push(std::thread::spawn(move || run(&book)));
    }

    /// Returns the samples due since the last call, and up to now.
    pub(super) fn take(&self) -> Samples {
        let now = Instant::now();
        Samples {
            frames: self
                .book
                .frames
                .iter()
                .flat_map(|of| of.take(now))
                .collect(),
            messages: self.book.messages.take(now),
        }
    }

    /// Frames up to now that are missing, doubled, damaged or late.
    pub(super) fn wrong(&self) -> u64 {
        self.book.frames.iter().map(|of| of.wrong()).sum()
    }

    pub(super) fn fault(&self, text: String) {
        self.book.fault(text);
    }

    pub(super) fn has_faults(&self) -> bool {
        !self.book.counts().faults.is_empty()
    }

    /// Stops all traffic and gives what came of it.
    pub(super) fn end(&mut self) -> Counts {
        self.book.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                let text = "an honest guest's thread panicked".to_owned();
                self.book.fault(text);
            }
        }
        self.book.counts()
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.end();
    }
}
