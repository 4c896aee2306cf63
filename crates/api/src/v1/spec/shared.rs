//! Long lists of named elements that are cheap to copy and to compare: copies share equal chunks.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of elements in a chunk of a longer list. A change of one element copies its
/// chunk.
const PIECE: usize = 128;

/// An element with a name.
pub trait Named {
    /// Its name.
    fn name(&self) -> &str;
}

/// A list in chunks, which copies share: a change copies one chunk. Otherwise it behaves like a
/// `Vec`; the bounds of chunks have no meaning.
pub struct Shared<T>(Vec<Arc<Piece<T>>>);

/// Consecutive elements of a list, at least one. Immutable.
pub struct Piece<T> {
    elements: Vec<T>,
    /// Hashes of the names, which make a search by name fast.
    names: Vec<u64>,
    digest: OnceLock<u64>,
}

/// The differing middle parts of two lists, without their common first and last chunks.
pub struct Apart<'a, T> {
    /// The part of the first list.
    pub own: Vec<&'a T>,
    /// The part of the second list.
    pub others: Vec<&'a T>,
    /// Whether no common chunk follows.
    pub at_end: bool,
}

/// The same for all lists of this process.
fn hash(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::new().hash_one(name)
}

impl<T: Named> Piece<T> {
    /// Returns `None` without elements.
    fn new(elements: Vec<T>) -> Option<Arc<Self>> {
        let names = elements.iter().map(|element| hash(element.name()));
        let names = names.collect();
        (!elements.is_empty()).then(|| {
            Arc::new(Self {
                elements,
                names,
                digest: OnceLock::new(),
            })
        })
    }

    fn position(&self, name: &str, hash: u64) -> Option<usize> {
        let mut names = self.names.iter().enumerate();
        let is_it = |(at, of): (usize, &u64)| *of == hash && self.elements[at].name() == name;
        names.position(is_it)
    }
}

impl<T> Piece<T> {
    /// Returns the elements.
    #[must_use]
    pub fn elements(&self) -> &[T] {
        &self.elements
    }

    /// Returns `of` of the elements, computed once. All callers have to pass the same function.
    pub fn digest(&self, of: impl FnOnce(&[T]) -> u64) -> u64 {
        *self.digest.get_or_init(|| of(&self.elements))
    }
}

impl<T> Shared<T> {
    /// Returns an iterator over the elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.0.iter().flat_map(|piece| &piece.elements)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.elements.len()).sum()
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the chunks.
    #[must_use]
    pub fn pieces(&self) -> &[Arc<Piece<T>>] {
        &self.0
    }

    /// Returns the parts in which this list and another differ.
    #[must_use]
    pub fn apart<'a>(&'a self, other: &'a Self) -> Apart<'a, T> {
        let same = |(a, b): &(&Arc<Piece<T>>, &Arc<Piece<T>>)| Arc::ptr_eq(a, b);
        let before = self.0.iter().zip(&other.0).take_while(same).count();
        let (own, others) = (&self.0[before..], &other.0[before..]);
        let behind = own.iter().rev().zip(others.iter().rev());
        let behind = behind.take_while(same).count();
        let all = |pieces: &'a [Arc<Piece<T>>]| {
            let pieces = pieces[..pieces.len() - behind].iter();
            pieces.flat_map(|piece| &piece.elements).collect()
        };
        Apart {
            own: all(own),
            others: all(others),
            at_end: behind == 0,
        }
    }
}

impl<T: Named> Shared<T> {
    /// Appends the elements as one chunk.
    pub fn push_piece(&mut self, elements: Vec<T>) {
        self.0.extend(Piece::new(elements));
    }
}

impl<T: Named + Clone> Shared<T> {
    /// Replaces the first element of the same name, or appends the element.
    pub fn put(&mut self, new: T) {
        let last = self.0.len().wrapping_sub(1);
        match self.find(new.name()) {
            Some((piece, at)) => self.change(piece, |elements| elements[at] = new),
            None if self.0.get(last).is_some_and(|p| p.elements.len() < PIECE) => {
                self.change(last, |elements| elements.push(new));
            }
            None => self.0.extend(Piece::new(vec![new])),
        }
    }

    /// Removes the first element of this name; returns `false` if there is none.
    pub fn remove(&mut self, name: &str) -> bool {
        let found = self.find(name);
        if let Some((piece, at)) = found {
            self.change(piece, |elements| drop(elements.remove(at)));
        }
        found.is_some()
    }

    /// Finds the first element of this name: the index of its chunk, and its index in the chunk.
    fn find(&self, name: &str) -> Option<(usize, usize)> {
        let hash = hash(name);
        let mut pieces = self.0.iter().enumerate();
        pieces.find_map(|(number, piece)| Some((number, piece.position(name, hash)?)))
    }

    fn change(&mut self, piece: usize, change: impl FnOnce(&mut Vec<T>)) {
        let mut elements = self.0[piece].elements.clone();
        change(&mut elements);
        self.0.splice(piece..=piece, Piece::new(elements));
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        let Apart { own, others, .. } = self.apart(other);
        own == others
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T> Index<usize> for Shared<T> {
    type Output = T;

    fn index(&self, mut at: usize) -> &T {
        for piece in &self.0 {
            match piece.elements.get(at) {
                Some(element) => return element,
                None => at -= piece.elements.len(),
            }
        }
        panic!("there is no such element");
    }
}

impl<T: Named> From<Vec<T>> for Shared<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Named> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        let next = || Piece::new(elements.by_ref().take(PIECE).collect());
        Self(std::iter::from_fn(next).collect())
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: Named + Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Element = (String, u8);

    impl Named for Element {
        fn name(&self) -> &str {
            &self.0
        }
    }

    fn element(name: u16, value: u8) -> Element {
        (name.to_string(), value)
    }

    fn vec(list: &Shared<Element>) -> Vec<Element> {
        list.iter().cloned().collect()
    }

    proptest! {
        /// The list behaves like a `Vec`, and changes of a copy do not change the original.
        #[test]
        fn it_is_as_a_vec(
            first in 0..400u16,
            changes in prop::collection::vec((0..500u16, prop::option::of(0..3u8)), 0..40),
        ) {
            let mut plain: Vec<_> = (0..first).map(|name| element(name, 0)).collect();
            let mut list = Shared::from(plain.clone());
            for (name, value) in changes {
                let (before, copy) = (plain.clone(), list.clone());
                let at = plain.iter().position(|e| e.0 == name.to_string());
                match (value, at) {
                    (Some(value), Some(at)) => plain[at].1 = value,
                    (Some(value), None) => plain.push(element(name, value)),
                    (None, Some(at)) => drop(plain.remove(at)),
                    (None, None) => {}
                }
                match value {
                    Some(value) => list.put(element(name, value)),
                    None => prop_assert_eq!(list.remove(&name.to_string()), at.is_some()),
                }
                prop_assert_eq!(&vec(&list), &plain);
                prop_assert_eq!(&vec(&copy), &before);
                prop_assert_eq!(copy == list, before == plain);
                prop_assert_eq!(&list, &Shared::from(plain.clone()));
                prop_assert_eq!((list.len(), list.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert!(plain.iter().enumerate().all(|(at, e)| list[at] == *e));
                let apart = copy.apart(&list);
                prop_assert!(apart.own.len() <= PIECE && apart.others.len() <= PIECE);
                let json = serde_json::to_string(&list).unwrap();
                prop_assert_eq!(&json, &serde_json::to_string(&plain).unwrap());
                prop_assert_eq!(&serde_json::from_str::<Shared<Element>>(&json).unwrap(), &list);
            }
        }
    }
}
