//! Connections of guests to the DNS server: in place of sockets of the host, memory for questions
//! that are not whole yet, and for answers that guests have not acknowledged.

use std::collections::{BTreeMap, HashMap};

use usernet::services::dns::{self, Asker, StreamError};
use usernet::{FlowId, Nanos, Peek, Peeked, SocketEvent};
use wire::MacAddr;

use super::memory::Bytes;

/// Most connections, and most of one guest.
const STREAMS_MAX: usize = 64;
const GUEST_MAX: usize = 8;
/// Questions of a connection that wait for resolvers, and bytes of answers that wait for the guest:
/// at more, no further question is read.
const ASKED_MAX: usize = 4;
const ANSWERS_MAX: usize = 64 << 10;
/// A connection without a question ends after so long (RFC 7766, section 6.2.3: a few seconds).
const IDLE: Nanos = 10_000_000_000;

#[derive(Debug)]
struct Stream {
    number: u64,
    station: MacAddr,
    questions: dns::Stream,
    answers: Vec<u8>,
    /// Questions at resolvers.
    asked: usize,
    /// Questions wait that are whole.
    is_stalled: bool,
    /// The guest has closed its half.
    is_shut: bool,
    /// No more questions are answered: the connection was idle.
    is_ending: bool,
    awaits_room: bool,
    /// There are answers, or the end, that were not reported.
    has_news: bool,
    deadline: Nanos,
}

impl Stream {
    fn is_full(&self) -> bool {
        self.asked >= ASKED_MAX || self.answers.len() >= ANSWERS_MAX
    }

    fn room(&self) -> u32 {
        match self.is_full() {
            true => 0,
            false => self.questions.room() as u32,
        }
    }

    fn has_ended(&self) -> bool {
        self.is_ending || self.is_shut && self.asked == 0 && !self.is_stalled
    }

    fn push(&mut self, message: &[u8]) {
        if let Some(message) = dns::framed(message) {
            self.answers.extend(message);
        }
        self.has_news = true;
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: BTreeMap<FlowId, Stream>,
    flows: HashMap<u64, FlowId>,
    next: u64,
}

impl Streams {
    /// Opens a stream; returns its room, or `None` at a bound.
    pub(super) fn open(&mut self, flow: FlowId, station: MacAddr, now: Nanos) -> Option<u32> {
        let own = self.all.values().filter(|of| of.station == station);
        if self.all.len() >= STREAMS_MAX || own.count() >= GUEST_MAX {
            return None;
        }
        let stream = Stream {
            number: self.next,
            station,
            questions: dns::Stream::default(),
            answers: Vec::new(),
            asked: 0,
            is_stalled: false,
            is_shut: false,
            is_ending: false,
            awaits_room: false,
            has_news: false,
            deadline: now.saturating_add(IDLE),
        };
        self.flows.insert(self.next, flow);
        self.next += 1;
        let room = stream.room();
        self.all.insert(flow, stream);
        Some(room)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.flows.is_empty()
    }

    pub(super) fn has(&self, flow: FlowId) -> bool {
        self.all.contains_key(&flow)
    }

    /// Takes bytes of the guest; returns how many.
    pub(super) fn take(&mut self, flow: FlowId, bytes: Bytes, now: Nanos) -> Option<u32> {
        let stream = self.all.get_mut(&flow)?;
        stream.deadline = now.saturating_add(IDLE);
        let taken = bytes.len().min(stream.room() as usize);
        let mut copy = vec![0; taken];
        bytes.copy_to(&mut copy);
        stream.questions.push(&copy).ok()?;
        Some(taken as u32)
    }

    /// The next question that is whole, and may be asked now.
    ///
    /// # Errors
    /// The bytes are no questions.
    pub(super) fn next(&mut self, flow: FlowId) -> Result<Option<(Asker, Vec<u8>)>, StreamError> {
        let Some(stream) = self.all.get_mut(&flow) else {
            return Ok(None);
        };
        stream.is_stalled = stream.is_full();
        if stream.is_stalled {
            return Ok(None);
        }
        let Some(message) = stream.questions.message()? else {
            return Ok(None);
        };
        stream.asked += 1;
        Ok(Some((Asker::Tcp(stream.number, stream.station), message)))
    }

    /// The answer of a question that was not at a resolver.
    pub(super) fn push(&mut self, flow: FlowId, message: &[u8]) {
        if let Some(stream) = self.all.get_mut(&flow) {
            stream.asked -= 1;
            stream.push(message);
        }
    }

    /// A resolver has answered a question of the connection with this number.
    pub(super) fn answered(&mut self, number: u64, message: &[u8], now: Nanos) -> Option<FlowId> {
        let flow = *self.flows.get(&number)?;
        let stream = self.all.get_mut(&flow)?;
        stream.deadline = now.saturating_add(IDLE);
        self.push(flow, message);
        Some(flow)
    }

    /// Events that were not reported.
    pub(super) fn news(&mut self, flow: FlowId) -> Vec<SocketEvent> {
        let Some(stream) = self.all.get_mut(&flow) else {
            return Vec::new();
        };
        let mut events = Vec::new();
        let room = stream.room();
        if stream.awaits_room && room > 0 {
            stream.awaits_room = false;
            events.push(SocketEvent::Room { room });
        }
        if std::mem::take(&mut stream.has_news) || stream.has_ended() {
            events.push(SocketEvent::Readable);
        }
        events
    }

    pub(super) fn room(&self, flow: FlowId) -> u32 {
        self.all.get(&flow).map_or(0, Stream::room)
    }

    pub(super) fn await_room(&mut self, flow: FlowId) {
        if let Some(stream) = self.all.get_mut(&flow) {
            stream.awaits_room = true;
        }
    }

    pub(super) fn shut_down(&mut self, flow: FlowId) {
        if let Some(stream) = self.all.get_mut(&flow) {
            stream.is_shut = true;
        }
    }

    pub(super) fn peek(&self, flow: FlowId, peek: Peek, into: Bytes) -> Option<Peeked> {
        let stream = self.all.get(&flow)?;
        let rest = stream.answers.get(peek.offset as usize..);
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(peek.len as usize).min(into.len());
        if len > 0 {
            into.put(&rest[..len]);
            return Some(Peeked::Bytes(len as u32));
        }
        Some(match stream.has_ended() && rest.is_empty() {
            true => Peeked::End,
            false => Peeked::Empty,
        })
    }

    pub(super) fn discard(&mut self, flow: FlowId, len: u32) {
        if let Some(stream) = self.all.get_mut(&flow) {
            let len = stream.answers.len().min(len as usize);
            stream.answers.drain(..len);
        }
    }

    /// Forgets a stream; returns its number.
    pub(super) fn close(&mut self, flow: FlowId) -> Option<u64> {
        let number = self.all.remove(&flow)?.number;
        self.flows.remove(&number);
        Some(number)
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.all.values().map(|stream| stream.deadline).min()
    }

    /// Ends connections that are idle; those of guests that do not end them, too, are reset.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<(FlowId, SocketEvent)> {
        let due = self.all.iter_mut().filter(|(_, of)| of.deadline <= now);
        let ended = due.map(|(flow, stream)| {
            stream.deadline = now.saturating_add(IDLE);
            match std::mem::replace(&mut stream.is_ending, true) {
                false => (*flow, SocketEvent::Readable),
                true => (*flow, SocketEvent::Reset),
            }
        });
        ended.collect()
    }
}
