//! The figures of the papers beside what was published: which are asked here, by which experiment,
//! and whether the shape that a paper claims is found.

mod catalogue;
mod claims;
mod page;
mod published;
mod results;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use self::catalogue::{Asked, Figure};
use self::page::Row;
use self::published::Published;
use self::results::{Key, Parts};
use crate::Experiment;
use crate::plan::{Plan, progress};
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
    /// Samples as long as those of the experiments without --quick
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

/// Prints figures, with what asks them and what was published.
///
/// # Errors
/// A file of published figures is wrong.
pub(crate) fn list(figures: &[&Figure]) -> Result<()> {
    let published = published::all()?;
    for figure in figures {
        println!("{:<14} {:<46} {}", figure.id, figure.title, state(figure));
        for entry in of(&published, figure) {
            println!("{:14}   {}", "", entry.shown());
        }
    }
    Ok(())
}

fn of<'a>(published: &'a [Published], figure: &Figure) -> impl Iterator<Item = &'a Published> {
    published.iter().filter(|entry| entry.figure == figure.id)
}

fn state(figure: &Figure) -> String {
    match figure.asked {
        Asked::By(experiment, _) => format!("asked by {}", experiment.name()),
        Asked::NotHere(reason) => format!("not asked here: {reason}"),
        Asked::NotBuilt(what) => format!("not built: {what}"),
    }
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
    let mut measured: Vec<(Experiment, Result<Parts>)> = Vec::new();
    let all = experiments(figures);
    for (number, experiment) in (1..).zip(&all) {
        let (name, count) = (experiment.name(), all.len());
        progress(&format!("paper: experiment {number} of {count}, {name}"));
        let parts = match earlier(plan, &name, &key, resumes) {
            Some(parts) => Ok(parts),
            None => one(plan, *experiment, &key, &measure),
        };
        stop::check()?;
        measured.push((*experiment, parts));
    }
    let rows: Vec<Row> = figures
        .iter()
        .map(|figure| row(figure, &published, &measured))
        .collect();
    let path = page::write(plan, &rows)?;
    progress(&format!("{} is written", path.display()));
    Ok(())
}

/// Results of an earlier run that count.
fn earlier(plan: &Plan, experiment: &str, key: &Key, resumes: bool) -> Option<Parts> {
    if !resumes {
        return None;
    }
    match results::load(&plan.out, experiment, key) {
        Ok(parts) => parts,
        Err(reason) => {
            progress(&format!("{experiment}: results {reason}, measured anew"));
            None
        }
    }
}

/// Measures an experiment, and stores what all figures ask of it.
fn one(
    plan: &Plan,
    experiment: Experiment,
    key: &Key,
    measure: impl Fn(&Plan, Experiment) -> Result<Report>,
) -> Result<Parts> {
    let report = measure(plan, experiment)?;
    report.save(&plan.out)?;
    println!("{}", report.markdown());
    let parts = catalogue::FIGURES
        .iter()
        .filter_map(|figure| match figure.asked {
            Asked::By(other, part) if other == experiment => {
                Some((part.to_owned(), report.curves_of(part)))
            }
            _ => None,
        });
    let parts = parts.collect();
    results::store(&plan.out, &experiment.name(), key, &parts)?;
    Ok(parts)
}

fn row(
    figure: &'static Figure,
    published: &[Published],
    measured: &[(Experiment, Result<Parts>)],
) -> Row {
    let (mut state, mut curves) = (state(figure), Vec::new());
    if let Asked::By(experiment, part) = figure.asked {
        let found = measured.iter().find(|(other, _)| *other == experiment);
        match found {
            Some((_, Ok(parts))) => curves = parts.get(part).cloned().unwrap_or_default(),
            Some((_, Err(error))) => state = format!("not measured: {error:#}"),
            None => {}
        }
    }
    let claims = figure.claims.iter();
    Row {
        figure,
        state,
        verdicts: claims.map(|claim| (*claim, claim.ask(&curves))).collect(),
        published: of(published, figure).cloned().collect(),
        curves,
    }
}

/// The experiments of figures, each once.
fn experiments(figures: &[&Figure]) -> Vec<Experiment> {
    let mut all = Vec::new();
    for figure in figures {
        if let Asked::By(experiment, _) = figure.asked
            && !all.contains(&experiment)
        {
            all.push(experiment);
        }
    }
    all
}
