//! A thread that serves queues: one, or several side by side (see [`workers`]).
//!
//! ```text
//! loop:  inbox      run the jobs of the session thread
//!        answers    execute control's decisions
//!        serve      one batch of each active queue pair whose turn it is, for some rounds
//!        upcalls    ring control's bell once
//!        tick       now and then: time-outs, faults, open upcalls
//!        wait       check for kicks; sleep when no pair is active
//! ```
//!
//! A queue pair is *active* from a kick until others were busy for a while without it, or until the
//! worker sleeps; then its guest's kicks are enabled again. [`AdaptivePoll`] decides when to sleep.
//! Idle ports cost nothing.
//!
//! Other threads send jobs: [`WorkerHandle::call`] runs a closure between two passes and returns
//! its result. So a queue is stopped when the call that stops it returns.

mod affinity;
mod coalesced_kicks;
mod fair;
pub mod guests;
mod handle;
mod paused;
mod rings;
mod second_looks;
mod served_pairs;
mod sleep;
mod start;
mod suppressed_kicks;
pub mod workers;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};
use std::time::{Duration, Instant};

use ipc::egress::SenderQos;
use ipc::records::Answer;
use ipc::shared;
use polling::{AdaptivePoll, PollDecision};
use port::PortId;
use rustix::event::epoll::{self, EventData, EventFlags};
use wire::MacAddr;
use wire::build::PacketBuilder;

use crate::forward::cycles::TickRate;
use crate::forward::egress::Output;
use crate::forward::limits::PortLimits;
use crate::forward::switch::{Pause, Switch};
use crate::ports::attached::AttachedPort;
use crate::ports::batch::BATCH;
use crate::ports::faults::faults;
use crate::ports::port::Port;
use crate::worker::guests::{Guests, States};
use affinity::CpuAffinity;
use coalesced_kicks::CoalescedKicks;
use fair::{ActivePairs, FairQueue, Others, Turn};
use handle::Job;
pub use handle::{Notice, Notices, WorkerHandle};
use paused::PausedPairs;
use rings::ControlRings;
use second_looks::SecondLooks;
use served_pairs::ServedPairs;
pub(crate) use start::{shorten_timer_slack, spawn_all};
use suppressed_kicks::SuppressedKicks;

/// Interval between two ticks while frames flow or are pending, milliseconds.
const TICK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two resends of open upcalls, and their least age, milliseconds.
const RESEND_INTERVAL: Duration = Duration::from_millis(100);
/// Least age of upcalls that are sent again while control answers others, milliseconds: they wait
/// for their turn there, and each repetition would make all wait longer.
const BUSY_AGE: Duration = Duration::from_millis(500);
/// Rounds of a pass, after which kicks of other queues are checked.
const ROUNDS_PER_PASS: u32 = 16;

/// Bytes of the shortest frame on a real link, without checksum (IEEE 802.3).
const ETHERNET_MIN: usize = 60;

/// Empty polls before a `sched_yield`: a guest's vCPU may share the core.
const POLLS_PER_YIELD: u32 = 16;
/// Longest time between two checks for kicks, microseconds.
const MAX_PASS: Duration = Duration::from_micros(200);
/// Longest time between two checks for kicks while a served pair is inactive, microseconds: beside
/// pairs that flood, its kick waits for this time.
const MAX_PASS_WITH_INACTIVE: Duration = Duration::from_micros(40);
/// Longest time between two checks for kicks when the last round found no frame, microseconds:
/// answers and jobs are checked then, too.
const MAX_EMPTY_PASS: Duration = Duration::from_micros(10);

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_ANSWERS: u64 = u64::MAX - 1;
const TOKEN_BLOCK_EVENTS: u64 = u64::MAX - 2;
const TOKEN_TIMER: u64 = u64::MAX - 3;

/// Answers executed in one pass.
const ANSWERS: usize = 256;

/// The state of a worker thread.
pub struct Worker {
    /// Ports, flow cache and tables.
    pub switch: Switch<AttachedPort>,
    /// The vCPU states of guests.
    pub guests: Guests,
    control: ControlRings,
    /// Its index among all workers.
    number: usize,
    /// Handles of all workers, where there are several.
    all: Vec<WorkerHandle>,
    /// Time of each pair's batches since the last check, ticks, where there are several workers.
    loads: BTreeMap<(PortId, u16), u64>,
    active: ActivePairs,
    suppressed: SuppressedKicks,
    paused: PausedPairs,
    served: ServedPairs,
    fair: FairQueue,
    pacing: Pacing,
    events: Events,
    upkeep: Upkeep,
}

/// When a worker polls and sleeps, and on which core.
struct Pacing {
    poll: AdaptivePoll,
    /// Adaptive polling for control's answers.
    answers: AdaptivePoll,
    affinity: CpuAffinity,
    /// Pairs whose guests kick once for several frames.
    kicks: CoalescedKicks,
    /// Pairs whose requests for kicks may be missed.
    second_looks: SecondLooks,
    /// Passes since the last sleep.
    awake: u32,
}

/// The sources of events of a worker, and its notices to the session thread.
struct Events {
    epoll: OwnedFd,
    inbox: Inbox<Job>,
    inbox_bell: Arc<OwnedFd>,
    notices: Outbox<Notice>,
    notices_bell: Arc<OwnedFd>,
}

impl Events {
    /// Sends a notice to the session thread.
    fn notify(&self, notice: Notice) {
        let _ = self.notices.send(notice);
        let _ = sys::event::ring(&self.notices_bell);
    }
}

/// Periodic work of a worker.
struct Upkeep {
    /// Start of the machine's monotonic clock.
    started: Instant,
    tick_rate: TickRate,
    /// Since then.
    last_tick: Duration,
    last_resend: Instant,
    /// Control has answered since then.
    answered: bool,
    /// Lost mappings at the last check.
    lost_mappings: usize,
    /// Faults at the last check.
    faults: usize,
    /// Ticks of all batches when the last one was counted for its pair.
    counted: u64,
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Worker {
    /// Returns the milliseconds of the machine's monotonic clock.
    #[must_use]
    pub fn now(&self) -> u64 {
        millis(self.upkeep.started.elapsed())
    }

    /// Connects a new control process. The first worker does it for all; then each worker can
    /// [`Worker::resend_upcalls`].
    ///
    /// # Errors
    /// The answers' bell cannot be added to the epoll set.
    pub fn set_control(
        &mut self,
        upcalls: shared::Sender,
        answers: shared::Receiver,
    ) -> io::Result<()> {
        self.drop_control();
        let token = EventData::new_u64(TOKEN_ANSWERS);
        epoll::add(&self.events.epoll, &answers, token, EventFlags::IN)?;
        self.control.set_upcalls(Some(upcalls));
        self.control.answers = Some(answers);
        Ok(())
    }

    /// Sets the memory with the vCPU states of guests.
    pub fn watch_guests(&mut self, states: Arc<States>) {
        // The previous ring is closed with the last worker's states, and leaves the epoll set with
        // that.
        self.guests.set_states(states);
        self.switch.remember_served();
        let token = EventData::new_u64(TOKEN_BLOCK_EVENTS);
        let flags = EventFlags::IN | EventFlags::ET;
        if let Some(block_events) = self.guests.block_events()
            && let Err(error) = epoll::add(&self.events.epoll, block_events, token, flags)
        {
            tracing::warn!("no block events of vCPUs: {error}");
        }
    }

    /// Coalesces the notifications of a port's guest by its vCPU states, as far as they are known.
    pub fn watch_guest(&mut self, port: PortId) {
        let vcpus = self.guests.of(port);
        if let Some(guest) = self.switch.guest_mut(port) {
            guest.set_vcpus(vcpus);
        }
    }

    /// Sends all open upcalls again.
    pub fn resend_upcalls(&mut self) {
        self.switch.retry_upcalls(&mut self.control);
        self.control.ring_bell();
    }

    /// Disconnects control. Upcalls stay open for the next control process.
    pub fn drop_control(&mut self) {
        if let Some(answers) = self.control.answers.take() {
            let _ = epoll::delete(&self.events.epoll, &answers);
        }
        self.control.set_upcalls(None);
    }

    /// Starts to serve a port's queue pair, of which this worker is the only server.
    ///
    /// # Errors
    /// Its kick descriptor cannot be added to the epoll set.
    pub fn serve_pair(&mut self, port: PortId, pair: u16) -> Result<(), String> {
        let token = EventData::new_u64(u64::from(port.0) << 32 | u64::from(pair));
        // Edge-triggered: the counter need not be read, and a burst of kicks is one event.
        let flags = EventFlags::IN | EventFlags::ET;
        let epoll = &self.events.epoll;
        if let Some(port) = self.switch.port_mut(port)
            && let Some(Err(error)) =
                port.with_event(pair, |event| epoll::add(epoll, event, token, flags))
        {
            return Err(format!("watching the kick descriptor failed: {error}"));
        }
        self.watch_buffers(port, pair, true);
        if !self.all.is_empty() {
            self.loads.insert((port, pair), 0);
        }
        self.served.serve((port, pair));
        let attached = self.switch.port_mut(port);
        if attached.is_some_and(|port| port.interface().is_some()) {
            self.served.note_interface((port, pair));
        }
        self.activate(port, pair);
        Ok(())
    }

    /// Watches the kicks of a guest with an IOMMU for receive buffers, or ends that. Its first ones
    /// are awaited, see [`GuestPort::note_kick`](crate::ports::guest::GuestPort::note_kick).
    pub fn watch_buffers(&mut self, port: PortId, pair: u16, on: bool) {
        let token = EventData::new_u64(u64::from(port.0) << 32 | u64::from(pair));
        let epoll = &self.events.epoll;
        let guest = self.switch.guest_mut(port);
        if let Some(guest) = guest.filter(|guest| guest.is_translated()) {
            // Where that fails, they are asked for when the first frame has come.
            let _ = guest.with_kick(2 * pair, |kick| {
                if on {
                    epoll::add(epoll, kick, token, EventFlags::IN | EventFlags::ET)
                } else {
                    epoll::delete(epoll, kick)
                }
            });
        }
    }

    /// Forwards the frames of an interface's queue pair that were read already, whatever limits
    /// their port has, and reads no more until the pair is served again: the worker leaves it for
    /// good, or to another process.
    pub fn finish_pair(&mut self, port: PortId, pair: u16) {
        self.switch.set_clock(nanos(self.upkeep.started.elapsed()));
        for _ in 0..BATCH {
            let attached = self.switch.port_mut(port);
            let interface = attached.and_then(|port| port.interface());
            if !interface.is_some_and(|interface| interface.stop_reading(pair)) {
                return;
            }
            let now = self.now();
            self.switch.serve_last((port, pair), now, &mut self.control);
        }
    }

    /// Stops serving a port's queue pair.
    pub fn leave_pair(&mut self, port: PortId, pair: u16) {
        let epoll = &self.events.epoll;
        if let Some(port) = self.switch.port_mut(port) {
            let _ = port.with_event(pair, |event| epoll::delete(epoll, event));
        }
        self.watch_buffers(port, pair, false);
        self.active.remove(port, pair);
        self.suppressed.forget((port, pair));
        self.pacing.kicks.remove((port, pair));
        self.pacing.second_looks.remove((port, pair));
        if let Some(pause) = self.paused.remove((port, pair)) {
            let now = nanos(self.upkeep.started.elapsed());
            self.switch.give_up(&pause, now);
        }
        self.served.leave((port, pair));
        self.loads.remove(&(port, pair));
    }

    /// Returns the load of each pair since the last call: the time of its batches, microseconds. A
    /// frame that wakes a guest takes as much of it as fifty others.
    pub fn take_loads(&mut self) -> Vec<((PortId, u16), u64)> {
        let ticks = self.upkeep.tick_rate.ticks_per_second(Instant::now());
        let per_micro = (ticks.unwrap_or(0) / 1_000_000).max(1);
        // Entries stay, so that counting allocates nothing in the data path.
        let loads = self.loads.iter_mut();
        loads
            .map(|(pair, load)| (*pair, std::mem::take(load) / per_micro))
            .filter(|(_, load)| *load > 0)
            .collect()
    }

    /// Announces a guest (`VHOST_USER_SEND_RARP`): sends a reverse ARP request as if from the
    /// guest.
    pub fn announce(&mut self, port: PortId, mac: [u8; 6]) {
        let frame = PacketBuilder::new(MacAddr(mac), MacAddr::BROADCAST)
            .rarp_announce()
            .pad_to(ETHERNET_MIN)
            .build();
        let now = self.now();
        self.switch.inject(port, &frame, now, &mut self.control);
    }

    /// Acknowledges a liveness probe.
    pub fn ack_probe(&mut self) {
        self.events.notify(Notice::ProbeAck);
    }

    /// Sets a port's weight: its part of the worker time under load.
    pub fn set_weight(&mut self, port: PortId, weight: u16) {
        self.fair.set_weight(port, weight);
        self.switch.set_weight(port, weight);
    }

    /// Makes a pair active and disables its kicks, unless it is paused.
    fn activate(&mut self, port: PortId, pair: u16) {
        let new = !self.paused.has((port, pair)) && self.active.add(port, pair);
        if new && let Some(port) = self.switch.port_mut(port) {
            port.arm(pair, false);
        }
    }

    /// Looks at the pairs of a port again, as after kicks: frames that could not be taken may be
    /// taken now. Asks for the translations of receive buffers that are still missing.
    pub fn retry(&mut self, port: PortId) {
        let now = nanos(self.upkeep.started.elapsed());
        if let Some(guest) = self.switch.guest_mut(port) {
            let settled = guest.retry(now);
            self.switch.count_settled(port, settled);
        }
        let mut at = 0;
        while let Some(pair) = self.served.next_of(port, &mut at) {
            self.suppressed.remove((port, pair));
            self.activate(port, pair);
        }
    }

    /// Runs one pass of the loop. Returns `false` when all handles are dropped.
    fn run_pass(&mut self) -> bool {
        if !self.run_jobs() {
            return false;
        }
        self.follow_answers();
        self.switch.send_unsent_upcalls(&mut self.control);
        self.check_suppressed();
        self.look_again();
        self.check_paused();
        // The clock is read once a round; the steps after the last round use that value.
        let now = self.serve();
        let deferred = self.flush_deferred(now);
        self.control.ring_bell();
        if now.saturating_sub(self.upkeep.last_tick) >= TICK_INTERVAL {
            self.tick(now);
        }
        self.wait(deferred, now);
        true
    }

    fn run_jobs(&mut self) -> bool {
        loop {
            match self.events.inbox.try_recv() {
                Ok(job) => job(self),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Serves the active pairs until kicks are due to be checked, or until the worker is to sleep.
    /// Returns the last reading of the clock.
    fn serve(&mut self) -> Duration {
        let began = self.upkeep.started.elapsed();
        let (mut now, mut rounds, mut empty) = (began, 0, 0u32);
        loop {
            let found = self.serve_active(now);
            if found {
                self.pacing.poll.found_frames(now);
                rounds += 1;
            } else if self.active.is_empty() || self.found_nothing(now) == PollDecision::Sleep {
                if !self.pacing.poll.never_sleeps() {
                    self.deactivate_idle(now);
                }
                return now;
            } else {
                // A pause keeps the cache lines of the rings with their writer; a yield gives the
                // core to a writer that waits for it.
                empty += 1;
                if empty.is_multiple_of(POLLS_PER_YIELD) {
                    self.yield_core();
                } else {
                    std::hint::spin_loop();
                }
            }
            now = self.upkeep.started.elapsed();
            let limit = if !found {
                MAX_EMPTY_PASS
            } else if self.active.len() < self.served.len() {
                MAX_PASS_WITH_INACTIVE
            } else {
                MAX_PASS
            };
            if rounds == ROUNDS_PER_PASS || now - began > limit {
                return now;
            }
        }
    }

    fn tick(&mut self, now: Duration) {
        self.upkeep.last_tick = now;
        if let Some(ticks) = self
            .upkeep
            .tick_rate
            .ticks_per_second(self.upkeep.started + now)
        {
            self.fair.set_ticks_per_second(ticks);
            self.switch.set_ticks_per_second(ticks);
        }
        self.switch.expire(millis(now));
        self.check_faults();
        self.check_lost_memory();
        if self.switch.has_pending() && self.upkeep.last_resend.elapsed() >= RESEND_INTERVAL {
            self.upkeep.last_resend = Instant::now();
            let overdue = match std::mem::take(&mut self.upkeep.answered) {
                true => BUSY_AGE,
                false => RESEND_INTERVAL,
            };
            self.switch
                .retry_overdue_upcalls(millis(overdue), millis(now), &mut self.control);
            self.control.ring_bell();
        }
    }

    /// Reports new faults. To be called before each sleep: no queue is looked at without one.
    fn check_faults(&mut self) {
        let count = faults();
        if self.upkeep.faults == count {
            return;
        }
        let (found, all) = self.switch.take_faults();
        if all {
            self.upkeep.faults = count;
        }
        for (port, queue, fault) in found {
            self.events.notify(Notice::QueueFault(port, queue, fault));
        }
    }

    fn check_lost_memory(&mut self) {
        let lost = mapping::lost_mappings();
        if self.upkeep.lost_mappings == lost {
            return;
        }
        let (ports, all_seen) = self.switch.ports_without_memory();
        if all_seen {
            self.upkeep.lost_mappings = lost;
        }
        for port in ports {
            self.events.notify(Notice::MemoryLost(port));
        }
    }

    /// Serves every active pair once whose turn it is. Returns `false` when none had a frame.
    fn serve_active(&mut self, time: Duration) -> bool {
        self.switch.set_clock(nanos(time));
        let now = millis(time);
        let others = match (self.active.len(), self.served.has_priorities()) {
            (0 | 1, _) => Others::Idle,
            (_, false) => Others::Active,
            (_, true) => Others::WithPriority,
        };
        let (mut at, mut found) = (0, false);
        self.switch.begin_batches();
        loop {
            if others == Others::WithPriority {
                found |= self.serve_priorities(now);
            }
            // Only now: pairs that pause there have left the list.
            let Some((port, pair)) = self.active.get(at) else {
                break;
            };
            let (switch, upcalls) = (&mut self.switch, &mut self.control);
            match self.fair.serve(switch, (port, pair), others, now, upcalls) {
                Turn::Waits => self.active.waits(at),
                Turn::Served => {
                    found = true;
                    self.active.had_frames(at);
                    self.note_batch((port, pair));
                    if self.pauses(at, (port, pair)) {
                        continue;
                    }
                }
                Turn::Empty => {
                    if self.pauses(at, (port, pair)) {
                        continue;
                    }
                    if self.rests((port, pair), time)
                        || self.active.is_quiet(at)
                            && !self.pacing.poll.never_sleeps()
                            && !self.enable_kicks(port, pair)
                    {
                        self.active.remove_at(at);
                        continue;
                    }
                }
            }
            at += 1;
        }
        if found {
            self.active.end_round();
        }
        self.switch.flush_deferred();
        let waits = self.fair.end_round();
        if self.switch.end_round(waits) {
            self.active.rotate();
        }
        waits || found
    }

    /// Sets the settings of a port as a sender to scheduled ports.
    pub fn set_qos(&mut self, port: PortId, qos: SenderQos) {
        self.served.set(port, qos.priority > 0);
        self.switch.set_qos(port, qos);
    }

    /// Serves the pairs with a priority that have frames. `now` is in milliseconds. Returns whether
    /// there was one.
    #[cold]
    fn serve_priorities(&mut self, now: u64) -> bool {
        let mut found = false;
        let mut next = 0;
        while let Some((port, pair)) = self.served.first(next) {
            next += 1;
            if self.paused.has((port, pair)) {
                continue;
            }
            let sender = self.switch.port_mut(port);
            if !sender.is_some_and(|sender| sender.has_frames(pair)) {
                continue;
            }
            self.activate(port, pair);
            let (switch, upcalls) = (&mut self.switch, &mut self.control);
            let others = Others::WithPriority;
            let turn = self.fair.serve(switch, (port, pair), others, now, upcalls);
            if turn == Turn::Served {
                found = true;
                self.note_batch((port, pair));
            }
            if let Some(pause) = self.switch.take_pause() {
                self.active.remove(port, pair);
                self.paused.add((port, pair), pause);
            }
        }
        found
    }

    /// Counts a batch of a pair.
    #[inline]
    fn note_batch(&mut self, pair: (PortId, u16)) {
        if let Some(load) = self.loads.get_mut(&pair) {
            let busy = self.switch.busy();
            *load += busy.saturating_sub(std::mem::replace(&mut self.upkeep.counted, busy));
        }
    }

    /// Sets the rate limits of a port.
    pub fn set_limits(&mut self, port: PortId, limits: Option<Arc<PortLimits>>) {
        self.switch.set_limits(port, limits);
        // Paused pairs are checked against the new limits.
        for pair in 0..64 {
            if self.paused.has((port, pair)) {
                self.paused.remove((port, pair));
                self.active.add(port, pair);
            }
        }
    }

    /// Schedules what leaves by a port, or no longer.
    pub fn set_output(&mut self, port: PortId, output: Option<Arc<Output>>) {
        self.switch.set_output(port, output);
        // Waiting pairs ask the new output.
        while let Some((port, pair)) = self.paused.take_waiting() {
            self.active.add(port, pair);
        }
    }

    /// Returns whether a pair without frames need not be polled, because an event tells when it has
    /// some. One that had many small ones is left alone for a while first.
    fn rests(&mut self, (port, pair): (PortId, u16), now: Duration) -> bool {
        let Some(attached) = self.switch.port_mut(port) else {
            return false;
        };
        let rests = attached.rests(pair);
        if rests && attached.gathers(pair) {
            let until = Pause::Until(nanos(now + netio::PAUSE));
            self.paused.add((port, pair), until);
        }
        rests
    }

    /// Pauses the pair at this index, if its frames may not be sent yet.
    #[inline]
    fn pauses(&mut self, at: usize, pair: (PortId, u16)) -> bool {
        let Some(pause) = self.switch.take_pause() else {
            return false;
        };
        self.active.remove_at(at);
        self.paused.add(pair, pause);
        true
    }

    /// Makes pairs active whose pause is over.
    fn check_paused(&mut self) {
        let Some(look) = self.paused.next() else {
            return;
        };
        let now = nanos(self.upkeep.started.elapsed());
        if now < look {
            return;
        }
        let turns = self.switch.allot(now);
        let (switch, active) = (&mut self.switch, &mut self.active);
        self.paused.take_over(
            turns,
            |pause| switch.is_over(pause, now),
            |(port, pair)| {
                active.add(port, pair);
            },
        );
    }

    /// Continues the work of earlier answers, then executes new ones.
    fn follow_answers(&mut self) {
        if self.switch.has_work() && !self.continue_sweeps() {
            return;
        }
        for _ in 0..ANSWERS {
            let Some(ring) = &mut self.control.answers else {
                return;
            };
            match ring.recv::<Answer>() {
                Ok(Some(answer)) => self.dispatch(answer),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("malformed answer from control: {error}");
                    self.drop_control();
                    return;
                }
            }
        }
    }

    /// Executes a part of the pending work. Returns `true` when further answers can be executed.
    fn continue_sweeps(&mut self) -> bool {
        let caught_up = self.switch.continue_work(self.now());
        for finished in self.switch.take_finished() {
            self.events.notify(Notice::Finished(finished));
        }
        caught_up
    }

    /// Passes an answer to the worker that sent the upcall; one without an upcall goes to all.
    fn dispatch(&mut self, answer: Answer) {
        let asked = match &answer {
            Answer::Install { upcall, .. } => *upcall,
            Answer::Once { upcall, .. } | Answer::Reply { upcall, .. } => Some(*upcall),
            Answer::Forget(_) => None,
        };
        let asker = asked.map(Switch::<AttachedPort>::switch_of);
        for (number, worker) in self.all.iter().enumerate() {
            if number != self.number && asker.is_none_or(|asker| asker == number) {
                let answer = answer.clone();
                worker.post(move |w| w.follow(answer));
            }
        }
        if asker.is_none_or(|asker| asker == self.number) {
            self.follow(answer);
        }
    }

    fn follow(&mut self, answer: Answer) {
        let now = self.upkeep.started.elapsed();
        self.pacing.answers.found_frames(now);
        self.upkeep.answered = true;
        self.switch.set_clock(nanos(now));
        self.switch.answer(answer, millis(now));
    }
}
