//! Checks and warnings of access lists.
//!
//! [`policy::acl::Rules::compile`] checks them; this module adds the place in the document to its
//! errors.

use std::collections::BTreeMap;

use api::v1::{
    AccessListSpec, AccessModel, ChunkedList, DEFAULT_SEGMENT, DesiredState, NamedElement, Problem,
};
use policy::acl::{AccessError, CompiledRules, Names, RuleName, Rules, ShadowedRule};
use policy::{PortId, Segment, SegmentId};

use super::invalid::{Invalid, Place, Why};
use super::references;

/// Warnings about valid access lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessDoubts {
    /// Rules that never decide anything.
    pub shadowed: Vec<ShadowedRule>,
    /// Unattached lists.
    pub unattached: Vec<String>,
}

impl AccessDoubts {
    /// Returns the warnings as lines, without line ends.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let idle =
            |list| format!("acl \"{list}\" has no ports, groups or segments, and does nothing");
        let shadowed = self.shadowed.iter().map(ToString::to_string);
        self.unattached.iter().map(idle).chain(shadowed)
    }
}

/// Checks the access lists of a state whose ports and segments are valid.
///
/// # Errors
/// The first error.
pub fn check_access(state: &DesiredState) -> Result<AccessDoubts, Invalid> {
    if state.access.is_empty() {
        return Ok(AccessDoubts::default());
    }
    let compiled = compiled(state).map_err(|error| placed(&state.access, &error))?;
    let idle = |list: &&AccessListSpec| {
        list.segments.is_empty() && list.groups.is_empty() && list.ports.is_empty()
    };
    let unattached = state.access.lists.iter().filter(idle);
    Ok(AccessDoubts {
        shadowed: compiled.shadowed,
        unattached: unattached.map(|list| list.name.clone()).collect(),
    })
}

/// Compiles the access lists of a state with valid ports and segments.
pub(super) fn compiled(state: &DesiredState) -> Result<CompiledRules, AccessError> {
    let (segments, ports) = numbers(state);
    let classes = state.qos_classes.iter().zip(1..);
    let classes = classes
        .map(|(class, at)| (class.name.clone(), at))
        .collect();
    let names = Names {
        segments: &segments,
        ports: &ports,
        classes: &classes,
    };
    Rules::compile(&state.access, names)
}

/// Returns numbers for names, for the check only.
fn numbers(state: &DesiredState) -> (BTreeMap<SegmentId, Segment>, BTreeMap<String, PortId>) {
    let mut segments: Vec<&str> = state.segments.iter().map(|s| s.name.as_str()).collect();
    if !segments.contains(&DEFAULT_SEGMENT) {
        segments.push(DEFAULT_SEGMENT);
    }
    let segment = |(at, name): (u16, &str)| {
        let (name, vlan) = (name.to_owned(), None);
        (SegmentId(at), Segment { name, vlan })
    };
    let ports = state.ports.iter().zip(0..);
    (
        (0..).zip(segments).map(segment).collect(),
        ports
            .map(|(port, at)| (port.name.clone(), PortId(at)))
            .collect(),
    )
}

/// Returns an error of the compiler with its place in the document: the last object of that name.
pub fn placed(access: &AccessModel, error: &AccessError) -> Invalid {
    use policy::acl::Place as Of;
    let last = |found: Option<usize>| found.unwrap_or_default();
    let list = |name: &str| last(access.lists.iter().rposition(|list| list.name == name));
    let place = match &error.place {
        Of::Set(name) => Place::AddressSet(last(rposition(&access.address_sets, name))),
        Of::Group(name) => Place::Group(last(
            access.groups.iter().rposition(|group| group.name == *name),
        )),
        Of::Default(name) => Place::AclDefault(last(
            access
                .defaults
                .iter()
                .rposition(|default| default.segment == *name),
        )),
        Of::List(name) => Place::Acl(list(name)),
        Of::Rule(RuleName { list: name, rule }) => {
            let list = list(name);
            let rules = access.lists.get(list).map(|list| &list.rules);
            let at = rules.and_then(|rules| rposition(rules, rule));
            Place::Rule(list, last(at))
        }
    };
    Invalid {
        place,
        key: error.field,
        item: None,
        expected: String::new(),
        found: match place {
            Place::Rule(..) => format!("{}: {}", error.place, error.reason),
            _ => error.reason.to_string(),
        },
        why: Why::Wrong,
    }
}

fn rposition<T: NamedElement>(all: &ChunkedList<T>, name: &str) -> Option<usize> {
    let found = all.iter().enumerate().filter(|(_, one)| one.name() == name);
    found.last().map(|(at, _)| at)
}

/// A change of access lists, groups or address sets.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessChange {
    /// Replaces everything.
    All(Box<AccessModel>),
    /// Replaces the list of this name, or appends it.
    PutList(Box<AccessListSpec>),
    /// Removes a list.
    RemoveList(String),
    /// Replaces a rule of a list, or appends it.
    PutRule(String, Box<api::v1::RuleSpec>),
    /// Removes a rule.
    RemoveRule(String, String),
    /// Replaces or adds an address set.
    PutSet(api::v1::AddressSet),
    /// Removes an address set.
    RemoveSet(String),
    /// Replaces or adds a group.
    PutGroup(api::v1::Group),
    /// Removes a group.
    RemoveGroup(String),
}

impl AccessChange {
    /// Returns the model after the change, not checked.
    ///
    /// # Errors
    /// 404 for an unknown object, 409 for the removal of one that others refer to.
    pub(super) fn apply(&self, old: &AccessModel) -> Result<AccessModel, Problem> {
        let mut new = old.clone();
        match self {
            Self::All(all) => return Ok((**all).clone()),
            Self::PutList(list) => put(&mut new.lists, (**list).clone(), |l| &l.name),
            Self::RemoveList(name) => {
                remove(&mut new.lists, name, |l| &l.name, "access list")?;
            }
            Self::PutRule(list, rule) => {
                list_of(&mut new, list)?.rules.put((**rule).clone());
            }
            Self::RemoveRule(list, rule) => {
                let was_there = list_of(&mut new, list)?.rules.remove(rule);
                was_there
                    .then_some(())
                    .ok_or_else(|| Problem::no_such("rule", rule))?;
            }
            Self::PutSet(set) => new.address_sets.put(set.clone()),
            Self::RemoveSet(name) => {
                let was_there = new.address_sets.remove(name);
                was_there
                    .then_some(())
                    .ok_or_else(|| Problem::no_such("address set", name))?;
                references::address_set(&new, name)?;
            }
            Self::PutGroup(group) => put(&mut new.groups, group.clone(), |g| &g.name),
            Self::RemoveGroup(name) => {
                remove(&mut new.groups, name, |g| &g.name, "group")?;
                references::group(&new, name)?;
            }
        }
        Ok(new)
    }
}

fn list_of<'a>(access: &'a mut AccessModel, name: &str) -> Result<&'a mut AccessListSpec, Problem> {
    let found = access.lists.iter_mut().find(|list| list.name == name);
    found.ok_or_else(|| Problem::no_such("access list", name))
}

fn put<T>(all: &mut Vec<T>, new: T, name: impl Fn(&T) -> &String) {
    match all.iter_mut().find(|one| name(one) == name(&new)) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

fn remove<T>(
    all: &mut Vec<T>,
    gone: &str,
    name: impl Fn(&T) -> &String,
    what: &str,
) -> Result<(), Problem> {
    let at = all.iter().position(|one| name(one) == gone);
    let at = at.ok_or_else(|| Problem::no_such(what, gone))?;
    all.remove(at);
    Ok(())
}
