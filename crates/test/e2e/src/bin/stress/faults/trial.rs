//! One kill: traffic before it, the kill, traffic until all is as before, and the books.

use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use super::Victim;
use super::probe::{Probe, Processes};
use super::traffic::{End, Guests, Host, Interface, Route, Traffic};
use crate::{Plan, idle};
use e2e::lasthop::Lasthop;
use e2e::stats::Stats;
use e2e::stop;
use testkit::wait::LIMIT;

/// Traffic before the switch is taken to know everybody.
const WARM_UP: Duration = Duration::from_millis(50);
/// Traffic before the kill, for comparison.
const BEFORE: Duration = Duration::from_millis(200);
/// The shortest time that is watched from the kill on, and the time after all is as before.
const AFTER: Duration = Duration::from_millis(200);
const AFTERWARDS: Duration = Duration::from_millis(50);
/// How long the last frames are waited for.
const DRAIN: Duration = Duration::from_millis(100);
/// How often the API is looked at: a hundred times for a millisecond would keep frames waiting.
const PROBE: Duration = Duration::from_micros(200);
/// First numbers of the streams that warm up, and of those that count.
const STREAMS: [u16; 2] = [0, 100];

/// Traffic of a route, both directions added.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Seen {
    /// The longest time without a frame in one direction, in milliseconds: in the time before the
    /// kill, and around it.
    pub(super) gap_before_ms: f64,
    pub(super) gap_ms: f64,
    pub(super) sent: u64,
    /// Each frame counted once.
    pub(super) received: u64,
    pub(super) twice: u64,
    /// By Lasthop, with a reason.
    pub(super) dropped: u64,
    /// Due while they could not be sent.
    pub(super) left_out: u64,
}

impl Seen {
    /// Frames that neither arrived nor were dropped by name.
    pub(super) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received + self.dropped)
    }
}

/// One kill.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Trial {
    pub(super) victim: Victim,
    /// From the kill until the API answered, in milliseconds, and until it showed the new process.
    pub(super) api_ms: f64,
    pub(super) replaced_ms: f64,
    pub(super) pair: Seen,
    pub(super) tap: Option<Seen>,
    pub(super) packet: Option<Seen>,
    /// Guests that had to dial again, and guests that did or whose frames did not all arrive.
    pub(super) redialled: usize,
    pub(super) affected: usize,
    pub(super) damaged: u64,
}

impl Trial {
    /// For standard error.
    pub(super) fn summary(&self) -> String {
        let route = |name: &str, seen: &Seen| {
            format!("{name} {:.2} ms, {} lost; ", seen.gap_ms, seen.lost())
        };
        let seen = [
            ("pair", Some(&self.pair)),
            ("TAP", self.tap.as_ref()),
            ("packet", self.packet.as_ref()),
        ];
        let routes = seen.map(|(name, seen)| seen.map(|seen| route(name, seen)));
        format!(
            "{}: {}API after {:.2} ms",
            self.victim.name(),
            routes.map(Option::unwrap_or_default).concat(),
            self.api_ms,
        )
    }
}

/// Starts Lasthop, kills one of its processes under traffic, and ends it.
pub(super) fn run(
    plan: &Plan,
    victim: Victim,
    guests: Guests,
    configuration: &str,
    host: Option<&Host>,
) -> Result<Trial> {
    let mut lasthop = plan.start(configuration)?;
    let trial = idle::connect(&lasthop, plan.idle).and_then(|mut crowd| {
        let trial = Running::new(&mut lasthop, victim, guests, host)?.finish()?;
        // A new supervisor has no connections.
        if victim != Victim::Supervisor {
            crowd.check().context("an idle guest")?;
        }
        Ok(trial)
    });
    let trial = trial.with_context(|| format!("Lasthop's log:\n{}", lasthop.log()))?;
    lasthop.end();
    Ok(trial)
}

/// Times of events.
struct Times {
    killed: Instant,
    answered: Option<Instant>,
    replaced: Option<Instant>,
}

struct Running<'a> {
    lasthop: &'a mut Lasthop,
    victim: Victim,
    traffic: Traffic<'a>,
    probe: Probe,
    probed: Instant,
}

impl<'a> Running<'a> {
    fn new(
        lasthop: &'a mut Lasthop,
        victim: Victim,
        guests: Guests,
        host: Option<&'a Host>,
    ) -> Result<Self> {
        Ok(Self {
            traffic: Traffic::attach(lasthop, guests, host)?,
            probe: Probe::new(lasthop.socket_of("api")),
            probed: Instant::now(),
            lasthop,
            victim,
        })
    }

    fn finish(mut self) -> Result<Trial> {
        let old = self.warm_up()?;
        let before = self.lasthop.try_stats()?;
        self.traffic.begin(STREAMS[1]);
        self.go_on(BEFORE)?;
        let times = self.kill(old)?;
        self.go_on(AFTERWARDS)?;
        self.drain()?;
        let after = self.lasthop.try_stats()?;
        self.traffic.verify_pages()?;
        Ok(self.account(&times, &before, &after))
    }

    /// Steps until `done` says so.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            self.traffic.step()?;
            if done(self)? {
                return Ok(());
            }
            stop::check()?;
            if Instant::now() >= end {
                bail!("{what}: not within {LIMIT:?}");
            }
        }
    }

    fn go_on(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        self.until("the end of the time", |_| Ok(Instant::now() >= end))
    }

    fn ask(&mut self) -> Option<Processes> {
        if self.probed.elapsed() < PROBE {
            return None;
        }
        self.probed = Instant::now();
        self.probe.poll()
    }

    /// Until the switch knows everybody and the victim is known; its process.
    fn warm_up(&mut self) -> Result<Pid> {
        self.traffic.streams().for_each(super::stream::Stream::dead);
        self.until("all traffic flows", |running| {
            Ok(running.traffic.streams().all(|stream| stream.resumed()))
        })?;
        self.go_on(WARM_UP)?;
        self.drain()?;
        let mut found = None;
        self.until("the API shows the process", |running| {
            let name = running.victim.process();
            found = running.ask().and_then(|all| pid(*all.get(&name)?));
            Ok(found.is_some())
        })?;
        found.context("the process has no number")
    }

    /// Nothing more is sent until everything has arrived, or nothing arrives any more.
    fn drain(&mut self) -> Result<()> {
        self.traffic.sending = false;
        let end = Instant::now() + DRAIN;
        self.until("the last frames arrive", |running| {
            let mut streams = running.traffic.streams();
            Ok(streams.all(|stream| stream.received() >= stream.sent()) || Instant::now() >= end)
        })
    }

    /// Kills, and continues until full recovery.
    fn kill(&mut self, old: Pid) -> Result<Times> {
        let handle = pidfd_open(old, PidfdFlags::empty())?;
        let killed = Instant::now();
        self.traffic
            .streams()
            .for_each(|stream| stream.kill(killed));
        let mut upgrade = match self.victim {
            Victim::Upgrade => Some(begin_upgrade(self.lasthop)?),
            _ => {
                pidfd_send_signal(&handle, Signal::KILL)?;
                None
            }
        };
        self.until("the process dies", |_| is_dead(&handle))?;
        self.traffic.streams().for_each(super::stream::Stream::dead);
        if self.victim == Victim::Supervisor {
            self.lasthop.restart()?;
        }
        let mut times = Times {
            killed,
            answered: None,
            replaced: None,
        };
        self.until("all is as before", |running| {
            running.note_answers(&mut times, old);
            let flows = running.traffic.streams().all(|stream| stream.resumed());
            // Drivers are replaced when the new switch serves already.
            let done = match &mut upgrade {
                Some(upgrade) => upgrade.try_wait()?,
                None => Some(ExitStatus::default()),
            };
            if done.is_some_and(|status| !status.success()) {
                bail!("the upgrade failed");
            }
            let over = done.is_some() && killed.elapsed() >= AFTER;
            Ok(flows && times.replaced.is_some() && over)
        })?;
        Ok(times)
    }

    /// An answer counts when it is of the Lasthop that runs now: a dead supervisor's control may
    /// speak for a moment.
    fn note_answers(&mut self, times: &mut Times, old: Pid) {
        if times.replaced.is_some() {
            return;
        }
        let Some(all) = self.ask() else { return };
        if all.get("supervisor") != Some(&self.lasthop.supervisor()) {
            return;
        }
        let now = Instant::now();
        times.answered.get_or_insert(now);
        let new = all
            .get(&self.victim.process())
            .and_then(|number| pid(*number));
        if new.is_some_and(|new| new != old) {
            times.replaced = Some(now);
        }
    }

    fn account(&self, times: &Times, before: &Stats, after: &Stats) -> Trial {
        let since = |at: Option<Instant>| at.map_or(f64::NAN, |at| ms(at - times.killed));
        // A new supervisor counts from nothing.
        let nothing = Stats::default();
        let before = match self.victim {
            Victim::Supervisor => &nothing,
            _ => before,
        };
        let seen = |route: Route| {
            let dropped = |stats| drops(stats, route);
            self.seen(route, dropped(after).saturating_sub(dropped(before)))
        };
        let mut affected = self.traffic.redialled();
        let redialled = affected.len();
        affected.extend(self.short());
        affected.sort_unstable();
        affected.dedup();
        let seen_at = |interface| {
            let route = Route::Host(interface);
            let mut lanes = self.traffic.lanes().iter();
            lanes.any(|lane| lane.route == route).then(|| seen(route))
        };
        Trial {
            victim: self.victim,
            api_ms: since(times.answered),
            replaced_ms: since(times.replaced),
            pair: seen(Route::Pair),
            tap: seen_at(Interface::Tap),
            packet: seen_at(Interface::Packet),
            redialled,
            affected: affected.len(),
            damaged: self.traffic.damaged,
        }
    }

    fn seen(&self, route: Route, dropped: u64) -> Seen {
        let mut seen = Seen {
            dropped,
            ..Seen::default()
        };
        for lane in self
            .traffic
            .lanes()
            .iter()
            .filter(|lane| lane.route == route)
        {
            let stream = &lane.stream;
            seen.gap_before_ms = seen.gap_before_ms.max(ms(stream.gap_before()));
            seen.gap_ms = seen.gap_ms.max(ms(stream.gap_around()));
            seen.sent += stream.sent();
            seen.received += stream.received();
            seen.twice += stream.twice();
            seen.left_out += stream.left_out();
        }
        seen
    }

    /// Guests that sent or were sent something that did not arrive.
    fn short(&self) -> Vec<usize> {
        let lanes = self.traffic.lanes().iter();
        let short = lanes.filter(|lane| lane.stream.received() < lane.stream.sent());
        let guests = short.flat_map(|lane| [lane.from, lane.to]);
        let index = |end| match end {
            End::Guest(index) => Some(index),
            End::Host(_) => None,
        };
        guests.filter_map(index).collect()
    }
}

/// Starts an upgrade, whose end is for the caller to see to.
fn begin_upgrade(lasthop: &Lasthop) -> Result<Child> {
    let mut command = lasthop.command(&["upgrade"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.spawn()?)
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

fn is_dead(handle: &OwnedFd) -> Result<bool> {
    let mut fds = [PollFd::new(handle, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Frames that were dropped by name at the ports of a route.
fn drops(stats: &Stats, route: Route) -> u64 {
    let ports = route.ports().into_iter();
    ports
        .flat_map(|port| stats.drops_of(port).into_values())
        .sum()
}
