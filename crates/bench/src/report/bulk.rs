//! Bulk: what a switch moves, as a share of what a plain copy moves that was taken just before.

use super::{cells, dropped, kept, shown};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::sample::{Cell, PlainCopy, Sample};
use crate::statistics::median;

const HEAD: [&str; 11] = [
    "traffic",
    "switch",
    "cores",
    "share of memcpy",
    "GiB/s",
    "switch CPU, %",
    "client at work, %",
    "memcpy GiB/s",
    "copying, %",
    "client at work, %",
    "samples",
];

/// The table: medians of the kept samples.
pub(super) fn table(samples: &[Sample]) -> String {
    let mut rows = Vec::new();
    for cell in cells(samples) {
        for placement in [Placement::Near, Placement::Far] {
            for kind in Kind::ALL {
                rows.extend(row(samples, kind, &cell, placement));
            }
        }
    }
    let legend = "\nShare of memcpy: in each sample, of the plain copy just before it. At work: writing and reading \
                  payload; near 100 the client is the limit and not the switch. Switch CPU: all its processes, \
                  looking for work included.\n";
    super::table(&HEAD.map(str::to_owned), &rows) + legend + &dropped(samples)
}

fn row(samples: &[Sample], kind: Kind, cell: &Cell, placement: Placement) -> Option<Vec<String>> {
    let kept: Vec<(&Sample, PlainCopy)> = kept(samples, kind, cell, placement)
        .filter_map(|sample| Some((sample, sample.copy?)))
        .collect();
    if kept.is_empty() {
        return None;
    }
    let middle = |of: fn(&Sample, PlainCopy) -> Option<f64>| {
        let values: Vec<f64> = kept
            .iter()
            .filter_map(|(sample, copy)| of(sample, *copy))
            .collect();
        median(&values)
    };
    let percent =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    let trip = middle(|sample, _| Some(f64::midpoint(sample.before_ns, sample.after_ns)));
    Some(vec![
        cell.name.clone(),
        kind.name().to_owned(),
        format!("{}, {} ns", placement.name(), percent(trip)),
        shown(
            middle(|s, copy| Some(s.super_gib_per_second() / copy.gib_per_second.max(1e-9))),
            "x",
        ),
        shown(middle(|s, _| Some(s.super_gib_per_second())), ""),
        percent(middle(|s, _| Some(s.switch_percent))),
        percent(middle(|s, _| Some(100.0 * (1.0 - s.client_idle?)))),
        shown(middle(|_, copy| Some(copy.gib_per_second)), ""),
        percent(middle(|_, copy| Some(100.0 * copy.copying))),
        percent(middle(|_, copy| Some(100.0 * copy.client_working))),
        kept.len().to_string(),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::sample::Verdict;

    #[test]
    fn shares_are_of_the_copy_beside() {
        let bulk = |mpps, gib_per_second| Sample {
            client_idle: Some(0.25),
            copy: Some(PlainCopy {
                gib_per_second,
                copying: 0.9,
                client_working: 0.8,
            }),
            ..sample(Kind::Lasthop, mpps, Some(Placement::Near), Verdict::Kept)
        };
        // 0.1 Mpps of 65214 bytes are 6.07 GiB/s.
        let text = table(&[bulk(0.1, 6.0735), bulk(0.1, 12.147), bulk(0.1, 7.5918)]);
        assert_eq!(
            text.lines().nth(2),
            Some(
                "| 64 B split | Lasthop | near, 55 ns | 0.80x | 6.07 | 100 | 75 | 7.59 | 90 | 80 | 3 |"
            )
        );
        assert_eq!(
            table(&[sample(Kind::Ovs, 1.0, Some(Placement::Near), Verdict::Kept)])
                .lines()
                .next(),
            Some("Nothing was measured.")
        );
    }
}
