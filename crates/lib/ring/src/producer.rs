//! Producer: the writing end of a ring.

use crate::fault::{PushError, RingFault, SetupError};
use crate::index::{self, ALIGN};
use crate::layout::{self, DATA_WORD, HEAD_WORD, SLEEP_WORD, TAIL_WORD};
use crate::memory::RingMemory;
use crate::sync::{Ordering, fence};

/// The end of a ring that writes records. One process holds it at a time.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    capacity: u64,
    /// Bytes ever produced: private, only published to the memory.
    head: u64,
    /// Bytes in the ring at the last read of the consumer's index, plus those pushed since.
    filled: u64,
    /// The number of the consumer's sleep for which the doorbell was last requested.
    rung: u64,
    fault: Option<RingFault>,
    /// Private buffer for [`Producer::reserve`]; grows to the longest record.
    scratch: Vec<u8>,
}

impl Producer {
    /// Creates an empty ring of `capacity` bytes in `memory` and attaches to it. The consumer
    /// attaches afterwards.
    ///
    /// # Errors
    ///
    /// As [`format`](layout::format).
    pub fn create(memory: RingMemory, capacity: u64) -> Result<Self, SetupError> {
        layout::format(&memory, capacity)?;
        Self::attach(memory)
    }

    /// Attaches to an existing ring at the index that the previous producer published.
    ///
    /// # Errors
    ///
    /// [`SetupError`] when the memory holds no sound ring.
    pub fn attach(memory: RingMemory) -> Result<Self, SetupError> {
        let capacity = layout::check(&memory)?;
        let head = memory.word(HEAD_WORD).load(Ordering::Relaxed);
        let tail = memory.word(TAIL_WORD).load(Ordering::Acquire);
        let filled = index::filled(capacity, head, tail, 0..=capacity)?;
        Ok(Self {
            memory,
            capacity,
            head,
            filled,
            rung: 0,
            fault: None,
            scratch: Vec::new(),
        })
    }

    /// Returns the number of bytes of the data area.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the fault that killed the ring, if one did.
    pub fn fault(&self) -> Option<RingFault> {
        self.fault
    }

    /// Appends one record and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the ring is then as before.
    pub fn push(&mut self, record: &[u8]) -> Result<(), PushError> {
        self.push_parts(&[record])
    }

    /// Appends one record made of `parts` in order, and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the ring is then as before.
    pub fn push_parts(&mut self, parts: &[&[u8]]) -> Result<(), PushError> {
        let len = parts
            .iter()
            .fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let bytes = self.make_room(len)?;
        self.write_word(self.head, len as u64);
        self.write_parts(self.head.wrapping_add(ALIGN), parts);
        self.publish(bytes);
        Ok(())
    }

    /// Reserves room for a record of `len` bytes, to be filled in place and then committed. The
    /// room is private until then: the peer never sees a half-written record and cannot change the
    /// bytes that the caller reads back. Dropping the reservation cancels it.
    ///
    /// # Errors
    ///
    /// [`PushError`], as for a push of `len` bytes.
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>, PushError> {
        self.make_room(len)?;
        self.scratch.clear();
        self.scratch.resize(len, 0);
        Ok(Reservation { producer: self })
    }

    /// Returns whether a record of `len` bytes would find room now.
    pub fn has_room(&mut self, len: usize) -> bool {
        self.make_room(len).is_ok()
    }

    /// Returns whether the caller must ring the doorbell now. Call it after one or several pushes;
    /// `true` is returned once for each sleep of the consumer, so it must be acted on.
    pub fn needs_doorbell(&mut self) -> bool {
        // Orders the published head before the read of `sleep`; see the crate's documentation.
        fence(Ordering::SeqCst);
        let sleep = self.memory.word(SLEEP_WORD).load(Ordering::Relaxed);
        let desired = sleep % 2 == 1 && sleep != self.rung;
        if desired {
            self.rung = sleep;
        }
        desired
    }

    /// Returns the bytes that a record of `len` takes, once the ring is known to have room for
    /// them.
    fn make_room(&mut self, len: usize) -> Result<u64, PushError> {
        if let Some(fault) = self.fault {
            return Err(fault.into());
        }
        let bytes = index::record_bytes(len as u64).ok_or(PushError::TooLong)?;
        if bytes > self.capacity {
            return Err(PushError::TooLong);
        }
        if bytes > self.capacity - self.filled {
            self.look_at_tail()?;
        }
        if bytes > self.capacity - self.filled {
            Err(PushError::Full)
        } else {
            Ok(bytes)
        }
    }

    /// Reads the consumer's index, once, and checks it.
    fn look_at_tail(&mut self) -> Result<(), RingFault> {
        // Acquire: the consumer's copy out is done before the producer overwrites the bytes.
        let tail = self.memory.word(TAIL_WORD).load(Ordering::Acquire);
        match index::filled(self.capacity, self.head, tail, 0..=self.filled) {
            Ok(filled) => self.filled = filled,
            Err(fault) => {
                self.fault = Some(fault);
                return Err(fault);
            }
        }
        Ok(())
    }

    fn publish(&mut self, bytes: u64) {
        self.head = self.head.wrapping_add(bytes);
        self.filled += bytes;
        self.memory
            .word(HEAD_WORD)
            .store(self.head, Ordering::Release);
    }

    /// Writes the parts as one stream of words from `at` on, the last word padded with zeros.
    fn write_parts(&self, mut at: u64, parts: &[&[u8]]) {
        let mut word = [0u8; 8];
        let mut fill = 0;
        for mut part in parts.iter().copied() {
            if fill > 0 {
                let take = part.len().min(8 - fill);
                word[fill..fill + take].copy_from_slice(&part[..take]);
                part = &part[take..];
                fill += take;
                if fill < 8 {
                    continue;
                }
                self.write_word(at, u64::from_ne_bytes(word));
                at = at.wrapping_add(8);
                word = [0; 8];
            }
            let (words, rest) = part.as_chunks();
            self.write_words(at, words);
            at = at.wrapping_add(8 * words.len() as u64);
            word[..rest.len()].copy_from_slice(rest);
            fill = rest.len();
        }
        if fill > 0 {
            self.write_word(at, u64::from_ne_bytes(word));
        }
    }

    /// Writes whole words, around the end of the data if need be.
    fn write_words(&self, at: u64, words: &[[u8; 8]]) {
        let to_end = index::words_to_end(self.capacity, at, words.len());
        let (before, after) = words.split_at(to_end);
        let first = DATA_WORD + index::data_word(self.capacity, at);
        for (first, words) in [(first, before), (DATA_WORD, after)] {
            let places = self.memory.words(first, words.len());
            for (place, word) in places.iter().zip(words) {
                place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    fn write_word(&self, at: u64, value: u64) {
        let word = DATA_WORD + index::data_word(self.capacity, at);
        self.memory.word(word).store(value, Ordering::Relaxed);
    }
}

/// Room for one record; see [`Producer::reserve`].
#[derive(Debug)]
pub struct Reservation<'a> {
    producer: &'a mut Producer,
}

impl Reservation<'_> {
    /// Returns the bytes of the record, zero at first.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.producer.scratch
    }

    /// Publishes the record. The room was checked by [`Producer::reserve`] and only grows.
    ///
    /// # Errors
    ///
    /// Only a fault of the ring.
    pub fn commit(self) -> Result<(), PushError> {
        let record = std::mem::take(&mut self.producer.scratch);
        let result = self.producer.push(&record);
        self.producer.scratch = record;
        result
    }
}
