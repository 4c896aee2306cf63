//! In-flight tracking of a packed queue. The ring's descriptors are overwritten by used elements
//! while older chains are still in flight, so the region keeps copies of them.

use super::{Inflight, Pending};
use crate::queue::QueueFault;
use crate::queue::descriptor::Desc;
use crate::queue::packed::cursor::Cursor;

const AT_FREE: usize = 12;
const AT_OLD_FREE: usize = 14;
const AT_CURSORS: usize = 16;
const INFLIGHT: usize = 0;
const NEXT: usize = 2;
const LAST: usize = 4;
const NUM: usize = 6;
const COUNTER: usize = 8;
const ID: usize = 16;
const FLAGS: usize = 18;
const LEN: usize = 20;
const ADDR: usize = 24;
/// Marks the absence of an entry.
const NONE: u16 = u16::MAX;

/// Returns the offset of field `field` of entry `at`.
fn entry(at: u16, field: usize) -> usize {
    32 + 32 * usize::from(at) + field
}

/// Tracker: the shared part, and private copies of every link that is followed.
#[derive(Debug)]
pub(in crate::queue) struct Tracker {
    part: Inflight,
    size: u16,
    counter: u64,
    used: Cursor,
    free: u16,
    /// Each entry's next one, free or in flight.
    next: Vec<u16>,
    /// By head entry: the chain's last entry.
    last: Vec<u16>,
    /// By buffer id: the chain's head entry, or `NONE`.
    head_of: Vec<u16>,
    batch: Vec<u16>,
    pending: Pending,
}

impl Tracker {
    /// Attaches to `part`; `used` is the used position that the front end assumes. Also returns the
    /// used position and the number of slots in flight behind it, when a former process recorded
    /// them. `used_up(cursor)` returns whether the ring's slot there is no longer available in the
    /// cursor's lap.
    pub(in crate::queue) fn attach(
        part: Inflight,
        size: u16,
        used: Cursor,
        used_up: impl Fn(Cursor) -> bool,
    ) -> Result<(Self, Option<(Cursor, u16)>), QueueFault> {
        part.check(size, true)?;
        let n = usize::from(size);
        let mut tracker = Self {
            part,
            size,
            counter: 0,
            used,
            free: 0,
            next: vec![NONE; n],
            last: vec![NONE; n],
            head_of: vec![NONE; n],
            batch: Vec::with_capacity(n),
            pending: Pending::default(),
        };
        if !tracker.part.used_before()? {
            tracker.initialise();
            return Ok((tracker, None));
        }
        tracker.settle(used_up)?;
        tracker.clear_free_list();
        let slots = tracker.find_pending()?;
        let used = tracker.used;
        Ok((tracker, Some((used, slots))))
    }

    fn initialise(&mut self) {
        for at in 0..self.size {
            self.part.set8(entry(at, INFLIGHT), 0);
        }
        self.link_free(&vec![false; usize::from(self.size)]);
        self.set_cursors(self.used, self.used);
        self.part.seal();
    }

    /// Commits a batch that the driver has seen, or rolls back one that it has not.
    fn settle(&mut self, used_up: impl Fn(Cursor) -> bool) -> Result<(), QueueFault> {
        let (new, old) = self.cursors();
        if new.index >= self.size || old.index >= self.size {
            return Err(QueueFault::InflightCorrupt);
        }
        let commit = new != old && used_up(old);
        let (used, free) = if commit {
            (new, self.part.get16(AT_FREE))
        } else {
            (old, self.part.get16(AT_OLD_FREE))
        };
        self.set_free(free);
        self.set_cursors(used, used);
        self.used = used;
        Ok(())
    }

    fn clear_free_list(&self) {
        let mut at = self.free;
        for _ in 0..self.size {
            if at >= self.size {
                return;
            }
            self.part.set8(entry(at, INFLIGHT), 0);
            at = self.part.get16(entry(at, NEXT));
        }
    }

    /// Finds the chains in flight, checks that they share no entry, and makes all other entries
    /// free. Returns the number of ring slots that they use.
    fn find_pending(&mut self) -> Result<u16, QueueFault> {
        let mut taken = vec![false; usize::from(self.size)];
        let mut found = Vec::new();
        let mut slots = 0;
        for head in 0..self.size {
            if self.part.get8(entry(head, INFLIGHT)) == 1 {
                slots += self.adopt(head, &mut taken)?;
                found.push((self.part.get64(entry(head, COUNTER)), head));
            }
        }
        (self.pending, self.counter) = Pending::new(found);
        self.link_free(&taken);
        Ok(slots)
    }

    /// Reads the list of one chain. Every entry is taken at most once, which bounds the walk.
    fn adopt(&mut self, head: u16, taken: &mut [bool]) -> Result<u16, QueueFault> {
        let num = self.part.get16(entry(head, NUM));
        let mut at = head;
        for k in 0..num {
            if at >= self.size || std::mem::replace(&mut taken[usize::from(at)], true) {
                return Err(QueueFault::InflightCorrupt);
            }
            self.last[usize::from(head)] = at;
            if k + 1 < num {
                let next = self.part.get16(entry(at, NEXT));
                self.next[usize::from(at)] = next;
                at = next;
            }
        }
        let id = self.part.get16(entry(at.min(self.size - 1), ID));
        if num == 0 || id >= self.size || self.head_of[usize::from(id)] != NONE {
            return Err(QueueFault::InflightCorrupt);
        }
        self.head_of[usize::from(id)] = head;
        Ok(num)
    }

    /// Links all entries that are not taken into the free list; it ends with the queue size.
    fn link_free(&mut self, taken: &[bool]) {
        let mut head = self.size;
        for at in (0..self.size).rev().filter(|&at| !taken[usize::from(at)]) {
            self.link(at, head);
            head = at;
        }
        self.set_free(head);
    }

    fn link(&mut self, at: u16, next: u16) {
        self.next[usize::from(at)] = next;
        self.part.set16(entry(at, NEXT), next);
    }

    fn set_free(&mut self, free: u16) {
        self.free = free;
        self.part.set16(AT_FREE, free);
        self.part.set16(AT_OLD_FREE, free);
    }

    /// Returns the used position and the old one. They are written as one word, so that the death
    /// of the process never leaves them torn.
    fn cursors(&self) -> (Cursor, Cursor) {
        let b = self.part.get64(AT_CURSORS).to_ne_bytes();
        let cursor = |lo, hi, wrap| Cursor {
            index: u16::from_ne_bytes([lo, hi]),
            wrap: wrap != 0,
        };
        (cursor(b[0], b[1], b[4]), cursor(b[2], b[3], b[5]))
    }

    fn set_cursors(&self, new: Cursor, old: Cursor) {
        let [n0, n1] = new.index.to_ne_bytes();
        let [o0, o1] = old.index.to_ne_bytes();
        let bytes = [n0, n1, o0, o1, u8::from(new.wrap), u8::from(old.wrap), 0, 0];
        self.part.set64(AT_CURSORS, u64::from_ne_bytes(bytes));
    }

    /// Returns the head entry of the oldest chain that is left from before.
    pub(in crate::queue) fn pending(&self) -> Option<u16> {
        self.pending.peek()
    }

    /// Records that the chain of [`Self::pending`] was taken.
    pub(in crate::queue) fn took_pending(&mut self) {
        self.pending.next += 1;
    }

    /// Returns the descriptor that entry `at` holds.
    pub(in crate::queue) fn desc(&self, at: u16) -> Desc {
        Desc {
            addr: self.part.get64(entry(at, ADDR)),
            len: self.part.get32(entry(at, LEN)),
            flags: self.part.get16(entry(at, FLAGS)),
            link: self.part.get16(entry(at, ID)),
        }
    }

    /// Returns the entry after `at` in its chain, if `at` is not the last of the chain that starts
    /// at `head`.
    pub(in crate::queue) fn after(&self, head: u16, at: u16) -> Option<u16> {
        (self.last[usize::from(head)] != at).then(|| self.next[usize::from(at)])
    }

    /// Returns whether the chain of buffer `id` starts at entry `head` and ends at entry `last`.
    pub(in crate::queue) fn is_chain(&self, id: u16, head: u16, last: u16) -> bool {
        self.head_of.get(usize::from(id)) == Some(&head) && self.last[usize::from(head)] == last
    }

    /// Returns whether buffer `id` is in flight.
    pub(in crate::queue) fn is_live(&self, id: u16) -> bool {
        self.head_of
            .get(usize::from(id))
            .is_some_and(|&head| head != NONE)
    }

    /// Records a new chain of these descriptors; `id` is below the queue size, and the queue
    /// ensures that no more slots are in flight than there are entries.
    pub(in crate::queue) fn took(&mut self, descs: &[Desc], id: u16) {
        let head = self.free;
        let (mut at, mut last) = (head, head);
        for desc in descs {
            self.part.set64(entry(at, ADDR), desc.addr);
            self.part.set32(entry(at, LEN), desc.len);
            self.part.set16(entry(at, FLAGS), desc.flags);
            self.part.set16(entry(at, ID), desc.link);
            last = at;
            at = self.next[usize::from(at)];
        }
        self.part.set16(entry(head, NUM), descs.len() as u16);
        self.part.set16(entry(head, LAST), last);
        self.part.set64(entry(head, COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.part.set8(entry(head, INFLIGHT), 1);
        self.set_free(at);
        self.last[usize::from(head)] = last;
        self.head_of[usize::from(id)] = head;
        self.pending.fresh = self.pending.fresh.saturating_add(1);
    }

    /// Records that the newest taken chain was untaken. Returns `true` when it came from the ring.
    pub(in crate::queue) fn untook(&mut self, id: u16) -> bool {
        let fresh = self.pending.untake();
        if fresh && self.is_live(id) {
            let head = std::mem::replace(&mut self.head_of[usize::from(id)], NONE);
            self.link(self.last[usize::from(head)], self.free);
            self.part.set8(entry(head, INFLIGHT), 0);
            self.set_free(head);
        }
        fresh
    }

    /// Records that a used element was staged.
    pub(in crate::queue) fn staged(&mut self, id: u16) {
        if self.is_live(id) {
            self.batch.push(id);
        }
    }

    /// Records that the batch is about to become visible, and that the used position will be
    /// `used`.
    pub(in crate::queue) fn before_publish(&mut self, used: Cursor) {
        for i in 0..self.batch.len() {
            let head = self.head_of[usize::from(self.batch[i])];
            self.link(self.last[usize::from(head)], self.free);
            self.free = head;
            self.part.set16(AT_FREE, head);
        }
        self.set_cursors(used, self.used);
    }

    /// Records that the batch is visible.
    pub(in crate::queue) fn after_publish(&mut self, used: Cursor) {
        for id in self.batch.drain(..) {
            let head = std::mem::replace(&mut self.head_of[usize::from(id)], NONE);
            self.part.set8(entry(head, INFLIGHT), 0);
        }
        self.part.set16(AT_OLD_FREE, self.free);
        self.set_cursors(used, used);
        self.used = used;
    }
}
