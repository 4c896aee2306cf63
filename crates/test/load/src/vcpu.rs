//! A guest with one processor, played by a thread: it computes, is interrupted, and sleeps when it
//! has nothing to do.
//!
//! ```text
//!            +--------------------- loop ---------------------+
//! interrupt? | mask, take all frames, unmask     (as NAPI does) |
//! message?   | work on it; an answer is sent at once            |
//! task?      | send what the task has to send                   |
//! nothing:   | sleep until an interrupt, or until the task's time|
//!            +--------------------------------------------------+
//! ```
//! To the scheduler such a thread looks as the thread of a virtual processor does, and to the
//! switch its queues look as those of a Linux guest do: it polls while there are frames, asks for
//! interrupts before it does anything else, and kicks when asked to. What a real processor spends
//! on leaving the guest, on an interrupt and on its network stack is spent by looking at the clock
//! ([`Costs`]).
//!
//! [`lean`](crate::lean) is the client that never is the limit; this one is the client that does as
//! guests do.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::lean::Histogram;
use testkit::guest::GuestError;
use testkit::net::NetHeader;
use wire::hash::SplitMix64;

mod message;
mod thread;
mod virtio;

#[cfg(test)]
mod tests;

pub use message::MIN_PAYLOAD;
pub use thread::VcpuThread;

use message::{Kind, Message, Templates};

/// So long nothing happens before what is on its way counts as lost.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Data that are acknowledged together, at most.
const ACKNOWLEDGED: u32 = 2;
/// A full transmit queue is looked at again after this time.
const ROOM: Duration = Duration::from_micros(20);

/// Costs of a guest's own work, each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A kick: leaving the guest and coming back to it, beside the system call that a thread makes
    /// in any case.
    pub exit: Duration,
    /// An interrupt: delivering it and finding out what it was.
    pub interrupt: Duration,
    /// A frame in the network stack, sent or received.
    pub frame: Duration,
}

impl Default for Costs {
    /// A microsecond each: what hardware of the last years needs, rather less than more.
    fn default() -> Self {
        let micro = Duration::from_micros(1);
        Self {
            exit: micro,
            interrupt: micro,
            frame: micro,
        }
    }
}

/// Work of the guest beside answering: requests are answered and data acknowledged always.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Nothing.
    Serve,
    /// Requests to `peer`, so many on their way at all times.
    Request {
        /// Number of the guest that is asked.
        peer: u8,
        /// Requests without an answer yet.
        outstanding: u32,
        /// Bytes of request and answer, [`MIN_PAYLOAD`] at least.
        payload: usize,
    },
    /// Requests to `peer` at random times.
    Pace {
        /// Number of the guest that is asked.
        peer: u8,
        /// Requests a second in the mean, more than 0.
        rate: f64,
        /// Bytes of request and answer, [`MIN_PAYLOAD`] at least.
        payload: usize,
    },
    /// Data to each of `peers`, as much as they acknowledge.
    Stream {
        /// Numbers of the guests that get it.
        peers: Vec<u8>,
        /// Bytes of TCP payload in each frame; more than a segment makes it a super-frame.
        payload: usize,
        /// Bytes on their way to a peer, at most.
        window: usize,
    },
}

/// Counts of a guest in a run.
#[derive(Clone, Debug, Default)]
pub struct VcpuReport {
    /// How long it took.
    pub elapsed: Duration,
    /// Answers to its requests.
    pub answers: u64,
    /// From a request's due time to its answer's arrival in the application, in nanoseconds.
    pub round_trips: Histogram,
    /// Data received, in bytes of payload.
    pub bytes: u64,
    /// Frames sent, of all kinds.
    pub sent: u64,
    /// Frames received, of all kinds.
    pub received: u64,
    /// Kicks given.
    pub kicks: u64,
    /// Interrupts while it ran or slept.
    pub interrupts: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// How often it gave up waiting for an answer or an acknowledgement.
    pub stalls: u64,
}

/// The NIC of such a guest.
pub trait Nic {
    /// Takes the interrupt, if there is one.
    fn interrupted(&mut self) -> bool;

    /// Asks for no more interrupts.
    fn mask(&mut self);

    /// Asks for an interrupt at the next frame; true when one is there already.
    fn unmask(&mut self) -> bool;

    /// The next frame, into `frame`; false when there is none.
    ///
    /// # Errors
    /// When the device broke a rule.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, GuestError>;

    /// Sends a frame; false when there is no room.
    ///
    /// # Errors
    /// When the device broke a rule.
    fn send(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, GuestError>;

    /// Kicks given so far.
    fn kicks(&self) -> u64;

    /// Sleeps until there is an interrupt, which it leaves there, for `time` at most.
    fn sleep(&mut self, time: Duration);
}

/// Data on their way to a guest.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    sent: u64,
    acknowledged: u64,
}

/// Data that came and were not acknowledged yet.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    next: u64,
    unacknowledged: u32,
}

/// A guest: its NIC and what runs behind it.
#[derive(Debug)]
pub struct Vcpu<N> {
    nic: N,
    costs: Costs,
    templates: Templates,
    /// Received, and waiting for the application.
    socket: VecDeque<Message>,
    frame: Vec<u8>,
    streams: BTreeMap<u8, Stream>,
    arrived: BTreeMap<u8, Arrived>,
    outstanding: u32,
    /// Due time of the next request of [`Task::Pace`].
    due: Instant,
    random: SplitMix64,
    /// Time of the last expected arrival, or of the last send without one.
    progress: Instant,
    run: u32,
    report: VcpuReport,
}

impl<N: Nic> Vcpu<N> {
    /// Guest `number` ([`testkit::packets::mac`]) behind a NIC.
    pub fn new(nic: N, number: u8, costs: Costs) -> Self {
        Self {
            nic,
            costs,
            templates: Templates::new(number),
            socket: VecDeque::new(),
            frame: Vec::new(),
            streams: BTreeMap::new(),
            arrived: BTreeMap::new(),
            outstanding: 0,
            due: Instant::now(),
            random: SplitMix64(u64::from(number)),
            progress: Instant::now(),
            run: 0,
            report: VcpuReport::default(),
        }
    }

    /// Does `task` for `time`. Frames of other runs than number `run` are taken and ignored.
    ///
    /// # Errors
    /// When the device broke a rule.
    pub fn run(&mut self, task: &Task, run: u32, time: Duration) -> Result<VcpuReport, GuestError> {
        let start = Instant::now();
        self.begin(run, start);
        let kicks = self.nic.kicks();
        self.poll()?;
        loop {
            let now = Instant::now();
            let left = time.saturating_sub(now - start);
            if left.is_zero() {
                break;
            }
            self.step(task, now, left)?;
        }
        let mut report = std::mem::take(&mut self.report);
        report.elapsed = start.elapsed();
        report.kicks = self.nic.kicks() - kicks;
        Ok(report)
    }

    fn begin(&mut self, run: u32, now: Instant) {
        self.run = run;
        self.socket.clear();
        self.streams.clear();
        self.arrived.clear();
        self.outstanding = 0;
        self.due = now;
        self.progress = now;
        self.report = VcpuReport::default();
    }

    /// One thing, the most urgent one; a sleep of at most `left` when there is none.
    fn step(&mut self, task: &Task, now: Instant, left: Duration) -> Result<(), GuestError> {
        if self.nic.interrupted() {
            self.report.interrupts += 1;
            spend(self.costs.interrupt);
            self.poll()?;
        }
        if let Some(message) = self.socket.pop_front() {
            return self.handle(&message);
        }
        self.acknowledge(1)?;
        if self.produce(task, now)? {
            return Ok(());
        }
        let until = self.next(task, now).map_or(left, |time| time.min(left));
        if !until.is_zero() {
            self.report.sleeps += 1;
            self.nic.sleep(until);
        }
        Ok(())
    }

    /// Takes all that has come, without interrupts meanwhile.
    fn poll(&mut self) -> Result<(), GuestError> {
        loop {
            self.nic.mask();
            while self.nic.receive(&mut self.frame)? {
                spend(self.costs.frame);
                self.report.received += 1;
                let message = Message::read(&self.frame).filter(|message| message.run == self.run);
                self.socket.extend(message);
            }
            if !self.nic.unmask() {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, message: &Message) -> Result<(), GuestError> {
        match message.kind {
            Kind::Request => self.answer(message),
            Kind::Answer => {
                self.answered(message);
                Ok(())
            }
            Kind::Data => self.arrive(message),
            Kind::Acknowledgement => {
                if let Some(stream) = self.streams.get_mut(&message.from) {
                    stream.acknowledged = stream.acknowledged.max(message.number).min(stream.sent);
                }
                self.progress = Instant::now();
                Ok(())
            }
        }
    }

    fn answer(&mut self, request: &Message) -> Result<(), GuestError> {
        let answer = Message {
            kind: Kind::Answer,
            ..*request
        };
        self.send(request.from, answer).map(drop)
    }

    fn answered(&mut self, answer: &Message) {
        self.progress = Instant::now();
        self.outstanding = self.outstanding.saturating_sub(1);
        self.report.answers += 1;
        let now = message::nanos(self.progress);
        self.report
            .round_trips
            .record(now.saturating_sub(answer.stamp));
    }

    fn arrive(&mut self, data: &Message) -> Result<(), GuestError> {
        self.report.bytes += data.payload as u64;
        let arrived = self.arrived.entry(data.from).or_default();
        arrived.next = arrived.next.max(data.number + 1);
        arrived.unacknowledged += 1;
        self.acknowledge(ACKNOWLEDGED)
    }

    /// Acknowledges data where so many frames of them wait for it.
    fn acknowledge(&mut self, least: u32) -> Result<(), GuestError> {
        let waits = |(_, arrived): &(&u8, &mut Arrived)| arrived.unacknowledged >= least;
        let Some((&peer, arrived)) = self.arrived.iter_mut().find(waits) else {
            return Ok(());
        };
        arrived.unacknowledged = 0;
        let next = arrived.next;
        let message = self.message(Kind::Acknowledgement, next, MIN_PAYLOAD);
        self.send(peer, message)?;
        self.acknowledge(least)
    }

    /// Sends the next thing that the task has to send; false when there is none now.
    fn produce(&mut self, task: &Task, now: Instant) -> Result<bool, GuestError> {
        match task {
            Task::Serve => Ok(false),
            Task::Request {
                peer,
                outstanding,
                payload,
            } => {
                if self.outstanding > 0 && now - self.progress > TIMEOUT {
                    self.give_up(now);
                }
                if self.outstanding >= *outstanding {
                    return Ok(false);
                }
                self.ask(*peer, now, *payload)
            }
            Task::Pace {
                peer,
                rate,
                payload,
            } => {
                if now < self.due {
                    return Ok(false);
                }
                let sent = self.ask(*peer, self.due, *payload)?;
                if sent {
                    let gap = self.gap(*rate);
                    self.due += gap;
                }
                Ok(sent)
            }
            Task::Stream {
                peers,
                payload,
                window,
            } => self.stream(peers, *payload, *window, now),
        }
    }

    /// Sends a request, as of `since`.
    fn ask(&mut self, peer: u8, since: Instant, payload: usize) -> Result<bool, GuestError> {
        if self.outstanding == 0 {
            self.progress = Instant::now();
        }
        let request = Message {
            stamp: message::nanos(since),
            ..self.message(Kind::Request, 0, payload)
        };
        let sent = self.send(peer, request)?;
        self.outstanding += u32::from(sent);
        Ok(sent)
    }

    fn stream(
        &mut self,
        peers: &[u8],
        payload: usize,
        window: usize,
        now: Instant,
    ) -> Result<bool, GuestError> {
        let most = (window / payload).max(1) as u64;
        if now - self.progress > TIMEOUT {
            self.give_up(now);
        }
        // Who has the least on its way is served first.
        let on_the_way = |peer: &u8| {
            let stream = self.streams.get(peer).copied().unwrap_or_default();
            stream.sent - stream.acknowledged
        };
        let next = peers.iter().min_by_key(|peer| on_the_way(peer));
        let Some(&peer) = next.filter(|peer| on_the_way(peer) < most) else {
            return Ok(false);
        };
        let number = self.streams.entry(peer).or_default().sent;
        let sent = self.send(peer, self.message(Kind::Data, number, payload))?;
        self.streams.entry(peer).or_default().sent += u64::from(sent);
        Ok(sent)
    }

    /// Counts frames in flight as arrived: they are lost.
    fn give_up(&mut self, now: Instant) {
        let waiting = |stream: &Stream| stream.sent > stream.acknowledged;
        if self.outstanding > 0 || self.streams.values().any(waiting) {
            self.report.stalls += 1;
        }
        self.outstanding = 0;
        for stream in self.streams.values_mut() {
            stream.acknowledged = stream.sent;
        }
        self.progress = now;
    }

    /// How long there is nothing to send, if that is known.
    fn next(&self, task: &Task, now: Instant) -> Option<Duration> {
        let patience = (self.progress + TIMEOUT).saturating_duration_since(now);
        match task {
            Task::Serve => None,
            Task::Request { outstanding, .. } if self.outstanding < *outstanding => Some(ROOM),
            Task::Pace { .. } => Some(self.due.saturating_duration_since(now)),
            Task::Request { .. } | Task::Stream { .. } => Some(patience.max(ROOM)),
        }
    }

    /// A random time between two requests, with the mean of so many a second.
    fn gap(&mut self, rate: f64) -> Duration {
        // The inverse of the exponential distribution.
        Duration::from_secs_f64(-self.random.fraction().ln() / rate)
    }

    fn message(&self, kind: Kind, number: u64, payload: usize) -> Message {
        Message {
            kind,
            run: self.run,
            from: self.templates.number(),
            number,
            stamp: 0,
            payload,
        }
    }

    fn send(&mut self, peer: u8, message: Message) -> Result<bool, GuestError> {
        spend(self.costs.frame);
        let (frame, header) = self.templates.write(peer, &message);
        let kicks = self.nic.kicks();
        let sent = self.nic.send(frame, header)?;
        self.report.sent += u64::from(sent);
        if self.nic.kicks() > kicks {
            spend(self.costs.exit);
        }
        Ok(sent)
    }
}

/// Computes for a time.
fn spend(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
