//! Flow records live in supervisor memory, and the supervisor holds a duplicate of each socket, so
//! that flows outlive the process.
//!
//! ```text
//! worker: a flow is a second old   record -> memory; socket -> outbox -> main thread -> supervisor
//! worker: a flow has ended         record cleared; number -> outbox -> main thread -> supervisor
//! ```
//!
//! A record is written once. A successor reads it as if an enemy had written it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ipc::driving::FLOW_RECORD;
use ipc::user_reports::UserPage;
use mapping::{Mapping, MappingError};
use sys::event;
use usernet::RECORD_LEN;

const _: () = assert!(RECORD_LEN == FLOW_RECORD);

/// A flow of a predecessor: the number of its record, and its socket.
#[derive(Debug)]
pub(crate) struct KeptFlow {
    pub(crate) slot: u32,
    pub(crate) socket: OwnedFd,
}

/// Memory for records of `LEN` bytes each, which the supervisor made. A record that starts with 0
/// is none.
#[derive(Debug)]
pub(crate) struct Records<const LEN: usize> {
    mapping: Mapping,
    slots: u32,
}

/// Records of flows.
pub(crate) type FlowRecords = Records<RECORD_LEN>;

impl FlowRecords {
    /// Maps a file with room for `slots` records.
    ///
    /// # Errors
    /// The system's refusal, or the file is shorter.
    pub(crate) fn new(file: &OwnedFd, slots: u32) -> io::Result<Self> {
        Self::at(file, 0, slots).map_err(io::Error::other)
    }
}

impl<const LEN: usize> Records<LEN> {
    const WORDS: usize = LEN / 8;

    /// Maps a file with room for `slots` records from an offset, a multiple of a word.
    ///
    /// # Errors
    /// The system's refusal, or the file is shorter.
    pub(crate) fn at(file: &OwnedFd, offset: u64, slots: u32) -> Result<Self, MappingError> {
        const { assert!(LEN.is_multiple_of(8), "whole words") };
        assert!(offset.is_multiple_of(8), "whole words");
        let mapping = Mapping::shared(file, u64::from(slots) * LEN as u64, offset)?;
        Ok(Self { mapping, slots })
    }

    fn word(&self, slot: u32, word: usize) -> &AtomicU64 {
        assert!(slot < self.slots && word < Self::WORDS, "no such record");
        let at = slot as usize * LEN + 8 * word;
        // SAFETY: the record lies inside the mapping, which starts whole words after a page, so
        // that the word is aligned; all accesses are atomic, and the mapping lives as long as
        // `self`.
        unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().wrapping_add(at).cast()) }
    }

    pub(super) fn read(&self, slot: u32) -> [u8; LEN] {
        let mut record = [0; LEN];
        for (at, bytes) in record.chunks_exact_mut(8).enumerate() {
            let word = self.word(slot, at).load(Ordering::Acquire);
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        record
    }

    /// Writes a record, its version last: before that it is none.
    pub(super) fn write(&self, slot: u32, record: &[u8; LEN]) {
        for (at, bytes) in record.chunks_exact(8).enumerate().rev() {
            let word = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
            self.word(slot, at).store(word, Ordering::Release);
        }
    }

    pub(super) fn clear(&self, slot: u32) {
        let first = self.word(slot, 0);
        // Memory that was never written to takes none.
        if first.load(Ordering::Relaxed) != 0 {
            first.store(0, Ordering::Release);
        }
    }
}

/// A message for the supervisor about a flow.
#[derive(Debug)]
pub(crate) enum FlowMessage {
    /// Keep this socket.
    Keep(u32, Arc<OwnedFd>),
    /// Drop the socket with this number.
    Drop(u32),
}

/// Messages that the worker leaves for the main thread.
#[derive(Debug)]
pub(crate) struct Outbox {
    messages: Mutex<VecDeque<FlowMessage>>,
    /// The answer to the supervisor's question about a table.
    page: Mutex<Option<UserPage>>,
    /// Readable when there is something.
    event: OwnedFd,
}

impl Outbox {
    /// An empty one.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            messages: Mutex::default(),
            page: Mutex::default(),
            event: event::create()?,
        })
    }

    fn put(&self, message: FlowMessage) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.is_empty() {
            // Full only if it is readable already.
            let _ = event::ring(&self.event);
        }
        messages.push_back(message);
    }

    fn put_page(&self, page: UserPage) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Some(page);
        // Full only if it is readable already.
        let _ = event::ring(&self.event);
    }

    /// Takes the answer to a question.
    pub(crate) fn take_page(&self) -> Option<UserPage> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        page.take()
    }

    /// Takes the next messages of one kind: at most `keep` to keep, or `drop` to drop.
    pub(crate) fn take(&self, keep: usize, drop: usize) -> Vec<FlowMessage> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let keeps = |message: &FlowMessage| matches!(message, FlowMessage::Keep(..));
        let Some(first) = messages.front().map(keeps) else {
            return Vec::new();
        };
        let most = if first { keep } else { drop };
        let same = messages.iter().take(most);
        let count = same.take_while(|message| keeps(message) == first).count();
        messages.drain(..count).collect()
    }

    /// The descriptor that is readable when there are messages.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.is_empty()
    }
}

/// The worker's part: which numbers are free.
#[derive(Debug)]
pub(crate) struct Keeper {
    records: FlowRecords,
    free: Vec<u32>,
    outbox: Arc<Outbox>,
}

impl Keeper {
    /// All numbers are free but those that are `taken`.
    pub(crate) fn new(records: FlowRecords, taken: &[u32], outbox: Arc<Outbox>) -> Self {
        let free = (0..records.slots).rev();
        let free = free.filter(|slot| !taken.contains(slot)).collect();
        Self {
            records,
            free,
            outbox,
        }
    }

    /// Returns how many flows are kept, and the most.
    pub(crate) fn kept(&self) -> (u32, u32) {
        let slots = self.records.slots;
        (slots.saturating_sub(self.free.len() as u32), slots)
    }

    /// Leaves an answer about a table for the main thread.
    pub(crate) fn answer(&self, page: UserPage) {
        self.outbox.put_page(page);
    }

    /// The record of a predecessor.
    pub(crate) fn record(&self, slot: u32) -> [u8; RECORD_LEN] {
        self.records.read(slot)
    }

    /// Keeps a flow; returns its number, if one is free.
    pub(crate) fn keep(&mut self, record: &[u8; RECORD_LEN], socket: Arc<OwnedFd>) -> Option<u32> {
        let slot = self.free.pop()?;
        self.records.write(slot, record);
        self.outbox.put(FlowMessage::Keep(slot, socket));
        Some(slot)
    }

    /// Keeps a flow no longer.
    pub(crate) fn drop(&mut self, slot: u32) {
        self.records.clear(slot);
        self.outbox.put(FlowMessage::Drop(slot));
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use usernet::{FlowRecord, MappingRecord, Record};

    use super::*;

    fn records(slots: u32) -> (OwnedFd, FlowRecords) {
        let len = u64::from(slots) * RECORD_LEN as u64;
        let file = sys::file::fixed("records", len).unwrap();
        let records = FlowRecords::new(&file, slots).unwrap();
        (file, records)
    }

    fn socket() -> Arc<OwnedFd> {
        Arc::new(event::create().unwrap())
    }

    /// A flow and a mapping of a forward.
    #[test]
    fn sample_of_flows() {
        let station = wire::MacAddr([2, 0, 0, 0, 0, 1]);
        let guest = "10.0.2.15:40000".parse().unwrap();
        let flow = FlowRecord::Flow(Record {
            guest,
            peer: "192.0.2.1:443".parse().unwrap(),
            station,
            connected: true,
            iss: 0x0102_0304,
            irs: 0x0506_0708,
            mss: 1460,
            scale: Some((7, 8)),
        });
        let mapping = FlowRecord::Mapping(MappingRecord {
            guest,
            peer: "10.0.2.2:5353".parse().unwrap(),
            station,
            forwarded: Some("127.0.0.1:5353".parse().unwrap()),
        });
        let bytes = [flow.encode(), mapping.encode()].concat();
        let (here, number) = (env!("CARGO_MANIFEST_DIR"), usernet::RECORD_VERSION.into());
        let sample = testkit::samples::sample(here, "flow.bin", number, &bytes);
        let records = sample.as_chunks::<RECORD_LEN>().0.iter();
        let read: Vec<FlowRecord> = records
            .map(|bytes| FlowRecord::decode(bytes).unwrap())
            .collect();
        assert_eq!(read, [flow, mapping]);
    }

    #[test]
    fn records_outlive_their_writer_until_they_are_cleared() {
        let (file, records) = records(2);
        let outbox = Arc::new(Outbox::new().unwrap());
        let mut keeper = Keeper::new(records, &[], outbox.clone());
        let record: [u8; RECORD_LEN] = std::array::from_fn(|at| at as u8 + 1);
        assert_eq!(keeper.keep(&record, socket()), Some(0));
        assert_eq!(keeper.keep(&record, socket()), Some(1));
        assert_eq!(keeper.keep(&record, socket()), None, "no number is free");
        keeper.drop(1);
        drop(keeper);
        let successor = Keeper::new(FlowRecords::new(&file, 2).unwrap(), &[0], outbox.clone());
        assert_eq!(successor.record(0), record);
        assert_eq!(successor.record(1)[..8], [0; 8]);
        assert_eq!(successor.free, [1]);
        let kinds = |messages: Vec<FlowMessage>| -> Vec<(bool, u32)> {
            let kind = |message: FlowMessage| match message {
                FlowMessage::Keep(slot, _) => (true, slot),
                FlowMessage::Drop(slot) => (false, slot),
            };
            messages.into_iter().map(kind).collect()
        };
        assert_eq!(kinds(outbox.take(1, 8)), [(true, 0)]);
        assert_eq!(kinds(outbox.take(8, 8)), [(true, 1)]);
        assert_eq!(kinds(outbox.take(8, 8)), [(false, 1)]);
        assert!(outbox.is_empty() && outbox.take(8, 8).is_empty());
    }
}
