//! The classifier of one list: tries within tries.
//!
//! A leaf holds a few rules in their order. A larger set is split by a field: a trie of that
//! field's prefixes, with a subtree at each, which another field may split again. A rule is in one
//! place (one for each element of short lists in it), at the longest prefix that covers its values;
//! a range of ports at the longest prefix that covers the range. So nothing is copied, and the
//! rules on the path of a key are only candidates: each is matched itself.
//!
//! The bits on which a decision depends are found in a second walk, when the deciding rule is
//! known: every rule before it must be proved to miss. A branch of a trie without an earlier rule
//! needs no proof; for another one, the bits up to the one that separates the key from it are the
//! proof; and each rule on the path misses in some field. `docs/dev/classifier.md` has the masks
//! and the alternatives that were measured.

use std::sync::Arc;

use super::class_key::{ClassKey, Dim, Wildcards};
use super::matcher::Rule;
use super::order::Order;
use super::prefix::{Prefix, common};
use super::trie::{Content, Node, Trie};

/// Limit of rules in a leaf that some field could split.
const LEAF_RULES: usize = 8;

/// One place of a rule.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) rule: Arc<Rule>,
    /// Number of this place.
    part: u16,
}

impl Entry {
    /// Returns all places of a rule.
    pub(super) fn all(rule: &Arc<Rule>) -> impl Iterator<Item = Self> + '_ {
        let rule = rule.clone();
        let parts = rule.parts();
        (0..parts).map(move |part| Self {
            rule: rule.clone(),
            part,
        })
    }

    fn order(&self) -> Order {
        self.rule.order
    }

    fn prefix(&self, dim: Dim) -> Prefix {
        self.rule.prefix(self.part, dim)
    }

    fn turn(&self) -> (Order, u16) {
        (self.order(), self.part)
    }
}

/// Fields by which the path to a subtree is split.
#[derive(Clone, Copy, Default)]
pub(super) struct SplitFields(u16);

impl SplitFields {
    fn and(self, dim: Dim) -> Self {
        Self(self.0 | 1 << dim as u16)
    }

    fn has(self, dim: Dim) -> bool {
        self.0 & 1 << dim as u16 != 0
    }
}

/// A tree of rules: see the module.
#[derive(Clone, Debug)]
pub(super) enum RuleTree {
    /// Rules in their order.
    Leaf(Vec<Entry>),
    /// Split by a field.
    Split(Dim, Trie<RuleTree>),
}

impl Default for RuleTree {
    fn default() -> Self {
        Self::Leaf(Vec::new())
    }
}

impl Content for RuleTree {
    fn best(&self) -> Order {
        match self {
            Self::Leaf(entries) => entries.first().map_or(Order::NEVER, Entry::order),
            Self::Split(_, trie) => trie.best(),
        }
    }

    fn is_empty(&self) -> bool {
        self.best() == Order::NEVER
    }
}

impl RuleTree {
    /// Returns a tree with these entries, given in any order.
    pub(super) fn new(mut entries: Vec<Entry>, used: SplitFields) -> Self {
        let dim = Some(entries.len()).filter(|len| *len > LEAF_RULES);
        let Some(dim) = dim.and_then(|_| best_split(&entries, used)) else {
            entries.sort_unstable_by_key(Entry::turn);
            return Self::Leaf(entries);
        };
        let mut placed: Vec<(Prefix, Entry)> = entries
            .into_iter()
            .map(|entry| (entry.prefix(dim), entry))
            .collect();
        placed.sort_unstable_by_key(|(prefix, _)| *prefix);
        let mut trie = Trie::default();
        let mut placed = placed.into_iter().peekable();
        while let Some((prefix, first)) = placed.next() {
            let mut together = vec![first];
            while let Some((_, next)) = placed.next_if(|(next, _)| *next == prefix) {
                together.push(next);
            }
            let tree = Self::new(together, used.and(dim));
            trie.update(prefix, |place| *place = tree);
        }
        Self::Split(dim, trie)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.insert_within(entry, SplitFields::default());
    }

    fn insert_within(&mut self, entry: Entry, used: SplitFields) {
        match self {
            Self::Leaf(entries) => {
                let at = entries.partition_point(|e| e.turn() < entry.turn());
                entries.insert(at, entry);
                if entries.len() > LEAF_RULES {
                    *self = Self::new(std::mem::take(entries), used);
                }
            }
            Self::Split(dim, trie) => {
                let used = used.and(*dim);
                trie.update(entry.prefix(*dim), |tree| tree.insert_within(entry, used));
            }
        }
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        match self {
            Self::Leaf(entries) => entries.retain(|e| e.turn() != entry.turn()),
            Self::Split(dim, trie) => {
                trie.update(entry.prefix(*dim), |tree| tree.remove(entry));
            }
        }
    }

    /// Returns the first rule that matches and comes before `limit`.
    pub(super) fn find<'a>(&'a self, class_key: &ClassKey, limit: Order) -> Option<&'a Arc<Rule>> {
        let mut search = Search { class_key, limit };
        search.tree(self)
    }

    /// Adds the bits that prove that no rule before `limit` matches; and none does.
    pub(super) fn unwildcard_misses(
        &self,
        class_key: &ClassKey,
        limit: Order,
        wildcards: &mut Wildcards,
    ) {
        if self.best() >= limit {
            return;
        }
        match self {
            Self::Leaf(entries) => {
                let before = entries.iter().take_while(|entry| entry.order() < limit);
                for entry in before.filter(|entry| !entry.rule.is_skipped(class_key)) {
                    entry.rule.matcher.unwildcard_miss(class_key, wildcards);
                }
            }
            Self::Split(dim, trie) => {
                let Some(root) = trie.root() else { return };
                let len = misses_along(root, class_key, *dim, limit, wildcards);
                wildcards.unwildcard(*dim, len, class_key.family);
            }
        }
    }

    /// Calls `each` with the rules that match and come before `limit`, until it returns false.
    pub(super) fn visit<'a>(
        &'a self,
        class_key: &ClassKey,
        limit: Order,
        each: &mut dyn FnMut(&'a Arc<Rule>) -> bool,
    ) -> bool {
        match self {
            Self::Leaf(entries) => entries
                .iter()
                .take_while(|entry| entry.order() < limit)
                .all(|entry| !entry.rule.matcher.matches(class_key) || each(&entry.rule)),
            Self::Split(dim, trie) => {
                let value = class_key.value(*dim);
                let mut next = trie.root();
                while let Some(node) = next.filter(|node| node.best < limit) {
                    if !node.prefix.contains(value) {
                        break;
                    }
                    if !node.content.visit(class_key, limit, each) {
                        return false;
                    }
                    next = node.child(value);
                }
                true
            }
        }
    }
}

/// Returns the prefix length of the key's field that separates it from all branches off its path
/// with a rule before `limit`. Adds the bits that prove that the rules on its path miss.
fn misses_along(
    root: &Node<RuleTree>,
    class_key: &ClassKey,
    dim: Dim,
    limit: Order,
    wildcards: &mut Wildcards,
) -> u8 {
    let value = class_key.value(dim);
    let (mut node, mut len) = (root, 0);
    while node.best < limit {
        let shared = common(node.prefix.bits, value);
        if shared < node.prefix.len {
            return shared + 1;
        }
        node.content.unwildcard_misses(class_key, limit, wildcards);
        let other = node.other_child(value);
        if other.is_some_and(|other| other.best < limit) {
            len = node.prefix.len + 1;
        }
        match node.child(value) {
            Some(child) => node = child,
            None => break,
        }
    }
    len
}

/// A search for the first rule that matches.
struct Search<'p> {
    class_key: &'p ClassKey,
    /// Only rules before this limit are found.
    limit: Order,
}

impl<'p> Search<'p> {
    fn tree<'a>(&mut self, tree: &'a RuleTree) -> Option<&'a Arc<Rule>> {
        match tree {
            RuleTree::Leaf(entries) => {
                let before = entries.iter().take_while(|e| e.order() < self.limit);
                let matches = |e: &&Entry| {
                    e.rule.matcher.matches(self.class_key) && !e.rule.is_skipped(self.class_key)
                };
                let mut matching = before.filter(matches);
                let found = matching.next()?;
                self.limit = found.order();
                Some(&found.rule)
            }
            RuleTree::Split(dim, trie) => self.node(trie.root()?, self.class_key.value(*dim)),
        }
    }

    /// Searches the longest prefixes first: specific rules come before general ones as a rule.
    fn node<'a>(&mut self, node: &'a Node<RuleTree>, value: u128) -> Option<&'a Arc<Rule>> {
        if node.best >= self.limit || !node.prefix.contains(value) {
            return None;
        }
        let below = node.child(value).and_then(|child| self.node(child, value));
        let here = if node.content.best() < self.limit {
            self.tree(&node.content)
        } else {
            None
        };
        here.or(below)
    }
}

/// Returns the field that splits entries best: the first that at least half of them match on, else
/// the one that most of them match on.
fn best_split(entries: &[Entry], used: SplitFields) -> Option<Dim> {
    let count = |dim| entries.iter().filter(|e| e.prefix(dim).len > 0).count();
    let mut best = None;
    for dim in Dim::ALL.into_iter().filter(|dim| !used.has(*dim)) {
        let users = count(dim);
        if users * 2 >= entries.len() {
            return Some(dim);
        }
        if users > best.map_or(0, |(most, _)| most) {
            best = Some((users, dim));
        }
    }
    best.map(|(_, dim)| dim)
}
