//! Limits, users and counters of ports.

use std::collections::BTreeMap;

use channel::figures::{QueueCounts, WorkerFigures};
use channel::limits::Limits;
use channel::switching::SwitchFigures;
use port::{DropReason, PortId};

use super::Process;
use crate::forward::limits::PortLimits;
use crate::worker::Worker;

/// Counters of all queues.
type Counts = BTreeMap<PortId, BTreeMap<u16, QueueCounts>>;

/// Counters of one worker.
struct Counted {
    switch: SwitchFigures,
    own: WorkerFigures,
    /// Drops of the queues of all ports, by reason.
    drops: Vec<(PortId, u16, DropReason, u64)>,
}

impl Counted {
    fn by(worker: &mut Worker, ports: &[PortId]) -> Self {
        let mut drops = Vec::new();
        for id in ports {
            if let Some(port) = worker.switch.port_mut(*id) {
                let of_port = port.drops();
                drops.extend(of_port.map(|(queue, reason, frames)| (*id, queue, reason, frames)));
            }
        }
        Self {
            switch: worker.switch.figures(),
            own: WorkerFigures {
                helps: false,
                busy_ticks: worker.switch.busy(),
                // A job runs in the worker's thread.
                cpu_ns: sys::time::of_thread().as_nanos() as u64,
            },
            drops,
        }
    }
}

fn add(drops: &mut Vec<(DropReason, u64)>, reason: DropReason, frames: u64) {
    match drops.iter_mut().find(|(of, _)| *of == reason) {
        Some((_, all)) => *all += frames,
        None => drops.push((reason, frames)),
    }
}

impl Process {
    /// Returns the limits of all ports that have any.
    pub(super) fn limits(&self) -> Vec<(PortId, Limits)> {
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        self.workers.first(move |w| {
            let limits = |id| (id, w.switch.limits(id));
            let all = ports.into_iter().map(limits);
            all.filter(|(_, limits)| !limits.is_nothing()).collect()
        })
    }

    /// Returns the counters of the whole switch, of each worker with helpers last, and of each
    /// queue.
    pub(super) fn count_all(&self) -> (SwitchFigures, Vec<WorkerFigures>, Counts) {
        let (helpers, helper_frames) = self.workers.help();
        let mut figures = SwitchFigures {
            workers: self.workers.count() as u16,
            helpers,
            helper_frames,
            ..SwitchFigures::default()
        };
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        let mut counts = self.queue_counts(ports.clone());
        let mut workers = Vec::new();
        for counted in self.workers.each(move |w| Counted::by(w, &ports)) {
            figures.add(&counted.switch);
            workers.push(WorkerFigures {
                helps: workers.len() >= self.workers.count(),
                ..counted.own
            });
            for (port, queue, reason, frames) in counted.drops {
                let of_port = counts.get_mut(&port);
                if let Some(of) = of_port.and_then(|queues| queues.get_mut(&queue)) {
                    add(&mut of.drops, reason, frames);
                }
            }
        }
        (figures, workers, counts)
    }

    /// Returns the counters of all queues without drops, which each worker counts itself.
    fn queue_counts(&self, ports: Vec<PortId>) -> Counts {
        self.workers.first(move |w| {
            let mut counts = |id| {
                let port = w.switch.port_mut(id)?;
                Some((id, port.counts().into_iter().collect()))
            };
            ports.into_iter().filter_map(&mut counts).collect()
        })
    }

    /// Sets the only user who may connect to a port, or removes the restriction. The port may not
    /// exist yet. A connection of another user is ended.
    pub(super) fn set_peer(&mut self, id: PortId, user: Option<u32>) -> Result<(), String> {
        if id.0 as usize >= port::counters::MAX_PORTS {
            return Err("no such port".into());
        }
        match user {
            Some(user) => self.peers.insert(id, user),
            None => self.peers.remove(&id),
        };
        self.disconnect_other_user(id);
        self.report_phase(id);
        Ok(())
    }

    /// Sets a port's limits, which its workers share. Equal limits keep their state.
    pub(super) fn set_limits(&mut self, id: PortId, limits: Limits) -> Result<(), String> {
        if !self.ports.contains_key(&id) {
            return Err("no such port".into());
        }
        if self.workers.first(move |w| w.switch.limits(id)) == limits {
            return Ok(());
        }
        let shared = PortLimits::new(limits);
        self.workers.each(move |w| w.set_limits(id, shared.clone()));
        Ok(())
    }
}
