//! Latency and CPU use by offered load: a row for each load, peer and placement; curves of both.

use ::load::lean::Histogram;
use anyhow::Result;
use serde::Serialize;

use super::{Figures, Plots, cells, dropped, kept, ratio};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::plot::{Curve, Point};
use crate::sample::{Cell, Latency, Sample};
use crate::statistics::median;

const HEAD: [&str; 15] = [
    "load",
    "switch",
    "cores",
    "Lasthop's CPU to its",
    "Lasthop's p50 to its",
    "CPU, % of a core",
    "kicks/s",
    "client's time kicking, %",
    "p50, us",
    "p99, us",
    "p99.9, us",
    "max, us",
    "lost",
    "client late p99, us",
    "samples",
];
/// Of all frames, in the plot of latency.
const SHARES: [f64; 14] = [
    0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999,
];

/// Samples with latency, of several peers; a cell's `x` is the rate.
#[derive(Debug, Serialize)]
pub(crate) struct Latencies {
    pub(crate) samples: Vec<Sample>,
}

impl Figures for Latencies {
    fn tables(&self) -> String {
        table(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_plots(&self.samples, plots)
    }
}

/// All kept samples of a peer under one load, and one placement.
struct Group<'a> {
    samples: Vec<&'a Sample>,
    latencies: Vec<&'a Latency>,
    /// Of all their frames.
    histogram: Histogram,
}

impl<'a> Group<'a> {
    /// None without samples.
    fn of(samples: &'a [Sample], kind: Kind, cell: &Cell, placement: Placement) -> Option<Self> {
        let samples: Vec<&Sample> = kept(samples, kind, cell, placement).collect();
        let latencies: Vec<&Latency> = samples.iter().filter_map(|s| s.latency.as_ref()).collect();
        let mut histogram = Histogram::default();
        for latency in &latencies {
            histogram.merge(&latency.histogram);
        }
        (!latencies.is_empty()).then_some(Self {
            samples,
            latencies,
            histogram,
        })
    }

    fn cpu(&self) -> Option<f64> {
        let percent: Vec<f64> = self.samples.iter().map(|s| s.switch_percent).collect();
        median(&percent)
    }

    fn sum(&self, of: fn(&Latency) -> u64) -> u64 {
        self.latencies.iter().map(|latency| of(latency)).sum()
    }

    /// Microseconds that `share` of the frames do not exceed; None where no frame is beyond that
    /// share.
    fn quantile(&self, share: f64) -> Option<f64> {
        let beyond = self.histogram.count() as f64 * (1.0 - share);
        // Rounding must not turn one frame of a thousand into none.
        (beyond > 0.999).then(|| micros(self.histogram.quantile(share)))
    }

    /// How much of its CPU, and of its median latency, Lasthop's are.
    fn ratios(&self, lasthop: Option<&Self>) -> [String; 2] {
        let of = |what: fn(&Self) -> Option<f64>| {
            let ratio = ratio(lasthop.and_then(what), what(self))?;
            Some(format!("{ratio:.2}x"))
        };
        [of(Self::cpu), of(|group| group.quantile(0.5))]
            .map(|text| text.unwrap_or_else(|| "-".to_owned()))
    }

    fn row(
        &self,
        lasthop: Option<&Self>,
        kind: Kind,
        cell: &Cell,
        placement: Placement,
    ) -> Vec<String> {
        let trips: Vec<f64> = self
            .samples
            .iter()
            .flat_map(|s| [s.before_ns, s.after_ns])
            .collect();
        let lags: Vec<f64> = self
            .latencies
            .iter()
            .map(|l| micros(l.client_lag_p99_ns))
            .collect();
        let kicks: Vec<f64> = self.latencies.iter().map(|l| l.kicks_a_second).collect();
        let kicking: Vec<f64> = self.latencies.iter().map(|l| l.kicking_percent).collect();
        let [cpu_ratio, p50_ratio] = self.ratios(lasthop.filter(|_| kind != Kind::Lasthop));
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| one_decimal(self.quantile(share)));
        vec![
            cell.name.clone(),
            kind.name().to_owned(),
            format!(
                "{}, {:.0} ns",
                placement.name(),
                median(&trips).unwrap_or_default()
            ),
            cpu_ratio,
            p50_ratio,
            one_decimal(self.cpu()),
            format!("{:.0}", median(&kicks).unwrap_or_default()),
            one_decimal(median(&kicking)),
            p50,
            p99,
            p999,
            one_decimal(Some(micros(self.histogram.max()))),
            format!(
                "{} of {}",
                self.sum(|l| l.lost + l.unsent),
                self.sum(|l| l.sent + l.unsent)
            ),
            one_decimal(median(&lags)),
            self.samples.len().to_string(),
        ]
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn one_decimal(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// The table. Percentiles are those of all frames of the kept samples, CPU use is the median of the
/// samples.
fn table(samples: &[Sample]) -> String {
    let mut rows = Vec::new();
    for cell in cells(samples) {
        for placement in [Placement::Near, Placement::Far] {
            let lasthop = Group::of(samples, Kind::Lasthop, &cell, placement);
            for kind in Kind::ALL {
                let group = Group::of(samples, kind, &cell, placement);
                rows.extend(group.map(|g| g.row(lasthop.as_ref(), kind, &cell, placement)));
            }
        }
    }
    let legend = "\nCPU: all processes of the switch, median of the samples. Latency: one way, of \
        all frames of these \
                  samples. Lost: frames that did not arrive or found no room in the ring, of those \
                  due.\n";
    super::table(&HEAD.map(str::to_owned), &rows) + legend + &dropped(samples)
}

/// CPU use by load, and for each load the share of frames by latency.
fn save_plots(samples: &[Sample], plots: &Plots<'_>) -> Result<()> {
    for placement in [Placement::Near, Placement::Far] {
        let name = placement.name();
        let title = plots.title.replace("Latency and CPU", "CPU");
        let title = format!("{title}, cores {name}");
        let axes = ["frames a second", "CPU, % of a core"];
        let curves = cpu_curves(samples, placement);
        plots.lines(&format!("cpu-{name}"), &title, axes, &curves)?;
        for cell in cells(samples) {
            let suffix = format!("latency-{:.0}-{name}", cell.x);
            let title = format!("One-way latency at {}, cores {name}", cell.name);
            let axes = ["latency, us", "frames not above it, %"];
            let curves = latency_curves(samples, &cell, placement);
            plots.lines(&suffix, &title, axes, &curves)?;
        }
    }
    Ok(())
}

fn cpu_curves(samples: &[Sample], placement: Placement) -> Vec<Curve> {
    let cells = cells(samples);
    let curve = |kind: Kind| {
        let point = |cell: &Cell| {
            let cpu = Group::of(samples, kind, cell, placement)?.cpu()?;
            Some(Point::from((cell.x, cpu)))
        };
        (
            kind.name().to_owned(),
            cells.iter().filter_map(point).collect(),
        )
    };
    with_points(Kind::ALL.map(curve))
}

fn latency_curves(samples: &[Sample], cell: &Cell, placement: Placement) -> Vec<Curve> {
    let curve = |kind: Kind| {
        let group = Group::of(samples, kind, cell, placement);
        let point = |share: f64| {
            let latency = group.as_ref()?.quantile(share)?;
            Some(Point::from((latency, 100.0 * share)))
        };
        (
            kind.name().to_owned(),
            SHARES.into_iter().filter_map(point).collect(),
        )
    };
    with_points(Kind::ALL.map(curve))
}

fn with_points(curves: impl IntoIterator<Item = Curve>) -> Vec<Curve> {
    curves
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::sample::Verdict;

    /// Frames that take 1, 2, 3, … us.
    fn paced(kind: Kind, percent: f64, frames: u64) -> Sample {
        let mut histogram = Histogram::default();
        (1..=frames).for_each(|frame| histogram.record(1000 * frame));
        Sample {
            switch_percent: percent,
            latency: Some(Latency {
                sent: frames + 1,
                lost: 1,
                unsent: 2,
                client_lag_p99_ns: 40,
                histogram,
                ..Latency::default()
            }),
            ..sample(kind, 0.001, Some(Placement::Near), Verdict::Kept)
        }
    }

    fn samples() -> Vec<Sample> {
        vec![
            paced(Kind::Lasthop, 2.0, 50),
            paced(Kind::Ovs, 100.0, 1000),
            paced(Kind::Lasthop, 4.0, 50),
        ]
    }

    #[test]
    fn a_row_for_each_peer_with_the_frames_of_all_samples() {
        let text = table(&samples());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| 64 B split | Lasthop | near, 55 ns | - | - | 3.0 | 0 | 0.0 | 25.1 | 50.0 | - | 50.0 | 6 of \
             106 | 0.0 | 2 |"
        );
        assert!(
            lines[3].starts_with(
                "| 64 B split | OVS-DPDK | near, 55 ns | 0.03x | 0.05x | 100.0 | 0 | 0.0 |"
            ),
            "{}",
            lines[3]
        );
        assert!(
            lines[3].ends_with("| 1000.0 | 3 of 1003 | 0.0 | 1 |"),
            "{}",
            lines[3]
        );
        assert_eq!(lines[4], "", "no row without samples");
    }

    #[test]
    fn rare_frames_are_required_only_where_there_are_any() {
        let samples = samples();
        let cell = &samples[0].cell;
        let group = |kind| Group::of(&samples, kind, cell, Placement::Near).expect("samples");
        assert_eq!(group(Kind::Lasthop).quantile(0.999), None);
        assert!(group(Kind::Ovs).quantile(0.999).is_some());
        assert!(Group::of(&samples, Kind::Ovs, cell, Placement::Far).is_none());
    }

    #[test]
    fn curves_hold_medians_and_shares() {
        let samples = samples();
        let cpu = cpu_curves(&samples, Placement::Near);
        assert_eq!(
            cpu[0],
            ("Lasthop".to_owned(), vec![Point::from((64.0, 3.0))])
        );
        assert_eq!(cpu.len(), 2);
        let latency = latency_curves(&samples, &samples[0].cell, Placement::Near);
        let (name, points) = &latency[1];
        assert_eq!(name, "OVS-DPDK");
        assert!(
            points
                .windows(2)
                .all(|pair| pair[0].x <= pair[1].x && pair[0].y < pair[1].y)
        );
        assert!(latency_curves(&samples, &samples[0].cell, Placement::Far).is_empty());
    }
}
