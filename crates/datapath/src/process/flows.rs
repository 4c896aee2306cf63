//! What control is told of cached flows. Each worker has its own cache: what several have of one flow is put together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use channel::flows::{CachedFlow, FlowsWanted, FoundFlow, MAX_KEYS};
use channel::records::key_from_words;
use channel::switching::Report;

use super::Process;
use super::errands::Progress;
use crate::errand::Errand;
use crate::flow_table::Busiest;

/// Flows in one message.
const FLOWS_PER_REPORT: usize = 256;

/// The busiest flows of all workers.
#[derive(Debug)]
pub(super) struct Together {
    wanted: FlowsWanted,
    /// By key and mask.
    flows: HashMap<([u64; 8], [u64; 8]), CachedFlow>,
}

impl Together {
    pub(super) fn new(wanted: FlowsWanted) -> Self {
        Self {
            wanted,
            flows: HashMap::new(),
        }
    }

    /// Those of one worker.
    pub(super) fn add(&mut self, busiest: Busiest) {
        for flow in busiest.into_flows() {
            match self.flows.entry((flow.key, flow.mask)) {
                Entry::Occupied(mut there) => there.get_mut().add(&flow),
                Entry::Vacant(place) => drop(place.insert(flow)),
            }
        }
    }

    /// The busiest first.
    fn into_flows(self) -> Vec<CachedFlow> {
        let mut busiest = Busiest::new(self.wanted);
        self.flows.into_values().for_each(|flow| busiest.add(flow));
        busiest.into_flows()
    }
}

impl Process {
    /// Has all workers look which flows they have for these keys.
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
        self.report(&Report::Found(found), &[]);
        Ok(())
    }

    /// Finds the busiest flows of all workers.
    pub(super) fn busiest_flows(&mut self, number: u64, wanted: FlowsWanted) -> Progress {
        self.begin(number, None, Errand::Busiest(wanted))
    }

    pub(super) fn report_flows(&mut self, number: u64, flows: Option<Together>) {
        let flows = flows.map(Together::into_flows).unwrap_or_default();
        for some in flows.chunks(FLOWS_PER_REPORT) {
            self.report(&Report::Flows(number, some.to_vec()), &[]);
        }
    }
}
