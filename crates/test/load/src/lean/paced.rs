//! Frames at a given rate, and how long each is on its way.
//!
//! ```text
//! frame   0..42 headers   44..52 when it was sent, in nanoseconds since the client began
//! ```
//! Port 0 sends and port 1 receives, in one thread that polls and reads one clock. (Port 0 is
//! looked after too: a switch that floods sends it something.) Towards the switch the ports are
//! guests that do one thing at a time: each frame is published alone, and after it the device is
//! asked once whether it wants a kick.

use std::time::{Duration, Instant};

use wire::hash::SplitMix64;

use super::histogram::Histogram;
use super::port::Port;
use super::ring::Ring;
use super::{Lean, LeanError, Pinned, Ports, drive, frames};

/// Send rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Frames a second in the mean, more than 0.
    pub rate: f64,
    /// Gaps are random, as if of many senders that know nothing of one another, in place of equal.
    pub poisson: bool,
}

/// Results of a paced run.
#[derive(Clone, Debug, Default)]
pub struct PacedReport {
    /// How long frames were sent for.
    pub elapsed: Duration,
    /// Frames sent.
    pub sent: u64,
    /// Frames of this run received, waiting afterwards included.
    pub received: u64,
    /// Frames sent and never received.
    pub lost: u64,
    /// Frames that were due and not sent before the end: the device let the ring fill up, or the
    /// client fell behind.
    pub unsent: u64,
    /// Kicks given, all queues.
    pub kicks: u64,
    /// Nanoseconds in their system calls.
    pub kicking: u64,
    /// From writing a frame to seeing it at the other port, in nanoseconds.
    pub latency: Histogram,
    /// By how much frames were sent later than they were due, in nanoseconds: the client's own
    /// fault, and not part of the latency.
    pub lag: Histogram,
}

impl PacedReport {
    /// Frames sent a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.sent as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Lean {
    /// Sends from port 0 to port 1 at a given pace for `time`, on this thread, on the configured
    /// CPU, and measures how long each frame is on its way.
    ///
    /// # Errors
    /// As [`Lean::run`], and when frames are too short to carry the time.
    pub fn paced(&mut self, pace: Pace, time: Duration) -> Result<PacedReport, LeanError> {
        self.paced_beside(pace, time, None)
    }

    /// As [`Lean::paced`], while a neighbour's two ports send each other as much as they can, on
    /// this thread too: between two looks at these ports one batch each.
    ///
    /// # Errors
    /// As [`Lean::paced`], also of the neighbour.
    pub fn paced_beside(
        &mut self,
        pace: Pace,
        time: Duration,
        mut neighbour: Option<&mut Lean>,
    ) -> Result<PacedReport, LeanError> {
        let beside = || match neighbour.as_mut().map(|lean| &mut lean.ports) {
            None => Ok(()),
            Some(Ports::Split(ports)) => drive::flood(ports),
            Some(Ports::Packed(ports)) => drive::flood(ports),
            Some(Ports::Slots(ports)) => drive::flood(ports),
        };
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        let times = Times {
            epoch: self.epoch,
            time,
            patience: self.config.patience,
        };
        match &mut self.ports {
            Ports::Split(ports) => run(ports, pace, times, beside),
            Ports::Packed(ports) => run(ports, pace, times, beside),
            Ports::Slots(ports) => run(ports, pace, times, beside),
        }
    }
}

/// Due time of the next frame, in nanoseconds since the run began.
#[derive(Debug)]
struct Schedule {
    /// Between two frames, in the mean.
    gap: f64,
    random: Option<SplitMix64>,
    due: f64,
}

impl Schedule {
    fn new(pace: Pace) -> Self {
        Self {
            gap: 1e9 / pace.rate,
            random: pace.poisson.then_some(SplitMix64(0x5eed)),
            due: 0.0,
        }
    }

    /// The frame that was due is sent.
    fn advance(&mut self) {
        self.due += match &mut self.random {
            // The inverse of the exponential distribution.
            Some(random) => -random.fraction().ln() * self.gap,
            None => self.gap,
        };
    }

    /// Frames that are due before `end` and were not sent; about, when gaps are random.
    fn due_before(&self, end: u64) -> u64 {
        ((end as f64 - self.due) / self.gap).ceil().max(0.0) as u64
    }
}

/// How long, and since when.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Zero of the times in frames: before the run.
    epoch: Instant,
    /// How long frames are sent.
    time: Duration,
    /// How long the last ones are waited for.
    patience: Duration,
}

impl Times {
    /// Nanoseconds since the epoch.
    #[inline]
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// See [`Lean::paced`]; `beside` is done between two looks.
fn run<R: Ring>(
    ports: &mut [Port<R>],
    pace: Pace,
    times: Times,
    beside: impl FnMut() -> Result<(), LeanError>,
) -> Result<PacedReport, LeanError> {
    let [sender, receiver, ..] = ports else {
        return Err(LeanError::Config("two ports"));
    };
    if !sender.takes_stamps() {
        return Err(LeanError::Config(frames::STAMP_RULE));
    }
    if !(pace.rate.is_finite() && pace.rate > 0.0) {
        return Err(LeanError::Config("a rate above 0"));
    }
    let before = (
        sender.counts.kicks + receiver.counts.kicks,
        sender.counts.kicking + receiver.counts.kicking,
    );
    sender.kick_once(true);
    receiver.kick_once(true);
    let mut run = Run {
        times,
        start: times.now(),
        report: PacedReport::default(),
    };
    let result = run.send_and_receive(sender, receiver, pace, beside);
    sender.kick_once(false);
    receiver.kick_once(false);
    let mut report = run.report;
    report.kicks = sender.counts.kicks + receiver.counts.kicks - before.0;
    report.kicking = sender.counts.kicking + receiver.counts.kicking - before.1;
    report.lost = report.sent.saturating_sub(report.received);
    result.map(|()| report)
}

struct Run {
    times: Times,
    /// In nanoseconds since the epoch.
    start: u64,
    report: PacedReport,
}

impl Run {
    fn send_and_receive<R: Ring>(
        &mut self,
        sender: &mut Port<R>,
        receiver: &mut Port<R>,
        pace: Pace,
        mut beside: impl FnMut() -> Result<(), LeanError>,
    ) -> Result<(), LeanError> {
        let mut schedule = Schedule::new(pace);
        let end = self.start + self.times.time.as_nanos() as u64;
        let mut now = self.start;
        while now < end {
            let due = self.start + schedule.due as u64;
            if now >= due && sender.send_stamped(now)? {
                self.report.sent += 1;
                self.report.lag.record(now - due);
                schedule.advance();
            }
            self.receive(sender)?;
            self.receive(receiver)?;
            beside()?;
            now = self.times.now();
        }
        self.report.elapsed = Duration::from_nanos(now - self.start);
        self.report.unsent = schedule.due_before(end - self.start);
        let limit = now + self.times.patience.as_nanos() as u64;
        while self.report.received < self.report.sent && self.times.now() < limit {
            self.receive(sender)?;
            self.receive(receiver)?;
        }
        Ok(())
    }

    /// Takes what came to the port; frames of earlier runs and of others are not counted.
    #[inline]
    fn receive<R: Ring>(&mut self, port: &mut Port<R>) -> Result<(), LeanError> {
        let Self {
            times,
            start,
            report,
        } = self;
        let mut seen = None;
        port.receive_with(|frames, _, id| {
            let now = *seen.get_or_insert_with(|| times.now());
            if let Some(sent) = frames.touch(id).map(|_| frames.stamp(id))
                && (*start..=now).contains(&sent)
            {
                report.received += 1;
                report.latency.record(now - sent);
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64, poisson: bool) -> Schedule {
        Schedule::new(Pace { rate, poisson })
    }

    #[test]
    fn even_gaps_do_not_drift() {
        let mut schedule = pace(3e6, false);
        for _ in 0..30_000 {
            schedule.advance();
        }
        assert!((schedule.due - 1e7).abs() < 0.1, "{}", schedule.due);
    }

    #[test]
    fn random_gaps_have_the_mean_and_the_spread() {
        let mut schedule = pace(1e6, true);
        let (mut short, mut before) = (0, 0.0);
        for _ in 0..20_000 {
            schedule.advance();
            short += u32::from(schedule.due - before < 1000.0);
            before = schedule.due;
        }
        assert!((schedule.due / 2e7 - 1.0).abs() < 0.03, "{}", schedule.due);
        // Of an exponential distribution 63.2 % lie below the mean.
        assert!((12_200..13_100).contains(&short), "{short}");
    }

    #[test]
    fn frames_behind_are_counted() {
        let mut schedule = pace(1e6, false);
        for (end, frames) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (4500, 5)] {
            assert_eq!(schedule.due_before(end), frames);
        }
        schedule.advance();
        assert_eq!(schedule.due_before(1000), 0);
    }
}
