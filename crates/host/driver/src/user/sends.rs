//! Bytes of guests on their way to sockets. Datagrams of one socket that come together leave by one
//! call; so do segments of one connection, which get one acknowledgement. They stay in the buffers
//! of the switch until then.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use usernet::network::Refusal;
use usernet::{FlowId, Nanos, SocketEvent, Target};

use super::calls::{self, Datagram, MANY};
use super::gateway::Gateway;
use super::memory::Bytes;

/// Datagrams that wait.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// The socket of those that wait.
    socket: Option<Arc<OwnedFd>>,
    waiting: Vec<Datagram>,
    /// Their frames, in the same order.
    frames: Vec<Bytes>,
    /// The frame at hand waits, or a part of it.
    holds: bool,
}

impl Sends {
    /// The buffer of the frame at hand is needed until all that waits has left.
    pub(super) fn hold(&mut self) {
        self.holds = true;
    }

    /// Returns whether the buffer of the frame at hand is needed still, and begins with the next.
    pub(super) fn take_hold(&mut self) -> bool {
        std::mem::take(&mut self.holds)
    }

    /// Returns whether no datagram waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether those that wait leave first.
    fn is_before(&self, socket: &Arc<OwnedFd>) -> bool {
        let is_same = |own: &Arc<OwnedFd>| Arc::ptr_eq(own, socket);
        self.waiting.len() == MANY || !self.socket.as_ref().is_none_or(is_same)
    }
}

/// Bytes of a connection that wait, in their order.
#[derive(Debug)]
struct Run {
    flow: FlowId,
    pieces: Vec<Bytes>,
}

/// Segments that wait.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// In the order of the first bytes.
    waiting: Vec<Run>,
    /// Empty lists, to be used again.
    spare: Vec<Vec<Bytes>>,
}

impl Segments {
    fn put(&mut self, flow: FlowId, bytes: Bytes) {
        // The frame before is likely to be of the same connection.
        let run = self.waiting.iter_mut().rfind(|run| run.flow == flow);
        if let Some(run) = run {
            return run.pieces.push(bytes);
        }
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.push(bytes);
        self.waiting.push(Run { flow, pieces });
    }

    fn take(&mut self, flow: FlowId) -> Option<Run> {
        let at = self.waiting.iter().position(|run| run.flow == flow)?;
        Some(self.waiting.remove(at))
    }

    fn recycle(&mut self, mut run: Run) {
        run.pieces.clear();
        self.spare.push(run.pieces);
    }
}

impl Gateway {
    /// Has bytes of the frame at hand leave with those that follow for the same connection.
    pub(super) fn send(&mut self, flow: FlowId, bytes: Bytes) {
        self.segments.put(flow, bytes);
        self.sends.hold();
    }

    /// Sends the segments that wait.
    pub(super) fn flush_segments(&mut self, now: Nanos) {
        let mut waiting = std::mem::take(&mut self.segments.waiting);
        for run in waiting.drain(..) {
            let mut actions = Vec::new();
            match self.send_run(&run) {
                Some(event) => self.report(run.flow, event, now, &mut actions),
                None => self.take(run.flow, &run.pieces, now, &mut actions),
            }
            self.perform(actions, None, now);
            self.segments.recycle(run);
        }
        // A report has no bytes sent, so that none wait but these.
        self.segments.waiting = waiting;
    }

    /// Sends the segments of a connection that is about to be closed.
    pub(super) fn send_last(&mut self, flow: FlowId) {
        if let Some(run) = self.segments.take(flow) {
            // There is no connection that a result could be reported of.
            let _ = self.send_run(&run);
            self.segments.recycle(run);
        }
    }

    /// Sends segments of a connection; `None` if its other end is no socket.
    fn send_run(&mut self, run: &Run) -> Option<SocketEvent> {
        let socket = self.sockets.socket(run.flow)?;
        self.counters.frames.sent.calls += 1;
        let bytes: usize = run.pieces.iter().map(|piece| piece.len()).sum();
        let event = match socket.send(&run.pieces) {
            Ok(taken) if taken as usize == bytes => {
                let memory = socket.memory();
                let (room, needs_more) = socket.room_and_need(memory);
                if let Some(memory) = memory {
                    self.sockets.note(run.flow, memory);
                }
                match needs_more && self.sockets.await_room(run.flow).is_err() {
                    true => SocketEvent::Reset,
                    false => SocketEvent::Sent { taken, room },
                }
            }
            // The system takes no more: an estimate of the room would be wrong.
            Ok(taken) => SocketEvent::Sent { taken, room: 0 },
            Err(_) => SocketEvent::Reset,
        };
        if let SocketEvent::Sent { taken, .. } = event {
            self.counters.totals.from_guests += u64::from(taken);
        }
        Some(event)
    }

    /// Has a datagram of a guest leave with those that follow for the same socket, or several of
    /// `segment` bytes.
    pub(super) fn send_to(
        &mut self,
        (flow, target): (FlowId, Target),
        (bytes, segment, hops): (Bytes, u16, Option<u8>),
        frame: Bytes,
        now: Nanos,
    ) {
        // Without a socket the datagram was refused already, before its mapping got one.
        if self.sockets.socket(flow).is_none() {
            return;
        }
        let to = match self.address_of(target, now) {
            Ok(to) => to,
            Err(refusal) => return self.refuse(frame, refusal, now),
        };
        let Some(socket) = self.sockets.socket(flow) else {
            return;
        };
        socket.datagrams[0] += bytes.len() as u64;
        let (socket, _) = socket.receiver();
        if self.sends.is_before(&socket) {
            self.flush(now);
        }
        let datagram = Datagram {
            bytes,
            to,
            segment,
            hops,
        };
        self.sends.waiting.push(datagram);
        self.sends.frames.push(frame);
        self.sends.socket = Some(socket);
        self.sends.hold();
    }

    fn address_of(&mut self, target: Target, now: Nanos) -> Result<SocketAddr, Refusal> {
        match target {
            Target::Outside(to) => match self.sockets.is_own(to.ip(), now) {
                Ok(false) => Ok(to),
                Ok(true) => Err(Refusal::Denied),
                Err(_) => Err(Refusal::Unreachable),
            },
            Target::Host(to) | Target::Peer(to) => Ok(to),
            Target::Resolver => Err(Refusal::Unreachable),
        }
    }

    /// Sends the datagrams that wait.
    pub(super) fn flush(&mut self, now: Nanos) {
        let Some(socket) = self.sends.socket.take() else {
            return;
        };
        let mut waiting = std::mem::take(&mut self.sends.waiting);
        let mut frames = std::mem::take(&mut self.sends.frames);
        let (mut at, mut is_again) = (0, false);
        while at < waiting.len() {
            self.counters.frames.sent.calls += 1;
            let sent = calls::send_many(socket.as_fd(), &waiting[at..]);
            match sent {
                Ok(sent) => {
                    let sent = sent.max(1);
                    let len = |of: &Datagram| of.bytes.len() as u64;
                    let bytes: u64 = waiting[at..].iter().take(sent).map(len).sum();
                    self.counters.totals.from_guests += bytes;
                    at += sent;
                }
                // The error may be of a datagram before: a call reports it, and sends nothing.
                Err(_) if !is_again => {
                    is_again = true;
                    continue;
                }
                Err(error) => {
                    self.unsent(&socket, waiting[at], (frames[at], error), now);
                    at += 1;
                }
            }
            is_again = false;
        }
        waiting.clear();
        frames.clear();
        (self.sends.waiting, self.sends.frames) = (waiting, frames);
    }

    /// The system has not sent a datagram.
    fn unsent(
        &mut self,
        socket: &OwnedFd,
        datagram: Datagram,
        (frame, error): (Bytes, Errno),
        now: Nanos,
    ) {
        let Datagram { bytes, segment, .. } = datagram;
        let refused = match error {
            // It has no memory now, as any network may.
            Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM => false,
            // The system cannot cut it: each datagram is sent by itself.
            Errno::INVAL | Errno::IO if segment != 0 => {
                let segment = usize::from(segment);
                let mut starts = (0..bytes.len()).step_by(segment);
                let is_sent = |start| {
                    let len = segment.min(bytes.len() - start);
                    bytes.part(start, len).is_some_and(|bytes| {
                        self.counters.frames.sent.calls += 1;
                        let one = Datagram {
                            bytes,
                            segment: 0,
                            ..datagram
                        };
                        calls::send_many(socket.as_fd(), &[one]).is_ok()
                    })
                };
                !starts.all(is_sent)
            }
            // It is longer than the way permits.
            Errno::MSGSIZE => false,
            _ => true,
        };
        if refused {
            self.refuse(frame, Refusal::Unreachable, now);
        }
    }
}
