//! Cost of access rules: throughput beside that without, new flows and their latency, changes.

use anyhow::Result;
use e2e::table::table as markdown;
use serde::Serialize;

use super::{Changed, KINDS, SERIES};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::plot::{Curve, Point};
use crate::report::twofold::{PLACEMENTS, Twofold, names};
use crate::report::{Drawn, Figures, Plots, cores, dropped, shown};
use crate::sample::Sample;
use crate::statistics::{median, ratio};

/// Flows of the figures.
const OF_FIGURES: &str = "1024 flows";
const RULES: Twofold = Twofold {
    of: "traffic",
    kinds: KINDS,
    series: SERIES,
    way: SERIES[1],
    figure: |sample| sample.mpps,
    unit: "Mpps",
};

/// Samples of switches with rules and without, which a cell's series says.
#[derive(Debug, Serialize)]
pub(super) struct Rules {
    pub(super) samples: Vec<Sample>,
}

impl Figures for Rules {
    fn tables(&self) -> String {
        RULES.table(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_rules_plots(&self.samples, plots)
    }

    fn chart(&self, prefix: &str, placement: Placement) -> Drawn {
        rules_chart(&self.samples, prefix, placement)
    }
}

/// Samples of clients whose flows are new.
#[derive(Debug, Serialize)]
pub(super) struct SetUps {
    pub(super) samples: Vec<Sample>,
}

impl Figures for SetUps {
    fn tables(&self) -> String {
        set_ups_table(&self.samples)
    }
}

/// Changes of rules.
#[derive(Debug, Serialize)]
pub(super) struct Changes {
    pub(super) rows: Vec<Changed>,
}

impl Figures for Changes {
    fn tables(&self) -> String {
        changes_table(&self.rows)
    }
}

fn middle(samples: &[&Sample], figure: impl Fn(&Sample) -> f64) -> Option<f64> {
    let values: Vec<f64> = samples.iter().map(|sample| figure(sample)).collect();
    median(&values)
}

/// Throughput by frame size, a curve for each switch with and without rules.
fn save_rules_plots(samples: &[Sample], plots: &Plots<'_>) -> Result<()> {
    for placement in PLACEMENTS {
        let flows = |name: &str| name.split(", ").nth(1).unwrap_or_default().to_owned();
        let mut kinds: Vec<String> = names(samples).into_iter().map(flows).collect();
        kinds.dedup();
        for of in kinds {
            let curves = KINDS.into_iter().flat_map(|kind| {
                SERIES.map(|series| rules_curve(samples, (kind, series), &of, placement))
            });
            let curves: Vec<Curve> = curves.filter(|(_, points)| !points.is_empty()).collect();
            let name = placement.name();
            let suffix = format!("{}-{name}", of.replace(' ', "-"));
            let title = format!("{}, {of}, cores {name}", plots.title);
            plots.lines(&suffix, &title, ["bytes of a frame", "Mpps"], &curves)?;
        }
    }
    Ok(())
}

/// Throughput by frame size with so many flows as the paper has; without rules alone where that is
/// what is asked for.
fn rules_chart(samples: &[Sample], asked: &str, placement: Placement) -> Drawn {
    let series: &[&str] = if asked == SERIES[0] {
        &SERIES[..1]
    } else {
        &SERIES
    };
    let curves = KINDS.into_iter().flat_map(|kind| {
        let curve = |series: &&str| rules_curve(samples, (kind, series), OF_FIGURES, placement);
        series.iter().map(curve).collect::<Vec<_>>()
    });
    (
        ["bytes of a frame", "Mpps"].map(str::to_owned),
        curves.filter(|(_, points)| !points.is_empty()).collect(),
    )
}

fn rules_curve(
    samples: &[Sample],
    (kind, series): (Kind, &str),
    flows: &str,
    placement: Placement,
) -> Curve {
    let names = names(samples)
        .into_iter()
        .filter(|name| name.ends_with(flows));
    let point = |name: &str| {
        let own = Twofold::kept(samples, (kind, series), name, placement);
        let values: Vec<f64> = own.iter().map(|sample| sample.mpps).collect();
        Point::of(own.first()?.cell.x, &values)
    };
    let title = format!("{}, {series}", kind.name());
    (title, names.filter_map(point).collect())
}

/// New flows a second, or their latency where it was measured.
fn set_ups_table(samples: &[Sample]) -> String {
    let head = [
        "rules",
        "switch",
        "cores",
        "Lasthop's rate to its",
        "misses a second",
        "misses of frames",
        "p50, us",
        "p99, us",
        "max, us",
        "machine alone, p50, us",
        "machine alone, as rare, us",
        "lost",
        "samples",
    ];
    let mut rows = Vec::new();
    for name in names(samples) {
        for placement in PLACEMENTS {
            let of = KINDS.map(|kind| Twofold::kept(samples, (kind, SERIES[1]), name, placement));
            let ours = middle(&of[0], rate);
            for (kind, own) in KINDS.into_iter().zip(&of) {
                if !own.is_empty() {
                    rows.push(set_ups_row(name, kind, placement, own, ours));
                }
            }
        }
    }
    markdown(&head.map(str::to_owned), &rows) + &dropped(samples)
}

fn rate(sample: &Sample) -> f64 {
    sample.misses.map_or(0.0, |misses| misses.a_second)
}

fn set_ups_row(
    name: &str,
    kind: Kind,
    placement: Placement,
    own: &[&Sample],
    ours: Option<f64>,
) -> Vec<String> {
    let paced = own.iter().any(|sample| sample.latency.is_some());
    let beside = if kind == Kind::Lasthop || paced {
        None
    } else {
        ratio(ours, middle(own, rate))
    };
    let micros = |figure: fn(&Sample) -> Option<u64>| {
        let values: Vec<f64> = own
            .iter()
            .filter_map(|sample| figure(sample))
            .map(|ns| ns as f64 / 1e3)
            .collect();
        median(&values).map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"))
    };
    let misses: u64 = own.iter().filter_map(|s| s.misses).map(|m| m.count).sum();
    let latencies = || own.iter().filter_map(|sample| sample.latency.as_ref());
    let sent: u64 = latencies().map(|latency| latency.sent).sum();
    let lost: u64 = latencies()
        .map(|latency| latency.lost + latency.unsent)
        .sum();
    vec![
        name.to_owned(),
        kind.name().to_owned(),
        cores(placement, own.iter().copied()),
        shown(beside, "x"),
        middle(own, rate).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
        if sent > 0 {
            format!("{misses} of {sent}")
        } else {
            misses.to_string()
        },
        micros(|sample| of_misses(sample, 0.5)),
        micros(|sample| of_misses(sample, 0.99)),
        micros(|sample| Some(sample.latency.as_ref()?.max_ns)),
        micros(|sample| Some(sample.wake_ups.as_ref()?.p50_ns)),
        micros(|sample| {
            let share = of_all(sample, 0.99)?;
            Some(sample.wake_ups.as_ref()?.histogram.quantile(share))
        }),
        if sent > 0 {
            lost.to_string()
        } else {
            "-".to_owned()
        },
        own.len().to_string(),
    ]
}

/// Nanoseconds that this share of the misses do not exceed, which are taken to be the slowest
/// frames.
fn of_misses(sample: &Sample, share: f64) -> Option<u64> {
    let share = of_all(sample, share)?;
    Some(sample.latency.as_ref()?.histogram.quantile(share))
}

/// The share of all frames that are not slower than this share of the misses.
fn of_all(sample: &Sample, share: f64) -> Option<f64> {
    let (latency, misses) = (sample.latency.as_ref()?, sample.misses?);
    let missed = misses.count as f64 / latency.histogram.count().max(1) as f64;
    Some(1.0 - (1.0 - share) * missed.min(1.0))
}

/// A row for each number of rules and flows.
fn changes_table(rows: &[Changed]) -> String {
    let head = [
        "rules",
        "cached flows",
        "answered, ms",
        "at worst, ms",
        "all decided anew, ms",
        "at worst, ms",
        "lost of the stream",
        "whole apply, ms",
        "control's memory, MiB",
        "changes",
    ];
    let line = |row: &Changed| {
        let of = |values: &[f64]| {
            let worst = values.iter().copied().fold(0.0, f64::max);
            [median(values).unwrap_or_default(), worst].map(|ms| format!("{ms:.1}"))
        };
        let ([answered, slowest], [gone, last]) = (of(&row.answered_ms), of(&row.forgotten_ms));
        let [with, without] = row.control_mib;
        vec![
            row.rules.to_string(),
            row.flows.to_string(),
            answered,
            slowest,
            gone,
            last,
            format!("{} of {}", row.lost, row.sent),
            format!("{:.0}", row.apply_ms),
            format!("{with:.0} (+{:.0})", with - without),
            row.answered_ms.len().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(line).collect();
    markdown(&head.map(str::to_owned), &rows)
}

#[cfg(test)]
mod tests {
    use load::lean::Histogram;

    use super::*;
    use crate::report::tests::sample;
    use crate::sample::{Latency, Misses, Verdict};

    fn with(series: &str, kind: Kind, mpps: f64) -> Sample {
        let mut one = sample(kind, mpps, Some(Placement::Near), Verdict::Kept);
        series.clone_into(&mut one.cell.series);
        one
    }

    #[test]
    fn each_switch_is_beside_itself_without_rules() {
        let samples = [
            with(SERIES[0], Kind::Lasthop, 10.0),
            with(SERIES[1], Kind::Lasthop, 9.0),
            with(SERIES[0], Kind::Ovs, 4.0),
            with(SERIES[1], Kind::Ovs, 3.0),
        ];
        let text = RULES.table(&samples);
        let row = text.lines().nth(2).expect("a row");
        assert!(
            row.ends_with("| 0.900x | 0.750x | 3.00x | 10.00 | 9.00 | 4.00 | 3.00 | 1 1 1 1 |"),
            "{row}"
        );
    }

    #[test]
    fn the_slowest_frames_are_the_misses() {
        let mut histogram = Histogram::default();
        (0..50).for_each(|_| histogram.record(1000));
        (0..49).for_each(|_| histogram.record(20_000));
        histogram.record(30_000);
        let mut one = with(SERIES[1], Kind::Lasthop, 1.0);
        one.misses = Some(Misses {
            count: 50,
            a_second: 25.0,
        });
        one.latency = Some(Latency {
            sent: 100,
            histogram,
            ..Latency::default()
        });
        let [p50, p99] = [0.5, 0.98].map(|share| of_misses(&one, share).expect("misses"));
        assert!((19_000..21_000).contains(&p50), "{p50}");
        assert!((19_000..21_000).contains(&p99), "{p99}");
        let text = set_ups_table(&[one]);
        assert!(text.contains("| 25 | 50 of 100 |"), "{text}");
    }
}
