//! Check of the environment variables before the start.

use std::ffi::OsStr;

use super::heartbeat;

/// Log filter; see [`process::log`].
const LOG: &str = "LASTHOP_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Log targets: the crates and programs that log, and access lists.
const TARGETS: [&str; 8] = [
    "acl",
    "lasthop",
    "lasthop_supervisor",
    "process",
    "control",
    "datapath",
    "driver",
    "sandbox",
];

/// Checks all variables.
///
/// # Errors
/// The variable and its expected values.
pub(super) fn check() -> Result<(), String> {
    variable(LOG, is_filter, &filters())?;
    let switch = |text: &str| ["", "on", "off"].contains(&text);
    variable(heartbeat::SWITCH, switch, "on or off")
}

fn variable(name: &str, is_valid: impl Fn(&str) -> bool, expected: &str) -> Result<(), String> {
    let text = std::env::var_os(name).unwrap_or_default();
    if text.to_str().is_some_and(is_valid) {
        Ok(())
    } else {
        Err(invalid(name, expected, &text))
    }
}

fn invalid(name: &str, expected: &str, found: &OsStr) -> String {
    format!("{name}: expected {expected}, found {found:?}")
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
