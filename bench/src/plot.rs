//! Plots of lines with points, as SVG.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::statistics::{median, percentile};

/// A value at a place of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Of the samples whose median `y` is: the first and the third.
    pub(crate) quartiles: [f64; 2],
}

impl Point {
    /// The median of samples at `x`, if there are any.
    pub(crate) fn of(x: f64, samples: &[f64]) -> Option<Self> {
        let quartile = |share| percentile(samples, share);
        Some(Self {
            x,
            y: median(samples)?,
            quartiles: [quartile(0.25)?, quartile(0.75)?],
        })
    }
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        let quartiles = [y, y];
        Self { x, y, quartiles }
    }
}

/// A name and its points.
pub(crate) type Curve = (String, Vec<Point>);

/// Curves of one placement of the cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// The names of a place and of a value, the second with its unit.
    pub(crate) axes: [String; 2],
    pub(crate) curves: Vec<Curve>,
    /// The placement.
    pub(crate) cores: String,
    /// The part of an experiment.
    pub(crate) part: String,
}

const SIZE: (u32, u32) = (800, 480);
/// Pixels beside the plot for the names of the curves, and from one name to the next.
const NAMES: u32 = 240;
const LINE: i32 = 20;
/// The quotient of values from which on their axis is logarithmic.
const FAR_APART: f64 = 1000.0;
const COLORS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x00, 0x00),
];

/// Curves that say more than a table: where some have several points, those. Else all.
fn worthwhile(curves: &[Curve]) -> Vec<&Curve> {
    let lines = || curves.iter().filter(|(_, points)| points.len() > 1);
    if lines().next().is_some() {
        lines().collect()
    } else {
        curves.iter().collect()
    }
}

/// Returns the curves without points that a logarithmic axis has no place for.
fn drawable(curves: &[Curve]) -> Vec<Curve> {
    let has_place = |point: &Point| point.x.is_normal() && point.x > 0.0 && point.y.is_finite();
    let drawable = |(name, points): &Curve| {
        let points: Vec<_> = points.iter().copied().filter(has_place).collect();
        (!points.is_empty()).then(|| (name.clone(), points))
    };
    curves.iter().filter_map(drawable).collect()
}

/// Returns the axis of the values: from 0, or logarithmic where values are so far apart that the
/// small ones would all lie at 0.
fn values(curves: &[&Curve]) -> Values {
    let values = || {
        curves
            .iter()
            .flat_map(|(_, points)| points)
            .map(|point| point.y)
    };
    let least = values().fold(f64::MAX, f64::min);
    let top = values().fold(f64::MIN_POSITIVE, f64::max);
    if least > 0.0 && top / least > FAR_APART {
        Values::Logarithmic(least * 0.7..top * 1.4)
    } else {
        Values::Linear(0.0..top * 1.1)
    }
}

/// See [`values`].
#[derive(Debug, PartialEq)]
enum Values {
    Linear(Range<f64>),
    Logarithmic(Range<f64>),
}

/// Draws curves over a logarithmic axis that starts at the smallest `x` above 0; for the other one
/// see [`values`]. Nothing is written when there is nothing to draw.
pub(crate) fn lines(path: &Path, title: &str, axes: [&str; 2], curves: &[Curve]) -> Result<()> {
    let curves = drawable(curves);
    if curves.is_empty() {
        return Ok(());
    }
    draw(path, title, axes, &worthwhile(&curves))
        .map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw(
    path: &Path,
    title: &str,
    axes: [&str; 2],
    curves: &[&Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let least = points().map(|point| point.x).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.x).fold(least, f64::max);
    let places = (least * 0.9..most * 1.1).log_scale();
    // One curve has its name in the title.
    let beside = if curves.len() > 1 { NAMES } else { 0 };
    let all = SVGBackend::new(path, (SIZE.0 + beside, SIZE.1)).into_drawing_area();
    all.fill(&WHITE)?;
    let (area, names) = all.split_horizontally(SIZE.0);
    let mut chart = ChartBuilder::on(&area);
    chart
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(60);
    match values(curves) {
        Values::Linear(range) => {
            draw_lines(chart.build_cartesian_2d(places, range)?, axes, curves)?;
        }
        Values::Logarithmic(range) => {
            let chart = chart.build_cartesian_2d(places, range.log_scale())?;
            draw_lines(chart, axes, curves)?;
        }
    }
    let named = curves.iter().filter(|_| beside > 0);
    for ((name, _), (row, color)) in named.zip((2..).zip(COLORS.iter().cycle())) {
        let y = row * LINE;
        names.draw(&PathElement::new([(0, y), (18, y)], color.stroke_width(2)))?;
        names.draw(&Text::new(name.as_str(), (26, y - 6), ("sans-serif", 13)))?;
    }
    all.present()?;
    Ok(())
}

/// Draws the axes, and the curves between them.
fn draw_lines<'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<LogCoord<f64>, Y>>,
    axes: [&str; 2],
    curves: &[&Curve],
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(axes[0])
        .y_desc(axes[1])
        .x_label_formatter(&|x| tick(*x))
        .draw()?;
    for ((_, points), color) in curves.iter().zip(COLORS.iter().cycle()) {
        let places = points.iter().map(|point| (point.x, point.y));
        let line = LineSeries::new(places, color.stroke_width(2)).point_size(3);
        chart.draw_series(line)?;
    }
    Ok(())
}

/// The label of a line of the logarithmic axis. The last ones of a decade are too close for labels.
fn tick(x: f64) -> String {
    let leading = x / 10f64.powf(x.log10().floor());
    if leading > 5.5 && leading < 9.5 {
        return String::new();
    }
    format!("{x:.*}", usize::from(x < 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_without_a_place_are_left_out() {
        let curve = |points: &[(f64, f64)]| {
            let points = points.iter().copied().map(Point::from);
            ("a".to_owned(), points.collect())
        };
        let curves = [
            curve(&[(0.0, 1.0), (2.0, 3.0), (4.0, f64::INFINITY)]),
            curve(&[(0.0, 1.0)]),
        ];
        assert_eq!(drawable(&curves), [curve(&[(2.0, 3.0)])]);
    }

    #[test]
    fn values_that_are_far_apart_have_a_logarithmic_axis() {
        let axis = |points: &[f64]| {
            let points = points.iter().map(|y| Point::from((1.0, *y))).collect();
            values(&[&("a".to_owned(), points)])
        };
        assert_eq!(axis(&[1.0, 100.0]), Values::Linear(0.0..100.0 * 1.1));
        assert_eq!(axis(&[0.0, 1e6]), Values::Linear(0.0..1e6 * 1.1));
        assert_eq!(axis(&[2.0, 1e6]), Values::Logarithmic(2.0 * 0.7..1e6 * 1.4));
    }

    #[test]
    fn a_point_has_the_quartiles_of_its_samples() {
        assert_eq!(Point::of(1.0, &[]), None);
        let point = Point::of(1.0, &[3.0, 1.0, 2.0, 5.0, 4.0]).unwrap();
        assert_eq!((point.y, point.quartiles), (3.0, [2.0, 4.0]));
    }

    #[test]
    fn labels_have_room() {
        let shown = [1.0, 5.0, 6.0, 9.0, 10.0, 0.5, 0.7, 500.0, 800.0, 1000.0].map(tick);
        let desired = ["1", "5", "", "", "10", "0.5", "", "500", "", "1000"];
        assert_eq!(shown, desired);
    }
}
