//! What goes through all flows of a switch and holds nothing up: neither frames nor control's answers.
//!
//! An errand begins when everything that was to be done before it is done, and goes on a piece at a time beside
//! what comes later.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use channel::flows::FlowsWanted;
use channel::rules::RuleUse;
use channel::switching::{MAX_STATIONS, Station, StationUse};
use policy::guard::Bound;
use policy::{Lookup, SegmentId};
use port::{Port, PortId};
use wire::MacAddr;

use crate::flow_table::{Busiest, Effort, Progress};
use crate::switch::Switch;

/// What control knows, for [`policy::decide`].
#[derive(Debug)]
pub struct Known {
    stations: HashMap<(SegmentId, MacAddr), PortId>,
    bound: HashMap<PortId, Bound>,
}

impl Known {
    /// These stations and no others, and what is bound at ports.
    #[must_use]
    pub fn new(stations: &[Station], bound: &[(PortId, Bound)]) -> Self {
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

    /// Control takes back itself what it allows again. A control that is new bars nobody.
    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }

    fn bound(&self, port: PortId) -> Bound {
        self.bound.get(&port).copied().unwrap_or_default()
    }
}

/// Something to be done with all flows.
#[derive(Clone, Debug)]
pub enum Errand {
    /// Find the learned stations from which flows were used within so many milliseconds.
    Stations {
        /// The time.
        within_ms: u32,
    },
    /// Find the busiest flows, and count all.
    Busiest(FlowsWanted),
    /// Forget the flows that would be decided otherwise with what control knows.
    Check(Arc<Known>),
    /// Count flows for the rules that decided about them.
    CountRules,
    /// Nothing: only what was to be done before.
    Settle,
}

/// An errand that is done.
#[derive(Debug)]
pub struct Finished {
    /// Its number, chosen by whoever asked for it.
    pub ticket: u64,
    /// What was found: each station once.
    pub stations: HashMap<Station, u32>,
    /// The busiest flows, if they were asked for.
    pub busiest: Option<Busiest>,
    /// What was counted for rules, if that was asked.
    pub rules: Vec<RuleUse>,
}

#[derive(Debug)]
struct Running {
    errand: Errand,
    at: usize,
    finished: Finished,
}

/// Errands that run, in their order, and those that are done.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    running: VecDeque<Running>,
    finished: Vec<Finished>,
}

impl Errands {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(crate) fn begin(&mut self, ticket: u64, errand: Errand) {
        let finished = Finished {
            ticket,
            stations: HashMap::new(),
            busiest: match &errand {
                Errand::Busiest(wanted) => Some(Busiest::new(*wanted)),
                _ => None,
            },
            rules: Vec::new(),
        };
        match errand {
            Errand::Settle => self.finished.push(finished),
            errand => self.running.push_back(Running {
                errand,
                at: 0,
                finished,
            }),
        }
    }
}

/// Notes uses of stations: the latest of each, and [`MAX_STATIONS`] at most.
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

impl<P: Port> Switch<P> {
    /// Errands that were done since the last call.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.to_do.errands.finished)
    }

    /// Does a piece of the errand whose turn it is.
    pub(crate) fn run_errand(&mut self, now: u64) {
        let Some(mut running) = self.to_do.errands.running.pop_front() else {
            return;
        };
        let (at, effort) = (running.at, &mut Effort::default());
        let progress = match &running.errand {
            Errand::Stations { within_ms } => {
                let found = &mut running.finished.stations;
                let each = |used| note_uses(found, [used]);
                self.stations_in_use(at, now, *within_ms, effort, each)
            }
            Errand::Busiest(_) => match &mut running.finished.busiest {
                Some(busiest) => self.flows.count_busiest(at, now, busiest, effort),
                None => Progress::Done,
            },
            Errand::Check(known) => self.check_flows(at, &**known, effort),
            Errand::CountRules => self.flows.count_rules(at, effort),
            Errand::Settle => Progress::Done,
        };
        if let (Errand::CountRules, Progress::Done) = (&running.errand, progress) {
            running.finished.rules = self.flows.rules.take(now);
        }
        match progress {
            Progress::Done => self.to_do.errands.finished.push(running.finished),
            Progress::GoOn(next) => {
                running.at = next;
                self.to_do.errands.running.push_front(running);
            }
        }
    }
}
