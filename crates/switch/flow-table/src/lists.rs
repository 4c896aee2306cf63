//! Interned lists: flows refer to a list by number, and equal lists are stored once, with a
//! reference count.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

#[derive(Debug)]
struct List<T> {
    /// Members in ascending order. Empty: the number is free.
    members: Arc<[T]>,
    /// References by flows and others.
    references: usize,
}

/// Lists at most.
const MAX_LISTS: usize = u16::MAX as usize;
/// Members of all lists at most.
const MAX_MEMBERS: usize = 1 << 22;

/// Interned lists; see the module. Number 0 is the empty list.
#[derive(Debug)]
pub struct Lists<T> {
    /// By number less 1.
    lists: Vec<List<T>>,
    free: Vec<u16>,
    numbers: HashMap<Arc<[T]>, u16>,
    members: usize,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self {
            lists: Vec::new(),
            free: Vec::new(),
            numbers: HashMap::new(),
            members: 0,
        }
    }
}

impl<T: Ord + Hash> Lists<T> {
    /// Returns whether all lists are empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Returns the members: in ascending order, but of a list that was [interned in its
    /// order](Self::intern_in_order).
    #[inline]
    #[must_use]
    pub fn get(&self, number: u16) -> &[T] {
        let list = usize::from(number).checked_sub(1);
        let list = list.and_then(|at| self.lists.get(at));
        list.map_or(&[], |list| &list.members)
    }

    /// Returns the number of a list, with one more reference. `None`: there are too many lists.
    pub fn intern(&mut self, mut members: Vec<T>) -> Option<u16> {
        members.sort_unstable();
        members.dedup();
        self.intern_in_order(members)
    }

    /// Does the same for a list with an order that counts, and without duplicates.
    pub fn intern_in_order(&mut self, members: Vec<T>) -> Option<u16> {
        if members.is_empty() {
            return Some(0);
        }
        let number = match self.numbers.get(members.as_slice()) {
            Some(number) => *number,
            None => self.add(members.into())?,
        };
        self.incref(number);
        Some(number)
    }

    fn add(&mut self, members: Arc<[T]>) -> Option<u16> {
        let all = self.members + members.len();
        if all > MAX_MEMBERS {
            return None;
        }
        let list = List {
            members: Arc::clone(&members),
            references: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.lists[number as usize - 1] = list;
                number
            }
            None if self.lists.len() == MAX_LISTS => return None,
            None => {
                self.lists.push(list);
                self.lists.len() as u16
            }
        };
        self.members = all;
        self.numbers.insert(members, number);
        Some(number)
    }

    /// Adds a reference.
    pub fn incref(&mut self, number: u16) {
        if let Some(at) = usize::from(number).checked_sub(1) {
            self.lists[at].references += 1;
        }
    }

    /// Removes a reference, and the list with the last one.
    pub fn decref(&mut self, number: u16) {
        let Some(at) = usize::from(number).checked_sub(1) else {
            return;
        };
        let list = &mut self.lists[at];
        list.references -= 1;
        if list.references == 0 {
            let members = std::mem::replace(&mut list.members, Arc::new([]));
            self.members -= members.len();
            self.numbers.remove(&members);
            self.free.push(number);
        }
    }

    /// Returns the number of lists.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_stored_once_while_it_is_referenced() {
        let mut lists = Lists::default();
        assert_eq!(lists.intern(Vec::new()), Some(0));
        assert!(lists.is_empty());
        let one = lists.intern(vec![3, 1, 3]).unwrap();
        let same = lists.intern(vec![1, 3]).unwrap();
        let other = lists.intern(vec![2]).unwrap();
        assert_eq!((one, lists.get(one)), (same, &[1, 3][..]));
        assert_eq!(lists.get(other), [2]);
        lists.decref(one);
        assert_eq!(lists.get(one), [1, 3]);
        lists.decref(same);
        assert_eq!((lists.len(), lists.get(one)), (1, &[][..]));
        let next = lists.intern(vec![9]).unwrap();
        assert_eq!((next, lists.get(next)), (one, &[9][..]));
        lists.decref(next);
        lists.decref(other);
        assert!(lists.is_empty());
    }

    #[test]
    fn there_are_as_many_as_numbers() {
        let mut lists = Lists::default();
        for n in 0..MAX_LISTS as u32 {
            assert_eq!(lists.intern(vec![n]), Some(n as u16 + 1));
        }
        assert_eq!(lists.intern(vec![1 << 20]), None);
        assert_eq!(lists.intern(vec![0]), Some(1));
        lists.decref(7);
        assert_eq!(lists.intern(vec![1 << 20]), Some(7));
    }

    #[test]
    fn members_are_bounded_in_all() {
        let mut lists = Lists::default();
        let long = |from: u32| (from..from + MAX_MEMBERS as u32 / 2).collect();
        let first = lists.intern(long(0)).unwrap();
        assert!(lists.intern(long(1)).is_some());
        assert_eq!(lists.intern(vec![7]), None);
        lists.decref(first);
        assert!(lists.intern(vec![7]).is_some());
    }

    #[test]
    fn the_empty_list_and_unknown_numbers_have_no_members() {
        let mut lists: Lists<u32> = Lists::default();
        lists.incref(0);
        lists.decref(0);
        assert!(lists.get(0).is_empty());
        assert!(lists.get(7).is_empty());
    }
}
