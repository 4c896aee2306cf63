//! How long frames of a sender with a priority are on their way to an output that others flood.

use anyhow::Result;

use super::outputs::{Output, Sender};
use super::parts::{Part, Run};
use crate::clients::streams::{Guests, Size, Stream};
use crate::peers::Kind;
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

const PUBLISHED: &str = "no figure: the paper serves interfaces in turn";

static SLOW: Part = Part {
    name: "median-500",
    axes: ["floods", "microseconds, median, 500 frames a second"],
    published: PUBLISHED,
};
static SLOW_TAIL: Part = Part {
    name: "p99-500",
    axes: ["floods", "microseconds, 99 of 100, 500 frames a second"],
    published: PUBLISHED,
};
static FAST: Part = Part {
    name: "median-20000",
    axes: ["floods", "microseconds, median, 20 000 frames a second"],
    published: PUBLISHED,
};
static FAST_TAIL: Part = Part {
    name: "p99-20000",
    axes: ["floods", "microseconds, 99 of 100, 20 000 frames a second"],
    published: PUBLISHED,
};
static LOST: Part = Part {
    name: "lost",
    axes: ["floods", "% of the frames with a priority, 20 000 a second"],
    published: PUBLISHED,
};

const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
/// Bits a second of the output.
const RATE: u64 = 1_000_000_000;
const FLOODS: [usize; 4] = [0, 1, 7, 63];
const NOTES: [&str; 2] = [
    "the output is a guest's port with 1 Gbit/s; the frames with a priority have 64 bytes, the \
     floods 1514 (12.1 us at that rate); one thread plays all guests, and looks at the sender with \
     a priority and at the receiver between any two floods",
    "OVS-DPDK has trtcm-policer, with a guarantee of 20 % in place of a priority, which it does \
     not have; the bridge has tc htb with prio",
];

/// See the module.
pub(crate) fn priority(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "priority", &NOTES, &PEERS);
    for kind in PEERS {
        for floods in FLOODS {
            progress(&format!("priority: {floods} floods, {}", kind.name()));
            wait_quiet(plan.patience / 100)?;
            let what = format!("{floods} floods of {}", kind.name());
            run.attempt(&what, |run| beside(run, kind, floods))?;
        }
    }
    Ok(run.report("A sender with a priority beside floods, to an output of 1 Gbit/s"))
}

fn beside(run: &mut Run<'_>, kind: Kind, floods: usize) -> Result<()> {
    let plan = run.plan;
    let first = Sender {
        min: RATE / 5,
        priority: 6,
        ..Sender::default()
    };
    let mut senders = vec![Sender::default(); floods + 1];
    senders[0] = first;
    let output = Output {
        rate: RATE,
        senders,
        others: 0,
        pairs: 1,
    };
    let peer = output.start(kind, plan)?;
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    let (way, x) = (kind.name(), floods as f64);
    for _ in 0..plan.rounds {
        run.take_all([&SLOW, &SLOW_TAIL], way, x, || {
            let [median, tail, _] = latency(plan, &mut guests, floods, 500.0)?;
            Ok([median, tail])
        })?;
        run.take_all([&FAST, &FAST_TAIL, &LOST], way, x, || {
            latency(plan, &mut guests, floods, 20_000.0)
        })?;
    }
    Ok(())
}

/// The median and the 99th percentile of the latency in microseconds, and the percentage lost.
fn latency(plan: &Plan, guests: &mut Guests, floods: usize, pace: f64) -> Result<[f64; 3]> {
    let mut streams: Vec<Stream> = (1..=floods + 1)
        .map(|sender| Stream::flood(sender, 0, &[Size::Bytes(1514)]))
        .collect();
    streams[0].sizes = vec![Size::Bytes(64)];
    streams[0].pace = Some(pace);
    guests.run(&streams, plan.settle)?;
    let carried = guests.run(&streams, plan.window)?.swap_remove(0);
    let microseconds = |share| carried.latency.quantile(share) as f64 / 1e3;
    let missing = carried.sent.saturating_sub(carried.received) + carried.unsent;
    let due = (carried.sent + carried.unsent).max(1);
    let lost = 100.0 * missing as f64 / due as f64;
    Ok([microseconds(0.5), microseconds(0.99), lost])
}
