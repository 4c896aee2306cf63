//! The results page: a row for each figure, those first whose claims do not hold, then a section
//! for each figure with what was measured and what was published. It is written twice, as Markdown
//! with plots beside it, and as an HTML file that needs nothing else.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use e2e::table::table;

use super::catalogue::Figure;
use super::chart::{self, STYLE, escaped};
use super::claims::{Claim, Verdict};
use super::published::Published;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::plot::Chart;

const HEAD: [&str; 4] = ["figure", "title", "here", "claims"];
const TITLE: &str = "Figures of the papers";
const STAND_INS: &str = "Other switches stand in for those of the papers: the Linux bridge between \
    TAP devices for a switch in the kernel, Open vSwitch with DPDK for one with a core of its own, \
    Open vSwitch without DPDK for one in user space. Bars are medians, with the first and the \
    third quartile of their samples; published numbers are of another machine and have a scale of \
    their own.";
const UNPUBLISHED: &str = "The paper has no number of it in its text.";
/// The look of the page beside its figures.
const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c1c1c;--page:#fff;--rule:#d0d0d0;--lost:#b3261e;\
--held:#14713d;--dim:#666}\
@media (prefers-color-scheme:dark){:root{--text:#e6e6e6;--page:#181818;--rule:#444;\
--lost:#ff8a80;--held:#6fd59b;--dim:#a5a5a5}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);\
max-width:1000px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;vertical-align:top;padding:.35em .6em;border-bottom:1px solid var(--rule)}\
td:first-child{white-space:nowrap}a{color:inherit}svg{max-width:100%;height:auto}\
ul{padding-left:1.2em}.lost{color:var(--lost);font-weight:600}.held{color:var(--held)}\
.dim{color:var(--dim)}section{margin-top:2.5em;border-top:1px solid var(--rule)}";

/// A figure with its results.
pub(super) struct Row {
    pub(super) figure: &'static Figure,
    pub(super) state: String,
    pub(super) verdicts: Vec<(Claim, Verdict)>,
    pub(super) published: Vec<Published>,
    /// Measured curves, of each part of an experiment that asks it.
    pub(super) charts: Vec<Chart>,
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

    /// Published numbers, beside the first of the charts.
    fn beside(&self, chart: usize) -> &[Published] {
        if chart == 0 { &self.published } else { &[] }
    }

    fn has_section(&self) -> bool {
        !self.charts.is_empty() || !self.published.is_empty()
    }
}

fn is_lost(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::DoesNot(_))
}

/// Writes both pages and the plots to the folder of results; returns the path of the HTML file.
pub(super) fn write(plan: &Plan, rows: &[Row]) -> Result<PathBuf> {
    let stem = format!("{}-paper", plan.machine.stamp());
    let save = |name: &str, text: &str| {
        let path = plan.out.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok::<_, anyhow::Error>(path)
    };
    for row in rows {
        for (number, chart) in row.charts.iter().enumerate() {
            let svg = chart::file(row.figure.title, chart, row.beside(number));
            save(&plot_of(&stem, row, number), &svg)?;
        }
    }
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by_key(|row| row.count(is_lost) == 0);
    save(
        &format!("{stem}.md"),
        &markdown(&plan.machine, &stem, &order),
    )?;
    save(&format!("{stem}.html"), &html(&plan.machine, &order))
}

fn plot_of(stem: &str, row: &Row, number: usize) -> String {
    let id = row.figure.id;
    match number {
        0 => format!("{stem}-{id}.svg"),
        _ => format!("{stem}-{id}-{}.svg", number + 1),
    }
}

fn machine_line(machine: &Machine) -> String {
    format!(
        "{} UTC, commit {}, {}, {} cores, {} GiB, Linux {}, Open vSwitch {}, DPDK {}.",
        machine.date,
        or_none(&machine.commit),
        machine.cpu,
        machine.cores,
        machine.memory_gib,
        machine.kernel,
        or_none(&machine.ovs),
        or_none(&machine.dpdk),
    )
}

fn or_none(version: &str) -> &str {
    if version.is_empty() { "none" } else { version }
}

fn counts(rows: &[&Row]) -> String {
    let sum = |of: fn(&Verdict) -> bool| rows.iter().map(|row| row.count(of)).sum::<usize>();
    let asked = rows.iter().filter(|row| !row.charts.is_empty()).count();
    format!(
        "Of {} figures, {asked} were measured. Claims of shape: {} do not hold, {} hold, {} were \
         not asked.",
        rows.len(),
        sum(is_lost),
        sum(|verdict| *verdict == Verdict::Holds),
        sum(|verdict| matches!(verdict, Verdict::NotAsked(_))),
    )
}

fn markdown(machine: &Machine, stem: &str, rows: &[&Row]) -> String {
    let mut text = format!(
        "# {TITLE}\n\n`{}`, {}\n\n{}\n\n{STAND_INS}\n\n",
        machine.command,
        machine_line(machine),
        counts(rows)
    );
    let cells = rows.iter().map(|row| {
        let [id, title] = [row.figure.id, row.figure.title].map(str::to_owned);
        vec![id, title, row.state.clone(), row.claims()]
    });
    text += &table(&HEAD.map(str::to_owned), &cells.collect::<Vec<_>>());
    for row in rows.iter().filter(|row| row.has_section()) {
        section(&mut text, stem, row);
    }
    text
}

fn section(text: &mut String, stem: &str, row: &Row) {
    let (id, title) = (row.figure.id, row.figure.title);
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n## {id}: {title}\n");
    for number in 0..row.charts.len() {
        let _ = writeln!(text, "![{title}]({})\n", plot_of(stem, row, number));
    }
    if row.published.is_empty() {
        let _ = writeln!(text, "{UNPUBLISHED}");
    }
    for entry in &row.published {
        let _ = writeln!(text, "* {}: \"{}\"", entry.shown(), entry.words);
    }
}

/// One file with everything: nothing in it names another one, or another machine.
fn html(machine: &Machine, rows: &[&Row]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{TITLE}</title>\n\
         <style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<h1>{TITLE}</h1>\n\
         <p><code>{}</code><br>{}</p>\n<p><strong>{}</strong></p>\n<p>{STAND_INS}</p>\n",
        escaped(&machine.command),
        escaped(&machine_line(machine)),
        escaped(&counts(rows)),
    );
    let head = HEAD.map(|name| format!("<th>{name}</th>")).concat();
    let _ = writeln!(text, "<table>\n<tr>{head}</tr>");
    for row in rows {
        html_row(&mut text, row);
    }
    text += "</table>\n";
    for row in rows.iter().filter(|row| row.has_section()) {
        html_section(&mut text, row);
    }
    text + "</body>\n</html>\n"
}

fn html_row(text: &mut String, row: &Row) {
    let id = row.figure.id;
    let name = if row.has_section() {
        format!("<a href=\"#f{id}\">{id}</a>")
    } else {
        id.to_owned()
    };
    let title = escaped(row.figure.title);
    let state = escaped(&row.state);
    let claims: Vec<String> = row.verdicts.iter().map(html_claim).collect();
    let claims = claims.join("<br>");
    let _ = writeln!(
        text,
        "<tr><td>{name}</td><td>{title}</td><td class=\"dim\">{state}</td><td>{claims}</td></tr>"
    );
}

fn html_claim((claim, verdict): &(Claim, Verdict)) -> String {
    let class = match verdict {
        Verdict::Holds => "held",
        Verdict::DoesNot(_) => "lost",
        Verdict::NotAsked(_) => "dim",
    };
    let [claim, verdict] = [claim.to_string(), verdict.to_string()].map(|text| escaped(&text));
    format!("{claim}: <span class=\"{class}\">{verdict}</span>")
}

fn html_section(text: &mut String, row: &Row) {
    let Figure { id, title, .. } = row.figure;
    let title = escaped(title);
    let _ = writeln!(text, "<section id=\"f{id}\">\n<h2>{id}: {title}</h2>");
    for (number, chart) in row.charts.iter().enumerate() {
        *text += &chart::inline(row.figure.title, chart, row.beside(number));
    }
    if row.charts.is_empty() {
        let _ = writeln!(text, "<p class=\"dim\">{}</p>", escaped(&row.state));
    }
    if !row.verdicts.is_empty() {
        let claims: Vec<String> = row.verdicts.iter().map(html_claim).collect();
        let _ = writeln!(text, "<p>{}</p>", claims.join("<br>"));
    }
    if row.published.is_empty() {
        let _ = writeln!(text, "<p class=\"dim\">{UNPUBLISHED}</p>");
    } else {
        text.push_str("<ul>\n");
        for entry in &row.published {
            let [shown, words] = [&entry.shown(), &entry.words].map(|text| escaped(text));
            let _ = writeln!(text, "<li>{shown}: <q>{words}</q></li>");
        }
        text.push_str("</ul>\n");
    }
    text.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::catalogue::FIGURES;
    use crate::paper::published;
    use crate::plot::Point;

    fn row(index: usize, verdict: Verdict) -> Row {
        let figure = &FIGURES[index];
        let points = vec![Point::from((1.0, 2.0))];
        let curves = ["Lasthop", "Linux bridge"].map(|name| (name.to_owned(), points.clone()));
        let published = published::all().unwrap().into_iter();
        Row {
            figure,
            state: "asked".to_owned(),
            verdicts: vec![(Claim::Rises { series: "a" }, verdict)],
            published: published
                .filter(|entry| entry.figure == figure.id)
                .collect(),
            charts: vec![Chart {
                axes: ["pairs", "Gbit/s"].map(str::to_owned),
                curves: curves.to_vec(),
                cores: "near".to_owned(),
                part: "streams".to_owned(),
            }],
        }
    }

    fn rows() -> [Row; 2] {
        let lost = Verdict::DoesNot("2 at 1, 1 at 2".to_owned());
        [row(1, lost), row(0, Verdict::Holds)]
    }

    #[test]
    fn counts_and_verdicts_stand_in_the_page() {
        let rows = rows();
        let text = markdown(&Machine::here(), "stem", &rows.each_ref());
        let counts = "Claims of shape: 1 do not hold, 1 hold, 0 were not asked.";
        assert!(text.contains(counts), "{text}");
        assert!(text.contains("a rises: does not: 2 at 1, 1 at 2"), "{text}");
        let plot = format!("(stem-{}.svg)", FIGURES[0].id);
        assert!(text.contains(&plot), "{text}");
    }

    #[test]
    fn losses_are_first_in_both_pages() {
        let folder = tempfile::tempdir().unwrap();
        let plan = crate::plan::tests::plan(folder.path());
        let [lost, held] = rows();
        let path = write(&plan, &[held, lost]).unwrap();
        for path in [path.with_extension("md"), path] {
            let text = fs::read_to_string(path).unwrap();
            let at = |id: &str| text.find(&format!("{id}: "));
            assert!(at(FIGURES[1].id) < at(FIGURES[0].id), "{text}");
        }
        let plots = fs::read_dir(folder.path()).unwrap().flatten();
        let plots = plots.filter(|entry| entry.path().extension().is_some_and(|e| e == "svg"));
        assert_eq!(plots.count(), 2);
    }

    #[test]
    fn the_html_page_needs_no_other_file() {
        let text = html(&Machine::here(), &rows().each_ref());
        // The name of a namespace is no resource.
        let text = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for other in [
            "http:", "https:", "src=", "<link", "<script", "url(", "@import",
        ] {
            assert!(!text.contains(other), "{other}: {text}");
        }
        assert!(text.contains("prefers-color-scheme:dark"));
        assert!(text.contains("Linux bridge (stand-in: switch in the kernel)"));
        assert_eq!(text.matches("<svg").count(), 2);
        for id in [FIGURES[0].id, FIGURES[1].id] {
            assert!(text.contains(&format!("href=\"#f{id}\"")));
            assert!(text.contains(&format!("id=\"f{id}\"")));
        }
    }
}
