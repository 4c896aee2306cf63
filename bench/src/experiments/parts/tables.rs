//! Experiments in parts: a table for each part, medians of each placement.

use anyhow::Result;
use serde::Serialize;

use super::{Part, Sample};
use crate::placement::Placement;
use crate::plot::{Curve, Point};
use crate::report::{Drawn, Figures, Plots, shown};

/// Samples of an experiment in parts.
#[derive(Debug, Serialize)]
pub(super) struct Parts {
    pub(super) samples: Vec<Sample>,
}

impl Figures for Parts {
    fn tables(&self) -> String {
        tables(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_plots(&self.samples, plots)
    }

    fn chart(&self, prefix: &str, placement: Placement) -> Drawn {
        chart(&self.samples, prefix, placement)
    }
}

/// All tables.
fn tables(samples: &[Sample]) -> String {
    let mut text = String::new();
    for part in parts(samples) {
        text += &table(part, &of(samples, part));
    }
    let flipped = samples.iter().filter(|s| s.placement.is_none()).count();
    let all = samples.len();
    text + &format!("\nOf {all} samples, {flipped} were dropped because the placement flipped.\n")
}

/// The parts in the order in which they were measured first.
fn parts(samples: &[Sample]) -> Vec<&'static Part> {
    let mut parts = Vec::new();
    for sample in samples {
        if !parts.contains(&sample.part) {
            parts.push(sample.part);
        }
    }
    parts
}

fn of<'a>(samples: &'a [Sample], part: &Part) -> Vec<&'a Sample> {
    samples.iter().filter(|s| s.part == part).collect()
}

/// The values of `x` and the ways, in the order in which they were measured first.
fn order(samples: &[&Sample]) -> (Vec<f64>, Vec<String>) {
    let (mut places, mut ways) = (Vec::new(), Vec::new());
    for sample in samples {
        if !places.contains(&sample.x) {
            places.push(sample.x);
        }
        if !ways.contains(&sample.way) {
            ways.push(sample.way.clone());
        }
    }
    (places, ways)
}

fn middle(samples: &[&Sample], way: &str, x: f64, placement: Placement) -> Option<Point> {
    let values: Vec<f64> = samples
        .iter()
        .filter(|s| s.way == way && s.x == x && s.placement == Some(placement))
        .map(|s| s.value)
        .collect();
    Point::of(x, &values)
}

fn table(part: &Part, samples: &[&Sample]) -> String {
    let (places, ways) = order(samples);
    let [axis, unit] = part.axes;
    let mut head = vec![axis.to_owned(), "cores".to_owned()];
    head.extend(ways.iter().cloned());
    let mut rows = Vec::new();
    for placement in [Placement::Near, Placement::Far] {
        for &x in &places {
            let values: Vec<_> = ways
                .iter()
                .map(|way| middle(samples, way, x, placement))
                .collect();
            if values.iter().any(Option::is_some) {
                let mut row = vec![format!("{x:.0}"), placement.name().to_owned()];
                row.extend(
                    values
                        .into_iter()
                        .map(|point| shown(point.map(|point| point.y), "")),
                );
                rows.push(row);
            }
        }
    }
    format!(
        "\n**{}**, {unit}. Published: {}.\n\n{}",
        part.name,
        part.published,
        e2e::table::table(&head, &rows)
    )
}

/// The part with this name; the first one without a name.
fn chart(samples: &[Sample], name: &str, placement: Placement) -> Drawn {
    let all = parts(samples);
    let part = all.iter().find(|part| name.is_empty() || part.name == name);
    part.map_or_else(Drawn::default, |part| {
        let curves = curves(&of(samples, part), placement);
        (part.axes.map(str::to_owned), curves)
    })
}

/// A curve of each way.
fn curves(samples: &[&Sample], placement: Placement) -> Vec<Curve> {
    let (places, ways) = order(samples);
    let curve = |way: &String| {
        let points = places
            .iter()
            .filter_map(|x| middle(samples, way, *x, placement));
        (way.clone(), points.collect::<Vec<_>>())
    };
    let curves = ways.iter().map(curve);
    curves.filter(|(_, points)| !points.is_empty()).collect()
}

/// A plot of each part that has lines, for each placement.
fn save_plots(samples: &[Sample], plots: &Plots<'_>) -> Result<()> {
    for part in parts(samples) {
        let of_part = of(samples, part);
        let (places, _) = order(&of_part);
        if places.len() < 3 || part.is_enumerated() {
            continue;
        }
        for placement in [Placement::Near, Placement::Far] {
            let curves = curves(&of_part, placement);
            let (name, cores) = (part.name, placement.name());
            let title = format!("{name}, cores {cores}");
            plots.lines(&format!("{name}-{cores}"), &title, part.axes, &curves)?;
        }
    }
    Ok(())
}
