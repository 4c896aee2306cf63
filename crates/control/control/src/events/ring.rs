//! Ring of the last events, bounded in number and bytes.

use std::collections::VecDeque;
use std::fmt::Write;

use api::v1::{EVENTS_KEPT, Event, EventKind, EventsFilter};

/// Most bytes of all events, as JSON.
const BYTES_MAX: usize = 4 << 20;
/// Bytes after which one read ends.
pub(super) const READ_BYTES: usize = 16 << 10;
/// Most events that one read passes, as it holds the lock.
const READ_EVENTS: usize = 512;

/// Ring of events; see the module documentation.
#[derive(Debug)]
pub(super) struct Ring {
    epoch: u64,
    /// Number of the first event that is kept, or of the next one if none is.
    first: u64,
    kept: VecDeque<KeptEvent>,
    bytes: usize,
}

/// An event, and its encoding.
#[derive(Debug)]
struct KeptEvent {
    event: Event,
    json: String,
}

/// Id of an event (`Last-Event-ID`): epoch of the ring, and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

impl Id {
    /// Parses an id that was sent to a client before.
    #[must_use]
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (epoch, number) = text.split_once('-')?;
        let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_plain(epoch) && is_plain(number)).then_some(())?;
        Some(Self {
            epoch: u64::from_str_radix(epoch, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{}", self.epoch, self.number)
    }
}

impl Ring {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            first: 1,
            kept: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds an event; returns its number.
    pub(super) fn push(&mut self, mut event: Event) -> u64 {
        let number = self.next();
        event.id = self.id(number);
        let json = serde_json::to_string(&event).unwrap_or_default();
        self.bytes += json.len();
        self.kept.push_back(KeptEvent { event, json });
        while self.kept.len() > usize::from(EVENTS_KEPT) || self.bytes > BYTES_MAX {
            self.forget_oldest();
        }
        number
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.kept.pop_front() {
            self.bytes -= oldest.json.len();
            self.first += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> Vec<Event> {
        self.kept.iter().map(|kept| kept.event.clone()).collect()
    }

    /// Returns the number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Returns the id of a client that has received everything before this number.
    pub(super) fn id_before(&self, number: u64) -> String {
        self.id(number - 1)
    }

    fn id(&self, number: u64) -> String {
        let epoch = self.epoch;
        Id { epoch, number }.to_string()
    }

    /// Returns the next number for a client that resumes, and whether it has missed events: the
    /// inner number is `None` if their count is unknown.
    pub(super) fn after(&self, id: Id) -> (u64, Option<Option<u64>>) {
        let next = id.number.saturating_add(1);
        if id.epoch == self.epoch && next <= self.next() {
            // A later read finds the events that are gone.
            (next.max(1), None)
        } else {
            (self.first, Some(None))
        }
    }

    /// Returns the number of the first of the last `count` events that a filter accepts.
    pub(super) fn last(&self, count: u16, filter: &EventsFilter) -> u64 {
        let numbered = (self.first..).zip(&self.kept);
        let numbered = numbered.filter(|(_, kept)| filter.accepts(&kept.event));
        let mut numbers: Vec<u64> = numbered.map(|(number, _)| number).collect();
        let left = numbers.len().saturating_sub(count.into());
        numbers.drain(..left);
        numbers.first().copied().unwrap_or(self.next())
    }

    /// Writes some events that a filter accepts, starting at a number; returns the number of the
    /// next read.
    pub(super) fn read(&self, from: u64, filter: &EventsFilter, out: &mut String) -> u64 {
        let missed = self.first.saturating_sub(from);
        if missed > 0 {
            self.write_missed(self.first, Some(missed), out);
        }
        let mut number = from.max(self.first);
        let begin = (number - self.first) as usize;
        for kept in self.kept.iter().skip(begin).take(READ_EVENTS) {
            if out.len() >= READ_BYTES {
                break;
            }
            if filter.accepts(&kept.event) {
                let event = &kept.event;
                write_event(&event.id, event.what.name(), &kept.json, out);
            }
            number += 1;
        }
        number
    }

    /// Writes an event of kind `missed` for the events before a number.
    pub(super) fn write_missed(&self, before: u64, count: Option<u64>, out: &mut String) {
        let id = self.id_before(before);
        let missed = super::unlogged(EventKind::Missed { count }, 0);
        let event = Event { id, ..missed };
        let json = serde_json::to_string(&event).unwrap_or_default();
        write_event(&event.id, event.what.name(), &json, out);
    }
}

/// Writes one server-sent event (WHATWG HTML, 9.2.6). JSON has no line breaks.
fn write_event(id: &str, kind: &str, json: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "id: {id}\nevent: {kind}\ndata: {json}\n\n");
}
