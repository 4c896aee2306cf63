//! Denied floods by an uplink, and honest traffic beside them: where denied frames end, what the
//! switch pays for them, and how soon it knows them.
//!
//! ```text
//!   sender, honest     a flood by a packet socket; requests with their answers
//!   world, policy      a switch in namespaces; its access lists, and those of its peers
//!   idle, reaction     the experiments beside the flood itself
//! ```

mod honest;
mod idle;
mod policy;
mod reaction;
mod sender;
mod tables;
mod world;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

pub(crate) use self::idle::idle;
pub(crate) use self::reaction::reaction;

use self::honest::Honest;
use self::sender::{Flood, Frames, Kind};
use self::tables::Floods;
use self::world::{FloodWorld, VICTIM, Way};
use crate::hugepages::HugePages;
use crate::peers::Kind as Peers;
use crate::placement::{Placement, round_trip};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

/// Requests are few: a sample is not shorter.
const WINDOW: Duration = Duration::from_millis(1500);
/// From the start of a flood to the sample, for a prefilter and without one.
const SETTLE: [Duration; 2] = [Duration::from_millis(2500), Duration::from_millis(500)];

/// A flood, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Cell {
    kind: Kind,
    /// Bytes of a frame.
    size: usize,
    /// Frames a second; 0 without a flood, `None`: as many as a core sends.
    rate: Option<u32>,
}

impl Cell {
    /// No flood at all.
    const NONE: Self = Self::of(Kind::Fixed, 64, Some(0));

    const fn of(kind: Kind, size: usize, rate: Option<u32>) -> Self {
        Self { kind, size, rate }
    }

    fn name(&self) -> String {
        let Self { kind, size, rate } = self;
        let rate = match rate {
            Some(0) => return "none".to_owned(),
            Some(rate) => format!("{} kpps", rate / 1000),
            None => "all of a core".to_owned(),
        };
        format!("{}, {size} B, {rate}", kind.name())
    }

    /// All of them, or those that say most.
    fn all(quick: bool) -> Vec<Self> {
        let mut cells = vec![Self::NONE];
        if quick {
            let more = [
                (Kind::Fixed, 64, Some(100_000)),
                (Kind::Fixed, 64, Some(300_000)),
                (Kind::Fixed, 64, None),
                (Kind::RandomSource, 64, None),
                (Kind::RandomAll, 64, None),
                (Kind::Fixed, 1500, None),
            ];
            cells.extend(more.map(|(kind, size, rate)| Self::of(kind, size, rate)));
            return cells;
        }
        for kind in Kind::ALL {
            for size in [64, 1500] {
                let rates = [Some(100_000), Some(300_000), None];
                cells.extend(rates.map(|rate| Self::of(kind, size, rate)));
            }
        }
        cells
    }
}

/// One flood through one switch.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    way: Way,
    cell: Cell,
    /// Samples of one round are taken one after the other.
    round: u32,
    /// Of honest requests.
    sent: u64,
    lost: u64,
    p50_us: f64,
    p99_us: f64,
    /// Thousands of frames a second that the flood sent, and that got to the interface.
    sent_kpps: f64,
    arrived_kpps: f64,
    /// Of the latter, the share that ended at the wire, of a switch with a prefilter.
    ended: Option<f64>,
    entries: Option<u64>,
    /// CPU time of all processes of the switch, percent of a core.
    percent: f64,
    trips_ns: [f64; 2],
    /// `None`: it changed meanwhile.
    placement: Option<Placement>,
}

const NOTES: [&str; 9] = [
    "the flood is sent by a packet socket of the namespace behind the uplink's veth pair, with \
     PACKET_QDISC_BYPASS and 64 frames a system call, by a thread on the client's core; receiving \
     is the work of the same core, so the rate that all of a core sends depends on where frames \
     end",
    "honest are 2000 UDP requests a second from that namespace to another guest's by the same \
     uplink, each sent once by a timer, with an answer of the same 64 bytes; lost of all rounds \
     together, p50 and p99 are medians of the rounds, and their quartiles",
    "rules are the complete example of docs/user/access-lists.md for the guest that the flood is \
     for, but for its last rule, which drops without a log and does not reject: frames that a rule \
     logs or rejects have no entry",
    "CPU is that of all processes of the switch together; the kernel's work for received frames is \
     the sender's, and so is all work of the bridge",
    "at the wire: frames that the prefilter counts, of those that got to the uplink's interface",
    "OVS-DPDK has DPDK's driver net_af_xdp at the uplink and packet sockets at the guests, its \
     thread polls on the switch's core, and its rules are OpenFlow flows",
    "the bridge has veth pairs to the guests; its rules are a chain of nftables at netdev ingress \
     of the uplink, or flower filters of tc there",
    "aims, beside a flood of all that a core sends: lost at most 0.1 % (xdp), 0.5 % (socket); p99 \
     at most 3 times (xdp), 5 times (socket) that without a flood; at most 3 % of a core more than \
     without; at the wire at least 99 %, with random ports 98 % and at most 128 entries",
    "all samples count, wherever the cores are; the last column has their number, and that of \
     those with near cores",
];

/// See the module.
pub(crate) fn flood(plan: &Plan) -> Result<Report> {
    let (mut samples, mut notes) = (Vec::new(), Vec::new());
    let mut missing = BTreeMap::new();
    let pages = HugePages::reserve(Peers::Ovs.huge_pages());
    if let Err(error) = &pages {
        notes.push(format!("no huge pages, so no OVS-DPDK: {error:#}"));
    }
    for round in 1..=plan.rounds {
        for way in Way::ALL {
            if way == Way::OvsDpdk && pages.is_err() {
                continue;
            }
            if let Err(error) = one_way(plan, (way, round), &mut samples) {
                stop::check()?;
                let failed = format!("{} was not measured: {error:#}", way.name());
                progress(&failed);
                missing.insert(way.name(), failed);
            }
        }
    }
    notes.extend(missing.into_values());
    notes.extend(NOTES.map(str::to_owned));
    let title = "Denied floods by an uplink, and honest requests beside them";
    Ok(Report::new(plan, "flood", title, notes, Floods { samples }))
}

/// All floods through a switch that is started for them.
fn one_way(plan: &Plan, (way, round): (Way, u32), samples: &mut Vec<Sample>) -> Result<()> {
    wait_quiet(plan.patience / 100)?;
    let world = FloodWorld::start(plan, way)?;
    for cell in Cell::all(plan.quick) {
        let sample = sample(plan, &world, (way, round), cell)?;
        progress(&format!(
            "flood: round {round}, {}, {}: {} of {} lost, p99 {:.0} us, {:.0} % of a core, \
             {:.1} % of {:.0} kpps at the wire",
            way.name(),
            cell.name(),
            sample.lost,
            sample.sent,
            sample.p99_us,
            sample.percent,
            100.0 * sample.ended.unwrap_or_default(),
            sample.arrived_kpps,
        ));
        samples.push(sample);
    }
    Ok(())
}

/// Counters at one time.
#[derive(Debug, Clone, Copy)]
struct Counts {
    at: Instant,
    sent: u64,
    /// Frames of the flood, without those of honest traffic.
    arrived: u64,
    ended: u64,
    entries: u64,
    cpu: f64,
}

fn counts(world: &FloodWorld, way: Way, flood: Option<&Flood>, honest: &Honest) -> Result<Counts> {
    let cpu = world.cpu_seconds();
    let ended = match way.back_end() {
        Some(_) => world.ended()?,
        None => world::Ended::default(),
    };
    Ok(Counts {
        at: Instant::now(),
        sent: flood.map_or(0, Flood::sent),
        arrived: world.arrived()?.saturating_sub(honest.sent()),
        ended: ended.frames,
        entries: ended.entries,
        cpu,
    })
}

fn sample(plan: &Plan, world: &FloodWorld, (way, round): (Way, u32), cell: Cell) -> Result<Sample> {
    let before_ns = round_trip(plan.cores)?;
    let honest = Honest::start(world)?;
    let frames = Frames::Of(cell.kind, cell.size);
    let flood = (cell.rate != Some(0)).then(|| world.flood(plan, VICTIM, frames, cell.rate));
    let flood = flood.transpose()?;
    let has_prefilter = way.back_end().is_some() && flood.is_some();
    stop::sleep(SETTLE[usize::from(!has_prefilter)])?;
    honest.begin();
    let before = counts(world, way, flood.as_ref(), &honest)?;
    stop::sleep(plan.window.max(WINDOW))?;
    let after = counts(world, way, flood.as_ref(), &honest)?;
    let answers = honest.end()?;
    flood.map(Flood::end).transpose()?;
    let trips_ns = [before_ns, round_trip(plan.cores)?];
    let seconds = (after.at - before.at).as_secs_f64();
    let arrived = (after.arrived.saturating_sub(before.arrived)) as f64;
    let share = (after.ended - before.ended) as f64 / arrived.max(1.0);
    let quantile = |share| answers.latency.quantile(share) as f64 / 1e3;
    Ok(Sample {
        way,
        cell,
        round,
        sent: answers.sent,
        lost: answers.lost,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        sent_kpps: (after.sent - before.sent) as f64 / seconds / 1e3,
        arrived_kpps: arrived / seconds / 1e3,
        ended: has_prefilter.then_some(share.min(1.0)),
        entries: has_prefilter.then_some(after.entries),
        percent: 100.0 * (after.cpu - before.cpu) / seconds,
        trips_ns,
        placement: Placement::of_both(trips_ns, plan.near_below),
    })
}
