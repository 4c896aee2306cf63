//! Maintenance of flows outside of forwarding: expiry, removal, checks, stations in use, counts of
//! rules.
//!
//! Each call ends when its [`Effort`] is spent, because frames wait meanwhile. A walk starts at
//! position 0 and continues at the position that the previous call returned. It visits a flow that
//! stays once; it may miss a new one.

use ipc::records::SourceRole;
use ipc::switching::{Station, StationUse};
use policy::acl::RuleId;
use policy::{
    Action, Decision, ExcludeSetId, Lookup, OutdatedFlows, PortId, Program, SegmentId, decide,
};
use wire::MacAddr;

use super::effort::{CHANGE, Effort, LOOK, SEEK};
use super::flows::Flow;
use super::stations::{Side, station};
use super::{FlowTable, SETS_TO_SEARCH};

/// Progress of [`FlowTable::forget_station`] or a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The walk is complete.
    Done,
    /// The walk continues at this position.
    ResumeAt(usize),
}

impl FlowTable {
    /// Visits flows from a position on while effort is left; `each` returns its cost.
    pub(super) fn walk(
        &mut self,
        mut at: usize,
        effort: &mut Effort,
        mut each: impl FnMut(&mut Self, u32) -> usize,
    ) -> Progress {
        while let Some(slot) = self.flows.next(at) {
            if effort.is_spent() {
                return Progress::ResumeAt(slot);
            }
            effort.charge(each(self, slot as u32));
            at = slot + 1;
        }
        Progress::Done
    }

    /// Removes flows from a station and to it. Other flows are visited only in shared lists. Unless
    /// the result is `Done`, it has to be called again before the next installation.
    pub fn forget_station(
        &mut self,
        segment: SegmentId,
        mac: MacAddr,
        at: usize,
        effort: &mut Effort,
    ) -> Progress {
        let target = (segment, mac);
        let (mut side, mut next) = self.resume(target, at);
        loop {
            while let Some(slot) = next {
                if effort.is_spent() {
                    return Progress::ResumeAt(place(side, slot));
                }
                next = self.stations.after(slot, side);
                let flow = self.flows.get(slot);
                let its = flow.is_some_and(|flow| station(flow, side) == Some(target));
                effort.charge(if its { CHANGE } else { SEEK });
                if its {
                    self.forget(slot);
                }
            }
            if side == Side::From {
                return Progress::Done;
            }
            side = Side::From;
            next = self.stations.first(target, side);
        }
    }

    /// Returns whether a flow says that a station was learned at a port: a bounded part of its list
    /// is searched.
    #[must_use]
    pub fn is_home(&self, station_of: (SegmentId, MacAddr), port: PortId) -> bool {
        let first = self.stations.first(station_of, Side::From);
        let all = std::iter::successors(first, |slot| self.stations.after(*slot, Side::From));
        all.take(SETS_TO_SEARCH).any(|slot| {
            self.flows.get(slot).is_some_and(|flow| {
                station(flow, Side::From) == Some(station_of)
                    && flow.source() == SourceRole::Holder
                    && flow.in_port() == port.0
            })
        })
    }

    /// Returns the position in a station's lists at which to resume. If the flow there is gone, the
    /// list is walked from its start.
    fn resume(&self, target: (SegmentId, MacAddr), at: usize) -> (Side, Option<u32>) {
        let Some((side, slot)) = side_and_slot(at) else {
            return (Side::To, self.stations.first(target, Side::To));
        };
        let flow = self.flows.get(slot).filter(|flow| !flow.is_free());
        let there = flow
            .and_then(|flow| station(flow, side))
            .filter(|there| self.stations.share_a_list(*there, target));
        let next = match there {
            Some(_) => Some(slot),
            None => self.stations.first(target, side),
        };
        (side, next)
    }

    /// Removes the flows from and to ports, and in segments those that are flooded or dropped.
    pub fn forget_outdated(
        &mut self,
        outdated: &OutdatedFlows,
        at: usize,
        effort: &mut Effort,
    ) -> Progress {
        let OutdatedFlows { ports, segments } = outdated;
        if segments.is_empty() && !ports.iter().any(|port| self.flows.concern(port.0)) {
            return Progress::Done;
        }
        self.walk(at, effort, |table, slot| {
            let is_one = |port| ports.binary_search(&PortId(port)).is_ok();
            let in_one = |segment| segments.binary_search(&segment).is_ok();
            let is_outdated = table.flows.concerns(slot, is_one)
                || table.flows.goes_to_not_one(slot).is_some_and(in_one);
            if !is_outdated {
                return LOOK;
            }
            table.forget(slot);
            CHANGE
        })
    }

    /// Removes those of the next `flows` flows that were idle for more than `limit` milliseconds,
    /// and returns their number. Each call continues where the previous one stopped, cyclically. It
    /// also grows the exact-match level if necessary.
    pub fn expire_some(&mut self, now: u64, limit: u32, flows: usize) -> usize {
        if let Some(exact) = &mut self.exact {
            exact.make_room();
        }
        let before = self.flows.len();
        for _ in 0..flows.min(before) {
            let next = self.flows.next(self.sweep as usize);
            let Some(slot) = next.or_else(|| self.flows.next(0)) else {
                break;
            };
            self.sweep = slot as u32 + 1;
            let flow = self.flows.get(slot as u32);
            if flow.is_some_and(|flow| flow.idle(now) > limit) {
                self.forget(slot as u32);
            }
        }
        before - self.flows.len()
    }

    /// Reports the learned stations from which flows were used within so many milliseconds; one may
    /// be reported several times.
    pub fn stations_in_use(
        &mut self,
        at: usize,
        now: u64,
        within_ms: u32,
        effort: &mut Effort,
        mut each: impl FnMut(StationUse),
    ) -> Progress {
        self.walk(at, effort, |table, slot| {
            let used = table.flows.get(slot).and_then(|flow| in_use(flow, now));
            match used.filter(|used| used.idle_ms <= within_ms) {
                Some(used) => {
                    each(used);
                    SEEK
                }
                None => LOOK,
            }
        })
    }

    /// Removes the flows that would be decided otherwise now, and those that access lists deny, of
    /// which that cannot be determined. Exclude sets are not compared.
    pub fn check(
        &mut self,
        at: usize,
        program: &Program,
        known: &dyn Lookup,
        effort: &mut Effort,
    ) -> Progress {
        self.walk(at, effort, |table, slot| {
            let Some(flow) = table.flows.get(slot) else {
                return LOOK;
            };
            let long = table.tuples[usize::from(flow.tuple)].hash.is_long();
            let right = decide(program, known, &table.flows.key(slot, long));
            if right.segment == flow.segment() && is_right(program, &right, flow.action) {
                return SEEK;
            }
            table.forget(slot);
            SEEK + CHANGE
        })
    }

    /// Returns whether rules decided about any flow, so that bytes have to be counted.
    #[inline]
    pub fn counts_rules(&self) -> bool {
        !self.rules.lists.is_empty()
    }

    /// Returns the number of a list of rules for [`Origin::rules`](super::Origin::rules), until
    /// [`FlowTable::release_rules`]: see [`FlowTable::first_rule`] for its order. Returns 0, which
    /// is not counted, when there are too many lists.
    pub fn intern_rules(&mut self, rules: Vec<RuleId>) -> u16 {
        self.rules.lists.intern_in_order(rules).unwrap_or(0)
    }

    /// Releases a list of [`FlowTable::intern_rules`].
    pub fn release_rules(&mut self, rules: u16) {
        self.rules.lists.decref(rules);
    }

    /// Returns the [number](policy::acl::RuleId::number) of the first rule of a list; zero without
    /// one.
    #[must_use]
    pub fn first_rule(&self, rules: u16) -> u32 {
        let first = self.rules.lists.get(rules).first();
        first.map_or(0, |rule| rule.number())
    }

    /// Counts frames that had no flow.
    pub fn count_unflowed(&mut self, rules: u16, packets: u64, bytes: u64, now: u64) {
        if packets > 0 {
            self.rules.count(rules, packets, bytes, now as u32);
        }
    }

    /// Adds a flow's new frames to its rules. Returns the cost.
    pub(super) fn count_for_rules(&mut self, slot: u32) -> usize {
        let Some(flow) = self.flows.get(slot).filter(|flow| !flow.is_free()) else {
            return LOOK;
        };
        let (rules, packets, bytes) = (flow.ruled.rules(), flow.packets, flow.ruled.bytes());
        let (used, new) = (flow.used, packets - self.flows.past(slot).ruled);
        if rules == 0 || new == 0 {
            return LOOK;
        }
        self.rules.count(rules, new, bytes, used);
        self.flows.ruled(slot);
        SEEK * (1 + self.rules.lists.get(rules).len())
    }

    /// Adds the new frames of all flows to their rules, in parts.
    pub fn count_rules(&mut self, at: usize, effort: &mut Effort) -> Progress {
        if !self.counts_rules() {
            return Progress::Done;
        }
        self.walk(at, effort, Self::count_for_rules)
    }
}

/// Returns whether an action equals the decision without access lists, except for their exclude
/// set.
fn is_right(program: &Program, right: &Decision, action: Action) -> bool {
    let has_lists = right
        .segment
        .is_some_and(|segment| program.filters(segment));
    if has_lists {
        action.excluding(ExcludeSetId::NONE) == right.action
    } else {
        action == right.action
    }
}

/// Returns a position in the lists of a station; never 0, which is the start.
fn place(side: Side, slot: u32) -> usize {
    1 + 2 * slot as usize + side as usize
}

/// Returns the side and slot of such a position.
fn side_and_slot(place: usize) -> Option<(Side, u32)> {
    let place = place.checked_sub(1)?;
    let side = if place % 2 == Side::From as usize {
        Side::From
    } else {
        Side::To
    };
    Some((side, (place / 2) as u32))
}

/// Returns the use of a flow's source, if control has learned it.
fn in_use(flow: &Flow, now: u64) -> Option<StationUse> {
    let held = match flow.source() {
        SourceRole::Unlearned => return None,
        SourceRole::Holder => true,
        SourceRole::Rival => false,
    };
    let (segment, mac) = station(flow, Side::From)?;
    let station = Station {
        segment,
        mac: mac.0,
        port: PortId(flow.in_port()),
    };
    let idle_ms = flow.idle(now);
    Some(StationUse {
        station,
        held,
        idle_ms,
    })
}
