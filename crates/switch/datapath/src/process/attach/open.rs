//! An open connection: messages in, replies out. Every change is saved with the supervisor before
//! the front end receives the reply.
//!
//! ```text
//! peek       the message stays in the socket
//! serve      the session changes
//! record     the supervisor has the changes
//! answer     into the pipe
//! consume    the message leaves the socket
//! send       the answer leaves the pipe
//! sent       a memif session starts its queues when the answer to `CONNECT` has left
//! ```
//!
//! A message about translations (`IOTLB_MSG`) is not recorded: nothing in the record changes, and a
//! guest may cause one for each frame. All that it changes is in the table's file, and so is the
//! message itself when it has been answered:
//!
//! ```text
//! peek       the message stays in the socket
//! serve      the table changes; INVALIDATE waits for the workers
//! note       the table has the message, as answered
//! answer     into the pipe
//! consume    the message leaves the socket
//! note       the table has it as taken
//! send       the answer leaves the pipe
//! ```
//!
//! A crash before the answer is in the pipe leaves the message to the successor, which serves it
//! once more; that changes nothing. After that the pipe has an answer, and the table says whether
//! the next message in the socket, if it is the same, has been answered by it. A front end that
//! sends the same message again without waiting for the answer, and a crash between consuming the
//! first and noting that, leave the second unanswered.
//!
//! Wherever this process crashes, its successor handles the message, or knows that it was handled
//! and sends the reply in the pipe. Two cases are not covered. A message that was sent in parts is
//! consumed as it comes; a crash within it ends the connection. A reply with a descriptor
//! (`GET_INFLIGHT_FD`) cannot go through a pipe; a crash between sending it and consuming its
//! message sends it twice.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ipc::figures::Waits;
use ipc::keeping::{ConnectionRecord, IOTLB, JOURNAL, PIPE_FROM, PIPE_TO, SOCKET};
use ipc::switching::{Iommu, PortConfig};
use memory::iotlb::AnsweredMessage;
use virtio::vhost_user::{AnswerPipe, Fault, Message, PeekResult};

use super::backend::{Positions, WorkerBackend};
use super::client::Client;
use super::event_limits::EventLimits;
use super::missing_memory::MissingMemory;
use super::translations::Watches;
use crate::ports::watchdog::Doorbells;
use crate::process::session_store::PortSessionStore;
use crate::worker::workers::Workers;

/// Messages of one front end that are handled in a row.
const MAX_MESSAGES: u32 = 64;
/// Time for which messages of one front end are handled in a row, milliseconds: each that stops or
/// starts a queue waits for all workers.
const MAX_TURN: Duration = Duration::from_millis(1);
/// The same when messages about translations are among them, microseconds: a guest can send them
/// without end.
const MAX_IOTLB_TURN: Duration = Duration::from_micros(500);

/// The messages that one front end may send in a row.
struct MessageBudget {
    began: Instant,
    messages: u32,
    turn: Duration,
}

impl MessageBudget {
    fn begin(began: Instant) -> Self {
        Self {
            began,
            messages: 0,
            turn: MAX_TURN,
        }
    }

    /// Counts a message. Returns whether there may be another one.
    fn may_continue(&mut self, now: Instant) -> bool {
        self.messages += 1;
        self.messages < MAX_MESSAGES && now.saturating_duration_since(self.began) < self.turn
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) client: Client,
    pub(super) positions: Positions,
    /// The event descriptors of the front end.
    pub(super) doorbells: Doorbells,
    /// Features were chosen at least once: a driver that ends, or is reset, takes its choice back.
    pub(super) features_chosen: bool,
    /// The time since when the guest's driver has no shared memory.
    pub(super) missing_memory: MissingMemory,
    /// The last message with a reply: code and payload.
    pub(super) answered: Option<(u32, Vec<u8>)>,
    /// A part of a message was taken from the socket.
    pub(super) torn: bool,
    /// The last turn ended before the socket was empty.
    pub(super) has_more: bool,
    pub(super) watches: Watches,
}

/// The parts of a port that its connection uses.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: PortConfig,
    pub(super) store: PortSessionStore,
    /// The number of connections.
    pub(super) connections: u64,
    pub(super) event_limits: EventLimits,
    /// Times that INVALIDATE has waited for workers.
    pub(super) invalidate_waits: Waits,
}

/// Saves the connection's own descriptors with the supervisor.
pub(super) fn store_descriptors(
    socket: impl AsFd,
    pipe: &AnswerPipe,
    store: &mut PortSessionStore,
) {
    let [from, to] = pipe.ends();
    store.store_descriptor(SOCKET, socket.as_fd());
    store.store_descriptor(PIPE_FROM, from);
    store.store_descriptor(PIPE_TO, to);
}

impl OpenConnection {
    /// Saves the session with the supervisor, if it has changed.
    pub(super) fn record(&self, context: &mut Context) {
        let (session, mut numbers) = self.client.record();
        numbers.extend([SOCKET, PIPE_FROM, PIPE_TO]);
        numbers.extend(self.positions.journal.as_ref().map(|_| JOURNAL));
        numbers.extend(self.client.has_iotlb().then_some(IOTLB));
        let record = ConnectionRecord {
            port: context.config.clone(),
            offered: self.client.offered_features().bits(),
            session,
            answered: self.answered.clone(),
            torn: self.torn,
            starts: self.positions.starts.clone(),
            connections: context.connections,
            iommu_required: self.client.iommu() == Iommu::Required,
        };
        context.store.store_session(record.to_bytes(), numbers);
    }

    /// Handles messages of the front end for a while; no more after its descriptors have blocked.
    pub(super) fn serve(&mut self, context: &mut Context, workers: &Workers) -> Result<(), Fault> {
        let mut budget = MessageBudget::begin(Instant::now());
        self.has_more = false;
        while !self.doorbells.have_blocked() {
            match self.client.peek()? {
                PeekResult::Nothing => {
                    if !self.client.wants_write() {
                        self.client.settled();
                        self.sent(context, workers);
                    }
                    return Ok(());
                }
                PeekResult::Whole(message, fds) => {
                    if self.client.is_unrecorded(&message) {
                        budget.turn = MAX_IOTLB_TURN;
                    }
                    self.handle(message, fds, (context, workers), true)?;
                }
                PeekResult::Pieces => {
                    if !std::mem::replace(&mut self.torn, true) {
                        self.record(context);
                    }
                    let Some((message, fds)) = self.client.receive_pieces()? else {
                        return Ok(());
                    };
                    self.torn = false;
                    self.handle(message, fds, (context, workers), false)?;
                }
            }
            if !budget.may_continue(Instant::now()) {
                self.has_more = true;
                break;
            }
        }
        Ok(())
    }

    fn handle(
        &mut self,
        message: Message,
        fds: Vec<sys::foreign::ForeignFd>,
        (context, workers): (&mut Context, &Workers),
        peeked: bool,
    ) -> Result<(), Fault> {
        let shown = fds.len();
        // One that came in pieces was recorded as torn.
        let unrecorded = peeked && self.client.is_unrecorded(&message);
        let mut backend = WorkerBackend {
            workers,
            context,
            positions: &mut self.positions,
            doorbells: &self.doorbells,
        };
        let reply = self.client.handle(message.clone(), fds, &mut backend)?;
        self.client.settled();
        if unrecorded {
            self.record_unrecorded(context);
            if let Ok(content) = message.payload.as_slice().try_into() {
                self.client.set_answered(AnsweredMessage::Waits(content));
            }
        } else {
            self.note_progress();
            if reply.is_some() {
                self.answered = Some((message.code, message.payload.clone()));
            }
            self.record(context);
            if reply.is_some() {
                self.client.set_answered(AnsweredMessage::Other);
            }
        }
        if let Some(reply) = reply {
            let has_fd = reply.fd.is_some();
            self.client.stage(reply)?;
            if has_fd {
                self.client.flush()?;
            }
        }
        if peeked {
            self.client.consume(&message, shown)?;
        }
        if unrecorded {
            self.client.set_answered(AnsweredMessage::Taken);
        }
        if self.client.flush()? {
            self.sent(context, workers);
        }
        Ok(())
    }

    /// Saves a session that has changed although it was not to be expected.
    pub(super) fn record_unrecorded(&mut self, context: &mut Context) {
        if self.client.take_unrecorded() {
            self.note_progress();
            self.record(context);
        }
    }

    /// Tells the session that nothing is left to be sent, and saves what that has changed.
    fn sent(&mut self, context: &mut Context, workers: &Workers) {
        let mut backend = WorkerBackend {
            workers,
            context,
            positions: &mut self.positions,
            doorbells: &self.doorbells,
        };
        if self.client.sent(&mut backend) {
            self.note_progress();
            self.record(context);
        }
    }

    fn note_progress(&mut self) {
        self.features_chosen |= self.client.has_chosen();
        let lacks_memory = self.client.lacks_memory();
        self.missing_memory.update(lacks_memory, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_64_messages_and_fewer_if_they_take_long() {
        let began = Instant::now();
        let served = |each: Duration| {
            let mut budget = MessageBudget::begin(began);
            let more = (1..).take_while(|n| budget.may_continue(began + each * *n));
            more.count() + 1
        };
        assert_eq!(served(Duration::ZERO), 64);
        assert_eq!(served(Duration::from_micros(10)), 64);
        assert_eq!(served(Duration::from_micros(250)), 4);
        assert_eq!(served(Duration::from_millis(20)), 1);
        let mut budget = MessageBudget::begin(began);
        budget.turn = MAX_IOTLB_TURN;
        assert!(budget.may_continue(began + MAX_IOTLB_TURN / 2));
        assert!(!budget.may_continue(began + MAX_IOTLB_TURN));
    }
}
