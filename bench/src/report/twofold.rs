//! Tables of switches that are measured in two ways each: beside themselves first.

use e2e::table::table as markdown;

use super::{cores, dropped, shown};
use crate::peers::Kind;
use crate::placement::Placement;
use crate::sample::{Sample, Verdict};
use crate::statistics::{median, ratio};

pub(crate) const PLACEMENTS: [Placement; 2] = [Placement::Near, Placement::Far];

/// Of both switches, in both ways.
type Both<T> = [[T; 2]; 2];

/// The contents of such a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Twofold {
    /// Heading of the first column.
    pub(crate) of: &'static str,
    /// Ours first.
    pub(crate) kinds: [Kind; 2],
    /// In a cell's series: the plain way, and the other one.
    pub(crate) series: [&'static str; 2],
    /// The other way, as headings have it.
    pub(crate) way: &'static str,
    pub(crate) figure: fn(&Sample) -> f64,
    pub(crate) unit: &'static str,
}

impl Twofold {
    /// Kept samples of what one switch did with one traffic in one way.
    pub(crate) fn kept<'a>(
        samples: &'a [Sample],
        (kind, series): (Kind, &str),
        name: &str,
        placement: Placement,
    ) -> Vec<&'a Sample> {
        let fits = |sample: &&Sample| {
            sample.peer == kind.name()
                && sample.cell.series == series
                && sample.cell.name == name
                && sample.placement == Some(placement)
                && sample.verdict == Verdict::Kept
        };
        samples.iter().filter(fits).collect()
    }

    /// Medians of both switches, in both ways, and their samples.
    pub(crate) fn medians<'a>(
        &self,
        samples: &'a [Sample],
        name: &str,
        placement: Placement,
    ) -> (Both<Option<f64>>, Both<Vec<&'a Sample>>) {
        let of = self.kinds.map(|kind| {
            let of = |series| Self::kept(samples, (kind, series), name, placement);
            self.series.map(of)
        });
        let middle = |samples: &Vec<&Sample>| {
            let values: Vec<f64> = samples.iter().map(|sample| (self.figure)(sample)).collect();
            median(&values)
        };
        (of.each_ref().map(|two| two.each_ref().map(middle)), of)
    }

    /// The table, and how many samples do not count.
    pub(crate) fn table(&self, samples: &[Sample]) -> String {
        let mut rows = Vec::new();
        for name in names(samples) {
            for placement in PLACEMENTS {
                rows.extend(self.row(samples, name, placement));
            }
        }
        markdown(&self.head(), &rows) + &dropped(samples)
    }

    fn head(&self) -> Vec<String> {
        let Self {
            kinds: [ours, theirs],
            series: [plain, other],
            way,
            unit,
            ..
        } = self;
        let (ours, theirs) = (ours.name(), theirs.name());
        let none = plain.strip_prefix("no ").map_or(*plain, |_| "none");
        let mut head = vec![
            self.of.to_owned(),
            "cores".to_owned(),
            format!("{ours}: {other} / {none}"),
            format!("{theirs}: {other} / {none}"),
            format!("with {way}: {ours} / {theirs}"),
        ];
        for kind in [ours, theirs] {
            head.extend([plain, other].map(|series| format!("{kind}, {series}, {unit}")));
        }
        head.push("samples".to_owned());
        head
    }

    fn row(&self, samples: &[Sample], name: &str, placement: Placement) -> Option<Vec<String>> {
        let ([ours, theirs], of) = self.medians(samples, name, placement);
        let all = of.iter().flatten().flatten().copied();
        all.clone().next()?;
        let price = |two: [Option<f64>; 2]| {
            ratio(two[1], two[0]).map_or_else(|| "-".to_owned(), |r| format!("{r:.3}x"))
        };
        let counts: Vec<String> = of.iter().flatten().map(|s| s.len().to_string()).collect();
        Some(vec![
            name.to_owned(),
            cores(placement, all),
            price(ours),
            price(theirs),
            shown(ratio(ours[1], theirs[1]), "x"),
            shown(ours[0], ""),
            shown(ours[1], ""),
            shown(theirs[0], ""),
            shown(theirs[1], ""),
            counts.join(" "),
        ])
    }
}

/// The names of measurements, in the order of the first samples.
pub(crate) fn names(samples: &[Sample]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for sample in samples {
        if !names.contains(&sample.cell.name.as_str()) {
            names.push(&sample.cell.name);
        }
    }
    names
}
