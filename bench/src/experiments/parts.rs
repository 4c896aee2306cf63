//! Experiments in parts: each part is a table, and a plot where it has a line. A row's figure is a
//! median of the samples at one placement of the cores.

mod tables;

use anyhow::Result;
use serde::{Serialize, Serializer};

use crate::hugepages::HugePages;
use crate::peers::Kind;
use crate::placement::{Placement, round_trip};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::statistics::median;
use crate::stop;

use tables::Parts;

/// One part of an experiment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// The names of a row's number and of the measured value.
    pub(crate) axes: [&'static str; 2],
    /// The figures of a paper, of its machine.
    pub(crate) published: &'static str,
}

impl Part {
    /// Returns whether the numbers of rows stand for names, as in `1: one thing, 2: another`, so
    /// that lines between them would mean nothing.
    pub(crate) fn is_enumerated(&self) -> bool {
        self.axes[0].starts_with("1: ")
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) part: &'static Part,
    /// The way of the frames.
    pub(crate) way: String,
    pub(crate) x: f64,
    pub(crate) value: f64,
    pub(crate) trips_ns: [f64; 2],
    /// `None`: the cores were at different places before and after.
    pub(crate) placement: Option<Placement>,
}

/// Bound of an aim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Measurements that are being taken.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    experiment: &'static str,
    samples: Vec<Sample>,
    notes: Vec<String>,
    _pages: Option<HugePages>,
}

impl<'a> Run<'a> {
    /// Makes room for these peers.
    pub(crate) fn new(
        plan: &'a Plan,
        experiment: &'static str,
        notes: &[&str],
        kinds: &[Kind],
    ) -> Self {
        let mut notes: Vec<String> = notes.iter().map(|&note| note.to_owned()).collect();
        let desired = kinds.iter().map(|kind| kind.huge_pages()).sum();
        let pages = HugePages::reserve(desired)
            .map_err(|error| notes.push(format!("no huge pages, so no DPDK peers: {error:#}")));
        Self {
            plan,
            experiment,
            samples: Vec::new(),
            notes,
            _pages: pages.ok(),
        }
    }

    /// Measures something; a failure is a note, once.
    pub(crate) fn attempt(
        &mut self,
        what: &str,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        stop::check()?;
        if let Err(error) = measure(self) {
            stop::check()?;
            let failed = format!("{what} was not measured to the end: {error:#}");
            progress(&failed);
            if !self.notes.contains(&failed) {
                self.notes.push(failed);
            }
        }
        Ok(())
    }

    /// Takes one sample.
    pub(crate) fn take(
        &mut self,
        part: &'static Part,
        way: &str,
        x: f64,
        measure: impl FnOnce() -> Result<f64>,
    ) -> Result<()> {
        self.take_all([part], way, x, || Ok([measure()?]))
    }

    /// Takes samples of several parts with one measurement.
    pub(crate) fn take_all<const N: usize>(
        &mut self,
        parts: [&'static Part; N],
        way: &str,
        x: f64,
        measure: impl FnOnce() -> Result<[f64; N]>,
    ) -> Result<()> {
        stop::check()?;
        let before = round_trip(self.plan.cores)?;
        let values = measure()?;
        let trips_ns = [before, round_trip(self.plan.cores)?];
        let placement = Placement::of_both(trips_ns, self.plan.near_below);
        for (part, value) in parts.into_iter().zip(values) {
            let (experiment, name) = (self.experiment, part.name);
            progress(&format!("{experiment}: {name}, {way}, {x:.0}: {value:.2}"));
            self.samples.push(Sample {
                part,
                way: way.to_owned(),
                x,
                value,
                trips_ns,
                placement,
            });
        }
        Ok(())
    }

    /// The last sample.
    pub(crate) fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// The placement of the last sample.
    pub(crate) fn placement(&self) -> Option<Placement> {
        self.samples.last()?.placement
    }

    /// Adds a figure that was computed from the last sample.
    pub(crate) fn add(&mut self, part: &'static Part, value: f64) {
        let Some(last) = self.samples.last() else {
            return;
        };
        let sample = Sample {
            part,
            value,
            way: last.way.clone(),
            ..*last
        };
        self.samples.push(sample);
    }

    /// The same, of another way.
    pub(crate) fn add_way(&mut self, part: &'static Part, way: &str, value: f64) {
        self.add(part, value);
        if let Some(last) = self.samples.last_mut() {
            way.clone_into(&mut last.way);
        }
    }

    /// As [`Run::add`], of another way and at another place.
    pub(crate) fn add_way_at(&mut self, part: &'static Part, way: &str, x: f64, value: f64) {
        self.add_way(part, way, value);
        if let Some(last) = self.samples.last_mut() {
            last.x = x;
        }
    }

    /// The value of the last sample of a part.
    pub(crate) fn last_of(&self, part: &Part) -> Option<f64> {
        let mut latest = self.samples.iter().rev();
        Some(latest.find(|sample| sample.part == part)?.value)
    }

    /// As [`Run::add`], at another place.
    pub(crate) fn add_at(&mut self, part: &'static Part, x: f64, value: f64) {
        self.add(part, value);
        if let Some(last) = self.samples.last_mut() {
            last.x = x;
        }
    }

    /// Adds a note.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// The median of a way's samples at this place, with near cores if there are such.
    pub(crate) fn median(&self, part: &Part, x: f64, way: &str) -> Option<(f64, Placement)> {
        let at = |placement| Some((self.median_at(part, x, way, placement)?, placement));
        [Placement::Near, Placement::Far].into_iter().find_map(at)
    }

    fn median_at(&self, part: &Part, x: f64, way: &str, placement: Placement) -> Option<f64> {
        let is_here = |sample: &&Sample| {
            let is_same = sample.part == part && sample.x == x && sample.way == way;
            is_same && sample.placement == Some(placement)
        };
        let here = self.samples.iter().filter(is_here);
        let values: Vec<f64> = here.map(|sample| sample.value).collect();
        median(&values)
    }

    /// The quotient of two ways' medians at this place, with near cores if both have such.
    pub(crate) fn ratio(
        &self,
        part: &Part,
        x: f64,
        [of, to]: [&str; 2],
    ) -> Option<(f64, Placement)> {
        let at = |placement| {
            let of = self.median_at(part, x, of, placement)?;
            let to = self.median_at(part, x, to, placement)?;
            (to > 0.0).then_some((of / to, placement))
        };
        [Placement::Near, Placement::Far].into_iter().find_map(at)
    }

    /// Notes whether an aim is met.
    pub(crate) fn aim(
        &mut self,
        what: &str,
        seen: Option<(f64, Placement)>,
        bound: Bound,
        unit: &str,
    ) {
        let aim = match bound {
            Bound::AtLeast(least) => format!("at least {least}{unit}"),
            Bound::AtMost(most) => format!("at most {most}{unit}"),
        };
        let result = match seen {
            None => "not measured".to_owned(),
            Some((value, placement)) => {
                let is_met = match bound {
                    Bound::AtLeast(least) => value >= least,
                    Bound::AtMost(most) => value <= most,
                };
                let verdict = if is_met { "met" } else { "missed" };
                format!(
                    "{verdict}, {value:.2}{unit} with {} cores",
                    placement.name()
                )
            }
        };
        self.note(&format!("aim: {what}: {aim}: {result}"));
    }

    pub(crate) fn report(self, title: &str) -> Report {
        let samples = self.samples;
        let figures = Parts { samples };
        Report::new(self.plan, self.experiment, title, self.notes, figures)
    }
}
