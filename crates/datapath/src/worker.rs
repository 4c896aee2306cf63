//! The thread that serves queues: one, or several side by side (see `workers`).
//!
//! ```text
//! loop:  inbox      run what the session thread asks for
//!        answers    follow control's decisions
//!        serve      one batch from each active queue pair whose turn it is, for some rounds
//!        upcalls    ring control's bell once
//!        tick       now and then: time-outs, faults, open questions
//!        wait       look for kicks; sleep when no pair is active
//! ```
//!
//! A queue pair is *active* from a kick until others were busy for a while without it, or until the worker
//! sleeps; then its guest is asked to kick again. [`Patience`] says when to sleep. Idle ports cost nothing.
//!
//! Others ask by message only: [`WorkerHandle::call`] runs a closure between two passes and returns its
//! result, so whoever asks to stop a queue knows that it is stopped.

mod active;
mod answers;
mod fair;
mod handle;
mod held;
mod helping;
mod lending;
mod paused;
mod rings;
mod round;
mod seat;
mod sleep;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};
use std::time::{Duration, Instant};

use channel::shared;
use port::{Port, PortId};
use rustix::event::epoll::{self, EventData, EventFlags};
use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::cycles::Gauge;
use crate::guest::GuestPort;
use crate::guests::{Guests, States};
use crate::poll::{Next, Patience};
use crate::switch::Switch;
use active::ActivePairs;
use fair::Fair;
use handle::{Job, ring};
pub use handle::{Notice, Notices, WorkerHandle};
use held::HeldPairs;
pub use helping::Help;
use lending::Lending;
use paused::PausedPairs;
use rings::ControlRings;
use seat::Seat;
pub(crate) use start::spawn_all;

/// Between two ticks while frames flow or wait.
const TICK: Duration = Duration::from_millis(20);
/// Between two rounds of open questions, and how old they are at least.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Rounds between two looks at the kicks of other queues, while some have frames.
const ROUNDS_PER_LOOK: u32 = 16;

/// The shortest frame on a real link, bytes without checksum (IEEE 802.3).
const ETHERNET_MIN: usize = 60;

/// Looks that found nothing before the core is offered to others: a guest's processor may share it.
const LOOKS_PER_YIELD: u32 = 16;
/// Time after which kicks are looked for, however few the rounds were.
const LOOK_AFTER: Duration = Duration::from_micros(200);
/// The same while a pair is served that is not active: its kick waits for that, beside others that flood.
const LOOK_AFTER_FOR_SLEEPERS: Duration = Duration::from_micros(40);
/// The same when the last round found nothing: answers and jobs are looked for then, too.
const LOOK_AFTER_NOTHING: Duration = Duration::from_micros(10);
/// Of so many sleeps one is measured: a system call before it and one after it.
const SLEEPS_PER_MEASUREMENT: u32 = 16;

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_ANSWERS: u64 = u64::MAX - 1;
const TOKEN_BELLS: u64 = u64::MAX - 2;

/// See the module.
pub struct Worker {
    /// The ports and tables.
    pub switch: Switch<GuestPort>,
    /// What is known of guests' processors.
    pub guests: Guests,
    control: ControlRings,
    /// Its place among all workers.
    number: usize,
    /// All workers, where there are several.
    all: Vec<WorkerHandle>,
    /// What was done for which pair, where there are several workers.
    loads: BTreeMap<(PortId, u16), u64>,
    active: ActivePairs,
    held: HeldPairs,
    paused: PausedPairs,
    /// Pairs that are served, active or not.
    pairs: usize,
    fair: Fair,
    gauge: Gauge,
    lending: Lending,
    patience: Patience,
    /// The same for control's answers.
    for_answers: Patience,
    seat: Seat,
    /// Passes since the last sleep.
    awake: u32,
    sleeps: u32,
    epoll: OwnedFd,
    inbox: Inbox<Job>,
    inbox_bell: Arc<OwnedFd>,
    notices: Outbox<Notice>,
    notices_bell: Arc<OwnedFd>,
    started: Instant,
    /// Since the worker started.
    last_tick: Duration,
    last_ask: Instant,
    /// As of the last look.
    lost_mappings: usize,
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Worker {
    /// Milliseconds since the worker started.
    #[must_use]
    pub fn now(&self) -> u64 {
        millis(self.started.elapsed())
    }

    /// Connects a new control process. The first worker does it for all; then each can [`Worker::ask_again`].
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
        *self.control.upcalls() = Some(upcalls);
        self.control.answers = Some(answers);
        Ok(())
    }

    /// The states of guests' processors are known from now on.
    pub fn watch_guests(&mut self, states: Arc<States>) {
        // A ring from before is closed with the last worker's states, and leaves the epoll set with that.
        self.guests.set_states(states);
        self.switch.remember_served();
        let token = EventData::new_u64(TOKEN_BELLS);
        let flags = EventFlags::IN | EventFlags::ET;
        if let Some(bells) = self.guests.bells()
            && let Err(error) = epoll::add(&self.epoll, bells, token, flags)
        {
            tracing::warn!("guests that fall asleep are not heard: {error}");
        }
    }

    /// From now on, a port's guest is notified by what its processors do, as far as that is known.
    pub fn watch_guest(&mut self, port: PortId) {
        let vcpus = self.guests.of(port);
        if let Some(guest) = self.switch.port_mut(port) {
            guest.watch(vcpus);
        }
    }

    /// Asks control everything that is open.
    pub fn ask_again(&mut self) {
        self.switch.ask_again(&mut self.control);
        self.control.ring_bell();
    }

    /// Control is gone; questions wait for the next one.
    pub fn drop_control(&mut self) {
        if let Some(answers) = self.control.answers.take() {
            let _ = epoll::delete(&self.epoll, &answers);
        }
        *self.control.upcalls() = None;
    }

    /// Serves a port's queue pair from now on, alone.
    ///
    /// # Errors
    /// Its kicks cannot be waited for.
    pub fn serve_pair(&mut self, port: PortId, pair: u16) -> Result<(), String> {
        let token = EventData::new_u64(u64::from(port.0) << 32 | u64::from(pair));
        // Edge-triggered: the counter need not be read, and a burst of kicks is one event.
        let flags = EventFlags::IN | EventFlags::ET;
        let epoll = &self.epoll;
        if let Some(guest) = self.switch.port_mut(port)
            && let Some(Err(error)) =
                guest.with_kick(2 * pair + 1, |kick| epoll::add(epoll, kick, token, flags))
        {
            return Err(format!("the kick descriptor cannot be waited for: {error}"));
        }
        if self.may_give_away() {
            self.loads.insert((port, pair), 0);
        }
        self.pairs += 1;
        self.activate(port, pair);
        Ok(())
    }

    /// Whether there are others that may be home to a pair, as helpers are not.
    fn may_give_away(&self) -> bool {
        self.all.len() > 1 + self.lending.helpers()
    }

    /// Serves a port's queue pair no more.
    pub fn leave_pair(&mut self, port: PortId, pair: u16) {
        self.take_back_pair(port, pair);
        let epoll = &self.epoll;
        if let Some(guest) = self.switch.port_mut(port) {
            let _ = guest.with_kick(2 * pair + 1, |kick| epoll::delete(epoll, kick));
        }
        self.pairs = self.pairs.saturating_sub(1);
        self.active.remove(port, pair);
        self.held.forget((port, pair));
        self.paused.remove((port, pair));
        self.loads.remove(&(port, pair));
    }

    /// What was done for which pair since the last call: frames, and for long ones their bytes.
    pub fn take_loads(&mut self) -> Vec<((PortId, u16), u64)> {
        // Entries stay, so that counting allocates nothing on the way of frames.
        let loads = self.loads.iter_mut();
        loads
            .map(|(pair, load)| (*pair, std::mem::take(load)))
            .filter(|(_, load)| *load > 0)
            .collect()
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

    /// Tells the session thread that this worker gets on.
    pub fn say_alive(&mut self) {
        let _ = self.notices.send(Notice::Alive);
        ring(&self.notices_bell);
    }

    /// Looks at a pair from now on without being asked. Not at one that a helper has, or that has to wait.
    fn activate(&mut self, port: PortId, pair: u16) {
        let known = (port, pair);
        let elsewhere = self.lending.has(known) || self.paused.has(known);
        let new = !elsewhere && self.active.add(port, pair);
        if new && let Some(guest) = self.switch.port_mut(port) {
            guest.arm(pair, false);
        }
    }

    /// One turn of the loop. `false` when everybody who could ask for something is gone.
    fn pass(&mut self) -> bool {
        if !self.run_jobs() {
            return false;
        }
        self.follow_answers();
        self.switch.ask_more(&mut self.control);
        self.look_at_held();
        self.look_at_paused();
        // It is read once a round, and what comes behind the last one goes by that.
        let now = self.serve();
        let late = self.notify_late(now);
        self.control.ring_bell();
        if now.saturating_sub(self.last_tick) >= TICK {
            self.tick(now);
        }
        self.wait(late, now);
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

    /// Serves the active pairs until it is time to look for kicks, or to sleep; the clock as it was read last.
    fn serve(&mut self) -> Duration {
        let began = self.started.elapsed();
        let (mut now, mut rounds, mut empty) = (began, 0, 0u32);
        loop {
            let found = self.serve_active(now);
            if found {
                self.patience.found_frames(now);
                rounds += 1;
            } else if self.active.is_empty() || self.patience.found_nothing(now) == Next::Sleep {
                self.take_back_all();
                if !self.patience.is_endless() {
                    self.ask_for_kicks(now);
                }
                return now;
            } else {
                // Who writes the rings keeps their lines meanwhile, and gets the core if it waits for that.
                empty += 1;
                if empty.is_multiple_of(LOOKS_PER_YIELD) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
            now = self.started.elapsed();
            let limit = match found {
                true if self.active.len() + self.lending.count() < self.pairs => {
                    LOOK_AFTER_FOR_SLEEPERS
                }
                true => LOOK_AFTER,
                false => LOOK_AFTER_NOTHING,
            };
            if rounds == ROUNDS_PER_LOOK || now - began > limit {
                return now;
            }
        }
    }

    fn tick(&mut self, now: Duration) {
        self.last_tick = now;
        if let Some(ticks) = self.gauge.ticks_per_second(self.started + now) {
            self.fair.set_ticks_per_second(ticks);
            self.switch.set_ticks_per_second(ticks);
        }
        self.switch.expire(millis(now));
        for (port, queue, fault) in self.switch.take_faults() {
            self.tell(Notice::QueueFault(port, queue, fault));
        }
        self.look_for_lost_memory();
        if self.switch.has_parked() && self.last_ask.elapsed() >= ASK_AGAIN {
            self.last_ask = Instant::now();
            let overdue = ASK_AGAIN.as_millis() as u64;
            self.switch
                .ask_overdue(overdue, millis(now), &mut self.control);
            self.control.ring_bell();
        }
    }

    /// Tells the session thread something.
    fn tell(&self, notice: Notice) {
        let _ = self.notices.send(notice);
        ring(&self.notices_bell);
    }

    fn look_for_lost_memory(&mut self) {
        let lost = memory::lost_mappings();
        if self.lost_mappings == lost {
            return;
        }
        let (ports, all_seen) = self.switch.ports_without_memory();
        if all_seen {
            self.lost_mappings = lost;
        }
        for port in ports {
            self.tell(Notice::MemoryLost(port));
        }
    }
}
