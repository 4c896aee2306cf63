//! `lasthop acl`.

use std::cmp::Reverse;
use std::collections::HashMap;

use api::v1::{AccessCounts, AccessListSpec, ListCounts, RuleCounts, RuleSpec};
use serde_json::Value;

use super::{NONE, bytes, count, duration, or_none, table};
use crate::cli::tables::Column::{Number, Text};

/// `lasthop acl list`.
pub(in crate::cli) fn lists(counts: &AccessCounts) -> String {
    let columns = [
        Text("LIST"),
        Text("DIRECTION"),
        Text("ATTACHED TO"),
        Number("RULES"),
        Number("PACKETS"),
        Number("BYTES"),
        Number("LAST HIT"),
    ];
    let row = |list: &ListCounts| {
        let mut row = vec![
            list.name.clone(),
            list.direction.as_str().to_owned(),
            or_none(attached_to(list)),
            list.rules.len().to_string(),
        ];
        row.extend(used(&sum(&list.rules)));
        row
    };
    let rows: Vec<_> = counts.lists.iter().map(row).collect();
    table(&columns, &rows, "no access lists")
}

/// Formats the ports, groups and segments to which a list is attached.
fn attached_to(list: &ListCounts) -> Option<String> {
    let named = |kind: &str, names: &[String]| match names {
        [] => None,
        names => Some(format!("{kind}{}", names.join(","))),
    };
    let all = [
        named("", &list.ports),
        named("group ", &list.groups),
        named("segment ", &list.segments),
    ];
    let all: Vec<_> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn sum(rules: &[RuleCounts]) -> RuleCounts {
    let hits = rules.iter().filter_map(|rule| rule.last_hit_ms_ago);
    RuleCounts {
        name: String::new(),
        packets: rules.iter().map(|rule| rule.packets).sum(),
        bytes: rules.iter().map(|rule| rule.bytes).sum(),
        last_hit_ms_ago: hits.min(),
    }
}

/// Formats packets, bytes and the time since the last hit.
fn used(counts: &RuleCounts) -> [String; 3] {
    let ago = counts.last_hit_ms_ago;
    let ago = ago.map(|ms| format!("{} ago", duration(ms / 1000)));
    [count(counts.packets), bytes(counts.bytes), or_none(ago)]
}

/// `lasthop acl show`. The counters may belong to a newer version of the list; they are matched by
/// the name of the rule.
pub(in crate::cli) fn list(list: &AccessListSpec, counts: &AccessCounts) -> String {
    let columns = [
        Number("PRIORITY"),
        Text("RULE"),
        Text("ACTION"),
        Text("MATCHES"),
        Number("PACKETS"),
        Number("BYTES"),
        Number("LAST HIT"),
    ];
    let counts = counts.lists.iter().flat_map(|list| &list.rules);
    let counts: HashMap<_, _> = counts.map(|counts| (&*counts.name, counts)).collect();
    let mut rules: Vec<_> = list.rules.iter().collect();
    rules.sort_by_key(|rule| Reverse(rule.priority));
    let row = |rule: &&RuleSpec| {
        let mut row = vec![
            rule.priority.to_string(),
            rule.name.clone(),
            rule.action.as_str().to_owned(),
            matches(rule),
        ];
        let none = || [NONE; 3].map(str::to_owned);
        row.extend(counts.get(&*rule.name).map_or_else(none, |c| used(c)));
        row
    };
    let rows: Vec<_> = rules.iter().map(row).collect();
    table(&columns, &rows, "no rules")
}

/// Formats the match of a rule with the keys of the configuration.
fn matches(rule: &RuleSpec) -> String {
    // serde writes a rule as an object.
    let Ok(Value::Object(keys)) = serde_json::to_value(rule) else {
        return NONE.to_owned();
    };
    let others = ["name", "priority", "action", "log"];
    let keys = keys
        .iter()
        .filter(|(key, _)| !others.contains(&key.as_str()));
    let fields: Vec<_> = keys
        .map(|(key, value)| format!("{key}={}", plain(value)))
        .collect();
    if fields.is_empty() {
        return "everything".to_owned();
    }
    fields.join(" ")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
