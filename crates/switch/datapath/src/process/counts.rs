//! Counters of the switch, its workers and its queues.

use std::collections::BTreeMap;

use ipc::figures::{QueueCounts, WorkerFigures};
use ipc::switching::SwitchFigures;
use port::{DropReason, PortId};

use crate::ports::queue_lock;
use crate::worker::Worker;
use crate::worker::workers::Workers;

/// Counters of all queues.
type Counts = BTreeMap<PortId, BTreeMap<u16, QueueCounts>>;

/// Counters of one worker.
struct WorkerCounts {
    switch: SwitchFigures,
    own: WorkerFigures,
    /// Drops of the queues of all ports, by reason.
    drops: Vec<(PortId, u16, DropReason, u64)>,
}

impl WorkerCounts {
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
                busy_ticks: worker.switch.busy(),
                // A job runs in the worker's thread.
                cpu_ns: sys::time::of_thread().as_nanos() as u64,
                queue_lock_wait_ns: queue_lock::waited().as_nanos() as u64,
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

/// Returns the counters of the whole switch, of each worker, and of each queue.
pub(super) fn count_all(
    all: &Workers,
    ports: Vec<PortId>,
) -> (SwitchFigures, Vec<WorkerFigures>, Counts) {
    let mut figures = SwitchFigures {
        workers: all.count() as u16,
        ..SwitchFigures::default()
    };
    let mut counts = queue_counts(all, ports.clone());
    let mut workers = Vec::new();
    for counted in all.each(move |w| WorkerCounts::by(w, &ports)) {
        figures.add(&counted.switch);
        workers.push(counted.own);
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
fn queue_counts(workers: &Workers, ports: Vec<PortId>) -> Counts {
    workers.first(move |w| {
        let mut counts = |id| {
            let port = w.switch.port_mut(id)?;
            Some((id, port.counts().into_iter().collect()))
        };
        ports.into_iter().filter_map(&mut counts).collect()
    })
}
