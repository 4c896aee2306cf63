//! Counters of access list rules. Frames are counted per flow; a flow's counts are added to its
//! rules by a sweep, when its decision changes and when it is removed. So no frame touches rules.

use std::collections::HashMap;

use ipc::rules::{MAX_COUNTED, RuleUse};
use policy::acl::RuleId;

use super::lists::Lists;

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
pub struct RuleCounts {
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
    pub fn take(&mut self, now: u64) -> Vec<RuleUse> {
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
