//! A persistent list in chunks: copies share equal chunks, so that a copy with one change costs one
//! chunk, not a list of 100 000 rules, and shared chunks need not be compared, hashed or written
//! again. (A tree would make the list of chunks persistent, too; with some hundred it is short.)

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of elements in a chunk of a longer list. A change of one element copies its
/// chunk.
const CHUNK_LEN: usize = 128;

/// An element with a name.
pub trait NamedElement {
    /// Its name.
    fn name(&self) -> &str;
}

/// A persistent list in chunks, which copies share: a change copies one chunk. Otherwise it behaves
/// like a `Vec`; the bounds of chunks have no meaning.
pub struct ChunkedList<T>(Vec<Arc<Chunk<T>>>);

/// Consecutive elements of a list, at least one. Immutable.
pub struct Chunk<T> {
    elements: Vec<T>,
    /// Hashes of the names, which make a search by name fast.
    names: Vec<u64>,
    digest: OnceLock<u64>,
}

/// The differing middle parts of two lists, without their common first and last chunks.
pub struct ListDifference<'a, T> {
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

impl<T: NamedElement> Chunk<T> {
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

impl<T> Chunk<T> {
    /// Returns the elements.
    #[must_use]
    pub fn elements(&self) -> &[T] {
        &self.elements
    }

    /// Returns `of` of the elements, computed once. All callers must pass the same function.
    pub fn digest(&self, of: impl FnOnce(&[T]) -> u64) -> u64 {
        *self.digest.get_or_init(|| of(&self.elements))
    }
}

impl<T> ChunkedList<T> {
    /// Returns an iterator over the elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.0.iter().flat_map(|chunk| &chunk.elements)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|chunk| chunk.elements.len()).sum()
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the chunks.
    #[must_use]
    pub fn chunks(&self) -> &[Arc<Chunk<T>>] {
        &self.0
    }

    /// Returns the parts where this list and another differ.
    #[must_use]
    pub fn difference<'a>(&'a self, other: &'a Self) -> ListDifference<'a, T> {
        let same = |(a, b): &(&Arc<Chunk<T>>, &Arc<Chunk<T>>)| Arc::ptr_eq(a, b);
        let before = self.0.iter().zip(&other.0).take_while(same).count();
        let (own, others) = (&self.0[before..], &other.0[before..]);
        let behind = own.iter().rev().zip(others.iter().rev());
        let behind = behind.take_while(same).count();
        let all = |chunks: &'a [Arc<Chunk<T>>]| {
            let chunks = chunks[..chunks.len() - behind].iter();
            chunks.flat_map(|chunk| &chunk.elements).collect()
        };
        ListDifference {
            own: all(own),
            others: all(others),
            at_end: behind == 0,
        }
    }
}

impl<T: NamedElement> ChunkedList<T> {
    /// Appends the elements as one chunk.
    pub fn push_chunk(&mut self, elements: Vec<T>) {
        self.0.extend(Chunk::new(elements));
    }
}

impl<T: NamedElement + Clone> ChunkedList<T> {
    /// Replaces the first element of the same name, or appends the element.
    pub fn put(&mut self, new: T) {
        let last = self.0.len().wrapping_sub(1);
        match self.find(new.name()) {
            Some((chunk, at)) => self.change(chunk, |elements| elements[at] = new),
            None if self
                .0
                .get(last)
                .is_some_and(|p| p.elements.len() < CHUNK_LEN) =>
            {
                self.change(last, |elements| elements.push(new));
            }
            None => self.0.extend(Chunk::new(vec![new])),
        }
    }

    /// Removes the first element of this name; returns `false` if there is none.
    pub fn remove(&mut self, name: &str) -> bool {
        let found = self.find(name);
        if let Some((chunk, at)) = found {
            self.change(chunk, |elements| drop(elements.remove(at)));
        }
        found.is_some()
    }

    /// Finds the first element of this name: the index of its chunk, and its index in the chunk.
    fn find(&self, name: &str) -> Option<(usize, usize)> {
        let hash = hash(name);
        let mut chunks = self.0.iter().enumerate();
        chunks.find_map(|(number, chunk)| Some((number, chunk.position(name, hash)?)))
    }

    fn change(&mut self, chunk: usize, change: impl FnOnce(&mut Vec<T>)) {
        let mut elements = self.0[chunk].elements.clone();
        change(&mut elements);
        self.0.splice(chunk..=chunk, Chunk::new(elements));
    }
}

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Clone for ChunkedList<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for ChunkedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: PartialEq> PartialEq for ChunkedList<T> {
    fn eq(&self, other: &Self) -> bool {
        let ListDifference { own, others, .. } = self.difference(other);
        own == others
    }
}

impl<T: Eq> Eq for ChunkedList<T> {}

impl<T> Index<usize> for ChunkedList<T> {
    type Output = T;

    fn index(&self, mut at: usize) -> &T {
        for chunk in &self.0 {
            match chunk.elements.get(at) {
                Some(element) => return element,
                None => at -= chunk.elements.len(),
            }
        }
        panic!("there is no such element");
    }
}

impl<T: NamedElement> From<Vec<T>> for ChunkedList<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: NamedElement> FromIterator<T> for ChunkedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        let next = || Chunk::new(elements.by_ref().take(CHUNK_LEN).collect());
        Self(std::iter::from_fn(next).collect())
    }
}

impl<T: Serialize> Serialize for ChunkedList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: NamedElement + Deserialize<'de>> Deserialize<'de> for ChunkedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Element = (String, u8);

    impl NamedElement for Element {
        fn name(&self) -> &str {
            &self.0
        }
    }

    fn element(name: u16, value: u8) -> Element {
        (name.to_string(), value)
    }

    fn vec(list: &ChunkedList<Element>) -> Vec<Element> {
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
            let mut list = ChunkedList::from(plain.clone());
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
                prop_assert_eq!(&list, &ChunkedList::from(plain.clone()));
                prop_assert_eq!((list.len(), list.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert!(plain.iter().enumerate().all(|(at, e)| list[at] == *e));
                let differing = copy.difference(&list);
                let lengths = [differing.own.len(), differing.others.len()];
                prop_assert!(lengths.iter().all(|len| *len <= CHUNK_LEN));
                let json = serde_json::to_string(&list).unwrap();
                prop_assert_eq!(&json, &serde_json::to_string(&plain).unwrap());
                let again: ChunkedList<Element> = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(&again, &list);
            }
        }
    }
}
