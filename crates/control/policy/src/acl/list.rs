//! One compiled list.

use std::sync::Arc;

use wire::flow::KeyState;

use super::class_key::{ClassKey, Wildcards};
use super::matcher::{Matcher, Rule};
use super::order::Order;
use super::prefix::Prefix;
use super::rule_tree::{Entry, RuleTree, SplitFields};
use super::rules::{RuleId, RuleInfo, Verdict};
use super::trie::{Content, Trie};
use model::Direction;

/// Limit of earlier rules that are compared with a rule to find one that shadows it.
const MAX_SHADOW_CANDIDATES: usize = 256;

/// A list, immutable: a change makes another one, which shares the unchanged parts.
#[derive(Clone, Debug)]
pub(super) struct AccessList {
    pub(super) name: Arc<str>,
    pub(super) direction: Direction,
    /// Rules for frames with a transport header.
    whole: RuleTree,
    /// Rules for later fragments. A rule that matches on the transport header is omitted if it
    /// allows; if it drops, it is included without these conditions.
    later: RuleTree,
    /// By id.
    rules: Trie<ById>,
    pub(super) len: usize,
    next_place: u32,
    /// Numbers of rules for IP or ARP; of those among them that match on fields above the
    /// EtherType; and of those that match on the protocol or behind it.
    network: usize,
    above: usize,
    transport: usize,
    /// Number of stateful rules.
    stateful: usize,
}

/// A rule, found by its id.
#[derive(Clone, Debug, Default)]
struct ById(Option<Arc<Rule>>);

impl Content for ById {
    fn best(&self) -> Order {
        self.0.as_ref().map_or(Order::NEVER, |rule| rule.order)
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

fn place_of(id: RuleId) -> Prefix {
    Prefix::of(id.0, 64)
}

/// Returns the rule for later fragments, if it applies to them.
fn for_later_fragments(rule: &Arc<Rule>) -> Option<Arc<Rule>> {
    if !rule.matcher.looks_into_transport() {
        return Some(rule.clone());
    }
    let relaxed = || {
        let matcher = rule.matcher.for_later_fragments();
        Arc::new(Rule::new(rule.info.clone(), rule.order, matcher))
    };
    meets_later_fragments(rule).then(relaxed)
}

/// Returns whether the rule applies to later fragments.
fn meets_later_fragments(rule: &Rule) -> bool {
    !rule.matcher.looks_into_transport() || !rule.info.verdict.allows()
}

/// Returns whether a rule that this one covers and precedes never decides. Frames of no connection
/// pass a stateful rule by, and a later one may allow them.
fn decides_before(before: &Rule, rule: &Rule) -> bool {
    // A later fragment may get to a rule that no whole datagram gets to.
    let later = meets_later_fragments(before) || !meets_later_fragments(rule);
    let invalid = !is_stateful(before) || rule.info.verdict != Verdict::Allow;
    later && invalid
}

fn is_stateful(rule: &Rule) -> bool {
    rule.info.verdict == Verdict::Stateful
}

fn entries<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>) -> Vec<Entry> {
    rules.flat_map(Entry::all).collect()
}

impl AccessList {
    /// Returns a list of rules in their order; ids are unique.
    pub(super) fn new(name: &str, direction: Direction, rules: &[Arc<Rule>]) -> Self {
        let whole = RuleTree::new(entries(rules.iter()), SplitFields::default());
        let into = |rule: &Arc<Rule>| rule.matcher.looks_into_transport();
        let later = if rules.iter().any(into) {
            let rules: Vec<_> = rules.iter().filter_map(for_later_fragments).collect();
            RuleTree::new(entries(rules.iter()), SplitFields::default())
        } else {
            whole.clone()
        };
        let mut by_id = Trie::default();
        for rule in rules {
            by_id.update(place_of(rule.info.id), |place: &mut ById| {
                place.0 = Some(rule.clone());
            });
        }
        let count =
            |looks: fn(&Matcher) -> bool| rules.iter().filter(|r| looks(&r.matcher)).count();
        Self {
            name: name.into(),
            direction,
            whole,
            later,
            rules: by_id,
            len: rules.len(),
            next_place: rules.iter().map(|r| r.order.place() + 1).max().unwrap_or(0),
            network: count(Matcher::is_for_network),
            above: count(Matcher::looks_above_ethernet),
            transport: count(Matcher::looks_at_transport),
            stateful: rules.iter().filter(|rule| is_stateful(rule)).count(),
        }
    }

    /// Returns whether the other list decides the same by the same rules.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let mut in_place = true;
        let mut same = |a: &ById, b: &ById| match (&a.0, &b.0) {
            (Some(a), Some(b)) => {
                in_place &= a.order == b.order;
                Arc::ptr_eq(a, b)
                    || a.order.priority() == b.order.priority()
                        && a.info == b.info
                        && a.matcher == b.matcher
            }
            (a, b) => a.is_none() == b.is_none(),
        };
        (&self.name, self.direction) == (&other.name, other.direction)
            && self.rules.is_same(&other.rules, &mut same)
            && (in_place || self.is_in_order_of(other))
    }

    /// Returns whether the rules of another list with the same rules stand in the same order.
    fn is_in_order_of(&self, other: &Self) -> bool {
        let sorted = |list: &Self| {
            let mut rules = Vec::with_capacity(list.len);
            list.for_each(|rule| rules.push((rule.order, rule.info.id)));
            rules.sort_unstable();
            rules.into_iter().map(|(_, id)| id)
        };
        sorted(self).eq(sorted(other))
    }

    pub(super) fn rule(&self, id: RuleId) -> Option<&Arc<Rule>> {
        self.rules.get(place_of(id))?.0.as_ref()
    }

    /// Visits all rules, in no order.
    pub(super) fn for_each(&self, mut each: impl FnMut(&Arc<Rule>)) {
        self.rules.for_each(&mut |place| {
            if let Some(rule) = &place.0 {
                each(rule);
            }
        });
    }

    /// Puts a rule in the place of the one with the same id, or behind all others.
    pub(super) fn put(&mut self, info: Arc<RuleInfo>, priority: u32, matcher: Matcher) {
        let old = self.rule(info.id).cloned();
        let place = old
            .as_ref()
            .map_or(self.next_place, |old| old.order.place());
        if let Some(old) = old {
            self.take(&old);
        }
        self.next_place = self.next_place.max(place + 1);
        let rule = Arc::new(Rule::new(info, Order::new(priority, place), matcher));
        for entry in Entry::all(&rule) {
            self.whole.insert(entry);
        }
        for entry in for_later_fragments(&rule).iter().flat_map(Entry::all) {
            self.later.insert(entry);
        }
        self.len += 1;
        self.network += usize::from(rule.matcher.is_for_network());
        self.above += usize::from(rule.matcher.looks_above_ethernet());
        self.transport += usize::from(rule.matcher.looks_at_transport());
        self.stateful += usize::from(is_stateful(&rule));
        self.rules
            .update(place_of(rule.info.id), |at| at.0 = Some(rule.clone()));
    }

    /// Removes a rule of this list.
    pub(super) fn take(&mut self, rule: &Arc<Rule>) {
        for entry in Entry::all(rule) {
            self.whole.remove(&entry);
        }
        for entry in for_later_fragments(rule).iter().flat_map(Entry::all) {
            self.later.remove(&entry);
        }
        self.len -= 1;
        self.network -= usize::from(rule.matcher.is_for_network());
        self.above -= usize::from(rule.matcher.looks_above_ethernet());
        self.transport -= usize::from(rule.matcher.looks_at_transport());
        self.stateful -= usize::from(is_stateful(rule));
        self.rules.update(place_of(rule.info.id), |at| at.0 = None);
    }

    /// Returns whether any rule is stateful.
    pub(super) fn is_stateful(&self) -> bool {
        self.stateful > 0
    }

    pub(super) fn next_place(&self) -> u32 {
        self.next_place
    }

    /// Returns whether the rules cannot be evaluated for a frame: fields that they match on could
    /// not be parsed though the frame should have them, or a receiver might find them.
    pub(super) fn is_unparseable(&self, class_key: &ClassKey) -> bool {
        self.network > 0 && class_key.state.contains(KeyState::HIDDEN)
            || self.above > 0 && class_key.state.contains(KeyState::L3_MALFORMED)
            || self.transport > 0 && class_key.state.contains(KeyState::L4_UNKNOWN)
    }

    /// Adds the bits that select the rules to evaluate.
    pub(super) fn unwildcard_state(&self, wildcards: &mut Wildcards) {
        wildcards.state |= self.network > 0;
    }

    fn tree(&self, class_key: &ClassKey) -> &RuleTree {
        if self.above > 0 && class_key.state.contains(KeyState::LATER_FRAGMENT) {
            &self.later
        } else {
            &self.whole
        }
    }

    /// Returns the first rule that matches and comes before `limit`.
    pub(super) fn find(&self, class_key: &ClassKey, limit: Order) -> Option<&Arc<Rule>> {
        self.tree(class_key).find(class_key, limit)
    }

    /// See [`RuleTree::unwildcard_misses`].
    pub(super) fn unwildcard_misses(
        &self,
        class_key: &ClassKey,
        limit: Order,
        wildcards: &mut Wildcards,
    ) {
        self.tree(class_key)
            .unwildcard_misses(class_key, limit, wildcards);
    }

    /// Returns the first rule before this one that matches all its frames, among the first 256 that
    /// match one frame of it. (With more, a shadow may stay undetected.)
    pub(super) fn shadow_of(&self, rule: &Rule) -> Option<&Arc<Rule>> {
        let (mut found, mut seen): (Option<&Arc<Rule>>, usize) = (None, 0);
        self.whole
            .visit(&rule.matcher.sample(), rule.order, &mut |before| {
                seen += 1;
                if decides_before(before, rule) && before.matcher.covers(&rule.matcher) {
                    found = Some(before);
                }
                found.is_none() && seen < MAX_SHADOW_CANDIDATES
            });
        found
    }

    /// Returns another rule with the same conditions and priority and a different action.
    pub(super) fn contradiction(&self, rule: &Rule) -> Option<&Arc<Rule>> {
        let mut found = None;
        let limit = Order::behind(rule.order.priority());
        self.whole
            .visit(&rule.matcher.sample(), limit, &mut |other| {
                // The rule being replaced does not conflict.
                let same = other.info.id != rule.info.id
                    && other.order.priority() == rule.order.priority()
                    && other.info.verdict != rule.info.verdict
                    && other.matcher == rule.matcher;
                if same {
                    found = Some(other);
                }
                found.is_none()
            });
        found
    }
}
