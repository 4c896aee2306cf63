//! An open connection: messages in, answers out, and every change deposited before the front end hears of it.
//!
//! ```text
//! look       the message stays in the socket
//! serve      the session changes
//! record     the supervisor has what changed
//! answer     into the pipe
//! consume    the message leaves the socket
//! send       the answer leaves the pipe
//! ```
//!
//! Wherever this process dies, its successor serves the message, or knows that it was served and sends what is in
//! the pipe. Two things are not covered. A message that was sent in pieces is consumed as it comes; a death within
//! it ends the connection. An answer with a descriptor (`GET_INFLIGHT_FD`) cannot go through a pipe; a death
//! between sending it and consuming its message sends it twice.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use channel::keeping::{ConnectionRecord, JOURNAL, PIPE_FROM, PIPE_TO, SOCKET};
use channel::switching::PortConfig;
use virtio::vhost_user::{AnswerPipe, Connection, Fault, Message, Peeked, Session};

use super::backend::{Positions, ToWorkers};
use super::bare::BareDriver;
use super::bounds::Bounds;
use crate::keeper::Keeper;
use crate::watchdog::Doorbells;
use crate::workers::Workers;

/// Messages of one front end in a row, before others have their turn.
const MESSAGES: u32 = 64;
/// Others have their turn before that when its messages took so long: each that stops or starts a queue waits for all
/// workers.
const TURN: Duration = Duration::from_millis(1);

/// What a front end has had of the session thread in a row.
struct Turn {
    began: Instant,
    messages: u32,
}

impl Turn {
    fn begin(began: Instant) -> Self {
        Self { began, messages: 0 }
    }

    /// Another message was served. Whether there may be one more.
    fn goes_on(&mut self, now: Instant) -> bool {
        self.messages += 1;
        self.messages < MESSAGES && now.saturating_duration_since(self.began) < TURN
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: Connection,
    pub(super) session: Session,
    pub(super) positions: Positions,
    /// Its event descriptors.
    pub(super) doorbells: Doorbells,
    /// Features were chosen, if only once: a driver that ends, or is reset, takes its choice back.
    pub(super) chose: bool,
    /// Since when its guest's driver waits for memory to be shared.
    pub(super) bare: BareDriver,
    /// The message that was answered last: code and payload.
    pub(super) answered: Option<(u32, Vec<u8>)>,
    /// Part of a message was taken from the socket.
    pub(super) torn: bool,
}

/// What a connection works with.
pub(super) struct Around<'a> {
    pub(super) workers: &'a Workers,
    pub(super) config: &'a PortConfig,
    pub(super) keeper: &'a mut Keeper,
    pub(super) connections: u64,
    pub(super) bounds: &'a Bounds,
}

/// The connection's own descriptors go to the supervisor.
pub(super) fn deposit(socket: impl AsFd, pipe: &AnswerPipe, keeper: &mut Keeper) {
    let [from, to] = pipe.ends();
    keeper.keep(SOCKET, socket.as_fd());
    keeper.keep(PIPE_FROM, from);
    keeper.keep(PIPE_TO, to);
}

impl Open {
    /// Deposits what there is to know of the connection, if that has changed.
    pub(super) fn record(&self, around: &mut Around<'_>) {
        let (session, mut numbers) = self.session.record();
        numbers.extend([SOCKET, PIPE_FROM, PIPE_TO]);
        numbers.extend(self.positions.journal.as_ref().map(|_| JOURNAL));
        let record = ConnectionRecord {
            port: around.config.clone(),
            offered: self.session.offered_features().bits(),
            session,
            answered: self.answered.clone(),
            torn: self.torn,
            starts: self.positions.starts.clone(),
            connections: around.connections,
        };
        around.keeper.record(record.to_bytes(), numbers);
    }

    /// Serves what the front end sent, for a while. One that holds us up is heard no more.
    pub(super) fn pump(&mut self, around: &mut Around<'_>) -> Result<(), Fault> {
        let mut turn = Turn::begin(Instant::now());
        while !self.doorbells.have_blocked() {
            match self.connection.peek()? {
                Peeked::Nothing => {
                    if !self.connection.wants_write() {
                        self.session.settled();
                    }
                    return Ok(());
                }
                Peeked::Whole(message, fds) => {
                    self.serve(message, fds, around, true)?;
                }
                Peeked::Pieces => {
                    if !std::mem::replace(&mut self.torn, true) {
                        self.record(around);
                    }
                    let Some((message, fds)) = self.connection.recv()? else {
                        return Ok(());
                    };
                    self.torn = false;
                    self.serve(message, fds, around, false)?;
                }
            }
            if !turn.goes_on(Instant::now()) {
                break;
            }
        }
        Ok(())
    }

    fn serve(
        &mut self,
        message: Message,
        fds: Vec<std::os::fd::OwnedFd>,
        around: &mut Around<'_>,
        peeked: bool,
    ) -> Result<(), Fault> {
        let shown = fds.len();
        let mut backend = ToWorkers {
            workers: around.workers,
            config: around.config,
            keeper: around.keeper,
            positions: &mut self.positions,
            doorbells: &self.doorbells,
            bounds: around.bounds,
        };
        let reply = self.session.handle(message.clone(), fds, &mut backend)?;
        self.session.settled();
        self.chose |= self.session.has_chosen_features();
        self.bare.look(&self.session, Instant::now());
        if reply.is_some() {
            self.answered = Some((message.code, message.payload.clone()));
        }
        self.record(around);
        if let Some(reply) = reply {
            let has_fd = reply.fd.is_some();
            self.connection.stage(reply)?;
            if has_fd {
                self.connection.flush()?;
            }
        }
        if peeked {
            self.connection.consume(&message, shown)?;
        }
        self.connection.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_so_many_messages_and_less_where_they_take_long() {
        let began = Instant::now();
        let served = |each: Duration| {
            let mut turn = Turn::begin(began);
            let more = (1..).take_while(|n| turn.goes_on(began + each * *n));
            more.count() + 1
        };
        assert_eq!(served(Duration::ZERO), 64);
        assert_eq!(served(Duration::from_micros(10)), 64);
        assert_eq!(served(Duration::from_micros(250)), 4);
        assert_eq!(served(Duration::from_millis(20)), 1);
    }
}
