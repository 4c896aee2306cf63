//! The back end of a user port: the outside of its guests is sockets of the host.
//!
//! ```text
//! loop:  frames    of guests -> translator (crate `usernet`) -> system calls of sockets
//!        serve     flows and mappings with bytes -> a buffer each -> submitted to the switch
//!        expire    timers of flows, questions, router advertisements
//!        sleep     when nothing has moved: request kicks, check once more, wait
//!        events    of sockets -> translator
//! ```
//!
//! The translator decides, and nothing else reads headers of guests: it gets a private copy. A
//! payload is copied once, by the system, between a socket and a buffer that the switch has, too.
//!
//! There is one thread, whatever the number of guests: addresses, mappings and leases are those of
//! the whole network.

mod accepted;
mod buffers;
mod calls;
mod datagrams;
mod echoes;
mod events;
mod figures;
mod forwards;
mod gateway;
mod guests;
mod host_ports;
mod kept;
mod kept_leases;
mod listing;
mod memory;
mod own_addresses;
mod questions;
mod reports;
mod sends;
mod settings;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipc::driving::UserNetwork;
use ipc::user_reports::{UserFigures, UserQuestion};
use polling::{Look, Waiter};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketType};
use rustix::process::{Resource, getrlimit};
use usernet::network::{Destination, Network, Protocol, Refusal, destination};
use usernet::services::{Checksum, Errors, FramePurpose, Offer, PathError, Services};
use usernet::{
    Action, Bounds, FlowRecord, Nanos, PeekResult, Secret, Settings, SocketEvent, Translator,
    Verdict,
};
use vhost_frontend::queue::Direction;
use vhost_frontend::region::Region;
use wire::SNAPSHOT;
use wire::virtio::net::{self, NetHeader};
use wire::virtio::shape::QUEUE_SIZE;

use crate::frames::{BATCH, HEADER};
use crate::worker::{Phase, Ring, Side, WorkerError, WorkerStatus};
pub(crate) use calls::{IP_LOCAL_PORT_RANGE, SO_BUF_LOCK};
use echoes::{Echoes, Request};
use events::Tag;
use figures::Counters;
pub(crate) use forwards::Forward;
use forwards::Forwards;
use gateway::{DesiredSettings, Gateway, Waiting};
use guests::Guests;
pub(crate) use host_ports::HostPorts;
use kept::Keeper;
pub(crate) use kept::{FlowMessage, FlowRecords, KeptFlow, Outbox};
pub(crate) use kept_leases::KeptLeases;
use memory::Bytes;
use questions::{Questions, Reply};
use sends::{Segments, Sends};
pub(crate) use settings::SettingsError;
use sockets::{Progress, Sockets};

/// Maximum number of flows of a port; each has a descriptor.
pub(crate) const FLOWS_MAX: u32 = ipc::driving::FLOWS_MAX;
/// Descriptors for everything else: queues, questions, echo requests, messages.
pub(crate) const OTHER_DESCRIPTORS: u32 = 2048;
/// Events of one wait.
const EVENTS: usize = 256;
/// Maximum number of frames of a guest in a turn: three quarters of the buffers. The others are for
/// frames that come meanwhile.
const TURN: usize = QUEUE_SIZE as usize / 4 * 3;
/// Flows of this age outlive the process.
const YOUNG: Nanos = 1_000_000_000;
/// An address of the Internet: whether there is a way to it says whether there is IPv6.
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);

/// Settings that the supervisor has sent while the worker runs.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    network: Mutex<Option<UserNetwork>>,
    forwards: Mutex<Option<Vec<Forward>>>,
    question: Mutex<Option<UserQuestion>>,
    /// The way back: what the worker reports.
    figures: Mutex<Option<UserFigures>>,
}

impl Orders {
    /// Leaves settings for the worker, in place of those that it has not taken.
    pub(crate) fn put(&self, network: UserNetwork) {
        if let Ok(mut place) = self.network.lock() {
            *place = Some(network);
        }
    }

    /// Leaves forwards for the worker, in place of all before.
    pub(crate) fn put_forwards(&self, forwards: Vec<Forward>) {
        if let Ok(mut place) = self.forwards.lock() {
            *place = Some(forwards);
        }
    }

    /// Leaves a question for the worker. The answer comes by the [`Outbox`].
    pub(crate) fn ask(&self, question: UserQuestion) {
        if let Ok(mut place) = self.question.lock() {
            *place = Some(question);
        }
    }

    /// Returns the figures as of the last ping.
    pub(crate) fn figures(&self) -> Option<UserFigures> {
        *self.figures.lock().ok()?
    }

    fn report(&self, figures: UserFigures) {
        if let Ok(mut place) = self.figures.lock() {
            *place = Some(figures);
        }
    }

    fn take(&self) -> Option<UserNetwork> {
        self.network.lock().ok()?.take()
    }

    fn take_question(&self) -> Option<UserQuestion> {
        self.question.lock().ok()?.take()
    }

    fn take_forwards(&self) -> Option<Vec<Forward>> {
        self.forwards.lock().ok()?.take()
    }
}

/// Records, leases and flows that a former driver of the port has left, and the way to leave the
/// same to a successor.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) records: FlowRecords,
    pub(crate) leases: KeptLeases,
    pub(crate) flows: Vec<KeptFlow>,
    pub(crate) outbox: Arc<Outbox>,
}

/// A worker: see the module.
#[derive(Debug)]
pub(crate) struct UserWorker {
    status: Arc<WorkerStatus>,
    orders: Arc<Orders>,
    from_switch: Side,
    /// Buffers of frames with bytes that have not left yet.
    held: Vec<u16>,
    echoes: Echoes,
    leases: KeptLeases,
    gateway: Gateway,
    waiter: Waiter,
}

/// Returns whether the system denies this process all IP packets, those over loopback included.
pub(crate) fn is_denied() -> bool {
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), sockets::DISCARD);
    let sent = sockets::open(loopback.ip(), SocketType::DGRAM).and_then(|probe| {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendto(&probe, b"", flags, &loopback)
    });
    sent == Err(Errno::PERM)
}

/// Returns a random number.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // The system has had its entropy since long before: the call fills eight bytes.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

fn now() -> Nanos {
    sys::time::monotonic_ns()
}

/// Returns the bounds that the limit of descriptors leaves, with this number of host ports.
fn bounds(ports: u32) -> Bounds {
    let descriptors = getrlimit(Resource::Nofile).maximum;
    let descriptors = descriptors.and_then(|most| u32::try_from(most).ok());
    // A low limit leaves half of it for everything else, forwards among them.
    let left = descriptors.map_or(FLOWS_MAX, |most| most - (most / 2).min(OTHER_DESCRIPTORS));
    Bounds {
        flows: left.min(FLOWS_MAX),
        ports,
        ..Bounds::default()
    }
}

impl UserWorker {
    /// Returns the worker of a user port. Its sockets may have these ports of the host; its buffers
    /// for frames of the switch are submitted already. Settings that come later are in `orders`.
    ///
    /// # Errors
    /// The system's refusal, or settings that are none.
    pub(crate) fn new(
        region: &Arc<Region>,
        (network, ports): (UserNetwork, HostPorts),
        orders: Arc<Orders>,
        inherited: Inheritance,
        longest_look: Duration,
    ) -> Result<Self, WorkerError> {
        let mut from_switch = Side::new(region, 0, Direction::Inbound)?;
        let to_switch = Side::new(region, 1, Direction::Outbound)?;
        let status = Arc::new(WorkerStatus::new(false)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        for fd in [&from_switch.call, &to_switch.call, status.wake()] {
            let edges = EventFlags::IN | EventFlags::ET;
            epoll::add(&epoll, fd, Tag::WAKE.data(), edges).map_err(io::Error::from)?;
        }
        let desired = DesiredSettings::new(network)?;
        let network = settings::network(&desired.network)?;
        let sharers = desired.network.sharers;
        let (secret, bounds) = (Secret([random(), random()]), bounds(ports.share(sharers)));
        let mut translator = Translator::new(Settings {
            network,
            access: desired.access.clone(),
            bounds,
            times: settings::times(&desired.network)?,
            secret,
            super_frames: true,
        });
        translator.reserve(settings::stations(&desired.network));
        let mut services = Services::new(network, offer(&network, &desired.network));
        services
            .leases_mut()
            .reserve(settings::reserved(&desired.network));
        let mut leases = inherited.leases;
        leases.restore(services.leases_mut(), now());
        let zone = settings::zone(&desired.network, services.leases());
        let resolvers = settings::resolvers(&desired.network);
        let questions = Questions::new(epoll.try_clone()?, (network, ports), zone, resolvers);
        let shape = from_switch.queue.place().shape;
        for id in 0..shape.entries {
            from_switch.queue.submit(id, 0, shape.buffer);
        }
        from_switch.publish()?;
        let mut guests = Guests::new(to_switch);
        guests.side.queue.disarm();
        let taken: Vec<u32> = inherited.flows.iter().map(|flow| flow.slot).collect();
        let keeper = Keeper::new(inherited.records, &taken, inherited.outbox);
        let sockets = Sockets::new(
            epoll.try_clone()?,
            (ports, settings::budget(&desired.network)),
            keeper,
        );
        let idle = settings::times(&desired.network)?.ping;
        let mut echoes = Echoes::new(epoll.try_clone()?, network, sharers, idle);
        echoes.look();
        let gateway = Gateway {
            sockets,
            forwards: Forwards::new(epoll, network),
            network,
            desired,
            guests,
            translator,
            services,
            errors: Errors::new(network, secret),
            questions,
            waiting: Waiting::new(secret),
            sends: Sends::default(),
            segments: Segments::default(),
            counters: Counters {
                flows_max: bounds.flows,
                ..Counters::default()
            },
        };
        let mut worker = Self {
            status,
            orders,
            from_switch,
            held: Vec::with_capacity(TURN),
            echoes,
            leases,
            gateway,
            waiter: Waiter::new(Look::System, longest_look),
        };
        worker.restore(inherited.flows);
        Ok(worker)
    }

    /// Continues the flows of a predecessor, as far as their records and sockets are sound.
    fn restore(&mut self, flows: Vec<KeptFlow>) {
        let (now, count) = (now(), flows.len());
        for KeptFlow { slot, socket } in flows {
            let mut actions = Vec::new();
            let restored = self.restored(slot, socket, now, &mut actions);
            if restored.is_none() {
                self.gateway.sockets.disinherit(slot);
            }
            self.gateway.perform(actions, None, now);
        }
        if count > 0 {
            let left = self.gateway.translator.len();
            tracing::info!("restored {left} of {count} flows from the previous driver");
        }
    }

    fn restored(
        &mut self,
        slot: u32,
        socket: OwnedFd,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) -> Option<()> {
        let (flow, kind) = match FlowRecord::decode(&self.gateway.sockets.record(slot)).ok()? {
            FlowRecord::Flow(record) => {
                let room = sockets::room_of(&socket);
                let progress = calls::progress(socket.as_fd(), record.connected, room)?;
                let flow = self
                    .gateway
                    .translator
                    .restore(now, &record, &progress, actions);
                (flow.ok()?, (Progress::Connected, false))
            }
            FlowRecord::Mapping(record) => {
                let listen = sockets::datagrams_at(&socket)?;
                let flow = self
                    .gateway
                    .translator
                    .restore_mapping(now, &record, listen);
                let is_shared = record.forwarded.is_some();
                (flow.ok()?, (Progress::Datagrams, is_shared))
            }
        };
        let of = (flow, self.gateway.station(flow));
        if let Err(error) = self.gateway.sockets.inherit(of, socket, slot, kind) {
            // A flow without a socket would have no end.
            let failed = SocketEvent::Failed(sockets::failure(error));
            self.gateway.report(flow, failed, now, actions);
            return None;
        }
        Some(())
    }

    /// Has flows outlive the process that are old enough, or all.
    fn keep(&mut self, now: Nanos, all: bool) {
        while let Some((due, flow)) = self.gateway.waiting.young.front().copied()
            && (all || due <= now)
        {
            self.gateway.waiting.young.pop_front();
            if let Some(record) = self.gateway.translator.record(flow) {
                self.gateway.sockets.keep(flow, &record.encode());
            }
        }
    }

    /// Returns its queues, from the switch and to it.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn rings(&self) -> io::Result<[Ring; 2]> {
        Ok([self.from_switch.ring()?, self.gateway.guests.side.ring()?])
    }

    pub(crate) fn status(&self) -> Arc<WorkerStatus> {
        self.status.clone()
    }

    /// Moves frames until the requested end. `notify` is called when it has reached another phase.
    ///
    /// # Errors
    /// A failure of the switch or the system.
    pub(crate) fn run(mut self, notify: impl Fn()) -> Result<(), WorkerError> {
        while !self.status.has_reached(Phase::Stopped) {
            if self.turn()? {
                notify();
            }
        }
        Ok(())
    }

    /// Returns `true` when it has reached the requested phase.
    fn turn(&mut self) -> Result<bool, WorkerError> {
        let now = now();
        if self.status.pong(&self.gateway.counters.frames) {
            self.orders.report(UserFigures {
                echo_denied: self.echoes.look(),
                ..self.gateway.figures()
            });
            let offer = offer(&self.gateway.network, &self.gateway.desired.network);
            self.gateway.services.set_offer(offer);
        }
        if let Some(desired) = self.orders.take() {
            self.follow(desired)?;
        }
        if let Some(forwards) = self.orders.take_forwards() {
            self.set_forwards(forwards, now)?;
        }
        if let Some(question) = self.orders.take_question() {
            let page = listing::page(&mut self.gateway, question, now);
            self.gateway.sockets.answer(page);
        }
        let requested = self.status.requested();
        let is_running = requested == Phase::Running;
        if !is_running {
            self.gateway.guests.close();
        }
        self.keep(now, !is_running);
        self.gateway.guests.take_back()?;
        let mut moved = self.receive(now)?;
        self.leases.follow(self.gateway.services.leases_mut());
        if is_running {
            moved |= self.serve(now);
            self.expire(now);
        }
        // Acknowledgements have guests send more: there must be buffers for that first.
        self.from_switch.publish()?;
        self.gateway.guests.publish()?;
        if !moved
            && !is_running
            && !self.status.has_reached(requested)
            && self.gateway.guests.is_empty()
        {
            self.status.reach(requested);
            return Ok(true);
        }
        if moved {
            self.waiter.found();
        }
        let is_awake = moved || self.waiter.looks_on(Duration::from_nanos(now));
        if is_awake || self.prepare_sleep(is_running)? {
            self.wait(Some(Duration::ZERO), is_running)?;
        } else {
            let left = |until: Nanos| Duration::from_nanos(until.saturating_sub(now));
            let limit = self.sleep_limit().map(left);
            let measured = self.waiter.before_sleep();
            self.wait(limit, is_running)?;
            self.waiter.slept(measured);
        }
        Ok(false)
    }

    /// Changes settings that flows survive.
    fn follow(&mut self, network: UserNetwork) -> Result<(), WorkerError> {
        if settings::network(&network)? != self.gateway.network {
            return Err(SettingsError::Changed.into());
        }
        let offer = offer(&self.gateway.network, &network);
        self.gateway.services.set_offer(offer);
        let reserved = settings::reserved(&network);
        self.gateway.services.leases_mut().reserve(reserved);
        self.gateway.desired = DesiredSettings::new(network)?;
        self.gateway
            .translator
            .set_access(self.gateway.desired.access.clone());
        let times = settings::times(&self.gateway.desired.network)?;
        self.gateway.translator.set_times(times);
        self.echoes.set_idle(times.ping);
        let stations = settings::stations(&self.gateway.desired.network);
        self.gateway.translator.reserve(stations);
        let sharers = self.gateway.desired.network.sharers;
        let ports = self.gateway.sockets.ports().share(sharers);
        self.gateway.translator.set_ports(ports);
        self.echoes.set_sharers(sharers);
        let budget = settings::budget(&self.gateway.desired.network);
        self.gateway.sockets.set_budget(budget);
        self.gateway.name(now());
        Ok(())
    }

    /// Changes the forwards. Mappings of those that are gone end, so that their ports are free.
    fn set_forwards(&mut self, forwards: Vec<Forward>, now: Nanos) -> io::Result<()> {
        self.gateway.forwards.set(forwards)?;
        let (forwards, mut actions) = (&self.gateway.forwards, Vec::new());
        self.gateway
            .translator
            .retain_forwards(|listen| forwards.receives_at(listen), &mut actions);
        self.gateway.perform(actions, None, now);
        Ok(())
    }

    /// Takes frames of guests. `true` when there may be more.
    fn receive(&mut self, now: Nanos) -> Result<bool, WorkerError> {
        let mut count = 0;
        while self.takes_another(count) {
            let Some(used) = self.from_switch.queue.take()? else {
                break;
            };
            if used.len <= HEADER {
                return Err(WorkerError::Short(used.len));
            }
            let bytes = Bytes::of(&self.from_switch.queue, used.id, 0, used.len);
            self.frame(bytes, now);
            match self.gateway.sends.take_hold() {
                true => self.held.push(used.id),
                false => self.free(used.id),
            }
            count += 1;
        }
        self.gateway.flush(now);
        self.gateway.flush_segments(now);
        while let Some(id) = self.held.pop() {
            self.free(id);
        }
        Ok(count > 0)
    }

    /// Returns whether a turn with `count` frames takes one more. Segments of many connections come
    /// mixed, and leave by fewer calls the more there are. Datagrams do not gain by that.
    fn takes_another(&self, count: usize) -> bool {
        let most = match self.gateway.sends.is_empty() {
            true => TURN,
            false => BATCH,
        };
        count < most && !self.gateway.guests.is_congested()
    }

    /// Gives the switch a buffer back.
    fn free(&mut self, id: u16) {
        let room = self.from_switch.queue.place().shape.buffer;
        self.from_switch.queue.submit(id, 0, room);
    }

    /// Handles a frame of a guest, with its virtio header.
    fn frame(&mut self, bytes: Bytes, now: Nanos) {
        let mut header = [0; net::LEN];
        bytes.copy_to(&mut header);
        let header = NetHeader::decode(&header);
        let Some(frame) = bytes.part(net::LEN, bytes.len() - net::LEN) else {
            return;
        };
        self.gateway.counters.frames.sent.frames += 1;
        let mut headers = [0; SNAPSHOT];
        let len = frame.copy_to(&mut headers);
        let mut actions = Vec::new();
        let verdict =
            self.gateway
                .translator
                .frame(now, &headers[..len], frame.len(), &header, &mut actions);
        match verdict {
            Verdict::Done | Verdict::Ignored => {}
            Verdict::Service => self.service(frame, &header, now),
            Verdict::Expired => self.gateway.expired(&copy_of(frame), now),
            Verdict::Refused(refusal) => {
                self.gateway.counters.refuse(refusal);
                // A connection is refused by a reset, which is among the actions.
                if actions.is_empty() {
                    self.gateway.send_error(&copy_of(frame), refusal, now);
                }
            }
        }
        self.gateway.perform(actions, Some(frame), now);
    }

    /// Handles a frame for the gateway or the DNS server, or an echo request.
    fn service(&mut self, frame: Bytes, header: &NetHeader, now: Nanos) {
        let checksum = if header.needs_csum() {
            Checksum::Left
        } else {
            Checksum::InFrame
        };
        let frame = copy_of(frame);
        let answer = match self.gateway.services.frame(&frame, checksum, now) {
            Ok(FramePurpose::Here(answer)) => {
                self.lead_waiting(now);
                answer.map(Reply::Frame)
            }
            Ok(FramePurpose::Dns { client, message }) => {
                self.gateway.update_names(now);
                self.gateway.questions.ask(client, &message, now)
            }
            Ok(FramePurpose::PathError(error)) => {
                self.path_error(&error, now);
                None
            }
            Ok(FramePurpose::Elsewhere) => {
                let refused = self.echo(&frame, now).err();
                refused.and_then(|refusal| self.refused_echo(&frame, refusal, now))
            }
            Err(refusal) => {
                self.gateway.counters.refuse(refusal);
                None
            }
        };
        if let Some(answer) = answer {
            self.gateway.reply(answer, now);
        }
    }

    /// Handles an error about a packet that went to a guest.
    fn path_error(&mut self, error: &PathError, now: Nanos) {
        let mut actions = Vec::new();
        let translator = &mut self.gateway.translator;
        if let Verdict::Refused(refusal) = translator.path_error(now, error, &mut actions) {
            self.gateway.counters.refuse(refusal);
        }
        self.gateway.perform(actions, None, now);
    }

    /// Sends an echo request on.
    fn echo(&mut self, frame: &[u8], now: Nanos) -> Result<(), Refusal> {
        let request = Request::parse(frame).ok_or(Refusal::Protocol)?;
        let to = SocketAddr::new(request.to, 0);
        match destination(
            &self.gateway.network,
            &self.gateway.desired.access,
            Protocol::Icmp,
            to,
        ) {
            Destination::Outside(_) if request.is_over => {
                self.gateway.expired(frame, now);
                return Ok(());
            }
            Destination::Outside(_) => {}
            Destination::Refused(refusal) => return Err(refusal),
            _ => return Err(Refusal::Unreachable),
        }
        match self.gateway.sockets.is_own(request.to, now) {
            Ok(false) => self.echoes.send(&request, now),
            Ok(true) => Err(Refusal::Denied),
            Err(_) => Err(Refusal::Unreachable),
        }
    }

    /// Fills buffers from sockets, each flow one at a time. `true` when there may be more.
    fn serve(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for _ in 0..BATCH {
            let peeked = self.gateway.guests.has_room() && self.peek_next(now);
            let received = self.gateway.guests.has_room() && self.gateway.receive_next(now);
            if !peeked && !received {
                break;
            }
            any = true;
        }
        any
    }

    /// Reads of the TCP flow that is next. `false` when there is none.
    fn peek_next(&mut self, now: Nanos) -> bool {
        let Some(flow) = self.gateway.waiting.turns.current() else {
            return false;
        };
        let peek = self.gateway.translator.peek(now, flow);
        let is_open = self.gateway.sockets.get(flow).is_some();
        let Some(peek) = peek.filter(|_| is_open) else {
            self.gateway.waiting.turns.closed(flow);
            return true;
        };
        let Some(leased) = self.gateway.guests.lease() else {
            return false;
        };
        let into = self.gateway.guests.behind(&leased, peek.headers.into());
        self.gateway.counters.frames.received.calls += 1;
        let mut actions = Vec::new();
        match self.gateway.sockets.peek(flow, peek, into) {
            Ok(peeked) => {
                let headers = self
                    .gateway
                    .translator
                    .peeked(now, flow, peek, peeked, &mut actions);
                match (headers, peeked) {
                    (Some(headers), PeekResult::Bytes(len)) => {
                        self.gateway.counters.frames.received.frames += 1;
                        self.gateway.guests.submit_headers(leased, &headers, len);
                        self.gateway.waiting.turns.served(len);
                    }
                    _ => self.gateway.guests.give_back(leased),
                }
            }
            Err(_) => {
                self.gateway.guests.give_back(leased);
                self.gateway.waiting.turns.closed(flow);
                self.gateway
                    .report(flow, SocketEvent::Reset, now, &mut actions);
            }
        }
        self.gateway.perform(actions, None, now);
        true
    }

    /// Handles everything that is due.
    fn expire(&mut self, now: Nanos) {
        if self
            .gateway
            .translator
            .deadline()
            .is_some_and(|at| at <= now)
        {
            let mut actions = Vec::new();
            self.gateway.translator.expire(now, &mut actions);
            self.gateway.perform(actions, None, now);
        }
        if let Some(frame) = self.gateway.services.advertisement(now) {
            self.gateway.guests.send(NetHeader::default(), &frame);
        }
        if self.gateway.dns_deadline().is_some_and(|at| at <= now) {
            self.gateway.expire_dns(now);
        }
        if self.echoes.deadline().is_some_and(|at| at <= now) {
            self.echoes.expire(now);
        }
        if self
            .gateway
            .waiting
            .accepted
            .deadline()
            .is_some_and(|at| at <= now)
        {
            self.lead_waiting(now);
        }
    }

    /// The next deadline.
    fn sleep_limit(&self) -> Option<Nanos> {
        let advertisement = self
            .gateway
            .network
            .prefix6()
            .map(|_| self.gateway.services.deadline());
        let all = [
            self.gateway.translator.deadline(),
            self.gateway.dns_deadline(),
            self.echoes.deadline(),
            self.gateway.waiting.accepted.deadline(),
            advertisement,
            self.gateway.waiting.young.front().map(|(due, _)| *due),
        ];
        all.into_iter().flatten().min()
    }

    /// Requests kicks. `true` when there is work already.
    fn prepare_sleep(&mut self, is_running: bool) -> Result<bool, WorkerError> {
        let frames = !self.gateway.guests.is_congested() && self.from_switch.queue.arm()?;
        // Used buffers are only waited for when there are none, or all of them must return.
        let waits = !is_running || self.gateway.guests.is_short();
        let buffers = waits && self.gateway.guests.side.queue.arm()?;
        Ok(frames || buffers)
    }
}

/// Returns a private copy of a frame.
fn copy_of(frame: Bytes) -> Vec<u8> {
    let mut copy = vec![0; frame.len()];
    frame.copy_to(&mut copy);
    copy
}

/// Returns what the gateway offers: without a way for IPv6, it is no router for it.
fn offer(network: &Network, desired: &UserNetwork) -> Offer {
    let has_way = || {
        let probe = sockets::open(IpAddr::V6(FAR6), SocketType::DGRAM)?;
        rustix::net::connect(&probe, &SocketAddr::new(FAR6.into(), sockets::DISCARD))
    };
    Offer {
        route6: network.prefix6().is_some() && has_way().is_ok(),
        dns: desired.dns,
        search: settings::search(desired),
    }
}
