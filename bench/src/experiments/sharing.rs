//! Senders that share an output: how equally, by weight, beside a guarantee, and how much of the
//! output they use, by their number.

use std::time::Duration;

use anyhow::Result;

use super::outputs::{Output, Sender};
use super::parts::{Part, Run};
use super::uplink::{Full, Uplink};
use crate::clients::streams::{Carried, Guests, Size, Stream};
use crate::peers::{Kind, Peer};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

const PUBLISHED: &str = "no figure: fairness between interfaces is beyond the paper's scope";

static EQUAL: Part = Part {
    name: "equal",
    axes: ["senders", "Jain's index of their rates, 1 is equal"],
    published: PUBLISHED,
};
static USED: Part = Part {
    name: "used",
    axes: ["senders", "% of the output's rate"],
    published: PUBLISHED,
};
static WEIGHTS: Part = Part {
    name: "weights",
    axes: [
        "senders",
        "% by which a share differs from weights 1, 2, 4 at most",
    ],
    published: PUBLISHED,
};
static GUARANTEE: Part = Part {
    name: "guarantee",
    axes: [
        "floods beside it",
        "part of a guarantee of 20 % that is got",
    ],
    published: PUBLISHED,
};
static UPLINK_EQUAL: Part = Part {
    name: "uplink-equal",
    axes: EQUAL.axes,
    published: PUBLISHED,
};
static UPLINK_USED: Part = Part {
    name: "uplink-used",
    axes: ["senders", "% of the wire's rate"],
    published: PUBLISHED,
};
static UPLINK_LOST: Part = Part {
    name: "uplink-lost",
    axes: ["senders", "% of their frames that do not arrive"],
    published: PUBLISHED,
};
static UPLINK_PACED_LOST: Part = Part {
    name: "uplink-paced-lost",
    axes: ["floods", "% of 500 frames a second that do not arrive"],
    published: PUBLISHED,
};
static UPLINK_PACED_P50: Part = Part {
    name: "uplink-paced-median",
    axes: ["floods", "microseconds of those that arrive, median"],
    published: PUBLISHED,
};
static UPLINK_PACED_P99: Part = Part {
    name: "uplink-paced-p99",
    axes: ["floods", "microseconds of those that arrive, 99 of 100"],
    published: PUBLISHED,
};

const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
const SENDERS: [usize; 3] = [2, 8, 64];
const WEIGHTED: [usize; 2] = [3, 48];
const FLOODS: [usize; 2] = [7, 63];
/// Frames for all peers, and bits a second of the output for which one thread carries them.
const PLAIN: &[Size] = &[Size::Bytes(64), Size::Bytes(1514)];
const PLAIN_RATE: u64 = 200_000_000;
/// With super-frames: of them, too, a share is many.
const LONG: &[Size] = &[Size::Bytes(1514), Size::Super];
const LONG_RATE: u64 = 2_000_000_000;
/// Bits a second of a wire behind an uplink, for the same: two drivers share the switch's core.
const WIRE_RATES: [(&[Size], u64, &str); 2] = [
    (PLAIN, 50_000_000, ""),
    (LONG, 1_000_000_000, ", with super-frames"),
];
/// Frames a second of a sender with little to send.
const PACE: f64 = 500.0;
/// A share of few frames says little.
const WINDOW: Duration = Duration::from_secs(1);
const NOTES: [&str; 4] = [
    "the output is a guest's port with 200 Mbit/s for frames of 64 and of 1514 bytes, with 2 \
     Gbit/s for frames of 1514 bytes and super-frames of 64 KiB; each sender has frames of one \
     size, its neighbours others, as many as its queue takes; one thread plays all guests",
    "OVS-DPDK has trtcm-policer with a queue for each sender (cir: the guarantee, eir: the rest of \
     the output's rate), which knows no weights; the bridge has tc htb (rate: the guarantee or the \
     share by weight, ceil: the output's rate)",
    "with Lasthop senders wait in their own queues and nothing is lost; the policer and the \
     kernel's queues drop what is too much",
    "uplink: the output is an uplink of Lasthop by packet sockets, over a veth pair that tc tbf \
     slows down to 50 Mbit/s, and with super-frames to 1 Gbit/s; the switch takes it for one of 10 \
     Gbit/s, and knows only that it is full; what is lost of a sender that waits are the frames in \
     its queue when a sample ends; beside the floods, another sender has 500 frames of 64 bytes a \
     second",
];

/// See the module.
pub(crate) fn sharing(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "sharing", &NOTES, &PEERS);
    for kind in PEERS {
        for senders in SENDERS {
            attempt(&mut run, kind, "equal", senders, equal)?;
        }
        if kind != Kind::Ovs {
            for senders in WEIGHTED {
                attempt(&mut run, kind, "weighted", senders, weighted)?;
            }
        }
        for floods in FLOODS {
            attempt(&mut run, kind, "guaranteed", floods, guarantee)?;
        }
    }
    for full in Full::ALL {
        for senders in SENDERS {
            let name = full.name();
            progress(&format!("sharing: uplink, {senders}, {name}"));
            wait_quiet(run.plan.patience / 100)?;
            let what = format!("an uplink with {senders} senders, {name}");
            run.attempt(&what, |run| at_uplink(run, full, senders))?;
        }
    }
    Ok(run.report("Senders that share an output"))
}

fn attempt(
    run: &mut Run<'_>,
    kind: Kind,
    what: &str,
    number: usize,
    measure: fn(&mut Run<'_>, Kind, usize) -> Result<()>,
) -> Result<()> {
    progress(&format!("sharing: {what}, {number}, {}", kind.name()));
    wait_quiet(run.plan.patience / 100)?;
    let what = format!("{what} with {number} senders of {}", kind.name());
    run.attempt(&what, |run| measure(run, kind, number))
}

/// The frames that a peer is measured with, the rate of the output, and the name of its row.
fn mixes(kind: Kind) -> Vec<(&'static [Size], u64, String)> {
    let name = kind.name();
    let mut mixes = vec![(PLAIN, PLAIN_RATE, name.to_owned())];
    if kind == Kind::Lasthop {
        mixes.push((LONG, LONG_RATE, format!("{name}, with super-frames")));
    }
    mixes
}

fn floods(senders: usize, sizes: &[Size]) -> Vec<Stream> {
    let mixed = sizes.iter().cycle();
    (1..=senders)
        .zip(mixed)
        .map(|(sender, &size)| Stream::flood(sender, 0, &[size]))
        .collect()
}

/// Starts a peer with these senders to an output, with a guest at each port.
fn start(plan: &Plan, kind: Kind, rate: u64, senders: Vec<Sender>) -> Result<(Peer, Guests)> {
    let output = Output {
        rate,
        senders,
        others: 0,
        pairs: 1,
    };
    let peer = output.start(kind, plan)?;
    let guests = Guests::attach(&peer, 1, plan.cores[1])?;
    Ok((peer, guests))
}

/// Runs all senders, after some time without a measurement; their rates.
fn carry(plan: &Plan, guests: &mut Guests, streams: &[Stream]) -> Result<Vec<f64>> {
    guests.run(streams, plan.settle)?;
    let carried = guests.run(streams, plan.window.max(WINDOW))?;
    Ok(carried.iter().map(Carried::rate).collect())
}

fn equal(run: &mut Run<'_>, kind: Kind, senders: usize) -> Result<()> {
    let plan = run.plan;
    for (sizes, rate, way) in mixes(kind) {
        let (_peer, mut guests) = start(plan, kind, rate, vec![Sender::default(); senders])?;
        let streams = floods(senders, sizes);
        for _ in 0..plan.rounds {
            run.take_all([&EQUAL, &USED], &way, senders as f64, || {
                let rates = carry(plan, &mut guests, &streams)?;
                let used = 100.0 * rates.iter().sum::<f64>() / rate as f64;
                Ok([jain(&rates), used])
            })?;
        }
    }
    Ok(())
}

fn weighted(run: &mut Run<'_>, kind: Kind, senders: usize) -> Result<()> {
    let plan = run.plan;
    let weights: Vec<u32> = [100, 200, 400].into_iter().cycle().take(senders).collect();
    let weighted = weights.iter().map(|&weight| Sender {
        weight,
        ..Sender::default()
    });
    let weighted: Vec<Sender> = weighted.collect();
    for (sizes, rate, way) in mixes(kind) {
        let (_peer, mut guests) = start(plan, kind, rate, weighted.clone())?;
        let streams = floods(senders, sizes);
        for _ in 0..plan.rounds {
            run.take(&WEIGHTS, &way, senders as f64, || {
                Ok(error_percent(
                    &carry(plan, &mut guests, &streams)?,
                    &weights,
                ))
            })?;
        }
    }
    Ok(())
}

fn guarantee(run: &mut Run<'_>, kind: Kind, floods: usize) -> Result<()> {
    let plan = run.plan;
    for (sizes, rate, way) in mixes(kind) {
        let min = rate / 5;
        let mut senders = vec![Sender::default(); floods + 1];
        // The rest is for the others alone.
        senders[0] = Sender {
            min,
            max: Some(min),
            ..Sender::default()
        };
        let (_peer, mut guests) = start(plan, kind, rate, senders)?;
        let mut streams = self::floods(floods + 1, sizes);
        streams[0].sizes = vec![Size::Bytes(1514)];
        for _ in 0..plan.rounds {
            run.take(&GUARANTEE, &way, floods as f64, || {
                Ok(carry(plan, &mut guests, &streams)?[0] / min as f64)
            })?;
        }
    }
    Ok(())
}

/// Senders to a full uplink, and beside them one with little to send.
fn at_uplink(run: &mut Run<'_>, full: Full, senders: usize) -> Result<()> {
    let plan = run.plan;
    for (sizes, rate, frames) in WIRE_RATES {
        let uplink = Uplink {
            rate,
            full,
            ports: senders + 1,
            pairs: 1,
        };
        let mut running = uplink.start(plan)?;
        let guests = &mut running.guests;
        let mut streams = floods(senders, sizes);
        let way = format!("{}{frames}", full.name());
        for _ in 0..plan.rounds {
            let parts = [&UPLINK_EQUAL, &UPLINK_USED, &UPLINK_LOST];
            run.take_all(parts, &way, senders as f64, || {
                guests.run(&streams, plan.settle)?;
                let carried = guests.run(&streams, plan.window.max(WINDOW))?;
                let rates: Vec<f64> = carried.iter().map(Carried::rate).collect();
                let used = 100.0 * rates.iter().sum::<f64>() / rate as f64;
                Ok([jain(&rates), used, lost_percent(&carried)])
            })?;
        }
        streams.push(Stream {
            pace: Some(PACE),
            ..Stream::flood(senders + 1, 0, &[Size::Bytes(64)])
        });
        for _ in 0..plan.rounds {
            let parts = [&UPLINK_PACED_LOST, &UPLINK_PACED_P50, &UPLINK_PACED_P99];
            run.take_all(parts, &way, senders as f64, || {
                guests.run(&streams, plan.settle)?;
                let carried = guests.run(&streams, plan.window.max(WINDOW))?;
                let paced = &carried[senders..];
                let [median, p99] = [0.5, 0.99].map(|q| paced[0].latency.quantile(q) as f64 / 1e3);
                Ok([lost_percent(paced), median, p99])
            })?;
        }
    }
    Ok(())
}

/// Frames that were sent, or should have been, and did not arrive, in percent.
fn lost_percent(carried: &[Carried]) -> f64 {
    let sum = |of: fn(&Carried) -> u64| carried.iter().map(of).sum::<u64>() as f64;
    let due = sum(|carried| carried.sent + carried.unsent).max(1.0);
    100.0 * (1.0 - sum(|carried| carried.received) / due).max(0.0)
}

/// The index of Jain, Chiu and Hawe: 1 for equal rates, 1/n if one has all.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// By how much a rate differs from its share by weight at most, in percent of that.
fn error_percent(rates: &[f64], weights: &[u32]) -> f64 {
    let all: f64 = rates.iter().sum();
    let weight: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let errors = rates.iter().zip(weights).map(|(rate, &own)| {
        let share = all * f64::from(own) / weight;
        100.0 * (rate / share.max(f64::MIN_POSITIVE) - 1.0).abs()
    });
    errors.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_judged() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert!(error_percent(&[1.0, 2.0, 4.0], &[100, 200, 400]) < 1e-9);
        assert!((error_percent(&[3.0, 1.0], &[100, 100]) - 50.0).abs() < 1e-9);
    }
}
