//! Dumps of cached flows. Each worker has its own flow cache; the entries of one flow in several
//! caches are merged.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use channel::flows::{CachedFlow, FlowDumpRequest, FoundFlow, MAX_KEYS};
use channel::records::key_from_words;
use channel::switching::SwitchEvent;

use super::Process;
use super::sweeps::Progress;
use crate::forward::revalidator::FlowSweep;
use flow_table::TopFlows;

/// Flows in one message.
const FLOWS_PER_REPORT: usize = 256;

/// The merged top flows of all workers.
#[derive(Debug)]
pub(super) struct MergedFlows {
    desired: FlowDumpRequest,
    /// Flows by key and mask.
    flows: HashMap<([u64; 8], [u64; 8]), CachedFlow>,
}

impl MergedFlows {
    pub(super) fn new(desired: FlowDumpRequest) -> Self {
        Self {
            desired,
            flows: HashMap::new(),
        }
    }

    /// Adds the top flows of one worker.
    pub(super) fn add(&mut self, busiest: TopFlows) {
        for flow in busiest.into_flows() {
            match self.flows.entry((flow.key, flow.mask)) {
                Entry::Occupied(mut there) => there.get_mut().add(&flow),
                Entry::Vacant(place) => drop(place.insert(flow)),
            }
        }
    }

    /// Returns the merged flows, the busiest first.
    fn into_flows(self) -> Vec<CachedFlow> {
        let mut busiest = TopFlows::new(self.desired);
        self.flows.into_values().for_each(|flow| busiest.add(flow));
        busiest.into_flows()
    }
}

impl Process {
    /// Looks up these keys in the flow caches of all workers, and reports the flows.
    pub(super) fn find_flows(&mut self, keys: Vec<[u64; 8]>) -> Result<(), String> {
        if keys.len() > MAX_KEYS {
            return Err(format!("{} keys are too many", keys.len()));
        }
        let keys: Vec<_> = keys.iter().map(key_from_words).collect();
        let by_worker = self.workers.each(move |w| {
            let now = w.now();
            let flows = keys.iter().map(|key| w.switch.flows.peek(key, now));
            flows.collect::<Vec<_>>()
        });
        let mut found = Vec::new();
        for (worker, flows) in by_worker.into_iter().enumerate() {
            for (question, flow) in flows.into_iter().enumerate() {
                found.extend(flow.map(|flow| FoundFlow {
                    question: question as u16,
                    worker: worker as u16,
                    flow,
                }));
            }
        }
        self.report(&SwitchEvent::Found(found), &[]);
        Ok(())
    }

    /// Starts a dump of the busiest flows of all workers.
    pub(super) fn dump_top_flows(&mut self, number: u64, desired: FlowDumpRequest) -> Progress {
        self.begin(number, None, FlowSweep::TopFlows(desired))
    }

    pub(super) fn report_flows(&mut self, number: u64, flows: Option<MergedFlows>) {
        let flows = flows.map(MergedFlows::into_flows).unwrap_or_default();
        for some in flows.chunks(FLOWS_PER_REPORT) {
            self.report(&SwitchEvent::Flows(number, some.to_vec()), &[]);
        }
    }
}
