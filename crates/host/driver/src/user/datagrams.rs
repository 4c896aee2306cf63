//! Datagrams for guests: of mappings, and of forwards.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use usernet::network::Refusal;
use usernet::{Datagrams, FlowId, ForwardPeer, Headers, Nanos, Target};
use wire::virtio::net::NetHeader;
use wire::{MacAddr, ethernet};

use super::calls::{self, MANY, ReceivedDatagrams};
use super::events::Tag;
use super::forwards::ForwardTarget;
use super::gateway::Gateway;
use super::guests::LeasedBuffer;
use super::sockets::{HEADERS_V4, HEADERS_V6};

/// Maximum number of queued errors to skip before reading data.
const ERRORS_MAX: usize = 4;

/// Maximum number of errors of a socket that are reported at once.
const REPORTS_MAX: usize = 64;
/// Bytes of a datagram that an error quotes.
const QUOTED: usize = 512;

/// A socket with datagrams for guests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// That of a mapping.
    Flow(FlowId),
    /// That of a forward, by its event.
    Forward(Tag),
}

/// A socket that has its turn.
struct Receiver {
    source: Source,
    socket: Arc<OwnedFd>,
    /// Bytes of headers in front of a datagram.
    headers: usize,
    /// The address of a forward.
    listen: Option<SocketAddr>,
}

impl Gateway {
    fn receiver(&mut self, source: Source) -> Option<Receiver> {
        let (socket, headers, listen) = match source {
            Source::Flow(flow) => {
                let (socket, headers) = self.sockets.socket(flow)?.receiver();
                (socket, headers, None)
            }
            Source::Forward(tag) => {
                let (socket, listen) = self.forwards.receiver(tag)?;
                let headers = if listen.is_ipv4() {
                    HEADERS_V4
                } else {
                    HEADERS_V6
                };
                (socket, headers, Some(listen))
            }
        };
        Some(Receiver {
            source,
            socket,
            headers,
            listen,
        })
    }

    /// Receives datagrams of the socket that is next. `false` when there is none, or no buffer.
    pub(super) fn receive_next(&mut self, now: Nanos) -> bool {
        let Some(source) = self.waiting.datagrams.pop_front() else {
            return false;
        };
        let Some(from) = self.receiver(source) else {
            return true;
        };
        let mut leased: [Option<LeasedBuffer>; MANY] = std::array::from_fn(|_| self.guests.lease());
        let places = leased.each_ref().map(|leased| {
            let leased = leased.as_ref()?;
            Some(self.guests.behind(leased, from.headers))
        });
        let room = places.iter().flatten().count();
        let mut got = [None; MANY];
        let count = match room {
            0 => Ok(0),
            _ => self.receive_many(&from, &places, &mut got),
        };
        for (leased, received) in leased.iter_mut().zip(got) {
            if let Some(received) = received
                && let Some(leased) = leased.take()
            {
                self.deliver(&from, leased, received, now);
            }
        }
        // The first ones are taken first again.
        leased
            .into_iter()
            .flatten()
            .rev()
            .for_each(|leased| self.guests.give_back(leased));
        // A socket that has filled fewer places than there were is empty.
        match count {
            Ok(count) if count < room => self.set_drained(source),
            Err(Errno::AGAIN) => self.set_drained(source),
            _ => self.waiting.datagrams.push_back(source),
        }
        room > 0
    }

    fn receive_many(
        &mut self,
        from: &Receiver,
        places: &[Option<super::memory::Bytes>; MANY],
        got: &mut [Option<ReceivedDatagrams>; MANY],
    ) -> Result<usize, Errno> {
        let mut count = Err(Errno::AGAIN);
        for _ in 0..ERRORS_MAX {
            self.counters.frames.received.calls += 1;
            count = calls::receive_many(from.socket.as_fd(), places, got);
            // An error is of a datagram that was sent before; the next call has what follows.
            if matches!(count, Ok(_) | Err(Errno::AGAIN)) {
                break;
            }
        }
        count
    }

    /// Tells guests of datagrams that a socket could not deliver.
    pub(super) fn report_errors(&mut self, source: Source, now: Nanos) {
        let Some(by) = self.receiver(source) else {
            return;
        };
        let mut quoted = [0; QUOTED];
        for _ in 0..REPORTS_MAX {
            let Ok(error) = calls::next_error(by.socket.as_fd(), &mut quoted) else {
                break;
            };
            let Some(calls::UndeliveredDatagram { to, len, notice }) = error else {
                continue;
            };
            let flow = match (source, by.listen) {
                (Source::Flow(flow), _) => Some(flow),
                (Source::Forward(_), listen) => listen.and_then(|listen| {
                    let from = ForwardPeer { listen, peer: to };
                    self.translator.flow_of(&from)
                }),
            };
            let datagram = flow.and_then(|flow| self.translator.undelivered(flow, target(to)));
            let frame = datagram.and_then(|datagram| {
                let quoted = &quoted[..len.min(QUOTED)];
                self.errors.undelivered(now, &datagram, quoted, notice)
            });
            if let Some(frame) = frame {
                self.guests.send(NetHeader::default(), &frame);
            }
        }
    }

    /// The socket has no more: an event follows.
    fn set_drained(&mut self, source: Source) {
        match source {
            Source::Flow(flow) => {
                if let Some(socket) = self.sockets.socket(flow) {
                    socket.is_queued = false;
                }
            }
            Source::Forward(tag) => {
                self.forwards.set_queued(tag, false);
            }
        }
    }

    /// Puts headers in front of what was received into a buffer, and submits it.
    fn deliver(
        &mut self,
        from: &Receiver,
        leased: LeasedBuffer,
        received: ReceivedDatagrams,
        now: Nanos,
    ) {
        let ReceivedDatagrams {
            len,
            is_cut,
            segment,
            ..
        } = received;
        let one = match usize::from(segment) {
            0 => len,
            segment => segment.min(len),
        };
        let longest = usize::from(self.network.mtu()) + ethernet::HEADER_LEN;
        let len = u16::try_from(len)
            .ok()
            .filter(|_| !is_cut && one + from.headers <= longest);
        let Some(len) = len else {
            self.counters.frames.oversized_frames += 1;
            return self.guests.give_back(leased);
        };
        match self.headers(from, received.from, Datagrams { len, segment }, now) {
            Some((flow, headers)) if headers.bytes().len() == from.headers => {
                if let Some(socket) = self.sockets.socket(flow) {
                    socket.datagrams[1] += u64::from(len);
                }
                self.counters.frames.received.frames += 1;
                self.counters.totals.to_guests += u64::from(len);
                self.guests.submit_headers(leased, &headers, len.into());
            }
            _ => self.guests.give_back(leased),
        }
    }

    fn headers(
        &mut self,
        by: &Receiver,
        peer: SocketAddr,
        datagrams: Datagrams,
        now: Nanos,
    ) -> Option<(FlowId, Headers)> {
        match (by.source, by.listen) {
            (Source::Flow(flow), _) => {
                let headers = self.translator.datagram(now, flow, target(peer), datagrams);
                Some((flow, headers?))
            }
            (Source::Forward(tag), Some(listen)) => {
                let headers = self.guest_of(tag, now).and_then(|guest| {
                    let from = ForwardPeer { listen, peer };
                    let mut actions = Vec::new();
                    let came = self
                        .translator
                        .forwarded(now, guest, from, datagrams, &mut actions);
                    // The mapping that has made room ends before the new one has its place.
                    self.perform(actions, None, now);
                    let (flow, headers) = came.ok()?;
                    if self.sockets.socket(flow).is_none() {
                        self.sockets.share(flow, by.socket.clone());
                    }
                    Some((flow, headers))
                });
                if headers.is_none() {
                    self.counters.refuse(Refusal::Unreachable);
                }
                headers
            }
            (Source::Forward(_), None) => None,
        }
    }

    /// Returns the guest that a forward leads to. A guest with an unknown station is asked for it.
    pub(super) fn guest_of(&mut self, tag: Tag, now: Nanos) -> Option<(SocketAddr, MacAddr)> {
        let desired = &self.desired.network;
        match self.forwards.guest(tag, desired, &self.services, now) {
            ForwardTarget::Guest(guest, station) => Some((guest, station)),
            ForwardTarget::Ask(address, is_due) => {
                if is_due {
                    self.ask(address);
                }
                None
            }
            ForwardTarget::Nothing => None,
        }
    }

    /// Asks the segment for the station at an address.
    pub(super) fn ask(&mut self, address: std::net::IpAddr) {
        if let Some(frame) = self.services.ask(address) {
            self.guests.send(NetHeader::default(), &frame);
        }
    }
}

/// The other end of a mapping's datagram.
fn target(peer: SocketAddr) -> Target {
    match peer.ip().is_loopback() {
        true => Target::Host(peer),
        false => Target::Outside(peer),
    }
}
