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

/// See the module. There are no more lists than flows and one.
#[derive(Debug, Default)]
pub(crate) struct LeftOutLists {
    /// By number less 1.
    lists: Vec<List>,
    free: Vec<u32>,
    numbers: HashMap<Arc<[PortId]>, u32>,
}

impl LeftOutLists {
    /// The ports that are left out, in ascending order.
    #[inline]
    pub(crate) fn get(&self, which: LeftOut) -> &[PortId] {
        let list = (which.0 as usize).checked_sub(1);
        let list = list.and_then(|at| self.lists.get(at));
        list.map_or(&[], |list| &list.ports)
    }

    /// Names a list, until as many [`LeftOutLists::release`] as there were holds.
    pub(crate) fn hold(&mut self, mut ports: Vec<PortId>) -> LeftOut {
        if ports.is_empty() {
            return LeftOut::NOBODY;
        }
        ports.sort_unstable();
        ports.dedup();
        let number = match self.numbers.get(ports.as_slice()) {
            Some(number) => *number,
            None => self.add(ports.into()),
        };
        self.hold_more(LeftOut(number));
        LeftOut(number)
    }

    fn add(&mut self, ports: Arc<[PortId]>) -> u32 {
        let list = List {
            ports: Arc::clone(&ports),
            holders: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.lists[number as usize - 1] = list;
                number
            }
            None => {
                self.lists.push(list);
                self.lists.len() as u32
            }
        };
        self.numbers.insert(ports, number);
        number
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
        assert_eq!(lists.hold(Vec::new()), LeftOut::NOBODY);
        let one = lists.hold(ports(&[3, 1, 3]));
        let same = lists.hold(ports(&[1, 3]));
        let other = lists.hold(ports(&[2]));
        assert_eq!((one, lists.get(one)), (same, &ports(&[1, 3])[..]));
        assert_eq!(lists.get(other), &ports(&[2])[..]);
        lists.release(one);
        assert_eq!(lists.get(one), &ports(&[1, 3])[..]);
        lists.release(same);
        assert_eq!((lists.len(), lists.get(one)), (1, &[][..]));
        let next = lists.hold(ports(&[9]));
        assert_eq!((next, lists.get(next)), (one, &ports(&[9])[..]));
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
