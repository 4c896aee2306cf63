//! Connections that forwards have accepted. One to a guest whose station is not known waits while
//! the station is asked for, as a router holds a packet (RFC 1122, section 2.3.2.2).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::connect_unspec;
use usernet::network::Refusal;
use usernet::{Nanos, SocketEvent};
use wire::MacAddr;

use super::UserWorker;
use super::events::Tag;
use super::forwards::Found;
use super::sockets;

/// Most connections that wait.
const WAITING_MAX: usize = 64;
/// A station is asked for so often, with this time between: a second in all.
const QUESTIONS: u8 = 4;
const INTERVAL: Nanos = 250_000_000;

/// A connection that was accepted.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: SocketAddr,
    /// Its forward.
    tag: Tag,
    /// Questions for the station so far, and the time of the next one.
    asked: u8,
    due: Nanos,
}

impl Connection {
    fn may_wait(&self, now: Nanos) -> bool {
        now < self.due || self.asked < QUESTIONS
    }
}

/// The connections that wait.
#[derive(Debug, Default)]
pub(super) struct Accepted(Vec<Connection>);

impl Accepted {
    /// The time of the next question.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.0.iter().map(|connection| connection.due).min()
    }
}

impl UserWorker {
    /// Accepts a connection of a forward; others have their turn between.
    pub(super) fn accept(&mut self, tag: Tag, now: Nanos) {
        if let Some((socket, peer)) = self.gateway.forwards.accept(tag) {
            let connection = Connection {
                socket,
                peer,
                tag,
                asked: 0,
                due: now,
            };
            self.lead(connection, now);
        }
    }

    /// Looks again for the guests of connections that wait.
    pub(super) fn lead_waiting(&mut self, now: Nanos) {
        for connection in std::mem::take(&mut self.gateway.waiting.accepted.0) {
            self.lead(connection, now);
        }
    }

    /// Leads a connection to its guest. One without a known guest is reset, at once or when the
    /// questions for its station were not answered.
    fn lead(&mut self, mut connection: Connection, now: Nanos) {
        let desired = &self.gateway.desired.network;
        match self
            .gateway
            .forwards
            .guest(connection.tag, desired, &self.gateway.services, now)
        {
            Found::Guest(guest, station) => self.open(connection, (guest, station), now),
            Found::Ask(address)
                if connection.may_wait(now)
                    && self.gateway.waiting.accepted.0.len() < WAITING_MAX =>
            {
                if now >= connection.due {
                    connection.asked += 1;
                    connection.due = now.saturating_add(INTERVAL);
                    self.gateway.ask(address);
                }
                self.gateway.waiting.accepted.0.push(connection);
            }
            Found::Ask(_) | Found::Nothing => self.reset(&connection.socket, Refusal::Unreachable),
        }
    }

    fn open(&mut self, connection: Connection, guest: (SocketAddr, MacAddr), now: Nanos) {
        let Connection { socket, peer, .. } = connection;
        let mut actions = Vec::new();
        let room = sockets::room_of(&socket);
        let peer = self.gateway.forwards.seen(peer).ok_or(Refusal::Unreachable);
        let flow = peer.and_then(|peer| {
            self.gateway
                .translator
                .accepted(now, guest, peer, room, &mut actions)
        });
        match flow {
            Ok(flow) => {
                if self.gateway.sockets.accepted(flow, socket).is_err() {
                    self.gateway
                        .report(flow, SocketEvent::Reset, now, &mut actions);
                }
            }
            Err(refusal) => self.reset(&socket, refusal),
        }
        self.gateway.perform(actions, None, now);
    }

    fn reset(&mut self, socket: &OwnedFd, refusal: Refusal) {
        self.gateway.counters.refuse(refusal);
        let _ = connect_unspec(socket);
    }
}
