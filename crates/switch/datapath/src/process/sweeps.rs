//! Commands that take workers a while: each worker executes them in parts between batches, and the
//! session thread serves others meanwhile. A command is done when every worker has finished.

use std::collections::{BTreeMap, HashMap};

use ipc::rules::RuleUse;
use ipc::switching::{Station, StationUse, SwitchEvent};
use policy::acl::RuleId;
use port::PortId;

use super::flows::{self, MergedFlows};
use crate::forward::revalidator::{FlowSweep, SweepResult, note_uses};
use crate::worker::workers::Workers;

/// Stations in one message.
const STATIONS_PER_REPORT: usize = 4096;
/// Rules in one message.
const RULES_PER_REPORT: usize = 4096;

/// The progress of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Done,
    /// Workers execute it, and report the end.
    Started,
}

/// A sweep that is not done yet.
#[derive(Debug)]
struct PendingSweep {
    /// The number of the command, while the control process that sent it is connected.
    number: Option<u64>,
    /// The port that is being removed.
    leaving: Option<PortId>,
    /// Workers that are not done.
    left: usize,
    stations: HashMap<Station, StationUse>,
    flows: Option<MergedFlows>,
    rules: HashMap<RuleId, RuleUse>,
}

/// All sweeps that are not done yet.
#[derive(Debug, Default)]
pub(super) struct PendingSweeps {
    last_ticket: u64,
    open: BTreeMap<u64, PendingSweep>,
}

impl PendingSweeps {
    /// Drops the command numbers: control is disconnected.
    pub(super) fn control_disconnected(&mut self) {
        for open in self.open.values_mut() {
            open.number = None;
        }
    }

    /// Returns whether flows from or to a removed port of this number may still be cached.
    pub(super) fn is_leaving(&self, port: PortId) -> bool {
        self.open.values().any(|open| open.leaving == Some(port))
    }

    /// Starts a sweep on all workers. `leaving`: the port that is being removed.
    pub(super) fn begin(
        &mut self,
        number: u64,
        leaving: Option<PortId>,
        sweep: FlowSweep,
        workers: &Workers,
    ) -> Progress {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let pending = PendingSweep {
            number: Some(number),
            leaving,
            left: workers.count(),
            stations: HashMap::new(),
            flows: match &sweep {
                FlowSweep::TopFlows(desired) => Some(MergedFlows::new(*desired)),
                _ => None,
            },
            rules: HashMap::new(),
        };
        self.open.insert(ticket, pending);
        workers.post_each(move |w| w.switch.begin(ticket, sweep.clone()));
        Progress::Started
    }

    /// Merges the result of one worker. The last one completes the command: returns its number and
    /// the reports to control.
    pub(super) fn merge(&mut self, finished: SweepResult) -> Option<(u64, Vec<SwitchEvent>)> {
        let open = self.open.get_mut(&finished.ticket)?;
        note_uses(&mut open.stations, finished.stations.into_values());
        if let (Some(flows), Some(busiest)) = (&mut open.flows, finished.busiest) {
            flows.add(busiest);
        }
        for uses in finished.rules {
            let all = open.rules.entry(uses.rule);
            all.and_modify(|all| all.add(&uses)).or_insert(uses);
        }
        open.left -= 1;
        if open.left > 0 {
            return None;
        }
        let open = self.open.remove(&finished.ticket)?;
        let number = open.number?;
        Some((number, open.reports(number)))
    }
}

impl PendingSweep {
    fn reports(self, number: u64) -> Vec<SwitchEvent> {
        let uses: Vec<_> = self.stations.into_values().collect();
        let stations = uses.chunks(STATIONS_PER_REPORT);
        let stations = stations.map(|some| SwitchEvent::Stations(some.to_vec()));
        let rules: Vec<_> = self.rules.into_values().collect();
        let rules = rules.chunks(RULES_PER_REPORT);
        let rules = rules.map(|some| SwitchEvent::Rules(some.to_vec()));
        let flows = flows::reports(number, self.flows);
        stations.chain(flows).chain(rules).collect()
    }
}
