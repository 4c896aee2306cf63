//! What tells one model of access lists from another. Here the order means something: of lists, and of rules within a list.

use std::collections::BTreeSet;

use api::v1::{AccessListSpec, AccessModel, RuleSpec};
use serde::Serialize;
use serde_json::Value;

use super::{Action, FieldChange, Step, Subject, each};

/// A list without its rules.
#[derive(Serialize, PartialEq)]
struct Header<'a> {
    #[serde(skip)]
    name: &'a str,
    direction: api::v1::Direction,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    segments: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ports: &'a [String],
}

/// A rule of a list.
#[derive(Serialize, PartialEq)]
#[serde(transparent)]
struct Rule<'a> {
    #[serde(skip)]
    list: &'a str,
    rule: &'a RuleSpec,
}

pub(super) fn between(old: &AccessModel, new: &AccessModel, changes: &mut Vec<Step>) {
    let (before, after) = (&old.address_sets, &new.address_sets);
    each(
        Subject::AddressSet,
        before,
        after,
        |s| s.name.clone(),
        never,
        changes,
    );
    each(
        Subject::Group,
        &old.groups,
        &new.groups,
        |g| g.name.clone(),
        never,
        changes,
    );
    let (before, after) = (&old.defaults, &new.defaults);
    each(
        Subject::AclDefault,
        before,
        after,
        |d| d.segment.clone(),
        never,
        changes,
    );
    let (before, after) = (headers(old), headers(new));
    each(
        Subject::Acl,
        &before,
        &after,
        |h| h.name.to_owned(),
        never,
        changes,
    );
    let name = |rule: &Rule<'_>| format!("{}/{}", rule.list, rule.rule.name);
    each(
        Subject::Rule,
        &rules(old),
        &rules(new),
        name,
        never,
        changes,
    );
    note_orders(old, new, changes);
}

fn header(list: &AccessListSpec) -> Header<'_> {
    Header {
        name: &list.name,
        direction: list.direction,
        segments: &list.segments,
        groups: &list.groups,
        ports: &list.ports,
    }
}

fn headers(model: &AccessModel) -> Vec<Header<'_>> {
    model.lists.iter().map(header).collect()
}

fn rules(model: &AccessModel) -> Vec<Rule<'_>> {
    let mut all = Vec::new();
    for list in &model.lists {
        let rules = list.rules.iter();
        all.extend(rules.map(|rule| Rule {
            list: &list.name,
            rule,
        }));
    }
    all
}

/// None of this costs anybody a connection.
fn never<T>(_: &T, _: &T) -> bool {
    false
}

/// Notes what stands in another order than before.
fn note_orders(old: &AccessModel, new: &AccessModel, changes: &mut Vec<Step>) {
    let names = |model: &AccessModel| model.lists.iter().map(|l| l.name.clone()).collect();
    if is_reordered(names(old), names(new)) {
        changes.push(reordered(None));
    }
    for list in &new.lists {
        let Some(before) = old.list(&list.name) else {
            continue;
        };
        let names = |list: &AccessListSpec| list.rules.iter().map(|r| r.name.clone()).collect();
        if before.rules != list.rules && is_reordered(names(before), names(list)) {
            changes.push(reordered(Some(list.name.clone())));
        }
    }
}

/// Whether those that are in both stand in another order.
fn is_reordered(mut old: Vec<String>, mut new: Vec<String>) -> bool {
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    let (before, after) = (set(&old), set(&new));
    old.retain(|name| after.contains(name));
    new.retain(|name| before.contains(name));
    old != new
}

fn reordered(list: Option<String>) -> Step {
    let text = |text: &str| Value::String(text.to_owned());
    Step {
        action: Action::Change,
        subject: Subject::Acl,
        name: list,
        fields: vec![FieldChange {
            field: "order".to_owned(),
            from: text("as it was"),
            to: text("another one"),
        }],
        disconnects: false,
    }
}
