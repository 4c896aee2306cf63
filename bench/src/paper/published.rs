//! Published figures as data: what stands in the text and the tables of the papers, with the words.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// A file for each paper, with the number that figures of it begin with.
const FILES: [(&str, &str); 5] = [
    ("000", include_str!("../../paper/000.toml")),
    ("001", include_str!("../../paper/001.toml")),
    ("002", include_str!("../../paper/002.toml")),
    ("003", include_str!("../../paper/003.toml")),
    ("004", include_str!("../../paper/004.toml")),
];

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A number of that machine.
    Value,
    /// One number beside another one.
    Ratio,
    /// A number that is exceeded, or not reached.
    Bound,
    /// Words alone.
    Order,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) figure: String,
    pub(crate) series: String,
    /// Its place on the figure's axis, where it has one.
    pub(crate) x: Option<f64>,
    pub(crate) y: Option<f64>,
    pub(crate) unit: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) section: String,
    /// As they stand in the paper.
    pub(crate) words: String,
}

impl Published {
    /// The text of it in a table.
    pub(crate) fn shown(&self) -> String {
        let Self {
            series, section, ..
        } = self;
        let at = self.x.map_or_else(String::new, |x| format!(" at {x}"));
        let number = match (self.y, &self.unit) {
            (Some(y), Some(unit)) => format!("{y} {unit}"),
            _ => format!("\"{}\"", self.words),
        };
        format!("{series}{at}: {number} (section {section})")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    value: Vec<Published>,
}

/// All entries.
///
/// # Errors
/// An entry without its words or its section, or with a number that does not fit its kind.
pub(crate) fn all() -> Result<Vec<Published>> {
    let files = FILES.iter().map(|(paper, text)| read(paper, text));
    Ok(files.collect::<Result<Vec<_>>>()?.concat())
}

fn read(paper: &str, text: &str) -> Result<Vec<Published>> {
    let file: File = toml::from_str(text).with_context(|| format!("paper/{paper}.toml"))?;
    for entry in &file.value {
        check(paper, entry).with_context(|| format!("{}, {}", entry.figure, entry.series))?;
    }
    Ok(file.value)
}

fn check(paper: &str, entry: &Published) -> Result<()> {
    ensure!(entry.figure.starts_with(paper), "a figure of another paper");
    ensure!(!entry.words.trim().is_empty(), "the words are missing");
    ensure!(!entry.section.trim().is_empty(), "the section is missing");
    let numbered = entry.kind != Kind::Order;
    ensure!(entry.y.is_some() == numbered, "a number that does not fit");
    ensure!(entry.unit.is_some() == numbered, "a unit that does not fit");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "[[value]]\nfigure = \"000-4.9\"\nseries = \"a\"\ny = 1\nunit = \"x\"\n\
                         kind = \"ratio\"\nsection = \"4\"\nwords = \"some\"\n";

    #[test]
    fn the_files_can_be_read() {
        assert!(all().unwrap().len() > 50);
    }

    #[test]
    fn entries_without_their_words_are_refused() {
        assert_eq!(read("000", ENTRY).unwrap().len(), 1);
        for (from, to) in [
            ("words = \"some\"", "words = \" \""),
            ("words = \"some\"\n", ""),
            ("section = \"4\"", "section = \"\""),
            ("y = 1\n", ""),
            ("ratio", "order"),
            ("000-4.9", "001-4.9"),
            ("series", "serie"),
        ] {
            assert!(read("000", &ENTRY.replace(from, to)).is_err(), "{to}");
        }
    }
}
