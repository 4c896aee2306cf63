//! A host full of guests: what a death of the switch and an upgrade cost by their number.
//!
//! Most guests are connected and idle, one pair or ten talk with numbered frames. All are of one
//! thread, which looks at them again and again with short sleeps between. A trial kills the switch,
//! or upgrades everything to itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::lasthop::port_table;
use rustix::process::Signal;
use serde::Serialize;
use testkit::crowd::{Books, Crowd, Talk};
use testkit::process::send;
use testkit::procfs;

use crate::peers::lasthop::{self, Lasthop};
use crate::plan::{Plan, progress};
use crate::report::{Figures, Report};
use crate::sample::wait_quiet;
use crate::stop;
use e2e::statistics::median;
use e2e::table::table;

/// Pairs that talk.
const PAIRS: [usize; 2] = [1, 10];
/// Time between two looks at all guests.
const LOOK: Duration = Duration::from_micros(100);
/// Traffic before a trial.
const WARM_UP: Duration = Duration::from_millis(200);
/// Minimum and maximum time of a trial.
const WATCH: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(30);
/// Time between two deaths: one soon after a start is followed by a pause of its own, and spare
/// processes are started after a second.
const BETWEEN: Duration = Duration::from_millis(1800);
/// Time until what was started has settled.
const SETTLES: Duration = Duration::from_secs(2);
/// Processes with a measured CPU time, the supervisor first.
const PROCESSES: [&str; 3] = ["supervisor", "lasthop-switch", "lasthop-control"];

/// A process is killed, or all are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Event {
    Kill,
    Upgrade,
}

/// One kill or upgrade.
#[derive(Debug, Clone, Copy, Serialize)]
struct Trial {
    /// Longest time without a frame in one direction of a pair, in milliseconds.
    gap_ms: f64,
    /// From the kill until the last idle guest was notified; of an upgrade the time without a
    /// switch, as `lasthop upgrade` prints it. Milliseconds.
    time_ms: f64,
    /// Lines of the log.
    lines: usize,
}

/// All trials of a kind.
#[derive(Debug, Serialize)]
struct Row {
    build: &'static str,
    guests: usize,
    pairs: usize,
    event: Event,
    trials: Vec<Trial>,
    sent: u64,
    lost: u64,
    twice: u64,
    reordered: u64,
}

/// Costs of a number of guests without an event.
#[derive(Debug, Serialize)]
struct Rest {
    build: &'static str,
    guests: usize,
    /// Time until all have connected, one after the other.
    connect_s: f64,
    /// CPU time of [`PROCESSES`], % of a core.
    idle_percent: Vec<f64>,
    /// Private memory of the same, MiB.
    memory_mib: Vec<f64>,
    lines: usize,
}

#[derive(Debug, Default, Serialize)]
struct Dense {
    rest: Vec<Rest>,
    rows: Vec<Row>,
}

impl Figures for Dense {
    fn tables(&self) -> String {
        let head = [
            "build",
            "guests",
            "pairs",
            "event",
            "longest gap, ms",
            "ms until the last idle guest \
             is served, or without a switch",
            "frames",
            "lost",
            "twice",
            "reordered",
            "log lines",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let rest = [
            "build",
            "guests",
            "all connect, s",
            "idle CPU of supervisor, switch, control, %",
            "their private memory, MiB",
            "log lines",
        ];
        let resting: Vec<Vec<String>> = self.rest.iter().map(Rest::cells).collect();
        let texts = |head: &[&str]| {
            head.iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        table(&texts(&head), &rows) + "\n" + &table(&texts(&rest), &resting)
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let of = |value: fn(&Trial) -> f64| {
            let values: Vec<f64> = self.trials.iter().map(value).collect();
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(0.0, f64::max);
            let middle = median(&values).unwrap_or(f64::NAN);
            format!("{middle:.1} ({low:.1} to {high:.1})")
        };
        let event = match self.event {
            Event::Kill => "kill -9 of the switch",
            Event::Upgrade => "upgrade",
        };
        let lines = self.trials.iter().map(|trial| trial.lines).max();
        vec![
            self.build.to_owned(),
            self.guests.to_string(),
            self.pairs.to_string(),
            event.to_owned(),
            of(|trial| trial.gap_ms),
            of(|trial| trial.time_ms),
            self.sent.to_string(),
            self.lost.to_string(),
            self.twice.to_string(),
            self.reordered.to_string(),
            lines.unwrap_or_default().to_string(),
        ]
    }
}

impl Rest {
    fn cells(&self) -> Vec<String> {
        let each = |values: &[f64]| {
            let texts: Vec<_> = values.iter().map(|value| format!("{value:.2}")).collect();
            texts.join(", ")
        };
        vec![
            self.build.to_owned(),
            self.guests.to_string(),
            format!("{:.2}", self.connect_s),
            each(&self.idle_percent),
            each(&self.memory_mib),
            self.lines.to_string(),
        ]
    }
}

/// Returns the numbers of idle guests, where the command line names none.
pub(crate) fn guests(quick: bool) -> Vec<usize> {
    let all = [10, 100, 500, 1000];
    all[..if quick { 2 } else { 4 }].to_vec()
}

/// See the module.
pub(crate) fn dense(plan: &Plan) -> Result<Report> {
    let mut dense = Dense::default();
    let mut notes = vec![
        "guests are plain vhost-user front ends of 16 MiB, all of one thread that sleeps 100 us \
         between two looks; medians, least and most of all trials"
            .to_owned(),
        "the last column but four: after a kill the time until the last idle guest was notified \
         by the successor, of an upgrade what `lasthop upgrade` prints"
            .to_owned(),
    ];
    let builds = [(Some(&plan.bin), "this"), (plan.before.as_ref(), "before")];
    for &guests in &plan.guests {
        for (bin, build) in builds {
            let Some(bin) = bin else { continue };
            if let Err(error) = one_size(plan, bin, (build, guests), &mut dense) {
                stop::check()?;
                notes.push(format!("{build}, {guests} guests: {error:#}"));
            }
        }
    }
    let title = "A host full of guests: deaths of the switch and upgrades by their number";
    Ok(Report::new(plan, "dense", title, notes, dense))
}

fn one_size(
    plan: &Plan,
    bin: &Path,
    (build, guests): (&'static str, usize),
    dense: &mut Dense,
) -> Result<()> {
    wait_quiet(plan.patience / 20)?;
    let plan = Plan {
        bin: bin.to_owned(),
        ..plan.clone()
    };
    let mut host = Host::start(&plan, guests)?;
    let rest = host.rest(&plan, build)?;
    progress(&format!("dense: {build}, {guests} guests: {rest:?}"));
    dense.rest.push(rest);
    for pairs in PAIRS {
        for event in [Event::Kill, Event::Upgrade] {
            let row = host.row(&plan, (build, event), pairs)?;
            progress(&format!("dense: {}", row.cells().join(" | ")));
            dense.rows.push(row);
        }
    }
    host.end()
}

/// A Lasthop with its guests.
struct Host {
    lasthop: Lasthop,
    log: PathBuf,
    crowd: Crowd,
    guests: usize,
    connect: Duration,
    pairs: Vec<Talk>,
}

impl Host {
    fn start(plan: &Plan, guests: usize) -> Result<Self> {
        let talking = 2 * PAIRS[1];
        let mut text = "[switch]\nname = \"bench\"\n".to_owned();
        for port in 0..guests + talking {
            text += &port_table(&format!("p{port}"), "default");
        }
        let lasthop = lasthop::start_with(plan, plan.shared_cores(), &text)?;
        let log = lasthop.folder().with_file_name(lasthop::LOG);
        let socket = |port: usize| lasthop.socket_of(&format!("p{port}"));
        let sockets: Vec<PathBuf> = (talking..talking + guests).map(socket).collect();
        let began = Instant::now();
        let crowd = Crowd::connect(&sockets)?;
        let connect = began.elapsed();
        let pair = |first: usize| {
            let sockets = [socket(first), socket(first + 1)];
            let paths = [sockets[0].as_path(), sockets[1].as_path()];
            Talk::connect(paths, first as u8 + 1, false)
        };
        let pairs = (0..talking).step_by(2).map(pair);
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let mut host = Self {
            lasthop,
            log,
            crowd,
            guests,
            connect,
            pairs,
        };
        host.introduce()?;
        Ok(host)
    }

    /// Lets the pairs talk until the switch knows them.
    fn introduce(&mut self) -> Result<()> {
        let until = Instant::now() + WARM_UP;
        self.steps(PAIRS[1], |_| Ok(Instant::now() < until))?;
        self.settle(PAIRS[1]).map(drop)
    }

    /// Lets so many pairs talk while `goes` says so.
    fn steps(
        &mut self,
        pairs: usize,
        mut goes: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let began = Instant::now();
        while goes(self)? {
            stop::check()?;
            ensure!(began.elapsed() < LIMIT, "not over within {LIMIT:?}");
            for pair in &mut self.pairs[..pairs] {
                pair.step(true)?;
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for the last frames of so many pairs, for a while; returns what became of all.
    fn settle(&mut self, pairs: usize) -> Result<Books> {
        let until = Instant::now() + WATCH;
        let pairs = &mut self.pairs[..pairs];
        while pairs.iter().any(|pair| !pair.is_settled()) && Instant::now() < until {
            pairs.iter_mut().try_for_each(|pair| pair.step(false))?;
            std::thread::sleep(LOOK);
        }
        Ok(pairs
            .iter()
            .map(Talk::books)
            .fold(Books::default(), Books::plus))
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let of = |name: &&str| match *name {
            "supervisor" => Some(self.lasthop.supervisor()),
            name => self.lasthop.program(name),
        };
        let pids = PROCESSES.iter().map(of).collect::<Option<Vec<_>>>();
        pids.context("a process is missing")
    }

    fn lines(&self) -> usize {
        fs::read_to_string(&self.log)
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Measures the guests at rest.
    fn rest(&mut self, plan: &Plan, build: &'static str) -> Result<Rest> {
        stop::sleep(SETTLES)?;
        let pids = self.pids()?;
        let used = || {
            pids.iter()
                .map(|pid| procfs::cpu_seconds(*pid))
                .collect::<Vec<_>>()
        };
        let (began, before) = (Instant::now(), used());
        stop::sleep(plan.idle)?;
        let seconds = began.elapsed().as_secs_f64();
        let percent = |(now, before): (f64, f64)| 100.0 * (now - before) / seconds;
        let mib = |pid: &u32| procfs::private_kib(*pid) as f64 / 1024.0;
        Ok(Rest {
            build,
            guests: self.guests,
            connect_s: self.connect.as_secs_f64(),
            idle_percent: used().into_iter().zip(before).map(percent).collect(),
            memory_mib: pids.iter().map(mib).collect(),
            lines: self.lines(),
        })
    }

    fn row(
        &mut self,
        plan: &Plan,
        (build, event): (&'static str, Event),
        pairs: usize,
    ) -> Result<Row> {
        let before = self.settle(pairs)?;
        let trial = |_| match event {
            Event::Kill => self.kill(pairs),
            Event::Upgrade => self.upgrade(pairs),
        };
        let trials = (0..plan.rounds).map(trial).collect::<Result<Vec<_>>>()?;
        self.crowd.check()?;
        let after = self.settle(pairs)?;
        Ok(Row {
            build,
            guests: self.guests,
            pairs,
            event,
            trials,
            sent: after.sent - before.sent,
            lost: after.lost.saturating_sub(before.lost),
            twice: after.twice - before.twice,
            reordered: after.reordered - before.reordered,
        })
    }

    /// Traffic before a trial, for the time since the last one, too. Returns the lines of the log.
    fn begin(&mut self, pairs: usize) -> Result<usize> {
        stop::sleep(BETWEEN)?;
        let until = Instant::now() + WARM_UP;
        self.steps(pairs, |_| Ok(Instant::now() < until))?;
        self.crowd.forget();
        self.pairs.iter_mut().for_each(Talk::forget_gaps);
        Ok(self.lines())
    }

    /// Returns the longest gap of so many pairs in milliseconds.
    fn gap_ms(&self, pairs: usize) -> f64 {
        let gaps = self.pairs[..pairs].iter().map(Talk::gap);
        ms(gaps.max().unwrap_or_default())
    }

    fn kill(&mut self, pairs: usize) -> Result<Trial> {
        let lines = self.begin(pairs)?;
        let switch = self
            .lasthop
            .program("lasthop-switch")
            .context("no switch")?;
        send(switch, Signal::KILL);
        let killed = Instant::now();
        let sent: Vec<_> = self.pairs[..pairs].iter().map(Talk::sent).collect();
        let mut served = None;
        self.steps(pairs, |host| {
            if served.is_none() && host.crowd.missing() == 0 {
                served = Some(killed.elapsed());
            }
            let mut talks = host.pairs.iter().zip(&sent);
            let is_over = served.is_some() && talks.all(|(pair, sent)| pair.is_past(*sent));
            Ok(!is_over || killed.elapsed() < WATCH)
        })?;
        let gap_ms = self.gap_ms(pairs);
        self.settle(pairs)?;
        Ok(Trial {
            gap_ms,
            time_ms: ms(served.unwrap_or_default()),
            lines: self.lines() - lines,
        })
    }

    fn upgrade(&mut self, pairs: usize) -> Result<Trial> {
        let lines = self.begin(pairs)?;
        let mut command = self.lasthop.command(&["upgrade"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut upgrade = command.spawn()?;
        let mut ended = None;
        self.steps(pairs, |_| {
            if ended.is_none() && upgrade.try_wait()?.is_some() {
                ended = Some(Instant::now());
            }
            Ok(ended.is_none_or(|ended| ended.elapsed() < WATCH))
        })?;
        let gap_ms = self.gap_ms(pairs);
        self.settle(pairs)?;
        Ok(Trial {
            gap_ms,
            time_ms: without_switch(upgrade)?,
            lines: self.lines() - lines,
        })
    }

    fn end(mut self) -> Result<()> {
        self.crowd.check()?;
        drop((self.crowd, self.pairs));
        self.lasthop.end();
        Ok(())
    }
}

/// Reads from an upgrade's output how long there was no switch, in milliseconds.
fn without_switch(upgrade: Child) -> Result<f64> {
    let output = upgrade.wait_with_output()?;
    ensure!(output.status.success(), "the upgrade failed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some((before, _)) = text.split_once(" ms without a switch") else {
        bail!("'lasthop upgrade' prints something else: {text}");
    };
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().with_context(|| text.clone())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
