//! Bulk: what a switch moves, as a share of what a plain copy moves that was taken just before.

use serde::Serialize;

use super::{Figures, cells, cores, dropped, kept, shown};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::sample::{Busy, Cell, Sample};
use crate::statistics::median;

const HEAD: [&str; 9] = [
    "traffic",
    "switch",
    "cores",
    "share of memcpy, per busy second",
    "GiB per busy second",
    "memcpy GiB per busy second",
    "GiB/s without pause",
    "client at work meanwhile, %",
    "samples",
];

/// Samples of super-frames, of several peers, each with a plain copy. Two bars a peer say no more
/// than the table.
#[derive(Debug, Serialize)]
pub(crate) struct Bulk {
    pub(crate) samples: Vec<Sample>,
}

impl Figures for Bulk {
    fn tables(&self) -> String {
        table(&self.samples)
    }
}

/// The table: medians of the kept samples.
fn table(samples: &[Sample]) -> String {
    let mut rows = Vec::new();
    for cell in cells(samples) {
        for placement in [Placement::Near, Placement::Far] {
            for kind in Kind::ALL {
                rows.extend(row(samples, kind, &cell, placement));
            }
        }
    }
    let legend = "\nPer busy second: the client writes frames at both ports, publishes them all, \
        and reads them when the last has \
                  arrived; the time between counts, in which the switch is the only one to work. \
                  memcpy: on the switch's \
                  core, of the same frames, in the same way, just before each sample. Without \
                  pause: the client writes \
                  and reads all the time; near 100 % at work it is the limit.\n";
    super::table(&HEAD.map(str::to_owned), &rows) + legend + &dropped(samples)
}

fn row(samples: &[Sample], kind: Kind, cell: &Cell, placement: Placement) -> Option<Vec<String>> {
    let kept: Vec<(&Sample, Busy)> = kept(samples, kind, cell, placement)
        .filter_map(|sample| Some((sample, sample.busy?)))
        .collect();
    if kept.is_empty() {
        return None;
    }
    let middle = |of: fn(&Sample, Busy) -> Option<f64>| {
        let values: Vec<f64> = kept
            .iter()
            .filter_map(|(sample, busy)| of(sample, *busy))
            .collect();
        median(&values)
    };
    let working = middle(|sample, _| Some(100.0 * (1.0 - sample.client_idle?)));
    let share = middle(|_, busy| Some(busy.switch_gib / busy.memcpy_gib.max(1e-9)));
    Some(vec![
        cell.name.clone(),
        kind.name().to_owned(),
        cores(placement, kept.iter().map(|(sample, _)| *sample)),
        shown(share, "x"),
        shown(middle(|_, busy| Some(busy.switch_gib)), ""),
        shown(middle(|_, busy| Some(busy.memcpy_gib)), ""),
        shown(middle(|sample, _| Some(sample.super_gib_per_second())), ""),
        working.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}")),
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
        let bulk = |switch_gib, memcpy_gib| Sample {
            client_idle: Some(0.25),
            busy: Some(Busy {
                switch_gib,
                memcpy_gib,
            }),
            ..sample(Kind::Lasthop, 0.1, Some(Placement::Near), Verdict::Kept)
        };
        // 0.1 Mpps of 65214 bytes are 6.07 GiB/s.
        let text = table(&[bulk(8.0, 8.0), bulk(8.0, 16.0), bulk(8.0, 10.0)]);
        assert_eq!(
            text.lines().nth(2),
            Some("| 64 B split | Lasthop | near, 55 ns | 0.80x | 8.00 | 10.00 | 6.07 | 75 | 3 |")
        );
        assert_eq!(
            table(&[sample(Kind::Ovs, 1.0, Some(Placement::Near), Verdict::Kept)])
                .lines()
                .next(),
            Some("Nothing was measured.")
        );
    }
}
