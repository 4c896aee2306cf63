//! A binary trie with compressed paths that never changes: a change makes a new one, which shares
//! with the old one all that is not on the way to the place of the change.

use std::sync::Arc;

use super::order::Order;
use super::prefix::{Prefix, common};

/// Content of a node.
pub(super) trait Content: Clone + Default {
    /// Returns the position of its first rule.
    fn best(&self) -> Order;

    /// Returns whether it may be omitted.
    fn is_empty(&self) -> bool;
}

/// A trie: see the module.
#[derive(Clone, Debug)]
pub(super) struct Trie<T>(Link<T>);

type Link<T> = Option<Arc<Node<T>>>;

/// A prefix with content, or the fork of two branches.
#[derive(Clone, Debug)]
pub(super) struct Node<T> {
    pub(super) prefix: Prefix,
    /// Lowest position in this node and all below it.
    pub(super) best: Order,
    pub(super) content: T,
    /// Children by the first bit behind the prefix.
    pub(super) children: [Link<T>; 2],
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Content> Trie<T> {
    pub(super) fn root(&self) -> Option<&Node<T>> {
        self.0.as_deref()
    }

    pub(super) fn best(&self) -> Order {
        self.0.as_ref().map_or(Order::NEVER, |node| node.best)
    }

    /// Changes the content at a prefix.
    pub(super) fn update(&mut self, prefix: Prefix, change: impl FnOnce(&mut T)) {
        update(&mut self.0, prefix, change);
    }

    /// Returns the content at a prefix.
    pub(super) fn get(&self, prefix: Prefix) -> Option<&T> {
        let mut next = self.0.as_deref();
        while let Some(node) = next.filter(|node| node.prefix.covers(prefix)) {
            if node.prefix.len == prefix.len {
                return Some(&node.content);
            }
            next = node.child(prefix.bits);
        }
        None
    }

    /// Returns whether another trie has contents at the same prefixes that are equal by `same`.
    /// Shared contents are not compared.
    pub(super) fn is_same(&self, other: &Self, same: &mut dyn FnMut(&T, &T) -> bool) -> bool {
        fn below<T>(a: &Link<T>, b: &Link<T>, same: &mut dyn FnMut(&T, &T) -> bool) -> bool {
            match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) if Arc::ptr_eq(a, b) => true,
                // With different prefixes, one trie has content that the other does not have.
                (Some(a), Some(b)) if a.prefix == b.prefix => {
                    let mut children = a.children.iter().zip(&b.children);
                    same(&a.content, &b.content) && children.all(|(a, b)| below(a, b, same))
                }
                _ => false,
            }
        }
        below(&self.0, &other.0, same)
    }

    /// Visits every content.
    pub(super) fn for_each(&self, each: &mut dyn FnMut(&T)) {
        fn below<T>(link: &Link<T>, each: &mut dyn FnMut(&T)) {
            if let Some(node) = link {
                each(&node.content);
                node.children.iter().for_each(|child| below(child, each));
            }
        }
        below(&self.0, each);
    }
}

impl<T> Node<T> {
    /// Returns the branch that a value takes. The last bit has none.
    #[inline]
    pub(super) fn child(&self, value: u128) -> Option<&Self> {
        if self.prefix.len == 128 {
            return None;
        }
        self.children[self.prefix.next_bit(value)].as_deref()
    }

    /// Returns the branch that it does not take.
    #[inline]
    pub(super) fn other_child(&self, value: u128) -> Option<&Self> {
        if self.prefix.len == 128 {
            return None;
        }
        self.children[1 - self.prefix.next_bit(value)].as_deref()
    }
}

impl<T: Content> Node<T> {
    fn empty(prefix: Prefix) -> Self {
        Self {
            prefix,
            best: Order::NEVER,
            content: T::default(),
            children: [None, None],
        }
    }

    fn note_best(&mut self) {
        let below = self.children.iter().flatten().map(|child| child.best);
        self.best = below.fold(self.content.best(), Order::min);
    }
}

fn update<T: Content>(link: &mut Link<T>, prefix: Prefix, change: impl FnOnce(&mut T)) {
    let Some(at) = link else {
        let mut node = Node::empty(prefix);
        change(&mut node.content);
        node.note_best();
        *link = (!node.content.is_empty()).then(|| Arc::new(node));
        return;
    };
    let shared = common(at.prefix.bits, prefix.bits)
        .min(at.prefix.len)
        .min(prefix.len);
    if shared < at.prefix.len {
        // A branch forks here, or the new prefix is on the path.
        let mut parent = Node::empty(Prefix::new(prefix.bits, shared));
        let side = parent.prefix.next_bit(at.prefix.bits);
        parent.children[side] = link.take();
        *link = Some(Arc::new(parent));
    }
    let Some(at) = link else { return };
    let node = Arc::make_mut(at);
    if node.prefix.len == prefix.len {
        change(&mut node.content);
    } else {
        let side = node.prefix.next_bit(prefix.bits);
        update(&mut node.children[side], prefix, change);
    }
    node.note_best();
    tidy(link);
}

/// Removes a node without content and with less than two branches.
fn tidy<T: Content>(link: &mut Link<T>) {
    let Some(node) = link else { return };
    if !node.content.is_empty() {
        return;
    }
    let next = match &node.children {
        [Some(_), Some(_)] => return,
        [left, right] => left.clone().or_else(|| right.clone()),
    };
    *link = next;
}
