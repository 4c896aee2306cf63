//! Dumps of the busiest flows. They count as no use of a flow: its idle timeout continues.

use std::collections::BTreeMap;

use ipc::flows::{CachedFlow, FlowDumpRequest, MAX_DUMPED, rate};
use policy::{ExcludeSetId, PortId};
use wire::flow::FlowKey;

use super::effort::{Effort, LOOK, SEEK};
use super::flows::History;
use super::{FlowTable, Progress};

/// Order of flows: by the recent rate, then by the packets, then by key and mask.
type Rank = (u64, u64, [u64; 8], [u64; 8]);

/// Busiest of the flows that were added.
#[derive(Clone, Debug)]
pub struct TopFlows {
    request: FlowDumpRequest,
    flows: BTreeMap<Rank, CachedFlow>,
    /// Milliseconds since the last count; `None`: there was none.
    window_ms: Option<u32>,
}

impl TopFlows {
    /// Returns an empty set.
    #[must_use]
    pub fn new(request: FlowDumpRequest) -> Self {
        Self {
            request,
            flows: BTreeMap::new(),
            window_ms: None,
        }
    }

    /// Returns the number of flows at most.
    fn limit(&self) -> usize {
        usize::from(self.request.limit).min(MAX_DUMPED)
    }

    /// Returns whether a flow of this rate may be among the busiest.
    fn may_rank(&self, rate: u64) -> bool {
        let least = self.flows.first_key_value();
        self.flows.len() < self.limit() || least.is_some_and(|(least, _)| rate >= least.0)
    }

    /// Adds a flow, and removes the least busy one beyond the limit.
    pub fn add(&mut self, flow: CachedFlow) {
        let rank = (flow.rate(), flow.packets, flow.key, flow.mask);
        self.flows.insert(rank, flow);
        if self.flows.len() > self.limit() {
            self.flows.pop_first();
        }
    }

    /// Returns all flows, the busiest first.
    #[must_use]
    pub fn into_flows(self) -> Vec<CachedFlow> {
        self.flows.into_values().rev().collect()
    }
}

impl FlowTable {
    /// Returns the flow that a frame with this key has now.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, now: u64) -> Option<CachedFlow> {
        let slot = (0..self.tuples.len()).find_map(|at| self.find(at, key))?;
        self.dump(slot, now, None)
    }

    /// Adds all flows to `top`, in parts, and resets the window of recent packets.
    pub fn dump_top(
        &mut self,
        at: usize,
        now: u64,
        top: &mut TopFlows,
        effort: &mut Effort,
    ) -> Progress {
        if at == 0 {
            let before = self.counted.replace(now as u32);
            top.window_ms = before.map(|before| (now as u32).wrapping_sub(before));
        }
        let (window, port) = (top.window_ms, top.request.port);
        self.walk(at, effort, |table, slot| {
            let past = table.flows.past(slot);
            let Some(flow) = table.flows.get(slot) else {
                return LOOK;
            };
            let packets = flow.packets;
            let (recent, recent_ms) = recent(packets, past, now, window);
            table.flows.past_mut(slot).counted = packets as u32;
            let concerned = |port: PortId| table.flows.concerns(slot, |p| p == port.0);
            if !top.may_rank(rate(recent, recent_ms)) || !port.is_none_or(concerned) {
                return LOOK;
            }
            let Some(flow) = table.dump(slot, now, Some((recent, recent_ms))) else {
                return LOOK;
            };
            let cost = SEEK + flow.except.len();
            top.add(flow);
            cost
        })
    }

    /// Returns the record of a flow. `recent`: recent packets and their time, instead of those
    /// since the flow's start.
    fn dump(&self, slot: u32, now: u64, recent: Option<(u64, u32)>) -> Option<CachedFlow> {
        let flow = self.flows.get(slot)?;
        let tuple = self.tuples.get(usize::from(flow.tuple))?;
        let age_ms = age(self.flows.past(slot), now);
        let (recent, recent_ms) = recent.unwrap_or((flow.packets, age_ms));
        Some(CachedFlow {
            key: *self.flows.key(slot, tuple.hash.is_long()).words(),
            mask: *tuple.mask().words(),
            action: flow.action.excluding(ExcludeSetId::NONE),
            except: self.excluded.get(flow.action.excluded().0).to_vec(),
            segment: flow.segment(),
            packets: flow.packets,
            recent,
            recent_ms,
            idle_ms: flow.idle(now),
            age_ms,
        })
    }
}

fn age(past: History, now: u64) -> u32 {
    (now as u32).wrapping_sub(past.made)
}

/// Returns the packets since the last count, or since the flow's start, and that time in
/// milliseconds.
fn recent(packets: u64, past: History, now: u64, window: Option<u32>) -> (u64, u32) {
    let age = age(past, now);
    let since = u64::from((packets as u32).wrapping_sub(past.counted));
    match window {
        Some(window) => (since, window.min(age)),
        None => (packets, age),
    }
}
