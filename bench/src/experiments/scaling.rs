//! Throughput as Lasthop grows: idle ports, workers. Settings take turns as peers do.

use anyhow::Result;

use super::throughput::{Pair, Run};
use crate::clients::sharing::Sharing;
use crate::clients::{self};
use crate::peers::{Kind, lasthop};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::{Report, Scaling};
use crate::sample::Cell;
use crate::stop;

const IDLE: [u32; 4] = [0, 16, 64, 256];
const WORKERS: [u32; 4] = [1, 2, 4, 8];
const SIZE: u32 = 64;
const SHARING: &str = "Two pairs of ports with a lean client each. Clients and workers share the \
    two cores, so the \
    figures say what is left beside the guests, not what a worker can do";
const APART: &str = "As many pairs of ports as there are workers in the last row, with a lean \
    client each. Clients and workers have a core each";

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

/// Pairs of ports with traffic, by number of forwarding threads: two pairs on the cores of switch
/// and client, or as many as both have cores for.
pub(crate) fn workers(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "workers", &[Kind::Lasthop]);
    let most = u32::try_from(plan.machine.cores / 2)?;
    let numbers = WORKERS.map(|workers| workers.min(most.max(2)));
    let mut numbers = numbers.to_vec();
    numbers.dedup();
    let pairs = numbers.last().copied().unwrap_or(2);
    // The nearest cores have neighbouring numbers.
    let all: Vec<usize> = (0..plan.machine.cores).collect();
    let apart = plan.machine.cores >= 4;
    let (clients, switch) = if apart {
        all.split_at(all.len() / 2)
    } else {
        (&plan.cores[..], &plan.cores[..])
    };
    settings(&mut run, "workers", &numbers, |workers| {
        let own = if apart {
            &switch[..workers as usize]
        } else {
            switch
        };
        let peer = lasthop::with_workers(plan, (workers, own), pairs)?;
        let client = Box::new(Sharing::on(&peer, clients.to_vec()));
        let cell = cell(format!("workers = {workers}"), workers);
        Ok(Pair { client, peer, cell })
    })?;
    run.note(if apart { APART } else { SHARING });
    let title = format!("Throughput of {pairs} pairs by workers, 64-byte frames");
    Ok(report(run, &title, "workers"))
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
    run.report(title, |samples| Scaling { axis, samples })
}
