//! What is told of flows to those who ask. Whoever asks uses no flow: nothing here changes how long one stays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use channel::flows::{CachedFlow, FlowsWanted, MAX_TOLD, rate};
use policy::LeftOut;
use wire::flow::FlowKey;

use super::effort::{Effort, LOOK, SEEK};
use super::flows::Past;
use super::{FlowTable, Progress};

/// A flow, ordered by how busy it is: of late, and then in all.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ranked(CachedFlow);

impl Ranked {
    fn rank(&self) -> (u64, u64, &[u64; 8], &[u64; 8]) {
        (self.0.rate(), self.0.packets, &self.0.key, &self.0.mask)
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The busiest of the flows that it was shown.
#[derive(Clone, Debug)]
pub struct Busiest {
    wanted: FlowsWanted,
    /// The least busy of them is at hand.
    flows: BinaryHeap<Reverse<Ranked>>,
    /// Milliseconds since flows were counted last; `None`: that was never done.
    window_ms: Option<u32>,
}

impl Busiest {
    /// None yet.
    #[must_use]
    pub fn new(wanted: FlowsWanted) -> Self {
        Self {
            wanted,
            flows: BinaryHeap::new(),
            window_ms: None,
        }
    }

    /// How many there may be.
    fn limit(&self) -> usize {
        usize::from(self.wanted.limit).min(MAX_TOLD)
    }

    /// Whether one like that is among them, as far as that can be said without looking closely.
    fn may_want(&self, rate: u64) -> bool {
        let least = self.flows.peek().map_or(0, |Reverse(least)| least.0.rate());
        self.flows.len() < self.limit() || rate >= least
    }

    /// Takes one, in the place of the least busy if need be.
    pub fn add(&mut self, flow: CachedFlow) {
        self.flows.push(Reverse(Ranked(flow)));
        if self.flows.len() > self.limit() {
            self.flows.pop();
        }
    }

    /// All of them, the busiest first.
    #[must_use]
    pub fn into_flows(self) -> Vec<CachedFlow> {
        let sorted = self.flows.into_sorted_vec().into_iter();
        sorted.map(|Reverse(ranked)| ranked.0).collect()
    }
}

impl FlowTable {
    /// The flow that a frame with this key has now.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, now: u64) -> Option<CachedFlow> {
        let slot = (0..self.tuples.len()).find_map(|at| self.find(at, key))?;
        self.told(slot, now, None)
    }

    /// Shows all flows to `busiest`, a piece from a place on, and counts them: the next time, what is recent begins here.
    pub fn count_busiest(
        &mut self,
        at: usize,
        now: u64,
        busiest: &mut Busiest,
        effort: &mut Effort,
    ) -> Progress {
        if at == 0 {
            let before = self.counted.replace(now as u32);
            busiest.window_ms = before.map(|before| (now as u32).wrapping_sub(before));
        }
        let (window, port) = (busiest.window_ms, busiest.wanted.port);
        self.walk(at, effort, |table, slot| {
            let past = table.flows.past(slot);
            let Some(flow) = table.flows.get(slot) else {
                return LOOK;
            };
            let packets = flow.packets;
            let (recent, recent_ms) = recent(packets, past, now, window);
            table.flows.past_mut(slot).counted = packets as u32;
            let concerned = |port: port::PortId| table.flows.concerns(slot, |p| p == port.0);
            if !busiest.may_want(rate(recent, recent_ms)) || !port.is_none_or(concerned) {
                return LOOK;
            }
            let Some(told) = table.told(slot, now, Some((recent, recent_ms))) else {
                return LOOK;
            };
            let cost = SEEK + told.except.len();
            busiest.add(told);
            cost
        })
    }

    /// A flow as others are told of it; how many of its packets are recent, and what that means, if that is asked.
    fn told(&self, slot: u32, now: u64, recent: Option<(u64, u32)>) -> Option<CachedFlow> {
        let flow = self.flows.get(slot)?;
        let tuple = self.tuples.get(usize::from(flow.tuple))?;
        let age_ms = age(self.flows.past(slot), now);
        let (recent, recent_ms) = recent.unwrap_or((flow.packets, age_ms));
        Some(CachedFlow {
            key: *self.flows.key(slot, tuple.hash.is_long()).words(),
            mask: *tuple.mask().words(),
            action: flow.action.leaving_out(LeftOut::NOBODY),
            except: self.left_out.get(flow.action.left_out().0).to_vec(),
            segment: flow.segment(),
            packets: flow.packets,
            recent,
            recent_ms,
            idle_ms: flow.idle(now),
            age_ms,
        })
    }
}

fn age(past: Past, now: u64) -> u32 {
    (now as u32).wrapping_sub(past.made)
}

/// Packets since they were counted, or since the flow was made, and how long ago that is.
fn recent(packets: u64, past: Past, now: u64, window: Option<u32>) -> (u64, u32) {
    let age = age(past, now);
    let since = u64::from((packets as u32).wrapping_sub(past.counted));
    match window {
        Some(window) => (since, window.min(age)),
        None => (packets, age),
    }
}
