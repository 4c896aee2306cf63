//! The table of floods: each switch beside itself without a flood, and verdicts about the aims.

use e2e::table::table as markdown;
use serde::Serialize;

use super::sender::Kind;
use super::world::Way;
use super::{Cell, Sample};
use crate::placement::Placement;
use crate::report::{Figures, shown};
use crate::statistics::{median, percentile, ratio};

/// Samples of all floods.
#[derive(Debug, Serialize)]
pub(super) struct Floods {
    pub(super) samples: Vec<Sample>,
}

/// Bounds beside a flood of all that a core sends.
struct Aims {
    lost: f64,
    p99: f64,
    percent: f64,
    ended: f64,
    entries: f64,
}

impl Aims {
    /// Those of a prefilter, and of this kind of flood.
    fn of(way: Way, kind: Kind) -> Option<Self> {
        let (lost, p99) = match way.back_end()? {
            "xdp" => (0.1, 3.0),
            _ => (0.5, 5.0),
        };
        let (ended, entries) = match kind {
            Kind::RandomAll => (98.0, 128.0),
            _ => (99.0, f64::INFINITY),
        };
        Some(Self {
            lost,
            p99,
            percent: 3.0,
            ended,
            entries,
        })
    }
}

/// Figures of a row.
struct Seen {
    lost: f64,
    p99: Option<f64>,
    more: Option<f64>,
    ended: Option<f64>,
    entries: Option<f64>,
}

impl Seen {
    /// Names of the aims that were missed.
    fn missed(&self, aims: &Aims) -> Vec<&'static str> {
        let above = |value: Option<f64>, most: f64| value.is_none_or(|value| value > most);
        let all = [
            ("lost", self.lost > aims.lost),
            ("p99", above(self.p99, aims.p99)),
            ("CPU", above(self.more, aims.percent)),
            (
                "at the wire",
                self.ended.is_none_or(|share| share < aims.ended),
            ),
            ("entries", above(self.entries, aims.entries)),
        ];
        let missed = all.into_iter().filter(|(_, is_missed)| *is_missed);
        missed.map(|(name, _)| name).collect()
    }
}

impl Figures for Floods {
    fn tables(&self) -> String {
        let mut cells: Vec<Cell> = Vec::new();
        for sample in &self.samples {
            if !cells.contains(&sample.cell) {
                cells.push(sample.cell);
            }
        }
        let head = [
            "flood",
            "switch",
            "lost, %",
            "p50, us",
            "p99, us",
            "p99 / no flood",
            "CPU, % of a core",
            "more than without",
            "arrived of sent, kpps",
            "at the wire, %",
            "entries",
            "aims",
            "samples (near)",
        ];
        let mut rows = Vec::new();
        for cell in &cells {
            rows.extend(Way::ALL.into_iter().filter_map(|way| self.row(way, cell)));
        }
        markdown(&head.map(str::to_owned), &rows)
    }
}

impl Floods {
    fn of(&self, way: Way, cell: &Cell) -> Vec<&Sample> {
        let fits = |sample: &&Sample| sample.way == way && sample.cell == *cell;
        self.samples.iter().filter(fits).collect()
    }

    fn row(&self, way: Way, cell: &Cell) -> Option<Vec<String>> {
        let own = self.of(way, cell);
        own.first()?;
        let without = self.of(way, &Cell::NONE);
        let is_flood = *cell != Cell::NONE;
        let seen = Seen {
            lost: lost(&own),
            p99: ratio(middle(&own, p99), middle(&without, p99)),
            more: middle(&own, percent)
                .zip(middle(&without, percent))
                .map(|(with, without)| with - without),
            ended: middle(&own, |sample| Some(100.0 * sample.ended?)),
            entries: middle(&own, |sample| Some(sample.entries? as f64)),
        };
        let aims = Aims::of(way, cell.kind).filter(|_| cell.rate.is_none());
        let verdict = aims.map_or_else(
            || "-".to_owned(),
            |aims| match &seen.missed(&aims)[..] {
                [] => "met".to_owned(),
                missed => format!("missed: {}", missed.join(", ")),
            },
        );
        let near = own.iter().filter(|s| s.placement == Some(Placement::Near));
        Some(vec![
            cell.name(),
            way.name().to_owned(),
            format!("{:.2}", seen.lost),
            spread(&own, |sample| Some(sample.p50_us), 0),
            spread(&own, p99, 0),
            shown(seen.p99.filter(|_| is_flood), "x"),
            spread(&own, percent, 1),
            shown(seen.more.filter(|_| is_flood), ""),
            rates(&own),
            spread(&own, |sample| Some(100.0 * sample.ended?), 2),
            seen.entries
                .map_or_else(|| "-".to_owned(), |entries| format!("{entries:.0}")),
            verdict,
            format!("{} ({})", own.len(), near.count()),
        ])
    }
}

fn p99(sample: &Sample) -> Option<f64> {
    Some(sample.p99_us)
}

fn percent(sample: &Sample) -> Option<f64> {
    Some(sample.percent)
}

/// Medians of the frames that got to the interface, and of those that the flood sent.
fn rates(samples: &[&Sample]) -> String {
    let arrived = middle(samples, |sample| Some(sample.arrived_kpps));
    let sent = middle(samples, |sample| Some(sample.sent_kpps));
    let [arrived, sent] = [arrived, sent].map(Option::unwrap_or_default);
    format!("{arrived:.0} of {sent:.0}")
}

/// Percent of all requests.
fn lost(samples: &[&Sample]) -> f64 {
    let sent: u64 = samples.iter().map(|sample| sample.sent).sum();
    let lost: u64 = samples.iter().map(|sample| sample.lost).sum();
    100.0 * lost as f64 / sent.max(1) as f64
}

fn values(samples: &[&Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
    samples.iter().filter_map(|sample| figure(sample)).collect()
}

fn middle(samples: &[&Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&values(samples, figure))
}

/// The median, and the first and the third quartile.
fn spread(samples: &[&Sample], figure: impl Fn(&Sample) -> Option<f64>, digits: usize) -> String {
    let values = values(samples, figure);
    let all = [
        median(&values),
        percentile(&values, 0.25),
        percentile(&values, 0.75),
    ];
    match all {
        [Some(middle), Some(first), Some(third)] => {
            format!("{middle:.digits$} ({first:.digits$} to {third:.digits$})")
        }
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(way: Way, cell: Cell, p99_us: f64, ended: Option<f64>) -> Sample {
        Sample {
            way,
            cell,
            round: 1,
            sent: 1000,
            lost: 0,
            p50_us: 50.0,
            p99_us,
            sent_kpps: 1000.0,
            arrived_kpps: 1000.0,
            ended,
            entries: ended.map(|_| 1),
            percent: 2.0,
            trips_ns: [50.0; 2],
            placement: Some(Placement::Near),
        }
    }

    #[test]
    fn a_prefilter_is_judged_beside_itself_without_a_flood() {
        let flood = Cell {
            kind: Kind::Fixed,
            size: 64,
            rate: None,
        };
        let floods = |p99_us| Floods {
            samples: vec![
                sample(Way::XdpAuto, Cell::NONE, 100.0, None),
                sample(Way::XdpAuto, flood, p99_us, Some(0.999)),
            ],
        };
        let text = floods(250.0).tables();
        assert!(
            text.contains("| 2.50x |") && text.contains("| met |"),
            "{text}"
        );
        let text = floods(350.0).tables();
        assert!(text.contains("| missed: p99 |"), "{text}");
    }
}
