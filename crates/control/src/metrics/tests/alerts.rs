//! `packaging/prometheus-alerts.yml` names existing metrics and reasons, and its alerts fire as
//! tested by promtool.

use std::process::Command;

use super::*;

const ALERTS: &str = include_str!("../../../../../packaging/prometheus-alerts.yml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

#[test]
fn alerts_ask_for_nothing_that_there_is_not() {
    let page = Metrics::read(&page(&facts(), Format::Plain)).unwrap();
    let (known, asked) = (page.names(), names(ALERTS).collect::<Vec<_>>());
    assert!(asked.len() > 10);
    for name in asked {
        assert!(known.contains(name), "{name}");
    }
}

/// Reasons are whole names, or prefixes like `spoofed-.*`.
#[test]
fn reasons_that_alerts_name_are_reasons() {
    let lists = ALERTS
        .split("{reason")
        .skip(1)
        .map(|rest| rest.split('"').nth(1).unwrap());
    let asked: Vec<_> = lists.flat_map(|list| list.split('|')).collect();
    assert!(asked.len() > 5);
    for name in asked {
        let is_it = |reason: &&DropReason| match name.strip_suffix(".*") {
            Some(begin) => reason.name().starts_with(begin),
            None => reason.name() == name,
        };
        assert!(REASONS.iter().any(|reason| is_it(&reason)), "{name}");
    }
}

/// Without promtool (Debian's `prometheus`), only names are checked.
#[test]
fn promtool_reads_the_alerts_and_they_come_when_they_should() {
    for line in [
        "check rules prometheus-alerts.yml",
        "test rules prometheus-alerts-test.yml",
    ] {
        let mut promtool = Command::new("promtool");
        let Ok(done) = promtool.args(line.split(' ')).current_dir(FOLDER).output() else {
            eprintln!("note: no promtool here (Debian's prometheus has it), alerts not tried");
            return;
        };
        let told = [done.stdout, done.stderr].concat();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&told));
    }
}
