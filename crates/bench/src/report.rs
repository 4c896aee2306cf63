//! Results: JSON with every sample, a Markdown table with ratios first, plots.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use e2e::table::table;

use crate::experiments::{
    capture as capture_experiment, external as external_experiment,
    migration as migration_experiment, parts as parts_experiment, policy as policy_experiment,
    wakeups as wakeups_experiment,
};
use crate::machine::Machine;
use crate::peers::Kind;
use crate::placement::Placement;
use crate::plan::{Plan, progress};
use crate::plot::{self, Chart, Point};
use crate::sample::{Cell, Sample, Verdict};
use crate::statistics::{median, ratio};

mod bulk;
mod capture;
mod external;
mod load;
mod migration;
mod parts;
mod policy;
mod scheduling;

/// The result of an experiment.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    experiment: &'static str,
    title: String,
    machine: Machine,
    quick: bool,
    /// Missing and discarded measurements, with the reason.
    notes: Vec<String>,
    #[serde(flatten)]
    body: Body,
}

/// Its figures.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Body {
    /// Samples of several peers; `axis` names what a cell's `x` is.
    Throughput {
        axis: &'static str,
        samples: Vec<Sample>,
    },
    /// Samples with latency, of several peers; a cell's `x` is the rate.
    Load { samples: Vec<Sample> },
    /// Samples of super-frames, of several peers, each with a plain copy.
    Bulk { samples: Vec<Sample> },
    /// Samples of ways to interfaces of the host.
    External {
        samples: Vec<external_experiment::Sample>,
        missing: Vec<external_experiment::Missing>,
    },
    /// Samples of an experiment in parts.
    Parts {
        samples: Vec<parts_experiment::Sample>,
    },
    /// Moves of guests at several peers.
    Migration {
        samples: Vec<migration_experiment::Sample>,
    },
    /// Samples of Lasthop alone, whose cells are compared with the first of them.
    Scaling {
        axis: &'static str,
        samples: Vec<Sample>,
    },
    /// Samples of guests; a cell's series is the switch with its settings.
    Scheduling { samples: Vec<Sample> },
    /// Samples of switches with rules and without, which a cell's series says.
    Rules { samples: Vec<Sample> },
    /// Samples of clients whose flows are new.
    SetUps { samples: Vec<Sample> },
    /// Samples of switches with captures and without, which a cell's series says, and searches.
    Capture {
        samples: Vec<Sample>,
        whole: Vec<capture_experiment::Whole>,
    },
    /// Changes of rules.
    Changes {
        rows: Vec<policy_experiment::Changed>,
    },
    /// Figures of Lasthop alone; the first column is what the others depend on.
    Table {
        columns: Vec<&'static str>,
        rows: Vec<Row>,
    },
}

/// The names of two axes, and what is drawn between them.
pub(crate) type Drawn = ([String; 2], Vec<plot::Curve>);

/// Figures that were taken together.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) values: Vec<f64>,
    /// Round trips of a cache line between the cores, before and after.
    pub(crate) trips_ns: [f64; 2],
    pub(crate) placement: Placement,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        experiment: &'static str,
        title: &str,
        notes: Vec<String>,
        body: Body,
    ) -> Self {
        Self {
            experiment,
            title: title.to_owned(),
            machine: plan.machine.clone(),
            quick: plan.quick,
            notes,
            body,
        }
    }

    /// Writes the JSON document and the plots to a folder.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let stem = format!("{}-{}", self.machine.stamp(), self.experiment);
        let path = folder.join(format!("{stem}.json"));
        fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| path.display().to_string())?;
        progress(&format!("{} is written", path.display()));
        match &self.body {
            Body::Throughput { axis, samples } | Body::Scaling { axis, samples } => {
                for placement in [Placement::Near, Placement::Far] {
                    let path = folder.join(format!("{stem}-{}.svg", placement.name()));
                    let title = format!("{}, cores {}", self.title, placement.name());
                    plot::lines(&path, &title, [*axis, "Mpps"], &curves(samples, placement))?;
                }
            }
            // Two bars a peer say no more than the table.
            Body::Bulk { .. } | Body::External { .. } | Body::Migration { .. } => {}
            Body::SetUps { .. } | Body::Changes { .. } | Body::Capture { .. } => {}
            Body::Parts { samples } => parts::save_plots(samples, folder, &stem)?,
            Body::Rules { samples } => {
                policy::save_rules_plots(samples, &self.title, folder, &stem)?;
            }
            Body::Scheduling { samples } => scheduling::save_plots(samples, folder, &stem)?,
            Body::Load { samples } => load::save_plots(samples, &self.title, folder, &stem)?,
            Body::Table { columns, rows } => {
                for (index, column) in columns.iter().enumerate().skip(1) {
                    let points = rows
                        .iter()
                        .map(|row| Point::from((row.values[0], row.values[index])))
                        .collect();
                    let path = folder.join(format!("{stem}-{index}.svg"));
                    let curve = [("Lasthop".to_owned(), points)];
                    plot::lines(&path, &self.title, [columns[0], column], &curve)?;
                }
            }
        }
        Ok(())
    }

    /// The chart that a figure asks for: curves of the part, or of the rows, whose names begin so,
    /// at one placement of the cores: near, unless there are more points with far ones. It has none
    /// of an experiment without curves.
    pub(crate) fn chart_of(&self, prefix: &str) -> Chart {
        let at = |placement| match &self.body {
            Body::Throughput { axis, samples } | Body::Scaling { axis, samples } => (
                [*axis, "Mpps"].map(str::to_owned),
                curves(samples, placement),
            ),
            Body::Rules { samples } => policy::rules_chart(samples, prefix, placement),
            Body::Scheduling { samples } => scheduling::rates(samples, prefix, placement),
            Body::Parts { samples } => parts::chart(samples, prefix, placement),
            Body::External { samples, .. } => external::chart(samples, prefix, placement),
            Body::Table { rows, .. } if self.experiment == "wakeups" => {
                wakeups_experiment::chart(rows, placement)
            }
            _ => Drawn::default(),
        };
        let count = |placement| -> usize {
            let (_, curves) = at(placement);
            curves.iter().map(|(_, points)| points.len()).sum()
        };
        let near = count(Placement::Far) <= count(Placement::Near);
        let placement = if near {
            Placement::Near
        } else {
            Placement::Far
        };
        let (axes, curves) = at(placement);
        Chart {
            axes,
            curves,
            cores: placement.name().to_owned(),
            part: prefix.trim_end_matches(", ").to_owned(),
        }
    }

    /// The table for people.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("\n## {}\n\n", self.title);
        text += &match &self.body {
            Body::Throughput { samples, .. } => throughput_table(samples),
            Body::Load { samples } => load::table(samples),
            Body::Bulk { samples } => bulk::table(samples),
            Body::External { samples, missing } => external::tables(samples, missing),
            Body::Parts { samples } => parts::tables(samples),
            Body::Migration { samples } => migration::table(samples),
            Body::Scheduling { samples } => scheduling::table(samples),
            Body::Rules { samples } => policy::rules_table(samples),
            Body::SetUps { samples } => policy::set_ups_table(samples),
            Body::Capture { samples, whole } => capture::tables(samples, whole),
            Body::Changes { rows } => policy::changes_table(rows),
            Body::Scaling { samples, .. } => scaling_table(samples),
            Body::Table { columns, rows } => plain_table(columns, rows),
        };
        for note in &self.notes {
            let words: Vec<&str> = note.split_whitespace().collect();
            // Writing to a string does not fail.
            let _ = write!(text, "\nNote: {}.", words.join(" "));
        }
        text
    }
}

fn kept<'a>(
    samples: &'a [Sample],
    kind: Kind,
    cell: &Cell,
    placement: Placement,
) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| {
        sample.peer == kind.name()
            && sample.cell == *cell
            && sample.placement == Some(placement)
            && sample.verdict == Verdict::Kept
    })
}

fn rate(samples: &[Sample], kind: Kind, cell: &Cell, placement: Placement) -> Option<f64> {
    point(samples, kind, cell, placement).map(|point| point.y)
}

fn point(samples: &[Sample], kind: Kind, cell: &Cell, placement: Placement) -> Option<Point> {
    let rates: Vec<f64> = kept(samples, kind, cell, placement)
        .map(|sample| sample.mpps)
        .collect();
    Point::of(cell.x, &rates)
}

/// The cells in the order in which they were measured.
fn cells(samples: &[Sample]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for sample in samples {
        if !cells.contains(&sample.cell) {
            cells.push(sample.cell.clone());
        }
    }
    cells
}

/// The switches that were measured, ours first.
fn kinds(samples: &[Sample]) -> Vec<Kind> {
    let there = |kind: &Kind| samples.iter().any(|sample| sample.peer == kind.name());
    Kind::ALL.into_iter().filter(there).collect()
}

fn throughput_table(samples: &[Sample]) -> String {
    let kinds = kinds(samples);
    let others = kinds.iter().filter(|kind| **kind != Kind::Lasthop);
    let mut head = vec!["traffic".to_owned(), "cores".to_owned()];
    head.extend(others.map(|kind| format!("{} / {}", Kind::Lasthop.name(), kind.name())));
    head.extend(kinds.iter().map(|kind| format!("{} Mpps", kind.name())));
    head.push("samples".to_owned());
    let mut rows = Vec::new();
    for cell in cells(samples) {
        for placement in [Placement::Near, Placement::Far] {
            rows.extend(throughput_row(samples, &kinds, &cell, placement));
        }
    }
    table(&head, &rows) + &dropped(samples)
}

/// How many samples do not count, and why.
fn dropped(samples: &[Sample]) -> String {
    let count = |verdict| {
        let with = samples.iter().filter(|sample| sample.verdict == verdict);
        with.count()
    };
    format!(
        "\nOf {} samples, {} were dropped because the placement flipped and {} because others used \
         the machine.\n",
        samples.len(),
        count(Verdict::Flipped),
        count(Verdict::Disturbed),
    )
}

fn throughput_row(
    samples: &[Sample],
    kinds: &[Kind],
    cell: &Cell,
    placement: Placement,
) -> Option<Vec<String>> {
    let rate = |kind| rate(samples, kind, cell, placement);
    if !kinds.iter().any(|&kind| rate(kind).is_some()) {
        return None;
    }
    let of = |&kind| kept(samples, kind, cell, placement);
    let others = kinds.iter().filter(|kind| **kind != Kind::Lasthop);
    let mut row = vec![
        cell.name.clone(),
        cores(placement, kinds.iter().flat_map(of)),
    ];
    row.extend(others.map(|&theirs| shown(ratio(rate(Kind::Lasthop), rate(theirs)), "x")));
    row.extend(kinds.iter().map(|&kind| shown(rate(kind), "")));
    let counts: Vec<String> = kinds
        .iter()
        .map(|kind| of(kind).count().to_string())
        .collect();
    row.push(counts.join(" "));
    Some(row)
}

/// The placement, and the median of the round trips around these samples.
fn cores<'a>(placement: Placement, samples: impl Iterator<Item = &'a Sample>) -> String {
    let trips: Vec<f64> = samples
        .flat_map(|sample| [sample.before_ns, sample.after_ns])
        .collect();
    let ns = median(&trips).unwrap_or_default();
    format!("{}, {ns:.0} ns", placement.name())
}

fn scaling_table(samples: &[Sample]) -> String {
    let cells = cells(samples);
    let first = cells.first().map_or("", |cell| &cell.name);
    let head = [
        "setting",
        "cores",
        &format!("to {first}"),
        "Mpps",
        "samples",
    ];
    let mut rows = Vec::new();
    for placement in [Placement::Near, Placement::Far] {
        let rate = |cell| rate(samples, Kind::Lasthop, cell, placement);
        for cell in cells.iter().filter(|cell| rate(cell).is_some()) {
            let of = || kept(samples, Kind::Lasthop, cell, placement);
            rows.push(vec![
                cell.name.clone(),
                cores(placement, of()),
                shown(ratio(rate(cell), rate(&cells[0])), "x"),
                shown(rate(cell), ""),
                of().count().to_string(),
            ]);
        }
    }
    table(&head.map(str::to_owned), &rows) + &dropped(samples)
}

fn shown(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}{unit}"))
}

fn plain_table(columns: &[&str], rows: &[Row]) -> String {
    let mut head: Vec<String> = columns.iter().map(ToString::to_string).collect();
    head.insert(1, "cores".to_owned());
    let line = |row: &Row| {
        let cells = row.values.iter().enumerate();
        let mut cells: Vec<String> = cells
            .map(|(index, value)| match index {
                0 => format!("{value:.0}"),
                _ => format!("{value:.2}"),
            })
            .collect();
        let ns = median(&row.trips_ns).unwrap_or_default();
        cells.insert(1, format!("{}, {ns:.0} ns", row.placement.name()));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(line).collect();
    table(&head, &rows)
}

/// One curve for each peer and series: medians by `x`.
fn curves(samples: &[Sample], placement: Placement) -> Vec<plot::Curve> {
    let cells = cells(samples);
    let mut series: Vec<&str> = Vec::new();
    for cell in &cells {
        if !series.contains(&cell.series.as_str()) {
            series.push(&cell.series);
        }
    }
    let mut curves = Vec::new();
    for kind in Kind::ALL {
        for name in &series {
            let of_series = cells.iter().filter(|cell| cell.series == *name);
            let points: Vec<Point> = of_series
                .filter_map(|cell| point(samples, kind, cell, placement))
                .collect();
            curves.push((format!("{}, {name}", kind.name()), points));
        }
    }
    curves.retain(|(_, points)| !points.is_empty());
    curves
}

#[cfg(test)]
mod tests;
