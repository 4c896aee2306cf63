//! `packaging/prometheus-alerts.yml` names existing metrics and reasons, and its alerts fire as
//! tested by promtool.

use std::process::Command;

use serde_json::json;

use super::*;

const ALERTS: &str = include_str!("../../../../../../packaging/prometheus-alerts.yml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging");

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

/// Returns the queries of the dashboard, over all hosts and ports.
fn queries() -> Vec<String> {
    let text = include_str!("../../../../../../packaging/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let filled = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$instance", ".*").replace("$port", ".*");
        query.replace("$__rate_interval", "5m")
    };
    targets.map(filled).collect()
}

/// Returns tests for promtool on a host that has just started: no alert fires, and each query has
/// an answer, but those that show only what is above zero.
fn tests_of_a_fresh_start() -> Value {
    let page = page(&fresh(), Format::Plain);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let series = samples.map(|sample| {
        let (key, value) = sample.rsplit_once(' ').unwrap();
        let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
        let labels = labels.strip_suffix('}').unwrap();
        let comma = if labels.is_empty() { "" } else { "," };
        let series = format!("{name}{{instance=\"a\"{comma}{labels}}}");
        json!({"series": series, "values": format!("{value}x60")})
    });
    let queries = queries();
    let about_some = |query: &&String| query.contains("> 0");
    let (of_some, always): (Vec<_>, Vec<_>) = queries.iter().partition(about_some);
    assert!(always.len() > 40, "{}", always.len());
    let answered = always.iter().map(|query| format!("absent({query})"));
    let parsed = of_some.iter().map(|query| format!("absent({query}) > 1"));
    let firing = "ALERTS{alertstate=\"firing\"}".to_owned();
    let empty = answered.chain(parsed).chain([firing]);
    let empty = empty.map(|expr| json!({"expr": expr, "eval_time": "50m", "exp_samples": []}));
    json!({
        "rule_files": [format!("{FOLDER}/prometheus-alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": series.collect::<Vec<_>>(),
            "promql_expr_test": empty.collect::<Vec<_>>(),
        }],
    })
}

/// Runs promtool: that of the system, or the one that set-up has taken from Debian's `prometheus`.
fn promtool(line: &[&str]) {
    const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.cache/promtool");
    let run = |program| {
        Command::new(program)
            .args(line)
            .current_dir(FOLDER)
            .output()
    };
    let Ok(done) = run("promtool").or_else(|_| run(OWN)) else {
        return testkit::skip::skipped("no promtool here (make setup has it)");
    };
    let text = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn alerts_come_when_they_should() {
    promtool(&["check", "rules", "prometheus-alerts.yml"]);
    promtool(&["test", "rules", "prometheus-alerts-test.yml"]);
}

#[test]
fn queries_are_answered_and_no_alert_fires_on_a_fresh_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let tests = tests_of_a_fresh_start();
    // JSON is YAML.
    std::fs::write(&file, tests.to_string()).unwrap();
    promtool(&["test", "rules", file.path().to_str().unwrap()]);
}
