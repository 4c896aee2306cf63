//! One queue pair of a driver: a thread that moves frames between its interface queue and the switch.
//!
//! ```text
//! loop:  in      interface -> free buffers -> lent to the switch, at most a batch; one kick
//!        out     buffers from the switch -> interface, at most a batch; lent again; one kick
//!        pause   when neither moved anything, of a TAP device once after many frames: let more gather
//!        sleep   when neither moved anything: ask for calls, look once more, wait
//! ```
//!
//! Nothing polls. Wake-ups are edges (`EPOLLET`), which costs no reading of event descriptors: a worker only sleeps
//! after it has emptied what it sleeps on. Where a side takes no more, the other is not asked for more: frames of the
//! switch wait in its queue (it drops by name when that is full), frames of the interface in the interface.
//!
//! A worker that is told to end takes no more frames of the interface, which keeps them for the next driver, and goes on until the
//! switch has taken all that were lent to it ([`Pace::Empty`]); then, once the switch delivers nothing more, until the
//! interface has all that came ([`Pace::Over`]).

mod gathering;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use channel::driving::Refused;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::frames::{Arrived, BATCH, HEADER, Interface, Outgoing, Scratch, Stop, is_lost};
use crate::front::Ring;
use crate::queue::{Direction, Fault, Queue, Used};
use crate::region::Region;
use gathering::{Gathering, PAUSE};

/// When the system is asked again that had no memory.
const RETRY: Duration = Duration::from_millis(1);

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("the interface is lost: {0}")]
    Lost(io::Error),
    #[error("the interface: {0}")]
    Interface(io::Error),
    #[error(transparent)]
    Switch(#[from] Fault),
    #[error("a frame of {0} bytes came from the switch")]
    Short(u32),
    #[error("{0}")]
    System(#[from] io::Error),
}

impl WorkerError {
    fn of_interface(error: io::Error) -> Self {
        match is_lost(&error) {
            true => Self::Lost(error),
            false => Self::Interface(error),
        }
    }

    /// Only a new descriptor of the interface helps.
    pub(crate) fn device_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// How far a worker is to get, or has got, on the way to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
#[repr(u8)]
pub(crate) enum Pace {
    /// Moves frames.
    On,
    /// Has no frame of the interface, and takes none.
    Empty,
    /// Has no frame at all.
    Over,
}

impl Pace {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::On,
            1 => Self::Empty,
            _ => Self::Over,
        }
    }
}

/// What the main thread sees of a worker, and the worker of the main thread.
#[derive(Debug)]
pub(crate) struct Beat {
    /// Numbers of [`Pace`]: how far it is to get, and how far it is.
    wanted: AtomicU8,
    reached: AtomicU8,
    /// Written to wake the worker.
    wake: OwnedFd,
    asked: AtomicU64,
    answered: AtomicU64,
    by_interface: AtomicU64,
    too_long: AtomicU64,
}

impl Beat {
    fn new() -> io::Result<Self> {
        Ok(Self {
            wanted: AtomicU8::new(Pace::On as u8),
            reached: AtomicU8::new(Pace::On as u8),
            wake: event()?,
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            by_interface: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
        })
    }

    /// Asks the worker for a sign of life.
    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Full only if the worker has not turned for ages, and then that is what shows.
        let _ = ring(&self.wake);
    }

    /// Tells the worker to get so far.
    pub(crate) fn want(&self, pace: Pace) {
        // With what the switch has said of its queues before.
        self.wanted.store(pace as u8, Ordering::Release);
        let _ = ring(&self.wake);
    }

    /// Whether it has got so far.
    pub(crate) fn has_reached(&self, pace: Pace) -> bool {
        Pace::of(self.reached.load(Ordering::Acquire)) >= pace
    }

    /// Whether it has given one since it was asked last.
    pub(crate) fn is_alive(&self) -> bool {
        self.answered.load(Ordering::Relaxed) == self.asked.load(Ordering::Relaxed)
    }

    /// Frames that it could not pass on.
    pub(crate) fn refused(&self) -> Refused {
        Refused {
            by_interface: self.by_interface.load(Ordering::Relaxed),
            too_long: self.too_long.load(Ordering::Relaxed),
        }
    }

    fn answer(&self, refused: Refused) {
        let asked = self.asked.load(Ordering::Relaxed);
        self.answered.store(asked, Ordering::Relaxed);
        self.by_interface
            .store(refused.by_interface, Ordering::Relaxed);
        self.too_long.store(refused.too_long, Ordering::Relaxed);
    }
}

/// A queue with the descriptors that tell of it.
#[derive(Debug)]
struct Side {
    queue: Queue,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Side {
    fn new(region: &Arc<Region>, index: u16, direction: Direction) -> io::Result<Self> {
        Ok(Self {
            queue: Queue::new(region.clone(), index, direction),
            kick: event()?,
            call: event()?,
        })
    }

    fn publish(&mut self) -> io::Result<()> {
        if self.queue.publish() {
            ring(&self.kick)?;
        }
        Ok(())
    }

    fn ring(&self) -> io::Result<Ring> {
        Ok(Ring {
            place: self.queue.place(),
            kick: self.kick.try_clone()?,
            call: self.call.try_clone()?,
        })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Worker {
    interface: Interface,
    epoll: OwnedFd,
    beat: Arc<Beat>,
    refused: Refused,
    /// Frames for the interface.
    from_switch: Side,
    /// Frames of the interface.
    to_switch: Side,
    /// Buffers of `to_switch` that nobody uses; the last one used is warm.
    free: Vec<u16>,
    /// Frames that came from the switch and wait for the interface, oldest first.
    waiting: Vec<Used>,
    /// The interface takes no more: it says when it does.
    blocked: bool,
    /// The system had no memory for what the interface has.
    short: bool,
    gathering: Gathering,
    /// Kept for their memory.
    arrived: Vec<Arrived>,
    outgoing: Vec<Outgoing>,
    back: Vec<u16>,
    scratch: Scratch,
}

// SAFETY: the pointers in `outgoing` point into the region, which the queues keep alive and which may be
// used from any thread.
unsafe impl Send for Worker {}

impl Worker {
    /// The worker of queue pair `pair`; its buffers for frames of the switch are lent already.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(region: &Arc<Region>, pair: u16, interface: Interface) -> io::Result<Self> {
        let from_switch = Side::new(region, 2 * pair, Direction::FromSwitch)?;
        let to_switch = Side::new(region, 2 * pair + 1, Direction::ToSwitch)?;
        let beat = Arc::new(Beat::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let none = epoll::EventData::new_u64(0);
        for fd in [&from_switch.call, &to_switch.call, &beat.wake] {
            epoll::add(&epoll, fd, none, edges)?;
        }
        epoll::add(&epoll, &interface, none, edges)?;
        let shape = from_switch.queue.place().shape;
        let mut worker = Self {
            interface,
            epoll,
            beat,
            refused: Refused::default(),
            from_switch,
            to_switch,
            free: (0..shape.entries).rev().collect(),
            waiting: Vec::with_capacity(BATCH),
            blocked: false,
            short: false,
            gathering: Gathering::default(),
            arrived: Vec::with_capacity(BATCH),
            outgoing: Vec::with_capacity(BATCH),
            back: Vec::with_capacity(shape.entries.into()),
            scratch: Scratch::default(),
        };
        for id in 0..shape.entries {
            worker.from_switch.queue.lend(id, 0, shape.buffer);
        }
        worker.from_switch.publish()?;
        worker.to_switch.queue.disarm();
        Ok(worker)
    }

    /// Its queues, from the switch and to it.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn rings(&self) -> io::Result<[Ring; 2]> {
        Ok([self.from_switch.ring()?, self.to_switch.ring()?])
    }

    pub(crate) fn beat(&self) -> Arc<Beat> {
        self.beat.clone()
    }

    /// Moves frames until it has ended as it was told to. `tell` says how far it is by then.
    ///
    /// # Errors
    /// Something is wrong.
    pub(crate) fn run(mut self, tell: impl Fn()) -> Result<(), WorkerError> {
        while !self.beat.has_reached(Pace::Over) {
            if self.turn()? {
                tell();
            }
        }
        Ok(())
    }

    /// `true` when it has got further on the way to its end.
    fn turn(&mut self) -> Result<bool, WorkerError> {
        self.beat.answer(self.refused);
        let wanted = Pace::of(self.beat.wanted.load(Ordering::Acquire));
        let received = match wanted {
            Pace::On => self.receive()?,
            _ => self.take_back()?,
        };
        let sent = self.send()?;
        if received || sent {
            return Ok(false);
        }
        if wanted != Pace::On && !self.beat.has_reached(wanted) && self.has_got(wanted) {
            self.beat.reached.store(wanted as u8, Ordering::Release);
            return Ok(true);
        }
        if self.gathering.rest() && self.interface.may_gather() && wanted == Pace::On {
            std::thread::sleep(PAUSE);
        } else if !self.prepare_sleep(wanted)? {
            self.sleep()?;
        }
        Ok(false)
    }

    /// Whether it has, after a turn in which nothing has moved.
    fn has_got(&self, wanted: Pace) -> bool {
        match wanted {
            Pace::On => true,
            Pace::Empty => self.to_switch.queue.is_empty(),
            Pace::Over => self.waiting.is_empty(),
        }
    }

    /// Buffers that the switch has done with. `true` when there were some.
    fn take_back(&mut self) -> Result<bool, WorkerError> {
        let before = self.free.len();
        while let Some(used) = self.to_switch.queue.take()? {
            self.free.push(used.id);
        }
        Ok(self.free.len() > before)
    }

    /// From the interface to the switch. `true` when there may be more.
    fn receive(&mut self) -> Result<bool, WorkerError> {
        self.take_back()?;
        self.arrived.clear();
        let queue = &mut self.to_switch.queue;
        let stop = self
            .interface
            .receive(
                queue,
                &mut self.free,
                &mut self.arrived,
                &mut self.scratch,
                &mut self.refused,
            )
            .map_err(WorkerError::of_interface)?;
        for frame in &self.arrived {
            match frame.len {
                // It goes to the other end, out of the way of those that follow.
                0 => self.free.insert(0, frame.id),
                len => queue.lend(frame.id, frame.start, len),
            }
        }
        self.to_switch.publish()?;
        self.gathering.moved(self.arrived.len(), 0);
        self.short = stop == Stop::Retry;
        Ok(stop == Stop::Done)
    }

    /// From the switch to the interface. `true` when there may be more.
    fn send(&mut self) -> Result<bool, WorkerError> {
        let room = BATCH - self.waiting.len();
        for _ in 0..room {
            let Some(used) = self.from_switch.queue.take()? else {
                break;
            };
            // A frame that is too short for Ethernet is for the interface to refuse; one without its header is none.
            if used.len <= HEADER {
                return Err(WorkerError::Short(used.len));
            }
            self.waiting.push(used);
        }
        let any = !self.waiting.is_empty();
        let queue = &mut self.from_switch.queue;
        self.outgoing.clear();
        self.outgoing
            .extend(self.waiting.iter().map(|used| Outgoing {
                id: used.id,
                buffer: queue.buffer(used.id),
                len: used.len,
            }));
        self.back.clear();
        let interface = &mut self.interface;
        let sent = interface.send(&self.outgoing, &mut self.back, &mut self.refused);
        let (done, stop) = sent.map_err(WorkerError::of_interface)?;
        self.waiting.drain(..done);
        self.gathering.moved(0, done);
        let room = queue.place().shape.buffer;
        for id in &self.back {
            queue.lend(*id, 0, room);
        }
        self.from_switch.publish()?;
        self.set_blocked(stop == Stop::Wait)?;
        Ok(any && stop == Stop::Done)
    }

    /// Hears of room in the interface only while that is wanted: a socket tells of every frame that has left.
    fn set_blocked(&mut self, blocked: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.blocked, blocked) == blocked {
            return Ok(());
        }
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        flags.set(epoll::EventFlags::OUT, blocked);
        let none = epoll::EventData::new_u64(0);
        Ok(epoll::modify(&self.epoll, &self.interface, none, flags)?)
    }

    /// Asks for calls. `true` when there is something to do already.
    fn prepare_sleep(&mut self, wanted: Pace) -> Result<bool, WorkerError> {
        // While the interface takes nothing, more frames of the switch are of no use.
        let frames = !self.blocked && self.from_switch.queue.arm()?;
        // Buffers that come back are only waited for when there are none, or few, or all of them are to.
        let waits = wanted != Pace::On || self.interface.is_short(self.free.len());
        let buffers = waits && self.to_switch.queue.arm()?;
        Ok(frames || buffers)
    }

    fn sleep(&mut self) -> Result<(), WorkerError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        let retry = self.short.then_some(RETRY);
        let patience = self.interface.patience().or(retry).map(|time| Timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, &mut events[..], patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds one to an event descriptor. One that is full has been rung already.
pub(crate) fn ring(event: &OwnedFd) -> io::Result<()> {
    match rustix::io::write(event, &1u64.to_ne_bytes()) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
