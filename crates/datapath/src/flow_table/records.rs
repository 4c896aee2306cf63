//! Flows as tests compare them.

use policy::Action;

use super::{FlowTable, Origin};

/// Cached flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FlowRecord {
    /// Masked key.
    pub(crate) key: [u64; 8],
    pub(crate) mask: [u64; 8],
    pub(crate) action: Action,
    pub(crate) origin: Origin,
    pub(crate) packets: u64,
    pub(crate) idle_ms: u32,
}

impl FlowTable {
    /// Returns all flows.
    pub(crate) fn records(&self, now: u64) -> Vec<FlowRecord> {
        let next = |slot: &usize| self.flows.next(slot + 1);
        let slots = std::iter::successors(self.flows.next(0), next);
        slots
            .filter_map(|slot| self.record(slot as u32, now))
            .collect()
    }

    fn record(&self, slot: u32, now: u64) -> Option<FlowRecord> {
        let flow = self.flows.get(slot)?;
        let tuple = self.tuples.get(usize::from(flow.tuple))?;
        Some(FlowRecord {
            key: *self.flows.key(slot, tuple.hash.is_long()).words(),
            mask: *tuple.mask().words(),
            action: flow.action,
            origin: Origin {
                segment: flow.segment(),
                learned: flow.learned,
                rules: flow.ruled.rules(),
            },
            packets: flow.packets,
            idle_ms: flow.idle(now),
        })
    }
}
