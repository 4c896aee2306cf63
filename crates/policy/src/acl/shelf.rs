//! The classifier of one list: tries within tries.
//!
//! A shelf holds a few rules in their order. One that would hold more is split by a field: a trie of that field's
//! prefixes, with a shelf at each, in which another field may split again. A rule lies in one place (one for each
//! element of short lists in it), at the longest prefix that covers what it matches; a range of ports at the longest prefix that
//! covers the range. So nothing is copied, and what lies on the way of a key may match: every rule is asked itself.
//!
//! What of a key says how it is decided is found in a second walk, when the deciding rule is known: whatever comes
//! before that must be shown to miss. Where a branch of a trie holds nothing that comes before, nothing need be
//! shown; where it does, the bits up to the one that parts from it show it; and of the rules on the way each
//! misses in some field. `docs/POLICY.md` says what that gives and what it was measured against.

use std::sync::Arc;

use super::matcher::Rule;
use super::order::Order;
use super::point::{Dim, Looked, Point};
use super::prefix::{Prefix, common};
use super::trie::{Content, Node, Trie};

/// Rules in a shelf that some field could split, at most.
const ROOM: usize = 8;

/// A rule's place.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) rule: Arc<Rule>,
    /// Which of the rule's places this is.
    part: u16,
}

impl Entry {
    /// All places of a rule.
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

/// Fields by which shelves on the way are split.
#[derive(Clone, Copy, Default)]
pub(super) struct Used(u16);

impl Used {
    fn and(self, dim: Dim) -> Self {
        Self(self.0 | 1 << dim as u16)
    }

    fn has(self, dim: Dim) -> bool {
        self.0 & 1 << dim as u16 != 0
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) enum Shelf {
    /// In their order.
    Few(Vec<Entry>),
    /// By a field.
    Split(Dim, Trie<Shelf>),
}

impl Default for Shelf {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Content for Shelf {
    fn best(&self) -> Order {
        match self {
            Self::Few(entries) => entries.first().map_or(Order::NEVER, Entry::order),
            Self::Split(_, trie) => trie.best(),
        }
    }

    fn is_empty(&self) -> bool {
        self.best() == Order::NEVER
    }
}

impl Shelf {
    /// A shelf with these entries, in any order.
    pub(super) fn new(mut entries: Vec<Entry>, used: Used) -> Self {
        let dim = Some(entries.len()).filter(|len| *len > ROOM);
        let Some(dim) = dim.and_then(|_| best_split(&entries, used)) else {
            entries.sort_unstable_by_key(Entry::turn);
            return Self::Few(entries);
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
            let shelf = Self::new(together, used.and(dim));
            trie.update(prefix, |place| *place = shelf);
        }
        Self::Split(dim, trie)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.insert_within(entry, Used::default());
    }

    fn insert_within(&mut self, entry: Entry, used: Used) {
        match self {
            Self::Few(entries) => {
                let at = entries.partition_point(|e| e.turn() < entry.turn());
                entries.insert(at, entry);
                if entries.len() > ROOM {
                    *self = Self::new(std::mem::take(entries), used);
                }
            }
            Self::Split(dim, trie) => {
                let used = used.and(*dim);
                trie.update(entry.prefix(*dim), |shelf| shelf.insert_within(entry, used));
            }
        }
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        match self {
            Self::Few(entries) => entries.retain(|e| e.turn() != entry.turn()),
            Self::Split(dim, trie) => {
                trie.update(entry.prefix(*dim), |shelf| shelf.remove(entry));
            }
        }
    }

    /// The first rule that matches and comes before `limit`.
    pub(super) fn find<'a>(&'a self, point: &Point, limit: Order) -> Option<&'a Arc<Rule>> {
        let mut search = Search { point, limit };
        search.shelf(self)
    }

    /// Notes what of the key says that no rule matches that comes before `limit`; and none does.
    pub(super) fn note_misses(&self, point: &Point, limit: Order, looked: &mut Looked) {
        if self.best() >= limit {
            return;
        }
        match self {
            Self::Few(entries) => {
                let before = entries.iter().take_while(|entry| entry.order() < limit);
                for entry in before {
                    entry.rule.matcher.note_miss(point, looked);
                }
            }
            Self::Split(dim, trie) => {
                let Some(root) = trie.root() else { return };
                let len = misses_along(root, point, *dim, limit, looked);
                looked.note(*dim, len, point.family);
            }
        }
    }

    /// Shows `each` rule that matches and comes before `limit`, until it says that this is enough.
    pub(super) fn visit<'a>(
        &'a self,
        point: &Point,
        limit: Order,
        each: &mut dyn FnMut(&'a Arc<Rule>) -> bool,
    ) -> bool {
        match self {
            Self::Few(entries) => entries
                .iter()
                .take_while(|entry| entry.order() < limit)
                .all(|entry| !entry.rule.matcher.matches(point) || each(&entry.rule)),
            Self::Split(dim, trie) => {
                let value = point.value(*dim);
                let mut next = trie.root();
                while let Some(node) = next.filter(|node| node.best < limit) {
                    if !node.prefix.contains(value) {
                        break;
                    }
                    if !node.content.visit(point, limit, each) {
                        return false;
                    }
                    next = node.child(value);
                }
                true
            }
        }
    }
}

/// How many first bits of the key's field show that it lies in no branch that has a rule before `limit` and is not on
/// its way. For those on its way, notes what shows that they miss.
fn misses_along(
    root: &Node<Shelf>,
    point: &Point,
    dim: Dim,
    limit: Order,
    looked: &mut Looked,
) -> u8 {
    let value = point.value(dim);
    let (mut node, mut len) = (root, 0);
    while node.best < limit {
        let shared = common(node.prefix.bits, value);
        if shared < node.prefix.len {
            return shared + 1;
        }
        node.content.note_misses(point, limit, looked);
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
    point: &'p Point,
    /// What is found must come before this.
    limit: Order,
}

impl<'p> Search<'p> {
    fn shelf<'a>(&mut self, shelf: &'a Shelf) -> Option<&'a Arc<Rule>> {
        match shelf {
            Shelf::Few(entries) => {
                let before = entries.iter().take_while(|e| e.order() < self.limit);
                let mut matching = before.filter(|e| e.rule.matcher.matches(self.point));
                let found = matching.next()?;
                self.limit = found.order();
                Some(&found.rule)
            }
            Shelf::Split(dim, trie) => self.node(trie.root()?, self.point.value(*dim)),
        }
    }

    /// The longest prefixes first: what is said of few comes before what is said of many as a rule.
    fn node<'a>(&mut self, node: &'a Node<Shelf>, value: u128) -> Option<&'a Arc<Rule>> {
        if node.best >= self.limit || !node.prefix.contains(value) {
            return None;
        }
        let below = node.child(value).and_then(|child| self.node(child, value));
        let here = match node.content.best() < self.limit {
            true => self.shelf(&node.content),
            false => None,
        };
        here.or(below)
    }
}

/// The field that splits entries best: the first by which half of them are told apart from the rest, else the one
/// that does for most.
fn best_split(entries: &[Entry], used: Used) -> Option<Dim> {
    let count = |dim| entries.iter().filter(|e| e.prefix(dim).len > 0).count();
    let mut best = None;
    for dim in Dim::ALL.into_iter().filter(|dim| !used.has(*dim)) {
        let told = count(dim);
        if told * 2 >= entries.len() {
            return Some(dim);
        }
        if told > best.map_or(0, |(most, _)| most) {
            best = Some((told, dim));
        }
    }
    best.map(|(_, dim)| dim)
}
