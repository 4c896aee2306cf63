//! Commands that take workers a while: each worker executes them in parts between batches, and the
//! session thread serves others meanwhile. A command is done when every worker has finished.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use channel::rules::RuleUse;
use channel::switching::{Station, StationUse, SwitchEvent};
use policy::acl::RuleId;
use policy::port_security::Bindings;
use policy::{MAX_SEGMENTS, Outdated, Program, SegmentId};
use port::PortId;

use super::Process;
use super::flows::MergedFlows;
use crate::forward::revalidator::{Finished, FlowSweep, Known, note_uses};

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
    stations: HashMap<Station, u32>,
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
}

impl Process {
    /// Finds the learned stations whose flows were used within this time, and reports each once.
    pub(super) fn sweep_stations(&mut self, number: u64, within_ms: u32) -> Progress {
        self.begin(number, None, FlowSweep::Stations { within_ms })
    }

    /// Reports the counters of rules and resets them.
    pub(super) fn count_rules(&mut self, number: u64) -> Progress {
        self.begin(number, None, FlowSweep::CountRules)
    }

    /// Removes the flows that would be decided differently with these stations and bindings.
    pub(super) fn check_flows(
        &mut self,
        number: u64,
        stations: &[Station],
        bound: &[(PortId, Bindings)],
    ) -> Progress {
        let known = Arc::new(Known::new(stations, bound));
        self.begin(number, None, FlowSweep::Check(known))
    }

    /// Removes a port from all workers, with all flows from and to it.
    pub(super) fn remove_from_workers(&mut self, number: u64, id: PortId) -> Progress {
        self.workers.each(move |w| {
            let now = w.now();
            w.switch.remove_port(id, now);
        });
        self.begin(number, Some(id), FlowSweep::Settle)
    }

    /// Sends a program to all workers, and removes the flows that it may decide differently.
    pub(super) fn change_program(
        &mut self,
        number: u64,
        program: Program,
        outdated: Option<Outdated>,
    ) -> Progress {
        let outdated = outdated.unwrap_or_else(|| self.all_with_access_lists(&program));
        let forgets = !outdated.is_empty();
        self.workers.each(move |w| {
            let now = w.now();
            w.switch
                .change_program(program.clone(), outdated.clone(), now);
        });
        self.restore_connections();
        if forgets {
            self.begin(number, None, FlowSweep::Settle)
        } else {
            Progress::Done
        }
    }

    /// Returns all ports and segments, if the old or the new program has access lists.
    fn all_with_access_lists(&self, program: &Program) -> Outdated {
        let asked = self
            .workers
            .first(|w| w.switch.program().filters_anywhere());
        if asked || program.filters_anywhere() {
            Outdated {
                ports: self.ports.keys().copied().collect(),
                segments: (0..MAX_SEGMENTS as u16).map(SegmentId).collect(),
            }
        } else {
            Outdated::default()
        }
    }

    pub(super) fn begin(
        &mut self,
        number: u64,
        leaving: Option<PortId>,
        sweep: FlowSweep,
    ) -> Progress {
        let PendingSweeps { last_ticket, open } = &mut self.sweeps;
        *last_ticket += 1;
        let ticket = *last_ticket;
        let pending = PendingSweep {
            number: Some(number),
            leaving,
            left: self.workers.threads(),
            stations: HashMap::new(),
            flows: match &sweep {
                FlowSweep::TopFlows(desired) => Some(MergedFlows::new(*desired)),
                _ => None,
            },
            rules: HashMap::new(),
        };
        open.insert(ticket, pending);
        self.workers
            .post_each(move |w| w.switch.begin(ticket, sweep.clone()));
        Progress::Started
    }

    /// Merges the result of one worker. The last one completes the command.
    pub(super) fn sweep_finished(&mut self, finished: Finished) {
        let Finished {
            ticket,
            stations,
            busiest,
            rules,
        } = finished;
        let Some(open) = self.sweeps.open.get_mut(&ticket) else {
            return;
        };
        let uses = stations.into_iter();
        let uses = uses.map(|(station, idle_ms)| StationUse { station, idle_ms });
        note_uses(&mut open.stations, uses);
        if let (Some(flows), Some(busiest)) = (&mut open.flows, busiest) {
            flows.add(busiest);
        }
        for uses in rules {
            let all = open.rules.entry(uses.rule);
            all.and_modify(|all| all.add(&uses)).or_insert(uses);
        }
        open.left -= 1;
        if open.left > 0 {
            return;
        }
        let done = self.sweeps.open.remove(&ticket);
        if let Some(open) = done
            && let Some(number) = open.number
        {
            self.report_stations(open.stations);
            self.report_flows(number, open.flows);
            self.report_rules(open.rules);
            self.done(number, None);
        }
    }

    fn report_stations(&mut self, stations: HashMap<Station, u32>) {
        let uses = stations.into_iter();
        let uses: Vec<_> = uses
            .map(|(station, idle_ms)| StationUse { station, idle_ms })
            .collect();
        for some in uses.chunks(STATIONS_PER_REPORT) {
            self.report(&SwitchEvent::Stations(some.to_vec()), &[]);
        }
    }

    fn report_rules(&mut self, rules: HashMap<RuleId, RuleUse>) {
        let uses: Vec<_> = rules.into_values().collect();
        for some in uses.chunks(RULES_PER_REPORT) {
            self.report(&SwitchEvent::Rules(some.to_vec()), &[]);
        }
    }
}
