//! Moves of guests: a row for each switch and layout of queues.

use serde::Serialize;

use super::{KINDS, Sample};
use crate::peers::Kind;
use crate::report::{Figures, shown};
use crate::statistics::{median, percentile, ratio};

const HEAD: [&str; 13] = [
    "queues",
    "switch",
    "Lasthop's outage to its",
    "Lasthop's standstill to its",
    "outage p50, ms",
    "max",
    "silence p50, ms",
    "max",
    "standstill p50, ms",
    "max",
    "lost in the outage, p50",
    "lost beyond it, all",
    "moves",
];

/// One figure of a move.
type Figure = fn(&Sample) -> f64;

const OUTAGE: Figure = |sample| sample.moved.outage_ms;
const SILENCE: Figure = |sample| sample.moved.silence_ms;
const STANDSTILL: Figure = |sample| sample.moved.standstill_ms;
const LOST: Figure = |sample| sample.moved.lost_in_outage as f64;

/// Moves of guests at several peers.
#[derive(Debug, Serialize)]
pub(super) struct Moves {
    pub(super) samples: Vec<Sample>,
}

impl Figures for Moves {
    fn tables(&self) -> String {
        table(&self.samples)
    }
}

/// The table: medians and the worst of all moves.
fn table(samples: &[Sample]) -> String {
    let mut rows = Vec::new();
    for queues in ["split", "packed"] {
        let of = |kind: Kind| -> Vec<&Sample> {
            let own = |sample: &&Sample| sample.peer == kind.name() && sample.queues == queues;
            samples.iter().filter(own).collect()
        };
        let lasthop = of(Kind::Lasthop);
        for kind in KINDS {
            let beside = (kind != Kind::Lasthop).then_some(&lasthop[..]);
            rows.extend(row(&of(kind), beside));
        }
    }
    e2e::table::table(&HEAD.map(str::to_owned), &rows)
}

/// None without samples.
fn row(samples: &[&Sample], lasthop: Option<&[&Sample]>) -> Option<Vec<String>> {
    let first = samples.first()?;
    let beside = |figure| {
        let ours = lasthop.and_then(|samples| median(&values(samples, figure)));
        shown(ratio(ours, median(&values(samples, figure))), "x")
    };
    let middle = |figure| tenths(median(&values(samples, figure)));
    let most = |figure| tenths(percentile(&values(samples, figure), 1.0));
    let beyond = samples.iter().map(|sample| sample.moved.lost_beyond);
    Some(vec![
        first.queues.to_owned(),
        first.peer.to_owned(),
        beside(OUTAGE),
        beside(STANDSTILL),
        middle(OUTAGE),
        most(OUTAGE),
        middle(SILENCE),
        most(SILENCE),
        middle(STANDSTILL),
        most(STANDSTILL),
        middle(LOST),
        beyond.sum::<usize>().to_string(),
        samples.len().to_string(),
    ])
}

fn values(samples: &[&Sample], figure: Figure) -> Vec<f64> {
    samples.iter().map(|sample| figure(sample)).collect()
}

fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::migration::Moved;

    fn sample(kind: Kind, outage_ms: f64, lost_beyond: usize) -> Sample {
        Sample {
            peer: kind.name(),
            queues: "split",
            round: 1,
            moved: Moved {
                outage_ms,
                silence_ms: outage_ms + 10.0,
                standstill_ms: 30.0,
                lost_in_outage: 15,
                lost_beyond,
                ..Moved::default()
            },
        }
    }

    #[test]
    fn lasthop_stands_beside_its_peer() {
        let samples = [
            sample(Kind::Lasthop, 30.0, 0),
            sample(Kind::Ovs, 60.0, 1),
            sample(Kind::Lasthop, 40.0, 0),
            sample(Kind::Ovs, 80.0, 2),
        ];
        let text = table(&samples);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| split | Lasthop | - | - | 35.0 | 40.0 | 45.0 | 50.0 | 30.0 | 30.0 | 15.0 | 0 | \
                 2 |",
                "| split | OVS-DPDK | 0.50x | 1.00x | 70.0 | 80.0 | 80.0 | 90.0 | 30.0 | 30.0 | \
                 15.0 | 3 | 2 |",
            ]
        );
    }

    #[test]
    fn a_switch_that_was_not_measured_has_no_row() {
        let text = table(&[sample(Kind::Ovs, 60.0, 1)]);
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("| OVS-DPDK | - | - | 60.0 |"), "{text}");
    }
}
