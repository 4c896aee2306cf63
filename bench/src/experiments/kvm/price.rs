//! What the BPF programs of vCPU states cost the host: nanoseconds for each run, as the kernel
//! counts them.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bpf::{Attribute, Command};
use testkit::kvm::KvmGuestConfig;

use super::{Contender, Scene};
use crate::experiments::parts::{Part, Run};

static PRICE: Part = Part {
    name: "price of a program",
    axes: [
        "1: a context switch, 2: a wake-up, 3: a halt of a vCPU, 4: an entry to a guest",
        "ns for each run, counting included",
    ],
    published: "no figure",
};
static SHARE: Part = Part {
    name: "price of 100 000 events a second",
    axes: [PRICE.axes[0], "percent of a core, counting included"],
    published: "no figure",
};

/// The tracepoints, in the order of the rows. The program at entries, which searches for vCPUs and
/// is disarmed once they are found, is at two others, too.
const TRACEPOINTS: [&str; 4] = [
    "sched_switch",
    "sched_wakeup",
    "kvm_vcpu_wakeup",
    "kvm_entry",
];
/// While it is 1, the kernel counts runs of programs and their time.
const COUNTS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Exchanges with a guest during which the programs run.
const EXCHANGES: usize = 20_000;

/// Has the kernel count, until this is dropped.
struct Counting(String);

impl Counting {
    fn start() -> Result<Self> {
        let before = fs::read_to_string(COUNTS)?;
        fs::write(COUNTS, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // It was written before.
        let _ = fs::write(COUNTS, &self.0);
    }
}

/// Counts the runs of each program while a guest is interrupted and halts.
pub(super) fn price(run: &mut Run<'_>, ours: &Contender) -> Result<()> {
    let plan = run.plan;
    run.attempt("the price of programs", |run| {
        let _counting = Counting::start()?;
        let supervisor = ours.peer.lasthop().context("Lasthop")?.supervisor();
        let programs = programs(supervisor)?;
        for _ in 0..plan.rounds {
            let mut scene = Scene::start(plan, ours, KvmGuestConfig::default())?;
            let before = counts(&programs)?;
            scene.ask(EXCHANGES, Duration::ZERO)?;
            scene.ask(EXCHANGES / 20, Duration::from_micros(400))?;
            let after = counts(&programs)?;
            for (at, (was, is)) in before.into_iter().zip(after).enumerate() {
                let runs = is.0 - was.0;
                if runs > 0 {
                    let ns = (is.1 - was.1) as f64 / runs as f64;
                    run.take(&PRICE, ours.name, (at + 1) as f64, || Ok(ns))?;
                    run.add(&SHARE, ns * 100_000.0 / 1e9 * 100.0);
                }
            }
        }
        Ok(())
    })
}

/// Returns the programs that a process keeps attached, in the order of [`TRACEPOINTS`].
fn programs(process: u32) -> Result<Vec<OwnedFd>> {
    let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo"))?.flatten() {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        if let (Some(name), Some(id)) = (field(&info, "tp_name"), field(&info, "prog_id")) {
            numbers
                .entry(name.to_owned())
                .or_default()
                .push(id.parse()?);
        }
    }
    let of = |name: &str| numbers.get(name).cloned().unwrap_or_default();
    let search = of(TRACEPOINTS[3]);
    let open = |name: &str| {
        // The one of this tracepoint alone.
        let mut all = of(name).into_iter();
        let own = all.find(|id| name == TRACEPOINTS[3] || !search.contains(id));
        let own = own.with_context(|| format!("no program at {name}"))?;
        Ok(Attribute::new(&[own]).make(Command::ProgramById)?)
    };
    TRACEPOINTS.into_iter().map(open).collect()
}

/// Returns a field of a descriptor's information.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(key, _)| *key == name);
    found.map(|(_, value)| value.trim())
}

/// Returns the runs of each program, and their nanoseconds.
fn counts(programs: &[OwnedFd]) -> Result<Vec<(u64, u64)>> {
    let counts = programs.iter().map(|program| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd()))?;
        let number = |name: &str| field(&info, name).and_then(|text| text.parse().ok());
        let counts = number("run_cnt").zip(number("run_time_ns"));
        counts.context("the kernel does not count runs of programs")
    });
    counts.collect()
}
