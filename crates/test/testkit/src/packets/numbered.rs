//! Numbered payloads: what was lost, doubled, reordered or damaged on the way.
//!
//! ```text
//! 0        2        4                  12           16
//! | magic  | stream | sequence number  | length     | pattern of stream, number and offset ...
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the smallest numbered payload.
pub const NUMBERED_MIN: usize = 16;
const MAGIC: u16 = 0x1a57;

/// The head of a numbered payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbered {
    /// Which stream it belongs to.
    pub stream: u16,
    /// Its number in the stream, from 0.
    pub seq: u64,
}

fn pattern(key: Numbered, at: usize) -> u8 {
    let mut x =
        key.seq ^ u64::from(key.stream) << 48 ^ (at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> (8 * (at % 8))) as u8
}

/// Fills a buffer with the payload of `key`.
///
/// # Panics
/// When the buffer is shorter than [`NUMBERED_MIN`].
pub fn numbered_fill(buffer: &mut [u8], key: Numbered) {
    let len = buffer.len() as u32;
    buffer[..2].copy_from_slice(&MAGIC.to_be_bytes());
    buffer[2..4].copy_from_slice(&key.stream.to_be_bytes());
    buffer[4..12].copy_from_slice(&key.seq.to_be_bytes());
    buffer[12..16].copy_from_slice(&len.to_be_bytes());
    for (at, byte) in buffer.iter_mut().enumerate().skip(NUMBERED_MIN) {
        *byte = pattern(key, at);
    }
}

/// A payload of `len` bytes for `key`.
///
/// # Panics
/// When `len` is less than [`NUMBERED_MIN`].
#[must_use]
pub fn numbered_payload(key: Numbered, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    numbered_fill(&mut buffer, key);
    buffer
}

/// Reads a numbered payload and checks every byte; none when anything is not as it was filled.
#[must_use]
pub fn numbered_read(payload: &[u8]) -> Option<Numbered> {
    let head: &[u8; NUMBERED_MIN] = payload.first_chunk()?;
    let stream = u16::from_be_bytes([head[2], head[3]]);
    let seq = u64::from_be_bytes(head[4..12].try_into().expect("8 bytes"));
    let len = u32::from_be_bytes(head[12..].try_into().expect("4 bytes"));
    let key = Numbered { stream, seq };
    let sound = head[..2] == MAGIC.to_be_bytes()
        && len as usize == payload.len()
        && payload
            .iter()
            .enumerate()
            .skip(NUMBERED_MIN)
            .all(|(at, b)| *b == pattern(key, at));
    sound.then_some(key)
}

#[derive(Debug, Default)]
struct Stream {
    next: u64,
    missing: BTreeSet<u64>,
}

/// Keeps the books of all streams.
#[derive(Debug, Default)]
pub struct SequenceChecker {
    streams: BTreeMap<u16, Stream>,
    /// Sound payloads seen.
    pub received: u64,
    /// Payloads that came after a later one of their stream.
    pub reordered: u64,
    /// Payloads that came again.
    pub duplicated: u64,
    /// Payloads that were not as they were filled.
    pub damaged: u64,
}

impl SequenceChecker {
    /// Takes in one payload; returns its key when it is sound.
    pub fn see(&mut self, payload: &[u8]) -> Option<Numbered> {
        let Some(key) = numbered_read(payload) else {
            self.damaged += 1;
            return None;
        };
        self.received += 1;
        let stream = self.streams.entry(key.stream).or_default();
        if key.seq >= stream.next {
            stream.missing.extend(stream.next..key.seq);
            stream.next = key.seq + 1;
        } else if stream.missing.remove(&key.seq) {
            self.reordered += 1;
        } else {
            self.duplicated += 1;
        }
        Some(key)
    }

    /// Payloads that never came, up to the latest of each stream.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.streams.values().map(|s| s.missing.len() as u64).sum()
    }

    /// The number that the stream's next payload should have.
    #[must_use]
    pub fn next_of(&self, stream: u16) -> u64 {
        self.streams.get(&stream).map_or(0, |s| s.next)
    }

    /// Returns whether exactly the first `count` payloads of `stream` came, once each and in order,
    /// and nothing of any other stream was reordered, doubled, damaged or lost.
    #[must_use]
    pub fn is_clean(&self, stream: u16, count: u64) -> bool {
        self.next_of(stream) == count
            && self.lost() + self.reordered + self.duplicated + self.damaged == 0
    }
}
