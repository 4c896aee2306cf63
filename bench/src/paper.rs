//! The figures of the papers beside what was published: which are asked here, by which experiment,
//! and whether the shape that a paper claims is found.

mod catalogue;
mod chart;
mod claims;
mod clock;
mod page;
mod published;
mod results;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use self::catalogue::{Asked, CORES, Figure};
use self::clock::{Clock, duration};
use self::page::Row;
use self::published::Published;
use self::results::{Key, Parts};
use crate::Experiment;
use crate::plan::{Plan, progress};
use crate::plot::{Chart, Curve};
use crate::report::Report;
use crate::stop;

/// Arguments of `lasthop-bench paper`.
#[derive(Debug, Args)]
pub(crate) struct PaperArguments {
    /// Print all figures and what asks them, and measure nothing
    #[arg(long)]
    list: bool,
    /// Figures to ask, as --list names them
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// More and longer samples: seven of a second in a row instead of three of 0.3 seconds
    #[arg(long)]
    pub(crate) full: bool,
    /// Directory of an earlier run: what it has measured with the same programs is not measured
    /// again
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
}

impl PaperArguments {
    /// Returns the chosen figures.
    ///
    /// # Errors
    /// An unknown one, as a text for the user.
    pub(crate) fn figures(&self) -> Result<Vec<&'static Figure>, String> {
        catalogue::chosen(&self.only)
    }

    /// Returns whether nothing is to be measured.
    pub(crate) fn lists(&self) -> bool {
        self.list
    }
}

/// State of a figure none of whose samples counts.
const UNDISTURBED: &str = "not measured: no sample was undisturbed";

/// Rounds, settling time and time of a sample with --full: shorter than those of an experiment by
/// itself, so that all figures take two hours at most.
pub(crate) const FULL: (u32, Duration, Duration) =
    (7, Duration::from_millis(300), Duration::from_secs(1));

/// Prints figures, with what asks them, how long that takes, and what was published.
///
/// # Errors
/// A file of published figures is wrong.
pub(crate) fn list(figures: &[&Figure], cores: usize, full: bool) -> Result<()> {
    let published = published::all()?;
    for figure in figures {
        let state = state(figure, cores);
        println!("{:<14} {:<46} {state}", figure.id, figure.title);
        for entry in of(&published, figure) {
            println!("{:14}   {}", "", entry.shown());
        }
    }
    let all = asked(figures, cores);
    let time = all
        .iter()
        .map(|(experiment, parts)| seconds(*experiment, parts, full));
    println!("All together they take about {}.", duration(time.sum()));
    Ok(())
}

fn of<'a>(published: &'a [Published], figure: &Figure) -> impl Iterator<Item = &'a Published> {
    published.iter().filter(|entry| entry.figure == figure.id)
}

fn state(figure: &Figure, cores: usize) -> String {
    match figure.asked {
        Asked::By(_) if cores < CORES => format!("not asked here: needs {CORES} cores"),
        Asked::By(sources) => {
            let names = sources.iter().map(|(experiment, _)| experiment.name());
            let mut names: Vec<String> = names.collect();
            names.dedup();
            format!("asked by {}", names.join(", "))
        }
        Asked::NotHere(reason) => format!("not asked here: {reason}"),
        Asked::NotBuilt(what) => format!("not built: {what}"),
    }
}

/// Experiments, each with the parts that are asked of it.
type Asks = Vec<(Experiment, Vec<&'static str>)>;

/// Questions of figures to a machine with so many cores, each experiment once.
fn asked(figures: &[&Figure], cores: usize) -> Asks {
    let mut all: Asks = Vec::new();
    let sources = figures.iter().flat_map(|figure| figure.sources());
    for &(experiment, part) in sources.filter(|_| cores >= CORES) {
        match all.iter_mut().find(|(other, _)| *other == experiment) {
            Some((_, parts)) if parts.contains(&part) => {}
            Some((_, parts)) => parts.push(part),
            None => all.push((experiment, vec![part])),
        }
    }
    all
}

/// The estimate for some parts of an experiment: their share of all that figures ask of it.
fn seconds(experiment: Experiment, parts: &[&str], full: bool) -> Duration {
    let all = asked(&catalogue::FIGURES.each_ref(), CORES);
    let of_all = all.iter().find(|(other, _)| *other == experiment);
    let of_all = of_all.map_or(1, |(_, parts)| parts.len().max(1));
    let seconds = catalogue::seconds(experiment)[usize::from(full)];
    Duration::from_secs(seconds).mul_f64(parts.len() as f64 / of_all as f64)
}

/// Runs the experiments of these figures, each once, and writes the page. With `resumes`, results
/// in the folder count that were measured with the same programs on the same machine.
///
/// # Errors
/// Signals, and files that cannot be written. An experiment that fails is a row of the page.
pub(crate) fn run(
    plan: &Plan,
    figures: &[&'static Figure],
    resumes: bool,
    measure: impl Fn(&Plan, Experiment) -> Result<Report>,
) -> Result<()> {
    let (published, key) = (published::all()?, Key::of(plan)?);
    let mut measured: Measured = Vec::new();
    let mut missing: Asks = Vec::new();
    for (experiment, parts) in asked(figures, plan.machine.cores) {
        let earlier = earlier(plan, &experiment.name(), &key, resumes);
        // Samples that were disturbed are no result.
        let is_missing = |part: &&&str| {
            let chart = earlier.get(**part);
            chart.is_none_or(|chart| chart.curves.is_empty())
        };
        let left = parts.iter().filter(is_missing);
        let left: Vec<&str> = left.copied().collect();
        measured.push((experiment, Ok(earlier)));
        if !left.is_empty() {
            missing.push((experiment, left));
        }
    }
    say_what_goes_without_root();
    let estimate =
        |(experiment, parts): &(Experiment, Vec<&str>)| seconds(*experiment, parts, !plan.quick);
    let mut clock = Clock::of(missing.iter().map(estimate).collect());
    for (number, (experiment, parts)) in (1..).zip(&missing) {
        let (name, count) = (experiment.name(), missing.len());
        clock.begin();
        progress(&format!("paper: experiment {number} of {count}, {name}"));
        let found = measured.iter_mut().find(|(other, _)| other == experiment);
        if let Some((_, of_it)) = found {
            let earlier = std::mem::replace(of_it, Ok(Parts::new())).unwrap_or_default();
            *of_it = one(plan, (*experiment, &parts[..]), (&key, earlier), &measure);
        }
        stop::check().inspect_err(|_| {
            let out = plan.out.display();
            progress(&format!(
                "what was measured is kept: 'lasthop-bench paper --resume {out}' continues"
            ));
        })?;
        clock.end();
    }
    let cores = plan.machine.cores;
    let rows: Vec<Row> = figures
        .iter()
        .map(|figure| row(figure, &published, &measured, cores))
        .collect();
    let path = page::write(plan, &rows)?;
    progress(&format!("{} is written", path.display()));
    Ok(())
}

/// Says what an ordinary user's run does without.
fn say_what_goes_without_root() {
    if !rustix::process::geteuid().is_root() {
        progress(
            "without root there are no huge pages, TAP devices and network namespaces: figures \
             are asked without OVS-DPDK and the bridge, and those with interfaces of the host are \
             not measured",
        );
    }
}

/// The results of each experiment.
type Measured = Vec<(Experiment, Result<Parts>)>;

/// Results of an earlier run that count.
fn earlier(plan: &Plan, experiment: &str, key: &Key, resumes: bool) -> Parts {
    if !resumes {
        return Parts::new();
    }
    results::load(&plan.out, experiment, key).unwrap_or_else(|reason| {
        progress(&format!("{experiment}: results {reason}, measured anew"));
        Parts::new()
    })
}

/// Measures parts of an experiment, and stores them beside earlier ones.
fn one(
    plan: &Plan,
    (experiment, asked): (Experiment, &[&'static str]),
    (key, earlier): (&Key, Parts),
    measure: impl Fn(&Plan, Experiment) -> Result<Report>,
) -> Result<Parts> {
    let mut plan = plan.clone();
    plan.parts = asked.to_vec();
    let report = measure(&plan, experiment)?;
    report.save(&plan.out)?;
    println!("{}", report.markdown());
    let mut parts = earlier;
    for part in asked {
        parts.insert((*part).to_owned(), report.chart_of(part));
    }
    results::store(&plan.out, &experiment.name(), key, &parts)?;
    Ok(parts)
}

fn row(figure: &'static Figure, published: &[Published], measured: &Measured, cores: usize) -> Row {
    let (mut state, mut charts): (String, Vec<Chart>) = (state(figure, cores), Vec::new());
    for &(experiment, part) in figure.sources() {
        let found = measured.iter().find(|(other, _)| *other == experiment);
        match found {
            Some((_, Ok(parts))) => {
                let chart = parts.get(part).filter(|chart| !chart.curves.is_empty());
                if chart.is_none() {
                    state = UNDISTURBED.to_owned();
                }
                charts.extend(chart.cloned());
            }
            Some((_, Err(error))) => state = format!("not measured: {error:#}"),
            None => {}
        }
    }
    let curves: Vec<Curve> = charts
        .iter()
        .flat_map(|chart| chart.curves.clone())
        .collect();
    let claims = figure.claims.iter();
    Row {
        figure,
        state,
        verdicts: claims
            .map(|asking| (asking.claim, asking.ask(&curves, cores)))
            .collect(),
        published: of(published, figure).cloned().collect(),
        charts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::catalogue::FIGURES;
    use crate::paper::claims::Verdict;

    #[test]
    fn an_experiment_is_asked_once_for_all_figures() {
        let all = asked(&FIGURES.each_ref(), 2);
        for (index, (experiment, parts)) in all.iter().enumerate() {
            assert!(
                all[index + 1..]
                    .iter()
                    .all(|(other, _)| other != experiment)
            );
            let whole = seconds(*experiment, parts, false);
            assert_eq!(whole.as_secs(), catalogue::seconds(*experiment)[0]);
        }
        assert_eq!(asked(&FIGURES.each_ref(), 1), []);
    }

    #[test]
    fn all_figures_take_no_longer_than_is_promised() {
        let all = asked(&FIGURES.each_ref(), 2);
        for (full, minutes) in [(false, 40), (true, 150)] {
            let time = all
                .iter()
                .map(|(experiment, parts)| seconds(*experiment, parts, full));
            assert!(time.sum::<Duration>() <= Duration::from_secs(60 * minutes));
        }
    }

    #[test]
    fn a_figure_without_a_sample_that_counts_says_so() {
        let figure = FIGURES
            .iter()
            .find(|figure| figure.id == "000-4.11")
            .unwrap();
        let chart = |curves| Chart {
            axes: ["pairs", "Gbit/s"].map(str::to_owned),
            curves,
            cores: "near".to_owned(),
            part: "super-frames".to_owned(),
        };
        let measured = |curves| {
            let parts = Parts::from([("super-frames".to_owned(), chart(curves))]);
            vec![(Experiment::Vifs, Ok(parts))]
        };
        let none = row(figure, &[], &measured(Vec::new()), 2);
        assert_eq!((none.state.as_str(), none.charts.len()), (UNDISTURBED, 0));
        let curves = vec![("Lasthop".to_owned(), vec![(1.0, 2.0).into()])];
        let some = row(figure, &[], &measured(curves), 2);
        assert_eq!(
            (some.state.as_str(), some.charts.len()),
            ("asked by vifs", 1)
        );
    }

    #[test]
    fn a_machine_with_too_few_cores_is_not_asked() {
        let figure = FIGURES
            .iter()
            .find(|figure| figure.id == "000-4.11")
            .unwrap();
        assert_eq!(state(figure, 1), "not asked here: needs 2 cores");
        let row = row(figure, &[], &Vec::new(), 1);
        assert!(row.charts.is_empty());
        let reasons = row.verdicts.iter().map(|(_, verdict)| verdict);
        assert!(
            reasons
                .clone()
                .all(|verdict| matches!(verdict, Verdict::NotAsked(_)))
        );
    }
}
