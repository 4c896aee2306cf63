//! Many deaths of one Lasthop: at random moments processes are killed, guests reboot, VMMs go away
//! and come back, ports and memory are plugged, settings change, Lasthop is upgraded to itself; all
//! the while checked frames go both ways.
//!
//! ```text
//!   p0 <----------> p1      two guests, the pair            this thread, with the kills
//!   p2 <----------> t0      a guest and the host
//!   xN <----------> yN      guests that come and go         the operator
//! ```
//! Time is cut into rounds. At the end of each one there are no kills until all processes run and
//! all frames arrive again; then sent and received frames are added up, with new streams for the
//! next round. Frames may be lost: those in a killed process. None may be damaged, every stream
//! must continue, and nothing may be left over at the end.

mod books;
mod operator;

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Signal, kill_process};
use wire::hash::SplitMix64;

use self::books::Books;
use self::operator::Operator;
use crate::faults::probe::{Probe, Processes};
use crate::faults::stream::Stream;
use crate::faults::traffic::{Guests, Host, Traffic};
use crate::faults::{Victim, configuration};
use crate::footprint::{Footprint, Growth};
use crate::{Plan, idle, progress};
use e2e::lasthop::Lasthop;
use e2e::machine::pin;
use e2e::stop;

/// From one calm to the next.
const ROUND: Duration = Duration::from_secs(10);
/// The longest pause between two deeds, in milliseconds.
const PAUSE_MS: u64 = 800;
/// Limit of the recovery time without further kills. A process that fails repeatedly is restarted
/// after up to two seconds.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the last frames are waited for.
const DRAIN: Duration = Duration::from_millis(200);
/// How long descriptors are waited for that are about to be closed.
const SETTLE: Duration = Duration::from_secs(5);
/// How often the API is looked at.
const PROBE: Duration = Duration::from_millis(1);
/// Streams of a round. Their numbers are used again after some thousand rounds.
const STREAMS: u16 = 6;

/// Runs for `time`, prints the books and writes them to a file.
///
/// # Errors
/// When a frame was damaged, something did not come back, or descriptors are left over.
pub(crate) fn chaos(plan: &Plan, time: Duration) -> Result<()> {
    let host = match Host::new() {
        Ok(host) => Some(host),
        Err(error) => {
            progress(&format!("without interfaces of the host: {error:#}"));
            None
        }
    };
    let lasthop = plan.start(&(text(host.as_ref()) + &idle::tables(plan.idle)))?;
    let books = idle::connect(&lasthop, plan.idle).and_then(|mut crowd| {
        let books = run(plan, time, &lasthop, host.as_ref())?;
        crowd.check().context("an idle guest")?;
        Ok(books)
    });
    let books = books.with_context(|| format!("Lasthop's log:\n{}", lasthop.log()))?;
    lasthop.end();
    plan.save("chaos", &books)?;
    println!("{}", books.markdown());
    books.verdict()
}

fn text(host: Option<&Host>) -> String {
    configuration(host, true) + &format!("\n[[segment]]\nname = \"{}\"\n", operator::SEGMENT)
}

fn run(plan: &Plan, time: Duration, lasthop: &Lasthop, host: Option<&Host>) -> Result<Books> {
    let operator = Operator::new(lasthop);
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            pin(plan.cores[1])?;
            let outcome = StormControl::new(plan, lasthop, host, &operator)?.run(time);
            operator.stop();
            outcome
        });
        let worked = operator.work();
        let stormed = storm.join().ok().context("a thread panicked")?;
        // Who failed first is the other's reason.
        worked.and(stormed)
    })
}

/// Kills processes and sends traffic, in this thread.
struct StormControl<'a> {
    lasthop: &'a Lasthop,
    operator: &'a Operator<'a>,
    traffic: Traffic<'a>,
    has_host: bool,
    probe: Probe,
    probed: Instant,
    processes: Processes,
    rng: SplitMix64,
    books: Books,
}

impl<'a> StormControl<'a> {
    fn new(
        plan: &Plan,
        lasthop: &'a Lasthop,
        host: Option<&'a Host>,
        operator: &'a Operator<'a>,
    ) -> Result<Self> {
        Ok(Self {
            traffic: Traffic::attach(lasthop, Guests::Plain, host)?,
            has_host: host.is_some(),
            probe: Probe::new(lasthop.socket_of("api")),
            probed: Instant::now(),
            processes: Processes::new(),
            rng: SplitMix64(RandomState::new().hash_one(0)),
            books: Books::new(&plan.machine),
            lasthop,
            operator,
        })
    }

    fn run(mut self, time: Duration) -> Result<Books> {
        let begin = Instant::now();
        // In the first round each process is replaced once, so that like is compared with like.
        let mut before = None;
        for round in 0_u16.. {
            self.traffic.begin(round.wrapping_mul(STREAMS));
            if begin.elapsed() >= time {
                break;
            }
            self.storm(ROUND.min(time))?;
            self.calm()?;
            self.drain()?;
            self.account();
            if before.is_none() {
                before = Some(self.footprint()?);
            }
            progress(&format!(
                "chaos: {:.0} of {:.0} s, {}",
                begin.elapsed().as_secs_f64(),
                time.as_secs_f64(),
                self.books.summary(),
            ));
        }
        let before = before.context("no round was run")?;
        self.books.growth = self.grown(&before)?;
        self.books.seconds = begin.elapsed().as_secs_f64();
        self.books.operator = self.operator.tally();
        Ok(self.books)
    }

    /// Of Lasthop with the ports of its configuration.
    fn footprint(&self) -> Result<Footprint> {
        let pid = self.lasthop.supervisor();
        self.operator
            .while_nothing_is_plugged(|| Footprint::of(pid))
    }

    /// Returns resources that have grown: a request at the API, and remains of a client that has
    /// just left, are gone in a moment.
    fn grown(&self, before: &Footprint) -> Result<Vec<Growth>> {
        let end = Instant::now() + SETTLE;
        loop {
            let growth = before.growth_to(&self.footprint()?);
            if growth.iter().all(|one| one.leaked() == 0) || Instant::now() >= end {
                return Ok(growth);
            }
            stop::sleep(PROBE)?;
        }
    }

    /// Traffic, and deeds at random moments.
    fn storm(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut next = Instant::now();
        while Instant::now() < end {
            self.step()?;
            if Instant::now() >= next {
                self.deed()?;
                next = Instant::now() + Duration::from_millis(self.rng.below(PAUSE_MS));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        stop::check()?;
        self.operator.check()?;
        self.traffic.step()?;
        if self.probed.elapsed() >= PROBE {
            self.probed = Instant::now();
            if let Some(processes) = self.probe.poll() {
                self.processes = processes;
            }
        }
        Ok(())
    }

    /// Kills a process, or has a guest lose its VMM or reboot.
    fn deed(&mut self) -> Result<()> {
        let guests = if self.has_host { 4 } else { 2 };
        let guest = self.rng.below(guests) as usize;
        match self.rng.below(6) {
            0 | 1 => self.kill(Victim::Switch),
            2 => self.kill(Victim::Control),
            3 if self.has_host => self.kill(Victim::Driver),
            4 => {
                self.books.reboots += u64::from(self.traffic.reboot(guest)?);
                Ok(())
            }
            _ => {
                self.books.crashes += u64::from(self.traffic.crash(guest));
                Ok(())
            }
        }
    }

    /// Kills the process that was last seen. One that has died since is not there, and not replaced
    /// by another of its number that soon.
    fn kill(&mut self, victim: Victim) -> Result<()> {
        let Some(pid) = self.processes.remove(&victim.process()) else {
            return Ok(());
        };
        let pid = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        match kill_process(pid.context("no process has that number")?, Signal::KILL) {
            Ok(()) => self.books.killed(victim),
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => bail!("{}: {error}", victim.process()),
        }
        Ok(())
    }

    /// Waits until all processes run, and every stream continues.
    fn calm(&mut self) -> Result<()> {
        self.processes.clear();
        self.traffic.streams().for_each(Stream::dead);
        let end = Instant::now() + RECOVERY_TIMEOUT;
        loop {
            self.step()?;
            let processes = &self.processes;
            let is_there = |victim: Victim| processes.contains_key(&victim.process());
            let desired = Victim::ALL.into_iter();
            let mut desired = desired.filter(|victim| self.has_host || *victim != Victim::Driver);
            if desired.all(is_there) && self.traffic.streams().all(|stream| stream.resumed()) {
                return Ok(());
            }
            if Instant::now() >= end {
                let stuck: Vec<String> = self
                    .traffic
                    .lanes()
                    .iter()
                    .filter(|lane| !lane.stream.resumed())
                    .map(|lane| format!("{:?} to {:?}", lane.from, lane.to))
                    .collect();
                bail!(
                    "not as before within {RECOVERY_TIMEOUT:?}: processes {:?}, no frames from {stuck:?}",
                    self.processes
                );
            }
        }
    }

    fn drain(&mut self) -> Result<()> {
        self.traffic.sending = false;
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            self.step()?;
            if self
                .traffic
                .streams()
                .all(|stream| stream.received() >= stream.sent())
            {
                break;
            }
        }
        Ok(())
    }

    fn account(&mut self) {
        for stream in self.traffic.streams() {
            self.books.sent += stream.sent();
            self.books.received += stream.received();
            self.books.twice += stream.twice();
        }
        self.books.damaged = self.traffic.damaged;
        self.books.redials = self.traffic.redials();
    }
}
