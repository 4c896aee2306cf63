//! The thread that owns every queue and every table.
//!
//! ```text
//! loop:  inbox      run what the session thread asks for
//!        answers    follow control's decisions
//!        serve      one batch from each active queue
//!        upcalls    ring control's bell once
//!        tick       now and then: time-outs, faults, open questions
//!        sleep      when no queue is active
//! ```
//!
//! A queue is *active* from a kick until it stayed empty for a few passes; then the guest is asked to kick
//! again and the queue leaves the list. Idle ports cost nothing, and without traffic the thread sleeps.
//!
//! Others ask by message only: [`WorkerHandle::call`] runs a closure between two passes and returns its
//! result, so whoever asks to stop a queue knows that it is stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};
use std::time::{Duration, Instant};

use channel::records::{Answer, Upcall};
use channel::shared;
use port::{Port, PortId};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use virtio::features::Features;
use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::guest::{GuestFault, GuestPort, GuestQueue};
use crate::switch::{Switch, UpcallSink};
use crate::watchdog;

/// Passes without a frame after which a queue's guest is asked to kick again.
const IDLE_PASSES: u32 = 32;
/// Between two ticks while frames flow or wait.
const TICK: Duration = Duration::from_millis(20);
/// Between two rounds of open questions.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Answers followed in one pass.
const ANSWERS: usize = 256;
/// Passes between two looks at the kicks of other queues, while some are active.
const PASSES_PER_LOOK: u32 = 16;

/// The shortest frame on a real link, bytes without checksum (IEEE 802.3).
const ETHERNET_MIN: usize = 60;

/// Time after which kicks are looked for, however few the passes were.
const LOOK_AFTER: Duration = Duration::from_micros(200);

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_ANSWERS: u64 = u64::MAX - 1;

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Tells the worker what to do.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    jobs: Outbox<Job>,
    bell: std::sync::Arc<OwnedFd>,
}

impl WorkerHandle {
    /// Runs `job` on the worker between two passes; returns its result.
    ///
    /// # Panics
    /// When the worker has ended, which it does only with the process.
    pub fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> R {
        let (reply, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |worker| {
            let _ = reply.send(job(worker));
        });
        self.jobs.send(job).expect("the worker runs");
        ring(&self.bell);
        result.recv().expect("the worker runs")
    }
}

fn ring(bell: &OwnedFd) {
    // A full counter rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What the worker tells the session thread.
#[derive(Debug)]
pub enum Notice {
    /// A guest broke a rule; its queue is stopped.
    QueueFault(PortId, u16, GuestFault),
    /// A VMM took its guest's memory away; dummy pages are in its place.
    MemoryLost(PortId),
}

/// The receiving end of the worker's notices, with a descriptor to wait on.
#[derive(Debug)]
pub struct Notices {
    notices: Inbox<Notice>,
    bell: std::sync::Arc<OwnedFd>,
}

impl Notices {
    /// The next notice, if there is one.
    pub fn next(&self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }

    /// Forgets an old ring of the bell; before draining.
    pub fn woke(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.bell).as_fd()
    }
}

/// The rings to control, if there is one.
#[derive(Debug, Default)]
struct ControlRings {
    upcalls: Option<shared::Sender>,
    answers: Option<shared::Receiver>,
    /// Something was sent since the bell was rung.
    unrung: bool,
}

impl UpcallSink for ControlRings {
    fn send(&mut self, upcall: &Upcall) -> bool {
        let sent = self.upcalls.as_mut().is_some_and(|ring| ring.send(upcall));
        self.unrung |= sent;
        sent
    }
}

/// A queue pair that is polled.
#[derive(Clone, Copy, Debug)]
struct Active {
    port: PortId,
    pair: u16,
    idle: u32,
}

/// See the module.
pub struct Worker {
    /// The ports and tables.
    pub switch: Switch<GuestPort>,
    control: ControlRings,
    active: Vec<Active>,
    /// By port id: which of its pairs are in `active`.
    active_pairs: Vec<u64>,
    epoll: OwnedFd,
    inbox: Inbox<Job>,
    inbox_bell: std::sync::Arc<OwnedFd>,
    notices: Outbox<Notice>,
    notices_bell: std::sync::Arc<OwnedFd>,
    started: Instant,
    last_tick: Instant,
    last_ask: Instant,
    /// As of the last look.
    lost_mappings: usize,
}

fn bell() -> io::Result<std::sync::Arc<OwnedFd>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(std::sync::Arc::new(rustix::event::eventfd(0, flags)?))
}

/// Starts the worker's thread.
///
/// # Errors
/// The system's refusal of a descriptor or a thread.
pub fn spawn(switch: Switch<GuestPort>) -> io::Result<(WorkerHandle, Notices)> {
    let (jobs, inbox) = mpsc::channel();
    let (notices, notices_out) = mpsc::channel();
    let (inbox_bell, notices_bell) = (bell()?, bell()?);
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &*inbox_bell,
        EventData::new_u64(TOKEN_INBOX),
        EventFlags::IN,
    )?;
    let handle = WorkerHandle {
        jobs,
        bell: inbox_bell.clone(),
    };
    let receiver = Notices {
        notices: notices_out,
        bell: notices_bell.clone(),
    };
    let now = Instant::now();
    let mut worker = Worker {
        switch,
        control: ControlRings::default(),
        active: Vec::new(),
        active_pairs: Vec::new(),
        epoll,
        inbox,
        inbox_bell,
        notices,
        notices_bell,
        started: now,
        last_tick: now,
        last_ask: now,
        lost_mappings: 0,
    };
    std::thread::Builder::new()
        .name("worker".into())
        .spawn(move || {
            if let Err(error) = watchdog::guard_this_thread() {
                tracing::error!("no watchdog: {error}");
            }
            while worker.pass() {}
        })?;
    Ok((handle, receiver))
}

impl Worker {
    /// Milliseconds since the worker started.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Connects a new control process, and asks it everything that is open.
    ///
    /// # Errors
    /// The answers' bell cannot be waited for.
    pub fn set_control(
        &mut self,
        upcalls: shared::Sender,
        answers: shared::Receiver,
    ) -> io::Result<()> {
        self.drop_control();
        let token = EventData::new_u64(TOKEN_ANSWERS);
        epoll::add(&self.epoll, &answers, token, EventFlags::IN)?;
        self.control.upcalls = Some(upcalls);
        self.control.answers = Some(answers);
        self.switch.ask_again(&mut self.control);
        Ok(())
    }

    /// Control is gone; questions wait for the next one.
    pub fn drop_control(&mut self) {
        if let Some(answers) = self.control.answers.take() {
            let _ = epoll::delete(&self.epoll, &answers);
        }
        self.control.upcalls = None;
    }

    /// Puts a port's queue into service.
    ///
    /// # Errors
    /// There is no such port, or its kicks cannot be waited for.
    pub fn start_queue(
        &mut self,
        port: PortId,
        index: u16,
        queue: GuestQueue,
        features: Features,
    ) -> Result<(), String> {
        let guest = self.switch.port_mut(port).ok_or("the port is gone")?;
        guest.start(index, queue, features);
        if index.is_multiple_of(2) {
            return Ok(());
        }
        let pair = index / 2;
        if let Some(kick) = guest.kick(index) {
            let token = EventData::new_u64(u64::from(port.0) << 32 | u64::from(pair));
            // Edge-triggered: the counter need not be read, and a burst of kicks is one event.
            let flags = EventFlags::IN | EventFlags::ET;
            if let Err(error) = epoll::add(&self.epoll, kick, token, flags) {
                guest.stop(index);
                return Err(format!("the kick descriptor cannot be waited for: {error}"));
            }
        }
        self.activate(port, pair);
        Ok(())
    }

    /// Takes a port's queue out of service; its position.
    pub fn stop_queue(&mut self, port: PortId, index: u16) -> Option<u32> {
        let guest = self.switch.port_mut(port)?;
        if let Some(kick) = guest.kick(index) {
            let _ = epoll::delete(&self.epoll, kick);
        }
        guest.stop(index)
    }

    /// Broadcasts in a guest's name that it is here now (`VHOST_USER_SEND_RARP`): a reverse ARP request,
    /// switched as if the guest had sent it.
    pub fn announce(&mut self, port: PortId, mac: [u8; 6]) {
        let frame = PacketBuilder::new(MacAddr(mac), MacAddr::BROADCAST)
            .rarp_announce()
            .pad_to(ETHERNET_MIN)
            .build();
        let now = self.now();
        self.switch.inject(port, &frame, now, &mut self.control);
    }

    fn activate(&mut self, port: PortId, pair: u16) {
        let index = port.0 as usize;
        if self.active_pairs.len() <= index {
            self.active_pairs.resize(index + 1, 0);
        }
        if pair < 64 && self.active_pairs[index] & (1 << pair) == 0 {
            self.active_pairs[index] |= 1 << pair;
            let idle = 0;
            self.active.push(Active { port, pair, idle });
            if let Some(guest) = self.switch.port_mut(port) {
                guest.arm(pair, false);
            }
        }
    }

    /// One turn of the loop. `false` when everybody who could ask for something is gone.
    fn pass(&mut self) -> bool {
        if !self.run_jobs() {
            return false;
        }
        self.follow_answers();
        let began = Instant::now();
        for _ in 0..PASSES_PER_LOOK {
            if !self.serve_active() || began.elapsed() > LOOK_AFTER {
                break;
            }
        }
        if std::mem::take(&mut self.control.unrung)
            && let Some(upcalls) = &mut self.control.upcalls
        {
            upcalls.ring_bell();
        }
        if self.last_tick.elapsed() >= TICK {
            self.tick();
        }
        self.wait();
        true
    }

    fn run_jobs(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(job) => job(self),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn follow_answers(&mut self) {
        for _ in 0..ANSWERS {
            let Some(ring) = &mut self.control.answers else {
                return;
            };
            match ring.recv::<Answer>() {
                Ok(Some(answer)) => {
                    let now = self.started.elapsed().as_millis() as u64;
                    self.switch.answer(answer, now);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("control's answers make no sense: {error}");
                    self.drop_control();
                    return;
                }
            }
        }
    }

    /// Serves every active queue once. `false` when none is active any more.
    fn serve_active(&mut self) -> bool {
        let now = self.now();
        let mut at = 0;
        while at < self.active.len() {
            let Active { port, pair, .. } = self.active[at];
            if self.switch.serve(port, pair, now, &mut self.control) {
                self.active[at].idle = 0;
                at += 1;
                continue;
            }
            self.active[at].idle += 1;
            if self.active[at].idle < IDLE_PASSES || self.keep_awake(port, pair) {
                at += 1;
                continue;
            }
            self.active_pairs[port.0 as usize] &= !(1 << pair);
            self.active.swap_remove(at);
        }
        !self.active.is_empty()
    }

    /// Asks the guest for kicks; `true` when frames came meanwhile, so that polling goes on.
    fn keep_awake(&mut self, port: PortId, pair: u16) -> bool {
        let Some(guest) = self.switch.port_mut(port) else {
            return false;
        };
        if guest.arm(pair, true) {
            guest.arm(pair, false);
            return true;
        }
        false
    }

    fn tick(&mut self) {
        self.last_tick = Instant::now();
        let now = self.now();
        self.switch.expire(now);
        for (port, queue, fault) in self.switch.take_faults() {
            let _ = self.notices.send(Notice::QueueFault(port, queue, fault));
            ring(&self.notices_bell);
        }
        self.look_for_lost_memory();
        if self.switch.has_parked() && self.last_ask.elapsed() >= ASK_AGAIN {
            self.last_ask = Instant::now();
            self.switch.ask_again(&mut self.control);
            if let Some(upcalls) = &mut self.control.upcalls {
                upcalls.ring_bell();
            }
        }
    }

    fn look_for_lost_memory(&mut self) {
        let lost = memory::lost_mappings();
        if std::mem::replace(&mut self.lost_mappings, lost) == lost {
            return;
        }
        for port in self.switch.ports_without_memory() {
            let _ = self.notices.send(Notice::MemoryLost(port));
            ring(&self.notices_bell);
        }
    }

    /// Looks for kicks and messages; sleeps for them when nothing is active.
    fn wait(&mut self) {
        let timeout = if self.active.is_empty() {
            let answers = self.control.answers.as_mut();
            if !answers.is_none_or(shared::Receiver::prepare_sleep) {
                return;
            }
            self.tick();
            self.switch.has_parked().then_some(TICK)
        } else {
            Some(Duration::ZERO)
        };
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let woken = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref());
        if self.active.is_empty()
            && let Some(answers) = &mut self.control.answers
        {
            answers.woke();
        }
        let Ok(count) = woken else {
            return; // interrupted
        };
        for event in &events[..count] {
            match event.data.u64() {
                TOKEN_INBOX => {
                    let _ = rustix::io::read(&*self.inbox_bell, &mut [0u8; 8]);
                }
                TOKEN_ANSWERS => {
                    // Rung in the moment before polling went on: forget it.
                    if let Some(answers) = &mut self.control.answers {
                        answers.woke();
                    }
                }
                token => {
                    let (port, pair) = (PortId((token >> 32) as u32), token as u16);
                    if let Some(guest) = self.switch.port_mut(port) {
                        guest.note_kick(pair);
                    }
                    self.activate(port, pair);
                }
            }
        }
    }
}
