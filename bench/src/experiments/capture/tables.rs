//! Captures: throughput beside them and what they had, and the rates at which they miss nothing.

use e2e::table::table as markdown;
use serde::Serialize;

use super::{NONE, Whole};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::report::{Figures, cells, cores, dropped, kept, kinds, shown};
use crate::sample::{Cell, Sample};
use crate::statistics::{median, ratio};

const PLACEMENTS: [Placement; 2] = [Placement::Near, Placement::Far];
const BESIDE: [&str; 11] = [
    "traffic",
    "capture",
    "switch",
    "cores",
    "throughput to none",
    "forwarding a frame to none",
    "Mpps",
    "forwarding a frame, ns",
    "captured, Mpps (missed)",
    "writing a frame, ns",
    "samples",
];
const SEARCHED: [&str; 8] = [
    "traffic",
    "capture",
    "switch",
    "cores",
    "Lasthop's rate to its",
    "kpps without a miss (each search)",
    "Gbit/s",
    "missed at, kpps",
];

/// Samples of switches with captures and without, which a cell's series says, and searches.
#[derive(Debug, Serialize)]
pub(super) struct CaptureFigures {
    pub(super) samples: Vec<Sample>,
    pub(super) whole: Vec<Whole>,
}

impl Figures for CaptureFigures {
    fn tables(&self) -> String {
        tables(&self.samples, &self.whole)
    }
}

/// Both tables.
fn tables(samples: &[Sample], whole: &[Whole]) -> String {
    let mut rows = Vec::new();
    for cell in cells(samples) {
        for placement in PLACEMENTS {
            for kind in kinds(samples) {
                rows.extend(row(samples, &cell, kind, placement));
            }
        }
    }
    let legend = "\nForwarding a frame: CPU time of the forwarding thread for each frame that \
        arrived. Captured: frames written for each second of \
        traffic, the last of them from what waited when it ended. Writing a frame: CPU time of all \
        that is behind the switch, for each frame that was written.\n";
    let beside = markdown(&BESIDE.map(str::to_owned), &rows) + legend + &dropped(samples);
    format!(
        "{beside}\nOne way, as many frames a second as a capture can take without missing one:\n\n\
         {}",
        searches(whole)
    )
}

fn row(samples: &[Sample], cell: &Cell, kind: Kind, placement: Placement) -> Option<Vec<String>> {
    let of = |cell: &Cell| -> Vec<&Sample> { kept(samples, kind, cell, placement).collect() };
    let (own, without) = (
        of(cell),
        of(&Cell {
            series: NONE.to_owned(),
            ..cell.clone()
        }),
    );
    if own.is_empty() {
        return None;
    }
    let rate = |samples: &[&Sample]| middle(samples, |sample| Some(sample.mpps));
    let forwarding = |samples: &[&Sample]| middle(samples, |sample| sample.captured?.forwarding_ns);
    Some(vec![
        cell.name.clone(),
        cell.series.clone(),
        kind.name().to_owned(),
        cores(placement, own.iter().copied()),
        shown(ratio(rate(&own), rate(&without)), "x"),
        shown(ratio(forwarding(&own), forwarding(&without)), "x"),
        shown(rate(&own), ""),
        whole_ns(forwarding(&own)),
        captured(&own),
        whole_ns(middle(&own, |sample| sample.captured?.writing_ns)),
        own.len().to_string(),
    ])
}

/// Frames captured a second and the share that was missed; where there was none to be captured,
/// nothing.
fn captured(samples: &[&Sample]) -> String {
    let mpps = middle(samples, |sample| {
        let captured = sample.captured?;
        (captured.written > 0).then(|| captured.written as f64 / captured.seconds / 1e6)
    });
    let missed = middle(samples, |sample| {
        let captured = sample.captured?;
        let missed = captured.meant.saturating_sub(captured.written);
        (captured.written > 0).then(|| 100.0 * missed as f64 / captured.meant.max(1) as f64)
    });
    match (mpps, missed) {
        (Some(mpps), Some(missed)) => format!("{mpps:.3} ({missed:.1} %)"),
        _ => "-".to_owned(),
    }
}

fn whole_ns(ns: Option<f64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"))
}

fn middle(samples: &[&Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = samples.iter().filter_map(|sample| figure(sample)).collect();
    median(&values)
}

fn searches(whole: &[Whole]) -> String {
    let mut traffics: Vec<&str> = Vec::new();
    for search in whole {
        if !traffics.contains(&search.traffic.as_str()) {
            traffics.push(&search.traffic);
        }
    }
    let mut rows = Vec::new();
    for traffic in traffics {
        for placement in PLACEMENTS {
            let of = |kind: Kind| -> Vec<&Whole> {
                let all = whole.iter().filter(|search| {
                    search.traffic == traffic
                        && search.peer == kind.name()
                        && search.placement == Some(placement)
                });
                all.collect()
            };
            let ours = rate(&of(Kind::Lasthop));
            for kind in Kind::ALL {
                rows.extend(search_row(&of(kind), kind, placement, ours));
            }
        }
    }
    let flipped = whole.iter().filter(|search| search.placement.is_none());
    let (all, flipped) = (whole.len(), flipped.count());
    let table = markdown(&SEARCHED.map(str::to_owned), &rows);
    format!("{table}\nOf {all} searches, {flipped} were dropped because the placement flipped.\n")
}

fn search_row(
    searches: &[&Whole],
    kind: Kind,
    placement: Placement,
    ours: Option<f64>,
) -> Option<Vec<String>> {
    let first = searches.first()?;
    let trips: Vec<f64> = searches.iter().flat_map(|search| search.trips_ns).collect();
    let rates: Vec<String> = searches
        .iter()
        .map(|search| format!("{:.0}", search.rate / 1e3))
        .collect();
    let middle = rate(searches);
    let missed: Vec<f64> = searches.iter().filter_map(|s| s.missed_at).collect();
    let limits = searches.iter().filter(|s| s.no_more_came).count();
    let mut at = median(&missed).map_or_else(|| "-".to_owned(), |at| format!("{:.0}", at / 1e3));
    if limits > 0 {
        at += &format!(" ({limits} ended because no more were let in)");
    }
    let gbit = middle.map(|rate| rate * f64::from(first.bytes) * 8.0 / 1e9);
    Some(vec![
        first.traffic.clone(),
        first.capture.to_owned(),
        kind.name().to_owned(),
        format!("{}, {:.0} ns", placement.name(), median(&trips)?),
        match kind {
            Kind::Lasthop => "-".to_owned(),
            _ => shown(ratio(ours, middle), "x"),
        },
        format!("{:.0} ({})", middle? / 1e3, rates.join(" ")),
        shown(gbit, ""),
        at,
    ])
}

fn rate(searches: &[&Whole]) -> Option<f64> {
    let rates: Vec<f64> = searches.iter().map(|search| search.rate).collect();
    median(&rates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Captured;
    use crate::report::tests::sample;
    use crate::sample::Verdict;

    #[test]
    fn rows_are_compared_with_those_without_a_capture() {
        let of = |series: &str, mpps, forwarding_ns, (meant, written)| {
            let mut sample = sample(Kind::Lasthop, mpps, Some(Placement::Near), Verdict::Kept);
            sample.cell.series = series.to_owned();
            sample.captured = Some(Captured {
                meant,
                written,
                seconds: 2.0,
                forwarding_ns: Some(forwarding_ns),
                writing_ns: (written > 0).then_some(300.0),
            });
            sample
        };
        let samples = [
            of(NONE, 20.0, 50.0, (0, 0)),
            of("whole frames", 10.0, 75.0, (4_000_000, 1_000_000)),
        ];
        let text = tables(&samples, &[]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| 64 B split | none | Lasthop | near, 55 ns | 1.00x | 1.00x | 20.00 | 50 | - | - | 1 |"
        );
        assert_eq!(
            lines[3],
            "| 64 B split | whole frames | Lasthop | near, 55 ns | 0.50x | 1.50x | 10.00 | 75 | \
             0.500 (75.0 %) | 300 | 1 |"
        );
    }

    #[test]
    fn searches_are_shown_beside_each_other() {
        let of = |kind: Kind, rate, missed_at: Option<f64>| Whole {
            peer: kind.name().to_owned(),
            traffic: "1500 B".to_owned(),
            capture: "whole frames",
            bytes: 1500,
            rate,
            missed_at,
            no_more_came: missed_at.is_none(),
            trips_ns: [55.0, 57.0],
            placement: Some(Placement::Near),
        };
        let all = [
            of(Kind::Lasthop, 800e3, Some(850e3)),
            of(Kind::Lasthop, 1000e3, None),
            of(Kind::Ovs, 90e3, Some(100e3)),
        ];
        let text = searches(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| 1500 B | whole frames | Lasthop | near, 56 ns | - | 900 (800 1000) | 10.80 | 850 (1 \
             ended because no more were let in) |"
        );
        assert_eq!(
            lines[3],
            "| 1500 B | whole frames | OVS-DPDK | near, 56 ns | 10.00x | 90 (90) | 1.08 | 100 |"
        );
    }
}
