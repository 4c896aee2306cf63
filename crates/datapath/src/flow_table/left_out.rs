//! Lists of ports that floods leave out: many flows have the same one, so each is kept once, for as long as some flow has it.

use std::collections::HashMap;
use std::sync::Arc;

use policy::{LeftOut, PortId};

#[derive(Debug)]
struct List {
    /// In ascending order. Empty: nobody has this number.
    ports: Arc<[PortId]>,
    /// Flows that have it, and others that hold it for a while.
    holders: usize,
}

/// Lists at a time: that many have a number of their own.
const MOST: usize = u16::MAX as usize;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LeftOutLists {
    /// By number less 1.
    lists: Vec<List>,
    free: Vec<u16>,
    numbers: HashMap<Arc<[PortId]>, u16>,
}

impl LeftOutLists {
    /// The ports that are left out, in ascending order.
    #[inline]
    pub(crate) fn get(&self, which: LeftOut) -> &[PortId] {
        let list = (which.0 as usize).checked_sub(1);
        let list = list.and_then(|at| self.lists.get(at));
        list.map_or(&[], |list| &list.ports)
    }

    /// Names a list, until as many [`LeftOutLists::release`] as there were holds. `None`: there are too many others.
    pub(crate) fn hold(&mut self, mut ports: Vec<PortId>) -> Option<LeftOut> {
        if ports.is_empty() {
            return Some(LeftOut::NOBODY);
        }
        ports.sort_unstable();
        ports.dedup();
        let number = match self.numbers.get(ports.as_slice()) {
            Some(number) => *number,
            None => self.add(ports.into())?,
        };
        self.hold_more(LeftOut(number));
        Some(LeftOut(number))
    }

    fn add(&mut self, ports: Arc<[PortId]>) -> Option<u16> {
        let list = List {
            ports: Arc::clone(&ports),
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
        self.numbers.insert(ports, number);
        Some(number)
    }

    /// Somebody else has it, too.
    pub(crate) fn hold_more(&mut self, which: LeftOut) {
        if let Some(at) = (which.0 as usize).checked_sub(1) {
            self.lists[at].holders += 1;
        }
    }

    /// Somebody has it no more.
    pub(crate) fn release(&mut self, which: LeftOut) {
        let Some(at) = (which.0 as usize).checked_sub(1) else {
            return;
        };
        let list = &mut self.lists[at];
        list.holders -= 1;
        if list.holders == 0 {
            self.numbers.remove(&std::mem::take(&mut list.ports));
            self.free.push(which.0);
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

    fn ports(of: &[u32]) -> Vec<PortId> {
        of.iter().copied().map(PortId).collect()
    }

    #[test]
    fn a_list_is_kept_once_and_as_long_as_somebody_has_it() {
        let mut lists = LeftOutLists::default();
        assert_eq!(lists.hold(Vec::new()), Some(LeftOut::NOBODY));
        let one = lists.hold(ports(&[3, 1, 3])).unwrap();
        let same = lists.hold(ports(&[1, 3])).unwrap();
        let other = lists.hold(ports(&[2])).unwrap();
        assert_eq!((one, lists.get(one)), (same, &ports(&[1, 3])[..]));
        assert_eq!(lists.get(other), &ports(&[2])[..]);
        lists.release(one);
        assert_eq!(lists.get(one), &ports(&[1, 3])[..]);
        lists.release(same);
        assert_eq!((lists.len(), lists.get(one)), (1, &[][..]));
        let next = lists.hold(ports(&[9])).unwrap();
        assert_eq!((next, lists.get(next)), (one, &ports(&[9])[..]));
    }

    #[test]
    fn there_are_as_many_as_numbers() {
        let mut lists = LeftOutLists::default();
        for n in 0..MOST as u32 {
            assert_eq!(lists.hold(ports(&[n])), Some(LeftOut(n as u16 + 1)));
        }
        assert_eq!(lists.hold(ports(&[1 << 20])), None);
        assert_eq!(lists.hold(ports(&[0])), Some(LeftOut(1)));
        lists.release(LeftOut(7));
        assert_eq!(lists.hold(ports(&[1 << 20])), Some(LeftOut(7)));
    }

    #[test]
    fn nobody_and_unknown_names_leave_nobody_out() {
        let mut lists = LeftOutLists::default();
        lists.hold_more(LeftOut::NOBODY);
        lists.release(LeftOut::NOBODY);
        assert!(lists.get(LeftOut::NOBODY).is_empty());
        assert!(lists.get(LeftOut(7)).is_empty());
    }
}
