//! Results: JSON with every sample, a Markdown table with ratios first, plots.

use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

use e2e::table::table;

use crate::machine::Machine;
use crate::peers::Kind;
use crate::placement::Placement;
use crate::plan::{Plan, progress};
use crate::plot::{self, Chart, Curve, Point};
use crate::sample::{Cell, Sample, Verdict};
use crate::statistics::{median, ratio};

mod bulk;
mod load;
pub(crate) mod twofold;

pub(crate) use bulk::Bulk;
pub(crate) use load::Latencies;

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
    figures: Box<dyn Figures>,
}

/// The figures of an experiment, which its report saves, prints and draws.
pub(crate) trait Figures: Document + Debug {
    /// The tables for people.
    fn tables(&self) -> String;

    /// Saves what a plot says better than a table; nothing by default.
    fn save_plots(&self, _: &Plots<'_>) -> Result<()> {
        Ok(())
    }

    /// The curves of the part, or of the rows, whose names begin with `prefix`, at one placement of
    /// the cores; none by default.
    fn chart(&self, _prefix: &str, _: Placement) -> Drawn {
        Drawn::default()
    }
}

impl Serialize for dyn Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = self.document().map_err(S::Error::custom)?;
        document.serialize(serializer)
    }
}

/// A part of a JSON document.
pub(crate) trait Document {
    /// Returns it as a value.
    fn document(&self) -> serde_json::Result<Value>;
}

impl<T: Serialize> Document for T {
    fn document(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }
}

/// The place of a report's plots.
#[derive(Debug)]
pub(crate) struct Plots<'a> {
    folder: &'a Path,
    /// Beginning of the names of files.
    stem: &'a str,
    /// Title of the report.
    pub(crate) title: &'a str,
}

impl Plots<'_> {
    /// Draws curves to a file whose name ends with `suffix`.
    pub(crate) fn lines(
        &self,
        suffix: &str,
        title: &str,
        axes: [&str; 2],
        curves: &[Curve],
    ) -> Result<()> {
        let path = self.folder.join(format!("{}-{suffix}.svg", self.stem));
        plot::lines(&path, title, axes, curves)
    }
}

/// Samples of several peers.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    /// The meaning of a cell's `x`.
    pub(crate) axis: &'static str,
    pub(crate) samples: Vec<Sample>,
}

impl Figures for Throughput {
    fn tables(&self) -> String {
        throughput_table(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_rates(plots, self.axis, &self.samples)
    }

    fn chart(&self, _prefix: &str, placement: Placement) -> Drawn {
        rates(self.axis, &self.samples, placement)
    }
}

/// Samples of Lasthop alone, whose cells are compared with the first of them.
#[derive(Debug, Serialize)]
pub(crate) struct Scaling {
    /// The meaning of a cell's `x`.
    pub(crate) axis: &'static str,
    pub(crate) samples: Vec<Sample>,
}

impl Figures for Scaling {
    fn tables(&self) -> String {
        scaling_table(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_rates(plots, self.axis, &self.samples)
    }

    fn chart(&self, _prefix: &str, placement: Placement) -> Drawn {
        rates(self.axis, &self.samples, placement)
    }
}

pub(crate) fn rates(axis: &str, samples: &[Sample], placement: Placement) -> Drawn {
    (
        [axis, "Mpps"].map(str::to_owned),
        curves(samples, placement),
    )
}

pub(crate) fn save_rates(plots: &Plots<'_>, axis: &str, samples: &[Sample]) -> Result<()> {
    for placement in [Placement::Near, Placement::Far] {
        let name = placement.name();
        let title = format!("{}, cores {name}", plots.title);
        plots.lines(name, &title, [axis, "Mpps"], &curves(samples, placement))?;
    }
    Ok(())
}

/// Figures of Lasthop alone; the first column is what the others depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

impl Figures for Table {
    fn tables(&self) -> String {
        plain_table(&self.columns, &self.rows)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        for (index, column) in self.columns.iter().enumerate().skip(1) {
            let values = self.rows.iter().map(|row| &row.values);
            let points = values.map(|values| Point::from((values[0], values[index])));
            let curve = [("Lasthop".to_owned(), points.collect())];
            let axes = [self.columns[0], column];
            plots.lines(&index.to_string(), plots.title, axes, &curve)?;
        }
        Ok(())
    }
}

/// The names of two axes, and what is drawn between them.
pub(crate) type Drawn = ([String; 2], Vec<Curve>);

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
        figures: impl Figures + 'static,
    ) -> Self {
        Self {
            experiment,
            title: title.to_owned(),
            machine: plan.machine.clone(),
            quick: plan.quick,
            notes,
            figures: Box::new(figures),
        }
    }

    /// Writes the JSON document and the plots to a folder.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let stem = format!("{}-{}", self.machine.stamp(), self.experiment);
        let path = folder.join(format!("{stem}.json"));
        fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| path.display().to_string())?;
        progress(&format!("{} is written", path.display()));
        self.figures.save_plots(&Plots {
            folder,
            stem: &stem,
            title: &self.title,
        })
    }

    /// The chart that a figure asks for: curves of the part, or of the rows, whose names begin so,
    /// at one placement of the cores: near, unless there are more points with far ones. It has none
    /// of an experiment without curves.
    pub(crate) fn chart_of(&self, prefix: &str) -> Chart {
        let count = |placement| -> usize {
            let (_, curves) = self.figures.chart(prefix, placement);
            curves.iter().map(|(_, points)| points.len()).sum()
        };
        let near = count(Placement::Far) <= count(Placement::Near);
        let placement = if near {
            Placement::Near
        } else {
            Placement::Far
        };
        let (axes, curves) = self.figures.chart(prefix, placement);
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
        text += &self.figures.tables();
        for note in &self.notes {
            let words: Vec<&str> = note.split_whitespace().collect();
            // Writing to a string does not fail.
            let _ = write!(text, "\nNote: {}.", words.join(" "));
        }
        text
    }
}

pub(crate) fn kept<'a>(
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
pub(crate) fn cells(samples: &[Sample]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for sample in samples {
        if !cells.contains(&sample.cell) {
            cells.push(sample.cell.clone());
        }
    }
    cells
}

/// The switches that were measured, ours first.
pub(crate) fn kinds(samples: &[Sample]) -> Vec<Kind> {
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
pub(crate) fn dropped(samples: &[Sample]) -> String {
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
pub(crate) fn cores<'a>(placement: Placement, samples: impl Iterator<Item = &'a Sample>) -> String {
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

pub(crate) fn shown(value: Option<f64>, unit: &str) -> String {
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
fn curves(samples: &[Sample], placement: Placement) -> Vec<Curve> {
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
pub(crate) mod tests;
