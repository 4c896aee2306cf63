//! Sweeps over all flows of a switch, which delay neither frames nor control's answers.
//!
//! A sweep begins after all work that was queued before it, and runs in parts beside later work.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use flow_table::{CHANGE, Effort, FLOWS_PER_PART, FlowTable, Progress, TopFlows};
use ipc::flows::FlowDumpRequest;
use ipc::rules::RuleUse;
use ipc::switching::{MAX_STATIONS, Station, StationUse};
use policy::port_security::Bindings;
use policy::{Lookup, Program, SegmentId};
use port::PortId;
use wire::MacAddr;

use crate::forward::tables::{Place, Tables};

/// Idle timeout of a flow, milliseconds.
pub(crate) const FLOW_IDLE_MS: u32 = 120_000;

/// State of control, for [`policy::decide`].
#[derive(Debug)]
pub struct ControlState {
    stations: HashMap<(SegmentId, MacAddr), PortId>,
    bound: HashMap<PortId, Bindings>,
}

impl ControlState {
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

impl Lookup for ControlState {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.stations.get(&(segment, mac)).copied()
    }

    /// Control itself withdraws flows when an address gets or loses its owners.
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
    Check(Arc<ControlState>),
    /// Adds the packets of flows to the counters of their rules.
    CountRules,
    /// Visits no flow: completes when the work before it is done.
    Settle,
}

/// Result of a sweep.
#[derive(Debug)]
pub struct SweepResult {
    /// Number of the sweep, chosen by its requester.
    pub ticket: u64,
    /// Stations in use.
    pub stations: HashMap<Station, StationUse>,
    /// Busiest flows, of [`FlowSweep::TopFlows`].
    pub busiest: Option<TopFlows>,
    /// Counters of rules, of [`FlowSweep::CountRules`], from each table.
    pub rules: Vec<RuleUse>,
}

#[derive(Debug)]
struct Running {
    sweep: FlowSweep,
    /// The place at which it continues.
    from: Place,
    finished: SweepResult,
}

/// Running sweeps in their order, and finished ones.
#[derive(Debug, Default)]
pub(crate) struct Revalidator {
    running: VecDeque<Running>,
    finished: Vec<SweepResult>,
}

impl Revalidator {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(crate) fn begin(&mut self, ticket: u64, sweep: FlowSweep) {
        let finished = SweepResult {
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
                from: Place::default(),
                finished,
            }),
        }
    }

    /// Returns the sweeps that finished since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<SweepResult> {
        std::mem::take(&mut self.finished)
    }

    /// Runs a part of the first sweep.
    pub(crate) fn run(&mut self, tables: &mut Tables<'_>, program: &Program, now: u64) {
        let Some(mut running) = self.running.pop_front() else {
            return;
        };
        let (from, effort) = (running.from, &mut Effort::default());
        let rest = tables.walk(from, effort, |flows, at, effort| {
            running.visit(flows, at, effort, (program, now))
        });
        match rest {
            None => self.finished.push(running.finished),
            Some(from) => {
                running.from = from;
                self.running.push_front(running);
            }
        }
    }
}

impl Running {
    /// Runs a part of the sweep over the flows of one table, from a position on.
    fn visit(
        &mut self,
        flows: &mut FlowTable,
        at: usize,
        effort: &mut Effort,
        (program, now): (&Program, u64),
    ) -> Progress {
        match &self.sweep {
            FlowSweep::Stations { within_ms } => {
                // Without frames, idle flows expire only here.
                let expired = flows.expire_some(now, FLOW_IDLE_MS, FLOWS_PER_PART);
                effort.charge(expired * CHANGE);
                let found = &mut self.finished.stations;
                flows.stations_in_use(at, now, *within_ms, effort, |used| note_uses(found, [used]))
            }
            FlowSweep::TopFlows(_) => match &mut self.finished.busiest {
                Some(busiest) => flows.dump_top(at, now, busiest, effort),
                None => Progress::Done,
            },
            FlowSweep::Check(known) => flows.check(at, program, &**known, effort),
            FlowSweep::CountRules => {
                let progress = flows.count_rules(at, effort);
                if progress == Progress::Done {
                    self.finished.rules.extend(flows.rules.take(now));
                }
                progress
            }
            FlowSweep::Settle => Progress::Done,
        }
    }
}

/// Adds uses of stations: the latest of each, and [`MAX_STATIONS`] at most.
pub(crate) fn note_uses(
    all: &mut HashMap<Station, StationUse>,
    uses: impl IntoIterator<Item = StationUse>,
) {
    for used in uses {
        if all.len() < MAX_STATIONS || all.contains_key(&used.station) {
            let known = all.entry(used.station).or_insert(used);
            known.held |= used.held;
            known.idle_ms = known.idle_ms.min(used.idle_ms);
        }
    }
}
