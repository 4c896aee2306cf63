//! Sweeps over all flows of a switch, which delay neither frames nor control's answers.
//!
//! A sweep begins after all work that was queued before it, and runs in parts beside later work.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use channel::flows::FlowDumpRequest;
use channel::rules::RuleUse;
use channel::switching::{MAX_STATIONS, Station, StationUse};
use flow_table::{CHANGE, Effort, FLOWS_PER_PART, FlowTable, Progress, TopFlows};
use policy::port_security::Bindings;
use policy::{Lookup, Program, SegmentId};
use port::PortId;
use wire::MacAddr;

/// Idle timeout of a flow, milliseconds.
pub(crate) const FLOW_IDLE_MS: u32 = 120_000;

/// State of control, for [`policy::decide`].
#[derive(Debug)]
pub struct Known {
    stations: HashMap<(SegmentId, MacAddr), PortId>,
    bound: HashMap<PortId, Bindings>,
}

impl Known {
    /// Returns the state with these FDB entries and bindings.
    #[must_use]
    pub fn new(stations: &[Station], bound: &[(PortId, Bindings)]) -> Self {
        let known = stations.iter();
        let stations = known.map(|s| ((s.segment, MacAddr(s.mac)), s.port));
        Self {
            stations: stations.collect(),
            bound: bound.iter().copied().collect(),
        }
    }
}

impl Lookup for Known {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.stations.get(&(segment, mac)).copied()
    }

    /// Control itself withdraws flows when it bars or allows a move. A new control bars no port.
    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }

    fn bound(&self, port: PortId) -> Bindings {
        self.bound.get(&port).copied().unwrap_or_default()
    }
}

/// Sweep over all flows.
#[derive(Clone, Debug)]
pub enum FlowSweep {
    /// Finds the learned stations from which flows were used recently.
    Stations {
        /// Age of the last use at most, milliseconds.
        within_ms: u32,
    },
    /// Finds the busiest flows, and counts all.
    TopFlows(FlowDumpRequest),
    /// Removes the flows that would be decided otherwise with this state of control.
    Check(Arc<Known>),
    /// Adds the packets of flows to the counters of their rules.
    CountRules,
    /// Visits no flow: completes when the work before it is done.
    Settle,
}

/// Result of a sweep.
#[derive(Debug)]
pub struct Finished {
    /// Number of the sweep, chosen by its requester.
    pub ticket: u64,
    /// Stations in use.
    pub stations: HashMap<Station, u32>,
    /// Busiest flows, of [`FlowSweep::TopFlows`].
    pub busiest: Option<TopFlows>,
    /// Counters of rules, of [`FlowSweep::CountRules`].
    pub rules: Vec<RuleUse>,
}

#[derive(Debug)]
struct Running {
    sweep: FlowSweep,
    at: usize,
    finished: Finished,
}

/// Running sweeps in their order, and finished ones.
#[derive(Debug, Default)]
pub(crate) struct Revalidator {
    running: VecDeque<Running>,
    finished: Vec<Finished>,
}

impl Revalidator {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(crate) fn begin(&mut self, ticket: u64, sweep: FlowSweep) {
        let finished = Finished {
            ticket,
            stations: HashMap::new(),
            busiest: match &sweep {
                FlowSweep::TopFlows(desired) => Some(TopFlows::new(*desired)),
                _ => None,
            },
            rules: Vec::new(),
        };
        match sweep {
            FlowSweep::Settle => self.finished.push(finished),
            sweep => self.running.push_back(Running {
                sweep,
                at: 0,
                finished,
            }),
        }
    }

    /// Returns the sweeps that finished since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Runs a part of the first sweep.
    pub(crate) fn run(&mut self, flows: &mut FlowTable, program: &Program, now: u64) {
        let Some(mut running) = self.running.pop_front() else {
            return;
        };
        let (at, effort) = (running.at, &mut Effort::default());
        let progress = match &running.sweep {
            FlowSweep::Stations { within_ms } => {
                // Without frames, idle flows expire only here.
                let expired = flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_PART);
                effort.charge(expired * CHANGE);
                let found = &mut running.finished.stations;
                flows.stations_in_use(at, now, *within_ms, effort, |used| note_uses(found, [used]))
            }
            FlowSweep::TopFlows(_) => match &mut running.finished.busiest {
                Some(busiest) => flows.dump_top(at, now, busiest, effort),
                None => Progress::Done,
            },
            FlowSweep::Check(known) => flows.check(at, program, &**known, effort),
            FlowSweep::CountRules => flows.count_rules(at, effort),
            FlowSweep::Settle => Progress::Done,
        };
        if let (FlowSweep::CountRules, Progress::Done) = (&running.sweep, progress) {
            running.finished.rules = flows.rules.take(now);
        }
        match progress {
            Progress::Done => self.finished.push(running.finished),
            Progress::ResumeAt(next) => {
                running.at = next;
                self.running.push_front(running);
            }
        }
    }
}

/// Adds uses of stations: the latest of each, and [`MAX_STATIONS`] at most.
pub(crate) fn note_uses(
    all: &mut HashMap<Station, u32>,
    uses: impl IntoIterator<Item = StationUse>,
) {
    for StationUse { station, idle_ms } in uses {
        if all.len() < MAX_STATIONS || all.contains_key(&station) {
            let idle = all.entry(station).or_insert(idle_ms);
            *idle = idle_ms.min(*idle);
        }
    }
}
