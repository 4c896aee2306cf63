//! What is done to flows beside the way of frames: they expire, are forgotten by rule, are checked, and tell which
//! stations use them.
//!
//! Each call looks at, or forgets, a bounded number of flows, because frames wait meanwhile. Places are slots: a
//! walk over all flows starts at 0 and goes on where the call before says. A flow that stays is met once.

use channel::switching::{Station, StationUse};
use policy::{Lookup, PortId, Program, SegmentId, decide};
use wire::MacAddr;

use super::FlowTable;
use super::flows::Flow;
use super::stations::{Side, station};

/// Slots that are looked at in one call, or flows that are forgotten in it.
pub const PIECE: usize = 1024;

/// How far [`FlowTable::forget_station`] or a walk came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There is nothing left to do.
    Done,
    /// There is; the place to go on from.
    GoOn(usize),
}

impl FlowTable {
    /// Looks at the slots of one piece.
    fn walk(&mut self, at: usize, mut each: impl FnMut(&mut Self, u32)) -> Progress {
        let end = (at + PIECE).min(self.flows.slots());
        for slot in at..end {
            if self.flows.get(slot as u32).is_some_and(|f| !f.is_free()) {
                each(self, slot as u32);
            }
        }
        if end < self.flows.slots() {
            Progress::GoOn(end)
        } else {
            Progress::Done
        }
    }

    /// Forgets flows to a station, with `from` those from it as well; [`PIECE`] of them at most. Others are not
    /// looked at. Where there are more, it is to be called again before a flow is installed that is to stay.
    pub fn forget_station(&mut self, segment: SegmentId, mac: MacAddr, from: bool) -> Progress {
        let mut left = PIECE;
        let sides: &[Side] = if from {
            &[Side::To, Side::From]
        } else {
            &[Side::To]
        };
        for &side in sides {
            let mut next = self.stations.first((segment, mac), side);
            while let Some(slot) = next {
                next = self.stations.after(slot, side);
                let flow = self.flows.get(slot);
                if flow.is_none_or(|flow| station(flow, side) != Some((segment, mac))) {
                    continue;
                }
                if left == 0 {
                    return Progress::GoOn(0);
                }
                left -= 1;
                self.forget(slot);
            }
        }
        Progress::Done
    }

    /// Forgets the flows from and to a port among those of one piece.
    pub fn forget_port(&mut self, port: PortId, at: usize) -> Progress {
        if !self.flows.concern(port.0) {
            return Progress::Done;
        }
        self.walk(at, |table, slot| {
            if table.flows.concerns(slot, port.0) {
                table.forget(slot);
            }
        })
    }

    /// Forgets the flows among the next `slots` that were not used for more than `limit` milliseconds; how
    /// many. Each call goes on where the one before stopped, and from the end to the start.
    pub fn expire_some(&mut self, now: u64, limit: u32, slots: usize) -> usize {
        let before = self.flows.len();
        for _ in 0..slots.min(self.flows.slots()) {
            let slot = self.sweep % self.flows.slots() as u32;
            self.sweep = slot + 1;
            let flow = self.flows.get(slot).filter(|flow| !flow.is_free());
            if flow.is_some_and(|flow| flow.idle(now) > limit) {
                self.forget(slot);
            }
        }
        before - self.flows.len()
    }

    /// The learned stations from which flows of one piece were used within so many milliseconds; one may be
    /// there several times.
    pub fn stations_in_use(
        &mut self,
        at: usize,
        now: u64,
        within_ms: u32,
    ) -> (Vec<StationUse>, Progress) {
        let mut all: Vec<StationUse> = Vec::new();
        let progress = self.walk(at, |table, slot| {
            let used = table.flows.get(slot).and_then(|flow| in_use(flow, now));
            let Some(used) = used.filter(|used| used.idle_ms <= within_ms) else {
                return;
            };
            match all.last_mut() {
                Some(last) if last.station == used.station => {
                    last.idle_ms = last.idle_ms.min(used.idle_ms);
                }
                _ => all.push(used),
            }
        });
        (all, progress)
    }

    /// Forgets the flows of one piece that would be decided otherwise now.
    pub fn check(&mut self, at: usize, program: &Program, known: &dyn Lookup) -> Progress {
        self.walk(at, |table, slot| {
            let Some(flow) = table.flows.get(slot) else {
                return;
            };
            let long = table.tuples[usize::from(flow.tuple)].hash.is_long();
            let right = decide(program, known, &table.flows.key(slot, long));
            if (right.action, right.segment) != (flow.action, flow.segment) {
                table.forget(slot);
            }
        })
    }
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
