//! Cost of access rules: throughput beside that without rules, new flows, and changes. Both
//! switches get the same rules, Open vSwitch by `ovs-ofctl`.
//!
//! The first is the experiment of sNICh: 971 rules like those of ClassBench, of which none ever
//! matches.

mod changes;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use load::lean::Head;

use super::throughput::{Pair, Run};
use crate::clients::new_flows::{NewFlowsClient, Way};
use crate::clients::{self, Client};
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::Report;
use crate::rules::RuleSet;
use crate::sample::Cell;
use crate::stop;

pub(crate) use changes::{Changed, changes};

use tables::{Rules, SetUps};

/// The switches that have rules.
pub(crate) const KINDS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
/// In a cell's series: without rules, and with them.
pub(crate) const SERIES: [&str; 2] = ["no rules", "rules"];
/// Rules of the sNICh experiment, and its frame sizes.
const NEVER: usize = 971;
const SIZES: &[u32] = &[250, 450, 650, 850, 1050];
const SIZES_QUICK: &[u32] = &[250, 1050];
const FLOWS: [u32; 2] = [1, 1024];
/// Rules while flows are set up.
const MANY: usize = 10_000;
/// Bytes of a frame of a new flow.
const NEW_SIZE: u32 = 64;
/// New frames of a sample from each port, and a second of those whose latency is measured.
const NEW: u64 = 20_000;
const NEW_QUICK: u64 = 8_000;
const PACE: u32 = 1000;
/// For the slowest of a hundred to be more than a few.
const LONG_ENOUGH: Duration = Duration::from_secs(1);
/// No protocol above IPv4 has fewer bytes in its header, so that a time fits into a short frame.
const UDP: u8 = 17;

const SAME: &str = "Open vSwitch has the rules in a table before the one that forwards; a range of \
    ports is as many masks as cover it";
const ON_ONE_CORE: &str = "Lasthop's switch and control share the switch's core, as OVS-DPDK's \
    polling thread decides by itself";
const ON_TWO_CORES: &str = "Lasthop's control may use a core besides the switch's; OVS-DPDK's \
    polling thread decides by itself";
const NEAR_THE_RULES: &str = "Frames have addresses and ports near the edges of the rules, which \
    let half of what they match pass, and only \
    frames that pass are sent; each is sent once";
const SLOWEST: &str = "Not every frame is a miss, as a cached flow may be for many: as many of the \
    slowest frames are taken for the misses \
    as the switch counted";

const ALONE: &str = "The machine alone: threads on these cores that sleep hand a token on as \
    often, each time just before; from the \
    client to the switch's core, to control's, back to the switch's, and to the client, which \
    polls. As rare: what as few of these \
    times exceed as there are frames slower than the p99";

/// Throughput without rules and with those that never match.
pub(crate) fn rules(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "rules", &KINDS.map(twice).concat());
    run.note(SAME);
    let set = RuleSet::never_matching(NEVER);
    let kinds = KINDS.map(|kind| run.has_room_for(kind).then_some(kind));
    for flows in FLOWS
        .into_iter()
        .filter(|flows| !plan.is_of_figures() || *flows > 1)
    {
        let mut pairs = Vec::new();
        for kind in kinds.into_iter().flatten() {
            for (series, set) in SERIES.into_iter().zip([None, Some(&set)]) {
                let started = start(plan, kind, &plan.cores[..1], set, |peer| {
                    clients::start(plan, peer, Layout::Split, Traffic::Lean(flows))
                });
                add(&mut run, &mut pairs, kind, series, started)?;
            }
        }
        for &size in if plan.quick { SIZES_QUICK } else { SIZES } {
            for pair in &mut pairs {
                pair.cell.name = format!("{size} B, {flows} flows");
                pair.cell.x = f64::from(size);
            }
            run.turns(&mut pairs, size)?;
        }
    }
    Ok(
        run.report("Throughput with 971 rules that never match", |samples| {
            Rules { samples }
        }),
    )
}

/// Room for two of a kind.
fn twice(kind: Kind) -> [Kind; 2] {
    [kind; 2]
}

/// New flows a second.
pub(crate) fn set_ups(plan: &Plan) -> Result<Report> {
    let count = if plan.quick { NEW_QUICK } else { NEW };
    // Some to prepare with, and at most twice as many samples as required.
    let heads = (2 * u64::from(plan.rounds) + 4) * (count + 1000);
    let set = RuleSet::mixed(MANY);
    let heads = set.heads(usize::try_from(heads)?, None, u16::try_from(NEW_SIZE)?);
    let way = Way::AsManyAsFit(count);
    let run = new_flows(plan, "setups", &plan.cores[..1], &set, &heads, way)?;
    Ok(run.report("New flows with 10 000 rules", |samples| SetUps { samples }))
}

/// Latency of the first frames of flows.
pub(crate) fn first_packets(plan: &Plan) -> Result<Report> {
    let plan = &Plan {
        window: plan.window.max(LONG_ENOUGH),
        ..plan.clone()
    };
    let seconds = (plan.settle + plan.window).as_secs_f64() + 0.5;
    let heads = (2 * plan.rounds + 20) * (seconds * f64::from(PACE)) as u32;
    let set = RuleSet::mixed(MANY);
    let heads = set.heads(heads as usize, Some(UDP), u16::try_from(NEW_SIZE)?);
    // As an operator has it: control is not where the switch polls, if there is room elsewhere.
    let cores: Vec<usize> = plan.cores[..1]
        .iter()
        .copied()
        .chain(plan.spare())
        .collect();
    let mut run = new_flows(plan, "first", &cores, &set, &heads, Way::Paced(PACE))?;
    run.note(SLOWEST);
    run.note(ALONE);
    let title = "Latency of the first frame of a flow, 1000 a second, with 10 000 rules";
    Ok(run.report(title, |samples| SetUps { samples }))
}

fn new_flows<'a>(
    plan: &'a Plan,
    name: &'static str,
    cores: &[usize],
    set: &RuleSet,
    heads: &Arc<[Head]>,
    way: Way,
) -> Result<Run<'a>> {
    let mut run = Run::new(plan, name, &KINDS);
    let where_control_is = match cores {
        [_] => ON_ONE_CORE,
        _ => ON_TWO_CORES,
    };
    for note in [SAME, where_control_is, NEAR_THE_RULES] {
        run.note(note);
    }
    let mut pairs = Vec::new();
    let kinds = KINDS.map(|kind| run.has_room_for(kind).then_some(kind));
    for kind in kinds.into_iter().flatten() {
        let started = start(plan, kind, cores, Some(set), |peer| {
            Ok(Box::new(NewFlowsClient::new(
                plan,
                peer,
                Arc::clone(heads),
                way,
            )))
        });
        add(&mut run, &mut pairs, kind, SERIES[1], started)?;
    }
    for pair in &mut pairs {
        pair.cell.name = format!("{} rules", set.len());
        pair.cell.x = set.len() as f64;
    }
    run.turns(&mut pairs, NEW_SIZE)?;
    Ok(run)
}

/// A switch with its client, both frozen.
fn start(
    plan: &Plan,
    kind: Kind,
    cores: &[usize],
    set: Option<&RuleSet>,
    client: impl FnOnce(&Peer) -> Result<Box<dyn Client>>,
) -> Result<Pair> {
    let name = kind.name();
    progress(&format!(
        "{name} starts with {} rules",
        set.map_or(0, RuleSet::len)
    ));
    let peer = match set {
        Some(set) => Peer::with_rules(kind, plan, cores, set)?,
        None => Peer::start(kind, plan)?,
    };
    let client = client(&peer)?;
    client.freeze()?;
    peer.freeze();
    let cell = Cell::default();
    Ok(Pair { client, peer, cell })
}

/// Takes what could be started; says why something could not.
fn add(
    run: &mut Run<'_>,
    pairs: &mut Vec<Pair>,
    kind: Kind,
    series: &str,
    started: Result<Pair>,
) -> Result<()> {
    match started {
        Ok(mut pair) => {
            series.clone_into(&mut pair.cell.series);
            pairs.push(pair);
        }
        Err(error) => {
            stop::check()?;
            run.leave_out(format!("{}, {series}: {error:#}", kind.name()));
        }
    }
    Ok(())
}
