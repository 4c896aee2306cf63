//! The evaluation of sNICh (figures 5.3 to 5.7 of the thesis): frames of one guest to another, by
//! size, without rules and with 971 that never match, and what a frame costs; two senders where
//! there are cores for them.
//!
//! The thesis has a NIC that switches, the bridge and Open vSwitch of a driver domain. Here the
//! switch has the NIC's core.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use testkit::procfs;

use super::parts::{Part, Run};
use crate::clients::streams::{Carried, Guests, Size, Stream};
use crate::peers::{Kind, Peer};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::rules::RuleSet;
use crate::sample::wait_quiet;

/// Rules of the thesis, and its frame sizes.
const RULES: usize = 971;
const SIZES: [usize; 5] = [250, 450, 650, 850, 1050];
/// The size by which it compares costs.
const COMPARED: usize = 650;
const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
/// Cores without which there is one sender: the switch's, and one for each.
const CORES: usize = 3;

static NONE: Part = Part {
    name: "no-rules",
    axes: ["bytes of a frame", "kpps that arrive, without rules"],
    published: "figure 5.3, without numbers in the text",
};
static FILTERED: Part = Part {
    name: "rules",
    axes: [
        "bytes of a frame",
        "kpps that arrive, with 971 rules that never match",
    ],
    published: "figure 5.5: the Linux bridge loses up to 29 % by the rules, the others nothing",
};
static COST: Part = Part {
    name: "cost",
    axes: [
        "bytes of a frame",
        "ns of CPU time a frame, all processes, without rules",
    ],
    published: "figure 5.4 has cycles of the driver domain; of the bridge's 88 % are for moving \
                packets to and from it",
};
static FILTERED_COST: Part = Part {
    name: "rules-cost",
    axes: [
        "bytes of a frame",
        "ns of CPU time a frame, all processes, with 971 rules",
    ],
    published: "figure 5.6 has cycles of the driver domain; of the bridge's 75 % are for filtering",
};
static PROCESSES: Part = Part {
    name: "processes",
    axes: [
        "1: forwarding process, 2: other processes of the switch, 3: client",
        "ns of CPU time a frame of 650 B",
    ],
    published: "no figure",
};
static SENDERS: Part = Part {
    name: "two-senders",
    axes: [
        "bytes of a frame",
        "kpps that arrive, with 971 rules that never match",
    ],
    published: "figure 5.7: sNICh nearly doubles, the others do not scale",
};

const NOTES: [&str; 4] = [
    "one thread plays both guests, and sends from one to the other alone, as much as the queues \
     take: it is the limit where the switch is not, as the sender is in the thesis. lasthop-bench \
     lean and rules have a client that leaves the limit to the switch",
    "Lasthop and OVS-DPDK have vhost-user ports and a core; the bridge has TAP ports and works in \
     the client's system calls, so that its cost is the client's",
    "rules are those of the experiment rules: Lasthop's access list, OpenFlow flows in a table \
     before the one that forwards, a chain of nftables' bridge family at its hook forward",
    "OVS-DPDK polls: its CPU time is that of its core, whatever it does",
];

/// See the module.
pub(crate) fn snich(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "snich", &NOTES, &PEERS);
    let set = RuleSet::never_matching(RULES);
    let has_cores = plan.spare().is_some() && plan.machine.cores >= CORES;
    if !has_cores {
        run.note("two senders: not measured here: they need three cores, the switch's and two");
    }
    for _ in 0..plan.rounds {
        for kind in PEERS {
            for rules in [None, Some(&set)] {
                let with = rules.map_or("no rules", |_| "rules");
                let what = format!("{}, {with}", kind.name());
                progress(&format!("snich: {what}"));
                wait_quiet(plan.patience / 100)?;
                run.attempt(&what, |run| one_sender(run, kind, rules))?;
            }
            if has_cores {
                let what = format!("{}, two senders", kind.name());
                run.attempt(&what, |run| two_senders(run, kind, &set))?;
            }
        }
    }
    for (part, kind) in PEERS.into_iter().flat_map(|kind| {
        let parts = [(&NONE, &FILTERED), (&COST, &FILTERED_COST)];
        parts.map(|part| (part, kind))
    }) {
        compare(&mut run, part, kind);
    }
    Ok(run.report("One sender by frame size, without rules and with 971 that never match"))
}

/// Notes what the rules change for frames of the size that the thesis compares.
fn compare(run: &mut Run<'_>, (none, rules): (&Part, &Part), kind: Kind) {
    let of = |part| run.median(part, COMPARED as f64, kind.name());
    if let Some(((without, _), (with, _))) = of(none).zip(of(rules))
        && without > 0.0
    {
        run.note(&format!(
            "{}, {COMPARED} B, {}: with rules {:.2}x of that without",
            kind.name(),
            none.axes[1],
            with / without
        ));
    }
}

/// CPU time in seconds, by who uses it.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    forwarding: f64,
    others: f64,
    client: f64,
}

impl Cpu {
    fn now(peer: &Peer) -> Self {
        let pids = peer.pids();
        let all: f64 = pids.iter().copied().map(procfs::family_seconds).sum();
        let forwarding = match peer.kind() {
            Kind::Lasthop => {
                let below = pids.iter().flat_map(|pid| procfs::programs_below(*pid));
                let switches = below.filter(|(_, name)| name == "lasthop-switch");
                switches.map(|(pid, _)| procfs::cpu_seconds(pid)).sum()
            }
            _ => pids.first().map_or(0.0, |pid| procfs::family_seconds(*pid)),
        };
        Self {
            forwarding,
            others: (all - forwarding).max(0.0),
            client: own_seconds(),
        }
    }

    /// Nanoseconds of each since then, for each of so many frames.
    fn since(self, before: Self, frames: u64) -> [f64; 3] {
        let of = |now: f64, before: f64| (now - before).max(0.0) * 1e9 / frames.max(1) as f64;
        [
            of(self.forwarding, before.forwarding),
            of(self.others, before.others),
            of(self.client, before.client),
        ]
    }
}

/// CPU time of this process in seconds, of threads that have ended too.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).map_or(0.0, |time| time.as_secs_f64())
}

fn one_sender(run: &mut Run<'_>, kind: Kind, rules: Option<&RuleSet>) -> Result<()> {
    let plan = run.plan;
    let peer = match rules {
        Some(rules) => Peer::with_rules(kind, plan, &plan.cores[..1], rules)?,
        None => Peer::start(kind, plan)?,
    };
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    let (rate, cost) = match rules {
        Some(_) => (&FILTERED, &FILTERED_COST),
        None => (&NONE, &COST),
    };
    for size in SIZES {
        let x = size as f64;
        let streams = [Stream::flood(1, 0, &[Size::Bytes(size)])];
        let mut costs = [0.0; 3];
        run.take_all([rate, cost], kind.name(), x, || {
            guests.run(&streams, plan.settle)?;
            let before = Cpu::now(&peer);
            let carried = guests.run(&streams, plan.window)?.swap_remove(0);
            costs = Cpu::now(&peer).since(before, carried.received);
            Ok([kpps(&carried), costs.iter().sum()])
        })?;
        if rules.is_some() {
            // The samples of both parts were added, the rate first.
            let last = run.last_of(&FILTERED).context("a sample")?;
            let way = format!("{}, one sender", kind.name());
            run.add_way(&SENDERS, &way, last);
        }
        if size == COMPARED {
            let with = rules.map_or("no rules", |_| "rules");
            for (cost, place) in costs.into_iter().zip([1.0, 2.0, 3.0]) {
                let way = format!("{}, {with}", kind.name());
                run.add_way_at(&PROCESSES, &way, place, cost);
            }
        }
    }
    Ok(())
}

fn kpps(carried: &Carried) -> f64 {
    carried.received as f64 / carried.seconds.max(1e-9) / 1e3
}

/// Each sender has a receiver of its own, and a core for both.
fn two_senders(run: &mut Run<'_>, kind: Kind, rules: &RuleSet) -> Result<()> {
    let plan = run.plan;
    let peer = Peer::filtering(kind, plan, &plan.cores[..1], rules, 4)?;
    let cores = [plan.cores[1], plan.spare().context("a third core")?];
    let ports: [Range<usize>; 2] = [0..2, 2..4];
    let pairs = ports.into_iter().zip(cores);
    let pairs: Result<Vec<Guests>> = pairs
        .map(|(ports, core)| Guests::attach_some(&peer, 1, core, ports))
        .collect();
    let mut pairs = pairs?;
    let way = format!("{}, two senders", kind.name());
    for size in SIZES {
        let streams = [Stream::flood(1, 0, &[Size::Bytes(size)])];
        run.take(&SENDERS, &way, size as f64, || {
            at_once(&mut pairs, &streams, plan.settle)?;
            let carried = at_once(&mut pairs, &streams, plan.window)?;
            Ok(carried.iter().map(kpps).sum())
        })?;
    }
    Ok(())
}

/// The same streams of each pair, all at the same time.
fn at_once(pairs: &mut [Guests], streams: &[Stream], time: Duration) -> Result<Vec<Carried>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter_mut()
            .map(|pair| scope.spawn(move || pair.run(streams, time)))
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().ok().context("a thread panicked")??);
        }
        Ok(all)
    })
}
