//! Differences between two models of access lists. The order of lists, and of rules in a list, is
//! significant.

use std::collections::{BTreeMap, BTreeSet};

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, ChunkedList, Group, ListDifference, NamedElement,
    RuleSpec, SegmentDefault,
};
use serde::Serialize;
use serde_json::Value;

use super::{Action, FieldChange, Object, Step, Subject, each, objects};

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

objects! {
    &AddressSet, AddressSet, set => set.name.clone();
    Group, Group, group => group.name.clone();
    SegmentDefault, AclDefault, default => default.segment.clone();
    Header<'_>, Acl, list => list.name.to_owned();
    Rule<'_>, Rule, of => format!("{}/{}", of.list, of.rule.name);
}

pub(super) fn between(old: &AccessModel, new: &AccessModel, changes: &mut Vec<Step>) {
    let (before, after) = differing(&old.address_sets, &new.address_sets);
    each(&before, &after, changes);
    each(&old.groups, &new.groups, changes);
    each(&old.defaults, &new.defaults, changes);
    each(&headers(old), &headers(new), changes);
    each(&rules(old, new), &rules(new, old), changes);
    note_orders(old, new, changes);
}

/// Returns an upper bound of the number of rules and address sets that differ.
pub(super) fn count(old: &AccessModel, new: &AccessModel) -> usize {
    let (before, after) = differing(&old.address_sets, &new.address_sets);
    let rules = [rules(old, new), rules(new, old)].map(|rules| rules.len());
    rules[0].max(rules[1]) + before.len().max(after.len())
}

/// Returns the differing parts of two lists, without shared chunks and without the equal
/// beginnings.
fn differing<'a, T: NamedElement + PartialEq>(
    old: &'a ChunkedList<T>,
    new: &'a ChunkedList<T>,
) -> (Vec<&'a T>, Vec<&'a T>) {
    let ListDifference { own, others, .. } = old.difference(new);
    let pairs = own.iter().zip(&others);
    let pairs = pairs.take_while(|(a, b)| a.name() == b.name());
    let same: Vec<bool> = pairs.map(|(a, b)| a == b).collect();
    let rest = |all: &[&'a T]| {
        let same = same.iter().copied().chain(std::iter::repeat(false));
        let rest = all.iter().zip(same).filter(|(_, same)| !same);
        rest.map(|(one, _)| *one).collect()
    };
    (rest(&own), rest(&others))
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

fn by_name(model: &AccessModel) -> BTreeMap<&str, &AccessListSpec> {
    let lists = model.lists.iter();
    lists.map(|list| (list.name.as_str(), list)).collect()
}

/// Returns the rules of a model that differ in another.
fn rules<'a>(model: &'a AccessModel, other: &'a AccessModel) -> Vec<Rule<'a>> {
    let others = by_name(other);
    let mut all = Vec::new();
    for list in &model.lists {
        let rules = match others.get(&*list.name) {
            Some(other) => differing(&list.rules, &other.rules).0,
            None => list.rules.iter().collect(),
        };
        all.extend(rules.into_iter().map(|rule| Rule {
            list: &list.name,
            rule,
        }));
    }
    all
}

/// Changes of access lists close no connection.
/// Appends steps for changed orders.
fn note_orders(old: &AccessModel, new: &AccessModel, changes: &mut Vec<Step>) {
    let names = |model: &AccessModel| model.lists.iter().map(|l| l.name.clone()).collect();
    if is_reordered(names(old), names(new)) {
        changes.push(reordered(None));
    }
    let before = by_name(old);
    for list in &new.lists {
        let Some(before) = before.get(&*list.name) else {
            continue;
        };
        let names = |rules: &[&RuleSpec]| rules.iter().map(|r| r.name.clone()).collect();
        let (old, new) = differing(&before.rules, &list.rules);
        if is_reordered(names(&old), names(&new)) {
            changes.push(reordered(Some(list.name.clone())));
        }
    }
}

/// Returns whether the elements that both have are in another order.
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
        next_connection: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(number: u16, priority: u32) -> RuleSpec {
        RuleSpec {
            name: format!("r{number}"),
            priority,
            ..RuleSpec::default()
        }
    }

    proptest! {
        /// Shared chunks make no difference: equal elements are handled like shared ones.
        #[test]
        fn sharing_is_no_difference(
            first in 0..300u16,
            steps in prop::collection::vec((0..320u16, prop::option::of(0..2u32)), 0..8),
        ) {
            let list = r#"{"lists": [{"name": "l", "direction": "to-guest"}]}"#;
            let mut old: AccessModel = serde_json::from_str(list).unwrap();
            old.lists[0].rules = (0..first).map(|number| rule(number, 0)).collect();
            let mut new = old.clone();
            for (number, priority) in steps {
                let rules = &mut new.lists[0].rules;
                match priority {
                    Some(priority) => rules.put(rule(number, priority)),
                    None => drop(rules.remove(&format!("r{number}"))),
                }
            }
            let json = serde_json::to_vec(&new).unwrap();
            let alone: AccessModel = serde_json::from_slice(&json).unwrap();
            let steps = [&new, &alone].map(|new| {
                let mut changes = Vec::new();
                between(&old, new, &mut changes);
                changes
            });
            prop_assert_eq!(&steps[0], &steps[1]);
            prop_assert_eq!(steps[0].is_empty(), old == new);
        }
    }
}
