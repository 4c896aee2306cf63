//! Requests of guests, namespaces, programs on netmap ports and user ports: without other load, and
//! beside one busy thread on each core. The other way round it is what those threads lose: their
//! counts beside those that they have while nothing else wants the cores.

use anyhow::Result;

use super::external::{Load, Namespaces, Way};
use super::parts::{Bound, Part, Run};
use super::{netmap, pingpong, user};
use crate::busy::{self, BusyThreads};
use crate::plan::{BEFORE, OURS, Plan};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

/// The rows: their numbers are places.
const ROWS: &str = "1: guests, worker on a core of its own, 2: guests, worker on their core, \
    3: TAP to TAP, 4: the same 1000 a second, 5: 5000 a second, 6: 20 000 a second, \
    7: netmap ports, 8: user port";

const fn part(name: &'static str, unit: &'static str) -> Part {
    Part {
        name,
        axes: [ROWS, unit],
        published: "no figure",
    }
}

/// Half of the requests, 99 of 100, and sleeps of all threads.
static ALONE: [Part; 3] = [
    part("p50 without other load", "us"),
    part("p99 without other load", "us"),
    part(
        "wake-ups without other load",
        "wake-ups a request, all threads",
    ),
];
static BESIDE: [Part; 3] = [
    part("p50 beside a busy thread a core", "us"),
    part("p99 beside a busy thread a core", "us"),
    part(
        "wake-ups beside a busy thread a core",
        "wake-ups a request, all threads",
    ),
];
static LOST: Part = part(
    "loss of busy threads",
    "percent of what they count without a switch",
);

/// Requests of a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSample {
    pub(crate) a_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Sleeps of all threads for each.
    pub(crate) wake_ups: f64,
}

impl RequestSample {
    fn values(self) -> [f64; 3] {
        [self.p50_us, self.p99_us, self.wake_ups]
    }
}

/// Two ends of a switch that is running.
pub(crate) trait Requests {
    /// Has requests sent and answered for the time of a sample.
    ///
    /// # Errors
    /// None was answered.
    fn ask(&mut self) -> Result<RequestSample>;
}

/// A row.
#[derive(Debug, Clone, Copy)]
enum Row {
    /// The worker has the switch's core.
    Guests,
    /// The worker has the guests' core.
    GuestsOneCore,
    Tap(Load),
    Netmap,
    User,
}

impl Row {
    /// In the order of their numbers.
    const ALL: [Self; 8] = [
        Self::Guests,
        Self::GuestsOneCore,
        Self::Tap(Load::UdpRequests),
        Self::Tap(Load::PacedRequests(1000)),
        Self::Tap(Load::PacedRequests(5000)),
        Self::Tap(Load::PacedRequests(20_000)),
        Self::Netmap,
        Self::User,
    ];

    /// Starts a switch of this build, which has a name, and both ends.
    fn start(self, name: &str, build: &Plan) -> Result<Box<dyn Requests>> {
        Ok(match self {
            Self::Guests => Box::new(pingpong::Sleeping::start(build, &build.cores[..1])?),
            Self::GuestsOneCore => Box::new(pingpong::Sleeping::start(build, &build.cores[1..])?),
            Self::Tap(load) => {
                let way = Way::of_build(name);
                Box::new(Namespaces::start(build, way, load)?)
            }
            Self::Netmap => Box::new(netmap::Pings::start(build)?),
            Self::User => Box::new(user::Asking::start(build, user::Kind::Lasthop)?),
        })
    }

    /// The switch that it is beside.
    fn peer(self) -> Option<&'static str> {
        match self {
            Self::Tap(_) => Some("OVS"),
            Self::User => Some(user::Kind::Passt.name()),
            _ => None,
        }
    }

    /// Starts that one, or ours.
    fn start_peer(self, plan: &Plan) -> Result<Box<dyn Requests>> {
        Ok(match self {
            Self::Tap(load) => Box::new(Namespaces::start(plan, Way::OvsTap, load)?),
            Self::User => Box::new(user::Asking::start(plan, user::Kind::Passt)?),
            _ => self.start(OURS, plan)?,
        })
    }
}

const NOTES: [&str; 4] = [
    "guests are two threads that sleep, on the client's core, and the worker is on the switch's or \
     on theirs; everything else has the cores of switch and client together, but for the programs \
     on netmap ports, which are on the client's, with the switch on its own",
    "requests are of 64 bytes (netmap: 60) and one at a time, those at a rate are sent by a timer",
    "busy threads belong to the bench's process and have its priority; what they lose is lost to \
     the switch, to both ends and to the kernel's work for them; where others want the cores, too, \
     the bench's processes get more of them while they wake each other, so that the loss is \
     negative and says nothing",
    "OVS is its userspace datapath without DPDK",
];

/// See the module.
pub(crate) fn busy(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "busy", &NOTES, &[]);
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for (row, x) in Row::ALL.into_iter().zip(1_u32..) {
            for (name, build) in plan.builds() {
                take(&mut run, (name, x), || row.start(name, &build))?;
            }
            if let Some(name) = row.peer() {
                take(&mut run, (name, x), || row.start_peer(plan))?;
            }
        }
    }
    if plan.before.is_some() {
        (1..=Row::ALL.len()).for_each(|x| aims(&mut run, x as f64));
    }
    Ok(run.report("Requests beside busy threads, and what those lose"))
}

/// One switch with one kind of requests.
fn take(
    run: &mut Run<'_>,
    (name, x): (&str, u32),
    start: impl FnOnce() -> Result<Box<dyn Requests>>,
) -> Result<()> {
    let plan = run.plan;
    let cores: Vec<usize> = (0..plan.machine.cores).collect();
    run.attempt(&format!("row {x}, {name}"), |run| {
        let alone = busy::alone(&cores, (plan.settle, plan.window))?;
        let mut ends = start()?;
        run.take_all(ALONE.each_ref(), name, x.into(), || {
            Ok(ends.ask()?.values())
        })?;
        let mut beside = 0.0;
        run.take_all(BESIDE.each_ref(), name, x.into(), || {
            let busy = BusyThreads::on(&cores)?;
            stop::sleep(plan.settle)?;
            let (asked, rate) = busy::rate(&busy, || ends.ask())?;
            beside = rate;
            Ok(asked.values())
        })?;
        run.add(&LOST, 100.0 * (1.0 - beside / alone));
        Ok(())
    })
}

/// Our medians are beside those of the other build.
fn aims(run: &mut Run<'_>, x: f64) {
    for part in [&ALONE[0], &BESIDE[0]] {
        let ratio = run.ratio(part, x, [OURS, BEFORE]);
        let what = format!("row {x}, {}: {OURS} to {BEFORE}", part.name);
        run.aim(&what, ratio, Bound::AtMost(1.0), "x");
    }
    let [ours, before] = [OURS, BEFORE].map(|name| run.median(&LOST, x, name));
    let more = ours
        .zip(before)
        .map(|((ours, place), (before, _))| (ours - before, place));
    let what = format!("row {x}, more loss of busy threads than {BEFORE}");
    run.aim(&what, more, Bound::AtMost(2.0), " points");
}
