//! The driver process: set up, give up all rights, move frames until something ends it.

mod user_setup;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use interfaces::umem::SHAPE;
use interfaces::{MEMORY, device};
use ipc::driving::{BackEnd, DriverCounters, DriverStart, UserForward, UserNetwork};
use ipc::link::{Link, LinkEvent};
use ipc::supervision::{DriverRequest, EventToDriver, PAIR_THREAD, UserDriverRequest};
use ipc::timeouts::DRIVER_SETUP;
use ipc::user_reports::UserQuestion;
use polling::LONGEST_LOOK;
use process::sandbox;
use rustix::event::{PollFd, PollFlags};
use sys::descriptors::MAX_FDS;
use sys::foreign::ForeignFd;
use sys::{event, wait};
use vhost_frontend::Front;
use vhost_frontend::region::Region;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use crate::frames::{Interface, VhostNet, Xdp};
use crate::user::{FlowMessage, Forward, HostPorts, Inheritance, Orders, Outbox, UserWorker};
use crate::worker::{Phase, Ring, Worker, WorkerError, WorkerStatus};
use crate::{restrictions, user};
use user_setup::{UserSetup, forwards};

type SupervisorLink = Link<DriverRequest, EventToDriver>;

/// Limit of draining at the end: the port has no driver meanwhile. Frames that are left then are
/// lost.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// Most messages about flows that the supervisor has not answered.
const UNANSWERED_MAX: usize = 4;
/// Most flows of a message that tells their end.
const DROPPED_MAX: usize = 64;
/// Timer slack, in nanoseconds: how much longer a pause may be.
const TIMER_SLACK: u64 = 1000;

/// Returns the features that the switch must offer. `AF_XDP` has no offloads; only a checksum may
/// still need completion.
fn desired(start: &DriverStart) -> Features {
    let mut features = Features::VERSION_1 | Features::RING_EVENT_IDX;
    features.set(Features::NET_MQ, start.queues > 1);
    match start.xdp {
        Some(_) => features | Features::NET_CSUM,
        None => features | netio::features(start.uso),
    }
}

/// Runs a driver until the supervisor or the switch ends it, or an error occurs. `link` is the
/// supervision link.
///
/// # Errors
/// The reason why it could not start or continue; it is reported to the supervisor too.
pub fn run(link: OwnedFd) -> io::Result<()> {
    let mut link = Link::new(link);
    let Some(setup) = receive_start(&mut link)? else {
        return Ok(());
    };
    let ended = drive(&mut link, setup);
    if let Err(ending) = &ended {
        let request = DriverRequest::Ends {
            reason: ending.to_string(),
            device_lost: matches!(ending, DriverError::Worker(error) if error.device_lost()),
        };
        // If this fails, the supervisor detects the exit.
        let _ = link.send(&request, &[]);
    }
    ended.map_err(io::Error::other)
}

/// Reason why a driver ends by itself.
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
    /// The umem of the queues; only with `start.xdp`.
    memory: Option<OwnedFd>,
    /// Only with [`BackEnd::User`]: its queue is the namespace of its sockets.
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
        LinkEvent::Message(EventToDriver::Start(start), fds) => (start, fds),
        LinkEvent::Closed | LinkEvent::Message(EventToDriver::Stop, _) => return Ok(None),
        _ => return Err(bad()),
    };
    let mut queues = Vec::new();
    for _ in 0..start.queues {
        let fds = match link.recv()? {
            LinkEvent::Message(EventToDriver::Queue, fds) => fds,
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
            link.send(&DriverRequest::User(UserDriverRequest::Page(page)), &[])?;
        }
        while self.unanswered < UNANSWERED_MAX {
            let messages = self.outbox.take(MAX_FDS, DROPPED_MAX);
            if messages.is_empty() {
                break;
            }
            let (mut kept, mut sockets, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
            for message in messages {
                match message {
                    FlowMessage::Keep(slot, socket) => {
                        kept.push(slot);
                        sockets.push(socket);
                    }
                    FlowMessage::Drop(slot) => dropped.push(slot),
                }
            }
            let fds: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
            let request = if dropped.is_empty() {
                DriverRequest::User(UserDriverRequest::KeepFlows(kept))
            } else {
                DriverRequest::User(UserDriverRequest::DropFlows(dropped))
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
            let port = tracing::Span::current();
            let thread = std::thread::Builder::new().name(PAIR_THREAD.to_owned());
            sys::thread::start(thread, move || {
                let _port = port.entered();
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

    /// Takes the next forwards of a new list. An empty part ends it.
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
        link.send(&DriverRequest::User(UserDriverRequest::NextForwards), &[])
    }

    /// Takes a new list from its first forward on. An answer that is on its way comes after this
    /// message, and is of the new list already: another request would have it end twice.
    fn renew_forwards(&mut self, link: &SupervisorLink) -> io::Result<()> {
        self.forwards.clear();
        if std::mem::replace(&mut self.awaits_forwards, true) {
            return Ok(());
        }
        link.send(&DriverRequest::User(UserDriverRequest::NextForwards), &[])
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
        None => Region::new(MEMORY, start.queues)?,
    });
    let interfaces = (0..).zip(queues).map(|(pair, of)| {
        let InterfaceQueue { queue, vhost } = of;
        Ok(match (start.xdp, vhost) {
            (Some(xdp), _) => Interface::Xdp(Box::new(Xdp::new(queue, &region, pair, xdp)?)),
            (None, Some(device)) => {
                let vhost = VhostNet::new(device, queue, &region, pair, start.uso)?;
                Interface::VhostNet(Box::new(vhost))
            }
            (None, None) => Interface::new(start.back_end, queue, start.uso),
        })
    });
    let interfaces = interfaces.collect::<io::Result<Vec<_>>>()?;
    Ok((region, interfaces))
}

fn workers(
    region: &Arc<Region>,
    interfaces: Vec<Interface>,
    longest_look: Duration,
) -> io::Result<Vec<Work>> {
    let pairs = (0..).zip(interfaces);
    let workers = pairs.map(|(pair, interface)| {
        let worker = Worker::new(region, (pair, interface), longest_look)?;
        Ok(Work::Frames(Box::new(worker)))
    });
    workers.collect()
}

fn drive(link: &mut SupervisorLink, setup: Setup) -> Result<(), DriverError> {
    let start = &setup.start;
    link.set_nonblocking()?;
    let mut front = Front::new(setup.switch, Instant::now() + DRIVER_SETUP)?;
    let is_user = setup.user.is_some();
    let queues = match is_user {
        true => enter_namespace(setup.queues)?,
        false => setup.queues,
    };
    // No file can be opened below.
    let ports = setup.user.as_ref().map(|_| HostPorts::read());
    let (region, mut interfaces) = set_up(start, queues, setup.memory)?;
    drop_rights(start, is_user)?;
    // The kernel's thread has the rights of its owner, and of its limits of processes.
    interfaces.iter_mut().try_for_each(Interface::attach)?;
    let has_ping = setup.user.as_ref().is_some_and(|user| user.has_ping);
    let question = setup.user.as_ref().and_then(|user| user.question);
    if setup.user.is_some() && user::is_denied() {
        link.send(&DriverRequest::User(UserDriverRequest::NetworkDenied), &[])?;
    }
    let orders = Arc::new(Orders::default());
    let mail = Mail::new()?;
    // Lines of the log about a worker name its port.
    let port = tracing::info_span!("driver", port = &*start.name).entered();
    let longest = longest_look(start);
    let workers = match setup.user.zip(ports) {
        Some((user, ports)) => {
            let outbox = mail.outbox.clone();
            vec![user_work((user, ports, longest), &region, &orders, outbox)?]
        }
        None => workers(&region, interfaces, longest)?,
    };
    let rings: Vec<_> = workers.iter().map(Work::rings).collect::<io::Result<_>>()?;
    let mut pool = WorkerPool::spawn(workers, orders, mail)?;
    drop(port);
    restrictions::apply(region.size(), start.queues, start.back_end)
        .map_err(DriverError::Sandbox)?;
    connect(&mut front, start, &region, &rings)?;
    drop(rings);
    pool.start();
    if let Some(question) = question {
        pool.ask(question);
    }
    if has_ping {
        reply_to_ping(link, &pool)?;
    }
    log_start(start);
    if serve(link, &front, &mut pool)?
        && let Err(error) = drain(link, &mut front, &mut pool)
    {
        let port = &start.name;
        tracing::info!(port, "frames lost at shutdown: {error}");
    }
    Ok(())
}

/// Enters the network namespace of a user port, which comes in place of queues. Returns no queue.
fn enter_namespace(namespace: Vec<InterfaceQueue>) -> io::Result<Vec<InterfaceQueue>> {
    for of in namespace {
        device::enter(of.queue.as_fd())?;
    }
    Ok(Vec::new())
}

/// Returns the longest look before a sleep.
fn longest_look(start: &DriverStart) -> Duration {
    let limit = start.poll_us.map(|us| Duration::from_micros(us.into()));
    limit.unwrap_or(LONGEST_LOOK)
}

fn drop_rights(start: &DriverStart, is_user: bool) -> Result<(), DriverError> {
    let process = match is_user {
        true => sandbox::Process::UserDriver(start.port.0),
        false => sandbox::Process::Driver(start.port.0),
    };
    sandbox::drop_rights(process).map_err(DriverError::Sandbox)
}

/// Makes the worker of a user port.
fn user_work(
    (user, ports, longest_look): (UserSetup, HostPorts, Duration),
    region: &Arc<Region>,
    orders: &Arc<Orders>,
    outbox: Arc<Outbox>,
) -> Result<Work, DriverError> {
    let inherited = Inheritance {
        records: user.records,
        leases: user.leases,
        flows: user.flows,
        outbox,
    };
    orders.put_forwards(user.forwards);
    let worker = UserWorker::new(
        region,
        (user.network, ports),
        orders.clone(),
        inherited,
        longest_look,
    );
    let worker = worker.map_err(DriverError::Worker)?;
    Ok(Work::User(Box::new(worker)))
}

/// Agrees with the switch on features and memory, and starts the queues.
fn connect(
    front: &mut Front,
    start: &DriverStart,
    region: &Region,
    rings: &[[Ring; 2]],
) -> io::Result<()> {
    front.negotiate(desired(start), ProtocolFeatures::empty(), start.queues)?;
    front.share(region.file(), region.size())?;
    for (index, ring) in (0..).zip(rings.iter().flatten()) {
        front.start(index, &ring.queue())?;
    }
    front.settle()
}

fn log_start(start: &DriverStart) {
    let (port, back_end) = (&start.name, start.back_end.as_str());
    tracing::info!(port, back_end, queues = start.queues, "driver started");
    if !start.uso && start.xdp.is_none() {
        tracing::info!(
            port,
            "no UDP segmentation offload: each datagram is a frame"
        );
    }
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
            LinkEvent::Message(EventToDriver::Ping, _) => reply_to_ping(link, pool)?,
            LinkEvent::Nothing => return Ok(None),
            LinkEvent::Closed => return Ok(Some(false)),
            LinkEvent::Message(EventToDriver::Stop, _) => return Ok(Some(true)),
            LinkEvent::Message(EventToDriver::UserNetwork(network), _) => pool.change(*network),
            LinkEvent::Message(EventToDriver::UserQuestion(question), _) => pool.ask(question),
            LinkEvent::Message(EventToDriver::ForwardsChanged, _) => pool.renew_forwards(link)?,
            LinkEvent::Message(EventToDriver::Forwards(part), sockets) => {
                let sockets = sockets.into_iter().map(ForeignFd::vouch);
                pool.take_forwards(link, part, sockets.collect())?;
            }
            LinkEvent::Message(EventToDriver::FlowsTaken, _) => {
                pool.mail.unanswered = pool.mail.unanswered.saturating_sub(1);
                pool.mail.send(link)?;
            }
            LinkEvent::Message(..) => {}
        }
    }
}

/// Replies if every thread has run since the last ping; a thread that hangs keeps the driver
/// silent.
fn reply_to_ping(link: &SupervisorLink, pool: &WorkerPool) -> io::Result<()> {
    if pool.workers.iter().all(|status| status.is_alive()) {
        link.send(&DriverRequest::Pong(pool.counters()), &[])?;
        if let Some(figures) = pool.orders.figures() {
            link.send(
                &DriverRequest::User(UserDriverRequest::Figures(figures.into())),
                &[],
            )?;
        }
        pool.workers.iter().for_each(|status| status.ping());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ipc::driving::{ForwardProtocol, Listen};

    use super::*;

    /// Two changes of the forwards in a row: the driver asks anew only when it has no answer to
    /// come, else the list would end twice, the second time without a forward.
    #[test]
    fn a_list_of_forwards_that_changes_meanwhile_ends_once() {
        let (ours, theirs) = ipc::link::pair().unwrap();
        let link = SupervisorLink::new(ours);
        let mut supervisor: Link<EventToDriver, DriverRequest> = Link::new(theirs);
        supervisor.set_nonblocking().unwrap();
        let mut requests = || match supervisor.recv().unwrap() {
            LinkEvent::Message(DriverRequest::User(UserDriverRequest::NextForwards), _) => true,
            LinkEvent::Nothing => false,
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
}
