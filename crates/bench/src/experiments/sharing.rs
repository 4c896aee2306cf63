//! Senders that share an output: how equally, by weight, beside a guarantee, and how much of the
//! output they use, by their number.

use std::time::Duration;

use anyhow::Result;

use super::outputs::{Output, Sender};
use super::parts::{Part, Run};
use crate::clients::streams::{Carried, Guests, Size, Stream};
use crate::peers::Kind;
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

const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
/// Bits a second of the output.
const RATE: u64 = 1_000_000_000;
const SENDERS: [usize; 4] = [2, 8, 32, 64];
const WEIGHTED: [usize; 3] = [3, 12, 48];
const FLOODS: [usize; 3] = [1, 7, 63];
const MIN: u64 = RATE / 5;
/// Frames for all peers, and with super-frames.
const PLAIN: &[Size] = &[Size::Bytes(64), Size::Bytes(1514)];
const MIXED: &[Size] = &[Size::Bytes(64), Size::Bytes(1514), Size::Super];
/// A share of few frames says little.
const WINDOW: Duration = Duration::from_secs(1);
const NOTES: [&str; 3] = [
    "the output is a guest's port with 1 Gbit/s; each sender sends frames of one size (64 or 1514 \
     bytes, with super-frames also 64 KiB), neighbours others, as fast as its queue takes them; \
     one thread plays all guests",
    "OVS-DPDK has trtcm-policer with a queue for each sender (cir: the guarantee, eir: the rest of \
     the output's rate), which knows no weights; the bridge has tc htb (rate: the guarantee or the \
     share by weight, ceil: the output's rate)",
    "with Lasthop senders wait in their own queues and nothing is lost; the policer and the \
     kernel's queues drop what is too much",
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
    Ok(run.report("Senders that share an output of 1 Gbit/s"))
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

/// The frames that a peer is measured with, and the name of its row.
fn mixes(kind: Kind) -> Vec<(&'static [Size], String)> {
    let name = kind.name();
    let mut mixes = vec![(PLAIN, name.to_owned())];
    if kind == Kind::Lasthop {
        mixes.push((MIXED, format!("{name}, with super-frames")));
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

fn output(senders: Vec<Sender>) -> Output {
    Output {
        rate: RATE,
        senders,
        others: 0,
        pairs: 1,
    }
}

/// Runs all senders, after some time without a measurement.
fn carry(plan: &Plan, guests: &mut Guests, streams: &[Stream]) -> Result<Vec<f64>> {
    guests.run(streams, plan.settle)?;
    let carried = guests.run(streams, plan.window.max(WINDOW))?;
    Ok(carried.iter().map(Carried::rate).collect())
}

fn equal(run: &mut Run<'_>, kind: Kind, senders: usize) -> Result<()> {
    let plan = run.plan;
    let peer = output(vec![Sender::default(); senders]).start(kind, plan)?;
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    for (sizes, way) in mixes(kind) {
        let streams = floods(senders, sizes);
        for _ in 0..plan.rounds {
            run.take_all([&EQUAL, &USED], &way, senders as f64, || {
                let rates = carry(plan, &mut guests, &streams)?;
                let used = 100.0 * rates.iter().sum::<f64>() / RATE as f64;
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
    let peer = output(weighted.collect()).start(kind, plan)?;
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    for (sizes, way) in mixes(kind) {
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
    let guaranteed = Sender {
        min: MIN,
        // The rest is for the others alone.
        max: Some(MIN),
        ..Sender::default()
    };
    let mut senders = vec![Sender::default(); floods + 1];
    senders[0] = guaranteed;
    let peer = output(senders).start(kind, plan)?;
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    for (sizes, way) in mixes(kind) {
        let mut streams = self::floods(floods + 1, sizes);
        streams[0].sizes = vec![Size::Bytes(1514)];
        for _ in 0..plan.rounds {
            run.take(&GUARANTEE, &way, floods as f64, || {
                Ok(carry(plan, &mut guests, &streams)?[0] / MIN as f64)
            })?;
        }
    }
    Ok(())
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
