//! Sockets of flows of a user port, which outlive its driver process, and memory for records of
//! flows and leases.
//!
//! A driver that is not trusted fills this: numbers and their count are bounded, and the records
//! beside the sockets are only the drivers' to read.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipc::driving::{FLOWS_KEPT, records_len};
use sys::descriptors::MAX_FDS;
use sys::foreign::ForeignFd;

use crate::shares::{self, Shares};

/// See the module.
#[derive(Debug)]
pub(in crate::drivers) struct KeptFlows {
    records: OwnedFd,
    slots: u32,
    sockets: BTreeMap<u32, ForeignFd>,
    /// The next number for a new process.
    next: u32,
}

impl KeptFlows {
    /// None yet.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new() -> io::Result<Self> {
        let most = shares::of_one(Shares::now().flows(), 0);
        let slots = u32::try_from(most).unwrap_or(u32::MAX).clamp(1, FLOWS_KEPT);
        let records = sys::file::fixed("lasthop-flows", records_len(slots))?;
        Ok(Self::of(records, slots, BTreeMap::new()))
    }

    /// Those of the supervisor before.
    pub(in crate::drivers) fn of(
        records: OwnedFd,
        slots: u32,
        sockets: BTreeMap<u32, ForeignFd>,
    ) -> Self {
        Self {
            records,
            slots,
            sockets,
            next: 0,
        }
    }

    /// The memory for records, and their number.
    pub(in crate::drivers) fn records(&self) -> (BorrowedFd<'_>, u32) {
        (self.records.as_fd(), self.slots)
    }

    /// All sockets with their numbers.
    pub(in crate::drivers) fn sockets(
        &self,
    ) -> impl ExactSizeIterator<Item = (u32, BorrowedFd<'_>)> {
        let sockets = self.sockets.iter();
        sockets.map(|(slot, socket)| (*slot, socket.as_fd()))
    }

    /// A new process asks for all of them.
    pub(super) fn begin(&mut self) {
        self.next = 0;
    }

    /// The next sockets for a new process; none behind the last.
    pub(super) fn next(&mut self) -> (Vec<u32>, Vec<BorrowedFd<'_>>) {
        let rest = self.sockets.range(self.next..).take(MAX_FDS);
        let (slots, sockets): (Vec<u32>, Vec<_>) =
            rest.map(|(slot, socket)| (*slot, socket.as_fd())).unzip();
        self.next = slots.last().map_or(self.next, |last| last + 1);
        (slots, sockets)
    }

    /// Keeps sockets, at most so many: flows beyond that end with their process. `false` for a
    /// message that no driver sends.
    pub(super) fn keep(&mut self, slots: &[u32], sockets: Vec<ForeignFd>, most: u64) -> bool {
        let is_sound = slots.len() == sockets.len() && slots.iter().all(|slot| *slot < self.slots);
        if is_sound {
            for (slot, socket) in slots.iter().zip(sockets) {
                // The former socket of a number is of a flow that has ended.
                self.sockets.remove(slot);
                if (self.sockets.len() as u64) < most {
                    self.sockets.insert(*slot, socket);
                }
            }
        }
        is_sound
    }

    /// Drops sockets.
    pub(super) fn drop(&mut self, slots: &[u32]) {
        for slot in slots {
            self.sockets.remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_process_gets_all_in_parts() {
        let mut flows = KeptFlows::new().unwrap();
        let event = || ForeignFd::from(sys::event::create().unwrap());
        let slots: Vec<u32> = (0..20).map(|n| 3 * n).collect();
        assert!(flows.keep(&slots, slots.iter().map(|_| event()).collect(), 100));
        flows.drop(&[3, 4]);
        flows.begin();
        let mut all = Vec::new();
        loop {
            let (part, sockets) = flows.next();
            assert!(part.len() == sockets.len() && part.len() <= MAX_FDS);
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        let expected: Vec<u32> = slots.into_iter().filter(|slot| *slot != 3).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn what_no_driver_sends_is_refused() {
        let mut flows = KeptFlows::new().unwrap();
        let event = || ForeignFd::from(sys::event::create().unwrap());
        assert!(!flows.keep(&[1, 2], vec![event()], 100));
        assert!(!flows.keep(&[FLOWS_KEPT], vec![event()], 100));
        assert_eq!(flows.sockets().count(), 0);
    }

    #[test]
    fn flows_beyond_the_share_are_not_kept() {
        let mut flows = KeptFlows::new().unwrap();
        let event = || ForeignFd::from(sys::event::create().unwrap());
        for slot in 0..3 {
            assert!(flows.keep(&[slot], vec![event()], 2));
        }
        let kept = |flows: &KeptFlows| flows.sockets().map(|(slot, _)| slot).collect::<Vec<_>>();
        assert_eq!(kept(&flows), [0, 1]);
        // One that has ended makes room, and the number of one has a new socket.
        flows.drop(&[0]);
        assert!(flows.keep(&[1, 2], vec![event(), event()], 2));
        assert_eq!(kept(&flows), [1, 2]);
        assert!(
            flows.keep(&[1], vec![event()], 0),
            "other ports have more now"
        );
        assert_eq!(kept(&flows), [2]);
    }
}
