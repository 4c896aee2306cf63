//! The look-up, as the kernel's programs make it: the oracle for these.

use wire::packet::{Fragment, ParsedHeaders};
use wire::{EtherType, FlowKey};

use crate::layout::{ACTIVE_AT, DROP, DROP_NEW, LEASE_AT};
use crate::page::{MaskId, Memory, Page, Slot, destination, hash};
use crate::sync::{Ordering, fence};

/// Effect of an entry on frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It ends them.
    Drop,
    /// It ends those that are of no known connection.
    DropNew,
}

impl Action {
    const ALL: [Self; 2] = [Self::Drop, Self::DropNew];

    const fn number(self) -> u8 {
        match self {
            Self::Drop => DROP,
            Self::DropNew => DROP_NEW,
        }
    }
}

/// An entry that a frame has met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Its slot.
    pub slot: Slot,
    /// Its generation, which no other entry has.
    pub generation: u64,
    /// Its action.
    pub action: Action,
}

impl<M: Memory> Page<M> {
    /// Looks up a key without ingress port, at a time of the monotonic clock in nanoseconds.
    /// `None`: the switch decides. No contents of the memory do more than mislead it.
    #[must_use]
    pub fn look_up(&self, key: &FlowKey, now_ns: u64) -> Option<Hit> {
        if self.load(ACTIVE_AT) == 0 {
            return None;
        }
        let wanted = self.wanted(destination(key));
        let seed = self.seed();
        let mut masks = MaskId::all().filter(|mask| wanted & mask.bit() != 0);
        masks
            .find_map(|mask| self.look_up_with(key, mask, seed))
            .filter(|_| now_ns < self.load(LEASE_AT))
    }

    fn look_up_with(&self, key: &FlowKey, mask: MaskId, seed: u64) -> Option<Hit> {
        let of_mask = self.mask_generation(mask).load(Ordering::Acquire);
        if of_mask == 0 {
            return None;
        }
        let key = key.masked(&self.mask(mask));
        let hash = hash(&key, seed);
        let is_unchanged = |slot, generation| {
            // What was read before is not newer than the generations that are read now.
            fence(Ordering::Acquire);
            self.generation(slot).load(Ordering::Relaxed) == generation
                && self.mask_generation(mask).load(Ordering::Relaxed) == of_mask
        };
        Slot::of_hash(hash).find_map(|slot| {
            let generation = self.generation(slot).load(Ordering::Acquire);
            let word = self.entry(slot).load(Ordering::Relaxed);
            let mut actions = Action::ALL.into_iter();
            let action = actions.find(|action| word == entry_word(mask, *action, hash))?;
            let is_it = generation != 0 && self.key(slot) == key && is_unchanged(slot, generation);
            is_it.then_some(Hit {
                slot,
                generation,
                action,
            })
        })
    }
}

/// Returns what an entry is: its mask, its action, the upper half of its hash.
pub(crate) const fn entry_word(mask: MaskId, action: Action, hash: u64) -> u64 {
    mask.number() as u64 | (action.number() as u64) << 8 | hash & !0xffff_ffff
}

/// Returns whether a frame can meet an entry: one of IPv4 without options or IPv6 without extension
/// headers, no fragment, with a whole TCP, UDP or ICMP header.
#[must_use]
pub fn is_plain(frame: &ParsedHeaders) -> bool {
    let (ip_len, icmp) = match frame.ethertype {
        EtherType::IPV4 => (20, 1),
        EtherType::IPV6 => (40, 58),
        _ => return false,
    };
    frame.l4_offset == Some(frame.l3_offset + ip_len)
        && frame.fragment == Fragment::No
        && [6, 17, icmp].contains(&frame.l4_proto)
}
