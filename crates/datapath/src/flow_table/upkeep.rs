//! What is done to flows beside the way of frames: they expire, are forgotten by rule, are checked, and tell which
//! stations use them.
//!
//! Each call ends when its [`Effort`] is spent, because frames wait meanwhile. A walk starts at place 0 and goes on
//! where the call before says. A flow that stays is met once, one that comes meanwhile perhaps.

use channel::switching::{Station, StationUse};
use policy::{Action, Decision, LeftOut, Lookup, Outdated, PortId, Program, SegmentId, decide};
use wire::MacAddr;

use super::FlowTable;
use super::effort::{CHANGE, Effort, LOOK, SEEK};
use super::flows::Flow;
use super::stations::{Side, station};

/// How far [`FlowTable::forget_station`] or a walk came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There is nothing left to do.
    Done,
    /// There is; the place to go on from.
    GoOn(usize),
}

impl FlowTable {
    /// Has a look at flows from a place on, as far as the effort goes; `each` says what it has cost.
    pub(super) fn walk(
        &mut self,
        mut at: usize,
        effort: &mut Effort,
        mut each: impl FnMut(&mut Self, u32) -> usize,
    ) -> Progress {
        while let Some(slot) = self.flows.next(at) {
            if effort.is_spent() {
                return Progress::GoOn(slot);
            }
            effort.charge(each(self, slot as u32));
            at = slot + 1;
        }
        Progress::Done
    }

    /// Forgets flows from a station and to it. Others are looked at only where they share a list with them. Where
    /// there are more, it is to be called again before a flow is installed that is to stay.
    pub fn forget_station(
        &mut self,
        segment: SegmentId,
        mac: MacAddr,
        at: usize,
        effort: &mut Effort,
    ) -> Progress {
        let wanted = (segment, mac);
        let (mut side, mut next) = self.resume(wanted, at);
        loop {
            while let Some(slot) = next {
                if effort.is_spent() {
                    return Progress::GoOn(place(side, slot));
                }
                next = self.stations.after(slot, side);
                let flow = self.flows.get(slot);
                let its = flow.is_some_and(|flow| station(flow, side) == Some(wanted));
                effort.charge(if its { CHANGE } else { SEEK });
                if its {
                    self.forget(slot);
                }
            }
            if side == Side::From {
                return Progress::Done;
            }
            side = Side::From;
            next = self.stations.first(wanted, side);
        }
    }

    /// Where to go on in a station's lists. If the flow there has gone meanwhile, the list begins again.
    fn resume(&self, wanted: (SegmentId, MacAddr), at: usize) -> (Side, Option<u32>) {
        let Some((side, slot)) = side_and_slot(at) else {
            return (Side::To, self.stations.first(wanted, Side::To));
        };
        let flow = self.flows.get(slot).filter(|flow| !flow.is_free());
        let there = flow
            .and_then(|flow| station(flow, side))
            .filter(|there| self.stations.share_a_list(*there, wanted));
        let next = match there {
            Some(_) => Some(slot),
            None => self.stations.first(wanted, side),
        };
        (side, next)
    }

    /// Forgets the flows from and to ports, and those in segments that go to several ports or to nobody.
    pub fn forget_outdated(
        &mut self,
        outdated: &Outdated,
        at: usize,
        effort: &mut Effort,
    ) -> Progress {
        let Outdated { ports, segments } = outdated;
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

    /// Forgets those of the next `flows` flows that were not used for more than `limit` milliseconds; how many.
    /// Each call goes on where the one before stopped, and from the end to the start. It also gives the exact-match level room, if
    /// that has too little.
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

    /// Tells the learned stations from which flows were used within so many milliseconds; one may be told several
    /// times.
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

    /// Forgets the flows that would be decided otherwise now, and those of which that cannot be said: what access lists deny. Whom
    /// they leave out is not looked at.
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
}

/// Whether an action is what was decided without access lists, as far as these leave it as it is.
fn is_right(program: &Program, right: &Decision, action: Action) -> bool {
    let asked = right.segment.is_some_and(|segment| program.asks(segment));
    match asked {
        true => action.leaving_out(LeftOut::NOBODY) == right.action,
        false => action == right.action,
    }
}

/// A place in the lists of a station; never 0, which is the start.
fn place(side: Side, slot: u32) -> usize {
    1 + 2 * slot as usize + side as usize
}

/// What such a place stands for.
fn side_and_slot(place: usize) -> Option<(Side, u32)> {
    let place = place.checked_sub(1)?;
    let side = if place % 2 == Side::From as usize {
        Side::From
    } else {
        Side::To
    };
    Some((side, (place / 2) as u32))
}

/// That a flow's source uses it, where control has learned that.
fn in_use(flow: &Flow, now: u64) -> Option<StationUse> {
    let (segment, mac) = station(flow, Side::From).filter(|_| flow.learned)?;
    let station = Station {
        segment,
        mac: mac.0,
        port: PortId(flow.in_port()),
    };
    let idle_ms = flow.idle(now);
    Some(StationUse { station, idle_ms })
}
