//! Connections of guests to the DNS server: in place of sockets of the host, memory for questions
//! that are not whole yet, and for answers that guests have not acknowledged.

use std::collections::BTreeMap;

use usernet::services::dns::{self, Asker, StreamError};
use usernet::{FlowId, Nanos, Peek, PeekResult, SocketEvent, SocketQueues};
use wire::MacAddr;

use super::memory::Bytes;

/// Maximum number of connections, and of those of one guest.
const STREAMS_MAX: usize = 64;
const GUEST_MAX: usize = 8;
/// Questions of a connection that wait for resolvers, and bytes of answers that wait for the guest:
/// at more, no further question is read.
const ASKED_MAX: usize = 4;
const ANSWERS_MAX: usize = 64 << 10;
/// Time after which a connection without a question ends (RFC 7766, section 6.2.3: a few seconds).
const IDLE: Nanos = 10_000_000_000;

/// A connection to the DNS server.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) flow: FlowId,
    station: MacAddr,
    questions: dns::Stream,
    answers: Vec<u8>,
    /// Questions at resolvers.
    asked: usize,
    /// Whole questions wait.
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

    /// Returns the bytes that the guest may send.
    pub(super) fn room(&self) -> u32 {
        match self.is_full() {
            true => 0,
            false => self.questions.room() as u32,
        }
    }

    /// Returns the bytes of answers for the guest. A question at a resolver counts as a byte for
    /// the peer.
    pub(super) fn queues(&self) -> SocketQueues {
        SocketQueues {
            unread: self.answers.len() as u32,
            unsent: self.asked as u32,
        }
    }

    fn has_ended(&self) -> bool {
        self.is_ending || self.is_shut && self.asked == 0 && !self.is_stalled
    }

    /// Takes bytes of the guest; returns how many.
    ///
    /// # Errors
    /// The bytes are no questions.
    pub(super) fn take(&mut self, pieces: &[Bytes], now: Nanos) -> Result<u32, StreamError> {
        self.deadline = now.saturating_add(IDLE);
        let mut left = self.room() as usize;
        let mut all = 0;
        for bytes in pieces {
            let mut copy = vec![0; bytes.len().min(left)];
            bytes.copy_to(&mut copy);
            self.questions.push(&copy)?;
            left -= copy.len();
            all += copy.len();
        }
        Ok(all as u32)
    }

    /// Returns the next whole question that may be asked now.
    ///
    /// # Errors
    /// The bytes are no questions.
    pub(super) fn next(&mut self) -> Result<Option<(Asker, Vec<u8>)>, StreamError> {
        self.is_stalled = self.is_full();
        if self.is_stalled {
            return Ok(None);
        }
        let Some(message) = self.questions.message()? else {
            return Ok(None);
        };
        self.asked += 1;
        Ok(Some((Asker::Tcp(self.flow, self.station), message)))
    }

    /// Adds the answer to a question.
    pub(super) fn push(&mut self, message: &[u8]) {
        self.asked -= 1;
        if let Some(message) = dns::framed(message) {
            self.answers.extend(message);
        }
        self.has_news = true;
    }

    /// Adds the answer of a resolver.
    pub(super) fn answered(&mut self, message: &[u8], now: Nanos) {
        self.deadline = now.saturating_add(IDLE);
        self.push(message);
    }

    /// Returns the events that were not reported.
    pub(super) fn news(&mut self) -> Vec<SocketEvent> {
        let mut events = Vec::new();
        let room = self.room();
        if self.awaits_room && room > 0 {
            self.awaits_room = false;
            events.push(SocketEvent::Room { room });
        }
        if std::mem::take(&mut self.has_news) || self.has_ended() {
            events.push(SocketEvent::Readable);
        }
        events
    }

    /// Has room reported.
    pub(super) fn await_room(&mut self) {
        self.awaits_room = true;
    }

    /// The guest sends no more questions.
    pub(super) fn shut_down(&mut self) {
        self.is_shut = true;
    }

    /// Reads answers without consuming them.
    pub(super) fn peek(&self, peek: Peek, into: Bytes) -> PeekResult {
        let rest = self.answers.get(peek.offset as usize..);
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(peek.len as usize).min(into.len());
        if len > 0 {
            into.put(&rest[..len]);
            return PeekResult::Bytes(len as u32);
        }
        match self.has_ended() && rest.is_empty() {
            true => PeekResult::End,
            false => PeekResult::Empty,
        }
    }

    /// Consumes bytes that the guest has acknowledged.
    pub(super) fn discard(&mut self, len: u32) {
        let len = self.answers.len().min(len as usize);
        self.answers.drain(..len);
    }
}

/// All connections to the DNS server.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: BTreeMap<FlowId, Stream>,
}

impl Streams {
    /// Opens a stream; returns its room, or `None` at a bound.
    pub(super) fn open(&mut self, flow: FlowId, station: MacAddr, now: Nanos) -> Option<u32> {
        let own = self.all.values().filter(|of| of.station == station);
        if self.all.len() >= STREAMS_MAX || own.count() >= GUEST_MAX {
            return None;
        }
        let stream = Stream {
            flow,
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
        let room = stream.room();
        self.all.insert(flow, stream);
        Some(room)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the stream of a flow.
    pub(super) fn get(&mut self, flow: FlowId) -> Option<&mut Stream> {
        self.all.get_mut(&flow)
    }

    /// Forgets the stream of a flow.
    pub(super) fn close(&mut self, flow: FlowId) {
        self.all.remove(&flow);
    }

    /// When [`Self::expired`] has something next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.all.values().map(|stream| stream.deadline).min()
    }

    /// Ends connections that are idle, and resets those that guests do not end.
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
