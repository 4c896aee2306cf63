//! Environment variables of the supervisor, and their check before the start.

use std::ffi::OsString;
use std::process::Command;

use ipc::start::START_FD;

/// Environment variable for a supervisor that replaces another: the number of the record's
/// descriptor, the number of the other program's descriptor, and, for a rollback, the reason;
/// separated by colons.
pub(super) const RESUME: &str = "LASTHOP_RESUME";

/// Variable with the socket of the service manager: a path, or an abstract name after an `@`.
pub(super) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Environment variable that disables the heartbeat, except for drivers, with the value `off`: for
/// debuggers, which stop processes.
pub(super) const HEARTBEAT: &str = "LASTHOP_HEARTBEAT";

/// Log filter; see [`process::log`].
const LOG: &str = "LASTHOP_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Log targets: the crates and programs that log, and access lists.
const TARGETS: [&str; 10] = [
    "acl",
    "lasthop",
    "lasthop_supervisor",
    "process",
    "control",
    "datapath",
    "driver",
    "interfaces",
    "ipc",
    "netio",
];

/// A variable has a value that it cannot have.
#[derive(Debug, thiserror::Error)]
#[error("{name}: expected {expected}, found {found:?}")]
pub(super) struct VariableError {
    name: &'static str,
    expected: String,
    found: OsString,
}

/// Checks all variables.
///
/// # Errors
/// The variable and its expected values.
pub(super) fn check() -> Result<(), VariableError> {
    variable(LOG, is_filter, &filters())?;
    let switch = |text: &str| ["", "on", "off"].contains(&text);
    variable(HEARTBEAT, switch, "on or off")
}

/// Removes from a new process's environment what is the supervisor's: only it notifies the service
/// manager, and only it was started with descriptors.
pub(super) fn without_own_variables(command: &mut Command) -> &mut Command {
    let own = [NOTIFY_SOCKET, RESUME, START_FD];
    own.into_iter()
        .fold(command, |command, name| command.env_remove(name))
}

fn variable(
    name: &'static str,
    is_valid: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<(), VariableError> {
    let found = std::env::var_os(name).unwrap_or_default();
    if found.to_str().is_some_and(is_valid) {
        return Ok(());
    }
    Err(VariableError {
        name,
        expected: expected.to_owned(),
        found,
    })
}

fn filters() -> String {
    let (levels, targets) = (LEVELS.join(", "), TARGETS.join(", "));
    format!(
        "one of {levels}, or TARGET=LEVEL, as in datapath=debug (targets: {targets}), \
         or several with commas"
    )
}

fn is_filter(text: &str) -> bool {
    text.split(',').all(is_directive)
}

/// Returns whether a directive is a level or `TARGET=LEVEL`. The filter would take anything else
/// for the name of a target and silence all others.
fn is_directive(text: &str) -> bool {
    let is_level = |level: &str| LEVELS.contains(&level.to_ascii_lowercase().as_str());
    match text.split_once('=') {
        None => text.is_empty() || is_level(text),
        Some((target, level)) => {
            let part = target.split("::").next().unwrap_or_default();
            TARGETS.contains(&part) && is_level(level)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_filter;

    #[test]
    fn levels_and_targets_choose_lines_and_nothing_else_does() {
        for right in [
            "",
            "info",
            "DEBUG",
            "off",
            "warn,control::engine=debug",
            "warn,acl=info",
            "interfaces=debug",
        ] {
            assert!(is_filter(right), "{right}");
        }
        for invalid in [
            "verbose",
            "bogus=debug",
            "lasthop=",
            "datapath=loud",
            "control",
            "info, warn",
        ] {
            assert!(!is_filter(invalid), "{invalid}");
        }
    }
}
