//! Consumer: the reading end of a ring.

use crate::fault::{RingFault, SetupError};
use crate::index::{self, ALIGN};
use crate::layout::{self, DATA_WORD, HEAD_WORD, SLEEP_WORD, TAIL_WORD};
use crate::memory::RingMemory;
use crate::sync::{Ordering, fence};

/// The end of a ring that reads records. One process holds it at a time.
#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    capacity: u64,
    /// Bytes ever consumed: private, only published to the memory.
    tail: u64,
    /// Bytes to read as of the last read of the producer's index.
    filled: u64,
    /// Bytes that were consumed and not published.
    held: u64,
    /// Number of the last sleep; odd from `prepare_sleep` to `woke`.
    sleep: u64,
    fault: Option<RingFault>,
}

impl Consumer {
    /// Attaches to an existing ring at the index that the previous consumer published. Drain
    /// the ring before the first sleep.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when the memory holds no sound ring.
    pub fn attach(memory: RingMemory) -> Result<Self, SetupError> {
        let capacity = layout::check(&memory)?;
        let tail = memory.word(TAIL_WORD).load(Ordering::Relaxed);
        let head = memory.word(HEAD_WORD).load(Ordering::Acquire);
        let filled = index::filled(capacity, head, tail, 0..=capacity)?;
        let sleep = memory.word(SLEEP_WORD).load(Ordering::Relaxed);
        let mut consumer = Self {
            memory,
            capacity,
            tail,
            filled,
            held: 0,
            sleep,
            fault: None,
        };
        consumer.woke();
        Ok(consumer)
    }

    /// Returns the number of bytes of the data area.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the fault that killed the ring, if one did.
    pub fn fault(&self) -> Option<RingFault> {
        self.fault
    }

    /// Takes the oldest record into `out`, whose old content is lost. `false`: the ring is
    /// empty, and `out` too.
    ///
    /// # Errors
    ///
    /// [`RingFault`]; every later call returns it again.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, RingFault> {
        let taken = self.pop_held(out);
        self.publish();
        taken
    }

    /// Takes the oldest record as [`Consumer::pop`] does, but returns the room to the producer only
    /// after an eighth of the ring and when it is found empty, not for each record: for both ends
    /// that would mean a wait for the cache line with the index.
    ///
    /// # Errors
    ///
    /// As [`Consumer::pop`].
    pub fn pop_lazily(&mut self, out: &mut Vec<u8>) -> Result<bool, RingFault> {
        let taken = self.pop_held(out);
        if self.held >= self.capacity / 8 || !matches!(taken, Ok(true)) {
            self.publish();
        }
        taken
    }

    /// Takes the oldest record and keeps its room.
    fn pop_held(&mut self, out: &mut Vec<u8>) -> Result<bool, RingFault> {
        let taken = self.take_oldest(out);
        if !matches!(taken, Ok(true)) {
            out.clear();
        }
        taken
    }

    fn take_oldest(&mut self, out: &mut Vec<u8>) -> Result<bool, RingFault> {
        if !self.has_record()? {
            return Ok(false);
        }
        // The length word is read once; from here on only the checked copy counts.
        let len = self.read_word(self.tail);
        let bytes = index::check_record(len, self.filled).map_err(|fault| self.die(fault))?;
        self.copy_out(self.tail.wrapping_add(ALIGN), len as usize, out);
        self.tail = self.tail.wrapping_add(bytes);
        self.filled -= bytes;
        self.held += bytes;
        Ok(true)
    }

    /// Returns the room of consumed records to the producer.
    fn publish(&mut self) {
        if self.held == 0 {
            return;
        }
        self.held = 0;
        // Release: the copy out is done before the producer may overwrite it.
        self.memory
            .word(TAIL_WORD)
            .store(self.tail, Ordering::Release);
    }

    /// Announces a sleep and checks again. `true`: the ring is empty and the producer will ring the
    /// doorbell after its next push, so sleep now and call [`Consumer::woke`] afterwards, whatever
    /// the reason for waking. `false`: there is a record (or a fault) to pop.
    pub fn prepare_sleep(&mut self) -> bool {
        self.set_sleep(self.sleep.wrapping_add(1) | 1);
        // Orders the odd `sleep` before the read of head; see the crate's documentation.
        fence(Ordering::SeqCst);
        let quiet = matches!(self.has_record(), Ok(false));
        if !quiet {
            self.woke();
        }
        quiet
    }

    /// Takes the announcement back: no doorbell is needed until the next sleep.
    pub fn woke(&mut self) {
        self.set_sleep(self.sleep.wrapping_add(1) & !1);
    }

    fn set_sleep(&mut self, sleep: u64) {
        self.sleep = sleep;
        self.memory.word(SLEEP_WORD).store(sleep, Ordering::Relaxed);
    }

    /// Returns whether at least one record waits; reads the producer's index only when none is
    /// known.
    fn has_record(&mut self) -> Result<bool, RingFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.filled == 0 {
            // Acquire: the bytes below head are visible before we read them.
            let head = self.memory.word(HEAD_WORD).load(Ordering::Acquire);
            let possible = self.filled..=self.capacity;
            self.filled = index::filled(self.capacity, head, self.tail, possible)
                .map_err(|fault| self.die(fault))?;
        }
        Ok(self.filled > 0)
    }

    /// Copies the `len` bytes at `at` to `out`. The former content is overwritten, which saves
    /// filling it with zeros.
    fn copy_out(&self, at: u64, len: usize, out: &mut Vec<u8>) {
        let count = len.div_ceil(ALIGN as usize);
        out.resize(count * ALIGN as usize, 0);
        let to_end = index::words_to_end(self.capacity, at, count);
        let first = DATA_WORD + index::data_word(self.capacity, at);
        let (words, _) = out.as_chunks_mut();
        let (before, after) = words.split_at_mut(to_end);
        for (first, words) in [(first, before), (DATA_WORD, after)] {
            let places = self.memory.words(first, words.len());
            for (word, place) in words.iter_mut().zip(places) {
                *word = place.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        out.truncate(len);
    }

    fn read_word(&self, at: u64) -> u64 {
        let word = DATA_WORD + index::data_word(self.capacity, at);
        self.memory.word(word).load(Ordering::Relaxed)
    }

    fn die(&mut self, fault: RingFault) -> RingFault {
        self.fault = Some(fault);
        fault
    }
}
