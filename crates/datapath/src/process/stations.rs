//! What control asks about flows and has done to them: stations in use, a check of all decisions, a port's end.
//!
//! All of it goes through the workers' tables in pieces, between which frames flow.

use std::collections::HashMap;
use std::sync::Arc;

use channel::switching::{MAX_STATIONS, Report, Station, StationUse};
use policy::{Lookup, SegmentId};
use port::PortId;
use wire::MacAddr;

use super::Process;
use crate::flow_table::Progress;
use crate::worker::Worker;
use crate::workers::Workers;

/// Stations in one message.
const STATIONS_PER_REPORT: usize = 4096;

/// What control knows, for [`policy::decide`].
struct Known(HashMap<(SegmentId, MacAddr), PortId>);

impl Lookup for Known {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.0.get(&(segment, mac)).copied()
    }

    /// Control takes back itself what it allows again. A control that is new bars nobody.
    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }
}

/// Does a job with every piece of every worker's flow table.
fn walk(workers: &Workers, mut job: impl FnMut(&Workers, usize, usize) -> Progress) {
    for worker in 0..workers.count() {
        let mut at = 0;
        while let Progress::GoOn(next) = job(workers, worker, at) {
            at = next;
        }
    }
}

impl Process {
    /// Tells the learned stations from which flows were used within so many milliseconds, each once.
    pub(super) fn report_stations(&mut self, within_ms: u32) {
        let mut all: HashMap<Station, u32> = HashMap::new();
        walk(&self.workers, |workers, worker, at| {
            let job = move |w: &mut Worker| w.switch.stations_in_use(at, w.now(), within_ms);
            let (some, progress) = workers.on(worker, job);
            for StationUse { station, idle_ms } in some {
                if all.len() < MAX_STATIONS || all.contains_key(&station) {
                    let idle = all.entry(station).or_insert(idle_ms);
                    *idle = idle_ms.min(*idle);
                }
            }
            progress
        });
        let uses = all.into_iter();
        let uses: Vec<_> = uses
            .map(|(station, idle_ms)| StationUse { station, idle_ms })
            .collect();
        for some in uses.chunks(STATIONS_PER_REPORT) {
            self.report(&Report::Stations(some.to_vec()), &[]);
        }
    }

    /// Forgets the flows that would be decided otherwise with these stations.
    pub(super) fn check_flows(&self, stations: Vec<Station>) {
        let known = stations.into_iter();
        let known = known.map(|s| ((s.segment, MacAddr(s.mac)), s.port));
        let known = Arc::new(Known(known.collect()));
        walk(&self.workers, |workers, worker, at| {
            let known = Arc::clone(&known);
            workers.on(worker, move |w| w.switch.check_flows(at, &*known))
        });
    }

    /// Takes a port out of all workers, with all flows from and to it.
    pub(super) fn take_out(&self, id: PortId) {
        self.workers.each(move |w| {
            let now = w.now();
            w.switch.remove_port(id, now);
        });
        while self.workers.each(|w| w.switch.has_to_do()).contains(&true) {}
    }
}
