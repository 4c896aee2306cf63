//! One queue pair of a driver: a thread that moves frames between its interface queue and the
//! switch.
//!
//! ```text
//! loop:  in      interface -> free buffers -> submitted to the switch, at most a batch; one kick
//!        out     buffers from the switch -> interface, at most a batch; submitted again; one kick
//!        pause   when neither moved anything, of a TAP device once after many frames: moderation
//!        look on when neither moved anything, as long as the next frame is likely to come soon
//!        sleep   else: request kicks, check once more, wait
//! ```
//!
//! Before a sleep it looks on while that is cheaper (crate `polling`, the rule of the switch's
//! workers). Wake-ups are edges (`EPOLLET`), which saves reads of event descriptors: a
//! worker only sleeps after it has emptied what it sleeps on. If one side takes no more, the other
//! is not read: frames of the switch wait in its queue (it counts overflow as drops), frames of the
//! interface in the interface.
//!
//! A worker that is to end takes no more frames of the interface, which keeps them for the next
//! driver, and continues until the switch has taken all submitted frames ([`Phase::Drained`]);
//! then, once the switch delivers nothing more, until the interface has taken all the rest
//! ([`Phase::Stopped`]).

#[cfg(test)]
mod tests;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use ipc::driving::DriverCounters;
use netio::{Moderation, PAUSE};
use polling::{Look, Waiter};
use rustix::event::epoll;
use sys::event;
use sys::time::monotonic;
use vhost_frontend::queue::{Direction, Fault, Queue};
use vhost_frontend::region::{QueuePlace, Region};

use crate::frames::{BATCH, HEADER, IncomingFrame, Interface, OutgoingFrame, Stop, is_lost};
use crate::free_buffers::FreeBuffers;
use crate::user::SettingsError;

/// Interval of retries when the system had no memory, or no room for a frame.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Reason why a worker ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("the interface is lost: {0}")]
    Lost(io::Error),
    #[error("the interface: {0}")]
    Interface(io::Error),
    #[error("the switch {0}")]
    Switch(#[from] Fault),
    #[error("a frame of {0} bytes came from the switch")]
    Short(u32),
    #[error("the network: {0}")]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    System(#[from] io::Error),
}

/// One queue's place, and the descriptors that the switch gets of it.
#[derive(Debug)]
pub(crate) struct Ring {
    place: QueuePlace,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Ring {
    /// The queue as the switch is to have it.
    pub(crate) fn queue(&self) -> vhost_frontend::Queue<'_> {
        vhost_frontend::Queue {
            size: self.place.shape.entries,
            descriptors: self.place.descriptors,
            driver: self.place.available,
            device: self.place.used,
            kick: self.kick.as_fd(),
            call: self.call.as_fd(),
            error: None,
        }
    }
}

impl WorkerError {
    fn of_interface(error: io::Error) -> Self {
        if is_lost(&error) {
            Self::Lost(error)
        } else {
            Self::Interface(error)
        }
    }

    /// Only a new descriptor of the interface helps.
    pub(crate) fn device_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// Phase of a worker on the way to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Moves frames.
    Running,
    /// Owns no frame of the interface, and takes none.
    Drained,
    /// Owns no frame at all.
    Stopped,
}

impl Phase {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Drained,
            _ => Self::Stopped,
        }
    }
}

/// State shared by a worker and the main thread.
#[derive(Debug)]
pub(crate) struct WorkerStatus {
    /// Values of [`Phase`]: requested and reached.
    requested: AtomicU8,
    reached: AtomicU8,
    /// Written to wake the worker.
    wake: OwnedFd,
    pings: AtomicU64,
    pongs: AtomicU64,
    /// Values of [`DriverCounters`].
    counters: [AtomicU64; 6],
    /// Its `dropped_by_kernel`, where the kernel reports that.
    dropped_by_kernel: Option<AtomicU64>,
}

impl WorkerStatus {
    pub(crate) fn new(reports_drops: bool) -> io::Result<Self> {
        Ok(Self {
            requested: AtomicU8::new(Phase::Running as u8),
            reached: AtomicU8::new(Phase::Running as u8),
            wake: event::create()?,
            pings: AtomicU64::new(0),
            pongs: AtomicU64::new(0),
            counters: Default::default(),
            dropped_by_kernel: reports_drops.then(AtomicU64::default),
        })
    }

    /// Requests a sign of life.
    pub(crate) fn ping(&self) {
        self.pings.fetch_add(1, Ordering::Relaxed);
        // Full only if the worker has not run for long, which is detected then.
        let _ = event::ring(&self.wake);
    }

    /// Requests a phase.
    pub(crate) fn request(&self, phase: Phase) {
        // Ordered after all earlier requests of the switch.
        self.requested.store(phase as u8, Ordering::Release);
        let _ = event::ring(&self.wake);
    }

    /// Returns whether the worker has reached the phase.
    pub(crate) fn has_reached(&self, phase: Phase) -> bool {
        Phase::of(self.reached.load(Ordering::Acquire)) >= phase
    }

    /// Returns whether the worker has replied since the last ping.
    pub(crate) fn is_alive(&self) -> bool {
        self.pongs.load(Ordering::Relaxed) == self.pings.load(Ordering::Relaxed)
    }

    /// Returns the worker's counters.
    pub(crate) fn counters(&self) -> DriverCounters {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        DriverCounters {
            dropped_by_kernel: self.dropped_by_kernel.as_ref().map(read),
            ..DriverCounters::from_array(self.counters.each_ref().map(read))
        }
    }

    /// Returns the event descriptor that wakes the worker.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// Returns the requested phase.
    pub(crate) fn requested(&self) -> Phase {
        Phase::of(self.requested.load(Ordering::Acquire))
    }

    /// Notes that the worker has reached a phase.
    pub(crate) fn reach(&self, phase: Phase) {
        self.reached.store(phase as u8, Ordering::Release);
    }

    /// Replies to a ping. `true` when there was one.
    pub(crate) fn pong(&self, counters: &DriverCounters) -> bool {
        let pings = self.pings.load(Ordering::Relaxed);
        let before = self.pongs.swap(pings, Ordering::Relaxed);
        for (shared, value) in self.counters.iter().zip(counters.to_array()) {
            shared.store(value, Ordering::Relaxed);
        }
        if let (Some(shared), Some(value)) = (&self.dropped_by_kernel, counters.dropped_by_kernel) {
            shared.store(value, Ordering::Relaxed);
        }
        before != pings
    }
}

/// A queue with its event descriptors.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) queue: Queue,
    kick: OwnedFd,
    pub(crate) call: OwnedFd,
}

impl Side {
    pub(crate) fn new(region: &Arc<Region>, index: u16, direction: Direction) -> io::Result<Self> {
        Ok(Self {
            queue: Queue::new(region.clone(), index, direction),
            kick: event::create()?,
            call: event::create()?,
        })
    }

    pub(crate) fn publish(&mut self) -> io::Result<()> {
        if self.queue.publish() {
            event::ring(&self.kick)?;
        }
        Ok(())
    }

    pub(crate) fn ring(&self) -> io::Result<Ring> {
        Ok(Ring {
            place: self.queue.place(),
            kick: self.kick.try_clone()?,
            call: self.call.try_clone()?,
        })
    }
}

/// A worker: see the module.
#[derive(Debug)]
pub(crate) struct Worker {
    interface: Interface,
    epoll: OwnedFd,
    status: Arc<WorkerStatus>,
    counters: DriverCounters,
    /// Frames for the interface.
    from_switch: Side,
    /// Frames of the interface.
    to_switch: Side,
    /// Buffers of `to_switch` that the driver owns.
    free: FreeBuffers,
    /// Whether the interface takes more frames, and notifies if it does not.
    sending: Stop,
    /// The system had no memory for received frames.
    short: bool,
    moderation: Moderation,
    waiter: Waiter,
    /// Kept for their memory.
    arrived: Vec<IncomingFrame>,
    outgoing: Vec<OutgoingFrame>,
    back: Vec<u16>,
}

// SAFETY: the pointers in `outgoing` point into the region, which the queues keep alive and which
// may be used from any thread.
unsafe impl Send for Worker {}

impl Worker {
    /// Returns the worker of a queue pair; its buffers for frames of the switch are submitted
    /// already. It looks for at most `longest_look` before a sleep.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(
        region: &Arc<Region>,
        (pair, interface): (u16, Interface),
        longest_look: Duration,
    ) -> io::Result<Self> {
        let from_switch = Side::new(region, 2 * pair, Direction::Inbound)?;
        let to_switch = Side::new(region, 2 * pair + 1, Direction::Outbound)?;
        let status = Arc::new(WorkerStatus::new(interface.reports_drops())?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let none = epoll::EventData::new_u64(0);
        for fd in [&from_switch.call, &to_switch.call, &status.wake] {
            epoll::add(&epoll, fd, none, edges)?;
        }
        epoll::add(&epoll, &interface, none, edges)?;
        let shape = from_switch.queue.place().shape;
        let mut worker = Self {
            interface,
            epoll,
            status,
            counters: DriverCounters::default(),
            from_switch,
            to_switch,
            free: FreeBuffers::all_of(shape.entries),
            sending: Stop::Done,
            short: false,
            moderation: Moderation::default(),
            waiter: Waiter::new(Look::System, longest_look),
            arrived: Vec::with_capacity(BATCH),
            outgoing: Vec::with_capacity(BATCH),
            back: Vec::with_capacity(shape.entries.into()),
        };
        for id in 0..shape.entries {
            worker.from_switch.queue.submit(id, 0, shape.buffer);
        }
        worker.from_switch.publish()?;
        worker.to_switch.queue.disarm();
        Ok(worker)
    }

    /// Returns its queues, from the switch and to it.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn rings(&self) -> io::Result<[Ring; 2]> {
        Ok([self.from_switch.ring()?, self.to_switch.ring()?])
    }

    pub(crate) fn status(&self) -> Arc<WorkerStatus> {
        self.status.clone()
    }

    /// Moves frames until the requested end. `notify` is called when it has reached another phase.
    ///
    /// # Errors
    /// A failure of the interface, the switch or the system.
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
        if self.status.pong(&self.counters) {
            self.interface.check().map_err(WorkerError::of_interface)?;
            self.interface.count_drops(&mut self.counters);
        }
        let requested = self.status.requested();
        let received = match requested {
            Phase::Running => self.receive()?,
            _ => self.complete()?,
        };
        let sent = self.send()?;
        if received || sent {
            self.waiter.found();
            return Ok(false);
        }
        if requested != Phase::Running
            && !self.status.has_reached(requested)
            && self.satisfies(requested)
        {
            self.status.reach(requested);
            return Ok(true);
        }
        if self.moderation.end_burst()
            && self.interface.benefits_from_moderation()
            && requested == Phase::Running
        {
            std::thread::sleep(PAUSE);
        } else if !self.waiter.looks_on(monotonic()) && !self.prepare_sleep(requested)? {
            let measured = self.waiter.before_sleep();
            self.sleep()?;
            self.waiter.slept(measured);
        }
        Ok(false)
    }

    /// Returns whether the phase is reached, after a turn in which nothing has moved.
    fn satisfies(&self, requested: Phase) -> bool {
        match requested {
            Phase::Running => true,
            Phase::Drained => self.to_switch.queue.is_empty(),
            Phase::Stopped => self.interface.has_sent(),
        }
    }

    /// Receives what has come already, on the way to the end. `true` when there may be more.
    fn complete(&mut self) -> Result<bool, WorkerError> {
        let more = self.interface.stop_receiving();
        if more.map_err(WorkerError::of_interface)? {
            self.receive()
        } else {
            self.take_back()
        }
    }

    /// Takes used buffers back. `true` when there were some.
    fn take_back(&mut self) -> Result<bool, WorkerError> {
        let before = self.free.len();
        while let Some(used) = self.to_switch.queue.take()? {
            self.free.put(used.id);
        }
        Ok(self.free.len() > before)
    }

    /// Moves frames from the interface to the switch. `true` when there may be more.
    fn receive(&mut self) -> Result<bool, WorkerError> {
        self.take_back()?;
        self.arrived.clear();
        let queue = &mut self.to_switch.queue;
        let stop = self
            .interface
            .receive(queue, &mut self.free, &mut self.arrived, &mut self.counters)
            .map_err(WorkerError::of_interface)?;
        for frame in &self.arrived {
            match frame.len {
                0 => self.free.put(frame.id),
                len => queue.submit(frame.id, frame.start, len),
            }
            self.moderation.received(frame.len);
        }
        self.to_switch.publish()?;
        self.short = stop == Stop::Retry;
        Ok(stop == Stop::Done)
    }

    /// Moves frames from the switch to the interface. `true` when there may be more.
    fn send(&mut self) -> Result<bool, WorkerError> {
        self.outgoing.clear();
        let waiting = self.interface.waiting();
        for _ in waiting..BATCH {
            let Some(used) = self.from_switch.queue.take()? else {
                break;
            };
            // A frame that is too short for Ethernet is refused by the interface; one without its
            // header is a violation.
            if used.len <= HEADER {
                return Err(WorkerError::Short(used.len));
            }
            self.moderation.sent(used.len);
            self.outgoing.push(OutgoingFrame {
                id: used.id,
                buffer: self.from_switch.queue.buffer(used.id),
                len: used.len,
            });
        }
        let any = waiting > 0 || !self.outgoing.is_empty();
        self.back.clear();
        let sent = self
            .interface
            .send(&self.outgoing, &mut self.back, &mut self.counters);
        let stop = sent.map_err(WorkerError::of_interface)?;
        let queue = &mut self.from_switch.queue;
        let room = queue.place().shape.buffer;
        for id in &self.back {
            queue.submit(*id, 0, room);
        }
        self.from_switch.publish()?;
        self.set_sending(stop)?;
        Ok(any && stop == Stop::Done)
    }

    /// Enables notification of room in the interface only while frames wait: a socket reports every
    /// frame that has left.
    fn set_sending(&mut self, stop: Stop) -> io::Result<()> {
        let blocked = stop == Stop::Wait;
        if (std::mem::replace(&mut self.sending, stop) == Stop::Wait) == blocked {
            return Ok(());
        }
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        flags.set(epoll::EventFlags::OUT, blocked);
        let none = epoll::EventData::new_u64(0);
        Ok(epoll::modify(&self.epoll, &self.interface, none, flags)?)
    }

    /// Requests kicks. `true` when there is work already.
    fn prepare_sleep(&mut self, requested: Phase) -> Result<bool, WorkerError> {
        // While the interface takes nothing, more frames of the switch are of no use.
        let frames = self.sending == Stop::Done && self.from_switch.queue.arm()?;
        // Used buffers are only waited for when there are none, or few, or all of them must return.
        let waits = requested != Phase::Running || self.interface.is_short(self.free.len());
        let buffers = waits && self.to_switch.queue.arm()?;
        let interface = self.interface.arm().map_err(WorkerError::of_interface)?;
        Ok(frames || buffers || interface)
    }

    fn sleep(&mut self) -> Result<(), WorkerError> {
        // A socket notifies when half of its buffer is free: long after there is room for a frame,
        // if the interface is slow.
        let retry = self.short || self.sending != Stop::Done;
        let retry = retry.then_some(RETRY_INTERVAL);
        let limit = self.interface.sleep_limit().or(retry);
        sys::wait::events(&self.epoll, &mut [MaybeUninit::uninit(); 4], limit)?;
        Ok(())
    }
}
