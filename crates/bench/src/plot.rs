//! Plots of lines with points, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A name and its points.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

const SIZE: (u32, u32) = (800, 480);
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// Draws curves over a logarithmic axis that starts at the smallest `x`; the other starts at 0. Nothing is written
/// when there is nothing to draw.
pub(crate) fn lines(path: &Path, title: &str, axes: [&str; 2], curves: &[Curve]) -> Result<()> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    if points().next().is_none() {
        return Ok(());
    }
    draw(path, title, axes, curves).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw(
    path: &Path,
    title: &str,
    axes: [&str; 2],
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let least = points().map(|point| point.0).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.0).fold(least, f64::max);
    let top = points()
        .map(|point| point.1)
        .fold(f64::MIN_POSITIVE, f64::max);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((least * 0.9..most * 1.1).log_scale(), 0.0..top * 1.1)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(axes[0])
        .y_desc(axes[1])
        .x_label_formatter(&|x| format!("{x:.*}", usize::from(*x < 1.0)))
        .draw()?;
    for ((name, points), color) in curves.iter().zip(COLORS.iter().cycle()) {
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    // One curve has its name in the title. The corner is empty, because curves hardly ever come near 0.
    if curves.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    area.present()?;
    Ok(())
}
