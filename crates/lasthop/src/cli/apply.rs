//! `lasthop apply` and `lasthop reload`: a file in the place of what is wanted. `lasthop port set --dry-run`: the same of one port, only to
//! look at.
//!
//! What is there is asked for, the difference shown, and the whole put in its place on the condition that it is still the same: what
//! somebody else has changed meanwhile is not lost without being seen.

use std::fmt::Write;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use api::v1::{WantedState, Warning};
use control::config::{self, ConfigError};
use control::wanted::{self, Action, Difference, FieldChange, Step, live};
use serde_json::{Value, json};

use super::args::{How, Set};
use super::client::Client;
use super::{Done, Failure, emit, emit_json, units, upgrade};
use crate::supervisor::names;

/// What errors call standard input.
const STDIN: &str = "<stdin>";
/// Where everything that is wanted is.
const STATE: &str = "/v1/state";
/// The same, only to look at.
const DRY_RUN: &str = "/v1/state?dry_run=true";

/// To whom is told what changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Teller {
    /// On standard output, and warnings on standard error.
    People,
    /// The log.
    Log,
}

impl Teller {
    fn difference(self, difference: &Difference, warnings: &[Warning]) -> Done {
        match self {
            Self::People => {
                emit(&show(difference, &Colours::of_terminal()))?;
                super::warn(warnings);
            }
            // What is changed is told by the one who changes it.
            Self::Log => {
                // Control logs what is about ports, whoever has asked for it.
                for warning in warnings.iter().filter(|warning| warning.ports.is_empty()) {
                    tracing::warn!("{}", warning.text);
                }
            }
        }
        Ok(())
    }

    fn summary(self, text: &str) -> Done {
        match self {
            Self::People => emit(text),
            Self::Log => {
                tracing::info!("{}", text.trim_end());
                Ok(())
            }
        }
    }
}

/// Applies the file with which the Lasthop in this directory was started.
pub(super) async fn reload(client: &Client, runtime_dir: &Path, how: How) -> Done {
    let file = upgrade::configuration(runtime_dir)?;
    apply(client, runtime_dir, file, how, Teller::People).await
}

/// Applies a file; `-` is standard input.
pub(super) async fn apply(
    client: &Client,
    runtime_dir: &Path,
    file: PathBuf,
    how: How,
    teller: Teller,
) -> Done {
    let wrong = |error: ConfigError| Failure::Wrong(error.to_string());
    let (file, bytes) = match file.as_os_str() == "-" {
        true => (PathBuf::from(STDIN), standard_input()?),
        false => (file.clone(), std::fs::read(&file)),
    };
    let text = config::text_of(bytes, &file).map_err(wrong)?;
    let new = config::parse(&text, &file, runtime_dir).map_err(wrong)?;
    names::check(&new).map_err(|no| wrong(config::error_in_text(&text, &file, &no)))?;
    let (answer, tag) = client.get_tagged(STATE).await?;
    let old: WantedState = super::order::read(&answer)?;
    live::check(&old.switch, &new.switch)
        .map_err(|fixed| wrong(config::error_in_text(&text, &file, &fixed)))?;
    let warnings = wanted::warnings(&new);
    let old = (&old, tag.as_deref());
    exchange(client, old, (&new, &warnings), how, teller).await
}

/// Says what a change of a port would change, and whether its guest would lose the connection.
pub(super) async fn look_at(client: &Client, set: &Set) -> Done {
    let (answer, tag) = client.get_tagged(STATE).await?;
    let old: WantedState = super::order::read(&answer)?;
    let patch = set.changes.patch();
    let new = wanted::set_port(&old, &set.name, &patch, client.runtime_dir())?;
    let mut ports = new.ports.iter().filter(|port| port.name == set.name);
    let alone = WantedState {
        ports: ports.next().cloned().into_iter().collect(),
        ..WantedState::default()
    };
    names::check(&alone).map_err(|no| no.to_problem())?;
    let mut warnings = wanted::warnings(&new);
    warnings.retain(|warning| warning.ports.contains(&set.name));
    let old = (&old, tag.as_deref());
    exchange(client, old, (&new, &warnings), set.how, Teller::People).await
}

/// Shows what differs, and has the new in the place of the old, if it still is what has this tag; or only asks whether that could be.
async fn exchange(
    client: &Client,
    (old, tag): (&WantedState, Option<&str>),
    (new, warnings): (&WantedState, &[Warning]),
    how: How,
    teller: Teller,
) -> Done {
    let difference = Difference::between(old, new);
    let apply = !how.dry_run && !difference.is_empty();
    if !how.output.json {
        teller.difference(&difference, warnings)?;
    }
    if !difference.is_empty() {
        let path = if apply { STATE } else { DRY_RUN };
        let done = client.put_if(path, tag, new).await;
        done.map_err(Failure::unchanged)?;
    }
    match how.output.json {
        true => {
            let warnings: Vec<&String> = warnings.iter().map(|warning| &warning.text).collect();
            let document = json!({
                "changes": difference.changes,
                "applied": apply,
                "warnings": warnings,
            });
            emit_json(&document.to_string())?;
        }
        false => teller.summary(&summary(&difference, apply))?,
    }
    match how.dry_run && !difference.is_empty() {
        true => Err(Failure::Differs),
        false => Ok(()),
    }
}

/// What comes from standard input. A generator that failed before it has said anything wants nothing; that is not to want nothing to be there.
fn standard_input() -> Result<io::Result<Vec<u8>>, Failure> {
    if io::stdin().is_terminal() {
        let text = "standard input is a terminal: name a file, or pipe one in";
        return Err(Failure::Wrong(text.to_owned()));
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    match bytes.trim_ascii().is_empty() && read.is_ok() {
        true => Err(Failure::Wrong(format!("{STDIN}: it is empty"))),
        false => Ok(read.map(|_| bytes)),
    }
}

/// The last line.
fn summary(difference: &Difference, applied: bool) -> String {
    let changes = units::several(difference.changes.len() as u64, "change");
    match (difference.is_empty(), applied) {
        (true, _) => "nothing to change\n".to_owned(),
        (false, true) => format!("{changes} applied\n"),
        (false, false) => format!("{changes} to apply\n"),
    }
}

/// What is written before and after something, to colour it.
struct Colours {
    add: &'static str,
    remove: &'static str,
    change: &'static str,
    end: &'static str,
}

impl Colours {
    /// Those of a terminal, where there is one (no-color.org).
    fn of_terminal() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match io::stdout().is_terminal() && !plain {
            true => Self {
                add: "\x1b[32m",
                remove: "\x1b[31m",
                change: "\x1b[33m",
                end: "\x1b[0m",
            },
            false => Self::NONE,
        }
    }

    const NONE: Self = Self {
        add: "",
        remove: "",
        change: "",
        end: "",
    };
}

/// A difference for people, a line for each thing that comes, goes or changes.
fn show(difference: &Difference, colours: &Colours) -> String {
    difference
        .changes
        .iter()
        .fold(String::new(), |mut text, step| {
            let (colour, sign) = match step.action {
                Action::Add => (colours.add, '+'),
                Action::Remove => (colours.remove, '-'),
                Action::Change => (colours.change, '~'),
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{colour}{sign} {}{}", line(step), colours.end);
            text
        })
}

/// What becomes of one thing.
fn line(step: &Step) -> String {
    let mut line = step.subject.as_str().to_owned();
    if let Some(name) = &step.name {
        let _ = write!(line, " {name}");
    }
    let field = |field: &FieldChange| match step.action {
        Action::Add => format!("{} {}", field.field, value(&field.to)),
        _ => format!(
            "{} {} -> {}",
            field.field,
            value(&field.from),
            value(&field.to)
        ),
    };
    let fields: Vec<String> = match step.action {
        // What it was says the file before, or `lasthop port show`.
        Action::Remove => Vec::new(),
        _ => step.fields.iter().map(field).collect(),
    };
    if !fields.is_empty() {
        let _ = write!(line, ": {}", fields.join(", "));
    }
    if step.disconnects {
        line.push_str(" (loses its connection)");
    }
    line
}

/// A value as the configuration would have it, or none.
fn value(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.escape_debug().to_string(),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(self::value).collect();
            all.join(",")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{PortSpec, SegmentSpec};

    use super::*;

    fn difference() -> Difference {
        let old = WantedState {
            ports: vec![
                PortSpec::vhost_user("vm1", "vm1.sock"),
                PortSpec::vhost_user("vm2", "vm2.sock"),
            ],
            ..WantedState::default()
        };
        let mut new = old.clone();
        new.switch.name = "host2".to_owned();
        new.segments.push(SegmentSpec {
            name: "blue".to_owned(),
            vlan: Some(10),
            neighbour_suppression: false,
        });
        new.ports.remove(0);
        new.ports[0].trunk = Some(vec!["blue".to_owned(), "default".to_owned()]);
        new.ports[0].socket = "other\x1b.sock".to_owned();
        Difference::between(&old, &new)
    }

    #[test]
    fn people_read_a_difference() {
        let text = "\
~ switch: name lasthop -> host2
+ segment blue: vlan 10
- port vm1 (loses its connection)
~ port vm2: socket vm2.sock -> other\\u{1b}.sock, trunk - -> blue,default (loses its connection)
";
        assert_eq!(show(&difference(), &Colours::NONE), text);
        assert_eq!(summary(&difference(), true), "4 changes applied\n");
        assert_eq!(summary(&difference(), false), "4 changes to apply\n");
        assert_eq!(
            summary(&Difference::default(), false),
            "nothing to change\n"
        );
    }
}
