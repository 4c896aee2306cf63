//! Difference of two models in a few rules.

use std::collections::HashSet;

use model::{AccessListSpec, AccessModel, RuleSpec};

use super::compile::Change;

/// Limit of single changes: beyond it, compiling everything is as cheap.
const MAX_SINGLE_CHANGES: usize = 64;

/// Returns the changes from one model to another, if they are a few rules and nothing else.
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

/// Returns whether two lists differ at most in their rules.
fn is_same_list(old: &AccessListSpec, new: &AccessListSpec) -> bool {
    old.name == new.name
        && old.direction == new.direction
        && old.segments == new.segments
        && old.groups == new.groups
        && old.ports == new.ports
}

/// Adds the changes from one list's rules to the other's; `None` if they are too many or the order
/// differs.
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
    let differing = old.rules.difference(&new.rules);
    let mut kept: Option<HashSet<&str>> = None;
    let mut rest = differing.others.iter().copied().peekable();
    for before in differing.own {
        if changes.len() > MAX_SINGLE_CHANGES {
            return None;
        }
        match rest.peek() {
            Some(after) if *after == before => drop(rest.next()),
            Some(after) if after.name == before.name => {
                changes.push(put(after));
                rest.next();
            }
            _ => {
                let names = || {
                    differing
                        .others
                        .iter()
                        .map(|rule| rule.name.as_str())
                        .collect()
                };
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
    // New rules go behind all others.
    if rest.peek().is_some() && !differing.at_end {
        return None;
    }
    changes.extend(rest.take(MAX_SINGLE_CHANGES + 1).map(put));
    (changes.len() <= MAX_SINGLE_CHANGES).then_some(())
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

    fn model(rules: impl Iterator<Item = RuleSpec>) -> AccessModel {
        let list = AccessListSpec {
            name: "l".to_owned(),
            direction: model::Direction::ToGuest,
            segments: Vec::new(),
            groups: Vec::new(),
            ports: Vec::new(),
            rules: rules.collect(),
        };
        AccessModel {
            lists: vec![list],
            ..AccessModel::default()
        }
    }

    /// Returns the names that are in both models, in their order.
    fn common<'a>(model: &'a AccessModel, other: &AccessModel) -> Vec<&'a str> {
        let names: HashSet<_> = other.lists[0].rules.iter().map(|r| &r.name).collect();
        let rules = model.lists[0].rules.iter();
        let rules = rules.filter(|rule| names.contains(&rule.name));
        rules.map(|rule| rule.name.as_str()).collect()
    }

    proptest! {
        /// Tests with a new model that shares its rules with the old one, and with one that does
        /// not.
        #[test]
        fn changes_lead_from_one_model_to_the_other(
            first in 0..400u16,
            steps in prop::collection::vec((0..420u16, prop::option::of(0..3u32)), 0..20),
            reversed in any::<bool>(),
        ) {
            let old = model((0..first).map(|number| rule(number, 0)));
            let mut new = old.clone();
            for (number, priority) in steps {
                let rules = &mut new.lists[0].rules;
                match priority {
                    Some(priority) => rules.put(rule(number, priority)),
                    None => drop(rules.remove(&format!("r{number}"))),
                }
            }
            let mut alone = model(new.lists[0].rules.iter().cloned());
            if reversed {
                alone = model(new.lists[0].rules.iter().rev().cloned());
            }
            for new in [&new, &alone] {
                let Some(changes) = few_changes(&old, new) else {
                    prop_assert!(reversed || common(&old, new) != common(new, &old));
                    continue;
                };
                let mut rules = old.lists[0].rules.clone();
                for change in changes {
                    match change {
                        Change::Put { rule, .. } => rules.put(*rule),
                        Change::Remove { rule, .. } => prop_assert!(rules.remove(&rule)),
                    }
                }
                prop_assert_eq!(&rules, &new.lists[0].rules);
            }
        }
    }
}
