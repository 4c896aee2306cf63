//! What the environment may say, checked before anything starts.

use std::ffi::OsStr;

use super::heartbeat;

/// Which lines the log has; see [`crate::log`].
const LOG: &str = "LASTHOP_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Where lines come from: the crates that have any, and the programs.
const TARGETS: [&str; 8] = [
    "lasthop",
    "lasthop_control",
    "lasthop_switch",
    "lasthop_driver",
    "control",
    "datapath",
    "driver",
    "sandbox",
];

/// Whether all variables can be meant.
///
/// # Errors
/// What was expected of which.
pub(super) fn check() -> Result<(), String> {
    variable(LOG, is_filter, &filters())?;
    let switch = |text: &str| ["", "on", "off"].contains(&text);
    variable(heartbeat::SWITCH, switch, "on or off")
}

fn variable(name: &str, is_right: impl Fn(&str) -> bool, expected: &str) -> Result<(), String> {
    let text = std::env::var_os(name).unwrap_or_default();
    match text.to_str().is_some_and(is_right) {
        true => Ok(()),
        false => Err(wrong(name, expected, &text)),
    }
}

fn wrong(name: &str, expected: &str, found: &OsStr) -> String {
    format!("{name}: expected {expected}, found {found:?}")
}

fn filters() -> String {
    let (levels, targets) = (LEVELS.join(", "), TARGETS.join(", "));
    format!(
        "one of {levels}, or such of a part, as in datapath=debug (parts: {targets}), or several with commas"
    )
}

fn is_filter(text: &str) -> bool {
    text.split(',').all(is_directive)
}

/// Whether this is a level, or `TARGET=LEVEL`. Anything else is taken for the name of a target by who reads it, and silences all others.
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
        for right in ["", "info", "DEBUG", "off", "warn,control::engine=debug"] {
            assert!(is_filter(right), "{right}");
        }
        for wrong in [
            "verbose",
            "bogus=debug",
            "lasthop=",
            "datapath=loud",
            "control",
            "info, warn",
        ] {
            assert!(!is_filter(wrong), "{wrong}");
        }
    }
}
