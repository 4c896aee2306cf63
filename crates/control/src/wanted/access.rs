//! What must hold for access lists, and what is worth a warning.
//!
//! [`policy::acl::Rules::compile`] checks them; here its errors get their place in the document.

use std::collections::BTreeMap;

use api::v1::{
    AccessListSpec, AccessModel, DEFAULT_SEGMENT, Named, Problem, ProblemKind, Shared, WantedState,
};
use policy::acl::{AccessError, Names, RuleName, Rules, Shadowed};
use policy::{PortId, Segment, SegmentId};

use super::invalid::{Invalid, Place, Why};
use super::needs;

/// What is worth a warning in access lists that are right.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessDoubts {
    /// Rules that never decide anything.
    pub shadowed: Vec<Shadowed>,
    /// Lists that are nobody's.
    pub unattached: Vec<String>,
}

impl AccessDoubts {
    /// Each in words, without a line's end.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let idle =
            |list| format!("acl \"{list}\" has no ports, groups or segments, and does nothing");
        let shadowed = self.shadowed.iter().map(ToString::to_string);
        self.unattached.iter().map(idle).chain(shadowed)
    }
}

/// Checks the access lists of a state, the ports and segments of which are right.
///
/// # Errors
/// The first thing that is wrong with them.
pub fn check_access(state: &WantedState) -> Result<AccessDoubts, Invalid> {
    if state.access.is_empty() {
        return Ok(AccessDoubts::default());
    }
    let (segments, ports) = numbers(state);
    let names = Names {
        segments: &segments,
        ports: &ports,
    };
    let compiled = Rules::compile(&state.access, names);
    let compiled = compiled.map_err(|error| placed(&state.access, &error))?;
    let idle = |list: &&AccessListSpec| {
        list.segments.is_empty() && list.groups.is_empty() && list.ports.is_empty()
    };
    let unattached = state.access.lists.iter().filter(idle);
    Ok(AccessDoubts {
        shadowed: compiled.shadowed,
        unattached: unattached.map(|list| list.name.clone()).collect(),
    })
}

/// Numbers for names, good for a check.
fn numbers(state: &WantedState) -> (BTreeMap<SegmentId, Segment>, BTreeMap<String, PortId>) {
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

/// An error of the compiler with its place in the document: of several things with a name, the last.
pub(crate) fn placed(access: &AccessModel, error: &AccessError) -> Invalid {
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

fn rposition<T: Named>(all: &Shared<T>, name: &str) -> Option<usize> {
    let found = all.iter().enumerate().filter(|(_, one)| one.name() == name);
    found.last().map(|(at, _)| at)
}

/// A change to one thing of the access lists.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessChange {
    /// These and no others.
    All(Box<AccessModel>),
    /// The list of this name is this one; a new one goes to the end.
    PutList(Box<AccessListSpec>),
    /// There is no such list any more.
    RemoveList(String),
    /// One rule of a list; a new one goes to the end.
    PutRule(String, Box<api::v1::RuleSpec>),
    /// There is no such rule any more.
    RemoveRule(String, String),
    /// The set of this name is this one.
    PutSet(api::v1::AddressSet),
    /// There is no such set any more.
    RemoveSet(String),
    /// The group of this name is this one.
    PutGroup(api::v1::Group),
    /// There is no such group any more.
    RemoveGroup(String),
}

impl AccessChange {
    /// The lists after the change, not checked.
    ///
    /// # Errors
    /// 404 where something is not there, 409 where it is to be removed and something else names it.
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
                    .ok_or_else(|| missing("rule", rule))?;
            }
            Self::PutSet(set) => new.address_sets.put(set.clone()),
            Self::RemoveSet(name) => {
                let was_there = new.address_sets.remove(name);
                was_there
                    .then_some(())
                    .ok_or_else(|| missing("address set", name))?;
                needs::address_set(&new, name)?;
            }
            Self::PutGroup(group) => put(&mut new.groups, group.clone(), |g| &g.name),
            Self::RemoveGroup(name) => {
                remove(&mut new.groups, name, |g| &g.name, "group")?;
                needs::group(&new, name)?;
            }
        }
        Ok(new)
    }
}

fn missing(what: &str, name: &str) -> Problem {
    Problem::new(
        ProblemKind::NotFound,
        format!("there is no {what} `{name}`"),
    )
}

fn list_of<'a>(access: &'a mut AccessModel, name: &str) -> Result<&'a mut AccessListSpec, Problem> {
    let found = access.lists.iter_mut().find(|list| list.name == name);
    found.ok_or_else(|| missing("access list", name))
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
    let at = at.ok_or_else(|| missing(what, gone))?;
    all.remove(at);
    Ok(())
}
