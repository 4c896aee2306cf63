//! Compiler of access lists: of a whole model, and of one change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use port::PortId;
use port::counters::MAX_PORTS;

use super::attachments::{Attachment, Overlap, attach};
use super::error::{AccessError, Place, Reason, RuleName, ShadowedRule};
use super::list::AccessList;
use super::mask_set::MaskSet;
use super::matcher::{Matcher, Rule};
use super::order::Order;
use super::resolve::{Context, at};
use super::rules::{RuleId, RuleInfo, Rules, Verdict};
use super::text;
use crate::model::{Segment, SegmentId};
use model::{AccessListSpec, AccessModel, RuleSpec};

/// Limit of rules in one model.
pub const MAX_RULES: usize = 1 << 20;

/// Ids of segments, ports and classes by name.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// As in [`Model`](crate::Model).
    pub segments: &'a BTreeMap<SegmentId, Segment>,
    /// By name.
    pub ports: &'a BTreeMap<String, PortId>,
    /// Numbers of classes by name, but for `default`, which is always there.
    pub classes: &'a BTreeMap<String, u8>,
}

impl Names<'_> {
    fn usable_ports(&self) -> BTreeMap<String, PortId> {
        let ports = self.ports.iter();
        let ports = ports.filter(|(_, id)| (id.0 as usize) < MAX_PORTS);
        ports.map(|(name, id)| (name.clone(), *id)).collect()
    }
}

/// Result of a compilation.
#[derive(Clone, Debug)]
pub struct CompiledRules {
    /// The rules.
    pub rules: Rules,
    /// Rules that never decide.
    pub shadowed: Vec<ShadowedRule>,
}

/// A change to one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds or replaces a rule. A replaced one keeps its place in the list; a new one goes to the
    /// end.
    Put {
        /// The list's name.
        list: String,
        /// The rule.
        rule: Box<RuleSpec>,
    },
    /// Removes a rule.
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
    /// The first error found: sets, groups, lists in their order, then conflicts between several of
    /// them.
    pub fn compile(model: &AccessModel, names: Names<'_>) -> Result<CompiledRules, AccessError> {
        let context = Context::new(model, names.usable_ports(), names.classes.clone())?;
        let attachments = attachments(model, &context, names)?;
        let mut lists = Vec::with_capacity(model.lists.len());
        let mut ids = HashSet::new();
        for spec in &model.lists {
            lists.push(Arc::new(compile_list(&context, spec, &mut ids)?));
        }
        let attachments = attach(model, &context, names, &attachments)?;
        for overlap in &attachments.overlaps {
            check_overlap(&context, &lists, overlap)?;
        }
        let shadowed = lists.iter().flat_map(|list| shadowed(list)).collect();
        let rules = Self {
            masks: Arc::new(MaskSet::new(&lists)),
            lists,
            attachments: Arc::new(attachments),
            context: Arc::new(context),
        };
        Ok(CompiledRules { rules, shadowed })
    }

    /// Returns the same rules with other names of ports and classes for rules that are added later.
    /// Existing rules keep their ports and classes.
    #[must_use]
    pub fn with_names(&self, names: Names<'_>) -> Self {
        let ports = names.usable_ports();
        if self.context.ports == ports && self.context.classes == *names.classes {
            return self.clone();
        }
        let context = Context {
            ports,
            classes: names.classes.clone(),
            ..Context::clone(&self.context)
        };
        Self {
            context: Arc::new(context),
            ..self.clone()
        }
    }

    /// Returns the rules with one change. They share all unchanged parts with these, which stay as
    /// they are. The returned warning is about the added rule alone.
    ///
    /// # Errors
    /// The error of [`Rules::compile`] for the rule; an unknown list; or an unknown rule to be
    /// removed.
    pub fn change(&self, change: &Change) -> Result<CompiledRules, AccessError> {
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
                if !new.masks.has_flags(matcher.flags.1) {
                    Arc::make_mut(&mut new.masks).extend_flags(matcher.flags.1);
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
        Ok(CompiledRules {
            rules: new,
            shadowed,
        })
    }

    /// Checks whether a rule can be added to a list.
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
        for overlap in &self.attachments.overlaps {
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

/// Checks lists' names, and resolves their attachments.
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
    // A rule with a set that is empty now matches nothing.
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

fn shadow(list: &AccessList, rule: &Rule) -> Option<ShadowedRule> {
    let by = list.shadow_of(rule)?;
    Some(ShadowedRule {
        rule: name_of(&rule.info),
        by: name_of(&by.info),
    })
}

/// Returns the rules that never decide, in their order.
fn shadowed(list: &AccessList) -> Vec<ShadowedRule> {
    let mut all = Vec::new();
    list.for_each(|rule| all.extend(shadow(list, rule).map(|found| (rule.order, found))));
    all.sort_unstable_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, found)| found).collect()
}

/// Refuses conflicting rules in lists of two groups without different priorities.
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
        let mut others = Verdict::ALL
            .into_iter()
            .filter(|verdict| *verdict != rule.info.verdict);
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

/// Refuses one rule that conflicts with the other group's list.
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
