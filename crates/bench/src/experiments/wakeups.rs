//! Idle cores that help: what they do for two pairs of ports that share a worker, and what a thread
//! that wants such a core has to wait for it. The worker and the clients have one core; on the
//! other one nothing runs but, every 200 µs for a moment, a thread of ordinary priority that notes
//! how late it woke up (as `cyclictest` does).

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Pid;
use rustix::thread::{
    ClockId, CpuSet, NanosleepRelativeResult, clock_nanosleep_relative, sched_setaffinity,
    set_current_timer_slack,
};
use testkit::lean::SUPER_FRAME_LEN;

use crate::clients::Client as _;
use crate::clients::sharing::Sharing;
use crate::peers::{Peer, lasthop};
use crate::placement::{Placement, round_trip};
use crate::plan::{Plan, progress};
use crate::plot::{Curve, Point};
use crate::procfs::descendants;
use crate::report::{Body, Report, Row};
use crate::sample::wait_quiet;
use crate::statistics::percentile;
use e2e::machine::pin;

/// The last are super-frames.
const SIZES: [u32; 4] = [64, 1500, 9000, SUPER_FRAME];
const SUPER_FRAME: u32 = SUPER_FRAME_LEN as u32;
/// Between two wake-ups.
const PERIOD: Duration = Duration::from_micros(200);
/// Names of curves.
pub(crate) const NO_HELPERS: &str = "Lasthop, no helpers";
pub(crate) const HELPERS: &str = "Lasthop, helpers";
/// The column of the helper's CPU time.
const HELPED_AT: usize = 4;
const NOTE: &str = "Setting 0: no traffic, nothing else runs on the core; 1: two pairs of ports \
    share a worker, no helpers; 2: the \
    same with helpers on the other core, which is where the late wake-ups are counted";

/// One thing that is measured, again and again in turn with the others.
struct Setting {
    number: f64,
    size: u32,
    /// With traffic: Lasthop and its clients.
    traffic: Option<(Sharing, Peer)>,
    wakeups: Vec<f64>,
    mpps: Vec<f64>,
    /// Share of the core that the helper had.
    helped: Vec<f64>,
    trips_ns: [f64; 2],
}

/// See the module.
pub(crate) fn wakeups(plan: &Plan) -> Result<Report> {
    let mut settings = vec![Setting::new(0.0, 0, None)];
    for size in SIZES {
        for (number, offload) in [(1.0, false), (2.0, true)] {
            progress(&format!("Lasthop starts, helpers: {offload}, {size} bytes"));
            let peer = lasthop::with_helpers(plan, offload.then_some(plan.cores[1]))?;
            for pid in family(&peer) {
                keep_workers_on(pid, plan.cores[0])?;
            }
            let mut clients = Sharing::on(&peer, vec![plan.cores[0]; 2]);
            if size == SUPER_FRAME {
                clients = clients.in_bulk();
            }
            clients.set_size(size)?;
            clients.warm_up(plan.settle)?;
            peer.freeze();
            settings.push(Setting::new(number, size, Some((clients, peer))));
        }
    }
    for round in 1..=plan.rounds {
        for setting in &mut settings {
            wait_quiet(plan.patience / 20)?;
            setting.sample(plan)?;
        }
        progress(&format!("wakeups: round {round} of {}", plan.rounds));
    }
    let rows = settings.iter().map(|setting| setting.row(plan)).collect();
    let columns = vec![
        "setting",
        "bytes of a frame",
        "Mpps",
        "GiB/s",
        "helper's CPU, %",
        "wake-up p50, us",
        "p99, us",
        "p99.9, us",
        "max, us",
    ];
    let title = "Helpers on an idle core: throughput of two pairs on one worker, and wake-ups of a \
        thread on that core";
    let notes = vec![NOTE.to_owned()];
    Ok(Report::new(
        plan,
        "wakeups",
        title,
        notes,
        Body::Table { columns, rows },
    ))
}

/// Throughput by frame size, without helpers and with them, of the table at this placement.
pub(crate) fn chart(rows: &[Row], placement: Placement) -> ([String; 2], Vec<Curve>) {
    let curve = |(number, name): (f64, &str)| {
        let here = rows
            .iter()
            .filter(|row| row.values[0] == number && row.placement == placement);
        let points = here.map(|row| Point::from((row.values[1], row.values[3])));
        (name.to_owned(), points.collect::<Vec<_>>())
    };
    let mut curves = vec![curve((1.0, NO_HELPERS))];
    // A machine may deny threads the priority that helpers return from.
    if rows.iter().any(|row| row.values[HELPED_AT] > 0.0) {
        curves.push(curve((2.0, HELPERS)));
    }
    curves.retain(|(_, points)| !points.is_empty());
    (["bytes of a frame", "GiB/s"].map(str::to_owned), curves)
}

fn family(peer: &Peer) -> Vec<u32> {
    let below = peer.pids().into_iter();
    below
        .flat_map(|pid| descendants(pid).into_iter().chain([pid]))
        .collect()
}

impl Setting {
    fn new(number: f64, size: u32, traffic: Option<(Sharing, Peer)>) -> Self {
        Self {
            number,
            size,
            traffic,
            wakeups: Vec::new(),
            mpps: Vec::new(),
            helped: Vec::new(),
            trips_ns: [0.0; 2],
        }
    }

    fn sample(&mut self, plan: &Plan) -> Result<()> {
        self.trips_ns = [round_trip(plan.cores)?; 2];
        let (window, core) = (plan.window, plan.cores[1]);
        let late = std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || late(core, window));
            if let Some((clients, peer)) = &mut self.traffic {
                peer.thaw();
                let before = helper_seconds(peer);
                let mpps = clients.mpps(window);
                let helped = helper_seconds(peer) - before;
                peer.freeze();
                self.mpps.push(mpps?);
                self.helped.push(100.0 * helped / window.as_secs_f64());
            }
            sleeper.join().ok().context("a thread panicked")?
        })?;
        self.wakeups.extend(late);
        Ok(())
    }

    fn row(&self, plan: &Plan) -> Row {
        let part = |values: &[f64], share| percentile(values, share).unwrap_or(0.0);
        let late = |share| part(&self.wakeups, share);
        let mpps = part(&self.mpps, 0.5);
        Row {
            values: vec![
                self.number,
                f64::from(self.size),
                mpps,
                mpps * 1e6 * f64::from(self.size) / f64::from(1 << 30),
                part(&self.helped, 0.5),
                late(0.5),
                late(0.99),
                late(0.999),
                late(1.0),
            ],
            trips_ns: self.trips_ns,
            placement: Placement::of(self.trips_ns[0], plan.near_below),
        }
    }
}

/// Sleeps on `core` again and again, for so long; how late it woke up each time, microseconds.
fn late(core: usize, time: Duration) -> Result<Vec<f64>> {
    pin(core)?;
    set_current_timer_slack(NonZeroU64::new(1))?;
    let mut late = Vec::with_capacity((time.as_micros() / PERIOD.as_micros()) as usize + 1);
    let begin = Instant::now();
    while begin.elapsed() < time {
        let asleep = Instant::now();
        let period = PERIOD.try_into().context("a short time")?;
        match clock_nanosleep_relative(ClockId::Monotonic, &period) {
            NanosleepRelativeResult::Ok => {
                let over = asleep.elapsed().saturating_sub(PERIOD);
                late.push(over.as_secs_f64() * 1e6);
            }
            NanosleepRelativeResult::Interrupted(_) => {}
            NanosleepRelativeResult::Err(error) => return Err(error.into()),
        }
    }
    Ok(late)
}

/// Names and folders of a process's threads.
fn threads(pid: u32) -> Vec<(String, std::path::PathBuf)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            (name.trim().to_owned(), task.path())
        })
        .collect()
}

/// Keeps the workers of a process on a core.
fn keep_workers_on(pid: u32, core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    for (_, task) in threads(pid).iter().filter(|(name, _)| name == "worker") {
        let id = task
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let id = id.and_then(Pid::from_raw).context("a thread's number")?;
        sched_setaffinity(Some(id), &set)?;
    }
    Ok(())
}

/// CPU time of all helpers, in seconds.
fn helper_seconds(peer: &Peer) -> f64 {
    let all = family(peer).into_iter().flat_map(threads);
    let helpers = all.filter(|(name, _)| name.starts_with("helper"));
    helpers.map(|(_, task)| seconds(&task)).sum()
}

fn seconds(task: &Path) -> f64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let nanos = text.split_whitespace().next();
    nanos.and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}
