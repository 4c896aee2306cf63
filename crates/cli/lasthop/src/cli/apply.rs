//! `lasthop apply` and `lasthop reload` replace the desired state by a file; `lasthop port set
//! --dry-run` shows the same changes for one port.
//!
//! The command gets the desired state, prints the difference, and replaces the whole state with
//! `If-Match`, so that a concurrent change is never overwritten unseen.

use std::fmt::Write;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::v1::{DesiredState, Warning};
use config::desired::{self, Action, Difference, FieldChange, Step, live};
use config::{ConfigError, KeyPlaces};
use serde_json::{Value, json};

use super::args::{ApplyHow, How, Set};
use super::{ExitStatus, Failure, emit, emit_json, units, upgrade};
use client::Client;

/// The name of standard input in errors.
const STDIN: &str = "<stdin>";
/// The path of the desired state.
const STATE: &str = "/v1/state";
/// The path for a dry run.
const DRY_RUN: &str = "/v1/state?dry_run=true";

/// The place to which changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    /// Standard output; warnings go to standard error.
    Output,
    /// The log.
    Log,
}

impl Reporter {
    fn difference(self, difference: &Difference, warnings: &[Warning]) -> ExitStatus {
        match self {
            Self::Output => {
                emit(&show(difference, is_coloured()))?;
                super::warn(warnings);
            }
            // Control logs the changes, and the warnings about ports.
            Self::Log => {
                for warning in warnings.iter().filter(|warning| warning.ports.is_empty()) {
                    tracing::warn!("{}", warning.text);
                }
            }
        }
        Ok(())
    }

    fn summary(self, text: &str) -> ExitStatus {
        match self {
            Self::Output => emit(text),
            Self::Log => {
                tracing::info!("{}", text.trim_end());
                Ok(())
            }
        }
    }
}

/// Applies the file with which the Lasthop of this directory was started.
pub(super) async fn reload(client: &Client, runtime_dir: &Path, how: ApplyHow) -> ExitStatus {
    let file = upgrade::configuration(runtime_dir)?;
    apply(client, runtime_dir, file, how, Reporter::Output).await
}

/// Applies a file; `-` is standard input.
pub(super) async fn apply(
    client: &Client,
    runtime_dir: &Path,
    file: PathBuf,
    how: ApplyHow,
    reporter: Reporter,
) -> ExitStatus {
    let invalid = |error: ConfigError| Failure::Invalid(error.to_string());
    let (file, bytes) = if file.as_os_str() == "-" {
        (PathBuf::from(STDIN), standard_input()?)
    } else {
        let bytes = std::fs::read(&file);
        (file, bytes)
    };
    let text: Arc<str> = config::text_of(bytes, &file).map_err(invalid)?.into();
    let parsing = {
        let (text, file, dir) = (text.clone(), file.clone(), runtime_dir.to_owned());
        tokio::task::spawn_blocking(move || config::parse(&text, &file, &dir))
    };
    let new = async {
        let parsed = parsing.await;
        let parsed = parsed.map_err(|error| Failure::Failed(error.to_string()))?;
        parsed.map_err(invalid)
    };
    let state = async { Ok(client.get_tagged(STATE).await) };
    // Control writes its state while the file is parsed. An error in the file waits for nobody.
    let (new, state) = tokio::try_join!(new, state)?;
    let placed = |error| invalid(KeyPlaces::new(&text, &file).error(&error));
    desired::check_owners(&new).map_err(placed)?;
    let (response, tag) = state?;
    let old: DesiredState = client::read(&response)?;
    live::check(&old.switch, &new.switch).map_err(placed)?;
    if new.ports.is_empty() && !how.allow_empty {
        keeps_ports(&old, &file)?;
    }
    let warnings = desired::warnings(&new);
    let old = (&old, tag.as_deref());
    exchange(client, old, (&new, &warnings), how.how, reporter).await
}

/// Refuses a file without ports while there are some: it is the output of a generator that failed,
/// or another file than was meant, more often than a request to disconnect all guests.
fn keeps_ports(old: &DesiredState, file: &Path) -> ExitStatus {
    let ports = match old.ports.len() {
        0 => return Ok(()),
        ports => units::plural(ports as u64, "port"),
    };
    let text = format!(
        "{}: expected a port, found none: --allow-empty removes all, now {ports}",
        file.display()
    );
    Err(Failure::Invalid(text))
}

/// Prints the effect of a change of a port: the fields, and whether the connection would close.
pub(super) async fn dry_run(client: &Client, set: &Set, patch: &Value) -> ExitStatus {
    let (response, tag) = client.get_tagged(STATE).await?;
    let old: DesiredState = client::read(&response)?;
    let new = desired::set_port(&old, &set.name, patch, client.runtime_dir())?;
    let mut ports = new.ports.iter().filter(|port| port.name == set.name);
    let alone = DesiredState {
        ports: ports.next().cloned().into_iter().collect(),
        ..DesiredState::default()
    };
    desired::check_owners(&alone).map_err(|error| error.to_problem())?;
    let mut warnings = desired::warnings(&new);
    warnings.retain(|warning| warning.ports.contains(&set.name));
    let old = (&old, tag.as_deref());
    exchange(client, old, (&new, &warnings), set.how, Reporter::Output).await
}

/// Prints the difference and replaces the old state by the new one if its tag is unchanged; a dry
/// run only checks the request.
async fn exchange(
    client: &Client,
    (old, tag): (&DesiredState, Option<&str>),
    (new, warnings): (&DesiredState, &[Warning]),
    how: How,
    reporter: Reporter,
) -> ExitStatus {
    let difference = Difference::between(old, new);
    let apply = !how.dry_run && !difference.is_empty();
    if !how.output.json {
        reporter.difference(&difference, warnings)?;
    }
    if !difference.is_empty() {
        let path = if apply { STATE } else { DRY_RUN };
        let done = client.put_if(path, tag, new).await;
        done.map_err(Failure::unchanged)?;
    }
    if how.output.json {
        let warnings: Vec<&String> = warnings.iter().map(|warning| &warning.text).collect();
        let document = json!({
            "changes": difference.changes,
            "applied": apply,
            "warnings": warnings,
        });
        emit_json(&document.to_string())?;
    } else {
        reporter.summary(&summary(&difference, apply))?;
    }
    if how.dry_run && !difference.is_empty() {
        return Err(Failure::Differs);
    }
    Ok(())
}

/// Reads standard input. Empty input is refused: it is the output of a generator that failed, not a
/// request to remove everything.
fn standard_input() -> Result<io::Result<Vec<u8>>, Failure> {
    if io::stdin().is_terminal() {
        let text = "standard input is a terminal: name a file, or pipe one in";
        return Err(Failure::Invalid(text.to_owned()));
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    if bytes.trim_ascii().is_empty() && read.is_ok() {
        return Err(Failure::Invalid(format!("{STDIN}: empty input")));
    }
    Ok(read.map(|_| bytes))
}

/// Returns the last line of the output.
fn summary(difference: &Difference, applied: bool) -> String {
    let changes = units::plural(difference.changes.len() as u64, "change");
    match (difference.is_empty(), applied) {
        (true, _) => "nothing to change\n".to_owned(),
        (false, true) => format!("{changes} applied\n"),
        (false, false) => format!("{changes} to apply\n"),
    }
}

/// Returns whether the output is coloured: on a terminal, unless `NO_COLOR` is set (no-color.org).
fn is_coloured() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && io::stdout().is_terminal()
}

/// Formats a difference, one line for each object that is added, removed or changed.
fn show(difference: &Difference, coloured: bool) -> String {
    let coloured_line = |step: &Step| {
        let (colour, sign) = match step.action {
            Action::Add => ("\x1b[32m", '+'),
            Action::Remove => ("\x1b[31m", '-'),
            Action::Change => ("\x1b[33m", '~'),
        };
        let (begin, end) = if coloured {
            (colour, "\x1b[0m")
        } else {
            ("", "")
        };
        format!("{begin}{sign} {}{end}\n", line(step))
    };
    difference.changes.iter().map(coloured_line).collect()
}

/// Formats the change of one object.
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
        // The fields of a removed object are not listed.
        Action::Remove => Vec::new(),
        _ => step.fields.iter().map(field).collect(),
    };
    if !fields.is_empty() {
        let _ = write!(line, ": {}", fields.join(", "));
    }
    if step.disconnects {
        line.push_str(" (loses its connection)");
    }
    if !step.next_connection.is_empty() {
        let fields = step.next_connection.join(", ");
        let _ = write!(line, " ({fields}: from its next connection)");
    }
    line
}

/// Formats a value as in a configuration file, or `-`.
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
        let old = DesiredState {
            ports: vec![
                PortSpec::vhost_user("vm1", "vm1.sock"),
                PortSpec::vhost_user("vm2", "vm2.sock"),
            ]
            .into(),
            ..DesiredState::default()
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
    fn a_difference_is_one_line_per_object() {
        let text = "\
~ switch: name lasthop -> host2
+ segment blue: vlan 10
- port vm1 (loses its connection)
~ port vm2: socket vm2.sock -> other\\u{1b}.sock, trunk - -> blue,default (loses its connection)
";
        assert_eq!(show(&difference(), false), text);
        assert_eq!(summary(&difference(), true), "4 changes applied\n");
        assert_eq!(summary(&difference(), false), "4 changes to apply\n");
        assert_eq!(
            summary(&Difference::default(), false),
            "nothing to change\n"
        );
    }
}
