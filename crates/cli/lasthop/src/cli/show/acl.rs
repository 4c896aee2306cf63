//! `lasthop acl`.

use std::cmp::Reverse;
use std::collections::HashMap;

use api::v1::{AccessCounts, AccessListSpec, ListCounts, RuleCounts, RuleSpec};
use serde_json::Value;

use super::{NONE, Table, bytes, count, duration, or_none};

/// `lasthop acl list`.
pub(in crate::cli) fn lists(counts: &AccessCounts) -> String {
    Table::of(&counts.lists)
        .text("LIST", |list| list.name.clone())
        .text("DIRECTION", |list| list.direction.as_str().to_owned())
        .text("ATTACHED TO", |list| or_none(attached_to(list)))
        .number("RULES", |list| list.rules.len().to_string())
        .number("PACKETS", |list| count(sum(&list.rules).packets))
        .number("BYTES", |list| bytes(sum(&list.rules).bytes))
        .number("LAST HIT", |list| last_hit(&sum(&list.rules)))
        .format_or("no access lists")
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

/// Formats the time since the last hit.
fn last_hit(counts: &RuleCounts) -> String {
    let ago = counts.last_hit_ms_ago;
    or_none(ago.map(|ms| format!("{} ago", duration(ms / 1000))))
}

/// `lasthop acl show`. The counters may belong to a newer version of the list; they are matched by
/// the name of the rule.
pub(in crate::cli) fn list(list: &AccessListSpec, counts: &AccessCounts) -> String {
    let counts = counts.lists.iter().flat_map(|list| &list.rules);
    let counts: HashMap<_, _> = counts.map(|counts| (&*counts.name, counts)).collect();
    let counted = |rule: &RuleSpec, format: fn(&RuleCounts) -> String| {
        or_none(counts.get(&*rule.name).map(|counts| format(counts)))
    };
    let mut rules: Vec<_> = list.rules.iter().collect();
    rules.sort_by_key(|rule| Reverse(rule.priority));
    Table::of(rules)
        .number("PRIORITY", |rule| rule.priority.to_string())
        .text("RULE", |rule| rule.name.clone())
        .text("ACTION", |rule| rule.action.as_str().to_owned())
        .text("MATCHES", matches)
        .number("PACKETS", |rule| counted(rule, |c| count(c.packets)))
        .number("BYTES", |rule| counted(rule, |c| bytes(c.bytes)))
        .number("LAST HIT", |rule| counted(rule, last_hit))
        .format_or("no rules")
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
