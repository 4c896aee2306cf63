//! Throughput as Lasthop grows: idle ports, workers. Settings take turns as peers do.

use anyhow::Result;

use super::throughput::{Pair, Run};
use crate::clients::sharing::Sharing;
use crate::clients::{self};
use crate::peers::{Kind, lasthop};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::{Body, Report};
use crate::sample::Cell;
use crate::stop;

const IDLE: [u32; 4] = [0, 16, 64, 256];
const WORKERS: [u32; 2] = [1, 2];
const SIZE: u32 = 64;
const SHARING: &str = "Two pairs of ports with a lean client each. Clients and workers share the \
    two cores, so the \
    figures say what is left beside the guests, not what a worker can do";

/// One pair of ports with traffic, beside connected ports without.
pub(crate) fn ports(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "ports", &[Kind::Lasthop]);
    settings(&mut run, "idle ports", &IDLE, |idle| {
        let peer = lasthop::with_idle(plan, idle)?;
        let client = clients::start(plan, &peer, Layout::Split, Traffic::Lean(1))?;
        let cell = cell(format!("{idle} idle ports"), 2 + idle);
        Ok(Pair { client, peer, cell })
    })?;
    let title = "Throughput of one pair by ports attached, 64-byte frames, lean client";
    Ok(report(run, title, "ports"))
}

/// Two pairs of ports with traffic, one forwarding thread or two.
pub(crate) fn workers(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "workers", &[Kind::Lasthop]);
    settings(&mut run, "workers", &WORKERS, |workers| {
        let peer = lasthop::with_workers(plan, workers)?;
        let client = Box::new(Sharing::new(plan, &peer));
        let cell = cell(format!("workers = {workers}"), workers);
        Ok(Pair { client, peer, cell })
    })?;
    run.note(SHARING);
    let title = "Throughput of two pairs by workers, 64-byte frames, all on two cores";
    Ok(report(run, title, "workers"))
}

/// Starts a pair for each number, and lets them take turns. What does not start is left out.
fn settings(
    run: &mut Run<'_>,
    what: &str,
    numbers: &[u32],
    start: impl Fn(u32) -> Result<Pair>,
) -> Result<()> {
    let mut pairs = Vec::new();
    for &number in numbers {
        progress(&format!("Lasthop starts, {number} {what}"));
        match start(number) {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                stop::check()?;
                run.leave_out(format!("{number} {what}: {error:#}"));
            }
        }
    }
    run.turns(&mut pairs, SIZE)
}

fn cell(name: String, x: u32) -> Cell {
    Cell {
        name,
        series: "split".to_owned(),
        x: f64::from(x),
    }
}

fn report(run: Run<'_>, title: &str, axis: &'static str) -> Report {
    run.report(title, |samples| Body::Scaling { axis, samples })
}
