//! The driver process: set up, give up all rights, move frames until something ends it.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use channel::driving::{self, DriverStart, Refused};
use channel::link::{Link, Received};
use channel::supervision::{Ask, Tell};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use virtio::features::Features;

use crate::closing;
use crate::frames::{Interface, Xdp};
use crate::front::Front;
use crate::region::Region;
use crate::worker::{Beat, Pace, Worker, WorkerError, ring};
use crate::xdp::SHAPE;

/// How long an end in good order may take: the port has no driver meanwhile. What is not done by then is lost.
const LAST: Duration = Duration::from_millis(50);
/// By how much a pause may be longer than was asked for, in nanoseconds.
const TIMER_SLACK: u64 = 1000;

/// What the switch must offer. Frames cross whole in both directions: who needs them cut does so, at the last moment.
/// `AF_XDP` knows no offloads; only a checksum may still have to be completed.
fn wanted(start: &DriverStart) -> Features {
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

/// Runs a driver until the supervisor or the switch ends it, or something is wrong. `link` is the supervision link.
///
/// # Errors
/// Why it could not start or go on; the supervisor is told too.
pub fn run(link: OwnedFd) -> io::Result<()> {
    run_as(link, Confinement::Process)
}

/// The same as a thread of a process that keeps its rights.
///
/// # Errors
/// As [`run`].
#[cfg(feature = "inside")]
pub fn run_inside(link: OwnedFd) -> io::Result<()> {
    run_as(link, Confinement::None)
}

/// What is given up before the first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Confinement {
    /// All that a process can do without.
    Process,
    #[cfg(feature = "inside")]
    None,
}

fn run_as(link: OwnedFd, confinement: Confinement) -> io::Result<()> {
    let mut link = Link::new(link);
    let Some(given) = receive_start(&mut link)? else {
        return Ok(());
    };
    let ended = drive(&mut link, given, confinement);
    if let Err(ending) = &ended {
        let words = Ask::DriverEnds {
            reason: ending.to_string(),
            device_lost: matches!(ending, Ending::Worker(error) if error.device_lost()),
        };
        // Who does not hear it sees it.
        let _ = link.send(&words, &[]);
    }
    ended.map_err(io::Error::other)
}

/// Why a driver ends by itself.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error(transparent)]
    Worker(WorkerError),
    #[error("the sandbox cannot be had: {0}")]
    Sandbox(io::Error),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// What the supervisor gives.
struct Given {
    start: DriverStart,
    /// The connection to it.
    switch: OwnedFd,
    /// Of the interface.
    queues: Vec<OwnedFd>,
    /// That the system knows as the umem of the queues; only with `start.xdp`.
    memory: Option<OwnedFd>,
}

/// What the supervisor says first; nothing when it has no use for us any more.
fn receive_start(link: &mut Link<Ask, Tell>) -> io::Result<Option<Given>> {
    let bad = || io::Error::other("the supervisor did not say how to start");
    let (start, fds) = match link.recv()? {
        Received::Message(Tell::StartDriver(start), fds) => (start, fds),
        Received::Closed | Received::Message(Tell::Stop, _) => return Ok(None),
        _ => return Err(bad()),
    };
    let mut queues = Vec::new();
    for _ in 0..start.queues {
        match link.recv()? {
            Received::Message(Tell::DriverQueue, fds) => queues.extend(fds),
            _ => return Err(bad()),
        }
    }
    let mut fds = fds.into_iter();
    let (switch, memory) = (fds.next(), fds.next());
    match switch {
        Some(switch)
            if queues.len() == usize::from(start.queues)
                && memory.is_some() == start.xdp.is_some() =>
        {
            Ok(Some(Given {
                start,
                switch,
                queues,
                memory,
            }))
        }
        _ => Err(bad()),
    }
}

/// The threads that move frames, as the main thread has them.
struct Crew {
    beats: Vec<Arc<Beat>>,
    starts: Vec<Sender<()>>,
    /// Readable when a thread has ended, or got further on the way to its end.
    over: OwnedFd,
    why: Arc<Mutex<Option<WorkerError>>>,
}

impl Crew {
    /// Starts a thread for each worker, and returns when they all wait for their start: the start of a thread needs
    /// system calls that are not on the list.
    fn muster(workers: Vec<Worker>) -> io::Result<Self> {
        let all_here = Arc::new(Barrier::new(workers.len() + 1));
        let over = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut crew = Self {
            beats: workers.iter().map(Worker::beat).collect(),
            starts: Vec::new(),
            over,
            why: Arc::default(),
        };
        for worker in workers {
            let (start, started) = channel();
            crew.starts.push(start);
            let over = crew.over.try_clone()?;
            let (why, here) = (crew.why.clone(), all_here.clone());
            let thread = std::thread::Builder::new().name("pair".to_owned());
            thread.spawn(move || {
                // The system rounds pauses up by 50 us, else. Without it they are longer.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
                here.wait();
                work(worker, &started, &why, &over);
            })?;
        }
        all_here.wait();
        Ok(crew)
    }

    fn start(&self) {
        for start in &self.starts {
            // One that is not there any more has said why.
            let _ = start.send(());
        }
    }

    /// Tells all how far they are to get, and waits for them, but not after `until`.
    fn advance(&self, pace: Pace, until: Instant) -> io::Result<()> {
        self.beats.iter().for_each(|beat| beat.want(pace));
        while !self.beats.iter().all(|beat| beat.has_reached(pace)) {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut over = [PollFd::new(&self.over, PollFlags::IN)];
            match rustix::event::poll(&mut over, Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => drop(rustix::io::read(&self.over, &mut [0; 8])),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn refused(&self) -> Refused {
        let mut sum = Refused::default();
        for beat in &self.beats {
            let refused = beat.refused();
            sum.by_interface += refused.by_interface;
            sum.too_long += refused.too_long;
        }
        sum
    }
}

fn work(worker: Worker, started: &Receiver<()>, why: &Mutex<Option<WorkerError>>, over: &OwnedFd) {
    if started.recv().is_err() {
        return;
    }
    let tell = || drop(ring(over));
    if let Err(error) = worker.run(tell)
        && let Ok(mut why) = why.lock()
    {
        // The first one's reason counts.
        why.get_or_insert(error);
    }
    tell();
}

/// The interface's queues, and the memory that is shared with the switch.
fn set_up(
    start: &DriverStart,
    queues: Vec<OwnedFd>,
    memory: Option<OwnedFd>,
) -> io::Result<(Arc<Region>, Vec<Interface>)> {
    let (Some(xdp), Some(memory)) = (start.xdp, memory) else {
        let interfaces = queues.into_iter();
        let interfaces = interfaces.map(|queue| Interface::new(start.back_end, queue));
        return Ok((Arc::new(Region::new(start.queues)?), interfaces.collect()));
    };
    let region = Arc::new(Region::over(memory, SHAPE, start.queues)?);
    let sockets = (0..).zip(queues);
    let interfaces = sockets.map(|(pair, socket)| {
        let xdp = Xdp::new(socket, &region, pair, xdp)?;
        Ok(Interface::Xdp(Box::new(xdp)))
    });
    let interfaces = interfaces.collect::<io::Result<Vec<_>>>()?;
    Ok((region, interfaces))
}

fn drive(link: &mut Link<Ask, Tell>, given: Given, confinement: Confinement) -> Result<(), Ending> {
    let start = &given.start;
    link.set_nonblocking()?;
    let mut front = Front::new(given.switch, Instant::now() + driving::SET_UP)?;
    let (region, interfaces) = set_up(start, given.queues, given.memory)?;
    let workers = (0..).zip(interfaces);
    let workers = workers.map(|(pair, interface)| Worker::new(&region, pair, interface));
    let workers = workers.collect::<io::Result<Vec<Worker>>>()?;
    let rings = workers.iter().map(Worker::rings);
    let rings = rings.collect::<io::Result<Vec<_>>>()?;

    let confined = confinement == Confinement::Process;
    if confined {
        sandbox::drop_rights(sandbox::Process::Driver(start.port.0)).map_err(Ending::Sandbox)?;
    }
    let crew = Crew::muster(workers)?;
    if confined {
        closing::close(region.size(), start.queues, start.back_end).map_err(Ending::Sandbox)?;
    }

    front.negotiate(wanted(start), start.queues)?;
    front.share(&region)?;
    for (index, ring) in (0..).zip(rings.iter().flatten()) {
        front.start(index, ring)?;
    }
    front.settle()?;
    drop(rings);
    crew.start();
    let (port, back_end) = (&start.name, start.back_end.as_str());
    tracing::info!(port, back_end, queues = start.queues, "driver runs");
    if serve(link, &front, &crew)? {
        let ended = end_in_order(&mut front, &crew);
        if let Err(error) = ended {
            tracing::info!(port, "the last frames are lost: {error}");
        }
    }
    Ok(())
}

/// Passes on what is here, in both directions; frames of the interface that were not taken stay in it.
fn end_in_order(front: &mut Front, crew: &Crew) -> io::Result<()> {
    let until = Instant::now() + LAST;
    crew.advance(Pace::Empty, until)?;
    for pair in (0..).take(crew.beats.len()) {
        front.stop(2 * pair, until)?;
    }
    crew.advance(Pace::Over, until)
}

/// Answers pings until the connection, the supervisor or a thread ends; `true` if that is because we are told to end.
fn serve(link: &mut Link<Ask, Tell>, front: &Front, crew: &Crew) -> Result<bool, Ending> {
    loop {
        let [spoken, closed, over] = wait(link, front, crew)?;
        if over && let Some(why) = crew.why.lock().ok().and_then(|mut why| why.take()) {
            return Err(Ending::Worker(why));
        }
        // The switch says nothing after the set-up: it has closed the connection, or is not ours.
        if closed {
            return Ok(false);
        }
        if spoken {
            match hear(link, crew)? {
                Heard::Nothing => {}
                Heard::Stop => return Ok(true),
                Heard::Gone => return Ok(false),
            }
        }
    }
}

/// Which of supervisor, switch and threads have something to say.
fn wait(link: &Link<Ask, Tell>, front: &Front, crew: &Crew) -> io::Result<[bool; 3]> {
    let mut fds = [link.as_fd(), front.as_fd(), crew.over.as_fd()]
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match rustix::event::poll(&mut fds, None) {
        Ok(_) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([false; 3]),
        Err(error) => Err(error.into()),
    }
}

/// What the supervisor has to say of our end.
enum Heard {
    Nothing,
    /// We are to end.
    Stop,
    Gone,
}

/// Takes what the supervisor says.
fn hear(link: &mut Link<Ask, Tell>, crew: &Crew) -> io::Result<Heard> {
    loop {
        match link.recv()? {
            Received::Message(Tell::Ping, _) => answer_ping(link, crew)?,
            Received::Nothing => return Ok(Heard::Nothing),
            Received::Closed => return Ok(Heard::Gone),
            Received::Message(Tell::Stop, _) => return Ok(Heard::Stop),
            Received::Message(..) => {}
        }
    }
}

/// Answers if every thread has turned since the last ping; a thread that hangs keeps us silent.
fn answer_ping(link: &Link<Ask, Tell>, crew: &Crew) -> io::Result<()> {
    if crew.beats.iter().all(|beat| beat.is_alive()) {
        link.send(&Ask::Pong(crew.refused()), &[])?;
        crew.beats.iter().for_each(|beat| beat.ask());
    }
    Ok(())
}
