//! From the access model to rules, and from rules to rules with one change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use port::PortId;
use port::counters::MAX_PORTS;

use super::error::{AccessError, Place, Reason, RuleName, Shadowed};
use super::list::AccessList;
use super::matcher::{Matcher, Rule};
use super::order::Order;
use super::palette::Palette;
use super::resolve::{Context, at};
use super::rules::{RuleId, RuleInfo, Rules, Verdict};
use super::text;
use super::wiring::{Attachment, Overlap, wire};
use crate::model::{Segment, SegmentId};
use api::v1::{AccessListSpec, AccessModel, RuleSpec};

/// Rules in one model at most.
pub const MAX_RULES: usize = 1 << 20;

/// What names of segments and ports stand for.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// As in [`Model`](crate::Model).
    pub segments: &'a BTreeMap<SegmentId, Segment>,
    /// By name.
    pub ports: &'a BTreeMap<String, PortId>,
}

impl Names<'_> {
    fn usable_ports(&self) -> BTreeMap<String, PortId> {
        let ports = self.ports.iter();
        let ports = ports.filter(|(_, id)| (id.0 as usize) < MAX_PORTS);
        ports.map(|(name, id)| (name.clone(), *id)).collect()
    }
}

/// What came of a model.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The rules.
    pub rules: Rules,
    /// Rules that never decide.
    pub shadowed: Vec<Shadowed>,
}

/// A change to one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The rule of this name is this one now; it keeps its place in the list. One with a new name goes to the end.
    Put {
        /// The list's name.
        list: String,
        /// The rule.
        rule: Box<RuleSpec>,
    },
    /// There is no such rule any more.
    Remove {
        /// The list's name.
        list: String,
        /// The rule's name.
        rule: String,
    },
}

impl Rules {
    /// Checks and compiles a model.
    ///
    /// # Errors
    /// The first thing that is wrong: sets, groups, lists in their order, then what concerns several of them.
    pub fn compile(model: &AccessModel, names: Names<'_>) -> Result<Compiled, AccessError> {
        let context = Context::new(model, &names.usable_ports())?;
        let attachments = attachments(model, &context, names)?;
        let mut lists = Vec::with_capacity(model.lists.len());
        let mut ids = HashSet::new();
        for spec in &model.lists {
            lists.push(Arc::new(compile_list(&context, spec, &mut ids)?));
        }
        let wiring = wire(model, &context, names, &attachments)?;
        for overlap in &wiring.overlaps {
            check_overlap(&context, &lists, overlap)?;
        }
        let shadowed = lists.iter().flat_map(|list| shadowed(list)).collect();
        let rules = Self {
            palette: Arc::new(Palette::new(&lists)),
            lists,
            wiring: Arc::new(wiring),
            context: Arc::new(context),
        };
        Ok(Compiled { rules, shadowed })
    }

    /// The same rules where names of ports stand for something else: for rules that are put later. What those that are there mean
    /// stays.
    #[must_use]
    pub fn with_ports(&self, names: Names<'_>) -> Self {
        let ports = names.usable_ports();
        if self.context.ports == ports {
            return self.clone();
        }
        let context = Context {
            ports,
            ..Context::clone(&self.context)
        };
        Self {
            context: Arc::new(context),
            ..self.clone()
        }
    }

    /// The same rules with one change. They share with these all that is the same, and these stay as they are. The returned warning
    /// is about the rule that was put alone.
    ///
    /// # Errors
    /// What [`Rules::compile`] would say of the rule; an unknown list, or an unknown rule that is to be removed.
    pub fn change(&self, change: &Change) -> Result<Compiled, AccessError> {
        let (Change::Put { list: name, .. } | Change::Remove { list: name, .. }) = change;
        let number = self.lists.iter().position(|list| *list.name == **name);
        let Some(number) = number else {
            return Err(unknown(Place::List(name.clone()), "acl", name));
        };
        let mut list = AccessList::clone(&self.lists[number]);
        let mut new = self.clone();
        let mut shadowed = Vec::new();
        match change {
            Change::Put { rule, .. } => {
                let (info, matcher) = self.context.rule(&list.name, list.direction, rule)?;
                self.check_put(number, &info, rule.priority, &matcher)?;
                if !new.palette.has_flags(matcher.flags.1) {
                    Arc::make_mut(&mut new.palette).extend_flags(matcher.flags.1);
                }
                let id = info.id;
                list.put(info, rule.priority, matcher);
                shadowed.extend(list.rule(id).and_then(|rule| shadow(&list, rule)));
            }
            Change::Remove { rule, .. } => {
                let Some(old) = list.rule(RuleId::of(name, rule)).cloned() else {
                    return Err(unknown(Place::List(name.clone()), "rule", rule));
                };
                list.take(&old);
            }
        }
        new.lists[number] = Arc::new(list);
        Ok(Compiled {
            rules: new,
            shadowed,
        })
    }

    /// Whether a rule may be put into a list.
    fn check_put(
        &self,
        number: usize,
        info: &Arc<RuleInfo>,
        priority: u32,
        matcher: &Matcher,
    ) -> Result<(), AccessError> {
        let list = &self.lists[number];
        let place = |field| at(Place::Rule(name_of(info)), field);
        let elsewhere = |other: &&Arc<AccessList>| {
            let found = other.rule(info.id);
            found.is_some_and(|rule| (&rule.info.list, &rule.info.name) != (&info.list, &info.name))
        };
        if self.lists.iter().any(|other| elsewhere(&other)) {
            return Err(place("name")(Reason::Repeated(info.name.to_string())));
        }
        if self.len() >= MAX_RULES || list.next_place() == u32::MAX - 1 {
            return Err(place("name")(too_many_rules()));
        }
        let rule = Rule::new(info.clone(), Order::new(priority, 0), matcher.clone());
        let other = list.contradiction(&rule);
        if let Some(other) = other {
            return Err(place("action")(Reason::Contradiction(name_of(&other.info))));
        }
        for overlap in &self.wiring.overlaps {
            if let Some(other) = overlap.other_than(number) {
                check_against(&self.context, &rule, &self.lists[other], overlap.port)?;
            }
        }
        Ok(())
    }
}

fn too_many_rules() -> Reason {
    let (most, of) = (MAX_RULES, "rules");
    Reason::TooMany { most, of }
}

fn unknown(place: Place, kind: &'static str, name: &str) -> AccessError {
    let name = name.to_owned();
    at(place, "name")(Reason::Unknown { kind, name })
}

pub(super) fn name_of(info: &RuleInfo) -> RuleName {
    RuleName {
        list: info.list.to_string(),
        rule: info.name.to_string(),
    }
}

/// Checks lists' names, and reads to what they are attached.
fn attachments(
    model: &AccessModel,
    context: &Context,
    names: Names<'_>,
) -> Result<Vec<Attachment>, AccessError> {
    let rules: usize = model.lists.iter().map(|list| list.rules.len()).sum();
    let mut seen = HashSet::new();
    let mut all = Vec::with_capacity(model.lists.len());
    for spec in &model.lists {
        let fault = |field| at(Place::List(spec.name.clone()), field);
        text::name(&spec.name).map_err(fault("name"))?;
        if !seen.insert(&spec.name) {
            return Err(fault("name")(Reason::Repeated(spec.name.clone())));
        }
        if rules > MAX_RULES {
            return Err(fault("rule")(too_many_rules()));
        }
        all.push(Attachment::new(spec, context, names)?);
    }
    Ok(all)
}

fn compile_list(
    context: &Context,
    spec: &AccessListSpec,
    ids: &mut HashSet<RuleId>,
) -> Result<AccessList, AccessError> {
    let name: Arc<str> = spec.name.as_str().into();
    let mut rules = Vec::with_capacity(spec.rules.len());
    for (place, rule) in (0..).zip(spec.rules.iter()) {
        let (info, matcher) = context.rule(&name, spec.direction, rule)?;
        if !ids.insert(info.id) {
            let twice = Reason::Repeated(rule.name.clone());
            return Err(at(Place::Rule(name_of(&info)), "name")(twice));
        }
        let order = Order::new(rule.priority, place);
        rules.push(Arc::new(Rule::new(info, order, matcher)));
    }
    check_contradictions(&rules)?;
    Ok(AccessList::new(&spec.name, spec.direction, &rules))
}

fn check_contradictions(rules: &[Arc<Rule>]) -> Result<(), AccessError> {
    let mut seen: HashMap<(u32, &Matcher), &Rule> = HashMap::with_capacity(rules.len());
    // With a set that is empty now, a rule says nothing.
    for rule in rules.iter().filter(|rule| rule.matcher.matches_anything()) {
        let before = seen
            .entry((rule.order.priority(), &rule.matcher))
            .or_insert(rule);
        if before.info.verdict != rule.info.verdict {
            let reason = Reason::Contradiction(name_of(&before.info));
            return Err(at(Place::Rule(name_of(&rule.info)), "action")(reason));
        }
    }
    Ok(())
}

fn shadow(list: &AccessList, rule: &Rule) -> Option<Shadowed> {
    let by = list.shadow_of(rule)?;
    Some(Shadowed {
        rule: name_of(&rule.info),
        by: name_of(&by.info),
    })
}

/// Rules that never decide, in their order.
fn shadowed(list: &AccessList) -> Vec<Shadowed> {
    let mut all = Vec::new();
    list.for_each(|rule| all.extend(shadow(list, rule).map(|found| (rule.order, found))));
    all.sort_unstable_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, found)| found).collect()
}

/// Refuses rules of two groups' lists that nobody has put into an order.
fn check_overlap(
    context: &Context,
    lists: &[Arc<AccessList>],
    overlap: &Overlap,
) -> Result<(), AccessError> {
    let [first, second] = overlap.lists.map(|number| &lists[number]);
    let mut said: HashMap<(u32, Verdict), Arc<Rule>> = HashMap::new();
    first.for_each(|rule| {
        let key = (rule.order.priority(), rule.info.verdict);
        said.entry(key).or_insert_with(|| rule.clone());
    });
    let mut wrong = None;
    second.for_each(|rule| {
        let others = [Verdict::Allow, Verdict::Drop, Verdict::Reject].into_iter();
        let mut others = others.filter(|verdict| *verdict != rule.info.verdict);
        let found = others.find_map(|verdict| said.get(&(rule.order.priority(), verdict)));
        if let Some(other) = found
            && wrong
                .as_ref()
                .is_none_or(|(old, _): &(Arc<Rule>, _)| rule.order < old.order)
        {
            wrong = Some((rule.clone(), other.clone()));
        }
    });
    match wrong {
        Some((rule, other)) => Err(ambiguous(context, &rule, &other, overlap.port)),
        None => Ok(()),
    }
}

/// Likewise for one rule and the other group's list.
fn check_against(
    context: &Context,
    rule: &Rule,
    list: &AccessList,
    port: PortId,
) -> Result<(), AccessError> {
    let mut wrong = None;
    list.for_each(|other| {
        let same = other.order.priority() == rule.order.priority();
        if same && other.info.verdict != rule.info.verdict {
            wrong = Some(other.clone());
        }
    });
    match wrong {
        Some(other) => Err(ambiguous(context, rule, &other, port)),
        None => Ok(()),
    }
}

fn ambiguous(context: &Context, rule: &Rule, other: &Rule, port: PortId) -> AccessError {
    let reason = Reason::Ambiguous {
        port: context.port_name(port),
        other: name_of(&other.info),
    };
    at(Place::Rule(name_of(&rule.info)), "priority")(reason)
}
