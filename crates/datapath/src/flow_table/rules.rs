//! Counters of access list rules. Frames are counted per flow; a flow's counts are added to its
//! rules by a sweep, when its decision changes and when it is removed. So no frame touches rules.

use std::collections::HashMap;

use channel::rules::{MAX_COUNTED, RuleUse};
use policy::acl::RuleId;

use super::effort::{Effort, LOOK, SEEK};
use super::lists::Lists;
use super::{FlowTable, Progress};

/// Counts of a rule since the last report.
#[derive(Clone, Copy, Debug)]
struct Uses {
    packets: u64,
    bytes: u64,
    /// Last frame, milliseconds by the caller's clock, modulo 2^32.
    used: u32,
}

/// Counters of all rules; see the module.
#[derive(Debug, Default)]
pub(crate) struct RuleCounts {
    /// Lists of rules that decided together.
    pub(super) lists: Lists<RuleId>,
    uses: HashMap<RuleId, Uses>,
}

impl RuleCounts {
    /// Adds frames to each rule of a list, the last of them at `used`. Beyond [`MAX_COUNTED`]
    /// rules, further ones are not counted.
    pub(super) fn count(&mut self, rules: u16, packets: u64, bytes: u64, used: u32) {
        for rule in self.lists.get(rules) {
            if self.uses.len() >= MAX_COUNTED && !self.uses.contains_key(rule) {
                continue;
            }
            let none = Uses {
                packets: 0,
                bytes: 0,
                used,
            };
            let uses = self.uses.entry(*rule).or_insert(none);
            uses.packets += packets;
            uses.bytes += bytes;
            let is_later = (used.wrapping_sub(uses.used) as i32) > 0;
            uses.used = if is_later { used } else { uses.used };
        }
    }

    /// Returns and resets the counts.
    pub(crate) fn take(&mut self, now: u64) -> Vec<RuleUse> {
        let uses = std::mem::take(&mut self.uses).into_iter();
        uses.map(|(rule, uses)| RuleUse {
            rule,
            packets: uses.packets,
            bytes: uses.bytes,
            idle_ms: (now as u32).wrapping_sub(uses.used),
        })
        .collect()
    }
}

impl FlowTable {
    /// Returns whether rules decided about any flow, so that bytes have to be counted.
    #[inline]
    pub(crate) fn counts_rules(&self) -> bool {
        !self.rules.lists.is_empty()
    }

    /// Returns the number of a list of rules for [`Origin::rules`](super::Origin::rules), until
    /// [`FlowTable::release_rules`]. Returns 0, which is not counted, when there are too many
    /// lists.
    pub fn intern_rules(&mut self, rules: Vec<RuleId>) -> u16 {
        self.rules.lists.intern(rules).unwrap_or(0)
    }

    /// Releases a list of [`FlowTable::intern_rules`].
    pub fn release_rules(&mut self, rules: u16) {
        self.rules.lists.decref(rules);
    }

    /// Counts frames that had no flow.
    pub(crate) fn count_unflowed(&mut self, rules: u16, packets: u64, bytes: u64, now: u64) {
        if packets > 0 {
            self.rules.count(rules, packets, bytes, now as u32);
        }
    }

    /// Adds a flow's new frames to its rules. Returns the cost.
    pub(super) fn count_for_rules(&mut self, slot: u32) -> usize {
        let Some(flow) = self.flows.get(slot).filter(|flow| !flow.is_free()) else {
            return LOOK;
        };
        let (rules, packets, bytes) = (flow.ruled.rules(), flow.packets, flow.ruled.bytes());
        let (used, new) = (flow.used, packets - self.flows.past(slot).ruled);
        if rules == 0 || new == 0 {
            return LOOK;
        }
        self.rules.count(rules, new, bytes, used);
        self.flows.ruled(slot);
        SEEK * (1 + self.rules.lists.get(rules).len())
    }

    /// Adds the new frames of all flows to their rules, in parts.
    pub(crate) fn count_rules(&mut self, at: usize, effort: &mut Effort) -> Progress {
        if !self.counts_rules() {
            return Progress::Done;
        }
        self.walk(at, effort, Self::count_for_rules)
    }
}
