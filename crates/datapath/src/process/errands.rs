//! Orders that take workers a while: all follow them side by side, a piece at a time, and this thread serves others
//! meanwhile. The order is done when every worker has said so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use channel::rules::RuleUse;
use channel::switching::{Report, Station, StationUse};
use policy::acl::RuleId;
use policy::guard::Bound;
use policy::{MAX_SEGMENTS, Outdated, Program, SegmentId};
use port::PortId;

use super::Process;
use super::flows::Together;
use crate::errand::{Errand, Finished, Known, note_uses};

/// Stations in one message.
const STATIONS_PER_REPORT: usize = 4096;
/// Rules in one message.
const RULES_PER_REPORT: usize = 4096;

/// How far following an order has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Done,
    /// Workers do it; they will say when it is done.
    Begun,
}

/// An order that is not done yet.
#[derive(Debug)]
struct Open {
    /// The order's number, while the control that gave it is there.
    number: Option<u64>,
    /// The port that goes away.
    leaving: Option<PortId>,
    /// Workers that are not done.
    left: usize,
    stations: HashMap<Station, u32>,
    flows: Option<Together>,
    rules: HashMap<RuleId, RuleUse>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct OpenErrands {
    last_ticket: u64,
    open: BTreeMap<u64, Open>,
}

impl OpenErrands {
    /// Nobody waits for their end any more.
    pub(super) fn control_is_gone(&mut self) {
        for open in self.open.values_mut() {
            open.number = None;
        }
    }

    /// Whether there may still be flows from or to a port of this number that was removed.
    pub(super) fn is_leaving(&self, port: PortId) -> bool {
        self.open.values().any(|open| open.leaving == Some(port))
    }
}

impl Process {
    /// Finds the learned stations from which flows were used within so many milliseconds, and tells each once.
    pub(super) fn find_stations(&mut self, number: u64, within_ms: u32) -> Progress {
        self.begin(number, None, Errand::Stations { within_ms })
    }

    /// Tells what was counted for rules, and begins anew.
    pub(super) fn count_rules(&mut self, number: u64) -> Progress {
        self.begin(number, None, Errand::CountRules)
    }

    /// Forgets the flows that would be decided otherwise with these stations, and this bound at ports.
    pub(super) fn check_flows(
        &mut self,
        number: u64,
        stations: &[Station],
        bound: &[(PortId, Bound)],
    ) -> Progress {
        let known = Arc::new(Known::new(stations, bound));
        self.begin(number, None, Errand::Check(known))
    }

    /// Takes a port out of all workers, with all flows from and to it.
    pub(super) fn take_out(&mut self, number: u64, id: PortId) -> Progress {
        self.workers.each(move |w| {
            let now = w.now();
            w.switch.remove_port(id, now);
        });
        self.begin(number, Some(id), Errand::Settle)
    }

    /// Gives all workers a program, and has them forget the flows that it may decide otherwise.
    pub(super) fn change_program(
        &mut self,
        number: u64,
        program: Program,
        outdated: Option<Outdated>,
    ) -> Progress {
        let outdated = outdated.unwrap_or_else(|| self.all_if_asked(&program));
        let forgets = !outdated.is_empty();
        self.workers.each(move |w| {
            let now = w.now();
            w.switch
                .change_program(program.clone(), outdated.clone(), now);
        });
        self.go_on();
        match forgets {
            true => self.begin(number, None, Errand::Settle),
            false => Progress::Done,
        }
    }

    /// Everything, if access lists were or are asked about anything.
    fn all_if_asked(&self, program: &Program) -> Outdated {
        let asked = self.workers.first(|w| w.switch.program().asks_anywhere());
        match asked || program.asks_anywhere() {
            true => Outdated {
                ports: self.ports.keys().copied().collect(),
                segments: (0..MAX_SEGMENTS as u16).map(SegmentId).collect(),
            },
            false => Outdated::default(),
        }
    }

    pub(super) fn begin(
        &mut self,
        number: u64,
        leaving: Option<PortId>,
        errand: Errand,
    ) -> Progress {
        let OpenErrands { last_ticket, open } = &mut self.errands;
        *last_ticket += 1;
        let ticket = *last_ticket;
        let order = Open {
            number: Some(number),
            leaving,
            left: self.workers.threads(),
            stations: HashMap::new(),
            flows: match &errand {
                Errand::Busiest(wanted) => Some(Together::new(*wanted)),
                _ => None,
            },
            rules: HashMap::new(),
        };
        open.insert(ticket, order);
        self.workers
            .post_each(move |w| w.switch.begin(ticket, errand.clone()));
        Progress::Begun
    }

    /// A worker is done with an errand.
    pub(super) fn errand_finished(&mut self, finished: Finished) {
        let Finished {
            ticket,
            stations,
            busiest,
            rules,
        } = finished;
        let Some(open) = self.errands.open.get_mut(&ticket) else {
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
        let done = self.errands.open.remove(&ticket);
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
            self.report(&Report::Stations(some.to_vec()), &[]);
        }
    }

    fn report_rules(&mut self, rules: HashMap<RuleId, RuleUse>) {
        let uses: Vec<_> = rules.into_values().collect();
        for some in uses.chunks(RULES_PER_REPORT) {
            self.report(&Report::Rules(some.to_vec()), &[]);
        }
    }
}
