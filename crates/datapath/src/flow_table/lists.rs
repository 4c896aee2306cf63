//! Lists that flows name by a number: many flows have the same one, so each is kept once, for as long as some flow has it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

#[derive(Debug)]
struct List<T> {
    /// In ascending order. Empty: nobody has this number.
    members: Arc<[T]>,
    /// Flows that have it, and others that hold it for a while.
    holders: usize,
}

/// Lists at a time: that many have a number of their own.
const MOST: usize = u16::MAX as usize;
/// Members of all lists together.
const MOST_MEMBERS: usize = 1 << 22;

/// See the module. The number 0 stands for an empty list.
#[derive(Debug)]
pub(crate) struct Lists<T> {
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
    /// Whether nobody has any.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// The members, in ascending order.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> &[T] {
        let list = usize::from(number).checked_sub(1);
        let list = list.and_then(|at| self.lists.get(at));
        list.map_or(&[], |list| &list.members)
    }

    /// Numbers a list, until as many [`Lists::release`] as there were holds. `None`: there are too many others.
    pub(crate) fn hold(&mut self, mut members: Vec<T>) -> Option<u16> {
        if members.is_empty() {
            return Some(0);
        }
        members.sort_unstable();
        members.dedup();
        let number = match self.numbers.get(members.as_slice()) {
            Some(number) => *number,
            None => self.add(members.into())?,
        };
        self.hold_more(number);
        Some(number)
    }

    fn add(&mut self, members: Arc<[T]>) -> Option<u16> {
        let all = self.members + members.len();
        if all > MOST_MEMBERS {
            return None;
        }
        let list = List {
            members: Arc::clone(&members),
            holders: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.lists[number as usize - 1] = list;
                number
            }
            None if self.lists.len() == MOST => return None,
            None => {
                self.lists.push(list);
                self.lists.len() as u16
            }
        };
        self.members = all;
        self.numbers.insert(members, number);
        Some(number)
    }

    /// Somebody else has it, too.
    pub(crate) fn hold_more(&mut self, number: u16) {
        if let Some(at) = usize::from(number).checked_sub(1) {
            self.lists[at].holders += 1;
        }
    }

    /// Somebody has it no more.
    pub(crate) fn release(&mut self, number: u16) {
        let Some(at) = usize::from(number).checked_sub(1) else {
            return;
        };
        let list = &mut self.lists[at];
        list.holders -= 1;
        if list.holders == 0 {
            let members = std::mem::replace(&mut list.members, Arc::new([]));
            self.members -= members.len();
            self.numbers.remove(&members);
            self.free.push(number);
        }
    }

    /// Lists that somebody has.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_kept_once_and_as_long_as_somebody_has_it() {
        let mut lists = Lists::default();
        assert_eq!(lists.hold(Vec::new()), Some(0));
        assert!(lists.is_empty());
        let one = lists.hold(vec![3, 1, 3]).unwrap();
        let same = lists.hold(vec![1, 3]).unwrap();
        let other = lists.hold(vec![2]).unwrap();
        assert_eq!((one, lists.get(one)), (same, &[1, 3][..]));
        assert_eq!(lists.get(other), [2]);
        lists.release(one);
        assert_eq!(lists.get(one), [1, 3]);
        lists.release(same);
        assert_eq!((lists.len(), lists.get(one)), (1, &[][..]));
        let next = lists.hold(vec![9]).unwrap();
        assert_eq!((next, lists.get(next)), (one, &[9][..]));
        lists.release(next);
        lists.release(other);
        assert!(lists.is_empty());
    }

    #[test]
    fn there_are_as_many_as_numbers() {
        let mut lists = Lists::default();
        for n in 0..MOST as u32 {
            assert_eq!(lists.hold(vec![n]), Some(n as u16 + 1));
        }
        assert_eq!(lists.hold(vec![1 << 20]), None);
        assert_eq!(lists.hold(vec![0]), Some(1));
        lists.release(7);
        assert_eq!(lists.hold(vec![1 << 20]), Some(7));
    }

    #[test]
    fn members_are_bounded_in_all() {
        let mut lists = Lists::default();
        let long = |from: u32| (from..from + MOST_MEMBERS as u32 / 2).collect();
        let first = lists.hold(long(0)).unwrap();
        assert!(lists.hold(long(1)).is_some());
        assert_eq!(lists.hold(vec![7]), None);
        lists.release(first);
        assert!(lists.hold(vec![7]).is_some());
    }

    #[test]
    fn the_empty_list_and_unknown_numbers_have_no_members() {
        let mut lists: Lists<u32> = Lists::default();
        lists.hold_more(0);
        lists.release(0);
        assert!(lists.get(0).is_empty());
        assert!(lists.get(7).is_empty());
    }
}
