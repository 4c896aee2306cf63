//! Guests that compute and sleep: a row for each scenario, setting and placement; what it is judged
//! by beside the same switch without rules.

use anyhow::Result;
use e2e::table::table as markdown;
use serde::Serialize;

use super::base;
use crate::clients::Exchange;
use crate::placement::Placement;
use crate::plot::{Curve, Point};
use crate::report::{Drawn, Figures, Plots, cores, dropped, shown};
use crate::sample::{Sample, Verdict};
use crate::statistics::{median, ratio};

const HEAD: [&str; 13] = [
    "what guests do",
    "switch",
    "cores",
    "rate to rules off",
    "answers/s",
    "Gbit/s",
    "p50, us",
    "p99, us",
    "switch's CPU, %",
    "all CPU, %",
    "kicks a frame",
    "interrupts a frame",
    "samples",
];

/// Samples of guests; a cell's series is the switch with its settings.
#[derive(Debug, Serialize)]
pub(super) struct Exchanges {
    pub(super) samples: Vec<Sample>,
}

impl Figures for Exchanges {
    fn tables(&self) -> String {
        table(&self.samples)
    }

    fn save_plots(&self, plots: &Plots<'_>) -> Result<()> {
        save_plots(&self.samples, plots)
    }

    fn chart(&self, prefix: &str, placement: Placement) -> Drawn {
        rates(&self.samples, prefix, placement)
    }
}

/// One figure of a sample.
type Figure = fn(&Sample) -> f64;

/// Returns the measure of an exchange: a scenario has requests or data, never both.
fn rate(sample: &Sample) -> f64 {
    of(sample, |exchange| exchange.answers.max(exchange.gbit))
}

fn of(sample: &Sample, figure: impl Fn(&Exchange) -> f64) -> f64 {
    sample.exchange.as_ref().map_or(0.0, figure)
}

/// Kept samples of one scenario, setting and placement.
fn kept<'a>(
    samples: &'a [Sample],
    scenario: &str,
    series: &str,
    placement: Placement,
) -> Vec<&'a Sample> {
    let fits = |sample: &&Sample| {
        sample.cell.name == scenario
            && sample.cell.series == series
            && sample.placement == Some(placement)
            && sample.verdict == Verdict::Kept
    };
    samples.iter().filter(fits).collect()
}

fn values(samples: &[&Sample], figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(|sample| figure(sample)).collect()
}

fn middle(samples: &[&Sample], figure: impl Fn(&Sample) -> f64) -> Option<f64> {
    median(&values(samples, figure))
}

/// Different texts in the order of their first sample.
fn texts(samples: &[Sample], text: fn(&Sample) -> &String) -> Vec<&String> {
    let mut all = Vec::new();
    for sample in samples {
        if !all.contains(&text(sample)) {
            all.push(text(sample));
        }
    }
    all
}

/// The table: medians of the kept samples.
fn table(samples: &[Sample]) -> String {
    let mut rows = Vec::new();
    for scenario in texts(samples, |sample| &sample.cell.name) {
        for placement in [Placement::Near, Placement::Far] {
            for series in texts(samples, |sample| &sample.cell.series) {
                let own = kept(samples, scenario, series, placement);
                let off = kept(samples, scenario, base(series), placement);
                if !own.is_empty() {
                    rows.push(row(scenario, series, placement, &own, &off));
                }
            }
        }
    }
    markdown(&HEAD.map(str::to_owned), &rows) + &dropped(samples)
}

fn row(
    scenario: &str,
    series: &str,
    placement: Placement,
    own: &[&Sample],
    off: &[&Sample],
) -> Vec<String> {
    let beside = if series == base(series) {
        None
    } else {
        ratio(middle(own, rate), middle(off, rate))
    };
    let figure = |figure: fn(&Exchange) -> f64, digits: usize| {
        let value = middle(own, |sample| of(sample, figure)).filter(|value| *value > 0.0);
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let percent = |figure: Figure| format!("{:.1}", middle(own, figure).unwrap_or_default());
    vec![
        scenario.to_owned(),
        series.to_owned(),
        cores(placement, own.iter().copied()),
        shown(beside, "x"),
        figure(|exchange| exchange.answers, 0),
        figure(|exchange| exchange.gbit, 2),
        figure(|exchange| exchange.p50_us, 1),
        figure(|exchange| exchange.p99_us, 1),
        percent(|sample| sample.switch_percent),
        percent(|sample| sample.all_percent),
        figure(|exchange| exchange.kicks, 3),
        figure(|exchange| exchange.interrupts, 3),
        own.len().to_string(),
    ]
}

/// A plot for each kind of scenario and figure: one curve for each setting.
fn save_plots(samples: &[Sample], plots: &Plots<'_>) -> Result<()> {
    let drawn: [(&str, &str, [&str; 2], Figure); 4] = [
        (
            "requests, 1 at once",
            "requests",
            ["bytes", "answers/s"],
            rate,
        ),
        ("stream, ", "streams", ["bytes of payload", "Gbit/s"], rate),
        (
            "load, ",
            "latency",
            ["requests a second", "p50, us"],
            |sample| of(sample, |exchange| exchange.p50_us),
        ),
        (
            "load, ",
            "cpu",
            ["requests a second", "CPU of the switch, %"],
            |sample| sample.switch_percent,
        ),
    ];
    for (prefix, suffix, axes, figure) in drawn {
        for placement in [Placement::Near, Placement::Far] {
            let curves = curves(samples, prefix, placement, figure);
            let name = placement.name();
            let title = format!("{}, cores {name}", prefix.trim_end_matches(", "));
            plots.lines(&format!("{suffix}-{name}"), &title, axes, &curves)?;
        }
    }
    Ok(())
}

/// The scenarios whose names begin so, by what these are about.
fn rates(samples: &[Sample], prefix: &str, placement: Placement) -> Drawn {
    let axes = if prefix.starts_with("requests") {
        ["bytes of payload", "answers a second"]
    } else if prefix.starts_with("streams") {
        ["guests or pairs", "Gbit/s of all"]
    } else {
        ["bytes of payload", "Gbit/s"]
    };
    (
        axes.map(str::to_owned),
        curves(samples, prefix, placement, rate),
    )
}

fn curves(samples: &[Sample], prefix: &str, placement: Placement, figure: Figure) -> Vec<Curve> {
    let scenarios = texts(samples, |sample| &sample.cell.name);
    let of_series = |series: &String| {
        let points = scenarios.iter().filter(|name| name.starts_with(prefix));
        let points = points.filter_map(|name| {
            let own = kept(samples, name, series, placement);
            Point::of(own.first()?.cell.x, &values(&own, figure))
        });
        (series.clone(), points.collect::<Vec<_>>())
    };
    let series = texts(samples, |sample| &sample.cell.series);
    let curves = series.into_iter().map(of_series);
    curves.filter(|(_, points)| !points.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Kind;
    use crate::report::tests::sample;
    use crate::sample::Cell;

    const RULES_OFF: &str = "Lasthop, rules off";

    fn guests(series: &str, answers: f64, placement: Placement) -> Sample {
        let cell = Cell {
            name: "requests, 1 at once, 64 B".to_owned(),
            series: series.to_owned(),
            x: 64.0,
        };
        Sample {
            cell,
            exchange: Some(Exchange {
                answers,
                ..Exchange::default()
            }),
            ..sample(Kind::Lasthop, 1.0, Some(placement), Verdict::Kept)
        }
    }

    #[test]
    fn settings_are_compared_with_the_rules_off_at_the_same_place() {
        let samples = [
            guests(RULES_OFF, 1000.0, Placement::Near),
            guests("Lasthop", 1500.0, Placement::Near),
            guests("Lasthop", 900.0, Placement::Far),
        ];
        let text = table(&samples);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].contains("| - | 1000 |"), "{text}");
        assert!(lines[1].contains("| 1.50x | 1500 |"), "{text}");
        // Nothing to compare it with.
        assert!(lines[2].contains("| - | 900 |"), "{text}");
    }

    #[test]
    fn a_plot_has_a_curve_for_each_setting() {
        let samples = [
            guests(RULES_OFF, 1000.0, Placement::Near),
            guests("Lasthop", 1500.0, Placement::Near),
        ];
        let curves = curves(&samples, "requests, 1", Placement::Near, rate);
        let desired = [(RULES_OFF, 1000.0), ("Lasthop", 1500.0)];
        let desired = desired.map(|(name, y)| (name.to_owned(), vec![Point::from((64.0, y))]));
        assert_eq!(curves, desired);
    }
}
