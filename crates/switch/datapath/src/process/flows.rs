//! Dumps of cached flows. Each worker has its own flow cache; the entries of one flow in several
//! caches are merged.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ipc::flows::{CachedFlow, FlowDumpRequest, FoundFlow, MAX_KEYS};
use ipc::records::key_from_words;
use ipc::switching::SwitchEvent;

use crate::worker::workers::Workers;
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

/// Looks up these keys in the flow caches of all workers. Returns the report to control.
pub(super) fn find_flows(workers: &Workers, keys: &[[u64; 8]]) -> Result<SwitchEvent, String> {
    if keys.len() > MAX_KEYS {
        return Err(format!("{} keys are too many", keys.len()));
    }
    let keys: Vec<_> = keys.iter().map(key_from_words).collect();
    let by_worker = workers.each(move |w| {
        let now = w.now();
        let flows = keys.iter().map(|key| w.switch.peek(key, now));
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
    Ok(SwitchEvent::Found(found))
}

/// Returns the reports of a dump of flows.
pub(super) fn reports(number: u64, flows: Option<MergedFlows>) -> Vec<SwitchEvent> {
    let flows = flows.map(MergedFlows::into_flows).unwrap_or_default();
    let chunks = flows.chunks(FLOWS_PER_REPORT);
    chunks
        .map(|some| SwitchEvent::Flows(number, some.to_vec()))
        .collect()
}
