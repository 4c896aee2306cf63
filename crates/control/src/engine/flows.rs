//! What control knows of the flows that it had cached: enough to take them back.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use channel::records::{Answer, key_from_words};
use channel::switching::FlowRecord;
use policy::{Action, SegmentId};
use port::PortId;
use wire::MacAddr;
use wire::flow::FlowKey;

use crate::learning::Side;

/// One flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    mask: [u64; 8],
    action: Action,
    segment: Option<SegmentId>,
    /// When it was installed or seen in a dump.
    known: Duration,
}

/// All flows, by their masked key; every flow of control has the same mask.
#[derive(Debug, Default)]
pub(super) struct FlowIndex {
    flows: HashMap<FlowKey, Flow>,
    by_mac: HashMap<MacAddr, HashSet<FlowKey>>,
}

/// Flows that are kept track of; more than the switch's cache holds.
const MAX_FLOWS: usize = 200_000;

impl FlowIndex {
    /// Whether no more flows are to be installed until a dump has shown which ones are gone.
    pub(super) fn is_full(&self) -> bool {
        self.flows.len() >= MAX_FLOWS
    }

    /// A flow was installed, or is in the switch's dump.
    pub(super) fn insert(
        &mut self,
        key: &[u64; 8],
        mask: &[u64; 8],
        action: Action,
        segment: Option<SegmentId>,
        now: Duration,
    ) {
        let key = key_from_words(key);
        for mac in [key.smac(), key.dmac()] {
            self.by_mac.entry(mac).or_default().insert(key);
        }
        let flow = Flow {
            mask: *mask,
            action,
            segment,
            known: now,
        };
        self.flows.insert(key, flow);
    }

    /// [`FlowIndex::insert`] of a dump's record.
    pub(super) fn insert_record(&mut self, record: &FlowRecord, now: Duration) {
        let FlowRecord {
            key,
            mask,
            action,
            segment,
            ..
        } = record;
        self.insert(key, mask, *action, *segment, now);
    }

    /// [`FlowIndex::insert_record`], unless the flow was installed after `asked`: then the record is older than
    /// what is known.
    pub(super) fn insert_older(&mut self, record: &FlowRecord, asked: Duration) {
        let have = self.flows.get(&key_from_words(&record.key));
        if have.is_none_or(|flow| flow.known < asked) {
            self.insert_record(record, asked);
        }
    }

    /// Takes out the flows from or to a station; what is to be sent for it.
    pub(super) fn invalidate(
        &mut self,
        segment: SegmentId,
        mac: MacAddr,
        side: Side,
    ) -> Vec<Answer> {
        let Some(keys) = self.by_mac.get(&mac) else {
            return Vec::new();
        };
        let hit = |key: &&FlowKey| {
            let flow = self.flows.get(*key);
            let same = flow.is_some_and(|f| f.segment.is_none_or(|s| s == segment));
            same && (key.dmac() == mac || (side == Side::Both && key.smac() == mac))
        };
        let keys: Vec<FlowKey> = keys.iter().filter(hit).copied().collect();
        self.remove_all(keys)
    }

    /// Takes out the flows from and to a port; what is to be sent for it.
    pub(super) fn forget_port(&mut self, port: PortId) -> Vec<Answer> {
        let keys: Vec<FlowKey> = self
            .flows
            .iter()
            .filter(|(key, flow)| {
                key.in_port() == port.0
                    || matches!(flow.action, Action::Unicast { port: to, .. } if to == port)
            })
            .map(|(key, _)| *key)
            .collect();
        self.remove_all(keys)
    }

    /// Nothing is held, in either table.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.by_mac.is_empty()
    }

    /// Takes out one flow; what is to be sent for it.
    pub(super) fn remove(&mut self, key: &[u64; 8]) -> Vec<Answer> {
        self.remove_all(vec![key_from_words(key)])
    }

    /// Forgets flows that were not seen since `before`: the switch has evicted them.
    pub(super) fn forget_unseen(&mut self, before: Duration) {
        let unseen = |flow: &Flow| flow.known < before;
        let keys: Vec<FlowKey> = self
            .flows
            .iter()
            .filter(|(_, flow)| unseen(flow))
            .map(|(key, _)| *key)
            .collect();
        self.remove_all(keys);
    }

    fn remove_all(&mut self, keys: Vec<FlowKey>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(flow) = self.flows.remove(&key) else {
                continue;
            };
            for mac in [key.smac(), key.dmac()] {
                if let Some(of_mac) = self.by_mac.get_mut(&mac) {
                    of_mac.remove(&key);
                    if of_mac.is_empty() {
                        self.by_mac.remove(&mac);
                    }
                }
            }
            answers.push(Answer::Remove {
                key: *key.words(),
                mask: flow.mask,
            });
        }
        answers
    }
}
