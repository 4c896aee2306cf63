//! Frames at a given rate through each peer in turn: how long they take, and what that costs the
//! switch.

use anyhow::Result;

use super::throughput::Run;
use crate::peers::Kind;
use crate::plan::{Layout, Plan, Traffic};
use crate::report::{Latencies, Report};

/// Frames a second. At the first ones a switch that sleeps without traffic sleeps between two
/// frames.
const RATES: &[u32] = &[1000, 10_000, 50_000, 100_000, 300_000, 1_000_000];
const SIZE: u32 = 64;

/// CPU use and latency by offered load, one direction.
pub(crate) fn load(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "load", &Kind::ALL);
    for &rate in RATES {
        run.setting(Layout::Split, Traffic::Paced(rate), &[SIZE])?;
    }
    let title = "Latency and CPU use by offered load, 64-byte frames in one direction";
    Ok(run.report(title, |samples| Latencies { samples }))
}
