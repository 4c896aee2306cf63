//! From one model to another that differs in a few rules.

use std::collections::HashSet;

use api::v1::{AccessListSpec, AccessModel, RuleSpec};

use super::compile::Change;

/// Changes of rules that are made one by one at most: beyond that, compiling everything is no dearer.
const FEW: usize = 64;

/// What leads from one model to another, if that is a few changed rules and nothing else.
#[must_use]
pub fn few_changes(old: &AccessModel, new: &AccessModel) -> Option<Vec<Change>> {
    let same = old.address_sets == new.address_sets
        && old.groups == new.groups
        && old.defaults == new.defaults
        && old.lists.len() == new.lists.len();
    let mut changes = Vec::new();
    for (old, new) in old.lists.iter().zip(&new.lists) {
        if !same || !is_same_list(old, new) {
            return None;
        }
        note_changes(old, new, &mut changes)?;
    }
    same.then_some(changes)
}

/// Whether two lists are the same but for their rules.
fn is_same_list(old: &AccessListSpec, new: &AccessListSpec) -> bool {
    old.name == new.name
        && old.direction == new.direction
        && old.segments == new.segments
        && old.groups == new.groups
        && old.ports == new.ports
}

/// Notes what makes one list's rules the other's; `None` if they are too many or stand in another order.
fn note_changes(
    old: &AccessListSpec,
    new: &AccessListSpec,
    changes: &mut Vec<Change>,
) -> Option<()> {
    let list = || new.name.clone();
    let put = |rule: &RuleSpec| Change::Put {
        list: list(),
        rule: Box::new(rule.clone()),
    };
    let mut kept: Option<HashSet<&str>> = None;
    let mut rest = new.rules.iter().peekable();
    for before in &old.rules {
        if changes.len() > FEW {
            return None;
        }
        match rest.peek() {
            Some(after) if *after == before => drop(rest.next()),
            Some(after) if after.name == before.name => {
                changes.push(put(after));
                rest.next();
            }
            _ => {
                let names = || new.rules.iter().map(|rule| rule.name.as_str()).collect();
                if kept
                    .get_or_insert_with(names)
                    .contains(before.name.as_str())
                {
                    return None;
                }
                changes.push(Change::Remove {
                    list: list(),
                    rule: before.name.clone(),
                });
            }
        }
    }
    changes.extend(rest.take(FEW + 1).map(put));
    (changes.len() <= FEW).then_some(())
}
