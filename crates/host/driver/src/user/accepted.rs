//! Connections that forwards have accepted. One to a guest with an unknown station waits while the
//! station is asked for, as a router holds a packet (RFC 1122, section 2.3.2.2).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::connect_unspec;
use usernet::network::Refusal;
use usernet::{Nanos, SocketEvent};
use wire::MacAddr;

use super::UserWorker;
use super::events::Tag;
use super::forwards::{ASK_INTERVAL, ForwardTarget};
use super::sockets;

/// Maximum number of connections that wait.
const WAITING_MAX: usize = 64;
/// A connection waits for three questions, as Linux has it (`mcast_solicit` of arp(7)).
const LIMIT: Nanos = 3 * ASK_INTERVAL;

/// A connection that was accepted.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: SocketAddr,
    /// Its forward.
    tag: Tag,
    /// The time of the next look for its guest, and the time after which it is reset.
    due: Nanos,
    until: Nanos,
}

/// The connections that wait.
#[derive(Debug, Default)]
pub(super) struct AcceptedConnections(Vec<Connection>);

impl AcceptedConnections {
    /// The time of the next look.
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
                due: now,
                until: now.saturating_add(LIMIT),
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
            ForwardTarget::Guest(guest, station) => self.open(connection, (guest, station), now),
            ForwardTarget::Ask(address, is_due)
                if now < connection.until
                    && self.gateway.waiting.accepted.0.len() < WAITING_MAX =>
            {
                if is_due {
                    self.gateway.ask(address);
                }
                if now >= connection.due {
                    connection.due = now.saturating_add(ASK_INTERVAL).min(connection.until);
                }
                self.gateway.waiting.accepted.0.push(connection);
            }
            ForwardTarget::Ask(..) | ForwardTarget::Nothing => {
                self.reset(&connection.socket, Refusal::Unreachable)
            }
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
                let of = (flow, guest.1);
                if self.gateway.sockets.accepted(of, socket).is_err() {
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
