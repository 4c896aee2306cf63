//! Live migration: a guest of a real QEMU moves from port to port of a learning switch, while a
//! station at another port and the guest exchange pings.
//!
//! ```text
//!   station --- port 0      port 1, port 2, … --- one QEMU after the other, and the guest in one of them
//! ```
//! Each switch gets a guest of its own. It never comes back to a port: OVS keeps flows for ten
//! seconds, and learns nothing from their frames until its revalidator runs, which would be counted
//! against it.

mod moving;
mod tables;

use anyhow::Result;
use e2e::paths::accelerator;
use serde::Serialize;

pub(crate) use self::moving::Moved;
use crate::hugepages::HugePages;
use crate::peers::{Kind, Peer};
use crate::plan::{Layout, Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

/// The switches that have a port to move to.
pub(crate) const KINDS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
/// Switches of each kind with each layout, and moves of the guest of each.
const ROUNDS: u32 = 5;
const ROUNDS_QUICK: u32 = 2;
const MOVES: u32 = 4;

/// One move.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) peer: &'static str,
    /// Of the guest's queues.
    pub(crate) queues: &'static str,
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) moved: Moved,
}

const NOTES: [&str; 4] = [
    "the switch forwards on core 0; both QEMUs (one CPU, 96 MiB, QEMU's default bandwidth and most \
     downtime) and the station are on \
     core 1 and share it. OVS-DPDK has its rule NORMAL, and its other threads run anywhere",
    "the station pings the guest every 2 ms, with 16 to 1415 bytes that it checks in the answer, \
     and the guest pings the station \
     every 10 ms; in the guest only the kernel answers",
    "the outage is from the first of the station's pings that was never answered to the next that \
     was; silence is the longest time \
     in which nothing of the guest came; standstill is the downtime that QEMU reports; lost are \
     frames without an answer, in the outage, \
     and beyond it any others of the station and those of the guest that did not come",
    "a move that fails, or whose guest does not answer afterwards, is named here and in no row",
];

pub(crate) fn migration(plan: &Plan) -> Result<Report> {
    let (mut samples, mut notes) = (Vec::new(), Vec::new());
    let pages = HugePages::reserve(Kind::Ovs.huge_pages());
    if let Err(error) = &pages {
        notes.push(format!("no huge pages, so no OVS-DPDK: {error:#}"));
    }
    let rounds = if plan.quick { ROUNDS_QUICK } else { ROUNDS };
    for round in 1..=rounds {
        for layout in [Layout::Split, Layout::Packed] {
            for kind in KINDS {
                if kind.huge_pages() > 0 && pages.is_err() {
                    continue;
                }
                if let Err(error) = moves(plan, (kind, layout, round), &mut samples) {
                    crate::stop::check()?;
                    let (name, queues) = (kind.name(), layout.name());
                    let failed = format!("{name}, {queues}, round {round}, failed: {error:#}");
                    progress(&failed);
                    notes.push(failed);
                }
            }
        }
    }
    notes.push(format!("the guests run under {}", accelerator()));
    notes.extend(NOTES.map(str::to_owned));
    Ok(Report::new(
        plan,
        "migration",
        "Live migration of a guest from port to port, under traffic both ways",
        notes,
        tables::Moves { samples },
    ))
}

/// All moves of one guest at a switch that is started for it.
fn moves(
    plan: &Plan,
    (kind, layout, round): (Kind, Layout, u32),
    samples: &mut Vec<Sample>,
) -> Result<()> {
    wait_quiet(plan.patience / 100)?;
    let peer = Peer::learning(kind, plan, 2 + MOVES)?;
    moving::go(plan, &peer, layout, |moved| {
        progress(&format!(
            "migration: {}, {}, round {round}: out for {:.0} ms, silent for {:.0} ms, \
             still for {:.0} ms, lost {} and {}",
            kind.name(),
            layout.name(),
            moved.outage_ms,
            moved.silence_ms,
            moved.standstill_ms,
            moved.lost_in_outage,
            moved.lost_beyond,
        ));
        samples.push(Sample {
            peer: kind.name(),
            queues: layout.name(),
            round,
            moved,
        });
    })
}
