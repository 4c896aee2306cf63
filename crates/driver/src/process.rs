//! The driver process: set up, give up all rights, move frames until something ends it.

mod user_setup;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use channel::driving::{BackEnd, DriverCounters, DriverStart, UserForward, UserNetwork};
use channel::link::{Link, Received};
use channel::supervision::{SupervisorEvent, SupervisorRequest};
use channel::timeouts::DRIVER_SETUP;
use channel::user_reports::UserQuestion;
use front::Front;
use front::region::Region;
use rustix::event::{PollFd, PollFlags};
use sys::descriptors::MAX_FDS;
use sys::foreign::ForeignFd;
use sys::{event, wait};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use crate::frames::{Coalescer, Interface, VhostNet, Xdp};
use crate::user::{Forward, HostPorts, Inherited, Letter, Orders, Outbox, UserWorker};
use crate::worker::{Phase, Ring, Worker, WorkerError, WorkerStatus};
use crate::xdp::SHAPE;
use crate::{device, restrictions, user};
use user_setup::{UserSetup, forwards};

type SupervisorLink = Link<SupervisorRequest, SupervisorEvent>;

/// Limit of draining at the end: the port has no driver meanwhile. Frames that are left then are
/// lost.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// Most messages about flows that the supervisor has not answered.
const UNANSWERED_MAX: usize = 4;
/// Most flows of a message that tells their end.
const DROPPED_MAX: usize = 64;
/// Timer slack, in nanoseconds: how much longer a pause may be.
const TIMER_SLACK: u64 = 1000;

/// Returns the features that the switch must offer. Frames cross whole in both directions: they are
/// segmented as late as possible. `AF_XDP` has no offloads; only a checksum may still have to be
/// completed.
fn desired(start: &DriverStart) -> Features {
    let mut features = Features::VERSION_1 | Features::RING_EVENT_IDX | Features::NET_CSUM;
    features.set(Features::NET_MQ, start.queues > 1);
    if start.xdp.is_some() {
        return features;
    }
    features |= Features::NET_GUEST_CSUM
        | Features::NET_HOST_TSO4
        | Features::NET_HOST_TSO6
        | Features::NET_HOST_ECN
        | Features::NET_GUEST_TSO4
        | Features::NET_GUEST_TSO6
        | Features::NET_GUEST_ECN;
    let uso = Features::NET_HOST_USO | Features::NET_GUEST_USO4 | Features::NET_GUEST_USO6;
    features.set(uso, start.uso);
    features
}

/// Runs a driver until the supervisor or the switch ends it, or an error occurs. `link` is the
/// supervision link.
///
/// # Errors
/// The reason for which it could not start or continue; it is reported to the supervisor too.
pub fn run(link: OwnedFd) -> io::Result<()> {
    run_as(link, Place::OwnProcess)
}

/// Runs a driver in this thread and threads of its own, in a process that keeps its rights: the
/// benchmarks compare it with [`run`].
///
/// # Errors
/// As [`run`].
#[cfg(feature = "in-process")]
pub fn run_in_process(link: OwnedFd) -> io::Result<()> {
    run_as(link, Place::Thread)
}

/// Where a driver runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a process that gives up its rights.
    OwnProcess,
    #[cfg(feature = "in-process")]
    Thread,
}

fn run_as(link: OwnedFd, place: Place) -> io::Result<()> {
    let mut link = Link::new(link);
    let Some(setup) = receive_start(&mut link)? else {
        return Ok(());
    };
    let ended = drive(&mut link, setup, place);
    if let Err(ending) = &ended {
        let request = SupervisorRequest::DriverEnds {
            reason: ending.to_string(),
            device_lost: matches!(ending, DriverError::Worker(error) if error.device_lost()),
        };
        // If this fails, the supervisor detects the exit.
        let _ = link.send(&request, &[]);
    }
    ended.map_err(io::Error::other)
}

/// Reason for which a driver ends by itself.
#[derive(Debug, thiserror::Error)]
enum DriverError {
    #[error(transparent)]
    Worker(WorkerError),
    #[error("it cannot enter the sandbox: {0}")]
    Sandbox(io::Error),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Descriptors and parameters from the supervisor.
struct Setup {
    start: DriverStart,
    /// The connection to the switch.
    switch: OwnedFd,
    /// Queues of the interface.
    queues: Vec<InterfaceQueue>,
    /// The queues may be used without their vhost devices.
    or_tap: bool,
    /// The umem of the queues; only with `start.xdp`.
    memory: Option<OwnedFd>,
    /// Only with [`BackEnd::User`], whose queue is the namespace of its sockets.
    user: Option<UserSetup>,
}

/// Descriptors of one queue of the interface.
struct InterfaceQueue {
    queue: OwnedFd,
    /// The kernel's device; only with [`BackEnd::VhostNet`].
    vhost: Option<OwnedFd>,
}

/// Receives the parameters; `None` if the supervisor stops the driver before.
fn receive_start(link: &mut SupervisorLink) -> io::Result<Option<Setup>> {
    let bad = || io::Error::other("the supervisor sent no start parameters");
    let (start, fds) = match link.recv()? {
        Received::Message(SupervisorEvent::StartDriver(start), fds) => (start, fds),
        Received::Closed | Received::Message(SupervisorEvent::Stop, _) => return Ok(None),
        _ => return Err(bad()),
    };
    let mut queues = Vec::new();
    let mut or_tap = false;
    for _ in 0..start.queues {
        let fds = match link.recv()? {
            Received::Message(SupervisorEvent::DriverQueue, fds) => fds,
            Received::Message(SupervisorEvent::VhostQueue { or_tap: permitted }, fds) => {
                or_tap = permitted;
                fds
            }
            _ => return Err(bad()),
        };
        let mut fds = fds.into_iter().map(ForeignFd::vouch);
        let queue = fds.next().ok_or_else(bad)?;
        let vhost = fds.next();
        queues.push(InterfaceQueue { queue, vhost });
    }
    let by_vhost = start.back_end == BackEnd::VhostNet;
    if queues.iter().any(|of| of.vhost.is_some() != by_vhost) {
        return Err(bad());
    }
    let user = match start.back_end {
        BackEnd::User => Some(user_setup::receive(link)?),
        _ => None,
    };
    let mut fds = fds.into_iter().map(ForeignFd::vouch);
    let (switch, memory) = (fds.next(), fds.next());
    match switch {
        Some(switch) if memory.is_some() == start.xdp.is_some() => Ok(Some(Setup {
            start,
            switch,
            queues,
            or_tap,
            memory,
            user,
        })),
        _ => Err(bad()),
    }
}

/// The work of a thread.
enum Work {
    /// Between an interface and the switch.
    Frames(Box<Worker>),
    /// Between sockets and the switch.
    User(Box<UserWorker>),
}

impl Work {
    fn status(&self) -> Arc<WorkerStatus> {
        match self {
            Self::Frames(worker) => worker.status(),
            Self::User(worker) => worker.status(),
        }
    }

    fn rings(&self) -> io::Result<[Ring; 2]> {
        match self {
            Self::Frames(worker) => worker.rings(),
            Self::User(worker) => worker.rings(),
        }
    }

    fn run(self, notify: impl Fn()) -> Result<(), WorkerError> {
        match self {
            Self::Frames(worker) => worker.run(notify),
            Self::User(worker) => worker.run(notify),
        }
    }
}

/// The threads that move frames, as the main thread sees them.
struct WorkerPool {
    workers: Vec<Arc<WorkerStatus>>,
    starts: Vec<Sender<()>>,
    /// Readable when a thread has ended, or has reached its requested phase.
    changed: OwnedFd,
    error: Arc<Mutex<Option<WorkerError>>>,
    /// Settings for the worker of a user port.
    orders: Arc<Orders>,
    mail: Mail,
    /// Forwards that the supervisor has sent of a new list.
    forwards: Vec<Forward>,
    /// It was asked for the next ones, and has not answered.
    awaits_forwards: bool,
}

/// Messages about flows on their way to the supervisor.
struct Mail {
    outbox: Arc<Outbox>,
    /// Messages that it has not answered.
    unanswered: usize,
}

impl Mail {
    fn new() -> io::Result<Self> {
        Ok(Self {
            outbox: Arc::new(Outbox::new()?),
            unanswered: 0,
        })
    }

    /// Sends what may be sent.
    fn send(&mut self, link: &SupervisorLink) -> io::Result<()> {
        event::clear(self.outbox.event());
        if let Some(page) = self.outbox.take_page() {
            link.send(&SupervisorRequest::UserPage(page), &[])?;
        }
        while self.unanswered < UNANSWERED_MAX {
            let letters = self.outbox.take(MAX_FDS, DROPPED_MAX);
            if letters.is_empty() {
                break;
            }
            let (mut kept, mut sockets, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
            for letter in letters {
                match letter {
                    Letter::Keep(slot, socket) => {
                        kept.push(slot);
                        sockets.push(socket);
                    }
                    Letter::Drop(slot) => dropped.push(slot),
                }
            }
            let fds: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
            let request = if dropped.is_empty() {
                SupervisorRequest::KeepFlows(kept)
            } else {
                SupervisorRequest::DropFlows(dropped)
            };
            link.send(&request, &fds)?;
            self.unanswered += 1;
        }
        Ok(())
    }

    /// Returns whether the supervisor has all of it.
    fn is_done(&self) -> bool {
        self.unanswered == 0 && self.outbox.is_empty()
    }
}

impl WorkerPool {
    /// Starts a thread for each worker, and returns when they all wait for their start: the start
    /// of a thread needs system calls that the filter forbids.
    fn spawn(workers: Vec<Work>, orders: Arc<Orders>, mail: Mail) -> io::Result<Self> {
        let all_here = Arc::new(Barrier::new(workers.len() + 1));
        let changed = event::create()?;
        let mut pool = Self {
            workers: workers.iter().map(Work::status).collect(),
            starts: Vec::new(),
            changed,
            error: Arc::default(),
            orders,
            mail,
            forwards: Vec::new(),
            awaits_forwards: false,
        };
        for worker in workers {
            let (start, started) = channel();
            pool.starts.push(start);
            let changed = pool.changed.try_clone()?;
            let (error, here) = (pool.error.clone(), all_here.clone());
            let thread = std::thread::Builder::new().name("pair".to_owned());
            thread.spawn(move || {
                // The system's default slack of 50 us would make pauses longer.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
                here.wait();
                work(worker, &started, &error, &changed);
            })?;
        }
        all_here.wait();
        Ok(pool)
    }

    fn start(&self) {
        for start in &self.starts {
            // A worker that has ended has reported its error.
            let _ = start.send(());
        }
    }

    /// Requests a phase of all workers, and waits until they have reached it, until `until` at
    /// most.
    fn advance(&self, phase: Phase, until: Instant) -> io::Result<()> {
        self.workers.iter().for_each(|status| status.request(phase));
        while !self.workers.iter().all(|status| status.has_reached(phase)) {
            if wait::ready(&self.changed, PollFlags::IN, Some(until))?.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            event::clear(&self.changed);
        }
        Ok(())
    }

    /// Takes the next forwards of a new list, whose end is none.
    fn take_forwards(
        &mut self,
        link: &SupervisorLink,
        part: Vec<UserForward>,
        sockets: Vec<OwnedFd>,
    ) -> io::Result<()> {
        if part.is_empty() {
            self.awaits_forwards = false;
            self.orders.put_forwards(std::mem::take(&mut self.forwards));
            self.wake();
            return Ok(());
        }
        self.forwards.extend(forwards(part, sockets));
        link.send(&SupervisorRequest::NextForwards, &[])
    }

    /// Takes a new list from its first forward on. An answer that is on its way comes after this
    /// message, and is of the new list already: another request would have it end twice.
    fn renew_forwards(&mut self, link: &SupervisorLink) -> io::Result<()> {
        self.forwards.clear();
        if std::mem::replace(&mut self.awaits_forwards, true) {
            return Ok(());
        }
        link.send(&SupervisorRequest::NextForwards, &[])
    }

    /// Hands other settings to the worker of a user port.
    fn change(&self, network: UserNetwork) {
        self.orders.put(network);
        self.wake();
    }

    /// Hands a question about a table to the worker of a user port.
    fn ask(&self, question: UserQuestion) {
        self.orders.ask(question);
        self.wake();
    }

    fn wake(&self) {
        for status in &self.workers {
            let _ = event::ring(status.wake());
        }
    }

    fn counters(&self) -> DriverCounters {
        let all = self.workers.iter().map(|status| status.counters());
        all.fold(DriverCounters::default(), |sum, of| sum.plus(&of))
    }
}

fn work(
    worker: Work,
    started: &Receiver<()>,
    first_error: &Mutex<Option<WorkerError>>,
    changed: &OwnedFd,
) {
    if started.recv().is_err() {
        return;
    }
    let notify = || drop(event::ring(changed));
    if let Err(error) = worker.run(notify)
        && let Ok(mut first) = first_error.lock()
    {
        // The first error counts.
        first.get_or_insert(error);
    }
    notify();
}

/// Returns the interface's queues, and the memory that is shared with the switch.
fn set_up(
    start: &DriverStart,
    queues: Vec<InterfaceQueue>,
    memory: Option<OwnedFd>,
) -> io::Result<(Arc<Region>, Vec<Interface>)> {
    let region = Arc::new(match memory {
        Some(memory) => Region::over(memory, SHAPE, start.queues)?,
        None => Region::new(crate::MEMORY, start.queues)?,
    });
    let interfaces = (0..).zip(queues).map(|(pair, of)| {
        let InterfaceQueue { queue, vhost } = of;
        Ok(match (start.xdp, vhost) {
            (Some(xdp), _) => Interface::Xdp(Box::new(Xdp::new(queue, &region, pair, xdp)?)),
            (None, Some(device)) => {
                Interface::VhostNet(Box::new(VhostNet::new(device, queue, &region, pair)?))
            }
            (None, None) => Interface::new(start.back_end, queue),
        })
    });
    let interfaces = interfaces.collect::<io::Result<Vec<_>>>()?;
    Ok((region, interfaces))
}

/// Sets up the rest of the interface's queues, with the rights that the process keeps. Where the
/// kernel refuses vhost devices and that is permitted (`or_tap`), none has one; returns the
/// refusal.
///
/// # Errors
/// The system's refusal.
fn attach(interfaces: &mut Vec<Interface>, or_tap: bool) -> io::Result<Option<io::Error>> {
    let attached = interfaces.iter_mut().try_for_each(Interface::attach);
    match attached {
        Err(refusal) if or_tap => {
            let all = std::mem::take(interfaces).into_iter();
            *interfaces = all.map(Interface::without_vhost).collect();
            Ok(Some(refusal))
        }
        attached => attached.map(|()| None),
    }
}

fn workers(region: &Arc<Region>, interfaces: Vec<Interface>, uso: bool) -> io::Result<Vec<Work>> {
    let pairs = (0..).zip(interfaces);
    let workers = pairs.map(|(pair, interface)| {
        let worker = Worker::new(region, pair, interface, Coalescer::new(uso))?;
        Ok(Work::Frames(Box::new(worker)))
    });
    workers.collect()
}

fn drive(link: &mut SupervisorLink, setup: Setup, place: Place) -> Result<(), DriverError> {
    let start = &setup.start;
    link.set_nonblocking()?;
    let mut front = Front::new(setup.switch, Instant::now() + DRIVER_SETUP)?;
    let mut queues = setup.queues;
    if setup.user.is_some() {
        for namespace in std::mem::take(&mut queues) {
            device::enter(namespace.queue.as_fd())?;
        }
    }
    // No file can be opened below.
    let ports = setup.user.as_ref().map(|_| HostPorts::read());
    let (region, mut interfaces) = set_up(start, queues, setup.memory)?;
    let restricted = place == Place::OwnProcess;
    if restricted {
        let process = match setup.user {
            Some(_) => sandbox::Process::UserDriver(start.port.0),
            None => sandbox::Process::Driver(start.port.0),
        };
        sandbox::drop_rights(process).map_err(DriverError::Sandbox)?;
    }
    // The kernel's thread has the rights of its owner, and of its limits of processes.
    let mut back_end = start.back_end;
    if let Some(refusal) = attach(&mut interfaces, setup.or_tap)? {
        back_end = BackEnd::Tap;
        let reason = refusal.to_string();
        link.send(&SupervisorRequest::VhostRefused { reason }, &[])?;
    }
    let ping = setup.user.as_ref().and_then(|user| user.ping.clone());
    let question = setup.user.as_ref().and_then(|user| user.question);
    if setup.user.is_some() && user::is_denied() {
        link.send(&SupervisorRequest::NetworkDenied, &[])?;
    }
    let orders = Arc::new(Orders::default());
    let mail = Mail::new()?;
    let workers = match setup.user.zip(ports) {
        Some((user, ports)) => {
            let inherited = Inherited {
                records: user.records,
                leases: user.leases,
                flows: user.flows,
                outbox: mail.outbox.clone(),
            };
            orders.put_forwards(user.forwards);
            let worker = UserWorker::new(&region, (user.network, ports), orders.clone(), inherited);
            vec![Work::User(Box::new(worker.map_err(DriverError::Worker)?))]
        }
        None => workers(&region, interfaces, start.uso)?,
    };
    let rings = workers.iter().map(Work::rings);
    let rings = rings.collect::<io::Result<Vec<_>>>()?;
    let mut pool = WorkerPool::spawn(workers, orders, mail)?;
    if restricted {
        restrictions::apply(region.size(), start.queues, back_end).map_err(DriverError::Sandbox)?;
    }

    front.negotiate(desired(start), ProtocolFeatures::empty(), start.queues)?;
    front.share(region.file(), region.size())?;
    for (index, ring) in (0..).zip(rings.iter().flatten()) {
        front.start(index, &ring.queue())?;
    }
    front.settle()?;
    drop(rings);
    pool.start();
    if let Some(question) = question {
        pool.ask(question);
    }
    if let Some(ping) = ping {
        reply_to_ping(link, &pool, &ping)?;
    }
    let (port, back_end) = (&start.name, back_end.as_str());
    tracing::info!(port, back_end, queues = start.queues, "driver started");
    if !start.uso && start.xdp.is_none() {
        tracing::info!(
            port,
            "no UDP segmentation offload: each datagram is a frame"
        );
    }
    if serve(link, &front, &mut pool)? {
        let ended = drain(link, &mut front, &mut pool);
        if let Err(error) = ended {
            tracing::info!(port, "frames lost at shutdown: {error}");
        }
    }
    Ok(())
}

/// Drains both directions; frames that were not received stay in the interface.
fn drain(link: &mut SupervisorLink, front: &mut Front, pool: &mut WorkerPool) -> io::Result<()> {
    let until = Instant::now() + DRAIN_TIMEOUT;
    if let Err(error) = pool.advance(Phase::Drained, until) {
        // A guest that sends without a pause costs no other guest its flows.
        hand_over_flows(link, pool, until + DRAIN_TIMEOUT)?;
        return Err(error);
    }
    hand_over_flows(link, pool, until)?;
    for pair in (0..).take(pool.workers.len()) {
        front.stop(2 * pair, until)?;
    }
    pool.advance(Phase::Stopped, until)
}

/// Hands over the flows that the supervisor does not have yet.
fn hand_over_flows(
    link: &mut SupervisorLink,
    pool: &mut WorkerPool,
    until: Instant,
) -> io::Result<()> {
    pool.mail.send(link)?;
    while !pool.mail.is_done() {
        if wait::ready(&*link, PollFlags::IN, Some(until))?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if handle_messages(link, pool)? == Some(false) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
    Ok(())
}

/// Replies to pings until the connection, the supervisor or a thread ends; `true` if the supervisor
/// requests the end.
fn serve(
    link: &mut SupervisorLink,
    front: &Front,
    pool: &mut WorkerPool,
) -> Result<bool, DriverError> {
    loop {
        let outbox = pool.mail.outbox.event();
        let mut fds = [link.as_fd(), front.as_fd(), pool.changed.as_fd(), outbox]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        wait::poll(&mut fds, None)?;
        let [spoken, closed, changed, mail] = fds.map(|fd| !fd.revents().is_empty());
        if changed && let Some(error) = pool.error.lock().ok().and_then(|mut error| error.take()) {
            return Err(DriverError::Worker(error));
        }
        // The switch sends nothing after the set-up: it has closed the connection, or is not ours.
        if closed {
            return Ok(false);
        }
        if mail {
            pool.mail.send(link)?;
        }
        if spoken && let Some(requested) = handle_messages(link, pool)? {
            return Ok(requested);
        }
    }
}

/// Handles the supervisor's messages. Returns whether it requested the end, if this is the end.
fn handle_messages(link: &mut SupervisorLink, pool: &mut WorkerPool) -> io::Result<Option<bool>> {
    loop {
        match link.recv()? {
            Received::Message(ping @ (SupervisorEvent::Ping | SupervisorEvent::PingDriver), _) => {
                reply_to_ping(link, pool, &ping)?
            }
            Received::Nothing => return Ok(None),
            Received::Closed => return Ok(Some(false)),
            Received::Message(SupervisorEvent::Stop, _) => return Ok(Some(true)),
            Received::Message(SupervisorEvent::UserNetwork(network), _) => pool.change(*network),
            Received::Message(SupervisorEvent::UserQuestion(question), _) => pool.ask(question),
            Received::Message(SupervisorEvent::ForwardsChanged, _) => pool.renew_forwards(link)?,
            Received::Message(SupervisorEvent::Forwards(part), sockets) => {
                let sockets = sockets.into_iter().map(ForeignFd::vouch);
                pool.take_forwards(link, part, sockets.collect())?;
            }
            Received::Message(SupervisorEvent::FlowsTaken, _) => {
                pool.mail.unanswered = pool.mail.unanswered.saturating_sub(1);
                pool.mail.send(link)?;
            }
            Received::Message(..) => {}
        }
    }
}

/// Replies if every thread has run since the last ping; a thread that hangs keeps the driver
/// silent.
fn reply_to_ping(
    link: &SupervisorLink,
    pool: &WorkerPool,
    ping: &SupervisorEvent,
) -> io::Result<()> {
    if pool.workers.iter().all(|status| status.is_alive()) {
        let counters = pool.counters();
        let reply = match ping {
            SupervisorEvent::PingDriver => SupervisorRequest::DriverPong {
                counters,
                dropped_by_kernel: counters.dropped_by_kernel,
            },
            // A supervisor of a build before.
            _ => SupervisorRequest::Pong(counters),
        };
        link.send(&reply, &[])?;
        if let Some(figures) = pool.orders.figures() {
            link.send(&SupervisorRequest::UserFigures(figures), &[])?;
        }
        pool.workers.iter().for_each(|status| status.ping());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use channel::driving::{ForwardProtocol, Listen};
    use std::fs::File;

    use super::*;

    /// Queue pairs of a TAP device with vhost devices that refuse every request.
    fn refused() -> Vec<Interface> {
        let region = Arc::new(Region::new("test", 2).expect("memory"));
        let nothing = || OwnedFd::from(File::open("/dev/null").unwrap());
        let pairs = [0, 1].map(|pair| VhostNet::new(nothing(), nothing(), &region, pair).unwrap());
        pairs
            .map(|vhost| Interface::VhostNet(Box::new(vhost)))
            .into()
    }

    #[test]
    fn refused_vhost_devices_are_done_without_where_that_is_permitted() {
        let mut interfaces = refused();
        let refusal = attach(&mut interfaces, true).unwrap().unwrap();
        assert!(
            refusal.to_string().starts_with("VHOST_SET_OWNER: "),
            "{refusal}"
        );
        let are_taps = interfaces.iter().all(|of| matches!(of, Interface::Tap(_)));
        assert!(are_taps && interfaces.len() == 2, "{interfaces:?}");

        let mut interfaces = refused();
        let error = attach(&mut interfaces, false).unwrap_err();
        assert_eq!(error.to_string(), refusal.to_string());
    }

    /// Two changes of the forwards in a row: the driver asks anew only when it has no answer to
    /// come, else the list would end twice, the second time without a forward.
    #[test]
    fn a_list_of_forwards_that_changes_meanwhile_ends_once() {
        let (ours, theirs) = channel::link::pair().unwrap();
        let link = SupervisorLink::new(ours);
        let mut supervisor: Link<SupervisorEvent, SupervisorRequest> = Link::new(theirs);
        supervisor.set_nonblocking().unwrap();
        let mut requests = || match supervisor.recv().unwrap() {
            Received::Message(SupervisorRequest::NextForwards, _) => true,
            Received::Nothing => false,
            other => panic!("{other:?}"),
        };
        let mail = Mail::new().unwrap();
        let mut pool = WorkerPool::spawn(Vec::new(), Arc::default(), mail).unwrap();
        pool.renew_forwards(&link).unwrap();
        pool.renew_forwards(&link).unwrap();
        assert!(requests() && !requests());
        let forward = UserForward {
            listen: Listen {
                protocol: ForwardProtocol::Tcp,
                address: "127.0.0.1:2222".parse().unwrap(),
            },
            to: "vm1".to_owned(),
            port: 22,
        };
        let socket = event::create().unwrap();
        pool.take_forwards(&link, vec![forward], vec![socket])
            .unwrap();
        assert!(requests() && !requests() && pool.forwards.len() == 1);
        pool.take_forwards(&link, Vec::new(), Vec::new()).unwrap();
        assert!(!requests() && pool.forwards.is_empty());
        pool.renew_forwards(&link).unwrap();
        assert!(requests(), "the next change");
    }

    #[test]
    fn other_back_ends_have_nothing_to_do_without() {
        let tap = OwnedFd::from(File::open("/dev/null").unwrap());
        let mut interfaces = vec![Interface::new(BackEnd::Tap, tap)];
        assert!(attach(&mut interfaces, true).unwrap().is_none());
        assert_eq!(interfaces.len(), 1);
    }
}
