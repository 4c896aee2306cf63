//! Committed numbers, `crates/switch/datapath/instructions.toml`, and the comparison with measured
//! ones.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Command;

use serde::Deserialize;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.toml");
const BLESS: &str = "make instructions BLESS=1";
/// Relative tolerance of a number, in both directions: an outdated committed number would hide the
/// next change.
const TOLERANCE: f64 = 0.01;
/// Absolute tolerance, instructions: relative changes of numbers near zero mean nothing.
const SLACK: f64 = 1.0;

const HEADER: &str = "\
# Instructions per frame, warm, release build: `make instructions` compares, \
`make instructions BLESS=1` writes.
# switch: our own code. copy: the C library's, which is nearly all copying. \
Scenarios: examples/instructions.
";

/// Instructions per frame.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Counts {
    /// Instructions of our own code.
    pub(crate) switch: f64,
    /// Instructions of the C library.
    pub(crate) copy: f64,
}

/// Tool versions on which the numbers depend.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Tools {
    rustc: String,
    glibc: String,
}

impl Tools {
    /// Returns the description of this machine.
    pub(crate) fn here() -> Result<Self, String> {
        Ok(Self {
            rustc: second_word("rustc", "--version")?,
            glibc: second_word("getconf", "GNU_LIBC_VERSION")?,
        })
    }
}

fn second_word(program: &str, argument: &str) -> Result<String, String> {
    let output = Command::new(program).arg(argument).output();
    let output = output.map_err(|e| format!("{program} does not run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().nth(1);
    word.map(str::to_owned)
        .ok_or(format!("{program} {argument}: unexpected output {text:?}"))
}

/// Counts by scenario, and the tools of the measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) tools: Tools,
    /// Counts in the order of the scenarios.
    pub(crate) counts: Vec<(String, Counts)>,
}

/// Contents of the file.
#[derive(Debug, Deserialize)]
pub(crate) struct Ledger {
    tools: Tools,
    scenario: BTreeMap<String, Counts>,
}

impl Ledger {
    pub(crate) fn read() -> Result<Self, String> {
        let text =
            fs::read_to_string(PATH).map_err(|e| format!("{PATH}: {e}; '{BLESS}' makes it"))?;
        toml::from_str(&text).map_err(|e| format!("{PATH}: {e}"))
    }

    pub(crate) fn write(measured: &Measurement) -> Result<(), String> {
        fs::write(PATH, Self::text(measured)).map_err(|e| format!("{PATH}: {e}"))?;
        println!("written: {PATH}");
        Ok(())
    }

    fn text(measured: &Measurement) -> String {
        let Tools { rustc, glibc } = &measured.tools;
        let head =
            format!("{HEADER}\n[tools]\nrustc = \"{rustc}\"\nglibc = \"{glibc}\"\n\n[scenario]\n");
        let line = |(name, counts): &(String, Counts)| {
            let Counts { switch, copy } = counts;
            format!("{name:<24} = {{ switch = {switch:.1}, copy = {copy:.1} }}\n")
        };
        head + &measured.counts.iter().map(line).collect::<String>()
    }

    pub(crate) fn compare(&self, measured: &Measurement) -> Comparison {
        let here = &measured.tools;
        let same_compiler = self.tools.rustc == here.rustc;
        let row = |name: &str, part, committed, new, judged| Row {
            name: format!("{name} {part}"),
            committed,
            new,
            judged,
        };
        let mut rows = Vec::new();
        for (name, new) in &measured.counts {
            let old = self.scenario.get(name);
            rows.push(row(
                name,
                "switch",
                old.map(|c| c.switch),
                new.switch,
                same_compiler,
            ));
            // The library's routines depend on its version, and their calls on the compiler.
            rows.push(row(
                name,
                "copy",
                old.map(|c| c.copy),
                new.copy,
                self.tools == *here,
            ));
        }
        let known = |name: &&String| measured.counts.iter().any(|(n, _)| n == *name);
        Comparison {
            rows,
            gone: self
                .scenario
                .keys()
                .filter(|n| !known(n))
                .cloned()
                .collect(),
            committed_with: self.tools.clone(),
            here: here.clone(),
        }
    }
}

/// Measured number beside the committed one.
#[derive(Debug)]
struct Row {
    name: String,
    committed: Option<f64>,
    new: f64,
    /// Whether the two can be compared.
    judged: bool,
}

impl Row {
    /// Returns the relative difference to the committed number.
    fn change(&self) -> Option<f64> {
        let old = self.committed?;
        Some(if self.new == old {
            0.0
        } else {
            self.new / old - 1.0
        })
    }

    fn verdict(&self) -> Option<&'static str> {
        if !self.judged {
            return None;
        }
        let Some(old) = self.committed else {
            return Some("not committed");
        };
        let allowed = (TOLERANCE * old).max(SLACK);
        match self.new - old {
            more if more > allowed => Some("WORSE than committed"),
            less if less < -allowed => Some("better than committed"),
            _ => None,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let old = self.committed.map_or("-".into(), |n| format!("{n:.1}"));
        let change = self
            .change()
            .map_or("-".into(), |c| format!("{:+.1} %", 100.0 * c));
        let verdict = self.verdict().unwrap_or_default();
        let line = format!(
            "{:<27}{old:>10}{:>10.1}{change:>10}  {verdict}",
            self.name, self.new
        );
        f.write_str(line.trim_end())
    }
}

/// Measured numbers beside the committed ones.
#[derive(Debug)]
pub(crate) struct Comparison {
    rows: Vec<Row>,
    /// Scenarios that exist in the file only.
    gone: Vec<String>,
    committed_with: Tools,
    here: Tools,
}

impl Comparison {
    /// Returns whether all numbers are within their tolerance.
    ///
    /// # Errors
    /// The numbers that are not, and the next step.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let bad = self.rows.iter().filter(|row| row.verdict().is_some());
        let mut lines: Vec<String> = bad.map(Row::to_string).collect();
        lines.extend(
            self.gone
                .iter()
                .map(|name| format!("{name}: no such scenario any more")),
        );
        if lines.is_empty() {
            return Ok(());
        }
        let lines = lines.join("\n  ");
        Err(format!(
            "instructions per frame (committed, now, change):\n  {lines}\n\
             Find the reason; if it is intended, commit the output of '{BLESS}' with the reason."
        ))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<27}{:>10}{:>10}{:>10}",
            "instructions per frame", "committed", "now", "change"
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        let (old, new) = (&self.committed_with, &self.here);
        if old.rustc != new.rustc {
            writeln!(
                f,
                "warning: rustc {} here, {} in the file: no comparison",
                new.rustc, old.rustc
            )?;
        } else if old != new {
            writeln!(
                f,
                "warning: glibc {} here, {} in the file: 'copy' is not compared",
                new.glibc, old.glibc
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(counts: &[(&str, f64, f64)]) -> Measurement {
        let counts = counts.iter().map(|(name, switch, copy)| {
            let (switch, copy) = (*switch, *copy);
            ((*name).to_owned(), Counts { switch, copy })
        });
        Measurement {
            tools: Tools {
                rustc: "1.95.0".into(),
                glibc: "2.36".into(),
            },
            counts: counts.collect(),
        }
    }

    fn ledger(counts: &[(&str, f64, f64)]) -> Ledger {
        toml::from_str(&Ledger::text(&measured(counts))).expect("what was written can be read")
    }

    #[test]
    fn one_per_cent_either_way_is_let_pass() {
        let ledger = ledger(&[("a", 200.0, 400.0)]);
        for switch in [198.1, 200.0, 201.9] {
            let verdict = ledger.compare(&measured(&[("a", switch, 403.9)])).verdict();
            assert_eq!(verdict, Ok(()), "{switch}");
        }
        for (switch, copy, complaint) in [
            (
                202.1,
                400.0,
                "a switch                        200.0     202.1    +1.0 %  WORSE",
            ),
            (
                197.9,
                400.0,
                "a switch                        200.0     197.9    -1.0 %  better",
            ),
            (
                200.0,
                500.0,
                "a copy                          400.0     500.0   +25.0 %  WORSE",
            ),
        ] {
            let verdict = ledger.compare(&measured(&[("a", switch, copy)])).verdict();
            let message = verdict.expect_err("too far off");
            assert!(
                message.contains(complaint) && message.contains(BLESS),
                "{message}"
            );
        }
    }

    #[test]
    fn less_than_an_instruction_is_nothing() {
        let ledger = ledger(&[("a", 200.0, 0.5)]);
        let verdict = |copy| ledger.compare(&measured(&[("a", 200.0, copy)])).verdict();
        assert_eq!((verdict(0.0), verdict(1.4)), (Ok(()), Ok(())));
        assert!(verdict(1.6).is_err());
    }

    #[test]
    fn scenarios_that_come_and_go_are_committed() {
        let ledger = ledger(&[("old", 1.0, 0.0)]);
        let message = ledger.compare(&measured(&[("new", 1.0, 0.0)])).verdict();
        let message = message.expect_err("another list");
        assert!(
            message.contains("new switch") && message.contains("old: no such"),
            "{message}"
        );
    }

    #[test]
    fn other_tools_are_warned_of_and_not_failed() {
        let ledger = ledger(&[("a", 200.0, 40.0)]);
        let mut other = measured(&[("a", 300.0, 60.0)]);
        other.tools.rustc = "1.96.0".into();
        let comparison = ledger.compare(&other);
        assert_eq!(comparison.verdict(), Ok(()));
        assert!(
            comparison
                .to_string()
                .contains("warning: rustc 1.96.0 here")
        );

        let mut other = measured(&[("a", 200.0, 60.0)]);
        other.tools.glibc = "2.41".into();
        let comparison = ledger.compare(&other);
        assert_eq!(comparison.verdict(), Ok(()));
        assert!(comparison.to_string().contains("warning: glibc 2.41 here"));
        other.counts[0].1.switch = 300.0;
        assert!(
            ledger.compare(&other).verdict().is_err(),
            "our code is judged all the same"
        );
    }
}
