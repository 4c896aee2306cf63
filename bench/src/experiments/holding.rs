//! The price of holding: a guest has frames for a neighbour, and frames for an output that takes
//! only some. In one queue pair the former wait behind the latter.

use anyhow::Result;

use super::outputs::{Output, Sender};
use super::parts::{Part, Run};
use super::uplink::{Full, Uplink};
use crate::clients::streams::{Guests, Size, Stream};
use crate::peers::Kind;
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

const PUBLISHED: &str = "no figure: the paper does not hold frames";

static ARRIVED: Part = Part {
    name: "local",
    axes: [
        "Mbit/s of the output",
        "% of 20 000 frames a second to the neighbour that arrive",
    ],
    published: PUBLISHED,
};
static LATENCY: Part = Part {
    name: "latency",
    axes: [
        "Mbit/s of the output",
        "microseconds of those that arrive, median",
    ],
    published: PUBLISHED,
};
static HELD: Part = Part {
    name: "output",
    axes: [
        "Mbit/s of the output",
        "% of the output's rate that arrives there",
    ],
    published: PUBLISHED,
};

static UPLINK_ARRIVED: Part = Part {
    name: "uplink-local",
    axes: ["Mbit/s of the wire", ARRIVED.axes[1]],
    published: PUBLISHED,
};
static UPLINK_LATENCY: Part = Part {
    name: "uplink-latency",
    axes: ["Mbit/s of the wire", LATENCY.axes[1]],
    published: PUBLISHED,
};
static UPLINK_HELD: Part = Part {
    name: "uplink-output",
    axes: [
        "Mbit/s of the wire",
        "% of the wire's rate that arrives there",
    ],
    published: PUBLISHED,
};

/// Bits a second.
const RATES: [u64; 3] = [10_000_000, 100_000_000, 1_000_000_000];
/// Frames a second to the neighbour.
const PACE: f64 = 20_000.0;
const NOTES: [&str; 2] = [
    "the guest at port 1 offers 20 000 frames of 64 bytes a second to a \
    neighbour, and as many frames of 1514 bytes as its queue takes to an output with the rate of \
    the row; a frame for the neighbour that finds the queue full counts as one that does not \
    arrive",
    "uplink: the output is an uplink by packet sockets, over a veth pair that tc tbf slows down to \
    the rate of the row, of which the switch knows only that it is full",
];

/// A way to keep the output's frames away from those of the neighbour, or none.
struct Way {
    name: &'static str,
    pairs: u16,
    drops: bool,
}

const WAYS: [Way; 3] = [
    Way {
        name: "one pair, hold",
        pairs: 1,
        drops: false,
    },
    Way {
        name: "two pairs, hold",
        pairs: 2,
        drops: false,
    },
    Way {
        name: "one pair, drop",
        pairs: 1,
        drops: true,
    },
];

const UPLINK_WAYS: [(&str, u16, Full); 3] = [
    ("one pair, hold", 1, Full::Hold),
    ("two pairs, hold", 2, Full::Hold),
    ("one pair, drop", 1, Full::Drop),
];

/// See the module.
pub(crate) fn holding(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "holding", &NOTES, &[]);
    for rate in RATES {
        for way in &WAYS {
            progress(&format!("holding: {rate} bit/s, {}", way.name));
            wait_quiet(plan.patience / 100)?;
            let what = format!("{rate} bit/s, {}", way.name);
            run.attempt(&what, |run| beside(run, rate, way))?;
        }
    }
    for rate in RATES {
        for (name, pairs, full) in UPLINK_WAYS {
            progress(&format!("holding: uplink, {rate} bit/s, {name}"));
            wait_quiet(plan.patience / 100)?;
            let what = format!("an uplink of {rate} bit/s, {name}");
            let uplink = Uplink {
                rate,
                full,
                ports: 2,
                pairs,
            };
            run.attempt(&what, |run| beside_uplink(run, uplink, name))?;
        }
    }
    Ok(run.report("Frames for a neighbour beside held ones of the same guest"))
}

fn beside(run: &mut Run<'_>, rate: u64, way: &Way) -> Result<()> {
    let plan = run.plan;
    let sender = Sender {
        drops: way.drops,
        ..Sender::default()
    };
    let output = Output {
        rate,
        senders: vec![sender],
        others: 1,
        pairs: way.pairs,
    };
    let peer = output.start(Kind::Lasthop, plan)?;
    let mut guests = Guests::attach(&peer, way.pairs, plan.cores[1])?;
    let parts = [&ARRIVED, &LATENCY, &HELD];
    measure(run, parts, &mut guests, (way.name, way.pairs, rate))
}

fn beside_uplink(run: &mut Run<'_>, uplink: Uplink, name: &str) -> Result<()> {
    let mut running = uplink.start(run.plan)?;
    let parts = [&UPLINK_ARRIVED, &UPLINK_LATENCY, &UPLINK_HELD];
    let what = (name, uplink.pairs, uplink.rate);
    measure(run, parts, &mut running.guests, what)
}

fn measure(
    run: &mut Run<'_>,
    parts: [&'static Part; 3],
    guests: &mut Guests,
    (name, pairs, rate): (&str, u16, u64),
) -> Result<()> {
    let plan = run.plan;
    let local = Stream {
        pace: Some(PACE),
        ..Stream::flood(1, 2, &[Size::Bytes(64)])
    };
    let out = Stream {
        pair: usize::from(pairs - 1),
        ..Stream::flood(1, 0, &[Size::Bytes(1514)])
    };
    let streams = [local, out];
    for _ in 0..plan.rounds {
        run.take_all(parts, name, rate as f64 / 1e6, || {
            guests.run(&streams, plan.settle)?;
            let carried = guests.run(&streams, plan.window)?;
            let [local, out] = &carried[..] else {
                anyhow::bail!("two streams")
            };
            let due = (local.sent + local.unsent).max(1) as f64;
            Ok([
                100.0 * local.received as f64 / due,
                local.latency.quantile(0.5) as f64 / 1e3,
                100.0 * out.rate() / rate as f64,
            ])
        })?;
    }
    Ok(())
}
