//! The results page: a row for each figure, those first whose claims do not hold, then a section
//! for each figure that was measured.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::table::table;

use super::catalogue::Figure;
use super::claims::{Claim, Verdict};
use super::published::Published;
use crate::plan::Plan;
use crate::plot::{self, Curve};

const HEAD: [&str; 4] = ["figure", "title", "here", "claims"];

/// A figure with its results.
pub(super) struct Row {
    pub(super) figure: &'static Figure,
    pub(super) state: String,
    pub(super) verdicts: Vec<(Claim, Verdict)>,
    pub(super) published: Vec<Published>,
    pub(super) curves: Vec<Curve>,
}

impl Row {
    fn count(&self, of: fn(&Verdict) -> bool) -> usize {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|(_, verdict)| of(verdict)).count()
    }

    fn claims(&self) -> String {
        let claims = self.verdicts.iter();
        let claims = claims.map(|(claim, verdict)| format!("{claim}: {verdict}"));
        claims.collect::<Vec<_>>().join("; ")
    }
}

fn is_lost(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::DoesNot(_))
}

/// Writes the page and its plots to the folder of results; returns its path.
pub(super) fn write(plan: &Plan, rows: &[Row]) -> Result<PathBuf> {
    let stem = format!("{}-paper", plan.machine.stamp());
    for row in rows {
        let path = plan.out.join(plot_of(&stem, row));
        plot::lines(&path, row.figure.title, ["x", "here"], &row.curves)?;
    }
    let path = plan.out.join(format!("{stem}.md"));
    let machine = &plan.machine;
    let head = format!(
        "# Figures of the papers\n\n`{}`, {}, commit {}, {}, {} cores, Linux {}.\n\n",
        machine.command, machine.date, machine.commit, machine.cpu, machine.cores, machine.kernel
    );
    fs::write(&path, head + &text(&stem, rows)).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn plot_of(stem: &str, row: &Row) -> String {
    format!("{stem}-{}.svg", row.figure.id)
}

fn text(stem: &str, rows: &[Row]) -> String {
    let sum = |of: fn(&Verdict) -> bool| rows.iter().map(|row| row.count(of)).sum::<usize>();
    let mut text = format!(
        "Claims of shape: {} do not hold, {} hold, {} were not asked. Other switches stand in for \
         those of the papers.\n\n",
        sum(is_lost),
        sum(|verdict| *verdict == Verdict::Holds),
        sum(|verdict| matches!(verdict, Verdict::NotAsked(_))),
    );
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by_key(|row| row.count(is_lost) == 0);
    let cells = order.iter().map(|row| {
        let [id, title] = [row.figure.id, row.figure.title].map(str::to_owned);
        vec![id, title, row.state.clone(), row.claims()]
    });
    text += &table(&HEAD.map(str::to_owned), &cells.collect::<Vec<_>>());
    for row in order {
        section(&mut text, stem, row);
    }
    text
}

fn section(text: &mut String, stem: &str, row: &Row) {
    if row.curves.is_empty() && row.published.is_empty() {
        return;
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n## {}: {}\n", row.figure.id, row.figure.title);
    if !row.curves.is_empty() {
        let _ = writeln!(text, "![{}]({})\n", row.figure.title, plot_of(stem, row));
    }
    if row.published.is_empty() {
        text.push_str("The paper has no number of it in its text.\n");
    }
    for entry in &row.published {
        let _ = writeln!(text, "* {}: \"{}\"", entry.shown(), entry.words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::catalogue::FIGURES;

    #[test]
    fn losses_are_first() {
        let row = |index: usize, verdict| Row {
            figure: &FIGURES[index],
            state: "asked".to_owned(),
            verdicts: vec![(Claim::Rises { series: "a" }, verdict)],
            published: Vec::new(),
            curves: vec![("a".to_owned(), vec![(1.0, 2.0)])],
        };
        let lost = Verdict::DoesNot("2 at 1, 1 at 2".to_owned());
        let text = text("stem", &[row(0, Verdict::Holds), row(1, lost)]);
        assert!(
            text.starts_with("Claims of shape: 1 do not hold, 1 hold, 0 were"),
            "{text}"
        );
        let at = |id: &str| text.find(&format!("| {id} |"));
        assert!(at(FIGURES[1].id) < at(FIGURES[0].id), "{text}");
        assert!(text.contains("a rises: does not: 2 at 1, 1 at 2"), "{text}");
        assert!(
            text.contains(&format!("(stem-{}.svg)", FIGURES[0].id)),
            "{text}"
        );
    }
}
