//! The time that INVALIDATE and a question of the switch (MISS) take while frames flow.

use anyhow::{Context as _, Result, ensure};
use load::lean::Histogram;

use super::{Method, NO_IOMMU, ON_DEMAND, QUEUE, RATE, SMALL_PAGES};
use crate::clients::blocking::Blocking;
use crate::clients::grants::{Behind, GrantsClient, Mapped};
use crate::experiments::parts::{Part, Run};
use crate::peers::{Peer, lasthop};
use crate::plan::Layout;

const RECEIVERS: &str = "1: one receiver, 2: three others that take no frames, 3: three others \
                         whose call descriptors block";

static WAIT: Part = Part {
    name: "wait",
    axes: [
        RECEIVERS,
        "microseconds that INVALIDATE waited in the switch under load",
    ],
    published: "no figure",
};
static ANSWER: Part = Part {
    name: "answer",
    axes: [
        RECEIVERS,
        "microseconds from a message to its answer under load",
    ],
    published: "no figure",
};
static LOAD: Part = Part {
    name: "load",
    axes: [RECEIVERS, RATE],
    published: "no figure",
};
static BLOCKED: Part = Part {
    name: "blocked",
    axes: [
        RECEIVERS,
        "writes to call descriptors that blocked meanwhile",
    ],
    published: "no figure",
};
static MISS: Part = Part {
    name: "miss",
    axes: [
        "1: no IOMMU, 2: the page is mapped, 3: the switch asks for it, 4: of 3, from the question",
        "microseconds from offering a frame to its arrival",
    ],
    published: "no figure",
};

/// Other receivers.
const OTHERS: u32 = 3;

/// See the module.
pub(super) fn all(run: &mut Run<'_>, lasthop: &Peer) -> Result<()> {
    run.attempt("INVALIDATE under load", |run| {
        let peer = lasthop::with_ports(run.plan, 2)?;
        under_load(run, 1, &peer)
    })?;
    run.attempt("INVALIDATE beside receivers that take no frames", |run| {
        let peer = lasthop::with_idle(run.plan, OTHERS)?;
        under_load(run, 2, &peer)
    })?;
    run.attempt("INVALIDATE beside receivers that block", |run| {
        let peer = lasthop::with_ports(run.plan, 2 + OTHERS)?;
        under_load(run, 3, &peer)
    })?;
    run.attempt(MISS.name, |run| misses(run, lasthop))
}

/// Without messages and with them in turn, at a switch that no message has waited for yet.
fn under_load(run: &mut Run<'_>, row: u32, peer: &Peer) -> Result<()> {
    let plan = run.plan;
    let (_, mode, batch) = SMALL_PAGES;
    let mapped = Mapped {
        behind: Behind::Both,
        mode,
        batch,
        to_all: row > 1,
    };
    let mut client = GrantsClient::connect(plan, peer, (64, QUEUE, Layout::Split), mapped)?;
    client.run(plan.settle)?;
    let x = f64::from(row);
    run.take(&LOAD, "without messages", x, || {
        Ok(client.run(plan.window)?.0)
    })?;
    client.probe(true)?;
    // Not before: the port of a guest that blocks pauses longer and longer.
    let blocking = Blocking::start(&peer.sockets()[2..]);
    run.take(&LOAD, "with messages", x, || Ok(client.run(plan.window)?.0))?;
    let blocked = blocking.ended() as f64;
    let probed = client.probe(false)?.context("no messages")?;
    ensure!(probed.invalidate.count() > 0, "no answer");
    let waits = lasthop::invalidate_waits(peer)?;
    let bound = waits
        .p99_wait_us
        .context("INVALIDATE waited above a second")?;
    let figures = [
        (&WAIT, "mean", waits.mean_wait_us as f64),
        (&WAIT, "99 %, at most", bound as f64),
        (&ANSWER, "GET_QUEUE_NUM, median", us(&probed.question, 0.5)),
        (&ANSWER, "GET_QUEUE_NUM, 99 %", us(&probed.question, 0.99)),
        (&ANSWER, "INVALIDATE, median", us(&probed.invalidate, 0.5)),
        (&ANSWER, "INVALIDATE, 99 %", us(&probed.invalidate, 0.99)),
        (&BLOCKED, "Lasthop", blocked),
    ];
    for (part, way, figure) in figures {
        run.take(part, way, x, || Ok(figure))?;
    }
    drop(blocking);
    Ok(())
}

/// Microseconds that a share of all times do not exceed.
fn us(times: &Histogram, share: f64) -> f64 {
    times.quantile(share) as f64 / 1e3
}

/// One frame at a time.
fn misses(run: &mut Run<'_>, peer: &Peer) -> Result<()> {
    for (x, method) in [(1.0, NO_IOMMU), (2.0, SMALL_PAGES), (3.0, ON_DEMAND)] {
        let report = singly(run, peer, method)?;
        let mut take = |x, times: &Histogram| {
            run.take(&MISS, "median", x, || Ok(us(times, 0.5)))?;
            run.take(&MISS, "99 %", x, || Ok(us(times, 0.99)))
        };
        take(x, &report.frame)?;
        if report.question.count() > 0 {
            take(x + 1.0, &report.question)?;
        }
    }
    Ok(())
}

fn singly(run: &Run<'_>, peer: &Peer, (_, mode, _): Method) -> Result<load::lean::SinglyReport> {
    let plan = run.plan;
    let mapped = Mapped {
        behind: Behind::Sender,
        mode,
        batch: 1,
        to_all: false,
    };
    let mut client = GrantsClient::connect(plan, peer, (64, QUEUE, Layout::Split), mapped)?;
    client.singly(plan.settle)?;
    client.singly(plan.window)
}
